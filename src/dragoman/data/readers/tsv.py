"""source TAB target, one pair on each line: no header, no quoting; also plain text, one source on each line.

columns = (source, target)                      Hund ⇥ dog
columns = (source, target, -, target_lang)      Hund ⇥ dog ⇥ ignored ⇥ en
columns = (source, second_source, target)       what color is it? ⇥ photo.jpg ⇥ red
columns = (source, target, target)              photo.jpg ⇥ a red square ⇥ a square; with extra_targets, a line may have
                                                more targets than columns are named, or fewer
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from dragoman.core.types import Example
from dragoman.data.lines import BadLine, Line, read_lines
from dragoman.data.readers import ReadOptions, parse_examples, readers

MULTI_TARGET_HINT = 'if the number of targets varies, write JSON lines with lists, {"source": "…", "target": ["…"]}'


@readers.register("tsv")
class TSV:
    """Tab-separated columns, one pair on each line."""

    def accepts(self, spec: str) -> bool:
        """True, whatever the spec: any file may be TSV."""
        return True

    def files(self, spec: str) -> list[Path]:
        """The one file that a spec names."""
        return [Path(spec)]

    def read_pairs(self, spec: str, options: ReadOptions) -> Iterator[Example]:
        """The pairs of a file; bad lines are left out."""
        file = display_name(spec, None)
        lines = read_lines(spec, name=file, on_error=options.on_error, report=options.report)
        return parse_examples(lines, lambda line: parse_pair(line, file, options), file, options, keep_bad_lines=False)

    def read_sources(self, spec: str | IO[bytes], name: str | None, options: ReadOptions) -> Iterator[Example]:
        """The sources of a file or stream, one for each line: the whole line."""
        file = display_name(spec, name)
        for line in read_lines(spec, name=file, on_error=options.on_error, report=options.report):
            yield Example(line.text, file=file, line=line.number, source_truncated=line.is_truncated)


def display_name(spec: str | IO[bytes], name: str | None) -> str:
    """The name of a file or stream in messages: `name`, else the path, else "<stdin>"."""
    return name or (spec if isinstance(spec, str) and spec != "-" else "<stdin>")


def parse_pair(line: Line, file: str, options: ReadOptions) -> Example:
    """Parse the columns of a line. A blank line gives an empty pair; a truncated one may lack its last columns."""
    fields, names = line.text.split("\t"), options.columns
    if len(fields) != len(names):
        if line.is_truncated or not line.text.strip():
            fields = [*fields, *[""] * len(names)][: len(names)]
        elif not (options.extra_targets and len(fields) >= min_columns(names)):
            raise _column_count_error(len(fields) - 1, names)
    if names == ("source", "target") and not options.extra_targets:  # the common case, for speed
        return Example(fields[0], fields[1], None, None, file, line.number, line.is_truncated)
    by_name = dict(zip(names, fields, strict=False))
    targets = [text for name, text in zip(names, fields, strict=False) if name == "target"]
    several = options.extra_targets or len(targets) > 1
    return Example(
        by_name.get("source", ""),
        targets[0] if targets else None,
        by_name.get("source_lang") or None,
        by_name.get("target_lang") or None,
        file,
        line.number,
        line.is_truncated,
        drop_blank_references(targets + fields[len(names) :]) if several else (),
        by_name.get("second_source", ""),
    )


def drop_blank_references(targets: list[str]) -> tuple[str, ...]:
    """The targets without blank ones, except the first (tables are often padded)."""
    return tuple(text for i, text in enumerate(targets) if i == 0 or text.strip())


def min_columns(names: tuple[str, ...]) -> int:
    """The number of columns a line needs if only its first target is required."""
    count = len(names)
    while count > 1 and names[count - 1] == "target" and "target" in names[: count - 1]:
        count -= 1
    return count


def _column_count_error(tabs: int, names: tuple[str, ...]) -> BadLine:
    """The BadLine for a line with the wrong number of tabs, with the remedy that fits."""
    expected = len(names) - 1
    actual = "no tab" if tabs == 0 else "1 tab" if tabs == 1 else f"{tabs} tabs"
    problem = f"found {actual}, expected {expected} (the columns are {', '.join(names)})"
    if tabs > expected:
        named = ", ".join([*names, *["-"] * min(tabs - expected, 5)])
        what = "'target' for one more target, '-' for one to ignore"
        remedy = f"Name every column with data.columns or --columns, {what}: [{named}]"
    elif tabs + 1 >= min_columns(names):
        remedy = f"Name the columns that are there with data.columns or --columns: [{', '.join(names[: tabs + 1])}]"
    else:
        remedy = "Put one tab between the columns (two files side by side are given as source.txt,target.txt)"
    if names.count("target") > 1:
        remedy += f"; {MULTI_TARGET_HINT}"
    return BadLine("columns", problem, remedy)
