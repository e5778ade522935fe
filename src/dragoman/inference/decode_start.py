"""How a search begins: the step it takes, the state of the first one, and the rules that come with what was read.

    a source              memory = encode(x)                           step(<s>), step(y_1), …  from start(memory)
    a text's beginning    <s> x_1 … x_{n−1} are read at once           step(x_n), step(y_1), …

A language model has no source: it is given x_1 … x_n, the beginning of a text, and goes on with it. A search knows
nothing of that and begins with <s>, whose place x_n takes. Not so where a prefix is seen in both directions (UniLM):
there it is a source of its own, and <s> comes after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.core.types import BOS, Batch, Capacity, Step
from dragoman.search import Rule, Start
from dragoman.search.ctc import CTCPrefix


class Beginning(NamedTuple):
    """All that a search needs of a model which has read a batch."""

    step: Step
    start: Start
    heard: list[Rule]  # what the encoder alone hears, where it has a say


@dataclass
class Prompted:
    """The state of a language model that has read the beginning of a text, all but its last token."""

    state: Any
    last: Tensor  # (B, 1): that token, which takes the place of the <s> that a search begins with
    fresh: Tensor  # (B, 1): whether it is still to be read


def begin(model: Any, batch: Batch, continues_text: bool, ctc: float, looks: bool = False) -> Beginning:
    """After a source, or, where the model goes on, after the beginning of a text; `ctc` is the encoder's say."""
    if continues_text and not model.has_bidirectional_prefix:
        return _after_text(model, batch)
    memory = model.encode(*batch.given)
    return Beginning(model.step, lambda room: model.start(memory, room, looks), _heard(model, memory, ctc))


def _heard(model: Any, memory: Any, ctc: float) -> list[Rule]:
    if not ctc:
        return []
    log_p, lengths = model.ctc_log_probs(memory)
    return [CTCPrefix(log_p, lengths, ctc)]


def _after_text(model: Any, batch: Batch) -> Beginning:
    lengths = batch.source_lengths
    whole = torch.cat([torch.full_like(lengths[:, None], BOS), batch.source], 1)
    last = whole.gather(1, lengths[:, None])

    def start(capacity: Capacity) -> Prompted:
        memory = model.encode(whole[:, :-1], lengths)
        return Prompted(model.start(memory, capacity), last, torch.ones_like(last, dtype=torch.bool))

    def step(tokens: Tensor, state: Prompted) -> tuple[Tensor, Prompted]:
        tokens = torch.where(state.fresh, state.last, tokens)
        log_p, after = model.step(tokens, state.state)
        return log_p, Prompted(after, state.last, torch.zeros_like(state.fresh))

    return Beginning(step, start, [])
