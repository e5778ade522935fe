"""Everything that turns texts into ids and ids into texts, as plain JSON data for the engine in the browser.

    Codec ─codec_data→ {normalization, source, target, templates, …} ─buildCodec (engine/text_codec.js)→ the same ids

Python and browsers have different versions of Unicode. What depends on the version goes into the data: the code points
that Python does not know, which normalization and case mapping must leave alone, and those that words consist of. (A
browser with an older Unicode than Python's cannot normalize the characters that it does not know.)
"""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dragoman.browser.sentencepiece_file import NORMAL, SentencePieceFile
from dragoman.core.errors import UserError
from dragoman.text.codec import Codec
from dragoman.text.frozen_tokenizer import FrozenTokenizer
from dragoman.text.sentencepiece_model import SentencePieceTokenizer
from dragoman.text.templates import SequenceTemplate
from dragoman.text.tokenizers import Tokenizer
from dragoman.text.tokenizers.characters import Characters
from dragoman.text.tokenizers.words import is_word_character

if TYPE_CHECKING:
    from dragoman.inference.inputs import InputProcessor

KINDS = ("characters", "bytes", "symbols", "words", "bpe", "unigram", "sentencepiece")  # that the engine knows
ALGORITHMS = ("bpe", "unigram")  # of sentencepiece
_WORD_CHARACTER = re.compile(r"\w")


def codec_data(codec: Codec) -> dict[str, Any]:
    """Return the data of a codec; UserError if the engine in the browser cannot do the same."""
    if codec.modality is not None or codec.second_source not in (None, "text"):
        kind = codec.modality.kind if codec.modality is not None else "media"
        raise UserError(f"a model in a browser reads texts only, and a source of this one is {kind}")
    data: dict[str, Any] = {
        "normalization": codec.normalization,
        "source": tokenizer_data(codec.source),
        "target": None if codec.is_joint else tokenizer_data(codec.target),  # null: the source's
        "source_template": _template_data(codec.source_template),
        "target_template": _template_data(codec.target_template),
        "second_source": codec.second_source,
    }
    if codec.normalization != "none" or any(side.get("lowercase") for side in (data["source"], data["target"] or {})):
        data["unassigned"] = unassigned_ranges()
    return data


def input_data(inputs: InputProcessor) -> dict[str, Any]:
    """Return how a model reads its inputs, beside the codec: maximum lengths, and whether </s> ends a source."""
    return {
        "max_source_length": inputs.max_source_length,
        "max_second_source_length": None if inputs.codec.second_source is None else inputs.max_second_source_length,
        "has_source_eos": inputs.objective.has_source_eos,
        "continues_text": inputs.objective.continues_text,
        "stride": inputs.model.stride,  # source tokens for each encoder state
    }


def tokenizer_data(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the data of a tokenizer: its vocabulary, the options that encoding depends on, and its subword model."""
    if tokenizer.kind not in KINDS:
        raise UserError(f"a model with a tokenizer '{tokenizer.kind}' cannot run in a browser: {', '.join(KINDS)} can")
    vocabulary = tokenizer.vocabulary
    data: dict[str, Any] = {
        "kind": tokenizer.kind,
        "extra": vocabulary.extra_symbols,
        "tokens": vocabulary.tokens,
        "added": vocabulary.added,
        "byte_fallback": vocabulary.byte_fallback,
    }
    if isinstance(tokenizer, SentencePieceTokenizer | FrozenTokenizer):
        is_ours = isinstance(tokenizer, SentencePieceTokenizer)
        data["model"] = _subword_data(SentencePieceFile.parse(tokenizer.model), vocabulary.tokens if is_ours else None)
        return data
    if tokenizer.kind == "words":
        data |= {"lowercase": tokenizer.lowercase, "word_characters": word_ranges()}
    elif isinstance(tokenizer, Characters) and tokenizer.features:
        data |= {"features": True, "word_characters": alphanumeric_ranges()}
    return data


def _subword_data(file: SentencePieceFile, tokens: list[str] | None) -> dict[str, Any]:
    """The data of a sentencepiece model; `tokens`: of the vocabulary, if they are the model's last pieces."""
    if file.algorithm not in ALGORITHMS:
        raise UserError(
            f"a sentencepiece model of type '{file.algorithm}' cannot run in a browser: bpe and unigram can"
        )
    if file.has_denormalizer:
        raise UserError("a sentencepiece model that changes texts after decoding cannot run in a browser")
    first = 0 if tokens is None else len(file.pieces) - len(tokens)
    return {
        "algorithm": file.algorithm,
        "pieces": list(file.pieces) if tokens is None else None,  # null: the tokens of the vocabulary
        "scores": [_shortest(score) for score in file.scores[first:]],
        "types": [[i, type] for i, type in enumerate(file.types[first:]) if type != NORMAL],
        "byte_fallback": file.byte_fallback,
        "charsmap": base64.b64encode(file.charsmap).decode(),
        "add_dummy_prefix": file.add_dummy_prefix,
        "remove_extra_whitespaces": file.remove_extra_whitespaces,
        "escape_whitespaces": file.escape_whitespaces,
        "whitespace_as_suffix": file.whitespace_as_suffix,
    }


def _shortest(score: float) -> float:
    """The shortest decimal number that is this one in float32."""
    number = float(str(np.float32(score)))
    return int(number) if number.is_integer() else number


def _template_data(template: SequenceTemplate) -> dict[str, Any]:
    return {"prefix": list(template.prefix), "suffix": list(template.suffix)}


# -- Python's Unicode --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def unassigned_ranges() -> list[int]:
    """Return the code points without a character in Python's Unicode."""
    return _ranges(lambda character: unicodedata.category(character) == "Cn")


@lru_cache(maxsize=1)
def alphanumeric_ranges() -> list[int]:
    r"""Return the code points that \\w matches."""
    return _ranges(lambda character: _WORD_CHARACTER.match(character) is not None)


@lru_cache(maxsize=1)
def word_ranges() -> list[int]:
    """Return the code points that words consist of (text/tokenizers/words.py)."""
    return _ranges(is_word_character)


def _ranges(contains: Callable[[str], bool]) -> list[int]:
    """The ranges of a set of code points: how many are left out before each, and how many it has, in turn."""
    inside = np.fromiter((contains(chr(code)) for code in range(0x110000)), bool, 0x110000)
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
    lengths: list[int] = np.diff(edges, prepend=0).tolist()
    return lengths
