"""A clip as vectors: each frame by the net for images, and its cells pooled to one, or kept.

    frame ─image.py→ cells c_1 … c_C          linear   x = W [c_1; …; c_C]
                                              mean     x = 1/C Σ_j c_j
                                              none     all of them, frame after frame

Whether a thing moves to the left or to the right, the mean cannot say: it forgets where in the frame the thing was.
Only real frames go through the net: padding would count in the means of its norms.

B clips, n frames, H rows and W columns of pixels, C cells, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor, nn

from dragoman.core.registry import PositiveInt
from dragoman.core.types import Modality, Segments
from dragoman.modalities.video import VideoModality
from dragoman.nn.frontends import frontends
from dragoman.nn.frontends.image import ImageFrontend, cells
from dragoman.nn.layers import linear

FRAMES, PIXELS = 16, 64


@frontends.register("clips")
class ClipsFrontend(nn.Module):
    """The frames of a clip, each a vector or a grid of them from the net for images."""

    def __init__(
        self,
        size: int,
        d: int,
        *,
        frames: PositiveInt = FRAMES,  # at most; of a longer clip, so many evenly spaced
        pool: Literal["linear", "mean", "none"] = "linear",
        pixels: PositiveInt = PIXELS,  # of each side
        crop: bool = True,
        augment: bool = True,
        flip: bool = False,  # left would become right, which a motion's name may tell apart
        grid: Literal["resnet", "patches"] = "resnet",
        channels: PositiveInt = 64,
        block: Literal["basic", "bottleneck"] = "basic",
        stages: Annotated[list[PositiveInt], Field(min_length=1)] = [2, 2, 2, 2],
        patch: PositiveInt = 16,
    ) -> None:
        super().__init__()
        self.d, self.pixels, self.pool = d, pixels, pool
        self.image = ImageFrontend(
            3 * pixels, d, pixels=pixels, grid=grid, channels=channels, block=block, stages=stages, patch=patch
        )
        self.W = linear(self.image.cells**2 * d, d) if pool == "linear" else None

    @staticmethod
    def reader(options: Mapping[str, Any], files: Sequence[str]) -> Modality:
        names = {"pixels": "size", "frames": "frames", "crop": "crop", "augment": "augments", "flip": "flip"}
        return VideoModality(
            **{names[key]: value for key, value in options.items() if key in names}, files=tuple(files)
        )

    @staticmethod
    def longest(options: Mapping[str, Any]) -> int:
        return int(options.get("frames", FRAMES))

    @staticmethod
    def most(options: Mapping[str, Any], length: int) -> int:
        return length * (cells(options, PIXELS) ** 2 if options.get("pool") == "none" else 1)

    def read(self, source: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
        """(B, n, H · W · 3) bytes → (B, n, D), or (B, n · C, D)"""
        real = segments.mask(source.shape[1])  # (B, n)
        pictures = source[real].view(-1, self.pixels, 3 * self.pixels)  # (N, H, W · 3)
        cells, _ = self.image.read(pictures, Segments(segments.lengths.new_full((len(pictures),), self.pixels)))
        seen = self._pooled(cells)  # (N, D), or (N, C, D)
        x = seen.new_zeros(*real.shape, *seen.shape[1:]).masked_scatter(_like(real, seen), seen)
        if self.pool != "none":
            return x, segments
        return x.flatten(1, 2), Segments(segments.lengths * cells.shape[1])

    def _pooled(self, c: Tensor) -> Tensor:
        if self.W is None:
            return c.mean(1) if self.pool == "mean" else c
        pooled: Tensor = self.W(c.flatten(1))
        return pooled

    def labels(self, length: int) -> list[str]:
        if self.pool != "none":
            return [f"frame {i}" for i in range(1, length + 1)]
        cells = self.image.labels(self.pixels)
        return [f"{i}: {cell}" for i in range(1, length + 1) for cell in cells]

    def unit(self, stride: int) -> str:
        return "frames" if stride == 1 else "positions"


def _like(real: Tensor, seen: Tensor) -> Tensor:
    """(B, n) with as many more dimensions as what was seen has."""
    return real.view(*real.shape, *[1] * (seen.ndim - 1))
