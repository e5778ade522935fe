"""From the lengths of pairs to batches: one seeded order whose whole state is a cursor.

    sizes, weights ─epoch_order→ blocks of (corpus, row) ─plan→ batches of rows ─Batches→ ids ─collate→ Batch

An epoch shows each line as often as the weight of its corpus says. The corpora are cut into short spans, the spans are
shuffled and gathered into blocks, and only within a block are rows shuffled and sorted into batches: memory holds one
block, however large the corpora are, and a block reads the files in whole spans. Everything is a function of (seed,
epoch): Cursor(epoch, batch) and the seed are all that a checkpoint needs to go on with exactly the same batches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.core.types import BOS, PAD, Batch
from dragoman.data.objectives import Objective, Row, plain, unfit
from dragoman.data.store.store import Store

if TYPE_CHECKING:
    from dragoman.text.codec import Codec

BLOCK = 1 << 20  # rows planned at once: about 100 MB while planning
SPANS = 256  # spans in a block: enough to mix corpora well, few enough to read whole pages
WINDOW = 1 << 20  # rows sorted together: 3 % of padding at 25,000 tokens a batch; 2^16 rows gave 19 %

Integers = NDArray[np.int64]
Ids = Sequence[int] | NDArray[Any]


# -- padding -----------------------------------------------------------------------------------------------------------


class Arrays(NamedTuple):
    """A batch before it becomes tensors: what travels between processes."""

    source: Integers  # (B, S), or (B, S, F) numbers
    source_lengths: Integers  # (B,)
    target: Integers  # (B, T + 1)
    target_lengths: Integers  # (B,)
    lines: list[int]
    token_labels: Integers | None = None  # (B, S)
    second_source: Integers | None = None  # a second source, as the first
    second_source_lengths: Integers | None = None  # (B,)

    def tensors(self) -> Batch:
        import torch

        source, source_lengths, target, target_lengths = (torch.from_numpy(array) for array in self[:4])
        token_labels, second, second_source_lengths = (
            None if array is None else torch.from_numpy(array)
            for array in (self.token_labels, self.second_source, self.second_source_lengths)
        )
        found = Batch(source, source_lengths, target, target_lengths, self.lines, token_labels)
        found.second_source, found.second_source_lengths = second, second_source_lengths
        return found


def pad(rows: Sequence[tuple[Ids, Ids] | Row], lines: Sequence[int]) -> Arrays:
    """Source ids as they are, target ids with <s> before them, filled up with <pad>."""
    source, source_lengths = _rectangle([row[0] for row in rows])
    ids, lengths = _rectangle([row[1] for row in rows])
    target = np.concatenate([np.full((len(rows), 1), BOS), ids], axis=1)
    token_labels = [row.token_labels if isinstance(row, Row) and row.token_labels is not None else [] for row in rows]
    filled = np.full_like(source, PAD) if any(token_labels) else None
    for i, row in enumerate(token_labels if filled is not None else []):
        filled[i, : len(row)] = row  # type: ignore[index]
    seconds = [row.second_source for row in rows if isinstance(row, Row) and row.second_source is not None]
    second = _rectangle(seconds) if seconds else (None, None)
    return Arrays(source, source_lengths, target, lengths + 1, list(lines), filled, *second)


def _rectangle(rows: Sequence[Ids]) -> tuple[Integers, Integers]:
    """(B, longest) ids and (B,) lengths; (B, longest, F) where rows are (S, F) numbers."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    width = int(lengths.max(initial=0))
    first = rows[0] if len(rows) else ()
    more, dtype = (first.shape[1:], first.dtype) if isinstance(first, np.ndarray) and first.ndim > 1 else ((), np.int64)
    filled = np.full((len(rows), width, *more), PAD, dtype)
    if width:
        filled[np.arange(width) < lengths[:, None]] = np.concatenate(rows)
    return filled, lengths


def _with_second_source(row: tuple[Ids, Ids] | Row, second: Ids | None) -> tuple[Ids, Ids] | Row:
    """A pair, or a row, with a second source where there is one."""
    if second is None:
        return row
    made = row if isinstance(row, Row) else Row(plain(row[0]), plain(row[1]))
    return made._replace(second_source=second)


def collate(rows: Sequence[tuple[Ids, Ids] | Row], lines: Sequence[int]) -> Batch:
    """Pairs of ids as one batch of tensors."""
    return pad(rows, lines).tensors()


# -- the order of an epoch ---------------------------------------------------------------------------------------------


def _generator(seed: int, epoch: int, *purpose: int) -> np.random.Generator:
    # SeedSequence fills short seeds up with zeros, so (7, 3) and (7, 3, 0, 0) are one stream; a spawn key stands apart.
    return np.random.default_rng(np.random.SeedSequence((seed, epoch), spawn_key=purpose))


def epoch_order(
    sizes: Sequence[int], weights: Sequence[float], seed: int, epoch: int, *, block: int = BLOCK
) -> Iterator[Integers]:
    """The (corpus, row) items of an epoch, shuffled, as blocks (N, 2).

    Weight 2 shows each line twice, weight 0.5 a half of the lines, drawn anew in each epoch.
    """
    rng = _generator(seed, epoch, 0)
    span = max(1, block // SPANS)
    parts = [
        _spans(corpus, size, weight, span, rng)
        for corpus, (size, weight) in enumerate(zip(sizes, weights, strict=True))
    ]
    spans = rng.permutation(np.concatenate(parts))
    # The block of each span: spans are never cut, so aiming one span lower keeps every block within its size.
    numbers = (np.cumsum(spans[:, 3]) - 1) // (block - span + 1)
    for number in range(int(numbers[-1]) + 1 if len(numbers) else 0):
        rng = _generator(seed, epoch, 1, number)
        items = [_rows(place, rng) for place in spans[numbers == number]]
        yield rng.permutation(np.concatenate(items))


def _spans(corpus: int, size: int, weight: float, span: int, rng: np.random.Generator) -> Integers:
    """(N, 4): corpus, first row, row after the last, and how many of those rows to take."""
    starts = np.arange(0, size, span)
    stops = np.minimum(starts + span, size)
    whole, share = divmod(weight, 1.0)
    # Running totals rounded with one random offset: the takes add up to share · size, give or take one, and no corpus
    # is too small to be seen now and then.
    offset = rng.random()
    some = np.floor(share * stops + offset) - np.floor(share * starts + offset)
    takes = [stops - starts] * int(whole) + [np.minimum(some.astype(np.int64), stops - starts)]
    copies = [np.stack([np.full_like(starts, corpus), starts, stops, take], axis=1) for take in takes]
    spans = np.concatenate(copies)
    return spans[spans[:, 3] > 0]


def _rows(span: Integers, rng: np.random.Generator) -> Integers:
    """The (corpus, row) items of one span."""
    corpus, start, stop, take = span
    if take == stop - start:
        rows = np.arange(start, stop)
    else:
        rows = start + rng.choice(stop - start, take, replace=False)
    return np.stack([np.full_like(rows, corpus), rows], axis=1)


# -- from lengths to batches -------------------------------------------------------------------------------------------


def plan(
    source_lengths: Integers,
    target_lengths: Integers,
    order: Integers,
    *,
    tokens: int,
    sentences: int | None,
    rng: np.random.Generator,
) -> list[Integers]:
    """Batches of the rows in `order`: alike in length, at most `tokens` positions with padding, themselves shuffled.

    A batch of B rows has B · max(source length, target length) positions; a row with more than `tokens` is alone.
    """
    batches: list[Integers] = []
    for start in range(0, len(order), WINDOW):
        rows = order[start : start + WINDOW]
        source, target = source_lengths[rows], target_lengths[rows]
        by_length = _sorted(source, target, rng.random(len(rows)))
        cuts = _cuts(np.maximum(source, target)[by_length], tokens, sentences)
        batches += np.split(rows[by_length], cuts)
    return [batches[i] for i in rng.permutation(len(batches))]


def _sorted(source: NDArray[Any], target: NDArray[Any], ties: NDArray[Any]) -> Integers:
    """Rows by their longer side, then by how the sides differ: both sides of a batch then need little padding.

    Sorting by target, then source, padded 5 % where this pads 3 % (batches of 4,096 tokens of 65,536 rows).
    """
    return np.lexsort((ties, source - target, np.maximum(source, target)))


def _cuts(longest: Integers, tokens: int, sentences: int | None) -> list[int]:
    """Where, in rows sorted by length, a new batch begins; 0 is left out."""
    cuts, start = [], 0
    while start < len(longest):
        most = max(1, tokens // max(1, int(longest[start])))  # no more fit, since the first row alone is that long
        if sentences is not None:
            most = min(most, sentences)
        width = np.maximum.accumulate(longest[start : start + most])
        fits = int(np.count_nonzero(width * np.arange(1, len(width) + 1) <= tokens))
        start += max(1, fits)
        cuts.append(start)
    return cuts[:-1]


# -- the stream --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cursor:
    """A place between two batches: so many batches of this epoch are done (by all ranks together)."""

    epoch: int = 0
    batch: int = 0


class Place(NamedTuple):
    """A batch before its ids are looked up: which items of which epoch, and the cursor after it."""

    epoch: int
    items: Integers  # (B, 2): corpus, row
    after: Cursor


class Batches:
    """An endless stream of training batches from weighted corpora; the same from the same seed and cursor.

    `tokens` limits a batch's area: rows × the longer padded side, <s> counted. Where subwords are sampled, lengths
    are those of the plain encoding, so a batch may come out somewhat larger. Several ranks take turns in one stream.
    """

    def __init__(
        self,
        corpora: Sequence[tuple[Store, float]],
        codec: Codec,
        *,
        tokens: int,
        sentences: int | None = None,
        seed: int,
        objective: Objective | None = None,
        rank: int = 0,
        ranks: int = 1,
        block: int = BLOCK,
    ) -> None:
        self.stores = [store for store, _ in corpora]
        self.weights = [weight for _, weight in corpora]
        if not corpora or not all(len(store) for store in self.stores):
            raise ValueError("there must be corpora, and none of them empty")
        if not all(math.isfinite(weight) and weight > 0 for weight in self.weights):
            raise ValueError(f"the weights of corpora must be positive, not {self.weights}")
        if codec.samples and not all(store.keeps_text for store in self.stores):
            raise ValueError("to sample subwords, stores must be built with keep_text=True")
        self.codec = codec if codec.samples else None  # else it need not travel to the workers
        self.modality = codec.modality if codec.modality is not None and codec.modality.augments else None
        second = None if isinstance(codec.second_source, str) else codec.second_source
        self.second_source = second if second is not None and second.augments else None
        self.tokens, self.sentences, self.seed = tokens, sentences, seed
        self.objective = None if objective is None or objective.trivial else objective
        self.rank, self.ranks, self.block = rank, ranks, block

    def after(self, cursor: Cursor) -> Iterator[tuple[Batch, Cursor]]:
        """All batches from a cursor on, each with the cursor after it; epoch follows epoch without end."""
        for place in self.places(cursor):
            yield self.arrays(place).tensors(), place.after

    def per_epoch(self, epoch: int) -> int:
        """How many batches an epoch has, for all ranks together."""
        return sum(1 for _ in self._epoch(epoch))

    def places(self, cursor: Cursor) -> Iterator[Place]:
        """What `after` yields, before any ids are read: every process can count along cheaply."""
        stream = self._stream(cursor)
        while True:
            turn = list(itertools.islice(stream, self.ranks))
            yield turn[self.rank]._replace(after=turn[-1].after)

    def arrays(self, place: Place) -> Arrays:
        """The padded ids of a batch."""
        if self.as_stored:
            return self._gathered(place.items)
        items: list[tuple[int, int]] = place.items.tolist()
        rows = [self._ids(place.epoch, corpus, row) for corpus, row in items]
        return pad(rows, [int(self.stores[corpus].lines[row]) for corpus, row in items])

    @property
    def as_stored(self) -> bool:
        """Whether rows are learned from as they are stored."""
        return self.codec is None and self.objective is None and self.modality is None and self.second_source is None

    def _gathered(self, items: Integers) -> Arrays:
        """The same where rows are learned from as they are stored: one gather for each side instead of a look at each
        row, 73 to 88 million tokens a second against 18 to 22.
        """
        corpora, rows = items.T
        count = 3 if self.stores[0].two else 2
        lengths, lines = np.empty((count, len(items)), np.int64), np.empty(len(items), np.int64)
        parts = []
        for corpus, store in enumerate(self.stores):
            mine = corpora == corpus
            found = [gather(rows[mine]) for gather in (store.sources, store.targets, store.second_sources)[:count]]
            for side, (_, own) in zip(lengths, found, strict=True):
                side[mine] = own
            lines[mine] = store.lines[rows[mine]]
            parts.append((mine, *(ids for ids, _ in found)))
        sides = [
            np.full(
                (len(items), int(side.max(initial=0)), *ids.shape[1:]), PAD, ids.dtype if ids.ndim > 1 else np.int64
            )
            for side, ids in zip(lengths, parts[0][1:], strict=True)
        ]
        for mine, *ids in parts:
            for filled, side, own in zip(sides, lengths, ids, strict=True):
                filled[(np.arange(filled.shape[1]) < side[:, None]) & mine[:, None]] = own
        target = np.concatenate([np.full((len(items), 1), BOS), sides[1]], axis=1)
        second = (sides[2], lengths[2]) if count == 3 else (None, None)
        return Arrays(sides[0], lengths[0], target, lengths[1] + 1, lines.tolist(), None, *second)

    def _stream(self, cursor: Cursor) -> Iterator[Place]:
        """The batches of all ranks."""
        done = cursor.batch
        for epoch in itertools.count(cursor.epoch):
            for number, items in enumerate(self._epoch(epoch)):
                if number >= done:
                    yield Place(epoch, items, Cursor(epoch, number + 1))
            done = 0

    def _epoch(self, epoch: int) -> Iterator[Integers]:
        sizes = [len(store) for store in self.stores]
        for number, block in enumerate(epoch_order(sizes, self.weights, self.seed, epoch, block=self.block)):
            source, target = self._lengths(block)
            rng = _generator(self.seed, epoch, 2, number)
            order = np.arange(len(block))
            for rows in plan(source, target, order, tokens=self.tokens, sentences=self.sentences, rng=rng):
                yield block[rows]

    def _lengths(self, block: Integers) -> tuple[Integers, Integers]:
        """Padded lengths of the items of a block: the target has <s> before its ids."""
        lengths = np.empty((2, len(block)), np.int64)
        for corpus, store in enumerate(self.stores):
            mine = np.flatnonzero(block[:, 0] == corpus)
            lengths[:, mine] = store.lengths(block[mine, 1])
        source, target = (lengths[0], lengths[1]) if self.objective is None else self.objective.lengths(*lengths)
        return source, target + 1

    def _ids(self, epoch: int, corpus: int, row: int) -> tuple[Ids, Ids] | Row:
        """What is learned from a row; all that is random in it is a function of seed, epoch, corpus and row alone."""
        store = self.stores[corpus]
        rng = np.random.default_rng(np.random.SeedSequence((self.seed, epoch, corpus, row)))
        source, target = self._sampled(store, row, rng) if self.codec else (store.source(row), store.target(row))
        if self.modality is not None:
            source = self.modality.augment(np.asarray(source), rng)
        made = (source, target) if self.objective is None else self.objective(source, target, rng)
        return _with_second_source(made, self._second_source(store, row, rng))

    def _second_source(self, store: Store, row: int, rng: np.random.Generator) -> Ids | None:
        """The second source of a row, looked at or split in a new way where the first would be."""
        second: Ids | None = store.second_source(row)
        if second is None:
            return None
        if self.second_source is not None:
            return self.second_source.augment(np.asarray(second), rng)
        if self.codec is not None and isinstance(self.codec.second_source, str) and self.codec.source.samples:
            sampled = self.codec.encode_second_source(store.example(row), rng)
            return sampled if len(sampled) <= store.max_source else second
        return second

    def _sampled(self, store: Store, row: int, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Another split of the same texts into subwords."""
        assert self.codec is not None
        example = store.example(row)
        source: Ids = [] if not store.paired else store.source(row)
        if store.paired and self.codec.modality is None:
            source = self.codec.encode_source(example, rng)
        target: Ids = self.codec.encode_target(example.target or "", rng, example.source)
        # A sampled split is longer than the plain one; a model's positions end at the limit all the same.
        source = source if len(source) <= store.max_source else store.source(row)
        target = target if len(target) <= store.max_target else store.target(row)
        if unfit(self.objective, source, target, store.max_source, store.max_target):  # not as many tags as tokens, say
            return store.source(row), store.target(row)
        return source, target


def in_order(store: Store, tokens: int, objective: Objective | None = None) -> Iterator[Batch]:
    """Every row once, short ones first, never sampled, the same noise each time: for validation.

    `lines` are row numbers.
    """
    source, target = store.source_lengths.astype(np.int64), store.target_lengths.astype(np.int64)
    if objective is None or objective.trivial:
        objective = None
    else:
        source, target = objective.lengths(source, target)
    target = target + 1
    by_length = _sorted(source, target, np.arange(len(store)))
    cuts = _cuts(np.maximum(source, target)[by_length], tokens, None)

    def ids(row: int) -> tuple[Ids, Ids] | Row:
        pair = store.source(row), store.target(row)
        made = pair if objective is None else objective(*pair, np.random.default_rng(row))
        return _with_second_source(made, store.second_source(row))

    for rows in np.split(by_length, cuts):
        numbers: list[int] = rows.tolist()
        yield collate([ids(row) for row in numbers], numbers)
