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
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.core.types import BOS, PAD, Batch
from dragoman.data.objectives import Ids, Integers, Objective, Pairs, TrainingRow, training_blocker
from dragoman.data.store.store import Array, TokenStore
from dragoman.text.codec import Codec

# Rows planned and sorted at once: 100 MB while planning, and 3 % of padding at 25,000 tokens a batch (2^16: 19 %).
BLOCK_ROWS = 1 << 20
SPANS_PER_BLOCK = 256  # spans in a block: enough to mix corpora well, few enough to read whole pages


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

        arrays = {name: value for name, value in self._asdict().items() if isinstance(value, np.ndarray)}
        tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return Batch(lines=self.lines, **tensors)


def pad(rows: Sequence[TrainingRow], lines: Sequence[int]) -> BatchArrays:
    """Pad rows with <pad> to one batch of arrays, labels and second sources included; targets get <s> in front."""
    source, source_lengths = _pad_rows([row.source for row in rows])
    ids, lengths = _pad_rows([row.target for row in rows])
    target = np.concatenate([np.full((len(rows), 1), BOS), ids], axis=1)
    token_labels = None
    if any(row.token_labels for row in rows):
        token_labels = np.full_like(source, PAD)
        for i, row in enumerate(rows):
            row_labels = row.token_labels or []
            token_labels[i, : len(row_labels)] = row_labels
    seconds = [row.second_source for row in rows if row.second_source is not None]
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


def collate(rows: Sequence[tuple[Ids, Ids] | TrainingRow], lines: Sequence[int]) -> Batch:
    """Pad rows, or pairs of source and target, to one batch of tensors; `lines` are their line numbers."""
    return pad([TrainingRow(*row) for row in rows], lines).to_batch()


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
    corpus, start, stop, count = span
    if count == stop - start:
        rows = np.arange(start, stop)
    else:
        rows = start + rng.choice(stop - start, count, replace=False)
    return np.stack([np.full_like(rows, corpus), rows], axis=1)


# -- from lengths to batches -------------------------------------------------------------------------------------------


def plan_batches(
    source: Integers, target: Integers, *, tokens: int, sentences: int | None, rng: np.random.Generator
) -> list[Integers]:
    """Group rows of similar lengths into batches of at most `tokens` positions (B · the longer side); shuffle them."""
    batches = _split_by_length(source, target, rng.random(len(source)), tokens, sentences)
    return [batches[i] for i in rng.permutation(len(batches))]


def _split_by_length(
    source: Integers, target: Integers, ties: Integers | NDArray[np.float64], tokens: int, sentences: int | None
) -> list[Integers]:
    """Sort rows by their longer side, then by the difference of the sides, and split them into batches."""
    longer = np.maximum(source, target)
    # Sorting by target, then source, padded 5 % where this pads 3 % (batches of 4,096 tokens of 65,536 rows).
    by_length = np.lexsort((ties, source - target, longer))
    return np.split(by_length, _batch_boundaries(longer[by_length], tokens, sentences))


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

    If subwords are sampled, batches are planned by the lengths of the unsampled encoding. Ranks take turns.
    """

    def __init__(
        self,
        corpora: Sequence[tuple[TokenStore, float]],
        codec: Codec,
        *,
        tokens: int,
        sentences: int | None = None,
        seed: int,
        objective: Objective = Pairs(),
        rank: int = 0,
        ranks: int = 1,
        block: int = BLOCK_ROWS,
    ) -> None:
        self.stores = [store for store, _ in corpora]
        self.weights = [weight for _, weight in corpora]
        self.codec = codec if codec.is_stochastic else None  # else workers do not need it
        self.modality = codec.modality if codec.modality is not None and codec.modality.has_augmentation else None
        second = None if isinstance(codec.second_source, str) else codec.second_source
        self.second_source = second if second is not None and second.has_augmentation else None
        self.tokens, self.sentences, self.seed = tokens, sentences, seed
        self.objective, self.rank, self.ranks, self.block = objective, rank, ranks, block

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
        return (
            self.objective.is_identity and self.codec is None and self.modality is None and self.second_source is None
        )

    def _gather_stored(self, items: Integers) -> BatchArrays:
        """The padded batch of some stored (corpus, row) items: one gather for each side, no loop over rows."""
        corpora, rows = items.T  # 73 to 88 million tokens a second, where the loop read 18 to 22
        count = 2 if self.stores[0].second_sources is None else 3
        lengths, lines = np.empty((count, len(items)), np.int64), np.empty(len(items), np.int64)
        parts = []
        for corpus, store in enumerate(self.stores):
            mask = corpora == corpus  # the items of this corpus
            stored = (store.sources, store.targets, store.second_sources)
            gathered = [side.gather(rows[mask]) for side in stored if side is not None]
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
        done = cursor.batch
        for epoch in itertools.count(cursor.epoch):
            for number, items in enumerate(self._plan_epoch(epoch)):
                if number >= done:
                    yield PlannedBatch(epoch, items, Cursor(epoch, number + 1))
            done = 0

    def _plan_epoch(self, epoch: int) -> Iterator[Integers]:
        sizes = [len(store) for store in self.stores]
        for number, block in enumerate(epoch_order(sizes, self.weights, self.seed, epoch, block=self.block)):
            source, target = self._lengths(block)
            rng = _make_generator(self.seed, epoch, 2, number)
            for rows in plan_batches(source, target, tokens=self.tokens, sentences=self.sentences, rng=rng):
                yield block[rows]

    def _lengths(self, block: Integers) -> tuple[Integers, Integers]:
        """Upper bounds on the row lengths of a block's items under the objective; targets with <s>."""
        lengths = np.empty((2, len(block)), np.int64)
        for corpus, store in enumerate(self.stores):
            items = np.flatnonzero(block[:, 0] == corpus)
            lengths[:, items] = store.lengths(block[items, 1])
        source, target = self.objective.max_lengths(*lengths)
        return source, target + 1

    def _make_row(self, epoch: int, corpus: int, row: int) -> TrainingRow:
        """One training row; its randomness depends on seed, epoch, corpus and row alone."""
        store = self.stores[corpus]
        rng = np.random.default_rng(np.random.SeedSequence((self.seed, epoch, corpus, row)))
        source, target = self._sample_subwords(store, row, rng) if self.codec else _stored_pair(store, row)
        if self.modality is not None:
            source = self.modality.augment(np.asarray(source), rng)
        made = self.objective(source, target, rng)
        return made._replace(second_source=self._make_second_source(store, row, rng))

    def _make_second_source(self, store: TokenStore, row: int, rng: np.random.Generator) -> Ids | None:
        if store.second_sources is None:
            return None
        second = store.second_sources[row]
        if self.second_source is not None:
            return self.second_source.augment(np.asarray(second), rng)
        if self.codec is not None and isinstance(self.codec.second_source, str) and self.codec.source.is_stochastic:
            sampled = self.codec.encode_second_source(store.example(row), rng)
            return sampled if len(sampled) <= store.max_source else second
        return second

    def _sample_subwords(self, store: TokenStore, row: int, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Source and target of a row with randomly split subwords; as stored where that exceeds limits."""
        assert self.codec is not None
        example, stored = store.example(row), _stored_pair(store, row)
        source: Ids = stored[0] if store.is_paired else []
        if store.is_paired and self.codec.modality is None:
            source = self.codec.encode_source(example, rng)
        target: Ids = self.codec.encode_target(example, rng)
        # A sampled split may exceed the length limits, which bound the model's positions.
        source = source if len(source) <= store.max_source else stored[0]
        target = target if len(target) <= store.max_target else stored[1]
        blocker = training_blocker(self.objective, source, target, store.max_source, store.max_target)
        return stored if blocker else (source, target)  # e.g. another number of tags than tokens


def _stored_pair(store: TokenStore, row: int) -> tuple[Ids, Ids]:
    return store.sources[row], store.targets[row]


def validation_batches(
    store: TokenStore, tokens: int, objective: Objective = Pairs(), rank: int = 0, ranks: int = 1
) -> Iterator[Batch]:
    """Every row once, short rows first, without sampling and with the same noise each time; `lines` are row numbers.

    The batches do not depend on the number of ranks, which take turns.
    """
    source, target = objective.max_lengths(*store.lengths(np.arange(len(store))))

    def make_row(row: int) -> TrainingRow:
        pair = _stored_pair(store, row)
        made = TrainingRow(*pair) if objective.is_identity else objective(*pair, np.random.default_rng(row))
        return made._replace(second_source=None if store.second_sources is None else store.second_sources[row])

    for rows in _split_by_length(source, target + 1, np.arange(len(store)), tokens, None)[rank::ranks]:
        numbers: list[int] = rows.tolist()
        yield collate([make_row(row) for row in numbers], numbers)
