"""Decoding on a CPU: a Transformer's step on repacked weights, in float32, bfloat16 or int8.

    sources ─sorted by length, cut into batches→ encode → search, step by step → n-best lists in the order given

Greedy search and beams run beside the step (cpu_search.py); every other search runs as it is, on the faster step. Where
CTranslate2 is installed (ct2.py), greedy search goes to it if it is ahead, sentences/s, ours and its:

    int8      4 + 4 layers of 128      57 : 237 for 1,  220 : 590 for 8,  480 : 630 for 64 at a time      always
              6 + 6 layers of 512      12 :  11         53 :  51          91 :  97
    float32   4 + 4 layers of 128      26 : 102        145 : 274         450 : 420        few sentences, small models
              4 + 4 layers of 256      16 :  23         94 :  87         175 : 170
              6 + 6 layers of 512       5 :   5         28 :  21          42 :  38

(one thread, 20 → 20 tokens). In int8 all or none must go there: its rounding is not ours, and a result may not depend
on how many are asked for. In float32 the two agree to 1e-5 per token.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import torch

from dragoman.core.types import Hypothesis, Memory
from dragoman.engines.cpu import ctranslate2
from dragoman.engines.cpu.packed_linear import fast_here
from dragoman.engines.cpu.search import Lengths, beam, greedy
from dragoman.engines.cpu.transformer_step import Transformer, fits
from dragoman.engines.length_batches import ON_CPU, batches, padded
from dragoman.search import Limits, Search
from dragoman.search.beam import Beam
from dragoman.search.greedy import Greedy

log = logging.getLogger("dragoman")

ROWS = 320  # hypotheses at a time; four times as many were no faster
FEW, SMALL = 8, 256  # sentences at a time, width: up to these CTranslate2 is ahead in float32
TURN = threading.Lock()  # one at a time: products of one width share their room, whichever model's they are


class CPUEngine:
    """The searches of a model on a CPU; what another engine serves is left to it."""

    def __init__(
        self, model: Any, precision: str, rival: Callable[[], ctranslate2.CT2Engine | None] = lambda: None
    ) -> None:
        self.plain, self.precision, self.rival = model.eval(), precision, rival
        self.others: dict[int, ctranslate2.CT2Engine | None] = {}  # by process

    @property
    def other(self) -> ctranslate2.CT2Engine | None:
        """CTranslate2 with a copy of the model, made when it is first asked for."""
        # Its threads do not follow a fork: there, its parent's engine would be waited for without end, even to drop it.
        process = os.getpid()
        if process not in self.others:
            self.others[process] = self.rival()
        return self.others[process]

    @cached_property
    def model(self) -> Transformer:
        return Transformer(self.plain, self.precision)

    def serves(self, search: Search, limits: Limits) -> bool:
        """All but what knows a sentence by its place in a batch (rules, traces, tales) or asks where it looks."""
        return not search.looks and not limits.rules and limits.traces is None and limits.tell is None

    def __call__(self, sources: Sequence[Sequence[int]], search: Search, limits: Limits) -> list[list[Hypothesis]]:
        if self.better_elsewhere(len(sources), search):
            other = self.other
            if other is not None and other.serves(search, limits):
                return other(sources, search, limits)
        with TURN, torch.inference_mode():
            return self.decode(sources, search, limits)

    def better_elsewhere(self, count: int, search: Search) -> bool:
        """Whether CTranslate2 is ahead, if it serves this."""
        few = count <= FEW and self.plain.decoder.d <= SMALL
        return type(search) is Greedy and (self.precision == "int8" or few)

    def decode(self, sources: Sequence[Sequence[int]], search: Search, limits: Limits) -> list[list[Hypothesis]]:
        found: list[list[Hypothesis]] = [[] for _ in sources]
        longest, shortest = limits.longest.cpu(), torch.as_tensor(limits.shortest).cpu().expand(len(sources))
        for rows in batches([*map(len, sources)], ON_CPU, max(ROWS // search.size, 1)):
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
    return CPUEngine(model, precision, partial(rival, model, precision))


def rival(model: Any, precision: str) -> ctranslate2.CT2Engine | None:
    """CTranslate2, where it is installed and computes this model."""
    if precision == "bfloat16" or not ctranslate2.fits(model):
        return None
    if not ctranslate2.installed():
        log.info("greedy search is faster with CTranslate2: pip install 'dragoman[ctranslate2]'")
        return None
    return ctranslate2.open(model, precision, workers=torch.get_num_threads())
