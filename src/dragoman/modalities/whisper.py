"""Audio as Whisper reads it: the log-mel frames of one window of 30 s, 100 a second.

    file → samples at 16 kHz ─padded with silence, or cut→ |STFT|² ─bands→ e (S, F) ─→ x ─→ float32

    x = (max(y, max y − 8) + 4) / 4        y = log₁₀ max(e, 10⁻¹⁰)

Frame j is centered at j · 10 ms and covers 25 ms, with a Hann window; beyond both ends the samples are mirrored. The
bands are triangles on Slaney's mel scale, from 0 to 8000 Hz, of equal area (Radford et al. 2022; librosa's filters).
What lies after the window is not read; its frames are zeros, so that a longer sound counts as too long.

N samples, S frames, F bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.core.types import Example
from dragoman.modalities.archives import read_content, source_error
from dragoman.modalities.audio import Samples, decode_waveform

RATE = 16_000  # samples a second
FFT_SIZE, SHIFT = 400, 160  # samples of a frame, and from frame to frame
FRAMES_PER_SECOND = RATE // SHIFT
DYNAMIC_RANGE = 8.0  # in powers of ten: what is weaker is raised to this below the strongest

Frames = NDArray[np.float32]  # (S, F)


@dataclass(frozen=True)
class WhisperAudioModality:
    """Audio files, read as the log-mel frames of a window of fixed length."""

    seconds: int = 30
    bins: int = 80
    search_paths: Sequence[str] = field(default=(), repr=False)

    kind, dtype = "audio", "<f4"  # float16 would be wrong by 5e-4
    rate = RATE
    has_augmentation = False

    @property
    def width(self) -> int:
        return self.bins

    def read(self, example: Example) -> Frames:
        try:
            samples = decode_waveform(read_content(example, self.search_paths), RATE)
        except ValueError as error:
            raise source_error(example, f"is not audio that can be read ({error})") from None
        return self.compute_frames(samples)

    def compute_frames(self, samples: Samples) -> Frames:
        """Samples from −1 to 1 → (S, F) frames of the window, and zeros for what is longer."""
        window, count = self.seconds * RATE, -(-len(samples) // SHIFT)
        x = np.zeros((max(self.seconds * FRAMES_PER_SECOND, count), self.bins), np.float32)
        samples = samples[:window]
        x[: self.seconds * FRAMES_PER_SECOND] = log_mel(np.pad(samples, (0, window - len(samples))), self.bins)
        return x

    def blank(self) -> Frames:
        return np.zeros((self.seconds * FRAMES_PER_SECOND, self.bins), np.float32)

    def augment(self, x: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        return x


def log_mel(samples: Samples, bins: int) -> Frames:
    """(N,) samples → (N / 160, F) frames, the weakest DYNAMIC_RANGE below the strongest."""
    mirrored = np.pad(samples.astype(np.float64), FFT_SIZE // 2, mode="reflect")
    x = np.lib.stride_tricks.sliding_window_view(mirrored, FFT_SIZE)[: len(samples) : SHIFT]  # (S, 400)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT_SIZE) / FFT_SIZE)
    power = np.abs(np.fft.rfft(x * hann)) ** 2  # (S, 201)
    y = np.log10(np.maximum(power @ slaney_filterbank(bins), 1e-10))
    frames: Frames = ((np.maximum(y, y.max() - DYNAMIC_RANGE) + 4) / 4).astype(np.float32)
    return frames


@lru_cache(maxsize=8)
def slaney_filterbank(bins: int) -> NDArray[np.float64]:
    """(201, F): the weight of each spectral line in each bin."""
    edges = slaney_to_hertz(np.linspace(0, float(hertz_to_slaney(np.array(RATE / 2))), bins + 2))
    lines = np.linspace(0, RATE / 2, FFT_SIZE // 2 + 1)[:, None]
    rising = (lines - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - lines) / (edges[2:] - edges[1:-1])
    return np.asarray(np.maximum(np.minimum(rising, falling), 0.0) * 2 / (edges[2:] - edges[:-2]))


# Slaney's mel scale is linear up to 1000 Hz, which are 15 mel, and logarithmic above: 27 mel for a factor of 6.4.


def hertz_to_slaney(frequency: NDArray[np.float64]) -> NDArray[np.float64]:
    """Frequencies in Hz → Slaney's mel scale."""
    above = 15 + 27 * np.log(np.maximum(frequency, 1000) / 1000) / np.log(6.4)
    return np.asarray(np.where(frequency < 1000, frequency * 3 / 200, above))


def slaney_to_hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Slaney's mel scale → frequencies in Hz."""
    above = 1000 * np.exp((np.maximum(mels, 15) - 15) * np.log(6.4) / 27)
    return np.asarray(np.where(mels < 15, mels * 200 / 3, above))
