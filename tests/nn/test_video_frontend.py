"""Each frame goes through the net for images by itself, and padding through none."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from dragoman.core.types import Segments
from dragoman.nn.frontends.video import VideoFrontend

SIZE, D = 16, 6


def frontend(pool: str) -> VideoFrontend:
    return VideoFrontend(3 * SIZE**2, D, pool=pool, pixels=SIZE, channels=4, stages=[1])  # type: ignore[arg-type]


def clips() -> tuple[torch.Tensor, Segments]:
    return torch.randint(0, 256, (2, 3, 3 * SIZE**2), dtype=torch.uint8), Segments(torch.tensor([3, 1]))


@pytest.mark.parametrize("pool", ["linear", "mean", "none"])
def test_a_frame_is_the_image_and_pooled_as_the_equation_says(pool: str) -> None:
    part, (source, segments) = frontend(pool).eval(), clips()
    x, after = part.embed_source(source, segments)
    rows = []
    for clip, count in zip(source, [3, 1], strict=True):
        for frame in clip[:count]:
            cells = part.image.embed_source(frame.view(1, SIZE, 3 * SIZE), Segments(torch.tensor([SIZE])))[0][
                0
            ]  # (C, D)
            if pool == "linear":
                assert part.W is not None
                rows.append((part.W.weight @ torch.cat(list(cells)) + part.W.bias)[None])
            else:
                rows.append(cells.mean(0)[None] if pool == "mean" else cells)
    expected = [torch.cat(rows[:3]), rows[3]]
    for row, vectors in enumerate(expected):
        assert int(after.lengths[row]) == len(vectors)
        assert_close(x[row, : len(vectors)], vectors, atol=1e-5, rtol=0.0)
    assert len(part.position_labels(3)) == len(expected[0])


def test_padding_does_not_count_in_the_norms_while_training() -> None:
    source, segments = clips()
    padded = torch.cat([source, torch.randint(0, 256, (2, 2, 3 * SIZE**2), dtype=torch.uint8)], 1)
    part = frontend("mean").train()
    found, _ = part.embed_source(source, segments)
    other, _ = part.embed_source(padded, segments)
    assert_close(found[0], other[0, :3])
    assert_close(found[1, 0], other[1, 0])


def test_labels_name_frames_and_cells() -> None:
    assert frontend("mean").position_labels(2) == ["frame 1", "frame 2"]
    assert frontend("none").position_labels(1)[:2] == ["1: 1,1", "1: 1,2"]
