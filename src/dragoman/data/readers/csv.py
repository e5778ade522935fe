"""Comma-separated columns; semicolons and tabs too, whichever separates the first lines.

    word,ipa,gloss
    Hund,hʊnt,"dog, hound"
    gehen,ˈɡeːən,"to go,
    to ""walk"" (two lines of one field)"

Quotes belong to a field that begins with one; a quote inside is doubled. A first line `sep=;` names the separator. A
row is numbered by the line on which it begins.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice
from typing import IO

from dragoman.data.lines import LINE_LIMIT, BadLine, Line, read_lines, reject_line
from dragoman.data.readers import ReadOptions, Row, TableReader, readers, split_spec

DELIMITERS = ",;\t"
CSV_SUFFIXES = (".csv", ".csv.gz")
SNIFFED_LINES = 50
MAX_ROW_LINES = 100  # after a quote that is not closed within so many, the next line is read as a row of its own
MAX_COLUMNS = 10_000
QUOTE_REMEDY = 'Double the quotes inside a field, as in "say ""hello"""'
_QUOTED = re.compile(r'"(?:[^"]++|"")*+"')


@readers.register("csv")
class CSV(TableReader):
    """Columns separated by commas, semicolons or tabs, with quotes."""

    def accepts(self, spec: str) -> bool:
        return len(split_spec(spec)) == 1 and spec.lower().endswith(CSV_SUFFIXES)

    def read_rows(self, spec: str | IO[bytes], name: str | None, options: ReadOptions) -> Iterator[Row]:
        """Every row of a file as cells; a quoted field may go on in the next lines."""
        file = name or (spec if isinstance(spec, str) and spec != "-" else "<stdin>")
        lines = read_lines(spec, name=name, on_error=options.on_error, report=options.report, has_crlf=True)
        ahead = deque(islice(lines, SNIFFED_LINES))  # lines that are read, but not yet part of a row
        delimiter = sniff_delimiter(line.text for line in ahead)
        if ahead and is_delimiter_line(ahead[0].text):
            ahead.popleft()
        while (line := ahead.popleft() if ahead else next(lines, None)) is not None:
            if line.error or line.is_truncated:
                yield Row([""], line.number, line.is_truncated, line.error)
                continue
            try:
                yield Row(_parse_row(line, ahead, lines, delimiter), line.number)
            except BadLine as bad:
                reject_line(bad, file, line.number, options.on_error, options.report)
                yield Row([""], line.number, False, bad.problem)


def is_delimiter_line(text: str) -> bool:
    """Whether a first line is `sep=;`, which spreadsheet programs write and read."""
    return len(text) == 5 and text.startswith("sep=") and text[4] in DELIMITERS


def sniff_delimiter(texts: Iterator[str]) -> str:
    """The separator of the first lines: the one that most lines have equally often; a comma if none has any."""
    lines = list(texts)
    if lines and is_delimiter_line(lines[0]):
        return lines[0][4]
    counts: dict[str, Counter[int]] = {delimiter: Counter() for delimiter in DELIMITERS}
    for row in _QUOTED.sub("", "\n".join(lines)).split("\n"):
        for delimiter in DELIMITERS:
            counts[delimiter][row.count(delimiter)] += 1

    def evidence(delimiter: str) -> tuple[int, int]:
        """How many lines have the usual number of separators, if that is not 0; then that number."""
        usual = [(rows, count) for count, rows in counts[delimiter].items() if count]
        return max(usual, default=(0, 0))

    return max(DELIMITERS, key=evidence)


def _parse_row(first: Line, ahead: deque[Line], lines: Iterator[Line], delimiter: str) -> list[str]:
    """The cells of the row that begins on a line; further lines are taken only if the row can be parsed."""
    text = first.text
    if '"' not in text:
        cells = text.split(delimiter)
    else:
        taken: list[Line] = []
        try:
            cells = _split_quoted(text, delimiter, first, ahead, lines, taken)
        except BadLine:
            ahead.extendleft(reversed(taken))  # they are rows of their own
            raise
    if len(cells) > MAX_COLUMNS:
        raise BadLine("columns", f"found {len(cells):,} columns, at most {MAX_COLUMNS:,} are read", "Mend the row")
    return cells


def _split_quoted(
    text: str, delimiter: str, first: Line, ahead: deque[Line], lines: Iterator[Line], taken: list[Line]
) -> list[str]:
    """Split a line with quotes; `taken` gets the lines after it that the row goes on in."""
    cells, at, number = [], 0, first.number
    while True:
        if not text.startswith('"', at):
            end = text.find(delimiter, at)
            cells.append(text[at:] if end < 0 else text[at:end])
            if end < 0:
                return cells
            at = end + 1
            continue
        opened, parts, size = f"line {number}, column {at + 1}", [], 0
        at += 1
        while (end := _find_closing_quote(text, at)) < 0:
            parts.append(text[at:])
            size += len(text)
            line = ahead.popleft() if ahead else next(lines, None)
            if line is not None:
                taken.append(line)
            if line is None or line.error or size > LINE_LIMIT or len(taken) > MAX_ROW_LINES:
                raise BadLine("quote", f"the quote opened in {opened} is never closed", QUOTE_REMEDY)
            text, at, number = line.text, 0, line.number
        cells.append("\n".join([*parts, text[at:end]]).replace('""', '"'))
        at = end + 1
        if at == len(text):
            return cells
        if text[at] != delimiter:
            where = f"line {number}, column {at + 1}"
            raise BadLine("quote", f"found {text[at]!r} after a closing quote in {where}", QUOTE_REMEDY)
        at += 1


def _find_closing_quote(text: str, at: int) -> int:
    """The position of the first quote that is not doubled; -1 if there is none."""
    end = text.find('"', at)
    while end >= 0 and text.startswith('"', end + 1):
        end = text.find('"', end + 2)
    return end
