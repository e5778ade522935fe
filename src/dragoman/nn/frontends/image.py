"""An image as a set of vectors: a grid of features from a ResNet, or patches of pixels.

    resnet    x (3, H, W) ─7 × 7, stride 2→ ─pool→ ─stages of residual blocks→ (C, H/2ᵏ, W/2ᵏ) ─1 × 1→ (D, …)
                  block:  y = relu(x' + norm(conv(… relu(norm(conv(x))))))    x': x, or its 1 × 1 conv with a stride
                          basic: 3 × 3 twice; bottleneck: 1 × 1, 3 × 3, and 1 × 1 to four times the channels
    patches   x_j = W · (the pixels of patch j) + position_j              (Dosovitskiy et al. 2021)

A learned vector for its row and one for its column are added to each vector, so that encoders need not know of the
grid. Weights have the names of torchvision's ResNet (conv1, bn1, layer1.0.conv1, …), so that pretrained ones can be
loaded from a file (training.backbone).

B images, H rows and W columns of pixels, C channels, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import PositiveInt
from dragoman.core.types import Modality, Segments
from dragoman.modalities.image import ImageModality
from dragoman.nn.frontends import PartOptions, frontends
from dragoman.nn.layers import BatchNorm

PIXELS, STAGES, PATCH = 128, 4, 16  # the defaults
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as pretrained weights expect


@frontends.register("image")
class ImageFrontend(nn.Module):
    """A grid of ResNet features (He et al. 2016), or patches of pixels, with their positions."""

    def __init__(
        self,
        size: int,
        d: int,
        *,
        pixels: PositiveInt = PIXELS,  # of each side
        crop: bool = True,
        augment: bool = True,
        flip: bool = False,  # for photographs; wrong where targets distinguish left and right
        grid: Literal["resnet", "patches"] = "resnet",
        channels: PositiveInt = 64,  # of the first stage; doubled in each further one
        block: Literal["basic", "bottleneck"] = "basic",  # of ResNet-18 and 34, or of 50 and deeper
        stages: Annotated[list[PositiveInt], Field(min_length=1)] = [2, 2, 2, 2],  # residual blocks in each
        patch: PositiveInt = PATCH,
    ) -> None:
        super().__init__()
        self.d, self.pixels = d, pixels
        if grid == "patches":
            if pixels % patch:
                raise PartError(f"{pixels} pixels are not divisible into patches of {patch}; change one of them")
            self.grid_size = pixels // patch
            self.net: nn.Module = nn.Conv2d(3, d, patch, patch)
            self.project: nn.Module = nn.Identity()
        else:
            self.net = resnet = ResNet(channels, stages, block == "bottleneck")
            self.grid_size = -(-pixels // 2 ** (len(stages) + 1))
            self.project = nn.Conv2d(resnet.channels, d, 1)
        self.row, self.column = (nn.Parameter(torch.randn(self.grid_size, d) * d**-0.5) for _ in range(2))
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(DEVIATION).view(3, 1, 1), persistent=False)

    @staticmethod
    def build_modality(options: PartOptions, files: Sequence[str]) -> Modality:
        names = {"pixels": "size", "crop": "crop", "augment": "has_augmentation", "flip": "flip"}
        return ImageModality(
            **{names[key]: value for key, value in options.items() if key in names}, search_paths=tuple(files)
        )

    @staticmethod
    def default_max_length(options: PartOptions) -> int:
        return int(options.get("pixels", PIXELS))

    @staticmethod
    def max_vectors(options: PartOptions, length: int) -> int:
        return grid_size(options, PIXELS) ** 2

    def embed_source(self, source: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
        """(B, H, W · 3) bytes → (B, n², D) and lengths n², for a grid of n × n cells; `segments` is ignored."""
        B, side = source.shape[0], self.pixels
        x = source.reshape(B, side, side, 3).permute(0, 3, 1, 2).to(self.row.dtype) / 255
        x = self.project(self.net((x - self.mean) / self.deviation))  # (B, D, n, n)
        x = x.permute(0, 2, 3, 1) + self.row[:, None] + self.column  # (B, n, n, D)
        return x.flatten(1, 2), Segments(torch.full((B,), self.grid_size**2, device=source.device))

    def position_labels(self, length: int) -> list[str]:
        return [f"{row},{column}" for row in range(1, self.grid_size + 1) for column in range(1, self.grid_size + 1)]

    def length_unit(self, stride: int) -> str:
        return ""


def grid_size(options: PartOptions, pixels: int) -> int:
    """The cells on each side of the grid, from the options of a frontend; `pixels` is the default."""
    side = int(options.get("pixels", pixels))
    if options.get("grid") == "patches":
        return side // int(options.get("patch", PATCH))
    return int(-(-side // 2 ** (len(options.get("stages", [0] * STAGES)) + 1)))


class ResNet(nn.Module):
    """conv1, bn1, then layer1, layer2, …: stages of residual blocks, each after the first halves the resolution."""

    def __init__(self, channels: int, stages: Sequence[int], bottleneck: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv_without_bias(3, channels, 7, 2), ImageBatchNorm(channels)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.stages, c = [f"layer{i + 1}" for i in range(len(stages))], channels
        for i, (name, count) in enumerate(zip(self.stages, stages, strict=True)):
            blocks = []
            for b in range(count):
                blocks.append(ResidualBlock(c, channels * 2**i, 2 if i > 0 and b == 0 else 1, bottleneck))
                c = blocks[-1].channels
            self.add_module(name, nn.Sequential(*blocks))
        self.channels = c

    def forward(self, x: Tensor) -> Tensor:
        """conv1, norm, relu, pool, then the stages: (B, 3, H, W) → (B, C', H / 2ᵏ, W / 2ᵏ), k the stages + 1"""
        x = self.pool(torch.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = getattr(self, name)(x)
        return x


class ResidualBlock(nn.Module):
    """A basic or bottleneck block: relu(x' + norm(conv(… relu(norm(conv(x))))))"""

    def __init__(self, c_in: int, c: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        self.channels = 4 * c if bottleneck else c
        sizes = [(c, 1, 1), (c, 3, stride), (4 * c, 1, 1)] if bottleneck else [(c, 3, stride), (c, 3, 1)]
        self.count, before = len(sizes), c_in
        for i, (after, kernel, step) in enumerate(sizes, start=1):
            self.add_module(f"conv{i}", conv_without_bias(before, after, kernel, step))
            self.add_module(f"bn{i}", ImageBatchNorm(after))
            before = after
        self.downsample = None
        if stride != 1 or c_in != self.channels:
            self.downsample = nn.Sequential(
                conv_without_bias(c_in, self.channels, 1, stride), ImageBatchNorm(self.channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.count:
                y = torch.relu(y)
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ImageBatchNorm(BatchNorm):
    """Batch norm over channels; a frozen one uses its running averages in training, too.

    Batches of a small dataset would destroy pretrained averages. Unlike torch's it has no `num_batches_tracked`.
    """

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        uses_batch = self.training and self.weight.requires_grad
        return nn.functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, uses_batch)


def conv_without_bias(c_in: int, c: int, kernel: int, stride: int) -> nn.Conv2d:
    """A convolution initialized as in He et al. 2015, without a bias, which the norm after it would cancel."""
    conv = nn.Conv2d(c_in, c, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv
