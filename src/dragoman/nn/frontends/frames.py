"""Frames of numbers as fewer vectors: sound has a hundred frames a second, and a letter lasts several.

    conv    x (S, F) ─3 × 3, stride 2─relu─3 × 3, stride 2─relu→ (⌈S/4⌉, ⌈F/4⌉ · C) ─W→ (⌈S/4⌉, D)
    stack   n frames side by side ─W→ (⌈S/n⌉, D)

Both see zeros after a row's last frame, padding or not.

B batch, S frames, F numbers of each, C channels, D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dragoman.core.registry import NonNegativeInt, PositiveFloat, PositiveInt
from dragoman.core.types import Modality, Segments
from dragoman.modalities.audio import SHIFT
from dragoman.modalities.features import FeatureModality
from dragoman.modalities.frame_transforms import Looks
from dragoman.nn.frontends import frontends
from dragoman.nn.layers import linear

Subsampling = Literal["conv", "stack"]
LONGEST = 3000  # frames that an utterance may well have: 30 s, as read speech is cut
STACK = 4


@frontends.register("frames")
class FramesFrontend(nn.Module):
    """Frames that are given as arrays of numbers, subsampled."""

    def __init__(
        self,
        size: int,
        d: int,
        *,
        numbers: PositiveInt = 13,  # of each frame, as the files have them
        deltas: NonNegativeInt = 0,  # slopes of the numbers, slopes of the slopes, …
        normalize: bool = True,  # mean and deviation of each number in an utterance
        shift: PositiveFloat = SHIFT,  # seconds from frame to frame
        augment: bool = True,
        speeds: list[PositiveFloat] = [0.9, 1.0, 1.1],
        time_masks: NonNegativeInt = 2,
        time_width: NonNegativeInt = 100,  # frames
        band_masks: NonNegativeInt = 0,
        band_width: NonNegativeInt = 27,
        subsampling: Subsampling = "conv",
        channels: PositiveInt = 32,  # of conv
        stack: PositiveInt = STACK,  # frames side by side
    ) -> None:
        super().__init__()
        self.d, self.shift = d, shift
        self.net = subsampler(subsampling, size, d, channels, stack)
        self.stride = self.net.stride

    @staticmethod
    def reader(options: Mapping[str, Any], files: Sequence[str]) -> Modality:
        own = {key: options[key] for key in ("numbers", "deltas", "normalize") if key in options}
        default = Looks(band_masks=0)
        return FeatureModality(
            **own, augments=options.get("augment", True), looks=looks(options, default), files=tuple(files)
        )

    @staticmethod
    def longest(options: Mapping[str, Any]) -> int:
        return LONGEST

    @staticmethod
    def most(options: Mapping[str, Any], length: int) -> int:
        return vectors(options, length, Looks(band_masks=0))

    def read(self, source: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
        return subsampled(self.net, source, segments)

    def labels(self, length: int) -> list[str]:
        return times(length, self.stride, self.shift)

    def unit(self, stride: int) -> str:
        return steps(self.stride * stride, self.shift)


def looks(options: Mapping[str, Any], default: Looks) -> Looks:
    """How training looks at frames, from a frontend's options."""
    return Looks(**{name: options.get(name, value) for name, value in vars(default).items()})


def vectors(options: Mapping[str, Any], length: int, default: Looks) -> int:
    """How many vectors are made of so many frames, played at the slowest speed that training plays them at."""
    speeds = looks(options, default).speeds if options.get("augment", True) else ()
    slowest = min(speeds, default=1.0)
    stride = Convolutions.stride if options.get("subsampling", "conv") == "conv" else options.get("stack", STACK)
    return math.ceil(math.ceil(length / slowest) / stride)


def times(length: int, stride: int, shift: float) -> list[str]:
    """When each vector made of `length` frames begins."""
    return [f"{j * shift:.2f} s" for j in range(0, length, stride)]


def steps(stride: int, shift: float) -> str:
    """How long a state stands for."""
    return f"steps of {1000 * stride * shift:.10g} ms"


def subsampler(kind: Subsampling, size: int, d: int, channels: int, stack: int) -> Convolutions | Stacked:
    return Convolutions(size, d, channels) if kind == "conv" else Stacked(size, d, stack)


def subsampled(net: Convolutions | Stacked, source: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
    """(B, S, F) → (B, ⌈S / stride⌉, D), and how many of these are real."""
    x = net(source.to(net.W.weight.dtype), segments)
    return x, Segments(halved(segments.lengths, net.stride))


def halved(lengths: Tensor, times: int = 2) -> Tensor:
    """⌈n / times⌉"""
    return (lengths + times - 1) // times


class Convolutions(nn.Module):
    """Two convolutions over time and numbers, each of which leaves a half of both."""

    stride = 4

    def __init__(self, size: int, d: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, 2, 1)
        self.second_source = nn.Conv2d(channels, channels, 3, 2, 1)
        # What comes out is as large as what goes in (He et al. 2015): torch's own weights would leave a fifth of it,
        # and what is said would drown in the positions that a Transformer adds.
        for convolution in (self.first, self.second_source):
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        self.W = linear(channels * -(-size // 4), d)

    def forward(self, x: Tensor, segments: Segments) -> Tensor:
        lengths = segments.lengths
        y = x[:, None]  # (B, 1, S, F)
        for convolve in (self.first, self.second_source):
            # Zeroed before each, since what the first writes into padding would come back through the second.
            y = y.masked_fill(~Segments(lengths).mask(y.shape[2])[:, None, :, None], 0.0)
            y, lengths = torch.relu(convolve(y)), halved(lengths)
        return self.W(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Stacked(nn.Module):
    """`stride` frames side by side, and a linear layer."""

    def __init__(self, size: int, d: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.W = linear(size * stride, d)

    def forward(self, x: Tensor, segments: Segments) -> Tensor:
        x = x.masked_fill(~segments.mask(x.shape[1])[..., None], 0.0)
        x = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % self.stride))
        return self.W(x.view(x.shape[0], x.shape[1] // self.stride, self.stride * x.shape[2]))  # type: ignore[no-any-return]
