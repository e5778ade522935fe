"""Record a fixed sequence of kernels as one CUDA graph, then launch it with one call.

The recorded function reads and writes tensors that keep their address, and never waits for the device. It runs once
before the recording, so that its kernels are compiled and its libraries have allocated their workspaces; this first run
must not change results.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch


class GraphRecorder:
    """Records functions as CUDA graphs that share one memory pool, since no two of them run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            self.pool = torch.cuda.graph_pool_handle()
            # One stream for all recordings: memory that a recording returns to the pool is for the same stream only.
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            # torch drops a pool with its last graph and then cannot record into it again, so one graph always stays.
            self.anchor = self.record(lambda: torch.zeros(1, device=device))

    def record(self, function: Callable[[], object], warmed_up: bool = False) -> Callable[[], object]:
        """Capture `function` and return the replay, which returns None; on a CPU return `function` itself."""
        if self.device.type != "cuda":
            return function
        if not warmed_up:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self.stream):
                function()
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
        # torch.cuda.graph would collect garbage and empty the cache first, which takes longer than the recording.
        current, graph = torch.cuda.current_stream(self.device), torch.cuda.CUDAGraph()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            graph.capture_begin(self.pool, capture_error_mode="thread_local")
            try:
                function()
            except BaseException:
                with suppress(RuntimeError):  # the failed capture's own error hides the one that caused it
                    graph.capture_end()
                raise
            graph.capture_end()
        current.wait_stream(self.stream)
        return graph.replay
