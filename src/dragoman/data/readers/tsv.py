"""source TAB target, one pair on each line: no header, no quoting; also plain text, one source on each line.

columns = (source, target)                      Hund ⇥ dog
columns = (source, target, -, target_lang)      Hund ⇥ dog ⇥ ignored ⇥ en
columns = (source, second_source, target)              what color is it? ⇥ photo.jpg ⇥ red
columns = (source, target, target)              photo.jpg ⇥ a red square ⇥ a square; where further columns are further
                                                references, a line may have more targets than are named, or fewer
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from dragoman.core.types import Example
from dragoman.data.lines import BadLine, Line, read_lines
from dragoman.data.readers import Reading, examples, readers

SEVERAL = (
    'where pairs have one target here and three there, write JSON lines with lists, {"source": "…", "target": ["…"]}'
)


@readers.register("tsv")
class TSV:
    """Tab-separated columns, one pair on each line."""

    def accepts(self, spec: str) -> bool:
        return True

    def files(self, spec: str) -> list[Path]:
        return [Path(spec)]

    def read(self, spec: str, reading: Reading) -> Iterator[Example]:
        file = display_name(spec, None)
        lines = read_lines(spec, name=file, on_error=reading.on_error, tally=reading.tally)
        return examples(lines, lambda line: pair(line, file, reading), file, reading, keep=False)

    def sources(self, spec: str | IO[bytes], name: str | None, reading: Reading) -> Iterator[Example]:
        file = display_name(spec, name)
        for line in read_lines(spec, name=file, on_error=reading.on_error, tally=reading.tally):
            yield Example(line.text, file=file, line=line.number, source_truncated=line.cut)


def display_name(spec: str | IO[bytes], name: str | None) -> str:
    """What messages call a file or a stream."""
    return name or (spec if isinstance(spec, str) and spec != "-" else "<stdin>")


def pair(line: Line, file: str, reading: Reading) -> Example:
    """The columns of a line by their names. A blank line is a blank pair; a cut one may lack its last columns."""
    fields, names = line.text.split("\t"), reading.columns
    if len(fields) != len(names):
        if line.cut or not line.text.strip():
            fields = [*fields, *[""] * len(names)][: len(names)]
        elif not (reading.extra_targets and len(fields) >= fewest(names)):
            raise _wrong_columns(len(fields) - 1, names)
    if names == ("source", "target") and not reading.extra_targets:  # the common case, for speed
        return Example(fields[0], fields[1], None, None, file, line.number, line.cut)
    by_name = dict(zip(names, fields, strict=False))
    targets = [text for name, text in zip(names, fields, strict=False) if name == "target"]
    several = reading.extra_targets or len(targets) > 1
    return Example(
        by_name.get("source", ""),
        targets[0] if targets else None,
        by_name.get("source_lang") or None,
        by_name.get("target_lang") or None,
        file,
        line.number,
        line.cut,
        references(targets + fields[len(names) :]) if several else (),
        by_name.get("second_source", ""),
    )


def references(targets: list[str]) -> tuple[str, ...]:
    """The accepted targets: the first, and those of the others that are not blank (tables are often padded)."""
    return tuple(text for i, text in enumerate(targets) if i == 0 or text.strip())


def fewest(names: tuple[str, ...]) -> int:
    """How many columns a line has at least where only its first target must be there."""
    count = len(names)
    while count > 1 and names[count - 1] == "target" and "target" in names[: count - 1]:
        count -= 1
    return count


def _wrong_columns(tabs: int, names: tuple[str, ...]) -> BadLine:
    expected = len(names) - 1
    found = "no tab" if tabs == 0 else "1 tab" if tabs == 1 else f"{tabs} tabs"
    problem = f"found {found}, expected {expected} (the columns are {', '.join(names)})"
    if tabs > expected:
        named = ", ".join([*names, *["-"] * min(tabs - expected, 5)])
        what = "'target' for one more target, '-' for one to ignore"
        remedy = f"Name every column with data.columns or --columns, {what}: [{named}]"
    elif tabs + 1 >= fewest(names):
        remedy = f"Name the columns that are there with data.columns or --columns: [{', '.join(names[: tabs + 1])}]"
    else:
        remedy = "Put one tab between the columns (two files side by side are given as source.txt,target.txt)"
    if names.count("target") > 1:
        remedy += f"; {SEVERAL}"
    return BadLine("columns", problem, remedy)
