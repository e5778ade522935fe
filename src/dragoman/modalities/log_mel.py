"""Log-mel energies of a waveform in torch, on any device: what kaldi-native-fbank computes on a CPU.

    frames of 25 ms every 10 ms ─minus their mean─ x_i − 0.97 x_{i−1} ─ · window→ |FFT|² ─triangles→ log

The triangles stand at equal distances on the mel scale, mel(f) = 1127 ln(1 + f / 700), from 20 Hz
to half the sampling rate. The window is Kaldi's, (½ − ½ cos)^0.85. Everything is in float64: a weak
bin beside a strong one is a small difference of large numbers.

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

LOWEST_FREQUENCY = 20.0  # Hz
PREEMPHASIS = 0.97
ENERGY_FLOOR = float(np.finfo(np.float32).eps)  # for samples from −1 to 1


def log_mel(waveform: Tensor, rate: int, bins: int) -> Tensor:
    """(…, N) samples from −1 to 1 → (…, S, F) log-mel energies, S = 1 + ⌊(N − W) / shift⌋."""
    import torch  # here, since loader processes need the mel scale below but not torch

    window, shift = rate * 25 // 1000, rate * 10 // 1000
    fft_size = 1 << (window - 1).bit_length()
    x = waveform.double().unfold(-1, window, shift)  # (…, S, W)
    x = x - x.mean(-1, keepdim=True)
    x = x - PREEMPHASIS * torch.cat([x[..., :1], x[..., :-1]], -1)
    n = torch.arange(window, device=x.device, dtype=x.dtype)
    x = x * (0.5 - 0.5 * torch.cos(2 * math.pi * n / (window - 1))) ** 0.85
    power = torch.fft.rfft(x, fft_size).abs().square()[..., :-1]  # Kaldi leaves out the last, at half the rate
    filterbank = torch.from_numpy(mel_filterbank(rate, bins, fft_size)).to(x)  # (fft_size / 2, F)
    energies: Tensor = power @ filterbank
    return energies.clamp(min=ENERGY_FLOOR).log().float()


def hertz_to_mel(frequency: NDArray[np.float64]) -> NDArray[np.float64]:
    """Frequencies in Hz → the mel scale."""
    return np.asarray(1127.0 * np.log1p(frequency / 700.0))


def mel_to_hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mel scale → frequencies in Hz."""
    return np.asarray(700.0 * np.expm1(mels / 1127.0))


def mel_band_edges(rate: int, bins: int) -> NDArray[np.float64]:
    """(F + 2,) in mel: the start of the first triangle, the peaks, and the end of the last triangle."""
    low, high = hertz_to_mel(np.array([LOWEST_FREQUENCY, rate / 2]))
    return np.linspace(low, high, bins + 2)


@lru_cache(maxsize=8)
def mel_filterbank(rate: int, bins: int, fft_size: int) -> NDArray[np.float64]:
    """(fft_size / 2, F): the weight of each spectral line in each bin."""
    edges = mel_band_edges(rate, bins)
    lines = hertz_to_mel(np.arange(fft_size // 2) * rate / fft_size)[:, None]
    rising = (lines - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - lines) / (edges[2:] - edges[1:-1])
    return np.asarray(np.maximum(np.minimum(rising, falling), 0.0))
