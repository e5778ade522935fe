"""The device that a name asks for (`auto`, `cpu`, `mps`, `cuda`, or one of several GPUs, `cuda:1`), and its memory."""

from __future__ import annotations

import torch

from dragoman.core.errors import UserError

OUT_OF_MEMORY_MESSAGES = (
    *("can't allocate memory", "not enough memory", "bad_alloc", "out of memory"),
    *("could not create a primitive", "could not execute a primitive"),  # from oneDNN (LSTMs on a CPU)
)


def select_device(name: str) -> torch.device:
    """Return the torch device of a name; `auto` is CUDA if there is one, else the CPU. UserError if it is missing."""
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    counts = {"cuda": cuda, "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    if name == "auto":
        name = "cuda" if cuda else "cpu"
    kind, colon, number = name.partition(":")
    if (number if colon else "0") not in map(str, range(counts.get(kind, 0))):
        available = " or ".join(kind for kind, count in counts.items() if count)
        raise UserError(f"there is no device '{name}' here; use {available}")
    if name.startswith("cuda"):  # cuDNN's RNNs would round to TF32: 1e-4 per token off the CPU's results
        torch.backends.cudnn.allow_tf32 = False
    return torch.device(name)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out: torch has a class for it on a GPU, on the CPU only messages."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(message in str(error) for message in OUT_OF_MEMORY_MESSAGES)
