"""What a config stands for is built without a trace."""

from __future__ import annotations

from pathlib import Path

import torch

from dragoman.config import load, rehearse

from .conftest import TINY, written


def test_a_rehearsal_leaves_the_random_numbers_as_they_were(tmp_path: Path) -> None:
    config = load(written(tmp_path, TINY)).config
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert rehearse(config) == []
    assert torch.equal(torch.rand(3), expected)
