"""How decoding starts: the step function, the state before the first token, and CTC's logits processors.

    a source             memory = encode(x)                            step(<s>), step(y_1), …  from start(memory)
    a text to continue   <s> x_1 … x_{n−1} are prefilled at once       step(x_n), step(y_1), …

A language model has no source: its input x_1 … x_n is the beginning of a text, which it continues. A search begins with
<s>, which x_n replaces. Not so where a prefix is bidirectional (UniLM): there it is a source of its own, followed by
<s>.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.core.types import BOS, Batch, Capacity, Step
from dragoman.search import LogitsProcessor, Start
from dragoman.search.ctc import CTCPrefixScorer


class DecodeStart(NamedTuple):
    """All that a search needs of a model that has read a batch."""

    step: Step
    start: Start
    ctc_processors: list[LogitsProcessor]


@dataclass
class PrefilledState:
    """The state of a language model that has read the beginning of a text, all but its last token."""

    state: Any
    last: Tensor  # (B, 1): that token, which replaces the <s> that a search begins with
    is_first: Tensor  # (B, 1): whether it is still to be read


def start_decoding(
    model: Any, batch: Batch, continues_text: bool, ctc_weight: float, with_attention: bool = False
) -> DecodeStart:
    """Encode a batch, or prefill a language model; return what a search needs: step, start and CTC processors."""
    if continues_text and not model.has_bidirectional_prefix:
        return _prefill(model, batch)
    memory = model.encode(*batch.encoder_inputs)
    processors: list[LogitsProcessor] = []
    if ctc_weight:
        log_p, lengths = model.ctc_log_probs(memory)
        processors.append(CTCPrefixScorer(log_p, lengths, ctc_weight))
    return DecodeStart(model.step, lambda capacity: model.start(memory, capacity, with_attention), processors)


def _prefill(model: Any, batch: Batch) -> DecodeStart:
    """Prepare a language model to continue its sources: they are read as a prefix, and their last token first."""
    lengths = batch.source_lengths
    tokens = torch.cat([torch.full_like(lengths[:, None], BOS), batch.source], 1)
    last = tokens.gather(1, lengths[:, None])

    def start(capacity: Capacity) -> PrefilledState:
        memory = model.encode(tokens[:, :-1], lengths)
        return PrefilledState(model.start(memory, capacity), last, torch.ones_like(last, dtype=torch.bool))

    def step(tokens: Tensor, state: PrefilledState) -> tuple[Tensor, PrefilledState]:
        tokens = torch.where(state.is_first, state.last, tokens)
        log_p, after = model.step(tokens, state.state)
        return log_p, PrefilledState(after, state.last, torch.zeros_like(state.is_first))

    return DecodeStart(step, start, [])
