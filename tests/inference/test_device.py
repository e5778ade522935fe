"""A device that is there is given, and one that is not is refused with those that are."""

from __future__ import annotations

import pytest
import torch

from dragoman.core.errors import UserError
from dragoman.inference.device import select_device


def test_a_device_that_is_not_there_is_refused() -> None:
    assert select_device("cpu") == torch.device("cpu")
    beyond = f"cuda:{torch.cuda.device_count()}"
    for name in ("tpu", "", "cpu:", "cpu:x", "cpu:1", "cuda:x", "cuda:-1", beyond):
        with pytest.raises(UserError, match=r"no device '.*' here; use .*cpu"):
            select_device(name)


def test_auto_is_cuda_where_there_is_one_and_else_the_cpu() -> None:
    assert select_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
