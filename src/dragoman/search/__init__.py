"""From a step function to sequences. A search sees `step(tokens, state) → log p, state` and nothing else of a model.

    searches.build(Part("beam", {"size": 5}))(step, start, limits)      # an n-best list of Hypothesis for each sentence

The folder is the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from dragoman.core.registry import Registry
from dragoman.core.types import Capacity, Hypothesis, Step

Start = Callable[[Capacity], Any]  # how much room a search needs → the model's state before the first token


class Rule(Protocol):
    """Says what may come next: log p (B, K, V) with −∞ for what may not, or otherwise changed.

    `history` (B, K, t) are the tokens of each hypothesis so far, without <s>; `rows` (B,) the number of each row's
    sentence in the request, for rules that differ by sentence. A rule depends on these alone.
    """

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor: ...


@dataclass
class Limits:
    """What results must keep to, for each sentence; lengths in tokens without </s>."""

    longest: Tensor  # (B,)
    shortest: Tensor | int = 0  # (B,), or one for all
    numbers: Sequence[int] = ()  # the sentences' places in the whole input: what is drawn for each depends on it alone
    rules: Sequence[Rule] = ()
    traces: dict[int, list[dict[str, Any]]] | None = None  # by sentence: filled with what was kept and dropped
    tell: Callable[[Tensor, Tensor], None] | None = None  # greedy tells (rows, tokens) as it chooses; </s> is not told


class Search(Protocol):
    """`start` gives the state before the first token, with room for the `size` hypotheses a search keeps at a time."""

    draws: bool  # whether results come as often as they are probable
    traces: bool  # whether it fills `limits.traces`
    seeks: bool  # whether it can look for required phrases, rather than only wait until they come

    @property
    def size(self) -> int: ...

    @property
    def looks(self) -> bool:
        """Whether it wants a state that says where the model looks."""
        ...

    def __call__(self, step: Step, start: Start, limits: Limits) -> list[list[Hypothesis]]: ...


searches: Registry[Search] = Registry("search", __name__)
