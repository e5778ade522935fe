"""The device that a name asks for: `auto`, `cpu`, `mps`, `cuda`, or one of several GPUs, `cuda:1`."""

from __future__ import annotations

import torch

from dragoman.core.errors import UserError


def pick(name: str) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU; a device that is not there is an error.

    Apple's GPU is taken only by name: scores are summed in float64, which it lacks, and nobody has tried it yet.
    """
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    counts = {"cuda": cuda, "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    if name == "auto":
        name = "cuda" if cuda else "cpu"
    kind, colon, number = name.partition(":")
    if (number if colon else "0") not in map(str, range(counts.get(kind, 0))):
        raise UserError(
            f"there is no device '{name}' here; use {' or '.join(kind for kind, count in counts.items() if count)}"
        )
    if name.startswith("cuda"):  # cuDNN's RNNs would round to TF32: 1e-4 per token off the CPU's results
        torch.backends.cudnn.allow_tf32 = False
    return torch.device(name)
