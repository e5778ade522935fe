"""Schedule any number of sentences over the slots of a decode graph.

    waiting ─admit (encode)→ slots ─steps→ done ─retire→ copy to the host ─fetch→ results

The host launches steps ahead of the device and polls the `done` flags every few steps, one poll behind, so that the GPU
never waits. While no sentence can be done yet, several steps are one graph and nothing is polled. Slots that are done
are refilled once enough of them are free. When no sentence waits, the remaining ones are compacted into the first slots
and a graph for fewer slots takes over.

B slots of which the first b are in use, S source and C target positions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from dragoman.core.types import Hypothesis
from dragoman.engines.cuda.encode import BATCH_POSITIONS, EncodeBatch
from dragoman.engines.cuda.slot_search import SlotSearch
from dragoman.engines.cuda.slots import DonePoll, SlotTable
from dragoman.engines.cuda.step import ModuleStep
from dragoman.engines.cuda.transfer import HostCopy, copy_to_device
from dragoman.search import Search, SearchConstraints

if TYPE_CHECKING:
    from dragoman.engines.cuda.engine import CUDAEngine, DecodeGraph

POLL_EVERY = 2  # steps between two polls while sentences wait
UNPOLLED_STEPS = 4  # steps in one graph, while no sentence can be done
REFILL = 8  # admit when one slot in so many is free: encoding a few sentences costs as much as encoding many


class PendingResults(NamedTuple):
    """The results of some sentences on their way to the host, up to `length` tokens each."""

    rows: list[int]
    length: int
    slot_search: SlotSearch
    copy: HostCopy


class Scheduler:
    """Decodes the sources of one call."""

    def __init__(
        self, engine: CUDAEngine, sources: Sequence[Sequence[int]], search: Search, constraints: SearchConstraints
    ) -> None:
        self.engine, self.sources, self.search, self.device = engine, sources, search, engine.device
        N = len(sources)
        self.lengths = np.fromiter(map(len, sources), np.int64, N)
        self.max_length = constraints.max_lengths.cpu().numpy().astype(np.int64)
        min_length = torch.as_tensor(constraints.min_lengths).cpu().numpy().astype(np.int64)
        self.min_length = np.broadcast_to(min_length, N)
        self.results: list[Sequence[Hypothesis]] = [()] * N
        self.pending: deque[PendingResults] = deque()
        self.waiting = np.zeros(0, np.int64)  # sentences of the graph at work that have no slot yet
        self.slots, self.steps, self.polls = SlotTable(0), 0, 0  # of the graph at work

    def run(self) -> list[Sequence[Hypothesis]]:
        """The n-best lists of all sources, in their order."""
        order = np.lexsort((-self.max_length, -self.lengths))  # the longest first, so that neighbors are alike
        while len(order):
            longest = int(self.lengths[order].max()), int(self.max_length[order].max()) + 1
            S, C = map(round_up_length, longest)
            graph = self.engine.decode_graph(self.search, S, C, len(order))
            self.waiting, order = self.select(order, graph, S, C)
            self.decode(graph)
        while self.pending:
            self.fetch()
        return self.results

    def select(self, order: np.ndarray, graph: DecodeGraph, S: int, C: int) -> tuple[np.ndarray, np.ndarray]:
        """The sentences for this graph, and the rest: where memory limits its slots, only those that need its size."""
        requested = min(round_up_power(len(order)), self.engine.max_rows // self.search.num_hypotheses)
        if requested < 2 * graph.B:
            return order, order[:0]
        is_long = (self.lengths[order] > S // 2) | (self.max_length[order] >= C // 2)
        return (order[is_long], order[~is_long]) if is_long.any() else (order, order[:0])

    def decode(self, graph: DecodeGraph) -> None:
        """Decode all waiting sentences in the slots of one graph."""
        b = min(graph.B, round_up_power(len(self.waiting)))
        self.slots, self.steps, self.polls = SlotTable(graph.B), 0, 0
        if isinstance(graph.step, ModuleStep) and graph.step.state is None:
            self.encode(graph, np.zeros(1, np.int64), self.waiting[:1])  # the state gets its shapes from a sentence
            graph.slot_search.done[:1] = 1
        graph.prepare(b)
        self.admit(graph, b)
        poll: DonePoll | None = None
        while self.slots.occupied.any():
            until_first, until_last = (end - self.steps for end in self.slots.ends())
            if until_first >= UNPOLLED_STEPS:
                graph.advance(b, UNPOLLED_STEPS)
                self.steps += UNPOLLED_STEPS
                continue
            count = min(POLL_EVERY if len(self.waiting) else 1, until_last)
            for _ in range(count):
                graph.advance(b)
            self.steps += count
            self.polls += 1
            previous, poll = poll, DonePoll(HostCopy(graph.slot_search.done[:b]), self.polls)
            if self.pending and self.pending[0].copy.is_ready():
                self.fetch()  # one at a time: the device has no more than a few steps to go on with
            usable = poll if until_last == count else previous
            if usable is not None:
                b = self.retire(graph, b, usable)

    def retire(self, graph: DecodeGraph, b: int, poll: DonePoll) -> int:
        """Collect finished sentences, if they are enough, and refill or compact; returns the slots still in use."""
        finished = self.slots.finished(poll)
        remaining = int(self.slots.occupied.sum()) - len(finished)
        if not len(finished) or (remaining and len(finished) * REFILL < b):
            return b
        self.collect(graph, finished)
        if len(self.waiting):
            self.admit(graph, b)
        elif remaining and round_up_power(remaining) < b:
            return self.compact(graph, round_up_power(remaining))
        return b

    def admit(self, graph: DecodeGraph, b: int) -> None:
        """Encode waiting sentences into the free of the first b slots, some thousand positions at a time."""
        free = np.flatnonzero(~self.slots.occupied[:b])[: len(self.waiting)]
        while len(free):
            tokens = np.cumsum(self.lengths[self.waiting[: len(free)]])
            n = max(int(np.searchsorted(tokens, BATCH_POSITIONS, "right")), 1)
            slots, rows = free[:n], self.waiting[:n]
            self.encode(graph, slots, rows)
            shortest = np.minimum(self.min_length[rows], self.max_length[rows])
            ends = self.steps + shortest + 1, self.steps + self.max_length[rows] + 1
            self.slots.assign(slots, rows, self.polls, *ends)
            free, self.waiting = free[n:], self.waiting[n:]

    def encode(self, graph: DecodeGraph, slots: np.ndarray, rows: np.ndarray) -> None:
        """Encode the sentences `rows` into slots, and start the search there anew."""
        lengths = self.lengths[rows]
        ids = np.fromiter(chain.from_iterable([self.sources[row] for row in rows.tolist()]), np.int64, lengths.sum())
        numbers = np.stack([slots, lengths, self.max_length[rows], self.min_length[rows]])
        on_device = copy_to_device(numbers, self.device)
        graph.step.admit(EncodeBatch(ids, lengths, slots), on_device[0], on_device[1])
        graph.slot_search.reset(on_device[0], on_device[2:])

    def collect(self, graph: DecodeGraph, slots: np.ndarray) -> None:
        """Start copying the results of some slots to the host, and free the slots."""
        rows = self.slots.release(slots)
        length = int(self.max_length[rows].max()) + 1
        results = graph.slot_search.gather_results(copy_to_device(slots, self.device), length)
        self.pending.append(PendingResults(rows.tolist(), length, graph.slot_search, HostCopy(results)))

    def fetch(self) -> None:
        """Wait for the results that were collected first, and file them under their sentences."""
        rows, length, slot_search, copy = self.pending.popleft()
        # A clone: whoever keeps a result must not keep pinned memory.
        for row, nbest in zip(rows, slot_search.read_results(copy.wait().clone(), length), strict=True):
            self.results[row] = nbest

    def compact(self, graph: DecodeGraph, fewer: int) -> int:
        """Move the remaining sentences into the first `fewer` slots; returns that number."""
        slots, slot_search = self.slots, graph.slot_search
        away = np.flatnonzero(slots.occupied[fewer:]) + fewer
        free = np.flatnonzero(~slots.occupied[:fewer])[: len(away)]
        if not graph.is_recorded(fewer):
            # Recording runs the step once, which changes only slots that are not done: for a moment all are.
            done = slot_search.done.clone()
            slot_search.done.fill_(1)
            graph.prepare(fewer)
            slot_search.done.copy_(done)
        if len(away):
            source, to = copy_to_device(np.stack([away, free]), self.device).unbind(0)
            graph.step.move_slots(source, to)
            slot_search.move_slots(source, to)
            slots.move(away, free, self.polls)
        return fewer


def round_up_power(n: int) -> int:
    """n rounded up to a power of two."""
    return 1 << max(n - 1, 0).bit_length()


def round_up_length(n: int) -> int:
    """A length rounded up to 32 or to a multiple of 64, so that few decode graphs serve all sentences."""
    return 32 if n <= 32 else -(-n // 64) * 64
