"""A fixed sequence of kernels as one CUDA graph: recorded once, then launched with one call.

The recorded function reads and writes tensors that stay where they are and waits for nothing. It is run once before, so
that kernels are compiled and libraries have what they allocate at their first call; it must do no harm then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch


class Graphs:
    """Records functions; what they allocate inside lies in one pool of memory, since they never run side by side."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.pool = device, None
        if device.type == "cuda":
            self.pool = torch.cuda.graph_pool_handle()

    def record(self, f: Callable[[], object], again: bool = False) -> Callable[[], object]:
        """A function that does what f does; f itself where there is no GPU. `again`: what f launches has run before."""
        if self.device.type != "cuda":
            return f
        if not again:
            aside = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(aside):
                f()
            torch.cuda.current_stream(self.device).wait_stream(aside)
        return self.captured(f).replay

    def captured(self, f: Callable[[], object]) -> torch.cuda.CUDAGraph:
        # torch.cuda.graph would collect garbage and empty the cache first, which takes longer than all the rest.
        here, aside = torch.cuda.current_stream(self.device), torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            graph.capture_begin(self.pool, capture_error_mode="thread_local")
            try:
                f()
            except BaseException:
                with suppress(RuntimeError):  # of a capture that came to nothing; what f says is the reason
                    graph.capture_end()
                raise
            graph.capture_end()
        here.wait_stream(aside)
        return graph
