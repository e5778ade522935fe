"""A device that is there is given, and one that is not is refused with those that are."""

from __future__ import annotations

import pytest
import torch

from dragoman import devices
from dragoman.core.errors import UserError


def test_a_device_that_is_not_there_is_refused() -> None:
    assert devices.pick("cpu") == torch.device("cpu")
    for name in ("tpu", "", *(() if torch.cuda.is_available() else ("cuda", "cuda:3"))):
        with pytest.raises(UserError, match=r"no device '.*' here; use .*cpu"):
            devices.pick(name)


def test_auto_is_the_fastest_kind_there_is() -> None:
    gpus = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    assert devices.pick("auto").type == next((kind for kind, there in gpus.items() if there), "cpu")
