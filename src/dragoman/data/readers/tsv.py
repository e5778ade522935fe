"""source TAB target, one pair on each line: no quoting; also plain text, one source on each line.

columns = (source, target)                      Hund ⇥ dog
columns = (source, target, -, target_lang)      Hund ⇥ dog ⇥ ignored ⇥ en
columns = (source, source, target)              gehen ⇥ V;PST ⇥ ging: the source is "gehen V;PST"
columns = (source, second_source, target)       what color is it? ⇥ photo.jpg ⇥ red
columns = (source, target, target)              photo.jpg ⇥ a red square ⇥ a square; with extra_targets, a line may have
                                                more targets than columns are named, or fewer
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

from dragoman.core.types import Example
from dragoman.data.columns import ColumnLayout, Columns
from dragoman.data.lines import BadLine, read_lines
from dragoman.data.readers import ReadOptions, Row, TableReader, columns_remedy, readers

MULTI_TARGET_HINT = 'if the number of targets varies, write JSON lines with lists, {"source": "…", "target": ["…"]}'


@readers.register("tsv")
class TSV(TableReader):
    """Tab-separated columns, one pair on each line."""

    has_clean_cells = True
    has_extra_targets = True

    def read_rows(self, spec: str | IO[bytes], name: str | None, options: ReadOptions) -> Iterator[Row]:
        """Every line of a file as cells."""
        for line in read_lines(spec, name=name, on_error=options.on_error, report=options.report):
            yield Row(line.text.split("\t"), line.number, line.is_truncated, line.error)

    def read_sources(self, spec: str | IO[bytes], name: str | None, options: ReadOptions) -> Iterator[Example]:
        """Whole lines, with their tabs."""
        file = name or (spec if isinstance(spec, str) and spec != "-" else "<stdin>")
        for line in read_lines(spec, name=name, on_error=options.on_error, report=options.report):
            yield Example(line.text, file=file, line=line.number, source_truncated=line.is_truncated)

    def width_error(
        self, cells: Sequence[str], columns: Columns, header: Sequence[str] | None, layout: ColumnLayout
    ) -> BadLine:
        """The problem of a line, in tabs."""
        tabs, expected = len(cells) - 1, layout.width - 1
        actual = "no tab" if tabs == 0 else "1 tab" if tabs == 1 else f"{tabs} tabs"
        if columns.names is not None:
            return BadLine("columns", f"found {actual}, expected {expected} as in the header", "Mend the line")
        problem = f"found {actual}, expected {expected} (the columns are {', '.join(columns.roles)})"
        remedy = columns_remedy(len(cells), columns.roles)
        if not remedy:
            remedy = "Put one tab between the columns (two files side by side are given as source.txt,target.txt)"
        if columns.roles.count("target") > 1:
            remedy += f"; {MULTI_TARGET_HINT}"
        return BadLine("columns", problem, remedy)
