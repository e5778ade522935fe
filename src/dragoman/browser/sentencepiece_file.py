"""Read a sentencepiece model file: its pieces with scores and types, and how it prepares a text.

The file is a protocol buffer; of its fields, only those that encoding and decoding depend on are read. The library has
the same knowledge, but does not give it away: the rules of its normalizer, and which algorithm splits a text.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from dragoman.core.errors import ModelError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # types of pieces
ALGORITHMS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}

_PIECES, _TRAINER, _NORMALIZER, _DENORMALIZER = 1, 2, 3, 5  # fields of the model
_PIECE, _SCORE, _TYPE = 1, 2, 3  # of a piece
_ALGORITHM, _WHITESPACE_AS_SUFFIX, _BYTE_FALLBACK = 3, 24, 35  # of the trainer's options
_CHARSMAP, _ADD_DUMMY_PREFIX, _REMOVE_EXTRA_WHITESPACES, _ESCAPE_WHITESPACES = 2, 3, 4, 5  # of a normalizer

Value = int | bytes


@dataclass(frozen=True)
class SentencePieceFile:
    """What a sentencepiece model file says, as far as texts and pieces depend on it."""

    algorithm: str
    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    types: tuple[int, ...]
    byte_fallback: bool
    charsmap: bytes  # of the normalizer: a trie of texts and what each is replaced by; b"" for none
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool
    whitespace_as_suffix: bool
    has_denormalizer: bool

    @classmethod
    def parse(cls, model: bytes) -> SentencePieceFile:
        """Parse a model file; ModelError if it is damaged."""
        try:
            return cls._parse(model)
        except (ValueError, LookupError, struct.error):  # UnicodeDecodeError is a ValueError
            raise ModelError("a sentencepiece model is damaged; copy the model folder again") from None

    @classmethod
    def _parse(cls, model: bytes) -> SentencePieceFile:
        pieces: list[dict[int, Value]] = []
        parts: dict[int, dict[int, Value]] = {}
        for field, value in _fields(model):
            if field == _PIECES:
                pieces.append(dict(_fields(_bytes(value))))
            elif field in (_TRAINER, _NORMALIZER, _DENORMALIZER):
                parts.setdefault(field, {}).update(_fields(_bytes(value)))
        trainer, normalizer, denormalizer = (parts.get(k, {}) for k in (_TRAINER, _NORMALIZER, _DENORMALIZER))
        return cls(
            algorithm=ALGORITHMS[_int(trainer.get(_ALGORITHM, 1))],
            pieces=tuple(_bytes(piece.get(_PIECE, b"")).decode() for piece in pieces),
            scores=tuple(struct.unpack("<f", _bytes(piece.get(_SCORE, bytes(4))))[0] for piece in pieces),
            types=tuple(_int(piece.get(_TYPE, NORMAL)) for piece in pieces),
            byte_fallback=bool(trainer.get(_BYTE_FALLBACK, 0)),
            charsmap=_bytes(normalizer.get(_CHARSMAP, b"")),
            add_dummy_prefix=bool(normalizer.get(_ADD_DUMMY_PREFIX, 1)),
            remove_extra_whitespaces=bool(normalizer.get(_REMOVE_EXTRA_WHITESPACES, 1)),
            escape_whitespaces=bool(normalizer.get(_ESCAPE_WHITESPACES, 1)),
            whitespace_as_suffix=bool(trainer.get(_WHITESPACE_AS_SUFFIX, 0)),
            has_denormalizer=bool(denormalizer.get(_CHARSMAP, b"")),
        )


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """The fields of a message: numbers as ints, texts, messages and floats as bytes; ValueError if it is damaged."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"no field of a message has the kind {kind}")
        length, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        if at + length > len(data):
            raise ValueError("a message is cut off")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits in each byte, the lowest first, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number is too long")


def _bytes(value: Value) -> bytes:
    if isinstance(value, bytes):
        return value
    raise ValueError("a field has another kind")


def _int(value: Value) -> int:
    if isinstance(value, int):
        return value
    raise ValueError("a field has another kind")
