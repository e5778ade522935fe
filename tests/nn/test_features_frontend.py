"""Subsampled frames against plain loops over positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dragoman.core.registry import Part
from dragoman.core.types import Segments
from dragoman.modalities.audio import AudioModality
from dragoman.modalities.features import FeatureModality
from dragoman.modalities.frame_transforms import FrameAugmentation
from dragoman.nn.frontends import frontends

F, D, LENGTHS = 6, 5, [9, 4, 1]


def a_frontend(**options: Any) -> Any:
    return frontends.build(frontends.parse({"name": "audio", "bins": F, **options}), F, D).double()


def some_frames() -> Tensor:
    return torch.randn(3, 9, F, dtype=torch.float64)


def convolved(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """3 × 3 with stride 2 and zeros around, (C, S, F) → (C', ⌈S/2⌉, ⌈F/2⌉), one number after the other."""
    C, S, W = x.shape
    out = torch.zeros(len(weight), -(-S // 2), -(-W // 2), dtype=x.dtype)
    for c in range(out.shape[0]):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                total = bias[c]
                for b in range(C):
                    for u in range(3):
                        for v in range(3):
                            s, f = 2 * i + u - 1, 2 * j + v - 1
                            if 0 <= s < S and 0 <= f < W:
                                total = total + weight[c, b, u, v] * x[b, s, f]
                out[c, i, j] = total.clamp(min=0)
    return out


@torch.no_grad()
def test_two_convolutions_leave_a_quarter_of_the_frames() -> None:
    frontend, x = a_frontend(channels=2), some_frames()
    net = frontend.net
    found, segments = frontend.embed_source(x, Segments(torch.tensor(LENGTHS)))
    assert segments.lengths.tolist() == [3, 1, 1]
    for i, n in enumerate(LENGTHS):
        y = convolved(x[i : i + 1, :n], net.conv1.weight, net.conv1.bias)
        y = convolved(y, net.conv2.weight, net.conv2.bias)
        for t in range(y.shape[1]):
            flat = torch.cat([y[c, t] for c in range(2)])
            torch.testing.assert_close(found[i, t], net.W.weight @ flat + net.W.bias)


@torch.no_grad()
def test_stacked_frames_are_concatenated() -> None:
    frontend, x = a_frontend(subsampling="stack", stack=4), some_frames()
    found, segments = frontend.embed_source(x, Segments(torch.tensor(LENGTHS)))
    assert segments.lengths.tolist() == [3, 1, 1]
    for i, n in enumerate(LENGTHS):
        for t in range(-(-n // 4)):
            beside = torch.cat([x[i, j] if j < n else torch.zeros(F).double() for j in range(4 * t, 4 * t + 4)])
            torch.testing.assert_close(found[i, t], frontend.net.W.weight @ beside + frontend.net.W.bias)


def test_half_precision_frames_are_read_in_the_models_own() -> None:
    frontend, x = a_frontend(), some_frames().half()
    found, _ = frontend.embed_source(x, Segments(torch.tensor(LENGTHS)))
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, frontend.embed_source(x.double(), Segments(torch.tensor(LENGTHS)))[0])


@torch.no_grad()
@pytest.mark.parametrize("subsampling", ["conv", "stack"])
def test_initial_outputs_are_about_as_large_as_inputs(subsampling: str) -> None:
    """Before any training: beside a Transformer's positions, which are 0.7 in size, frames must be heard."""
    options = {"name": "audio", "bins": 80, "subsampling": subsampling}
    frontend = frontends.build(frontends.parse(options), 80, 256)
    x, _ = frontend.embed_source(torch.randn(4, 200, 80), Segments(torch.tensor([200] * 4)))
    assert 0.5 < x.std() < 2.0


@pytest.mark.parametrize("subsampling", ["conv", "stack"])
def test_labels_are_times(subsampling: str) -> None:
    frontend = a_frontend(subsampling=subsampling)
    assert frontend.position_labels(35) == [
        f"{seconds:.2f} s" for seconds in (0, 0.04, 0.08, 0.12, 0.16, 0.2, 0.24, 0.28, 0.32)
    ]
    slow = frontends.build(Part("features", {"shift": 0.5, "subsampling": "stack", "stack": 2}), F, D)
    assert slow.position_labels(5) == ["0.00 s", "1.00 s", "2.00 s"]


def test_the_options_of_a_frontend_reach_its_reader() -> None:
    audio: Any = frontends["audio"]
    options = frontends.parse({"name": "audio", "rate": 8000, "bins": 40, "augment": False, "time_masks": 1}).options
    expected = AudioModality(
        8000,
        40,
        has_augmentation=False,
        augmentation=FrameAugmentation([0.9, 1.0, 1.1], time_masks=1),
        search_paths=("x.zip",),
    )
    assert audio.build_modality(options, ["x.zip"]) == expected
    frames: Any = frontends["features"]
    options = frontends.parse({"name": "features", "numbers": 7, "deltas": 2, "normalize": False}).options
    augmentation = FrameAugmentation([0.9, 1.0, 1.1], band_masks=0)
    assert frames.build_modality(options, []) == FeatureModality(
        7, 2, normalize=False, augmentation=augmentation, search_paths=()
    )


@pytest.mark.parametrize(
    "value",
    [
        {"name": "audio", "bins": F},
        {"name": "audio", "bins": F, "speeds": [0.7, 1.3]},
        {"name": "audio", "bins": F, "subsampling": "stack", "augment": False},
        {"name": "features", "numbers": F, "subsampling": "stack", "stack": 3, "speeds": []},
        {"name": "features", "numbers": F},
        {"name": "image"},
        {"name": "image", "pixels": 40, "stages": [1, 1]},
        {"name": "image", "grid": "patches", "pixels": 64},
        {"name": "video"},
        {"name": "video", "pool": "none", "pixels": 32, "stages": [1]},
        {"name": "video", "pool": "none", "grid": "patches", "patch": 8},
    ],
    ids=lambda value: " ".join(map(str, value.values())),
)
def test_max_vectors_is_the_length_at_the_slowest_augmentation(value: dict[str, Any]) -> None:
    """Counted from the options alone, and by embedding augmented sources."""
    part, kind = frontends.parse(value), frontends[value["name"]]
    modality: Any = kind.build_modality(part.options, ())  # type: ignore[attr-defined]
    made: Any = frontends.build(part, modality.width, D).eval()
    n = 37 if value["name"] in ("audio", "features") else kind.default_max_length(part.options)  # type: ignore[attr-defined]
    x = np.repeat(modality.blank(), n, 0)[:n]
    augmentation = (
        [modality.augment(x, np.random.default_rng(seed)) for seed in range(12)] if modality.has_augmentation else [x]
    )
    longest = max(augmentation, key=len)
    with torch.no_grad():
        vectors, segments = made.embed_source(torch.from_numpy(longest)[None], Segments(torch.tensor([len(longest)])))
    assert vectors.shape[1] == int(segments.lengths) == kind.max_vectors(part.options, n)  # type: ignore[attr-defined]
    assert kind.default_max_length(part.options) >= n  # type: ignore[attr-defined]
