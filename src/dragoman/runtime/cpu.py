"""Decoding on a CPU: a Transformer's step on repacked weights, in float32, bfloat16 or int8.

    sources ─sorted by length, cut into batches→ encode → search, step by step → n-best lists in the order given

Greedy search and beams run beside the step (cpu_search.py); every other search runs as it is, on the faster step. In
int8, greedy search goes to CTranslate2 where that is installed (ct2.py): on a Transformer-base it was 1.2 times as fast
for 64 sentences at a time and 1.5 times for one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from dragoman.core.interfaces import Hypothesis, Memory
from dragoman.runtime import ct2
from dragoman.runtime.batches import batches, padded
from dragoman.runtime.cpu_search import Lengths, beam, greedy
from dragoman.runtime.cpu_step import Transformer, fits
from dragoman.runtime.linears import fast_here
from dragoman.search import Limits, Search
from dragoman.search.beam import Beam
from dragoman.search.greedy import Greedy

log = logging.getLogger("dragoman")

ROWS = 320  # hypotheses at a time; four times as many were no faster
TURN = threading.Lock()  # one at a time: products of one width share their room, whichever model's they are


class CPUEngine:
    """The searches of a model on a CPU; what another engine serves is left to it."""

    def __init__(self, model: Any, precision: str, other: ct2.CT2Engine | None = None) -> None:
        self.plain, self.precision, self.other = model.eval(), precision, other

    @cached_property
    def model(self) -> Transformer:
        return Transformer(self.plain, self.precision)

    def serves(self, search: Search, limits: Limits) -> bool:
        """All but rules and traces, which know a sentence by its place in a batch, and what asks where it looks."""
        return not search.looks and not limits.rules and limits.traces is None

    def __call__(self, sources: Sequence[Sequence[int]], search: Search, limits: Limits) -> list[list[Hypothesis]]:
        if self.other is not None and self.other.serves(search, limits):
            return self.other(sources, search, limits)
        with TURN, torch.inference_mode():
            return self.decode(sources, search, limits)

    def decode(self, sources: Sequence[Sequence[int]], search: Search, limits: Limits) -> list[list[Hypothesis]]:
        found: list[list[Hypothesis]] = [[] for _ in sources]
        longest, shortest = limits.longest.cpu(), torch.as_tensor(limits.shortest).cpu().expand(len(sources))
        for rows in batches(sources, max(ROWS // search.size, 1)):
            memory, at = self.model.encode(*padded([sources[i] for i in rows])), torch.tensor(rows)
            numbers = [limits.numbers[i] for i in rows] if limits.numbers else []
            here = self.search(memory, search, Limits(longest[at], shortest[at], numbers))
            for i, hypotheses in zip(rows, here, strict=True):
                found[i] = hypotheses
        return found

    def search(self, memory: Memory, search: Search, limits: Limits) -> list[list[Hypothesis]]:
        if type(search) is Greedy:
            return greedy(self.model, memory, lengths(limits))
        if type(search) is Beam:
            return beam(search, self.model, memory, lengths(limits))
        return search(self.model.step, lambda capacity: self.model.start(memory, capacity), limits)


def lengths(limits: Limits) -> Lengths:
    return Lengths(limits.longest.numpy(), torch.as_tensor(limits.shortest).numpy())


def open(model: Any, precision: str) -> CPUEngine | None:
    """The engine for a model in a precision; None where the plain path is all there is."""
    if not fits(model):
        return None
    if not fast_here(precision):
        log.warning("this CPU has no instructions for %s, so results are computed in float32", precision)
        precision = "float32"
    return CPUEngine(model, precision, rival(model) if precision == "int8" else None)


def rival(model: Any) -> ct2.CT2Engine | None:
    """CTranslate2, where it is installed and computes this model: it is ahead of us in int8."""
    if not ct2.fits(model):
        return None
    if not ct2.installed():
        log.info("greedy search in int8 is faster with CTranslate2: pip install 'dragoman[ctranslate2]'")
        return None
    return ct2.open(model, "int8", workers=torch.get_num_threads())
