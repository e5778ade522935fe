"""A long text → sentences a model can take, and back, without losing a character.

    "Dr. No came. He left.\\n\\nEnd"  →  "Dr. No came." " "   "He left." "\\n\\n"   "End" ""

A sentence ends at a line's end, or at a stop (with the quotes and brackets that close behind it) before white space; a
stop that no other use is made of (。 । ؟) needs no space. "." is not a stop after an abbreviation, a single letter or a
short number, nor before a lower-case letter: two sentences left together do less harm than one torn apart. What is
still longer than the limit is cut at such a doubtful stop, a comma, a space, or anywhere, in this order.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LONGEST = 400  # characters of a piece; what a model cannot read whole even so is split further, see translate.py

_SURE = "。｡！？।॥؟۔።။។៕։"  # stops wherever they stand
_DOUBTFUL = ".!?…‥．"
_CLOSING = "\"'”’»›“)\\]}」』】）〉》｣"
# Possessive: a run of 100,000 dots is walked once.
_STOP = re.compile(rf"[{_DOUBTFUL}{_SURE}]++(?:[{_CLOSING}]|[ \u00a0\u202f][»›])*+(?P<space>\s*+)")
_LINE_END = re.compile(r"\n\s*+")
_COMMA = re.compile(r"[,;:،؛](?=\s)\s*|[，、；：]\s*|\s[-–—]\s")
_SPACE = re.compile(r"\s++")
_SPACES = re.compile(r"\s*+")
_WORD = re.compile(r"[^\s\"'“„«(\[‘’]*\Z")
_WINDOW = 24  # characters looked back at for the word before a stop

# English, German, French, Spanish, Italian, Portuguese, Dutch, Malay; without their dots, in lower case.
_SHORTENED = """
    mr mrs ms dr prof rev hon st jr sr gen col capt lt sgt mt nos vol vols pp fig figs eq eqs sec ch ed eds approx dept
    est inc ltd co corp vs etc al cf ca op cit jan feb apr jun jul aug sep sept oct nov dec mon tue wed thu fri bzw usw
    evtl ggf inkl nr str tel vgl abb bd hrsg sog zzgl mio mrd geb hr hl mme mlle env av boul chap sra srta ud uds núm
    pág págs sig dña ing arch avv dott ecc pag dra exmo exma sto sta enz blz mevr dhr mej drs yg dsb dll dst
"""
_ABBREVIATIONS = frozenset(_SHORTENED.split())


@dataclass(frozen=True)
class Piece:
    """A sentence, or a part of a long one, and the white space behind it."""

    text: str
    space: str


def split(text: str, longest: int = LONGEST) -> list[Piece]:
    """The sentences of a text, none longer than `longest`; put together as they are, they are the text."""
    start = _past_spaces(text, 0)
    pieces = [Piece("", text[:start])] if start else []
    for stop in _ends(text, start):
        while start < stop:
            cut = _cut(text, start, stop, longest)
            kept = text[start:cut].rstrip()
            pieces.append(Piece(kept, text[start + len(kept) : cut]))
            start = cut
    return pieces


def join(pieces: Sequence[Piece], texts: Sequence[str] | None = None) -> str:
    """The pieces as one text again, with other texts (their translations) in place of their own."""
    texts = [piece.text for piece in pieces] if texts is None else texts
    last = len(pieces) - 1
    spaces = [piece.space if i == last else _between(piece, texts[i]) for i, piece in enumerate(pieces)]
    return "".join(text + space for text, space in zip(texts, spaces, strict=True))


def _ends(text: str, start: int) -> Iterator[int]:
    """Where the sentences end, each with the white space behind it."""
    for line_end in [*(match.end() for match in _LINE_END.finditer(text, start)), len(text)]:
        for match in _STOP.finditer(text, start, line_end):
            if match.end() < line_end and _is_end(text, start, match):
                yield match.end()
        yield line_end
        start = line_end


def _is_end(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether a stop inside a line, which begins at `start`, is the end of a sentence."""
    if _is_sure(match):
        return True
    if not match.group("space") or text[match.end()].islower():
        return False
    alone = match.group().startswith(".") and not match.group().startswith("..")
    return not alone or not _shortened(text[max(start, match.start() - _WINDOW) : match.start()])


def _is_sure(match: re.Match[str]) -> bool:
    return any(mark in _SURE for mark in match.group())


def _shortened(before: str) -> bool:
    """Whether the last word is an abbreviation, an initial, or the number of an item or a day, before its dot."""
    found = _WORD.search(before)
    word = found.group().lower() if found else ""
    if word.isdecimal():
        return len(word) <= 2
    inner = "." in word and all(len(part) <= 3 for part in word.split("."))  # e.g, z.b, u.s, ph.d
    return (len(word) == 1 and word.isalpha()) or inner or word in _ABBREVIATIONS


def _cut(text: str, start: int, end: int, longest: int) -> int:
    """Where to end a piece that begins at `start`: at `end`, or before it where that is too far."""
    limit = start + longest
    if limit >= end or _past_spaces(text, limit) >= end:
        return end
    for places, soonest in ((_doubtful_stops, longest // 2), (_commas, longest // 2), (_spaces, 0)):
        late = [place for place in places(text, start, limit) if place - start > soonest]
        if late:
            return _past_spaces(text, late[-1])
    while limit > max(start + 1, start + longest - 16) and _belongs(text[limit]):
        limit -= 1  # an accent stays with its letter
    return _past_spaces(text, limit)


def _doubtful_stops(text: str, start: int, stop: int) -> list[int]:
    return [match.end() for match in _STOP.finditer(text, start, stop) if match.group("space") or _is_sure(match)]


def _commas(text: str, start: int, stop: int) -> list[int]:
    return [match.end() for match in _COMMA.finditer(text, start, stop)]


def _spaces(text: str, start: int, stop: int) -> list[int]:
    return [match.end() for match in _SPACE.finditer(text, start, stop)]


def _past_spaces(text: str, start: int) -> int:
    found = _SPACES.match(text, start)
    return found.end() if found else start


def _belongs(character: str) -> bool:
    """Whether a character is part of the one before it."""
    return unicodedata.combining(character) != 0 or unicodedata.category(character) in ("Mn", "Me", "Mc", "Cf")


def _between(piece: Piece, text: str) -> str:
    """The white space after a text that stands for a piece: Chinese and Japanese have none between sentences."""
    before, now = _unspaced(piece.text), _unspaced(text)
    if before and not now and not piece.space and text:
        return " "
    return "" if now and not before and piece.space == " " else piece.space


def _unspaced(text: str) -> bool:
    """Whether a text ends in a script that writes no spaces."""
    last = text[-1:]
    wide = last != "" and unicodedata.east_asian_width(last) in ("W", "F")
    return wide and not "\uac00" <= last <= "\ud7a3"  # Korean has spaces
