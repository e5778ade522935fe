"""source TAB target, one pair on each line: no header, no quoting; also plain text, one source on each line.

columns = (source, target)                      Hund ⇥ dog
columns = (source, target, -, target_lang)      Hund ⇥ dog ⇥ ignored ⇥ en
columns = (source, second_source, target)       what color is it? ⇥ photo.jpg ⇥ red
columns = (source, target, target)              photo.jpg ⇥ a red square ⇥ a square; with extra_targets, a line may have
                                                more targets than columns are named, or fewer
"""

from __future__ import annotations

from dragoman.core.types import Example
from dragoman.data.lines import BadLine, Line
from dragoman.data.readers import PairReader, ReadOptions, readers

MULTI_TARGET_HINT = 'if the number of targets varies, write JSON lines with lists, {"source": "…", "target": ["…"]}'


@readers.register("tsv")
class TSV(PairReader):
    """Tab-separated columns, one pair on each line."""

    def parse_pair(self, line: Line, file: str, options: ReadOptions) -> Example:
        # A blank line gives an empty pair; a truncated one may lack its last columns.
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

    def parse_source(self, line: Line, file: str, options: ReadOptions) -> Example:
        return Example(line.text, file=file, line=line.number, source_truncated=line.is_truncated)  # with its tabs


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
