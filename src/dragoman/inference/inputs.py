"""What a model reads of an input: token ids, or the numbers of a file, truncated to what it can read.

    "a text", "image.png TAB a question" ─to_example→ Example ─encode_input→ ModelInput ─source_labels→ labels
                        (source, target)              Example ─encode_pair→  Row, as in training

To a model with two sources an input is both, with a tab between them; to a language model it is the beginning of a
text. An input that is too long is truncated and flagged; a pair that is too long is an error. Unbounded positions take
any pair; where `bounded` (a server), a pair may be as long as what is read of a source.
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
from dragoman.data.objectives import Objective, TrainingRow, objectives
from dragoman.modalities.archives import check_search_paths
from dragoman.text.codec import Codec, truncate

Source = Any  # list[int], or (S, F) numbers where the source is no text

LENGTH_FACTOR = 4  # a source may be this many times as long as the longest in training


class ModelInput(NamedTuple):
    """An input as the model reads it: ids or numbers, and whether they were truncated."""

    source: Source
    second_source: Source | None  # of a model with two sources
    source_truncated: bool

    @property
    def row(self) -> TrainingRow:
        """The input as a training row with an empty target."""
        return TrainingRow(self.source, [EOS], second_source=self.second_source)

    @property
    def longer_source(self) -> Source:
        """The longer of the two sources, or the only one."""
        if self.second_source is None or len(self.source) > len(self.second_source):
            return self.source
        return self.second_source


@dataclass(frozen=True)
class InputProcessor:
    """Encodes inputs and pairs for a model, with its tokenizers and modalities."""

    model: Any  # a Seq2Seq, or an ensemble with its interface
    codec: Codec
    config: Config
    bounded: bool = False  # whether pairs far longer than those in training are refused

    @cached_property
    def objective(self) -> Objective:
        """The training objective, with the codec bound to it; it decides what is read and predicted."""
        objective = objectives.build(self.config.training.objective)
        objective.bind_codec(self.codec)
        return objective

    # -- an input → ids or numbers -----------------------------------------------------------------------------------

    def to_example(self, source: str | Example) -> Example:
        """Return an input as an Example; for a model with two sources, a line is divided at its tab."""
        example = source if isinstance(source, Example) else Example(source)
        text: object = example.source  # a caller may give anything
        if not isinstance(text, str):
            found = f"{type(text).__name__} {text!r:.60}"
            raise UserError(f"a source must be a text or an Example, found {found}")
        has_both = bool(example.second_source) or example.second_source_content is not None
        if self.codec.second_source is None or has_both or is_blank(example):
            return example
        first, _, second = example.source.partition("\t")
        if not second.strip():
            text = "the model reads two sources, and found one; put both on one line, with a tab between them: "
            raise _data_error(text + self.source_order, example)
        return replace(example, source=first, second_source=second)

    @property
    def source_order(self) -> str:
        """A phrase that says which of two sources comes first on a line."""
        first, second = (
            "text" if modality is None or isinstance(modality, str) else modality.kind
            for modality in (self.codec.modality, self.codec.second_source)
        )
        return f"the {first}, then the {'other ' if first == second else ''}{second}"

    def encode_input(self, example: Example) -> ModelInput:
        """Encode the sources of an example, truncated to the model's maximum lengths, and note whether they were."""
        nothing = is_blank(example)  # which names no file
        source = [] if nothing and self.codec.modality is not None else self.encode_source(example)
        is_truncated = example.source_truncated or len(source) > self.max_source_length
        second = None
        if self.codec.second_source is not None and not nothing:
            second = self.codec.encode_second_source(example)
            is_truncated = is_truncated or len(second) > self.max_second_source_length
            second = truncate(second, self.max_second_source_length)
        return ModelInput(truncate(source, self.max_source_length), second, is_truncated)

    def encode_source(self, example: Example) -> Source:
        """Encode the first source, however long, with </s> only if the objective has it."""
        if self.codec.modality is not None:
            return self.codec.modality.read(example)
        ids = self._source_ids(example)
        return ids if self.objective.has_source_eos and not self.objective.continues_text else ids[:-1]

    def _source_ids(self, example: Example) -> Source:
        """Return the ids of a text with </s>: the example's own if it has them, else tokenized."""
        if example.source_ids is not None:
            return list(example.source_ids)
        if self.objective.continues_text:
            return [*self.codec.encode_phrase(example.source), EOS]
        return self.codec.encode_source(example)

    @cached_property
    def max_source_length(self) -> int:
        """The most source positions that are read; longer sources are truncated."""
        return self._max_length(self.model, self.model.max_source_positions, self.codec.modality is None)

    @cached_property
    def max_second_source_length(self) -> int:
        """The most positions that are read of a second source."""
        model = self.model
        is_text = self.codec.second_source == "text"
        return self._max_length(model.second_source, model.max_second_source_positions, is_text)

    def _max_length(self, part: Any, reach: int | None, text: bool) -> int:
        """Return how many positions of a source are read, where the encoder `part` has `reach` states."""
        most = LENGTH_FACTOR * compatibility.max_source_length(self.config)
        if reach is None or text:
            return most if reach is None else reach
        return bisect_right(range(1, most + 1), reach, key=lambda n: len(part.position_labels(n)))

    def max_target_length(self, states: int) -> int | None:
        """Return the most target tokens, </s> included, for a source of so many states; None: unlimited."""
        reach: int | None = self.model.max_target_positions
        if reach is None:
            return LENGTH_FACTOR * self.config.data.max_target if self.bounded else None
        return reach - (states if self.model.is_decoder_only else 0)

    # -- its states ---------------------------------------------------------------------------------------------------

    def source_labels(self, model_input: ModelInput) -> list[str]:
        """Return a label for each encoder state of both sources, as attention maps show them."""
        first = self._labels(model_input.source, self.model, self.codec.modality is None)
        second = model_input.second_source
        if second is None:
            return first
        return first + self._labels(second, self.model.second_source, self.codec.second_source == "text")

    def _labels(self, source: Source, part: Any, text: bool) -> list[str]:
        if not text:
            labels: list[str] = part.position_labels(len(source)) if len(source) else []
            return labels
        pieces = self.codec.target.pieces(source) if self.objective.continues_text else self.codec.source.pieces(source)
        return pieces if part.stride == 1 else join_pieces(pieces, part.stride)

    def count_states(self, batch: Batch) -> list[int]:
        """Return the number of encoder states of each row of a batch, both sources together."""

        def count(part: Any, text: bool, n: int) -> int:
            return -(-n // part.stride) if text else len(part.position_labels(n))

        first = [count(self.model, self.codec.modality is None, n) for n in batch.source_lengths.tolist()]
        if batch.second_source_lengths is None:
            return first
        text = self.codec.second_source == "text"
        seconds = [count(self.model.second_source, text, n) for n in batch.second_source_lengths.tolist()]
        return [n + m for n, m in zip(first, seconds, strict=True)]

    def count_length_units(self, length: int) -> int:
        """Return what length ratios count of a source of `length` positions: tokens, or encoder states of media."""
        return length if self.codec.modality is None else len(self.model.position_labels(length))

    # -- a pair --------------------------------------------------------------------------------------------------------

    def encode_pair(self, example: Example) -> TrainingRow:
        """Encode a pair, or a language model's text, as in training; one that is too long raises DataError."""
        if self.model.head is not None and not self.objective.is_paired:
            raise UserError("a masked language model gives no probability of a whole text; score with another model")
        if self.objective.continues_text:
            text = self._source_ids(example) if example.target is None else self.codec.encode_target(example)
            row = TrainingRow([], text)
        else:
            row = TrainingRow(self.encode_source(example), self.codec.encode_target(example))
        if self.model.head is not None:
            if problem := self.objective.blocker(row.source, row.target):
                raise _data_error(f"{problem}; see `dragoman list objectives`", example)
            row = self.objective(row.source, row.target, np.random.default_rng(0))
        if self.codec.second_source is not None:
            row = row._replace(second_source=self.codec.encode_second_source(example))
            limit = self._pair_limit(self.model.max_second_source_positions, self.max_second_source_length)
            _check_length("second source", row.second_source, limit, example)
        limit = self._pair_limit(self.model.max_source_positions, self.max_source_length)
        _check_length("source", row.source, limit, example)
        states = self.count_length_units(len(row.source)) if self.model.is_decoder_only else 0
        _check_length("target", row.target, self.max_target_length(states), example)
        return row

    def _pair_limit(self, positions: int | None, longest: int) -> int | None:
        """What is read of a source is the limit in a pair only if the encoder's positions are limited, or `bounded`."""
        return None if positions is None and not self.bounded else longest


def _check_length(side: str, read: Source, longest: int | None, example: Example) -> None:
    if longest is not None and len(read) > longest:
        what = "tokens" if isinstance(read, list) else "positions"
        text = f"the {side} has {len(read):,} {what}, and the model reads at most {longest:,} here; shorten the pair"
        raise _data_error(text, example)


def _data_error(message: str, example: Example) -> DataError:
    return DataError(message, example.file or None, example.line or None)


def is_blank(example: Example) -> bool:
    """Whether an example's first source is blank and has no file content."""
    return not example.source.strip() and example.content is None


def join_pieces(pieces: Sequence[str], count: int) -> list[str]:
    """Join every `count` pieces, which share one encoder state."""
    return ["".join(pieces[i : i + count]) for i in range(0, len(pieces), count)]


def with_media_roots(codec: Codec, roots: Sequence[str]) -> Codec:
    """Return a codec that searches these folders and archives first for media files; UserError for texts."""

    def with_roots(modality: Any) -> Any:
        if modality is None or isinstance(modality, str):  # a text's
            return modality
        return replace(modality, search_paths=(*roots, *modality.search_paths))

    changed = replace(codec, modality=with_roots(codec.modality), second_source=with_roots(codec.second_source))
    if (changed.modality, changed.second_source) == (codec.modality, codec.second_source):
        raise UserError("the model reads texts, so there are no files to look for; leave --files out")
    check_search_paths(roots)
    return changed
