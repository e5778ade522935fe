"""The fast paths: the same results as the plain ones, sooner.

    training    packing.py (no padding), fused.py (few kernels), steps.py (captured), loops.py (recurrent decoders)
    searching   an Engine for the device: cuda.py (kernels/: its kernels), cpu.py (ct2.py: CTranslate2); workers.py
                (many processes)

A model's own equations (nn/) and a search's own steps (search/) stay the truth; `runtime: plain` in a config, or
`--plain`, runs them and nothing else. What a fast path does not serve goes the plain way by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from dragoman.core.types import Hypothesis
from dragoman.search import Limits, Search


class Engine(Protocol):
    """A faster way to the results of a search, for the models and searches it serves."""

    def serves(self, search: Search, limits: Limits) -> bool: ...

    def __call__(
        self, sources: Sequence[Sequence[int]], search: Search, limits: Limits
    ) -> Sequence[Sequence[Hypothesis]]: ...  # any number of sources; n-best lists in their order


def engine(model: Any, device: torch.device, precision: str) -> Engine | None:
    """The engine for a model on a device; None where the plain path is all there is."""
    from dragoman.engines.cpu import engine as cpu
    from dragoman.engines.cuda import engine as cuda
    from dragoman.nn.frontends.tokens import Tokens

    if not isinstance(getattr(model, "frontend", None), Tokens):  # an ensemble, or sources that are no ids
        return None
    if model.second_source is not None:
        return None
    return cuda.open(model, precision) if device.type == "cuda" else cpu.open(model, precision)
