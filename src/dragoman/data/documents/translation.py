"""A document's segments → sentences for a model, and predictions of sentences → translations of the segments.

    segment ─split_segment→ sentences ─model→ predictions ─join_sentences→ text and attention of the segment

A segment is split at tabs and line breaks and into sentences, as in the server's /translate. Sentences without a letter
stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from dragoman.data.documents.segments import Alignment, Segment, Translation, is_translatable
from dragoman.text.sentence_splitter import MAX_PIECE_CHARS, Piece, join_pieces, split_sentences
from dragoman.text.vocabulary import SPACE_MARKER

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_SPECIAL = re.compile(r"</?s>|<pad>|<(?:to|from):[^>]*>")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")  # in no line, nor in XML
_SPACES = re.compile(rf"[\s{SPACE_MARKER}␣]+")


@dataclass(frozen=True)
class SentenceResult:
    """What a model gives for a sentence: its text and, where there is attention, both sides' tokens and the weights."""

    text: str
    source_tokens: Sequence[str] = ()
    target_tokens: Sequence[str] = ()
    attention: ArrayLike | None = None


def split_segment(segment: Segment) -> list[Piece]:
    """Split a segment into sentences; joined unchanged, they are its text."""
    pieces: list[Piece] = []
    for part in re.findall(r"[^\t]*\t|[^\t]+", segment.text):
        own = split_sentences(part.removesuffix("\t"), MAX_PIECE_CHARS) or [Piece("", "")]
        if part.endswith("\t"):
            own[-1] = Piece(own[-1].text, own[-1].space + "\t")
        pieces += own
    return pieces


def sentences_to_translate(pieces: Sequence[Piece]) -> list[str]:
    """The sentences that a model is asked for: those with a letter."""
    return [piece.text for piece in pieces if is_translatable(piece.text)]


def join_sentences(pieces: Sequence[Piece], results: Sequence[SentenceResult]) -> Translation:
    """Join the results of `sentences_to_translate`, in its order, to the translation of the segment."""
    remaining = iter(results)
    by_piece = [next(remaining) if is_translatable(piece.text) else SentenceResult(piece.text) for piece in pieces]
    texts = [result.text for result in by_piece]
    text = join_pieces(pieces, texts)
    alignments: list[Alignment] = []
    source_starts = [0, *accumulate(len(piece.text) + len(piece.space) for piece in pieces)]
    target_end = 0
    for piece, result, source_start in zip(pieces, by_piece, source_starts, strict=False):
        target_start = text.find(result.text, target_end)  # join_pieces only changes the spaces between them
        target_end = target_start + len(result.text)
        alignment = align_sentence(piece.text, result, source_start, target_start)
        if alignment is not None:
            alignments.append(alignment)
    return Translation(text, alignments)


def align_sentence(source: str, result: SentenceResult, source_start: int, target_start: int) -> Alignment | None:
    """The attention of a sentence's result, with the tokens' places in the segment; None where there is none."""
    import numpy as np

    if result.attention is None or not result.target_tokens:
        return None
    weights = np.nan_to_num(np.asarray(result.attention, dtype=np.float32))
    target_spans = token_spans(result.text, result.target_tokens, target_start)
    source_spans = token_spans(source, result.source_tokens, source_start)
    if weights.ndim != 2 or weights.shape[1] != len(source_spans) or len(weights) < len(target_spans):
        return None  # the columns are no tokens of the source: states of a model that reads several at once
    return Alignment(source_spans, target_spans, weights[: len(target_spans)])


def token_spans(text: str, tokens: Sequence[str], start: int = 0) -> list[tuple[int, int]]:
    """Find the characters of each token in a text; by relative length if normalization changed the text."""
    visible = [i for i, character in enumerate(text) if not character.isspace()]
    lengths = [0 if _SPECIAL.fullmatch(token) else len(_SPACES.sub("", token)) for token in tokens]
    ends = list(accumulate(lengths))
    total = ends[-1] if ends else 0
    if not total or not visible:
        return [(start, start)] * len(tokens)
    scale = len(visible) / total
    spans: list[tuple[int, int]] = []
    for end, length in zip(ends, lengths, strict=True):
        first, last = round((end - length) * scale), round(end * scale)
        if first == last:
            spans.append((start, start))
        else:
            spans.append((start + visible[first], start + visible[last - 1] + 1))
    return spans


def result_of(prediction: Any) -> SentenceResult:
    """The result in a Prediction, or in the JSON object that /v1/predict has of it, without control characters."""
    values = prediction if isinstance(prediction, dict) else vars(prediction)
    text = _CONTROLS.sub(" ", values["text"])
    return SentenceResult(text, values["source_tokens"], values["tokens"], values["attention"])
