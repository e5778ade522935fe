"""Features, such as MFCCs, subsampled to fewer vectors: sound has 100 frames a second, and a letter lasts several.

    conv    x (S, F) ─3 × 3, stride 2─relu─3 × 3, stride 2─relu→ (⌈S/4⌉, ⌈F/4⌉ · C) ─W→ (⌈S/4⌉, D)
    stack   n frames side by side ─W→ (⌈S/n⌉, D)

Both read zeros after the last frame of a row, so that padding changes nothing.

B batch, S frames, F numbers of each, C channels, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from dragoman.core.registry import NonNegativeInt, PositiveFloat, PositiveInt
from dragoman.core.types import Modality, Segments
from dragoman.modalities.audio import FRAME_SHIFT
from dragoman.modalities.features import FeatureModality
from dragoman.modalities.frame_transforms import FrameAugmentation
from dragoman.nn.frontends import PartOptions, frontends
from dragoman.nn.layers import linear

Subsampling = Literal["conv", "stack"]
MAX_FRAMES = 3000  # of an utterance by default: 30 s, as read speech is segmented
STACK = 4  # frames


@frontends.register("features")
class FeaturesFrontend(nn.Module):
    """Precomputed feature frames from array files, subsampled by two convolutions or stacked."""

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
        super().__init__()
        self.d, self.shift = d, shift
        self.net = build_subsampler(subsampling, size, d, channels, stack)
        self.stride = self.net.stride

    @staticmethod
    def build_modality(options: PartOptions, files: Sequence[str]) -> Modality:
        """The reader of feature files with the frontend's options, also from the folders and archives `files`."""
        own = {key: options[key] for key in ("numbers", "deltas", "normalize") if key in options}
        return FeatureModality(
            **own,
            has_augmentation=options.get("augment", True),
            augmentation=augmentation_options(options, FrameAugmentation(band_masks=0)),
            search_paths=tuple(files),
        )

    @staticmethod
    def default_max_length(options: PartOptions) -> int:
        """3000 frames, whatever the options: the usual maximum of source positions (data.max_source)."""
        return MAX_FRAMES

    @staticmethod
    def max_vectors(options: PartOptions, length: int) -> int:
        """The most vectors that `length` frames become in training: slowed down by augmentation, then subsampled."""
        return max_subsampled_length(options, length, FrameAugmentation(band_masks=0))

    def embed_source(self, source: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
        """(B, S, F) frames, subsampled → (B, ⌈S / stride⌉, D), and the new lengths"""
        return subsample(self.net, source, segments)

    def position_labels(self, length: int) -> list[str]:
        """When each vector of a source of `length` frames starts, such as "0.04 s"."""
        return time_labels(length, self.stride, self.shift)

    def length_unit(self, stride: int) -> str:
        """The time that a state of `stride` vectors covers, as "steps of 40 ms"."""
        return time_unit(self.stride * stride, self.shift)


def augmentation_options(options: PartOptions, default: FrameAugmentation) -> FrameAugmentation:
    """The augmentation of frames in training: a frontend's options, `default` for those that it leaves out."""
    return FrameAugmentation(**{name: options.get(name, value) for name, value in vars(default).items()})


def max_subsampled_length(options: PartOptions, length: int, default: FrameAugmentation) -> int:
    """The most vectors that `length` frames become in training, which is at the slowest speed of the augmentation."""
    speeds = augmentation_options(options, default).speeds if options.get("augment", True) else ()
    slowest = min(speeds, default=1.0)
    stride = ConvSubsampler.stride if options.get("subsampling", "conv") == "conv" else options.get("stack", STACK)
    return math.ceil(math.ceil(length / slowest) / stride)


def time_labels(length: int, stride: int, shift: float) -> list[str]:
    """When every `stride`-th of `length` frames starts, such as "0.04 s"; frames are `shift` seconds apart."""
    return [f"{j * shift:.2f} s" for j in range(0, length, stride)]


def time_unit(stride: int, shift: float) -> str:
    """The time that `stride` frames of `shift` seconds cover, as "steps of 40 ms"."""
    return f"steps of {1000 * stride * shift:.10g} ms"


def build_subsampler(
    kind: Subsampling, size: int, d: int, channels: int, stack: int
) -> ConvSubsampler | StackSubsampler:
    """The layer that turns frames of `size` numbers into fewer vectors of width d: convolutions, or stacked frames."""
    return ConvSubsampler(size, d, channels) if kind == "conv" else StackSubsampler(size, d, stack)


def subsample(net: ConvSubsampler | StackSubsampler, source: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
    """(B, S, F) in the weights' dtype through the subsampler → (B, ⌈S / stride⌉, D), and the new lengths."""
    x = net(source.to(net.W.weight.dtype), segments)
    return x, Segments(ceil_divide(segments.lengths, net.stride))


def ceil_divide(lengths: Tensor, divisor: int) -> Tensor:
    """⌈n / divisor⌉ for every length n."""
    return (lengths + divisor - 1) // divisor


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

    def forward(self, x: Tensor, segments: Segments) -> Tensor:
        """W relu(conv(relu(conv(x)))), padding zeroed before each convolution: (B, S, F) → (B, ⌈S/4⌉, D)"""
        lengths = segments.lengths
        y = x[:, None]  # (B, 1, S, F)
        for convolve in (self.conv1, self.conv2):
            # Padding is zeroed before each: outputs of the first there would leak into real positions in the second.
            y = y.masked_fill(~Segments(lengths).mask(y.shape[2])[:, None, :, None], 0.0)
            y, lengths = torch.relu(convolve(y)), ceil_divide(lengths, 2)
        vectors: Tensor = self.W(y.transpose(1, 2).flatten(2))  # (B, ⌈S/4⌉, D)
        return vectors


class StackSubsampler(nn.Module):
    """`stride` neighboring frames concatenated, and a linear layer."""

    def __init__(self, size: int, d: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.W = linear(size * stride, d)

    def forward(self, x: Tensor, segments: Segments) -> Tensor:
        """W [x_1; …; x_n] for every n = `stride` frames, padding zeroed: (B, S, F) → (B, ⌈S/n⌉, D)"""
        x = x.masked_fill(~segments.mask(x.shape[1])[..., None], 0.0)
        x = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % self.stride))
        vectors: Tensor = self.W(x.view(x.shape[0], x.shape[1] // self.stride, self.stride * x.shape[2]))
        return vectors
