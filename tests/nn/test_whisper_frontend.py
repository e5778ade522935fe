"""Whisper's frontend: two convolutions over a window of fixed length, in plain loops."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dragoman.core.types import Segments
from dragoman.modalities.whisper import WhisperAudioModality
from dragoman.nn.frontends import frontends
from dragoman.nn.frontends.whisper import WhisperFrontend

F, D, S = 4, 3, 100


def a_frontend(**options: Any) -> Any:
    return frontends.build(frontends.parse({"name": "whisper", "bins": F, "seconds": 1, **options}), F, D).double()


def convolved(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """gelu of a convolution of width 3 with zeros around, (S, C) → (S / stride, D)."""
    out = torch.zeros(len(x) // stride, len(weight), dtype=x.dtype)
    for j in range(len(out)):
        y = bias.clone()
        for u in range(3):
            s = stride * j + u - 1
            if 0 <= s < len(x):
                y = y + weight[:, :, u] @ x[s]
        out[j] = y * 0.5 * (1 + torch.erf(y / math.sqrt(2)))
    return out


@torch.no_grad()
def test_two_convolutions_leave_half_of_the_frames() -> None:
    frontend, x = a_frontend(), torch.randn(1, S, F, dtype=torch.float64)
    found, segments = frontend.embed_source(x, Segments(torch.tensor([S])))
    assert segments.lengths.tolist() == [S // 2]
    y = convolved(x[0], frontend.conv1.weight, frontend.conv1.bias, 1)
    torch.testing.assert_close(found[0], convolved(y, frontend.conv2.weight, frontend.conv2.bias, 2))


@torch.no_grad()
def test_frames_after_the_window_change_nothing() -> None:
    frontend, x = a_frontend(), torch.randn(2, S + 30, F, dtype=torch.float64)
    longer, segments = frontend.embed_source(x, Segments(torch.tensor([S, S + 30])))
    window, _ = frontend.embed_source(x[:, :S], Segments(torch.tensor([S, S])))
    assert torch.equal(longer, window)
    assert segments.lengths.tolist() == [S // 2] * 2
    labels = frontend.position_labels(S)
    assert (len(labels), labels[0], labels[-1]) == (S // 2, "0.00 s", "0.98 s")
    assert len(frontend.position_labels(S + 30)) > S // 2  # so that what is longer than the window is too long


def test_the_modality_and_the_limits_follow_the_options() -> None:
    options = frontends.parse({"name": "whisper", "bins": 128, "seconds": 5}).options
    assert WhisperFrontend.build_modality(options, ["a.zip"]) == WhisperAudioModality(5, 128, ("a.zip",))
    assert WhisperFrontend.build_modality({}, []) == WhisperAudioModality()
    assert (WhisperFrontend.default_max_length(options), WhisperFrontend.max_vectors(options, 9)) == (500, 250)
    assert (WhisperFrontend.default_max_length({}), WhisperFrontend.max_vectors({}, 3000)) == (3000, 1500)
