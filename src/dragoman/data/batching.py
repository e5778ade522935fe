"""Training batches of rows of similar length, in a seeded random order whose whole state is a cursor.

    sizes, weights ─epoch_order→ (corpus, row) blocks ─plan_batches→ batches of rows ─BatchStream→ ids ─collate→ Batch

In an epoch each line occurs as often as the weight of its corpus says. The corpora are split into
short spans, the spans are shuffled and joined to blocks, and rows are shuffled and sorted into
batches within a block only: memory holds one block, however large the corpora are, and a block
reads the files in whole spans. Everything depends on (seed, epoch): a checkpoint needs only the
seed and Cursor(epoch, batch) to continue with exactly the same batches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.core.types import BOS, PAD, Batch
from dragoman.data.objectives import Ids, Integers, Objective, TrainingRow, copy_source, to_list, training_blocker
from dragoman.data.store.store import Array, TokenStore

if TYPE_CHECKING:
    from dragoman.text.codec import Codec

BLOCK_ROWS = 1 << 20  # rows planned at once: about 100 MB while planning
SPANS_PER_BLOCK = 256  # spans in a block: enough to mix corpora well, few enough to read whole pages
SORT_WINDOW = 1 << 20  # rows sorted together: 3 % of padding at 25,000 tokens a batch; 2^16 rows gave 19 %

IdPair = tuple[Ids, Ids]  # source and target of a row without token labels and second source


# -- padding -----------------------------------------------------------------------------------------------------------


class BatchArrays(NamedTuple):
    """A batch as numpy arrays, which loader processes send."""

    source: Array  # (B, S) ids, or (B, S, F) numbers
    source_lengths: Integers  # (B,)
    target: Integers  # (B, T + 1)
    target_lengths: Integers  # (B,)
    lines: list[int]
    token_labels: Integers | None = None  # (B, S)
    second_source: Array | None = None  # like `source`
    second_source_lengths: Integers | None = None  # (B,)

    def to_batch(self) -> Batch:
        """The same batch as tensors."""
        import torch

        source, source_lengths, target, target_lengths = (torch.from_numpy(array) for array in self[:4])
        token_labels, second, second_source_lengths = (
            None if array is None else torch.from_numpy(array)
            for array in (self.token_labels, self.second_source, self.second_source_lengths)
        )
        batch = Batch(source, source_lengths, target, target_lengths, self.lines, token_labels)
        batch.second_source, batch.second_source_lengths = second, second_source_lengths
        return batch


def pad(rows: Sequence[IdPair | TrainingRow], lines: Sequence[int]) -> BatchArrays:
    """Pad rows with <pad> to one batch of arrays, labels and second sources included; targets get <s> in front."""
    source, source_lengths = _pad_rows([row[0] for row in rows])
    ids, lengths = _pad_rows([row[1] for row in rows])
    target = np.concatenate([np.full((len(rows), 1), BOS), ids], axis=1)
    labels = [row.token_labels or [] if isinstance(row, TrainingRow) else [] for row in rows]
    token_labels = None
    if any(labels):
        token_labels = np.full_like(source, PAD)
        for i, row_labels in enumerate(labels):
            token_labels[i, : len(row_labels)] = row_labels
    seconds = [row.second_source for row in rows if isinstance(row, TrainingRow) and row.second_source is not None]
    second = _pad_rows(seconds) if seconds else (None, None)
    return BatchArrays(source, source_lengths, target, lengths + 1, list(lines), token_labels, *second)


def _pad_rows(rows: Sequence[Ids]) -> tuple[Array, Integers]:
    """(B, longest) ids and (B,) lengths; (B, longest, F) if rows are (S, F) numbers."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    width = int(lengths.max(initial=0))
    first = rows[0] if len(rows) else ()
    more, dtype = (first.shape[1:], first.dtype) if isinstance(first, np.ndarray) and first.ndim > 1 else ((), np.int64)
    padded = np.full((len(rows), width, *more), PAD, dtype)
    if width:
        padded[np.arange(width) < lengths[:, None]] = np.concatenate(rows)
    return padded, lengths


def _with_second_source(row: IdPair | TrainingRow, second: Ids | None) -> IdPair | TrainingRow:
    """Add a second source to a row, if there is one."""
    if second is None:
        return row
    if not isinstance(row, TrainingRow):
        row = TrainingRow(copy_source(row[0]), to_list(row[1]))
    return row._replace(second_source=second)


def collate(rows: Sequence[IdPair | TrainingRow], lines: Sequence[int]) -> Batch:
    """Pad rows to one batch of tensors; `lines` are their line numbers."""
    return pad(rows, lines).to_batch()


# -- the order of an epoch ---------------------------------------------------------------------------------------------


def _make_generator(seed: int, epoch: int, *purpose: int) -> np.random.Generator:
    """A random generator for (seed, epoch) and a purpose, independent of those for other purposes."""
    # SeedSequence pads short seeds with zeros, so (7, 3) and (7, 3, 0, 0) are one stream; a spawn key is separate.
    return np.random.default_rng(np.random.SeedSequence((seed, epoch), spawn_key=purpose))


def epoch_order(
    sizes: Sequence[int], weights: Sequence[float], seed: int, epoch: int, *, block: int = BLOCK_ROWS
) -> Iterator[Integers]:
    """The shuffled (corpus, row) items of an epoch, in blocks (N, 2).

    With weight 2 each line occurs twice, with weight 0.5 half of the lines, sampled anew in each epoch.
    """
    rng = _make_generator(seed, epoch, 0)
    span = max(1, block // SPANS_PER_BLOCK)
    parts = [
        _sample_spans(corpus, size, weight, span, rng)
        for corpus, (size, weight) in enumerate(zip(sizes, weights, strict=True))
    ]
    spans = rng.permutation(np.concatenate(parts))
    # The block of each span: spans are never divided, so aiming one span lower keeps every block within its size.
    numbers = (np.cumsum(spans[:, 3]) - 1) // (block - span + 1)
    for number in range(int(numbers[-1]) + 1 if len(numbers) else 0):
        rng = _make_generator(seed, epoch, 1, number)
        items = [_sample_rows(row, rng) for row in spans[numbers == number]]
        yield rng.permutation(np.concatenate(items))


def _sample_spans(corpus: int, size: int, weight: float, span: int, rng: np.random.Generator) -> Integers:
    """(N, 4): corpus, first row, row after the last, and how many of these rows to sample."""
    starts = np.arange(0, size, span)
    stops = np.minimum(starts + span, size)
    whole, share = divmod(weight, 1.0)
    # Running totals are rounded with one random offset: the counts add up to share · size, give or take one, and
    # even the smallest corpus is sampled now and then.
    offset = rng.random()
    some = np.floor(share * stops + offset) - np.floor(share * starts + offset)
    counts = [stops - starts] * int(whole) + [np.minimum(some.astype(np.int64), stops - starts)]
    repeats = [np.stack([np.full_like(starts, corpus), starts, stops, count], axis=1) for count in counts]
    spans = np.concatenate(repeats)
    return spans[spans[:, 3] > 0]


def _sample_rows(span: Integers, rng: np.random.Generator) -> Integers:
    """The (corpus, row) items of one span: all its rows, or a random sample of them."""
    corpus, start, stop, count = span
    if count == stop - start:
        rows = np.arange(start, stop)
    else:
        rows = start + rng.choice(stop - start, count, replace=False)
    return np.stack([np.full_like(rows, corpus), rows], axis=1)


# -- from lengths to batches -------------------------------------------------------------------------------------------


def plan_batches(
    source_lengths: Integers,
    target_lengths: Integers,
    order: Integers,
    *,
    tokens: int,
    sentences: int | None,
    rng: np.random.Generator,
) -> list[Integers]:
    """Group rows of similar length into batches of at most `tokens` padded positions; the batches are shuffled.

    A batch of B rows has B · max(source length, target length) positions; a row with more than `tokens` is a batch.
    """
    batches: list[Integers] = []
    for start in range(0, len(order), SORT_WINDOW):
        rows = order[start : start + SORT_WINDOW]
        source, target = source_lengths[rows], target_lengths[rows]
        by_length = _length_order(source, target, rng.random(len(rows)))
        boundaries = _batch_boundaries(np.maximum(source, target)[by_length], tokens, sentences)
        batches += np.split(rows[by_length], boundaries)
    return [batches[i] for i in rng.permutation(len(batches))]


def _length_order(source: Integers, target: Integers, ties: Integers | NDArray[np.float64]) -> Integers:
    """Sort rows by their longer side, then by the difference of the sides, which keeps padding small on both.

    Sorting by target, then source, padded 5 % where this pads 3 % (batches of 4,096 tokens of 65,536 rows).
    """
    return np.lexsort((ties, source - target, np.maximum(source, target)))


def _batch_boundaries(lengths: Integers, tokens: int, sentences: int | None) -> list[int]:
    """The indices, in rows sorted by length, at which a new batch begins; 0 is left out."""
    boundaries, start = [], 0
    while start < len(lengths):
        max_rows = max(1, tokens // max(1, int(lengths[start])))  # an upper bound, from the first row alone
        if sentences is not None:
            max_rows = min(max_rows, sentences)
        width = np.maximum.accumulate(lengths[start : start + max_rows])
        rows = int(np.count_nonzero(width * np.arange(1, len(width) + 1) <= tokens))
        start += max(1, rows)
        boundaries.append(start)
    return boundaries[:-1]


# -- the stream --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cursor:
    """The position in the stream: the epoch, and how many of its batches all ranks together have done."""

    epoch: int = 0
    batch: int = 0


class PlannedBatch(NamedTuple):
    """A batch before its ids are read: its epoch, its items, and the cursor after it."""

    epoch: int
    items: Integers  # (B, 2): corpus, row
    next_cursor: Cursor


class BatchStream:
    """An endless stream of training batches from weighted corpora, fixed by the seed and the cursor.

    `tokens` limits the area of a batch: rows × the longer padded side, <s> included. If subwords
    are sampled, the lengths are those of the unsampled encoding, so a batch may become a little
    larger. Ranks take turns in one stream.
    """

    def __init__(
        self,
        corpora: Sequence[tuple[TokenStore, float]],
        codec: Codec,
        *,
        tokens: int,
        sentences: int | None = None,
        seed: int,
        objective: Objective | None = None,
        rank: int = 0,
        ranks: int = 1,
        block: int = BLOCK_ROWS,
    ) -> None:
        self.stores = [store for store, _ in corpora]
        self.weights = [weight for _, weight in corpora]
        if not corpora or not all(len(store) for store in self.stores):
            raise ValueError("there must be corpora, and none of them empty")
        if not all(math.isfinite(weight) and weight > 0 for weight in self.weights):
            raise ValueError(f"the weights of corpora must be positive, not {self.weights}")
        if codec.is_stochastic and not all(store.keeps_text for store in self.stores):
            raise ValueError("to sample subwords, stores must be built with keep_text=True")
        self.codec = codec if codec.is_stochastic else None  # else workers do not need it
        self.modality = codec.modality if codec.modality is not None and codec.modality.has_augmentation else None
        second = None if isinstance(codec.second_source, str) else codec.second_source
        self.second_source = second if second is not None and second.has_augmentation else None
        self.tokens, self.sentences, self.seed = tokens, sentences, seed
        self.objective = None if objective is None or objective.is_identity else objective
        self.rank, self.ranks, self.block = rank, ranks, block

    def batches_from(self, cursor: Cursor) -> Generator[tuple[Batch, Cursor]]:
        """All batches from a cursor on, each with the cursor after it, without end."""
        for planned in self.plan_from(cursor):
            yield self.read_batch(planned).to_batch(), planned.next_cursor

    def count_batches(self, epoch: int) -> int:
        """The number of batches in an epoch, for all ranks together, by planning it."""
        return sum(1 for _ in self._plan_epoch(epoch))

    def plan_from(self, cursor: Cursor) -> Iterator[PlannedBatch]:
        """The batches of this rank from a cursor on, before any ids are read: cheap enough for every worker."""
        stream = self._plan_all_ranks(cursor)
        while True:
            group = list(itertools.islice(stream, self.ranks))
            yield group[self.rank]._replace(next_cursor=group[-1].next_cursor)

    def read_batch(self, planned: PlannedBatch) -> BatchArrays:
        """Read, process and pad the rows of a batch."""
        if self.uses_stored_ids:
            return self._gather_stored(planned.items)
        items: list[tuple[int, int]] = planned.items.tolist()
        rows = [self._make_row(planned.epoch, corpus, row) for corpus, row in items]
        return pad(rows, [int(self.stores[corpus].lines[row]) for corpus, row in items])

    @property
    def uses_stored_ids(self) -> bool:
        """Whether rows are used as they are stored: no sampled subwords, objective or augmentation."""
        return self.codec is None and self.objective is None and self.modality is None and self.second_source is None

    def _gather_stored(self, items: Integers) -> BatchArrays:
        """The padded batch of some stored (corpus, row) items: one gather for each side, no loop over rows.

        73 to 88 million tokens a second, where the loop read 18 to 22.
        """
        corpora, rows = items.T
        count = 3 if self.stores[0].has_second_source else 2
        lengths, lines = np.empty((count, len(items)), np.int64), np.empty(len(items), np.int64)
        parts = []
        for corpus, store in enumerate(self.stores):
            mask = corpora == corpus  # the items of this corpus
            gathers = (store.gather_sources, store.gather_targets, store.gather_second_sources)[:count]
            gathered = [gather(rows[mask]) for gather in gathers]
            for side, (_, store_lengths) in zip(lengths, gathered, strict=True):
                side[mask] = store_lengths
            lines[mask] = store.lines[rows[mask]]
            parts.append((mask, *(ids for ids, _ in gathered)))
        sides = [
            np.full(
                (len(items), int(side.max(initial=0)), *ids.shape[1:]), PAD, ids.dtype if ids.ndim > 1 else np.int64
            )
            for side, ids in zip(lengths, parts[0][1:], strict=True)
        ]
        for mask, *store_sides in parts:
            for padded, side, ids in zip(sides, lengths, store_sides, strict=True):
                padded[(np.arange(padded.shape[1]) < side[:, None]) & mask[:, None]] = ids
        target = np.concatenate([np.full((len(items), 1), BOS), sides[1]], axis=1)
        second = (sides[2], lengths[2]) if count == 3 else (None, None)
        return BatchArrays(sides[0], lengths[0], target, lengths[1] + 1, lines.tolist(), None, *second)

    def _plan_all_ranks(self, cursor: Cursor) -> Iterator[PlannedBatch]:
        """The planned batches of all ranks in turn, from a cursor on, epoch after epoch, without end."""
        done = cursor.batch
        for epoch in itertools.count(cursor.epoch):
            for number, items in enumerate(self._plan_epoch(epoch)):
                if number >= done:
                    yield PlannedBatch(epoch, items, Cursor(epoch, number + 1))
            done = 0

    def _plan_epoch(self, epoch: int) -> Iterator[Integers]:
        """The items (B, 2) of every batch of an epoch: shuffled in blocks, then batched by length."""
        sizes = [len(store) for store in self.stores]
        for number, block in enumerate(epoch_order(sizes, self.weights, self.seed, epoch, block=self.block)):
            source, target = self._lengths(block)
            rng = _make_generator(self.seed, epoch, 2, number)
            order = np.arange(len(block))
            for rows in plan_batches(source, target, order, tokens=self.tokens, sentences=self.sentences, rng=rng):
                yield block[rows]

    def _lengths(self, block: Integers) -> tuple[Integers, Integers]:
        """Upper bounds on the row lengths of a block's items under the objective; targets with <s>."""
        lengths = np.empty((2, len(block)), np.int64)
        for corpus, store in enumerate(self.stores):
            items = np.flatnonzero(block[:, 0] == corpus)
            lengths[:, items] = store.lengths(block[items, 1])
        source, target = (lengths[0], lengths[1]) if self.objective is None else self.objective.max_lengths(*lengths)
        return source, target + 1

    def _make_row(self, epoch: int, corpus: int, row: int) -> IdPair | TrainingRow:
        """One training row; its randomness depends on seed, epoch, corpus and row alone."""
        store = self.stores[corpus]
        rng = np.random.default_rng(np.random.SeedSequence((self.seed, epoch, corpus, row)))
        source, target = (
            self._sample_subwords(store, row, rng) if self.codec else (store.source(row), store.target(row))
        )
        if self.modality is not None:
            source = self.modality.augment(np.asarray(source), rng)
        pair = (source, target) if self.objective is None else self.objective(source, target, rng)
        return _with_second_source(pair, self._make_second_source(store, row, rng))

    def _make_second_source(self, store: TokenStore, row: int, rng: np.random.Generator) -> Ids | None:
        """The second source of a row, augmented or with sampled subwords; None: it has none."""
        second: Ids | None = store.second_source(row)
        if second is None:
            return None
        if self.second_source is not None:
            return self.second_source.augment(np.asarray(second), rng)
        if self.codec is not None and isinstance(self.codec.second_source, str) and self.codec.source.is_stochastic:
            sampled = self.codec.encode_second_source(store.example(row), rng)
            return sampled if len(sampled) <= store.max_source else second
        return second

    def _sample_subwords(self, store: TokenStore, row: int, rng: np.random.Generator) -> IdPair:
        """Source and target of a row with randomly split subwords; as stored where that exceeds limits."""
        assert self.codec is not None
        example = store.example(row)
        source: Ids = [] if not store.is_paired else store.source(row)
        if store.is_paired and self.codec.modality is None:
            source = self.codec.encode_source(example, rng)
        target: Ids = self.codec.encode_target(example.target or "", rng, example.source)
        # A sampled split may exceed the length limits, which bound the model's positions.
        source = source if len(source) <= store.max_source else store.source(row)
        target = target if len(target) <= store.max_target else store.target(row)
        if training_blocker(
            self.objective, source, target, store.max_source, store.max_target
        ):  # e.g. another number of tags than tokens
            return store.source(row), store.target(row)
        return source, target


def validation_batches(store: TokenStore, tokens: int, objective: Objective | None = None) -> Iterator[Batch]:
    """Every row once, short rows first, without sampling and with the same noise each time; `lines` are row numbers."""
    source, target = store.source_lengths.astype(np.int64), store.target_lengths.astype(np.int64)
    if objective is None or objective.is_identity:
        objective = None
    else:
        source, target = objective.max_lengths(source, target)
    target = target + 1
    by_length = _length_order(source, target, np.arange(len(store)))
    boundaries = _batch_boundaries(np.maximum(source, target)[by_length], tokens, None)

    def make_row(row: int) -> IdPair | TrainingRow:
        pair = store.source(row), store.target(row)
        made = pair if objective is None else objective(*pair, np.random.default_rng(row))
        return _with_second_source(made, store.second_source(row))

    for rows in np.split(by_length, boundaries):
        numbers: list[int] = rows.tolist()
        yield collate([make_row(row) for row in numbers], numbers)
