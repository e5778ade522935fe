"""Decode on a CPU with a Transformer's step on repacked weights, in float32, bfloat16 or int8.

    sources ─sorted by length, cut into batches→ encode → search, step by step → n-best lists in the order of the input

Greedy and beam search have their own loops (search.py); every other search runs unchanged on the faster step. Greedy
search goes to CTranslate2 (ctranslate2.py) where that is faster; sentences/s, this engine : CTranslate2:

    int8      4 + 4 layers of 128      57 : 237 for 1,  220 : 590 for 8,  480 : 630 for 64 at a time      always
              6 + 6 layers of 512      12 :  11         53 :  51          91 :  97
    float32   4 + 4 layers of 128      26 : 102        145 : 274         450 : 420        few sentences, small models
              4 + 4 layers of 256      16 :  23         94 :  87         175 : 170
              6 + 6 layers of 512       5 :   5         28 :  21          42 :  38

(one thread, 20 → 20 tokens). In int8 all sentences or none go there: the two round differently, and a result may not
depend on how many sentences a request has. In float32 the two agree to 1e-5 per token.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from functools import cached_property, partial

import torch
from torch import Tensor

from dragoman.core.types import Hypothesis
from dragoman.engines.cpu import ctranslate2
from dragoman.engines.cpu.packed_linear import precision_blocker
from dragoman.engines.cpu.search import LengthLimits, beam_search, greedy_search
from dragoman.engines.cpu.transformer_step import CPUTransformer, transformer_blocker
from dragoman.engines.length_batches import CPU_BATCH_TOKENS
from dragoman.engines.reference import constraints_blocker, decode_in_batches
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import Search, SearchConstraints
from dragoman.search.beam import Beam
from dragoman.search.greedy import Greedy

logger = logging.getLogger("dragoman")

BATCH_ROWS = 320  # hypotheses in a batch; four times as many were no faster
FEW_SENTENCES, SMALL_WIDTH = 8, 256  # up to these CTranslate2 is faster in float32
LOCK = threading.Lock()  # one call at a time: int8 products of one width share a buffer, across models


class CPUEngine:
    """Every search of a Transformer on a CPU; greedy search by CTranslate2 where that is faster."""

    name = "cpu"

    def __init__(self, model: Seq2Seq, precision: str) -> None:
        """Where this CPU has no fast instructions for the precision, float32 is used, with a warning."""
        blocker = precision_blocker(precision)
        if blocker is not None:
            logger.warning("Decoding runs in float32, not in %s: %s.", precision, blocker)
        self.reference, self.precision = model.eval(), precision if blocker is None else "float32"
        self._translators: dict[int, ctranslate2.CTranslate2Engine] = {}  # by process

    @cached_property
    def transformer(self) -> CPUTransformer:
        """The model with repacked weights, made at the first use."""
        return CPUTransformer(self.reference, self.precision)

    @cached_property
    def _ctranslate2_blocker(self) -> str | None:
        """Why CTranslate2 decodes none of this model's requests, as found at the first use; None: it may."""
        return ctranslate2.model_blocker(self.reference, self.precision) or ctranslate2.machine_blocker()

    @property
    def ctranslate2(self) -> ctranslate2.CTranslate2Engine:
        """CTranslate2 with a copy of the model, made once for each process: its threads do not survive a fork."""
        process = os.getpid()
        if process not in self._translators:
            workers = torch.get_num_threads()
            self._translators[process] = ctranslate2.CTranslate2Engine(self.reference, self.precision, workers)
        return self._translators[process]

    def serves(self, search: Search, limits: SearchConstraints) -> bool:
        return search_blocker(search, limits) is None

    def __call__(
        self, sources: Sequence[Sequence[int]], search: Search, limits: SearchConstraints
    ) -> list[list[Hypothesis]]:
        """The n-best list of every source, in their order."""
        blocker = self._ctranslate2_blocker or ctranslate2_request_blocker(
            self.reference, self.precision, search, limits, len(sources)
        )
        if blocker is None:
            return self.ctranslate2(sources, search, limits)
        max_size = max(BATCH_ROWS // search.num_hypotheses, 1)
        with LOCK, torch.inference_mode():
            decode = partial(self._decode_batch, search)
            return decode_in_batches(sources, limits, torch.device("cpu"), decode, CPU_BATCH_TOKENS, max_size)

    def _decode_batch(
        self, search: Search, ids: Tensor, lengths: Tensor, limits: SearchConstraints
    ) -> list[list[Hypothesis]]:
        """The n-best lists of padded sources: by this engine's greedy or beam loop, else by the search itself."""
        memory = self.transformer.encode(ids, lengths)
        bounds = LengthLimits(limits.max_lengths.numpy(), torch.as_tensor(limits.min_lengths).numpy())
        if type(search) is Greedy:
            return greedy_search(self.transformer, memory, bounds)
        if type(search) is Beam:
            return beam_search(search, self.transformer, memory, bounds)
        return search(self.transformer.step, partial(self.transformer.start, memory), limits)


def model_blocker(model: Seq2Seq, device: torch.device) -> str | None:
    """Why this engine does not decode a model on a device; None: it does."""
    if device.type != "cpu":
        return f"it runs on a CPU, and the device is {device.type}"
    return transformer_blocker(model)


def search_blocker(search: Search, constraints: SearchConstraints) -> str | None:
    """Why this engine does not run a search under some constraints; None: it does."""
    if search.needs_attention:
        return "a coverage penalty needs the attention weights"
    return constraints_blocker(constraints)


def ctranslate2_request_blocker(
    model: Seq2Seq, precision: str, search: Search, constraints: SearchConstraints, sentences: int | None
) -> str | None:
    """Why this engine decodes so many sentences (None: many) by itself, and not CTranslate2; None: CTranslate2 does."""
    if precision == "float32":
        if model.decoder.d > SMALL_WIDTH:
            return f"in float32 it is not faster for decoders wider than {SMALL_WIDTH}"
        if sentences is None or sentences > FEW_SENTENCES:
            return f"in float32 it is not faster for more than {FEW_SENTENCES} sentences at a time"
    return ctranslate2.search_blocker(model, search, constraints)
