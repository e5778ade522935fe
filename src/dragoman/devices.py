"""The device that a name asks for: `auto`, `cpu`, `mps`, `cuda`, or one of several GPUs, `cuda:1`."""

from __future__ import annotations

import torch

from dragoman.core.errors import UserError


def pick(name: str) -> torch.device:
    """`auto` is CUDA where there is one, else Apple's GPU, else the CPU; a device that is not there is an error."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, found in there.items() if found)
    if not there.get(name.split(":")[0], False):
        raise UserError(
            f"there is no device '{name}' here; use {' or '.join(k for k, found in there.items() if found)}"
        )
    if name.startswith("cuda"):  # cuDNN's RNNs would round to TF32: 1e-4 per token off the CPU's results
        torch.backends.cudnn.allow_tf32 = False
    return torch.device(name)
