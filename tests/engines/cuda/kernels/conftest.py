"""Where there is no GPU, Triton's kernels run in its interpreter, one operation after the other."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def device() -> torch.device:
    pytest.importorskip("triton")
    return DEVICE
