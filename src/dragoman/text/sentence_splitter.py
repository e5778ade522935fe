"""Split a long text into sentences that a model can read, and join them again without losing a character.

    "Dr. No came. He left.\\n\\nEnd"  →  "Dr. No came." " "   "He left." "\\n\\n"   "End" ""

A sentence ends at a line break, or at a stop (with the closing quotes and brackets after it) before white space; an
unambiguous stop (。 । ؟) needs no space. "." is not a stop after an abbreviation, a single letter or short number, nor
before a lower-case letter: two joined sentences do less harm than one torn apart. A sentence that is still longer than
the limit is split at such an ambiguous stop, a comma, a space, or anywhere, in this order.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAX_PIECE_CHARS = 400  # libretranslate.py splits a piece further if the model truncates it

_UNAMBIGUOUS = "。｡！？।॥؟۔።။។៕։"  # always stops
_AMBIGUOUS = ".!?…‥．"
_CLOSING = "\"'”’»›“)\\]}」』】）〉》｣"
# Possessive quantifiers: a run of 100,000 dots is scanned once.
_STOP = re.compile(rf"[{_AMBIGUOUS}{_UNAMBIGUOUS}]++(?:[{_CLOSING}]|[ \u00a0\u202f][»›])*+(?P<space>\s*+)")
_LINE_END = re.compile(r"\n\s*+")
_COMMA = re.compile(r"[,;:،؛](?=\s)\s*|[，、；：]\s*|\s[-–—]\s")
_SPACE = re.compile(r"\s++")
_SPACES = re.compile(r"\s*+")
_WORD = re.compile(r"[^\s\"'“„«(\[‘’]*\Z")
_WINDOW = 24  # characters before a stop that are searched for its word

# English, German, French, Spanish, Italian, Portuguese, Dutch, Malay; without their dots, in lower case.
_ABBREVIATION_LIST = """
    mr mrs ms dr prof rev hon st jr sr gen col capt lt sgt mt nos vol vols pp fig figs eq eqs sec ch ed eds approx dept
    est inc ltd co corp vs etc al cf ca op cit jan feb apr jun jul aug sep sept oct nov dec mon tue wed thu fri bzw usw
    evtl ggf inkl nr str tel vgl abb bd hrsg sog zzgl mio mrd geb hr hl mme mlle env av boul chap sra srta ud uds núm
    pág págs sig dña ing arch avv dott ecc pag dra exmo exma sto sta enz blz mevr dhr mej drs yg dsb dll dst
"""
_ABBREVIATIONS = frozenset(_ABBREVIATION_LIST.split())


@dataclass(frozen=True)
class Piece:
    """A sentence, or a part of a long one, and the white space after it."""

    text: str
    space: str


def split_sentences(text: str, max_chars: int = MAX_PIECE_CHARS) -> list[Piece]:
    """Split a text into sentences of at most `max_chars` characters; joined unchanged, they are the text."""
    start = _past_spaces(text, 0)
    pieces = [Piece("", text[:start])] if start else []
    for stop in _ends(text, start):
        while start < stop:
            end = _piece_end(text, start, stop, max_chars)
            sentence = text[start:end].rstrip()
            pieces.append(Piece(sentence, text[start + len(sentence) : end]))
            start = end
    return pieces


def join_pieces(pieces: Sequence[Piece], texts: Sequence[str]) -> str:
    """Join pieces to one text, with `texts` (their translations) in place of their own."""
    last = len(pieces) - 1
    spaces = [piece.space if i == last else _space_after(piece, texts[i]) for i, piece in enumerate(pieces)]
    return "".join(text + space for text, space in zip(texts, spaces, strict=True))


def _ends(text: str, start: int) -> Iterator[int]:
    """Yield where each sentence ends, including the white space after it."""
    for line_end in [*(match.end() for match in _LINE_END.finditer(text, start)), len(text)]:
        for match in _STOP.finditer(text, start, line_end):
            if match.end() < line_end and _is_end(text, start, match):
                yield match.end()
        yield line_end
        start = line_end


def _is_end(text: str, start: int, match: re.Match[str]) -> bool:
    """Return whether the stop `match`, in the line that begins at `start`, ends a sentence."""
    if _is_unambiguous(match):
        return True
    if not match.group("space") or text[match.end()].islower():
        return False
    is_single_dot = match.group().startswith(".") and not match.group().startswith("..")
    return not is_single_dot or not _is_abbreviated(text[max(start, match.start() - _WINDOW) : match.start()])


def _is_unambiguous(match: re.Match[str]) -> bool:
    return any(mark in _UNAMBIGUOUS for mark in match.group())


def _is_abbreviated(before: str) -> bool:
    """Return whether the word before a dot is an abbreviation, an initial, or the number of an item or a day."""
    match = _WORD.search(before)
    word = match.group().lower() if match else ""
    if word.isdecimal():
        return len(word) <= 2
    has_inner_dots = "." in word and all(len(part) <= 3 for part in word.split("."))  # e.g, z.b, u.s, ph.d
    return (len(word) == 1 and word.isalpha()) or has_inner_dots or word in _ABBREVIATIONS


def _piece_end(text: str, start: int, end: int, max_chars: int) -> int:
    """Return where the piece from `start` ends: at `end`, or at the best split point within `max_chars`."""
    limit = start + max_chars
    if limit >= end or _past_spaces(text, limit) >= end:
        return end
    for pattern, min_chars in ((_STOP, max_chars // 2), (_COMMA, max_chars // 2), (_SPACE, 0)):
        matches = pattern.finditer(text, start, limit)
        if pattern is _STOP:
            matches = (match for match in matches if match.group("space") or _is_unambiguous(match))
        candidates = [match.end() for match in matches if match.end() - start > min_chars]
        if candidates:
            return _past_spaces(text, candidates[-1])
    while limit > max(start + 1, start + max_chars - 16) and _is_combining(text[limit]):
        limit -= 1  # an accent stays with its letter
    return _past_spaces(text, limit)


def _past_spaces(text: str, start: int) -> int:
    match = _SPACES.match(text, start)
    return match.end() if match else start


def _is_combining(character: str) -> bool:
    return unicodedata.combining(character) != 0 or unicodedata.category(character) in ("Mn", "Me", "Mc", "Cf")


def _space_after(piece: Piece, text: str) -> str:
    """Return the white space to put after a piece's translation `text`: Chinese and Japanese need none."""
    source_unspaced, target_unspaced = _ends_in_unspaced_script(piece.text), _ends_in_unspaced_script(text)
    if source_unspaced and not target_unspaced and not piece.space and text:
        return " "
    return "" if target_unspaced and not source_unspaced and piece.space == " " else piece.space


def _ends_in_unspaced_script(text: str) -> bool:
    """Return whether the last character, emoji aside, is East Asian wide but not Hangul: Chinese or Japanese."""
    last = next((c for c in reversed(text) if not _is_emoji_or_mark(c)), "")
    is_wide = last != "" and unicodedata.east_asian_width(last) in ("W", "F")
    return is_wide and not unicodedata.name(last, "").startswith("HANGUL")  # Korean has spaces


def _is_emoji_or_mark(character: str) -> bool:
    """Return whether a character is an emoji or another symbol, a part of one, a combining mark or white space."""
    is_skin_tone = "\U0001f3fb" <= character <= "\U0001f3ff"
    is_symbol = is_skin_tone or unicodedata.category(character) == "So"
    return is_symbol or _is_combining(character) or character.isspace()
