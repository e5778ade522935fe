"""log-mel energies of a waveform in torch, on any device: what kaldi-native-fbank computes on a CPU.

    frames of 25 ms every 10 ms ─minus their mean─ x_i − 0.97 x_{i−1} ─ · window→ |FFT|² ─triangles→ log

Triangles stand at equal distances on the mel scale, mel(f) = 1127 ln(1 + f / 700), from 20 Hz to half the rate. The
window is Kaldi's, (½ − ½ cos)^0.85. Everything is in float64: a weak bin beside a strong one is a small difference of
large numbers.

N samples, S frames, W samples of a frame, F bins.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

LOW = 20.0  # Hz
EMPHASIS = 0.97
FLOOR = float(np.finfo(np.float32).eps)  # of an energy, where samples are from −1 to 1


def log_mel(waveform: Tensor, rate: int, bins: int) -> Tensor:
    """(…, N) samples from −1 to 1 → (…, S, F), S = 1 + ⌊(N − W) / shift⌋."""
    import torch  # here, since processes that prepare batches need the scale below and nothing more

    window, shift = rate * 25 // 1000, rate * 10 // 1000
    size = 1 << (window - 1).bit_length()  # of the FFT
    x = waveform.double().unfold(-1, window, shift)  # (…, S, W)
    x = x - x.mean(-1, keepdim=True)
    x = x - EMPHASIS * torch.cat([x[..., :1], x[..., :-1]], -1)
    n = torch.arange(window, device=x.device, dtype=x.dtype)
    x = x * (0.5 - 0.5 * torch.cos(2 * math.pi * n / (window - 1))) ** 0.85
    power = torch.fft.rfft(x, size).abs().square()[..., :-1]  # Kaldi leaves out the last, at half the rate
    banks = torch.from_numpy(triangles(rate, bins, size)).to(x)  # (size / 2, F)
    energies: Tensor = power @ banks
    return energies.clamp(min=FLOOR).log().float()


def mel(frequency: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1127.0 * np.log1p(frequency / 700.0))


def hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(700.0 * np.expm1(mels / 1127.0))


def centers(rate: int, bins: int) -> NDArray[np.float64]:
    """In mel: where the triangles peak, and where the first begins and the last ends."""
    low, high = mel(np.array([LOW, rate / 2]))
    return np.linspace(low, high, bins + 2)


@lru_cache(maxsize=8)
def triangles(rate: int, bins: int, size: int) -> NDArray[np.float64]:
    """(size / 2, F): how much each line of the spectrum counts in each bin."""
    edges = centers(rate, bins)
    lines = mel(np.arange(size // 2) * rate / size)[:, None]
    rising = (lines - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - lines) / (edges[2:] - edges[1:-1])
    return np.asarray(np.maximum(np.minimum(rising, falling), 0.0))
