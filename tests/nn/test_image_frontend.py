"""Image frontends against torch's functions in plain order, torchvision's names and published numbers of weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Segments
from dragoman.nn.frontends import frontends
from dragoman.nn.frontends.image import DEVIATION, MEAN, ImageBatchNorm

# torchvision.models.resnet18().state_dict(), without the counters of batches and the classifier (fc).
RESNET18 = """
conv1.weight bn1.weight bn1.bias bn1.running_mean bn1.running_var
layer1.0.conv1.weight layer1.0.bn1.weight layer1.0.bn1.bias layer1.0.bn1.running_mean layer1.0.bn1.running_var
layer1.0.conv2.weight layer1.0.bn2.weight layer1.0.bn2.bias layer1.0.bn2.running_mean layer1.0.bn2.running_var
layer1.1.conv1.weight layer1.1.bn1.weight layer1.1.bn1.bias layer1.1.bn1.running_mean layer1.1.bn1.running_var
layer1.1.conv2.weight layer1.1.bn2.weight layer1.1.bn2.bias layer1.1.bn2.running_mean layer1.1.bn2.running_var
layer2.0.conv1.weight layer2.0.bn1.weight layer2.0.bn1.bias layer2.0.bn1.running_mean layer2.0.bn1.running_var
layer2.0.conv2.weight layer2.0.bn2.weight layer2.0.bn2.bias layer2.0.bn2.running_mean layer2.0.bn2.running_var
layer2.0.downsample.0.weight layer2.0.downsample.1.weight layer2.0.downsample.1.bias
layer2.0.downsample.1.running_mean layer2.0.downsample.1.running_var
layer2.1.conv1.weight layer2.1.bn1.weight layer2.1.bn1.bias layer2.1.bn1.running_mean layer2.1.bn1.running_var
layer2.1.conv2.weight layer2.1.bn2.weight layer2.1.bn2.bias layer2.1.bn2.running_mean layer2.1.bn2.running_var
layer3.0.conv1.weight layer3.0.bn1.weight layer3.0.bn1.bias layer3.0.bn1.running_mean layer3.0.bn1.running_var
layer3.0.conv2.weight layer3.0.bn2.weight layer3.0.bn2.bias layer3.0.bn2.running_mean layer3.0.bn2.running_var
layer3.0.downsample.0.weight layer3.0.downsample.1.weight layer3.0.downsample.1.bias
layer3.0.downsample.1.running_mean layer3.0.downsample.1.running_var
layer3.1.conv1.weight layer3.1.bn1.weight layer3.1.bn1.bias layer3.1.bn1.running_mean layer3.1.bn1.running_var
layer3.1.conv2.weight layer3.1.bn2.weight layer3.1.bn2.bias layer3.1.bn2.running_mean layer3.1.bn2.running_var
layer4.0.conv1.weight layer4.0.bn1.weight layer4.0.bn1.bias layer4.0.bn1.running_mean layer4.0.bn1.running_var
layer4.0.conv2.weight layer4.0.bn2.weight layer4.0.bn2.bias layer4.0.bn2.running_mean layer4.0.bn2.running_var
layer4.0.downsample.0.weight layer4.0.downsample.1.weight layer4.0.downsample.1.bias
layer4.0.downsample.1.running_mean layer4.0.downsample.1.running_var
layer4.1.conv1.weight layer4.1.bn1.weight layer4.1.bn1.bias layer4.1.bn1.running_mean layer4.1.bn1.running_var
layer4.1.conv2.weight layer4.1.bn2.weight layer4.1.bn2.bias layer4.1.bn2.running_mean layer4.1.bn2.running_var
"""


def frontend_of(d: int = 6, **options: Any) -> Any:
    return frontends.build(frontends.parse({"name": "image", **options}), 3 * options["pixels"], d)


def unlike(module: nn.Module) -> None:
    """Weights and averages of norms that are not what they begin as."""
    for norm in module.modules():
        if isinstance(norm, ImageBatchNorm):
            for x in (norm.weight, norm.running_var):
                nn.init.uniform_(x, 0.5, 1.5)
            for x in (norm.bias, norm.running_mean):
                nn.init.normal_(x)


def pictures(count: int, pixels: int) -> Tensor:
    return torch.randint(0, 256, (count, pixels, 3 * pixels), dtype=torch.uint8)


def read(frontend: Any, x: Tensor) -> Tensor:
    found, segments = frontend.embed_source(x, Segments(torch.full((len(x),), x.shape[1])))
    assert segments.lengths.tolist() == [found.shape[1]] * len(x)
    assert len(frontend.position_labels(x.shape[1])) == found.shape[1]
    return found  # type: ignore[no-any-return]


def standard(x: Tensor) -> Tensor:
    """(B, 3, H, W) as pretrained networks want it, pixel by pixel."""
    B, H = x.shape[:2]
    found = torch.empty(B, 3, H, H)
    for c in range(3):
        found[:, c] = (x[:, :, c::3].float() / 255 - MEAN[c]) / DEVIATION[c]
    return found


# -- a grid of convolutional features ----------------------------------------------------------------------------------


def by_functions(x: Tensor, w: dict[str, Tensor], blocks: list[int], convolutions: int) -> Tensor:
    """torchvision's ResNet in torch's functions, from its weights by their names."""

    def norm(x: Tensor, name: str) -> Tensor:
        mean, var = (w[f"{name}.running_{kind}"][:, None, None] for kind in ("mean", "var"))
        gain, bias = (w[f"{name}.{kind}"][:, None, None] for kind in ("weight", "bias"))
        return (x - mean) / (var + 1e-5).sqrt() * gain + bias

    def convolved(x: Tensor, name: str, stride: int) -> Tensor:
        return F.conv2d(x, w[name], stride=stride, padding=w[name].shape[-1] // 2)

    x = F.max_pool2d(F.relu(norm(convolved(x, "conv1.weight", 2), "bn1")), 3, 2, 1)
    strides_at = 1 if convolutions == 2 else 2  # a bottleneck's 3 × 3 has the stride
    for stage, count in enumerate(blocks, start=1):
        for b in range(count):
            block, stride = f"layer{stage}.{b}", 2 if stage > 1 and b == 0 else 1
            y = x
            for i in range(1, convolutions + 1):
                y = norm(convolved(y, f"{block}.conv{i}.weight", stride if i == strides_at else 1), f"{block}.bn{i}")
                y = F.relu(y) if i < convolutions else y
            if f"{block}.downsample.0.weight" in w:
                x = norm(convolved(x, f"{block}.downsample.0.weight", stride), f"{block}.downsample.1")
            x = F.relu(x + y)
    return x


@pytest.mark.parametrize(("block", "convolutions"), [("basic", 2), ("bottleneck", 3)])
def test_a_resnet_is_its_equations(block: str, convolutions: int) -> None:
    frontend = frontend_of(pixels=40, channels=4, stages=[1, 2, 1], block=block).eval()
    unlike(frontend)
    x, weights = pictures(2, 40), dict(frontend.net.state_dict())
    grid = by_functions(standard(x), weights, [1, 2, 1], convolutions)  # (B, C, 3, 3)
    W, b = frontend.project.weight[:, :, 0, 0], frontend.project.bias
    found = read(frontend, x)
    assert found.shape == (2, 9, 6)
    for i in range(3):
        for j in range(3):
            wanted = grid[:, :, i, j] @ W.T + b + frontend.row[i] + frontend.column[j]
            assert_close(found[:, 3 * i + j], wanted, rtol=1e-4, atol=1e-4)
            assert frontend.position_labels(40)[3 * i + j] == f"{i + 1},{j + 1}"


def test_weights_have_torchvisions_names_and_shapes() -> None:
    with torch.device("meta"):
        net = frontend_of(pixels=224).net
        deep = frontend_of(pixels=224, stages=[3, 4, 6, 3], block="bottleneck").net
    weights = net.state_dict()
    assert sorted(weights) == sorted(RESNET18.split())
    shapes = {
        "conv1.weight": (64, 3, 7, 7),
        "layer1.0.conv1.weight": (64, 64, 3, 3),
        "layer2.0.conv1.weight": (128, 64, 3, 3),
        "layer2.0.downsample.0.weight": (128, 64, 1, 1),
        "layer4.1.bn2.running_var": (512,),
    }
    assert {name: tuple(weights[name].shape) for name in shapes} == shapes
    shapes = {
        "layer1.0.conv1.weight": (64, 64, 1, 1),
        "layer1.0.conv3.weight": (256, 64, 1, 1),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer4.2.conv2.weight": (512, 512, 3, 3),
        "layer4.0.downsample.0.weight": (2048, 1024, 1, 1),
    }
    assert {name: tuple(deep.state_dict()[name].shape) for name in shapes} == shapes
    # Published: 11,689,512 and 25,557,032 with classifiers of 1000 × 512 + 1000 and 1000 × 2048 + 1000.
    assert sum(p.numel() for p in net.parameters()) == 11_689_512 - 513_000
    assert sum(p.numel() for p in deep.parameters()) == 25_557_032 - 2_049_000


@pytest.mark.parametrize("pixels", [8, 17, 32, 33, 50, 64])
@pytest.mark.parametrize("stages", [[1], [1, 1], [1, 1, 1]])
def test_every_cell_of_the_grid_has_a_position_whatever_the_size(pixels: int, stages: list[int]) -> None:
    frontend = frontend_of(pixels=pixels, channels=2, stages=stages).eval()
    assert read(frontend, pictures(1, pixels)).shape == (1, frontend.grid_size**2, 6)


# -- patches -----------------------------------------------------------------------------------------------------------


def test_a_patch_is_a_linear_map_of_its_pixels_plus_its_position() -> None:
    frontend = frontend_of(pixels=12, grid="patches", patch=4)
    x = pictures(2, 12)
    found, pixels = read(frontend, x), standard(x)
    W, b = frontend.net.weight.flatten(1), frontend.net.bias  # (D, 3 · 4 · 4)
    for i in range(3):
        for j in range(3):
            patch = pixels[:, :, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4].flatten(1)
            assert_close(found[:, 3 * i + j], patch @ W.T + b + frontend.row[i] + frontend.column[j])


def test_patches_that_do_not_fill_the_picture_are_refused() -> None:
    with pytest.raises(PartError, match="30 pixels are not divisible into patches of 16"):
        frontend_of(pixels=30, grid="patches")


# -- norms -------------------------------------------------------------------------------------------------------------


def test_a_norm_takes_the_batchs_own_mean_in_training_and_counts_it_along() -> None:
    norm, x = ImageBatchNorm(2), torch.randn(3, 2, 4, 5) * 2 + 1
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
    assert_close(norm(x), (x - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt())
    assert_close(norm.running_mean, 0.1 * mean)
    assert_close(norm.running_var, 0.9 + 0.1 * x.var((0, 2, 3)))
    counted = norm.running_mean.clone()
    norm.eval()(x)
    assert norm.running_mean.equal(counted)


def test_a_frozen_norm_keeps_what_it_was_pretrained_for_in_training() -> None:
    norm, x = ImageBatchNorm(2), torch.randn(3, 2, 4, 5) * 2 + 1
    unlike(norm)
    before = norm.running_mean.clone()
    expected = norm.eval()(x)
    found = norm.train().requires_grad_(False)(x)
    assert_close(found, expected)
    assert norm.running_mean.equal(before)


@pytest.mark.parametrize("options", [{"channels": 4, "stages": [1, 1]}, {"grid": "patches", "patch": 8}])
def test_a_picture_is_read_alike_alone_and_among_others(options: dict[str, Any]) -> None:
    frontend = frontend_of(pixels=24, **options).eval()
    unlike(frontend)
    x = pictures(3, 24)
    found = read(frontend, x)
    for i in range(3):
        assert_close(found[i : i + 1], read(frontend, x[i : i + 1]), rtol=1e-5, atol=1e-5)


def test_the_options_say_how_files_are_read() -> None:
    part = frontends.parse({"name": "image", "pixels": 48, "crop": False, "augment": False, "flip": True})
    modality: Any = frontends[part.name].build_modality(part.options, ["photos.zip"])  # type: ignore[attr-defined]
    assert (modality.size, modality.crop, modality.has_augmentation, modality.flip) == (48, False, False, True)
    assert modality.search_paths == ("photos.zip",)
    assert modality.width == 144
    plain: Any = frontends["image"].build_modality(Part("image").options, [])  # type: ignore[attr-defined]
    assert (plain.size, plain.crop, plain.has_augmentation, plain.flip) == (128, True, True, False)
