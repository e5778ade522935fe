"""From a step function to sequences. A search sees `step(tokens, state) → log p, state` and nothing else of a model.

    searches.build(Part("beam", {"size": 5}))(step, start, limits)      # an n-best list of Hypothesis for each sentence

The folder is the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from dragoman.core.interfaces import Capacity, Hypothesis, Step
from dragoman.core.registry import Registry

Start = Callable[[Capacity], Any]  # how much room a search needs → the model's state before the first token


@dataclass
class Limits:
    """How long results may and must be, in tokens without </s>, for each sentence."""

    longest: Tensor  # (B,)
    shortest: int = 0
    numbers: Sequence[int] = ()  # the sentences' places in the whole input: what is drawn for each depends on it alone


class Search(Protocol):
    """`start` gives the state before the first token, with room for the `size` hypotheses a search keeps at a time."""

    @property
    def size(self) -> int: ...

    def __call__(self, step: Step, start: Start, limits: Limits) -> list[list[Hypothesis]]: ...


searches: Registry[Search] = Registry("search", __name__)
