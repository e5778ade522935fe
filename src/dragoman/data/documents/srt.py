"""SubRip subtitles: cues of a number, a time and some lines of text.

    1                                        the lines of a cue are one sentence to the model, and its translation is
    00:00:01,000 --> 00:00:02,500            broken again into lines of about the same length; lines that begin with
    <i>A cue may have                        dashes are several speakers, and each is a segment
    two lines.</i>

Parsed by hand: SRT has no standard, and packages that read it drop what they do not know. Here every byte beside a
translated line stays as it was.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import IO

from dragoman.core.errors import DataError
from dragoman.data.documents.languages import Languages
from dragoman.data.documents.plain_text import decode_text, split_lines
from dragoman.data.documents.segments import (
    Mark,
    MarkKind,
    Segment,
    Translation,
    is_translatable,
    pair_marks,
    place_marks,
)

_TIME = r"\d{1,3}:\d{1,2}:\d{1,2}(?:[,.]\d{1,6})?"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")
_TAG = re.compile(r"<(?P<close>/?)(?P<name>[A-Za-z][A-Za-z0-9]*)(?:[^<>]*)>|\{\\[^{}]*\}")
_SPEAKER = re.compile(r"\s*[-–—‐]")
_BREAK = re.compile(r"\s+|(?<=[\u3001-\u30ff\u3400-\u9fff\uff01-\uff60])(?=[\u3041-\u30ff\u3400-\u9fff])")


@dataclass
class Subtitles:
    """The lines of a subtitle file, and which of them each segment has."""

    encoding: str
    lines: list[str]
    spans: list[tuple[int, int]]  # (first, end) of the lines of each segment
    segments: list[Segment]
    languages: Languages

    def write(self, translations: Sequence[Translation | None], stream: IO[bytes]) -> None:
        """Write all lines, those of the segments translated."""
        output: list[str] = []
        done = 0
        for (first, end), segment, translation in zip(self.spans, self.segments, translations, strict=True):
            output += self.lines[done:first]
            own = self.lines[first:end]
            is_unchanged = translation is None or not translation.text.strip() or translation.text == segment.text
            output += own if is_unchanged or translation is None else [_cue_text(own, segment, translation)]
            done = end
        output += self.lines[done:]
        stream.write("".join(output).encode(self.encoding))


def parse(data: bytes, file: str, languages: Languages) -> Subtitles:
    """Parse subtitles; DataError if there is no cue."""
    text, encoding = decode_text(data, file)
    lines = split_lines(text)
    starts = [number for number, line in enumerate(lines) if _TIMES.match(line)]
    if not starts and text.strip("\ufeff \r\n\t"):
        raise DataError("there is no line of times such as 00:00:01,000 --> 00:00:02,500. Give an .srt file", file, 1)
    spans: list[tuple[int, int]] = []
    segments: list[Segment] = []
    for start, following in pairwise([*starts, len(lines)]):
        has_number = following < len(lines) and lines[following - 1].strip().isdecimal() and following - 1 > start
        for first, end in _text_blocks(lines, start + 1, following - has_number):
            segment = _segment([line.strip("\r\n") for line in lines[first:end]], first + 1)
            if is_translatable(segment.text):
                spans.append((first, end))
                segments.append(segment)
    return Subtitles(encoding, lines, spans, segments, languages)


def _text_blocks(lines: Sequence[str], first: int, end: int) -> list[tuple[int, int]]:
    """The consecutive lines with text of a cue; each line on its own where all begin with a dash."""
    blocks: list[tuple[int, int]] = []
    for number in range(first, end):
        if not lines[number].strip():
            continue
        if blocks and blocks[-1][1] == number:
            blocks[-1] = blocks[-1][0], number + 1
        else:
            blocks.append((number, number + 1))
    split: list[tuple[int, int]] = []
    for start, stop in blocks:
        are_speakers = all(_SPEAKER.match(_TAG.sub("", line)) for line in lines[start:stop])
        split += [(number, number + 1) for number in range(start, stop)] if are_speakers else [(start, stop)]
    return split


def _segment(lines: Sequence[str], number: int) -> Segment:
    """Join lines to a text without tags."""
    joined, text = " ".join(lines), ""
    marks: list[tuple[Mark, object]] = []
    done = 0
    for match in _TAG.finditer(joined):
        text += joined[done : match.start()]
        name = match["name"]
        kind: MarkKind = "point" if name is None else "close" if match["close"] else "open"
        marks.append((Mark(kind, len(text), match.group()), (name or "").lower()))
        done = match.end()
    return Segment(text + joined[done:], pair_marks(marks), number)


def _cue_text(lines: Sequence[str], segment: Segment, translation: Translation) -> str:
    """The translated lines of a segment, with its tags, ended as the old ones were."""
    end = lines[-1][len(lines[-1].rstrip("\r\n")) :]
    new_line = lines[0][len(lines[0].rstrip("\r\n")) :] or "\n"
    longest = max(len(_TAG.sub("", line).strip()) for line in lines)
    pieces = _line_pieces(translation.text, _line_breaks(translation.text, len(lines), longest))
    parts: list[str] = []
    position, number = 0, 0
    for item in place_marks(segment, translation):
        if not isinstance(item, str):
            parts.append(item.content)
            continue
        stop = position + len(item)
        while position < stop:  # a piece may go on behind a tag
            first, last, is_break = pieces[number]
            if not is_break:
                parts.append(translation.text[position : min(last, stop)])
            elif position == first:
                parts.append(new_line)
            position = min(last, stop)
            number += position == last
    return "".join(parts) + end


def _line_pieces(text: str, breaks: Sequence[tuple[int, int]]) -> list[tuple[int, int, bool]]:
    """Divide a text at its breaks: (start, end, whether it is a break) of all pieces, in order."""
    pieces: list[tuple[int, int, bool]] = []
    done = 0
    for first, last in breaks:
        pieces += [(done, first, False), (first, last, True)]
        done = last
    return [*pieces, (done, len(text), False)]


def _line_breaks(text: str, lines: int, longest: int) -> list[tuple[int, int]]:
    """Choose where to break a text into at most so many lines of about the same length: (start, end) of the spaces."""
    if lines < 2 or len(text) <= longest:
        return []
    candidates = [match.span() for match in _BREAK.finditer(text) if match.start() > 0 and match.end() < len(text)]
    middles = [sum(span) / 2 for span in candidates]
    breaks: list[tuple[int, int]] = []
    used = 0  # of the candidates
    for number in range(1, lines):
        wanted = len(text) * number / lines
        after = bisect_left(middles, wanted, lo=used)
        nearest = min(
            range(max(used, after - 1), min(after + 1, len(middles))),
            key=lambda i: abs(middles[i] - wanted),
            default=None,
        )
        if nearest is not None:
            breaks.append(candidates[nearest])
            used = nearest + 1
    return breaks
