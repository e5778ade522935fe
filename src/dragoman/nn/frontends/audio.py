"""Sound as vectors: log-mel frames, a hundred a second, subsampled to a quarter (frames.py).

B batch, S frames, F bins, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor, nn

from dragoman.core.registry import NonNegativeInt, PositiveFloat, PositiveInt
from dragoman.core.types import Modality, Segments
from dragoman.modalities.audio import SHIFT, AudioModality
from dragoman.modalities.frame_transforms import Looks
from dragoman.nn.frontends import frontends
from dragoman.nn.frontends.frames import (
    LONGEST,
    STACK,
    Subsampling,
    looks,
    steps,
    subsampled,
    subsampler,
    times,
    vectors,
)


@frontends.register("audio")
class AudioFrontend(nn.Module):
    """Log-mel frames of a sound file, subsampled by two convolutions or stacked."""

    def __init__(
        self,
        size: int,
        d: int,
        *,
        rate: Annotated[int, Field(ge=1000, le=192_000)] = 16_000,  # samples a second that sound is brought to
        bins: Annotated[int, Field(ge=4, le=256)] = 80,  # of the mel scale
        normalize: bool = True,  # mean and deviation of each bin in an utterance
        features: Literal["kaldi", "torch"] = "kaldi",  # what computes them; torch on the GPU where there is one
        augment: bool = True,
        speeds: list[PositiveFloat] = [0.9, 1.0, 1.1],  # one of them at each look in training
        time_masks: NonNegativeInt = 2,  # SpecAugment
        time_width: NonNegativeInt = 100,  # frames, and at most a fifth of an utterance
        band_masks: NonNegativeInt = 2,
        band_width: NonNegativeInt = 27,  # bins, and at most a third
        subsampling: Subsampling = "conv",
        channels: PositiveInt = 32,  # of conv
        stack: PositiveInt = STACK,  # frames side by side
    ) -> None:
        super().__init__()
        self.d = d
        self.net = subsampler(subsampling, size, d, channels, stack)
        self.stride = self.net.stride

    @staticmethod
    def reader(options: Mapping[str, Any], files: Sequence[str]) -> Modality:
        own = {key: options[key] for key in ("rate", "bins", "normalize", "features") if key in options}
        return AudioModality(
            **own, augments=options.get("augment", True), looks=looks(options, Looks()), files=tuple(files)
        )

    @staticmethod
    def longest(options: Mapping[str, Any]) -> int:
        return LONGEST

    @staticmethod
    def most(options: Mapping[str, Any], length: int) -> int:
        return vectors(options, length, Looks())

    def read(self, source: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
        return subsampled(self.net, source, segments)

    def labels(self, length: int) -> list[str]:
        return times(length, self.stride, SHIFT)

    def unit(self, stride: int) -> str:
        return steps(self.stride * stride, SHIFT)
