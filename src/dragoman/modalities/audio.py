"""Sound as frames: the energy in F bands of the mel scale, every 10 ms.

    file ─soundfile→ samples ─mean of the channels, soxr→ `rate` ─kaldi-native-fbank→ (S, F) ─normalized→ float16

A frame covers 25 ms; frame j begins at j · 10 ms. Any form that libsndfile reads will do: wav, flac, ogg, opus, mp3.
With `features: torch` the energies are computed by mel.py, on the GPU where there is one: the same to 1e-4, where
kaldi-native-fbank is not to be had.

`augment` plays the frames faster or slower, in time and along the bands as a resampled waveform would (what was at the
frequency f comes to be at f · speed), and hides bands and spans of them (frames.py).
"""

from __future__ import annotations

import io
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dragoman.core.errors import DataError, MissingExtra
from dragoman.core.types import Example
from dragoman.modalities.archives import content
from dragoman.modalities.frame_transforms import Looks, between, faster, normalized

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONGEST = 3600  # seconds that are decoded: a small file may claim to be a long one
LOUDEST = 2.0**32  # of samples that should be from −1 to 1: the energies of 1e30 are no numbers any more
UNKNOWN = 1  # libsndfile's code for bytes that it does not know
SHIFT = 0.01  # seconds from frame to frame


@dataclass(frozen=True)
class AudioModality:
    """Log-mel frames of sound files."""

    rate: int = 16_000  # samples a second; what has another rate is resampled
    bins: int = 80
    normalize: bool = True
    features: Literal["kaldi", "torch"] = "kaldi"
    augments: bool = field(default=True, repr=False)
    looks: Looks = field(default=Looks(), repr=False)
    files: Sequence[str] = field(default=(), repr=False)

    kind, dtype = "sound", "<f2"

    @property
    def width(self) -> int:
        return self.bins

    def read(self, example: Example) -> NDArray[Any]:
        """(S, F)"""
        try:
            samples = waveform(content(example, self.files), self.rate)
        except ValueError as error:
            raise DataError(
                f"'{example.source}' is not a sound that can be read ({error})",
                example.file or None,
                example.line or None,
            ) from None
        return self.frames(samples)

    def frames(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Samples from −1 to 1 → frames; what is shorter than a frame is filled up with silence."""
        samples = np.pad(samples, (0, max(0, self.rate * 25 // 1000 - len(samples))))
        energies = _kaldi if self.features == "kaldi" else _torch
        x = energies(samples, self.rate, self.bins)
        return (normalized(x) if self.normalize else x).astype(np.float16)

    def blank(self) -> NDArray[Any]:
        return np.zeros((1, self.bins), np.float16)

    def augment(self, x: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Another look at (S, F) frames."""
        speed = self.looks.speed(rng)
        if speed != 1.0:
            x = faster(x.astype(np.float32), speed)
            x = between(x.T, _moved_bands(self.rate, self.bins, speed)).T
        return self.looks.masked(x, rng).astype(np.float16)

    def state(self) -> dict[str, bytes]:
        return {}


def waveform(data: bytes, rate: int) -> NDArray[Any]:
    """The bytes of a file → samples (N,) from −1 to 1; ValueError where they are none."""
    library = soundfile()
    try:
        with library.SoundFile(io.BytesIO(data)) as file:
            found = int(file.samplerate)
            if file.frames > LONGEST * found:
                raise ValueError(f"it lasts {file.frames // found:,} seconds, more than {LONGEST:,}; cut it")
            samples = file.read(dtype="float32", always_2d=True).mean(1)
    except (library.SoundFileError, RuntimeError) as error:
        if getattr(error, "code", None) == UNKNOWN:
            raise ValueError("it is no wav, flac, ogg, opus or mp3; convert it to one, say with ffmpeg") from None
        reason = getattr(error, "error_string", str(error))  # all of its text would name an object of Python's
        raise ValueError(f"it is damaged: {reason.strip().rstrip('.')}; copy or make it anew") from None
    if not len(samples):
        raise ValueError("it holds no sample")
    if not np.abs(samples).max() <= LOUDEST:  # nor is what is no number
        raise ValueError("it holds samples that are no numbers, or far too large")
    return samples if found == rate else _resampled(samples, found, rate)


def _resampled(samples: NDArray[Any], found: int, rate: int) -> NDArray[Any]:
    try:
        import soxr
    except ImportError:
        raise MissingExtra("soxr", "audio", f"sound of {found:,} samples a second, not {rate:,},") from None
    resampled: NDArray[Any] = soxr.resample(samples, found, rate)
    return resampled


def _kaldi(samples: NDArray[Any], rate: int, bins: int) -> NDArray[Any]:
    try:
        import kaldi_native_fbank as kaldi
    except ImportError:
        raise MissingExtra("kaldi-native-fbank", "audio", "reading sound") from None
    options = kaldi.FbankOptions()
    options.frame_opts.samp_freq, options.mel_opts.num_bins = rate, bins
    options.frame_opts.dither = 0.0  # the same sound is the same numbers
    found = kaldi.OnlineFbank(options)
    found.accept_waveform(rate, samples)
    found.input_finished()
    return np.stack([found.get_frame(i) for i in range(found.num_frames_ready)])


def _torch(samples: NDArray[Any], rate: int, bins: int) -> NDArray[Any]:
    import torch

    from dragoman.modalities.log_mel import log_mel

    forked = multiprocessing.parent_process() is not None  # such a process cannot begin to use a GPU
    device = "cuda" if torch.cuda.is_available() and not forked else "cpu"
    energies: NDArray[Any] = log_mel(torch.from_numpy(samples).to(device), rate, bins).cpu().numpy()
    return energies


def soundfile() -> Any:
    """The library that reads sounds, or which package to install."""
    try:
        import soundfile as library
    except (ImportError, OSError):  # OSError: the package without libsndfile
        raise MissingExtra("soundfile", "audio", "reading sound") from None
    return library


@lru_cache(maxsize=32)
def _moved_bands(rate: int, bins: int, speed: float) -> NDArray[np.float64]:
    """From which place among the bands each one's energy comes, played at another speed."""
    from dragoman.modalities.log_mel import centers, hertz, mel

    edges = centers(rate, bins)
    before = mel(hertz(edges[1:-1]) / speed)
    return np.asarray(np.clip((before - edges[1]) / (edges[1] - edges[0]), 0, bins - 1))
