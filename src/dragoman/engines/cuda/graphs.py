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
        self.device = device
        if device.type == "cuda":
            self.pool = torch.cuda.graph_pool_handle()
            # One for all: what one recording gives back to the pool, only the same stream may take from it.
            self.aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            # torch gives up a pool with the last graph in it, and then fails to record another there: one always stays.
            self.anchor = self.record(lambda: torch.zeros(1, device=device))

    def record(self, f: Callable[[], object], again: bool = False) -> Callable[[], object]:
        """A function that does what f does; f itself where there is no GPU. `again`: what f launches has run before."""
        if self.device.type != "cuda":
            return f
        if not again:
            self.aside.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self.aside):
                f()
            torch.cuda.current_stream(self.device).wait_stream(self.aside)
        return self.captured(f).replay

    def captured(self, f: Callable[[], object]) -> torch.cuda.CUDAGraph:
        # torch.cuda.graph would collect garbage and empty the cache first, which takes longer than all the rest.
        here, graph = torch.cuda.current_stream(self.device), torch.cuda.CUDAGraph()
        self.aside.wait_stream(here)
        with torch.cuda.stream(self.aside):
            graph.capture_begin(self.pool, capture_error_mode="thread_local")
            try:
                f()
            except BaseException:
                with suppress(RuntimeError):  # of a capture that came to nothing; what f says is the reason
                    graph.capture_end()
                raise
            graph.capture_end()
        here.wait_stream(self.aside)
        return graph
