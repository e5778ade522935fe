"""Searching on one GPU: many sentences in slots of a board, every step one CUDA graph, finished ones replaced.

    sources ─encoder→ slots ─┬→ step (stepping.py) → logits → search (device_search.py) ─┬→ results
                             └───────────── one graph, launched again and again ─────────┘

The host launches steps ahead and looks every few of them at which slots are done, one look behind so that the GPU never
waits; where no sentence can be done yet, several steps are one graph and nobody looks. Slots that are done are given to
sentences that wait, once enough of them are free; when none wait, those still going move together and a graph for fewer
slots takes over. Results are fetched while the next steps run. No sentence's result depends on its neighbors.

In float32 the results are those of the plain path; in bfloat16 weights, keys, values and vectors between layers are
rounded, while norms, softmaxes and the residual stream stay in float32 and sums of log p in float64.

B slots of which the first b are in use, k hypotheses, S source and C target positions.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.core.types import Hypothesis
from dragoman.engines.cuda import slot_search
from dragoman.engines.cuda.encode import LOT, Encoding, Lot, sent
from dragoman.engines.cuda.graphs import Graphs
from dragoman.engines.cuda.step import AnyStep, Step, TransformerStep, TransformerWeights, Unfit, cast, fits
from dragoman.engines.length_batches import ON_GPU, batches, padded
from dragoman.nn.kernels.packed import triton_works
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import Limits, Search

log = logging.getLogger("dragoman")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MOST_ROWS = 2560  # hypotheses of all slots together: more of them make a step longer and no sentence cheaper
LOOK_EVERY = 2  # steps between two looks while others wait
CALM = 4  # steps in one graph, where no look is due
REFILL = 8  # new sentences come in when one slot in so many is free: encoding a few costs as much as encoding many
KEPT = 4  # boards that stay for the next call


class Bucket:
    """A board and the step on it for sentences up to S and C tokens, recorded for each number of slots in use."""

    def __init__(self, board: slot_search.Board, step: Step, B: int, wanted: int, C: int, graphs: Graphs) -> None:
        self.board, self.step, self.B, self.wanted, self.C = board, step, B, wanted, C
        self.graphs, self.recorded = graphs, dict[tuple[int, int], Callable[[], object]]()

    def advance(self, b: int, count: int = 1) -> None:
        """Some steps of the first b slots, in one graph."""
        if (b, count) not in self.recorded:  # what is launched has run before, one step at a time
            self.recorded[b, count] = self.graphs.record(lambda: self.once(b, count), again=True)
        self.recorded[b, count]()

    def ready(self, b: int) -> None:
        """Record the step for b slots, all of which must be done: it runs once and may change nothing."""
        if (b, 1) not in self.recorded:
            self.recorded[b, 1] = self.graphs.record(lambda: self.once(b))

    def once(self, b: int, count: int = 1) -> None:
        for _ in range(count):
            self.board.advance(self.step(self.board, b), b, self.step.ancestry)


class Engine:
    """Greedy and beam search of a sequence-to-sequence model on its GPU."""

    def __init__(self, model: Seq2Seq, dtype: torch.dtype, kernels: Any, most_rows: int = MOST_ROWS) -> None:
        """`kernels` is kernels/search.py, or None where search is to run in torch's own operations, as on a CPU."""
        self.model, self.dtype, self.kernels, self.most_rows = model, dtype, kernels, most_rows
        self.device = model.output.weight.device
        self.own = cast(model, dtype).eval()
        with torch.inference_mode():
            self.graphs, self.buckets = Graphs(self.device), OrderedDict[tuple[Any, ...], Bucket]()
            self.weights = TransformerWeights(model, dtype) if kernels is not None and fits(model) else None
            if self.weights is not None:
                self.encoding = Encoding(model, self.own, dtype, self.graphs)
        self.failed, self.lock = False, threading.Lock()

    def serves(self, search: Search, limits: Limits) -> bool:
        plain = not limits.rules and limits.traces is None and limits.tell is None
        return not self.failed and plain and slot_search.serves(search)

    @torch.inference_mode()
    def __call__(
        self, sources: Sequence[Sequence[int]], search: Search, limits: Limits
    ) -> Sequence[Sequence[Hypothesis]]:
        """The n-best list of every source, in their order."""
        with self.lock:
            if self.model.training:  # `eval` visits every module: 1.5 ms for a Transformer-base
                self.model.eval()
            if not self.failed:
                try:
                    return Request(self, sources, search, limits).run()
                except (Unfit, RuntimeError) as problem:  # of torch, CUDA or Triton, memory included
                    self.failed = True
                    self.buckets.clear()
                    log.warning(
                        "the fast path on the GPU is given up, and the plain one goes on: %s", first_line(problem)
                    )
            return plain(self.model, sources, search, limits)

    def bucket(self, search: Search, S: int, C: int, count: int) -> Bucket:
        """A board for sentences up to S and C tokens, with up to `count` slots; the last few are kept."""
        wanted = min(power(count), max(self.most_rows // search.size, 1))
        name = (slot_search.key(search), S, C)
        bucket = self.buckets.pop(name, None)
        if bucket is None or wanted > bucket.wanted:
            del bucket
            while len(self.buckets) >= KEPT:
                self.buckets.popitem(last=False)
            bucket = self.build(search, S, C, wanted)
        self.buckets[name] = bucket
        slot_search.prepare(bucket.board, search)
        return bucket

    def build(self, search: Search, S: int, C: int, wanted: int) -> Bucket:
        V, k, B = self.model.output.out_features, search.size, min(wanted, self.fitting(search, S, C))
        step: Step
        if self.weights is not None:
            step = TransformerStep(self.encoding, self.weights, B, k, S, C)
        else:
            step = AnyStep(self.own, B, k, S, C)
        return Bucket(slot_search.board(search, B, C, V, self.device, self.kernels), step, B, wanted, C, self.graphs)

    def fitting(self, search: Search, S: int, C: int) -> int:
        """How many slots a quarter of the free memory holds."""
        if self.device.type != "cuda":
            return self.most_rows
        free = torch.cuda.mem_get_info(self.device)[0]
        free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        if self.weights is not None:
            each = TransformerStep.bytes(self.encoding, self.weights, search.size, S, C)
        else:
            each = AnyStep.bytes(self.own, search.size, S, C)
        if free // 4 < each:
            raise Unfit("the GPU has no memory left for one sentence's keys and values")
        return int(free // 4 // each)


class Request:
    """Some sources on their way to results."""

    def __init__(self, engine: Engine, sources: Sequence[Sequence[int]], search: Search, limits: Limits) -> None:
        self.engine, self.sources, self.search, self.device = engine, sources, search, engine.device
        N = len(sources)
        self.lengths = np.fromiter(map(len, sources), np.int64, N)
        self.longest = limits.longest.cpu().numpy().astype(np.int64)
        shortest = limits.shortest
        self.shortest = np.full(N, shortest) if isinstance(shortest, int) else shortest.cpu().numpy().astype(np.int64)
        self.results: list[Sequence[Hypothesis]] = [()] * N
        self.pending: deque[Pending] = deque()
        self.waiting = np.zeros(0, np.int64)  # those that the bucket at work has no slot for yet
        self.seats, self.steps, self.looks = Seats(0), 0, 0  # of the bucket at work

    def run(self) -> list[Sequence[Hypothesis]]:
        order = np.lexsort((-self.longest, -self.lengths))  # like with like, the longest first
        while len(order):
            S, C = up(int(self.lengths[order].max())), up(int(self.longest[order].max()) + 1)
            bucket = self.engine.bucket(self.search, S, C, len(order))
            self.waiting, order = self.share(order, bucket, S, C)
            self.decode(bucket)
        while self.pending:
            self.drain()
        return self.results

    def share(self, order: np.ndarray, bucket: Bucket, S: int, C: int) -> tuple[np.ndarray, np.ndarray]:
        """Those that this bucket takes: all, or where memory makes it small, only those that need one as large."""
        wanted = min(power(len(order)), self.engine.most_rows // self.search.size)
        if wanted < 2 * bucket.B:
            return order, order[:0]
        large = (self.lengths[order] > S // 2) | (self.longest[order] >= C // 2)
        return (order[large], order[~large]) if large.any() else (order, order[:0])

    def decode(self, bucket: Bucket) -> None:
        """All that wait through the slots of a bucket."""
        b, self.seats, self.steps, self.looks = min(bucket.B, power(len(self.waiting))), Seats(bucket.B), 0, 0
        if isinstance(bucket.step, AnyStep) and bucket.step.state is None:
            self.enter(bucket, np.zeros(1, np.int64), self.waiting[:1])  # its state takes shape from a first sentence
            bucket.board.done[:1] = 1
        bucket.ready(b)
        self.seat(bucket, b)
        look: Look | None = None
        while self.seats.live.any():
            calm, left = self.seats.soonest - self.steps, self.seats.last - self.steps
            if calm >= CALM:
                bucket.advance(b, CALM)
                self.steps += CALM
                continue
            count = min(LOOK_EVERY if len(self.waiting) else 1, left)
            for _ in range(count):
                bucket.advance(b)
            self.steps += count
            self.looks += 1
            before, look = look, Look(bucket.board.done[:b], self.looks)
            now = look if left == count else before
            if self.pending and self.pending[0].arrived():
                self.drain()  # one at a time: the device has no more than a few steps to go on with
            if now is not None:
                b = self.turn(bucket, b, now)

    def turn(self, bucket: Bucket, b: int, look: Look) -> int:
        """Collect those that a look finds done, if they are enough, and fill their slots; how many slots go on."""
        over = self.seats.over(look)
        rest = int(self.seats.live.sum()) - len(over)
        if not len(over) or (rest and len(over) * REFILL < b):
            return b
        self.collect(bucket, over)
        if len(self.waiting):
            self.seat(bucket, b)
        elif rest and power(rest) < b:
            return self.compact(bucket, power(rest))
        return b

    def seat(self, bucket: Bucket, b: int) -> None:
        """Sentences that wait take free slots, in lots."""
        free = np.flatnonzero(~self.seats.live[:b])[: len(self.waiting)]
        while len(free):
            tokens = np.cumsum(self.lengths[self.waiting[: len(free)]])
            n = max(int(np.searchsorted(tokens, LOT, "right")), 1)
            self.enter(bucket, free[:n], self.waiting[:n])
            self.seats.take(free[:n], self.waiting[:n], self)
            free, self.waiting = free[n:], self.waiting[n:]

    def enter(self, bucket: Bucket, slots: np.ndarray, rows: np.ndarray) -> None:
        """Encode sentences into slots."""
        lengths = self.lengths[rows]
        ids = np.fromiter(chain.from_iterable([self.sources[row] for row in rows.tolist()]), np.int64, lengths.sum())
        given = sent(np.stack([slots, lengths, self.longest[rows], self.shortest[rows]]), self.device)
        bucket.step.enter(Lot(ids, lengths, slots), given[0], given[1])
        bucket.board.reset(given[0], given[2:])

    def collect(self, bucket: Bucket, slots: np.ndarray) -> None:
        """Send the results of some slots to the host; `drain` reads them when they are there."""
        rows = self.seats.leave(slots)
        room = int(self.longest[rows].max()) + 1
        self.pending.append(Pending(bucket.board, sent(slots, self.device), room, rows.tolist()))

    def drain(self) -> None:
        """Make results of what was collected first."""
        one = self.pending.popleft()
        for row, found in zip(one.rows, one.read(), strict=True):
            self.results[row] = found

    def compact(self, bucket: Bucket, fewer: int) -> int:
        """Those still going move to the first slots, `fewer` of them."""
        seats, board = self.seats, bucket.board
        away = np.flatnonzero(seats.live[fewer:]) + fewer
        free = np.flatnonzero(~seats.live[:fewer])[: len(away)]
        if (fewer, 1) not in bucket.recorded:
            # Recording runs the step once, which only slots that are done survive: they are all so for a moment.
            done = board.done.clone()
            board.done.fill_(1)
            bucket.ready(fewer)
            board.done.copy_(done)
        if len(away):
            source, to = sent(np.stack([away, free]), self.device).unbind(0)
            bucket.step.move(source, to)
            board.move(source, to)
            seats.move(away, free, self.looks)
        return fewer


class Seats:
    """Who sits in which slot: the sentence (−1: none), the looks before it came, its first and last step to end."""

    def __init__(self, B: int) -> None:
        self.row, self.since, self.early, self.late = (np.full(B, -1, np.int64) for _ in range(4))

    @property
    def live(self) -> np.ndarray:
        return self.row >= 0

    @property
    def soonest(self) -> int:
        """The first step after which somebody may be done."""
        return int(self.early[self.live].min())

    @property
    def last(self) -> int:
        """The step after which all are done."""
        return int(self.late[self.live].max())

    def take(self, slots: np.ndarray, rows: np.ndarray, request: Request) -> None:
        self.row[slots], self.since[slots] = rows, request.looks
        self.late[slots] = request.steps + request.longest[rows] + 1
        self.early[slots] = request.steps + np.minimum(request.shortest[rows], request.longest[rows]) + 1

    def over(self, look: Look) -> np.ndarray:
        """The slots whose sentences a look found done."""
        done = look.wait()
        return np.flatnonzero(done & self.live[: len(done)] & (self.since[: len(done)] < look.number))

    def leave(self, slots: np.ndarray) -> np.ndarray:
        rows: np.ndarray = self.row[slots]
        self.row[slots] = -1
        return rows

    def move(self, source: np.ndarray, to: np.ndarray, looks: int) -> None:
        for x in (self.row, self.early, self.late):
            x[to] = x[source]
        self.since[to], self.row[source] = looks, -1


class Look:
    """Which slots were done when it was taken; reading it waits for the device to come so far."""

    def __init__(self, done: Tensor, number: int) -> None:
        self.number = number
        self.done, self.event = fetched(done)

    def wait(self) -> np.ndarray:
        if self.event is not None:
            self.event.synchronize()
        return self.done.numpy().astype(bool)


class Pending:
    """Results of some slots on their way to the host."""

    def __init__(self, board: slot_search.Board, slots: Tensor, room: int, rows: list[int]) -> None:
        self.board, self.room, self.rows = board, room, rows
        self.found, self.event = fetched(board.taken(slots, room))

    def arrived(self) -> bool:
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]

    def read(self) -> Sequence[Sequence[Hypothesis]]:
        if self.event is not None:
            self.event.synchronize()
        return self.board.results(self.found.clone(), self.room)  # pinned memory is not for whoever keeps a result


def fetched(x: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """A tensor on its way to the host, and the event after which it is there."""
    if not x.is_cuda:
        return x.clone(), None
    # Into pinned memory: the host would wait for a copy into any other.
    found = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    found.copy_(x, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return found, event


def power(n: int) -> int:
    """n rounded up to a power of two."""
    return 1 << max(n - 1, 0).bit_length()


def up(n: int) -> int:
    """A size rounded up, so that few boards serve all: to 32, 64, and then to multiples of 64."""
    return 32 if n <= 32 else -(-n // 64) * 64


def first_line(problem: BaseException) -> str:
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]


def plain(model: Seq2Seq, sources: Sequence[Sequence[int]], search: Search, limits: Limits) -> list[list[Hypothesis]]:
    """The search itself on the model itself, in batches of like length."""
    results: list[list[Hypothesis]] = [[] for _ in sources]
    device = model.output.weight.device
    for rows in batches([*map(len, sources)], ON_GPU // search.size):
        ids, lengths = padded([sources[i] for i in rows])
        memory = model.encode(ids.to(device), lengths.to(device))
        at = torch.tensor(rows)
        shortest = limits.shortest
        some = Limits(
            limits.longest[at.to(limits.longest.device)].to(device),
            shortest if isinstance(shortest, int) else shortest[at.to(shortest.device)].to(device),
        )
        found = search(model.step, lambda room, memory=memory: model.start(memory, room), some)  # type: ignore[misc]
        for i, one in zip(rows, found, strict=True):
            results[i] = one
    return results


def open(model: Any, precision: str) -> Engine | None:
    """An engine for this model; None where it, its device or the precision is of another kind."""
    if type(model) is not Seq2Seq or model.decoder is None or model.pointer is not None or precision not in DTYPES:
        return None
    if model.output.weight.device.type != "cuda" or not triton_works():
        return None
    from dragoman.engines.cuda.kernels import search

    return Engine(model, DTYPES[precision], search)
