"""Audio as log-mel frames: the energy in F bands of the mel scale, every 10 ms.

    file ─soundfile→ samples ─mean of the channels, soxr→ `rate` ─kaldi-native-fbank→ (S, F) ─normalize→ float16

A frame covers 25 ms; frame j begins at j · 10 ms. Every format of libsndfile is read: wav, flac,
ogg, opus, mp3. With `features: torch`, log_mel.py computes the energies, on a GPU if there is one.
They agree with kaldi-native-fbank's to 1e-4, and that package is not needed then.

`augment` changes the speed of the frames, in time and along the bands as in a resampled waveform
(frequency f becomes f · speed), and masks bands and spans of time (frame_transforms.py).
"""

from __future__ import annotations

import io
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import ModuleType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.core.errors import MissingExtra
from dragoman.core.types import Example
from dragoman.modalities.archives import read_content, source_error
from dragoman.modalities.frame_transforms import FrameAugmentation, normalize_utterance
from dragoman.modalities.log_mel import hertz_to_mel, log_mel, mel_band_edges, mel_to_hertz

Samples = NDArray[np.float32]  # (N,) from −1 to 1
Frames = NDArray[np.float16]  # (S, F)

MAX_SECONDS = 3600  # that are decoded: a small file may claim to be a long one
MAX_AMPLITUDE = 2.0**32  # samples should be from −1 to 1: the energies of 1e30 are not finite
UNRECOGNIZED_FORMAT = 1  # libsndfile's error code
FRAME_SHIFT = 0.01  # seconds from frame to frame


@dataclass(frozen=True)
class AudioModality:
    """Audio files, read as log-mel frames."""

    rate: int = 16_000  # samples a second; audio of another rate is resampled
    bins: int = 80
    normalize: bool = True
    features: Literal["kaldi", "torch"] = "kaldi"
    has_augmentation: bool = field(default=True, repr=False)
    augmentation: FrameAugmentation = field(default=FrameAugmentation(), repr=False)
    search_paths: Sequence[str] = field(default=(), repr=False)

    kind, dtype = "audio", "<f2"

    @property
    def width(self) -> int:
        return self.bins

    def read(self, example: Example) -> Frames:
        try:
            samples = decode_waveform(read_content(example, self.search_paths), self.rate)
        except ValueError as error:
            raise source_error(example, f"is not audio that can be read ({error})") from None
        return self.compute_frames(samples)

    def compute_frames(self, samples: Samples) -> Frames:
        """Samples from −1 to 1 → (S, F) log-mel frames, normalized; less than one frame is padded with silence."""
        samples = np.pad(samples, (0, max(0, self.rate * 25 // 1000 - len(samples))))
        compute = _kaldi_log_mel if self.features == "kaldi" else _torch_log_mel
        x = compute(samples, self.rate, self.bins)
        return (normalize_utterance(x) if self.normalize else x).astype(np.float16)

    def blank(self) -> Frames:
        return np.zeros((1, self.bins), np.float16)

    def augment(self, x: Frames, rng: np.random.Generator) -> Frames:
        return self.augmentation.apply(x, rng, partial(_warped_band_positions, self.rate, self.bins))


def decode_waveform(data: bytes, rate: int) -> Samples:
    """The bytes of an audio file → samples (N,) from −1 to 1 at `rate`; ValueError if they cannot be decoded."""
    library = import_soundfile()
    try:
        with library.SoundFile(io.BytesIO(data)) as file:
            source_rate = int(file.samplerate)
            if file.frames > MAX_SECONDS * source_rate:
                raise ValueError(
                    f"it lasts {file.frames // source_rate:,} seconds; the limit is {MAX_SECONDS:,}; cut it"
                )
            samples: Samples = file.read(dtype="float32", always_2d=True).mean(1)
    except (library.SoundFileError, RuntimeError) as error:
        if getattr(error, "code", None) == UNRECOGNIZED_FORMAT:
            raise ValueError("it is no wav, flac, ogg, opus or mp3; convert it to one, say with ffmpeg") from None
        reason = getattr(error, "error_string", str(error))  # str(error) would show a Python object
        raise ValueError(f"it is damaged: {reason.strip().rstrip('.')}; copy or make it anew") from None
    if not len(samples):
        raise ValueError("it contains no samples")
    if not np.abs(samples).max() <= MAX_AMPLITUDE:  # false for NaN, too
        raise ValueError("it contains samples that are not numbers, or far too large")
    if source_rate != rate:
        try:
            import soxr
        except ImportError:
            purpose = f"resampling audio from {source_rate:,} to {rate:,} samples a second"
            raise MissingExtra("soxr", "audio", purpose) from None
        samples = soxr.resample(samples, source_rate, rate)
    return samples


def _kaldi_log_mel(samples: Samples, rate: int, bins: int) -> NDArray[np.float32]:
    try:
        import kaldi_native_fbank as kaldi
    except ImportError:
        raise MissingExtra("kaldi-native-fbank", "audio", "reading audio") from None
    options = kaldi.FbankOptions()
    options.frame_opts.samp_freq, options.mel_opts.num_bins = rate, bins
    options.frame_opts.dither = 0.0  # the same samples always give the same frames
    fbank = kaldi.OnlineFbank(options)
    fbank.accept_waveform(rate, samples)
    fbank.input_finished()
    return np.stack([fbank.get_frame(i) for i in range(fbank.num_frames_ready)])


def _torch_log_mel(samples: Samples, rate: int, bins: int) -> NDArray[np.float32]:
    import torch

    forked = multiprocessing.parent_process() is not None  # a child process must not initialize CUDA
    device = "cuda" if torch.cuda.is_available() and not forked else "cpu"
    energies: NDArray[np.float32] = log_mel(torch.from_numpy(samples).to(device), rate, bins).cpu().numpy()
    return energies


def import_soundfile() -> ModuleType:
    """The soundfile library; MissingExtra if it is not installed."""
    try:
        import soundfile as library
    except (ImportError, OSError):  # OSError: the package without libsndfile
        raise MissingExtra("soundfile", "audio", "reading audio") from None
    module: ModuleType = library
    return module


@lru_cache(maxsize=32)
def _warped_band_positions(rate: int, bins: int, speed: float) -> NDArray[np.float64]:
    """(F,): the fractional band from which each band takes its energy at another speed."""
    edges = mel_band_edges(rate, bins)
    before = hertz_to_mel(mel_to_hertz(edges[1:-1]) / speed)
    return np.asarray(np.clip((before - edges[1]) / (edges[1] - edges[0]), 0, bins - 1))
