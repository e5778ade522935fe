"""A video clip as vectors: the image frontend embeds each frame, and its cells are pooled to one vector, or kept.

    frame ─image.py→ cells c_1 … c_C          linear   x = W [c_1; …; c_C]
                                              mean     x = 1/C Σ_j c_j
                                              none     all cells, frame after frame

The mean loses where in a frame a thing is, so it cannot tell left from right motion. Only real frames go through the
network: padding would change the statistics of its batch norms.

B clips, n frames, H rows and W columns of pixels, C cells, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from dragoman.core.registry import PositiveInt
from dragoman.core.types import Modality, Segments
from dragoman.modalities.video import VideoModality
from dragoman.nn.frontends import PartOptions, frontends
from dragoman.nn.frontends.image import ImageFrontend, grid_size
from dragoman.nn.layers import linear

FRAMES, PIXELS = 16, 64  # the defaults


@frontends.register("video")
class VideoFrontend(nn.Module):
    """The frames of a video clip, each as one vector or as a grid of vectors from the image frontend."""

    def __init__(
        self,
        size: int,
        d: int,
        *,
        frames: PositiveInt = FRAMES,  # at most; longer clips are sampled at even intervals
        pool: Literal["linear", "mean", "none"] = "linear",
        pixels: PositiveInt = PIXELS,  # of each side
        crop: bool = True,
        augment: bool = True,
        flip: bool = False,  # wrong where targets distinguish left and right
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
        self.W = linear(self.image.grid_size**2 * d, d) if pool == "linear" else None

    @staticmethod
    def build_modality(options: PartOptions, files: Sequence[str]) -> Modality:
        names = {"pixels": "size", "frames": "frames", "crop": "crop", "augment": "has_augmentation", "flip": "flip"}
        return VideoModality(
            **{names[key]: value for key, value in options.items() if key in names}, search_paths=tuple(files)
        )

    @staticmethod
    def default_max_length(options: PartOptions) -> int:
        return int(options.get("frames", FRAMES))

    @staticmethod
    def max_vectors(options: PartOptions, length: int) -> int:
        return length * (grid_size(options, PIXELS) ** 2 if options.get("pool") == "none" else 1)

    def embed_source(self, source: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
        """(B, n, H · W · 3) bytes → (B, n, D), or all cells, (B, n · C, D) (pool 'none'), and the new lengths"""
        real = segments.mask(source.shape[1])  # (B, n)
        frames = source[real].view(-1, self.pixels, 3 * self.pixels)  # (N, H, W · 3)
        cells, _ = self.image.embed_source(frames, Segments(segments.lengths.new_full((len(frames),), self.pixels)))
        vectors = cells.mean(1) if self.pool == "mean" else cells  # (N, D), or (N, C, D)
        if self.W is not None:
            vectors = self.W(cells.flatten(1))  # (N, D)
        mask = real.view(*real.shape, *[1] * (vectors.ndim - 1))  # (B, n, 1), or (B, n, 1, 1)
        x = vectors.new_zeros(*real.shape, *vectors.shape[1:]).masked_scatter(mask, vectors)
        if self.pool != "none":
            return x, segments
        return x.flatten(1, 2), Segments(segments.lengths * cells.shape[1])

    def position_labels(self, length: int) -> list[str]:
        """ "frame i" for each of `length` frames, or "i: row,column" for each of their cells (pool 'none')."""
        if self.pool != "none":
            return [f"frame {i}" for i in range(1, length + 1)]
        cells = self.image.position_labels(self.pixels)
        return [f"{i}: {cell}" for i in range(1, length + 1) for cell in cells]

    def length_unit(self, stride: int) -> str:
        return "frames" if stride == 1 else "positions"
