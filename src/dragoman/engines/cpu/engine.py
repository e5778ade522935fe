"""Decode on a CPU: by CTranslate2 what it computes as we do, else with a Transformer's step on repacked weights.

    sources ─┬→ ctranslate2.py                                               greedy search and beams, float32 and int8
             └→ batches of similar length → encode → search, step by step    every search, float32 (transformer_step.py)

In float32 the weights' width decides, once for a model: CTranslate2 keeps a small model's steps short, and multiplies
wide matrices more slowly. Sentences/s, CTranslate2 : this step : the model's own modules; one thread, 20 → 20 tokens:

    4 + 4 layers of 128    greedy 242 : 65 : 24 for 1,  317 : 423 : 254 for 64     beam 176 : 30 : 10,  153 : 96 : 53
    6 + 6 layers of 512    greedy 5.9 : 7.5 : 3.8       31 : 59 : 30               beam 4.6 : 4.6 : 1.5,  19 : 19 : 9.2

Both agree with the model's own modules to 1e-5 per token. In int8 CTranslate2 decodes, and what it does not serve is
decoded in float32.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property, partial

import torch
from torch import Tensor

from dragoman.core.types import Hypothesis
from dragoman.engines.cpu import ctranslate2
from dragoman.engines.cpu.transformer_step import CPUTransformer, transformer_blocker
from dragoman.engines.length_batches import CPU_BATCH_TOKENS
from dragoman.engines.reference import constraints_blocker, decode_in_batches
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import Search, SearchConstraints

BATCH_ROWS = 320  # hypotheses in a batch; four times as many were no faster
SMALL_WIDTH = 256  # of decoders for which CTranslate2 is faster in float32


class CPUEngine:
    """Every search of a Transformer on a CPU, by CTranslate2 or by a step of our own."""

    name = "cpu"

    def __init__(self, model: Seq2Seq, precision: str) -> None:
        self.reference, self.precision = model.eval(), precision
        self.max_batch_seconds: float | None = None  # of a batch that cannot be cancelled; a server sets it
        self._converted: dict[int, ctranslate2.CTranslate2Engine] = {}  # by process

    @cached_property
    def transformer(self) -> CPUTransformer:
        """The model with repacked weights, made at the first use."""
        return CPUTransformer(self.reference)

    @cached_property
    def converted_files(self) -> dict[str, bytes]:
        """The model's files in CTranslate2's format, for processes that are forked from this one."""
        return ctranslate2.convert_model(self.reference, self.precision)

    def prepare_weights(self) -> None:
        """Repack or convert the weights now, so that forked processes share them."""
        getattr(self, "transformer" if self._ctranslate2_blocker else "converted_files")

    @cached_property
    def _ctranslate2_blocker(self) -> str | None:
        """Why CTranslate2 decodes none of this model's requests, as found at the first use; None: it may."""
        return ctranslate2_model_blocker(self.reference, self.precision)

    @property
    def ctranslate2(self) -> ctranslate2.CTranslate2Engine:
        """CTranslate2 with a copy of the model, made once for each process: its threads do not survive a fork."""
        process = os.getpid()
        if process not in self._converted:
            workers = torch.get_num_threads()
            files = self.__dict__.get("converted_files")  # if they were prepared
            self._converted[process] = ctranslate2.CTranslate2Engine(
                self.reference, self.precision, self.decode_step_by_step, workers, files
            )
        engine = self._converted[process]
        engine.converted.max_batch_seconds = self.max_batch_seconds
        return engine

    def serves(self, search: Search, limits: SearchConstraints) -> bool:
        return search_blocker(search, limits) is None

    def uses_ctranslate2(self, search: Search, limits: SearchConstraints) -> bool:
        """Whether CTranslate2 decodes such a request."""
        blocker = self._ctranslate2_blocker or ctranslate2.search_blocker(self.reference, search, limits)
        return blocker is None

    def __call__(
        self, sources: Sequence[Sequence[int]], search: Search, limits: SearchConstraints
    ) -> list[list[Hypothesis]]:
        """The n-best list of every source, in their order."""
        if self.uses_ctranslate2(search, limits):
            return self.ctranslate2(sources, search, limits)
        return self.decode_step_by_step(sources, search, limits)

    def decode_step_by_step(
        self, sources: Sequence[Sequence[int]], search: Search, limits: SearchConstraints
    ) -> list[list[Hypothesis]]:
        """The n-best list of every source by the search itself, on the step with repacked weights."""
        max_size = max(BATCH_ROWS // search.num_hypotheses, 1)
        with torch.inference_mode():
            decode = partial(self._decode_batch, search)
            return decode_in_batches(sources, limits, torch.device("cpu"), decode, CPU_BATCH_TOKENS, max_size)

    def add_token_log_probs(
        self, sources: Sequence[Sequence[int]], nbest_lists: Sequence[Sequence[Hypothesis]]
    ) -> Sequence[Sequence[Hypothesis]]:
        """The same hypotheses with log p of their tokens where these are not there."""
        if all(one.sum_log_probs is None for nbest in nbest_lists for one in nbest):
            return nbest_lists
        return self.ctranslate2.add_token_log_probs(sources, nbest_lists)

    def _decode_batch(
        self, search: Search, ids: Tensor, lengths: Tensor, limits: SearchConstraints
    ) -> list[list[Hypothesis]]:
        """The n-best lists of padded sources."""
        memory = self.transformer.encode(ids, lengths)
        return search(self.transformer.step, partial(self.transformer.start, memory), limits)


def model_blocker(model: Seq2Seq, device: torch.device, precision: str) -> str | None:
    """Why this engine does not decode a model on a device in a precision; None: it does."""
    if device.type != "cpu":
        return f"it runs on a CPU, and the device is {device.type}"
    if precision == "bfloat16":
        return "it computes in float32 or int8, not in bfloat16"
    return transformer_blocker(model)


def search_blocker(search: Search, constraints: SearchConstraints) -> str | None:
    """Why this engine does not run a search under some constraints; None: it does."""
    if search.needs_attention:
        return "a coverage penalty needs the attention weights"
    return constraints_blocker(constraints)


def ctranslate2_model_blocker(model: Seq2Seq, precision: str) -> str | None:
    """Why CTranslate2 decodes nothing of a model, or is slower; None: it may decode."""
    blocker = ctranslate2.model_blocker(model, precision)
    if blocker is None and precision == "float32" and model.decoder.d > SMALL_WIDTH:
        return f"in float32 it is not faster for decoders wider than {SMALL_WIDTH}"
    return blocker
