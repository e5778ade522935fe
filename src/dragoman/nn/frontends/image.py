"""An image as a set of vectors: a grid of features from a stack of convolutions, or patches of pixels.

    resnet    x (3, H, W) ─7 × 7, stride 2→ ─pool→ ─stages of residual blocks→ (C, H/2ᵏ, W/2ᵏ) ─1 × 1→ (D, …)
                  block:  y = relu(x' + norm(conv(… relu(norm(conv(x))))))    x': x, or its 1 × 1 conv with a stride
                          basic: 3 × 3 twice; bottleneck: 1 × 1, 3 × 3, and 1 × 1 to four times the channels
    patches   x_j = W · (the pixels of patch j) + position_j              (Dosovitskiy et al. 2021)

Where a vector stands in the picture is added as a learned vector for its row and one for its column: an encoder above
need not know that there is a grid. Weights have the names of torchvision's ResNet (conv1, bn1, layer1.0.conv1, …), so
that pretrained ones can be read from a file (training.backbone).

In training every look at an image is another one (`augment`: a crop, the light); with `flip` half of them are mirrored,
which is more to learn from where left and right do not matter, as in photographs, and wrong where targets tell them
apart.

B images, H rows and W columns of pixels, C channels, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import PositiveInt
from dragoman.core.types import Modality, Segments
from dragoman.modalities.image import ImageModality
from dragoman.nn.frontends import frontends

PIXELS, STAGES, PATCH = 128, 4, 16
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels, as pretrained weights expect


@frontends.register("image")
class ImageFrontend(nn.Module):
    """A grid of convolutional features (He et al. 2016), or patches of pixels, each with where it stands."""

    def __init__(
        self,
        size: int,
        d: int,
        *,
        pixels: PositiveInt = PIXELS,  # of each side
        crop: bool = True,
        augment: bool = True,
        flip: bool = False,  # right for photographs; wrong where targets tell left from right
        grid: Literal["resnet", "patches"] = "resnet",
        channels: PositiveInt = 64,  # of the first stage; each further one has twice as many
        block: Literal["basic", "bottleneck"] = "basic",  # of ResNet-18 and 34, or of 50 and deeper
        stages: Annotated[list[PositiveInt], Field(min_length=1)] = [2, 2, 2, 2],  # residual blocks in each
        patch: PositiveInt = PATCH,
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
            self.net = ResNet(channels, stages, block == "bottleneck")
            self.cells = -(-pixels // 2 ** (len(stages) + 1))
            self.project = nn.Conv2d(self.net.channels, d, 1)
        self.row, self.column = (nn.Parameter(torch.randn(self.cells, d) * d**-0.5) for _ in range(2))
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(DEVIATION).view(3, 1, 1), persistent=False)

    @staticmethod
    def reader(options: Mapping[str, Any], files: Sequence[str]) -> Modality:
        names = {"pixels": "size", "crop": "crop", "augment": "augments", "flip": "flip"}
        return ImageModality(
            **{names[key]: value for key, value in options.items() if key in names}, files=tuple(files)
        )

    @staticmethod
    def longest(options: Mapping[str, Any]) -> int:
        return int(options.get("pixels", PIXELS))

    @staticmethod
    def most(options: Mapping[str, Any], length: int) -> int:
        return cells(options, PIXELS) ** 2

    def read(self, source: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
        """(B, H, W · 3) bytes → (B, cells², D)"""
        B, side = source.shape[0], self.pixels
        x = source.reshape(B, side, side, 3).permute(0, 3, 1, 2).to(self.row.dtype) / 255
        x = self.project(self.net((x - self.mean) / self.deviation))  # (B, D, cells, cells)
        x = x.permute(0, 2, 3, 1) + self.row[:, None] + self.column  # (B, cells, cells, D)
        return x.flatten(1, 2), Segments(torch.full((B,), self.cells**2, device=source.device))

    def labels(self, length: int) -> list[str]:
        return [f"{row},{column}" for row in range(1, self.cells + 1) for column in range(1, self.cells + 1)]

    def unit(self, stride: int) -> str:
        return ""  # all are of one size


def cells(options: Mapping[str, Any], pixels: int) -> int:
    """How many vectors a side of the grid has."""
    side = int(options.get("pixels", pixels))
    if options.get("grid") == "patches":
        return side // int(options.get("patch", PATCH))
    return int(-(-side // 2 ** (len(options.get("stages", [0] * STAGES)) + 1)))


class ResNet(nn.Module):
    """conv1, bn1, then layer1, layer2, …: stages of residual blocks, each after the first at half the resolution."""

    def __init__(self, channels: int, stages: Sequence[int], bottleneck: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(3, channels, 7, 2), Norm(channels)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.stages, c = [f"layer{i + 1}" for i in range(len(stages))], channels
        for i, (name, count) in enumerate(zip(self.stages, stages, strict=True)):
            blocks = []
            for b in range(count):
                blocks.append(Residual(c, channels * 2**i, 2 if i > 0 and b == 0 else 1, bottleneck))
                c = blocks[-1].channels
            self.add_module(name, nn.Sequential(*blocks))
        self.channels = c

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = getattr(self, name)(x)
        return x


class Residual(nn.Module):
    """relu(x' + norm(conv(… relu(norm(conv(x))))))"""

    def __init__(self, c_in: int, c: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        self.channels = 4 * c if bottleneck else c
        sizes = [(c, 1, 1), (c, 3, stride), (4 * c, 1, 1)] if bottleneck else [(c, 3, stride), (c, 3, 1)]
        self.count, before = len(sizes), c_in
        for i, (after, kernel, step) in enumerate(sizes, start=1):
            self.add_module(f"conv{i}", convolution(before, after, kernel, step))
            self.add_module(f"bn{i}", Norm(after))
            before = after
        self.downsample = None
        if stride != 1 or c_in != self.channels:
            self.downsample = nn.Sequential(convolution(c_in, self.channels, 1, stride), Norm(self.channels))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.count:
                y = torch.relu(y)
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class Norm(nn.Module):
    """Each channel less its mean, over its deviation: of the batch in training, else those counted along.

    A frozen one takes those counted along in training, too: the batches of a small set would undo what it was
    pretrained for. There is no counter of batches, which torch's keeps and needs only for a plain mean.
    Of several ranks each counts its own batches along; those of the first are what is validated and saved.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        counts = self.training and self.weight.requires_grad
        return nn.functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, counts)


def convolution(c_in: int, c: int, kernel: int, stride: int) -> nn.Conv2d:
    """A convolution without a bias, which the norm after it would take away, begun as He et al. 2015 do."""
    made = nn.Conv2d(c_in, c, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(made.weight, mode="fan_out", nonlinearity="relu")
    return made
