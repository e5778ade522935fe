"""Greedy and beam search by CTranslate2 over token ids: how it must be called so that its searches are ours.

    greedy       of an output beyond its own limit the beginning is taken, which is what greedy search finds
    beam         as ours with `early_stopping: true`: both stop when round(patience · k) hypotheses have finished; both
                 rank the best 2k extensions of a step, and </s> ends a hypothesis only among the first k of these
    length rule  log p / n^α, its length penalty; log p itself is α = 1e-30, since 0 turns another early exit on
    <pad>, <s>   their bias in the converted model is so low that they get no probability, as in our step
    int8         batches have no padding, so a result does not depend on what else is in the batch
    limits       it has one for a batch; a sentence with a result beyond its own limit is left to the caller

A running batch cannot be cancelled. Where that matters, `max_batch_seconds` keeps batches small.

This module does not import torch: a converted model answers without it.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dragoman.core.types import SPECIALS, Hypothesis

BATCH_SIZE, BATCH_TOKENS = 64, 4096  # sentences, and padded source tokens, in a batch
POLL_SECONDS = 0.001  # between two checks whether a batch is done
QUICK_SECONDS = 0.1  # a batch that should take less is waited for without checks, which cost a short one a fifth more
NO_LENGTH_PENALTY = 1e-30
SLOW = 200.0  # tokens per second of a model whose speed is not known yet: its first batches are small


class ConvertedSearch(NamedTuple):
    """A search that CTranslate2 computes as we do."""

    hypotheses: int = 1  # 1 is greedy search
    length_penalty: float = 0.0  # α in log p / n^α
    patience: float = 1.0


@dataclass
class PendingBatch:
    """Rows of the input that CTranslate2 works on."""

    rows: list[int]
    results: Sequence[Any]
    cost: int
    submitted: float


class ConvertedModel:
    """A model in CTranslate2's format: ids → n-best lists of hypotheses without log p of single tokens."""

    def __init__(
        self,
        folder: str,
        precision: str,
        sizes: tuple[int, int],
        positions: int,
        workers: int = 1,
        files: dict[str, bytes] | None = None,
    ) -> None:
        """`sizes`: of the vocabularies. `workers`: batches that are decoded at the same time, by a thread each.

        `files`: the content of the files, by name, where they are in no folder.
        """
        import ctranslate2

        self.translator = ctranslate2.Translator(
            folder, compute_type=precision, inter_threads=workers, intra_threads=1, files=files
        )
        self.source_names, self.target_names = token_names(sizes[0]), token_names(sizes[1])
        self.target_ids = {name: i for i, name in enumerate(self.target_names)}
        self.positions, self.workers = positions, workers
        self.max_batch_seconds: float | None = None
        # Padding moves sums by their last bits. In int8 that may cross a rounding boundary and change a result.
        self.equal_lengths = precision == "int8"
        self.speed = SLOW  # source tokens times hypotheses per second, of the slowest recent batch

    def decode(
        self, sources: Sequence[Sequence[int]], max_lengths: Sequence[int], search: ConvertedSearch
    ) -> list[list[Hypothesis] | None]:
        """The n-best list of every source, in their order; None where CTranslate2 would find another."""
        results: list[list[Hypothesis] | None] = [None] * len(sources)
        k = search.hypotheses

        def submit(rows: list[int]) -> Sequence[Any]:
            handles: Sequence[Any] = self.translator.translate_batch(
                self._source_tokens(sources[row] for row in rows),
                beam_size=k,
                num_hypotheses=k,
                patience=search.patience,
                length_penalty=search.length_penalty or NO_LENGTH_PENALTY,
                max_input_length=0,
                max_decoding_length=max(max_lengths[row] for row in rows) + 1,  # to see whether </s> comes there
                min_decoding_length=0,
                return_scores=True,
                asynchronous=True,
            )
            return handles

        # It takes a source of </s> alone for an empty one, and has no position beyond those written out.
        served = [
            row
            for row, (ids, longest) in enumerate(zip(sources, max_lengths, strict=True))
            if 1 < len(ids) <= self.positions and longest + 1 < self.positions
        ]
        cut: list[tuple[int, list[int]]] = []
        keys = [(len(ids), longest) for ids, longest in zip(sources, max_lengths, strict=True)]
        for batch in self._run(served, keys, k, submit):
            for row, result in zip(batch.rows, batch.results, strict=True):
                nbest = [self._hypothesis(*each, search) for each in zip(result.hypotheses, result.scores, strict=True)]
                if all(len(one.tokens) <= max_lengths[row] for one in nbest):
                    results[row] = nbest
                elif k == 1:
                    cut.append((row, nbest[0].tokens[: max_lengths[row]]))
        scores = self.score([(sources[row], tokens) for row, tokens in cut])
        for (row, tokens), log_probs in zip(cut, scores, strict=True):
            total = sum(log_probs[:-1])
            results[row] = [Hypothesis(tokens, [], total, "length", total)]
        return results

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """log p of each token of the targets, given without </s>, and of a </s> after them."""
        results: list[list[float]] = [[] for _ in pairs]

        def submit(rows: list[int]) -> Sequence[Any]:
            targets = [[self.target_names[i] for i in pairs[row][1]] for row in rows]
            source = self._source_tokens(pairs[row][0] for row in rows)
            handles: Sequence[Any] = self.translator.score_batch(source, targets, max_input_length=0, asynchronous=True)
            return handles

        keys = [(max(map(len, pair)), *map(len, pair)) for pair in pairs]
        for batch in self._run(range(len(pairs)), keys, 1, submit):
            for row, result in zip(batch.rows, batch.results, strict=True):
                results[row] = list(result.log_probs)
        return results

    def _source_tokens(self, sources: Iterable[Sequence[int]]) -> list[list[str]]:
        return [[self.source_names[i] for i in ids] for ids in sources]

    def _hypothesis(self, names: Sequence[str], score: float, search: ConvertedSearch) -> Hypothesis:
        """A result that ended with </s>; one that did not is longer than any limit."""
        tokens = [self.target_ids[name] for name in names]
        total = score * (len(tokens) + 1) ** (search.length_penalty or NO_LENGTH_PENALTY)
        return Hypothesis(tokens, [], total if search.hypotheses == 1 else score, "eos", total)

    def _run(
        self,
        rows: Iterable[int],
        keys: Sequence[tuple[int, ...]],
        k: int,
        submit: Callable[[list[int]], Sequence[Any]],
    ) -> Iterator[PendingBatch]:
        """Submit rows in batches of similar length, the longest first, and yield each batch with its results.

        `keys` begin with the lengths of the rows. Where lengths must be equal, all rows of a batch have one key.
        """
        ordered = deque(sorted(rows, key=lambda row: keys[row], reverse=True))
        pending: deque[PendingBatch] = deque()
        in_flight = self.workers + (self.max_batch_seconds is None)  # one more, so that no worker waits for us
        while ordered or pending:
            while ordered and len(pending) < in_flight:
                length = keys[ordered[0]][0]
                most = BATCH_TOKENS // length
                if self.max_batch_seconds is not None:
                    most = min(most, int(self.max_batch_seconds * self.speed) // (length * k))
                if self.equal_lengths:
                    most = min(most, count_equal(keys[row] for row in ordered))
                batch = [ordered.popleft() for _ in range(min(max(most, 1), BATCH_SIZE, len(ordered)))]
                pending.append(PendingBatch(batch, submit(batch), len(batch) * length * k, time.monotonic()))
            first = pending.popleft()
            if first.cost > QUICK_SECONDS * self.speed:
                while not first.results[-1].done():  # open to signals, unlike `result`
                    time.sleep(POLL_SECONDS)
            results = [handle.result() for handle in first.results]  # raises what went wrong
            seconds = time.monotonic() - first.submitted  # including its time in the queue
            self.speed = min(first.cost / max(seconds, 1e-6), 2 * self.speed)
            yield replace(first, results=results)


def count_equal(keys: Iterable[tuple[int, ...]]) -> int:
    """How many of the keys, from the first on, are the same."""
    return sum(1 for _ in next(itertools.groupby(keys))[1])


def token_names(size: int) -> list[str]:
    """CTranslate2's name of each token id: the special tokens' own names, else the number."""
    return [*SPECIALS, *(str(i) for i in range(len(SPECIALS), size))]
