"""Features, such as MFCCs, subsampled to fewer vectors: sound has 100 frames a second, and a letter lasts several.

    conv    x (S, F) ─3 × 3, stride 2─relu─3 × 3, stride 2─relu→ (⌈S/4⌉, ⌈F/4⌉ · C) ─W→ (⌈S/4⌉, D)
    stack   n frames side by side ─W→ (⌈S/n⌉, D)

Both read zeros after the last frame of a row, so that padding changes nothing.

B batch, S frames, F numbers of each, C channels, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from dragoman.core.registry import NonNegativeInt, PositiveFloat, PositiveInt
from dragoman.core.types import Modality, Segments
from dragoman.modalities.audio import FRAME_SHIFT, AudioModality
from dragoman.modalities.features import FeatureModality
from dragoman.modalities.frame_transforms import FrameAugmentation
from dragoman.nn.frontends import PartOptions, frontends
from dragoman.nn.layers import linear, stack_neighbors

Subsampling = Literal["conv", "stack"]
MAX_FRAMES = 3000  # of an utterance by default: 30 s, as read speech is segmented
STACK = 4  # frames


class FrameFrontend(nn.Module):
    """Frames, subsampled by two convolutions or stacked: the base of audio and features."""

    modality: ClassVar[type[AudioModality] | type[FeatureModality]]
    modality_options: ClassVar[Sequence[str]]  # those of the frontend's options that the modality takes as they are

    def __init__(self, size: int, d: int, shift: float, subsampling: Subsampling, channels: int, stack: int) -> None:
        super().__init__()
        self.d, self.shift = d, shift  # seconds from frame to frame
        self.net: ConvSubsampler | StackSubsampler = (
            ConvSubsampler(size, d, channels) if subsampling == "conv" else StackSubsampler(size, d, stack)
        )
        self.stride = self.net.stride

    @classmethod
    def build_modality(cls, options: PartOptions, files: Sequence[str]) -> Modality:
        default = cls.modality.augmentation
        modality: Any = cls.modality  # the options of each are its own
        built: Modality = modality(
            **{key: options[key] for key in cls.modality_options if key in options},
            has_augmentation=options.get("augment", True),
            augmentation=replace(default, **{key: options[key] for key in vars(default) if key in options}),
            search_paths=tuple(files),
        )
        return built

    @staticmethod
    def default_max_length(options: PartOptions) -> int:
        return MAX_FRAMES

    @staticmethod
    def max_vectors(options: PartOptions, length: int) -> int:
        """The most vectors that `length` frames become in training: slowed down by augmentation, then subsampled."""
        speeds = options.get("speeds", FrameAugmentation.speeds) if options.get("augment", True) else ()
        stride = ConvSubsampler.stride if options.get("subsampling", "conv") == "conv" else options.get("stack", STACK)
        return math.ceil(math.ceil(length / min(speeds, default=1.0)) / stride)

    def embed_source(self, source: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
        """(B, S, F) frames, subsampled → (B, ⌈S / stride⌉, D), and the new lengths"""
        x, lengths = self.net(source.to(self.net.W.weight.dtype), segments.lengths)
        return x, Segments(lengths)

    def position_labels(self, length: int) -> list[str]:
        """When each vector of a source of `length` frames starts, such as "0.04 s"."""
        return [f"{j * self.shift:.2f} s" for j in range(0, length, self.stride)]

    def length_unit(self, stride: int) -> str:
        """The time that a state of `stride` vectors covers, as "steps of 40 ms"."""
        return f"steps of {1000 * self.stride * stride * self.shift:.10g} ms"


@frontends.register("features")
class FeaturesFrontend(FrameFrontend):
    """Precomputed feature frames from array files, subsampled by two convolutions or stacked."""

    modality, modality_options = FeatureModality, ("numbers", "deltas", "normalize")

    def __init__(
        self,
        size: int,
        d: int,
        *,
        numbers: PositiveInt = 13,  # features per frame in the files
        deltas: NonNegativeInt = 0,  # orders of time derivatives to append
        normalize: bool = True,  # mean 0 and deviation 1 of each feature in an utterance
        shift: PositiveFloat = FRAME_SHIFT,  # seconds from frame to frame
        augment: bool = True,
        speeds: list[PositiveFloat] = [0.9, 1.0, 1.1],
        time_masks: NonNegativeInt = 2,
        time_width: NonNegativeInt = 100,  # frames
        band_masks: NonNegativeInt = 0,
        band_width: NonNegativeInt = 27,
        subsampling: Subsampling = "conv",
        channels: PositiveInt = 32,  # of conv
        stack: PositiveInt = STACK,  # frames per vector
    ) -> None:
        super().__init__(size, d, shift, subsampling, channels, stack)


class ConvSubsampler(nn.Module):
    """Two convolutions over time and features, each of which halves both."""

    stride = 4

    def __init__(self, size: int, d: int, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, 2, 1)
        self.conv2 = nn.Conv2d(channels, channels, 3, 2, 1)
        # Outputs as large as inputs (He et al. 2015): with torch's own initial weights they are a fifth, and small
        # against the positions that a Transformer adds.
        for convolution in (self.conv1, self.conv2):
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        self.W = linear(channels * -(-size // 4), d)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """W relu(conv(relu(conv(x)))), (B, S, F) → (B, ⌈S/4⌉, D), and the new lengths"""
        y = x[:, None]  # (B, 1, S, F)
        for convolve in (self.conv1, self.conv2):
            # Padding is zeroed before each: outputs of the first there would leak into real positions in the second.
            y = y.masked_fill(~Segments(lengths).mask(y.shape[2])[:, None, :, None], 0.0)
            y, lengths = torch.relu(convolve(y)), (lengths + 1) // 2
        return self.W(y.transpose(1, 2).flatten(2)), lengths  # (B, ⌈S/4⌉, D)


class StackSubsampler(nn.Module):
    """`stride` neighboring frames concatenated, and a linear layer."""

    def __init__(self, size: int, d: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.W = linear(size * stride, d)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """W [x_1; …; x_n] for every n = `stride` frames: (B, S, F) → (B, ⌈S/n⌉, D), and the new lengths"""
        x, lengths = stack_neighbors(x, lengths, self.stride)
        return self.W(x), lengths
