"""Copies between host and device that neither side waits for, through pinned memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def to_pinned(x: np.ndarray, device: torch.device) -> Tensor:
    """An array as a tensor in pinned memory, from which a GPU copies by itself; on a CPU, in ordinary memory."""
    t = torch.from_numpy(np.ascontiguousarray(x))
    return t.pin_memory() if device.type == "cuda" else t


def copy_to_device(x: np.ndarray, device: torch.device) -> Tensor:
    """Start copying an array to the device; kernels launched later on the same stream see all of it."""
    return to_pinned(x, device).to(device, non_blocking=True)


class HostCopy:
    """A tensor that is being copied to the host."""

    def __init__(self, x: Tensor) -> None:
        self.event: torch.cuda.Event | None = None
        if not x.is_cuda:
            self.tensor = x.clone()
            return
        # Pinned memory: a copy to any other makes the host wait.
        self.tensor = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        self.tensor.copy_(x, non_blocking=True)
        self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.event.record()

    def is_ready(self) -> bool:
        """Whether `wait` would return at once."""
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> Tensor:
        """The tensor on the host; waits until the copy is complete."""
        if self.event is not None:
            self.event.synchronize()
        return self.tensor
