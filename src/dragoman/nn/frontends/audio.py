"""Sound as vectors: log-mel frames, 100 a second, subsampled to a quarter (features.py).

B batch, S frames, F bins, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from dragoman.core.registry import NonNegativeInt, PositiveFloat, PositiveInt
from dragoman.core.types import Modality, Segments
from dragoman.modalities.audio import FRAME_SHIFT, AudioModality
from dragoman.modalities.frame_transforms import FrameAugmentation
from dragoman.nn.frontends import PartOptions, frontends
from dragoman.nn.frontends.features import (
    MAX_FRAMES,
    STACK,
    Subsampling,
    augmentation_options,
    build_subsampler,
    max_subsampled_length,
    subsample,
    time_labels,
    time_unit,
)


@frontends.register("audio")
class AudioFrontend(nn.Module):
    """Log-mel frames of a sound file, subsampled by two convolutions or stacked."""

    def __init__(
        self,
        size: int,
        d: int,
        *,
        rate: Annotated[int, Field(ge=1000, le=192_000)] = 16_000,  # samples per second, to which sound is resampled
        bins: Annotated[int, Field(ge=4, le=256)] = 80,  # of the mel scale
        normalize: bool = True,  # mean 0 and deviation 1 of each bin in an utterance
        features: Literal["kaldi", "torch"] = "kaldi",  # computed by; torch on the GPU if there is one
        augment: bool = True,
        speeds: list[PositiveFloat] = [0.9, 1.0, 1.1],  # of playback, one of them at random in training
        time_masks: NonNegativeInt = 2,  # SpecAugment
        time_width: NonNegativeInt = 100,  # frames, and at most a fifth of an utterance
        band_masks: NonNegativeInt = 2,
        band_width: NonNegativeInt = 27,  # bins, and at most a third
        subsampling: Subsampling = "conv",
        channels: PositiveInt = 32,  # of conv
        stack: PositiveInt = STACK,  # frames per vector
    ) -> None:
        super().__init__()
        self.d = d
        self.net = build_subsampler(subsampling, size, d, channels, stack)
        self.stride = self.net.stride

    @staticmethod
    def build_modality(options: PartOptions, files: Sequence[str]) -> Modality:
        """The reader of sound files with the frontend's options, also from the folders and archives `files`."""
        own = {key: options[key] for key in ("rate", "bins", "normalize", "features") if key in options}
        return AudioModality(
            **own,
            has_augmentation=options.get("augment", True),
            augmentation=augmentation_options(options, FrameAugmentation()),
            search_paths=tuple(files),
        )

    @staticmethod
    def default_max_length(options: PartOptions) -> int:
        """3000 frames, whatever the options: the usual maximum of source positions (data.max_source)."""
        return MAX_FRAMES

    @staticmethod
    def max_vectors(options: PartOptions, length: int) -> int:
        """The most vectors that `length` frames become in training: slowed down by augmentation, then subsampled."""
        return max_subsampled_length(options, length, FrameAugmentation())

    def embed_source(self, source: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
        """(B, S, F) frames, subsampled → (B, ⌈S / stride⌉, D), and the new lengths"""
        return subsample(self.net, source, segments)

    def position_labels(self, length: int) -> list[str]:
        """When each vector of a sound of `length` frames starts, such as "0.04 s"."""
        return time_labels(length, self.stride, FRAME_SHIFT)

    def length_unit(self, stride: int) -> str:
        """The time that a state of `stride` vectors covers, as "steps of 40 ms"."""
        return time_unit(self.stride * stride, FRAME_SHIFT)
