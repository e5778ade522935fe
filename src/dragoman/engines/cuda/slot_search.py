"""Greedy and beam search over slots, with all state on the device: a step is a fixed sequence of kernels.

Each of B slots holds one sentence, at a step t of its own, so that a slot whose sentence is done can be given to
another while the others continue. A step computes what search/greedy.py and search/beam.py compute, for every slot that
is not done; those two define the results.

    logits (B·k, V) ─advance→ token (B, k), the input of the next step, and parent (B, k), the hypothesis it extends

No history is ever copied. A step writes its choices as backpointers (B, R, k). A finished hypothesis is an entry there,
and its tokens are read backwards from it once the sentence is done.

A length rule is a table of factors, score = f[n] · log p. B slots of which the first b are in use, k hypotheses, R the
maximum number of tokens including </s>, V vocabulary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import ModuleType
from typing import overload

import numpy as np
import torch
from torch import Tensor

from dragoman.core.types import BOS, Hypothesis
from dragoman.search import Search
from dragoman.search.beam import Beam
from dragoman.search.greedy import Greedy

FINISH_REASONS = ("length", "eos", "no_valid_token")  # by the number that stands for each on the device
MAX_BEAM = 64


class SlotSearch(ABC):
    """A search over B slots; `done` (B,) is 1 where a slot is free or its sentence is finished."""

    parent: Tensor | None = None  # (B, k): the hypothesis that each one extends; None: itself

    def __init__(self, B: int, k: int, V: int, device: torch.device, kernels: ModuleType) -> None:
        """`kernels` is kernels/search.py."""
        self.k, self.V, self.kernels = k, V, kernels
        # Two tensors, so that a slot is reset with one call for each and not with ten.
        self.state = torch.zeros(3, B, dtype=torch.int32, device=device)
        self.limits = torch.zeros(2, B, dtype=torch.long, device=device)
        self.t, self.done, self.reason = self.state.unbind(0)
        self.max_length, self.min_length = self.limits.unbind(0)
        self.done.fill_(1)
        self.token = torch.full((B, k), BOS, dtype=torch.int32, device=device)  # the input of the next step

    def reset(self, slots: Tensor, limits: Tensor) -> None:
        """Start new sentences in these slots, with the maximum and minimum length of each, (2, N)."""
        self.state.index_fill_(1, slots, 0)
        self.limits.index_copy_(1, slots, limits)
        self.token.index_fill_(0, slots, BOS)

    def move_slots(self, source: Tensor, to: Tensor) -> None:
        """Move the sentences of the slots `source` to the slots `to`, and mark `source` as done."""
        for x in (self.token, *self.slot_tensors()):
            x[to] = x[source]
        for x in (self.state, self.limits):
            x[:, to] = x[:, source]
        self.done[source] = 1

    @abstractmethod
    def slot_tensors(self) -> tuple[Tensor, ...]:
        """The tensors (B, …) of this search that move with its sentences, besides those that every search has."""

    @abstractmethod
    def advance(self, logits: Tensor, b: int, ancestry: Tensor | None) -> None:
        """Take one step in the first b slots; `ancestry` (B, k, C) of the key-value cache follows the parents."""

    @abstractmethod
    def gather_results(self, slots: Tensor, length: int) -> Tensor:
        """The results of some slots, up to `length` tokens each, in one tensor for `read_results`."""

    @abstractmethod
    def read_results(self, buffer: Tensor, length: int) -> list[NBest]:
        """The n-best list of each slot, from a CPU copy of what `gather_results` returned."""


class GreedySlotSearch(SlotSearch):
    """y_t = argmax p(y_t | y_<t, x), for every slot."""

    def __init__(self, B: int, R: int, V: int, device: torch.device, kernels: ModuleType) -> None:
        super().__init__(B, 1, V, device, kernels)
        self.tokens = torch.zeros(B, R, dtype=torch.int32, device=device)
        self.log_probs = torch.zeros(B, R, device=device)

    def slot_tensors(self) -> tuple[Tensor, ...]:
        return self.tokens, self.log_probs

    def advance(self, logits: Tensor, b: int, ancestry: Tensor | None) -> None:
        first = [x[:b] for x in (self.t, self.token, self.done, self.reason, self.max_length, self.min_length)]
        self.kernels.greedy_step(logits, self.V, *first, self.tokens, self.log_probs)

    def gather_results(self, slots: Tensor, length: int) -> Tensor:
        buffer = allocate_results(len(slots), length, slots.device)
        columns = (self.t, self.reason, self.tokens[:, :length], self.log_probs[:, :length])
        for column, x in zip(split_results(buffer, 1, length)[1:], columns, strict=True):
            column.copy_(x[slots].view_as(column))
        return buffer

    def read_results(self, buffer: Tensor, length: int) -> list[NBest]:
        _, n, reason, tokens, log_probs = (column.numpy() for column in split_results(buffer, 1, length))
        is_counted = np.arange(length) < (n + (reason == 1))[..., None]
        score = np.where(is_counted, log_probs, 0.0).sum(-1, dtype=np.float64)
        return [NBest((score, n, reason, tokens, log_probs), row, 1) for row in range(len(n))]


class BeamSlotSearch(SlotSearch):
    """The k most probable hypotheses of every slot, and the best k finished ones."""

    parent: Tensor

    def __init__(
        self,
        B: int,
        k: int,
        R: int,
        V: int,
        device: torch.device,
        kernels: ModuleType,
        exact: bool = False,
        max_finished: int = 0,
    ) -> None:
        """`exact`: stop only when no active hypothesis can ever beat a finished one (early_stopping: never).

        `max_finished`: stop when so many have finished (early_stopping: true); 0: not by their number.
        """
        super().__init__(B, k, V, device, kernels)
        self.exact, self.max_finished = exact, max_finished
        self.finished_count = torch.zeros(B, dtype=torch.int32, device=device)
        zeros = torch.zeros(B, k, dtype=torch.int32, device=device)
        self.parent = zeros.clone()
        self.sums = torch.full((3, B, k), -math.inf, dtype=torch.float64, device=device)
        self.initial_sums = self.sums[:, :1].clone()
        self.initial_sums[:2, :, 0] = 0.0  # one hypothesis, the empty one, and none finished
        self.total, self.score, finished_score = self.sums.unbind(0)
        # The finished ones, (B, k) each, best first: score, the step at which it ended (its length), parent, log p of
        # </s>, and whether it ended by </s>.
        self.finished = finished_score, zeros.clone(), zeros.clone(), torch.zeros(B, k, device=device), zeros.clone()
        # The backpointers: token, parent and log p of every step, (B, R, k) each.
        tokens, parents = (torch.zeros(B, R, k, dtype=torch.int32, device=device) for _ in range(2))
        self.backpointers = tokens, parents, torch.zeros(B, R, k, device=device)
        self.factors = torch.ones(R + 3, dtype=torch.float64, device=device)
        candidates = 1 << k.bit_length()  # k + 1, rounded up to a power of two
        self.values = torch.zeros(B * k, candidates, device=device)
        self.candidates = torch.zeros(B * k, candidates, dtype=torch.int32, device=device)

    def reset(self, slots: Tensor, limits: Tensor) -> None:
        super().reset(slots, limits)
        self.sums.index_copy_(1, slots, self.initial_sums.expand(-1, len(slots), -1))
        self.finished_count.index_fill_(0, slots, 0)

    def slot_tensors(self) -> tuple[Tensor, ...]:
        return self.parent, self.total, self.score, *self.finished, self.finished_count, *self.backpointers

    def advance(self, logits: Tensor, b: int, ancestry: Tensor | None) -> None:
        lengths = self.max_length, self.min_length
        state = self.t, self.token, self.parent, self.total, self.score, self.done, *lengths
        first, rows = [x[:b] for x in state], b * self.k
        candidates = self.values[:rows], self.candidates[:rows]
        finished = self.finished, self.finished_count[:b]
        stopping = self.exact, self.max_finished
        self.kernels.beam_step(
            logits, self.V, *first, candidates, self.factors, self.backpointers, *finished, ancestry, *stopping
        )

    def gather_results(self, slots: Tensor, length: int) -> Tensor:
        buffer = allocate_results(len(slots) * self.k, length, slots.device)
        self.kernels.trace_back(slots, self.finished, self.backpointers, buffer, length)
        return buffer

    def read_results(self, buffer: Tensor, length: int) -> list[NBest]:
        arrays = tuple(column.numpy() for column in split_results(buffer, self.k, length))
        sizes = (arrays[0] > -math.inf).sum(1).tolist()
        return [NBest(arrays, row, size) for row, size in enumerate(sizes)]


# -- from the device to results ----------------------------------------------------------------------------------------


def allocate_results(hypotheses: int, length: int, device: torch.device) -> Tensor:
    """A buffer for the results of so many hypotheses in one piece: one copy to the host costs less than five."""
    return torch.empty(hypotheses * (4 + 2 * length), dtype=torch.int32, device=device)


def split_results(buffer: Tensor, k: int, length: int) -> tuple[Tensor, ...]:
    """Views: score (N, k) in float64, −∞ for none; length; finish reason; tokens (N, k, length); and their log p."""
    n = len(buffer) // (4 + 2 * length)
    score, lengths, reason, tokens, log_probs = torch.split(buffer, [2 * n, n, n, n * length, n * length])
    score, log_probs = score.view(torch.float64), log_probs.view(torch.float32)
    return *(x.view(-1, k) for x in (score, lengths, reason)), *(x.view(-1, k, length) for x in (tokens, log_probs))


class NBest(Sequence[Hypothesis]):
    """The results of a sentence, best first; each Hypothesis is made when it is read, as most never are."""

    def __init__(self, arrays: tuple[np.ndarray, ...], row: int, size: int) -> None:
        """`arrays` is what `split_results` returns, on the host."""
        self.arrays, self.row, self.size = arrays, row, size

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, i: int) -> Hypothesis: ...

    @overload
    def __getitem__(self, i: slice) -> list[Hypothesis]: ...

    def __getitem__(self, i: int | slice) -> Hypothesis | list[Hypothesis]:
        indices = range(self.size)[i]  # handles negative indices and the end of the list
        return self._hypothesis(indices) if isinstance(indices, int) else [self._hypothesis(j) for j in indices]

    def _hypothesis(self, j: int) -> Hypothesis:
        score, length, reason, tokens, log_probs = (column[self.row, j] for column in self.arrays)
        counted = length + (reason == 1)
        return Hypothesis(tokens[:length].tolist(), log_probs[:counted].tolist(), float(score), FINISH_REASONS[reason])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))


# -- which searches these are ------------------------------------------------------------------------------------------


def slot_search_blocker(search: Search) -> str | None:
    """Why no slot search computes what this search does; None: one does."""
    if type(search) is Greedy:
        return None
    if type(search) is not Beam:
        return f"it runs greedy and beam search, not {type(search).__name__}"
    if search.finished_policy == "shrink":
        return "its beam keeps its size (finished_policy: collect)"
    if search.needs_attention:
        return "a coverage penalty needs the attention weights"
    if search.num_hypotheses > MAX_BEAM:
        return f"its beam has at most {MAX_BEAM} hypotheses, not {search.num_hypotheses}"
    if not is_length_factor(search):
        return "the length rule is not a factor that depends on the length alone"
    return None


def is_length_factor(search: Beam) -> bool:
    """Whether the length rule multiplies log p by a function of the length alone, judged by a few numbers."""
    n = torch.arange(1, 40, dtype=torch.float64)
    factors = search.length_rule(torch.full_like(n, -1.0), n)
    scores = ((x, search.length_rule(torch.full_like(n, -x), n)) for x in (0.01, 700.0))
    return all(bool(torch.isclose(score, factors * x, rtol=1e-9).all()) for x, score in scores)


def build_slot_search(search: Search, B: int, R: int, V: int, device: torch.device, kernels: ModuleType) -> SlotSearch:
    """A greedy or beam slot search with at least B slots; `kernels` is kernels/search.py."""
    B = -(-B // 4) * 4  # so that the rows of its tensors are aligned: Triton compiles again for those that are not
    if isinstance(search, Beam):
        exact = search.early_stopping == "never"
        max_finished = search.max_finished if search.early_stopping is True else 0
        return BeamSlotSearch(B, search.num_hypotheses, R, V, device, kernels, exact, max_finished)
    return GreedySlotSearch(B, R, V, device, kernels)


def load_length_rule(slot_search: SlotSearch, search: Search) -> None:
    """Write the length rule of a beam search into the slot search's table of factors; greedy search has none."""
    if isinstance(slot_search, BeamSlotSearch) and isinstance(search, Beam):
        n = torch.arange(len(slot_search.factors), dtype=torch.float64).clamp(min=1)
        slot_search.factors.copy_(search.length_rule(torch.ones_like(n), n))
