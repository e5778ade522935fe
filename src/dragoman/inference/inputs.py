"""What a model reads of an input: ids, or the numbers of a file, as far as it reads.

    "a text", "image.png TAB a question" ─example→ Example ─given→ Given(source, second, cut) ─pieces→ its states, named
                        (source, target)           Example ─row→   Row, as the model would have learned from it

To a model of two sources an input is both, with a tab between them; to a language model it is the beginning of a text.
What is too long is cut and flagged where a result is asked for, and is an error where a pair is scored. Positions
without an end reach any pair; where strangers send it (`bounded`), a pair may be as long as what is read of a source.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dragoman.config import Config, compatibility
from dragoman.core.errors import DataError, UserError
from dragoman.core.types import EOS, Batch, Example
from dragoman.data.objectives import Objective, Row, objectives
from dragoman.modalities.archives import check_places
from dragoman.text.codec import Codec

Source = Any  # list[int], or (S, F) numbers where the source is no text

PATIENCE = 4  # a source may be this many times as long as those in training before it is cut


class Given(NamedTuple):
    """What a model reads of an input."""

    source: Source
    second_source: Source | None  # where it reads two
    source_truncated: bool

    @property
    def row(self) -> Row:
        return Row(self.source, [EOS], second_source=self.second_source)

    @property
    def longer(self) -> Source:
        return (
            self.source
            if self.second_source is None or len(self.source) > len(self.second_source)
            else self.second_source
        )


@dataclass(frozen=True)
class Reading:
    """How a model with its tokenizers and media reads."""

    model: Any  # a Seq2Seq, or what has its surface
    codec: Codec
    config: Config
    bounded: bool = False  # whether a pair that is far longer than those in training is refused

    @cached_property
    def objective(self) -> Objective:
        """What the model learned to predict from what."""
        objective = objectives.build(self.config.training.objective)
        objective.prepare(self.codec)
        return objective

    # -- an input → what is read of it ---------------------------------------------------------------------------------

    def example(self, source: str | Example) -> Example:
        """An input with its second source, where the model reads two and both stand in one line."""
        example = source if isinstance(source, Example) else Example(source)
        both = bool(example.second_source) or example.second_source_content is not None
        if self.codec.second_source is None or both or blank(example):
            return example
        first, _, second = example.source.partition("\t")
        if not second.strip():
            raise DataError(
                "the model reads two sources, and found one; put both on one line, with a tab between them: "
                + self.order,
                example.file or None,
                example.line or None,
            )
        return replace(example, source=first, second_source=second)

    @property
    def order(self) -> str:
        """Which of two sources stands first in one line."""
        first, second = (
            "text" if modality is None or isinstance(modality, str) else modality.kind
            for modality in (self.codec.modality, self.codec.second_source)
        )
        return f"the {first}, then the {'other ' if first == second else ''}{second}"

    def given(self, example: Example) -> Given:
        """What the model reads of an input, as far as it reads."""
        nothing = blank(example)  # which names no file
        source = [] if nothing and self.codec.modality is not None else self.encode(example)
        second = None if nothing or self.codec.second_source is None else self.codec.encode_second_source(example)
        cut = example.source_truncated or len(source) > self.longest
        if second is not None:
            cut = cut or len(second) > self.max_second_source_positions
            second = shortened(second, self.max_second_source_positions)
        return Given(shortened(source, self.longest), second, cut)

    def encode(self, example: Example) -> Source:
        """All that the model would read of a source before it says anything, however long."""
        if self.codec.modality is not None:
            return self.codec.modality.read(example)
        if self.objective.continues_text:
            return self.codec.encode_target(example.source)[:-1]
        ids = self.codec.encode_source(example)
        return ids if self.objective.ends_source else ids[:-1]

    @cached_property
    def longest(self) -> int:
        """The most source positions that are read; what is longer is cut and flagged."""
        return self._positions(self.model, self.model.max_source_positions, self.codec.modality is None)

    @cached_property
    def max_second_source_positions(self) -> int:
        """The same of a second source."""
        return self._positions(
            self.model.second_source, self.model.max_second_source_positions, self.codec.second_source == "text"
        )

    def _positions(self, part: Any, reach: int | None, text: bool) -> int:
        """How much of a source is read where the encoder's own positions reach so far; of sounds, several frames make
        one of these."""
        most = PATIENCE * compatibility.max_source_length(self.config)
        if reach is None or text:
            return most if reach is None else reach
        return bisect_right(range(1, most + 1), reach, key=lambda n: len(part.labels(n)))

    def longest_target(self, states: int) -> int | None:
        """The most target tokens, </s> included, that are taken beside so many states of a source; None: any number."""
        reach: int | None = self.model.longest_target
        if reach is None:
            return PATIENCE * self.config.data.max_target if self.bounded else None
        return reach - (states if self.model.is_decoder_only else 0)

    # -- the states that stand for it ----------------------------------------------------------------------------------

    def pieces(self, given: Given) -> list[str]:
        """What stands at the positions that attention looks at."""
        first = self._labels(given.source, self.model, self.codec.modality is None)
        if given.second_source is None:
            return first
        return [
            *first,
            *self._labels(given.second_source, self.model.second_source, self.codec.second_source == "text"),
        ]

    def _labels(self, source: Source, part: Any, text: bool) -> list[str]:
        if not text:
            labels: list[str] = part.labels(len(source)) if len(source) else []
            return labels
        pieces = self.codec.target_pieces(source) if self.objective.continues_text else self.codec.source_pieces(source)
        return pieces if part.stride == 1 else grouped(pieces, part.stride)

    def states(self, batch: Batch) -> list[int]:
        """How many states, of one source or two, stand for each row of a batch."""

        def states(part: Any, text: bool, n: int) -> int:
            return -(-n // part.stride) if text else len(part.labels(n))

        first = [states(self.model, self.codec.modality is None, n) for n in batch.source_lengths.tolist()]
        if batch.second_source_lengths is None:
            return first
        text = self.codec.second_source == "text"
        seconds = [states(self.model.second_source, text, n) for n in batch.second_source_lengths.tolist()]
        return [n + m for n, m in zip(first, seconds, strict=True)]

    def counted(self, length: int) -> int:
        """What `generation.ratio` counts of a source of so many positions: tokens, or the states made of a medium's."""
        return length if self.codec.modality is None else len(self.model.labels(length))

    # -- a pair --------------------------------------------------------------------------------------------------------

    def row(self, example: Example) -> Row:
        """A pair, or a text, as the model would have learned from it: whole or not at all."""
        if self.model.head is not None and not self.objective.paired:
            raise UserError("a masked language model gives no probability of a whole text; score with another model")
        if self.objective.continues_text:
            text = example.source if example.target is None else example.target
            row = Row([], self.codec.encode_target(text))
        else:
            row = Row(self.encode(example), self.codec.encode_target(example.target or "", source=example.source))
        if self.model.head is not None:
            problem = self.objective.problem(row.source, row.target)
            if problem:
                raise DataError(
                    f"{problem}; see `dragoman list objectives`", example.file or None, example.line or None
                )
            row = self.objective(row.source, row.target, np.random.default_rng(0))
        if self.codec.second_source is not None:
            row = row._replace(second_source=self.codec.encode_second_source(example))
            self._fits(
                "second source",
                row.second_source,
                self.model.max_second_source_positions,
                self.max_second_source_positions,
                example,
            )
        self._fits("source", row.source, self.model.max_source_positions, self.longest, example)
        longest = self.longest_target(self.counted(len(row.source)) if self.model.is_decoder_only else 0)
        self._fits("target", row.target, longest, longest, example)
        return row

    def _fits(self, side: str, read: Source, end: int | None, longest: int | None, example: Example) -> None:
        """Refuse a side of a pair beyond what is read of it, where positions have an end or the pair a bound."""
        if longest is not None and len(read) > longest and (end is not None or self.bounded):
            what = "tokens" if isinstance(read, list) else "positions"
            text = (
                f"the {side} has {len(read):,} {what}, and the model reads at most {longest:,} here; shorten the pair"
            )
            raise DataError(text, example.file or None, example.line or None)


def blank(example: Example) -> bool:
    """Whether there is nothing to read."""
    return not example.source.strip() and example.content is None


def shortened(ids: Source, longest: int) -> Source:
    """The beginning of a source that is too long; a text ends as every text does."""
    if len(ids) > longest and isinstance(ids, list) and ids[-1] == EOS:
        return [*ids[: longest - 1], EOS]
    return ids[:longest]


def grouped(pieces: Sequence[str], count: int) -> list[str]:
    """Pieces joined, so many at a time, as one state stands for them."""
    return ["".join(pieces[i : i + count]) for i in range(0, len(pieces), count)]


def looking_in(codec: Codec, places: Sequence[str]) -> Codec:
    """A codec that looks for the files which sources name in these folders and archives first."""

    def also(modality: Any) -> Any:
        if modality is None or isinstance(modality, str):  # a text's
            return modality
        return replace(modality, files=(*places, *modality.files))

    found = replace(codec, modality=also(codec.modality), second_source=also(codec.second_source))
    if (found.modality, found.second_source) == (codec.modality, codec.second_source):
        raise UserError("the model reads texts, so there are no files to look for; leave --files out")
    check_places(places)
    return found
