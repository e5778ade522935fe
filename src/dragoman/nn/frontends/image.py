"""An image as a set of vectors: a grid of features from a stack of convolutions, or patches of pixels.

    resnet    x (3, H, W) ─7 × 7, stride 2→ ─pool→ ─stages of residual blocks→ (C, H/2ᵏ, W/2ᵏ) ─1 × 1→ (D, …)
                  block:  y = relu(x' + norm(conv(relu(norm(conv(x))))))      x': x, or its 1 × 1 conv with a stride
    patches   x_j = W · (the pixels of patch j) + position_j              (Dosovitskiy et al. 2021)

Where a vector stands in the picture is added as a learned vector for its row and one for its column: an encoder above
need not know that there is a grid. Weights have the names of torchvision's ResNet (conv1, bn1, layer1.0.conv1, …).

B images, H rows and W columns of pixels, C channels, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.interfaces import Medium, Segments
from dragoman.core.registry import Positive
from dragoman.media.image import ImageMedium
from dragoman.nn.frontends import frontends

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels, as pretrained weights expect


@frontends.register("image")
class ImageFrontend(nn.Module):
    """A grid of convolutional features (He et al. 2016), or patches of pixels, each with where it stands."""

    def __init__(
        self,
        size: int,
        d: int,
        *,
        pixels: Positive = 128,  # of each side
        crop: bool = True,
        augment: bool = True,
        flip: bool = True,
        grid: Literal["resnet", "patches"] = "resnet",
        channels: Positive = 64,  # of the first stage; each further one has twice as many
        stages: list[Positive] = [2, 2, 2, 2],  # residual blocks in each
        patch: Positive = 16,
    ) -> None:
        super().__init__()
        self.d, self.pixels = d, pixels
        if grid == "patches":
            if pixels % patch:
                raise PartError(f"{pixels} pixels cannot be cut into patches of {patch}; choose sizes that divide")
            self.cells = pixels // patch
            self.net: Any = nn.Conv2d(3, d, patch, patch)
            self.project: Any = nn.Identity()
        else:
            self.net = ResNet(channels, stages)
            self.cells = -(-pixels // 2 ** (len(stages) + 1))
            self.project = nn.Conv2d(self.net.channels, d, 1)
        self.row, self.column = (nn.Parameter(torch.randn(self.cells, d) * d**-0.5) for _ in range(2))
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(DEVIATION).view(3, 1, 1), persistent=False)

    @staticmethod
    def reader(options: Mapping[str, Any], files: Sequence[str]) -> Medium:
        names = {"pixels": "size", "crop": "crop", "augment": "augments", "flip": "flip"}
        return ImageMedium(**{names[key]: value for key, value in options.items() if key in names}, files=tuple(files))

    def read(self, source: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
        """(B, H, W · 3) bytes → (B, cells², D)"""
        B, side = source.shape[0], self.pixels
        x = source.view(B, side, side, 3).permute(0, 3, 1, 2).to(self.row.dtype) / 255
        x = self.project(self.net((x - self.mean) / self.deviation))  # (B, D, cells, cells)
        x = x.permute(0, 2, 3, 1) + self.row[:, None] + self.column  # (B, cells, cells, D)
        return x.flatten(1, 2), Segments(torch.full((B,), self.cells**2, device=source.device))

    def labels(self, length: int) -> list[str]:
        return [f"{row},{column}" for row in range(1, self.cells + 1) for column in range(1, self.cells + 1)]


class ResNet(nn.Module):
    """conv1, bn1, then layer1, layer2, …: stages of residual blocks."""

    def __init__(self, channels: int, stages: Sequence[int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.stages, c = [f"layer{i + 1}" for i in range(len(stages))], channels
        for i, (name, blocks) in enumerate(zip(self.stages, stages, strict=True)):
            wide, stride = channels * 2**i, 1 if i == 0 else 2
            self.add_module(
                name,
                nn.Sequential(*[Residual(c if b == 0 else wide, wide, stride if b == 0 else 1) for b in range(blocks)]),
            )
            c = wide
        self.channels = c

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = getattr(self, name)(x)
        return x


class Residual(nn.Module):
    """relu(x' + norm(conv(relu(norm(conv(x))))))"""

    def __init__(self, c_in: int, c: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c_in, c, 3, stride, 1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, 1, 1, bias=False), nn.BatchNorm2d(c)
        self.downsample = None
        if stride != 1 or c_in != c:
            self.downsample = nn.Sequential(nn.Conv2d(c_in, c, 1, stride, bias=False), nn.BatchNorm2d(c))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))
