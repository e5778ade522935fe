"""Sound as vectors: log-mel frames, 100 a second, subsampled to a quarter (features.py).

B batch, S frames, F bins, D width.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dragoman.core.registry import NonNegativeInt, PositiveFloat, PositiveInt
from dragoman.modalities.audio import FRAME_SHIFT, AudioModality
from dragoman.nn.frontends import frontends
from dragoman.nn.frontends.features import STACK, FrameFrontend, Subsampling


@frontends.register("audio")
class AudioFrontend(FrameFrontend):
    """Log-mel frames of a sound file, subsampled by two convolutions or stacked."""

    modality, modality_options = AudioModality, ("rate", "bins", "normalize", "features")

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
        super().__init__(size, d, FRAME_SHIFT, subsampling, channels, stack)
