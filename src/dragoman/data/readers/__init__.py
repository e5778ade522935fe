"""Readers of pairs (a PAIRS spec → Examples), one file for each format; the folder is the registry.

    pairs.tsv                source TAB target (any file that no other reader accepts)
    pairs.csv                commas, semicolons or tabs, with quotes
    pairs.xlsx#Sheet2        a sheet of a spreadsheet; without a name the first one
    pairs.parquet            columns with names and types
    pairs.jsonl              one JSON object on each line
    source.txt,target.txt    two aligned files

Text formats may end with `.gz`; "-" is the standard input. A new format is a new file in this folder: a PairReader, or
a TableReader, whose rows of cells become pairs here, registered under its name. BadLine is raised for a line or row
that cannot be used; reading then stops with file and line, or skips and counts it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from dragoman.core.errors import DataError, UserError
from dragoman.core.registry import Registry
from dragoman.core.types import Example
from dragoman.data.column_names import is_header
from dragoman.data.columns import (
    ROLES,
    ColumnLayout,
    Columns,
    ColumnsLike,
    join_cells,
    layout_by_name,
    layout_by_position,
)
from dragoman.data.lines import (
    SEPARATORS,
    BadLine,
    OnError,
    ReadReport,
    reject_line,
    replace_separators,
)

FALLBACK_READER = "tsv"  # the last choice: it accepts any file


@dataclass(frozen=True)
class ReadOptions:
    """How to read pairs: which columns play which role, whether further ones are targets, what to do with bad lines."""

    columns: Columns = field(default_factory=Columns)
    extra_targets: bool = False
    on_error: OnError = "stop"
    report: ReadReport = field(default_factory=ReadReport)
    needs_all_cells: bool = False  # of each row, not only those that play a role


class PairReader:
    """One format of pairs."""

    def accepts(self, spec: str) -> bool:
        """Whether this reader reads a spec, judged by its form alone."""
        return True

    def files(self, spec: str) -> list[Path]:
        """The files that a spec names."""
        return [Path(spec)]

    def read_key(self, spec: str) -> str:
        """What decides how the files of a spec are read, besides the options: part of a cache's key."""
        return type(self).__name__

    def read_pairs(self, spec: str, options: ReadOptions) -> Iterator[Example]:
        """The pairs of a spec; bad lines are left out."""
        raise NotImplementedError

    def read_sources(self, spec: str | IO[bytes], name: str | None, options: ReadOptions) -> Iterator[Example]:
        """The sources of a spec or stream that messages call `name`, exactly one for each line, empty for a bad one."""
        raise NotImplementedError


# -- tables ------------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One row of a table. A skipped one has the reason in `error`."""

    cells: list[str]
    line: int
    is_truncated: bool = False
    error: str = ""
    values: Any = None  # the cells as the file has them (numbers, dates; a JSON object) where these are not the texts


@dataclass
class Table:
    """The rows of a table after its header, what its columns are called if that is known, and which cells to read."""

    reader: TableReader
    file: str
    header: tuple[str, ...] | None
    layout: ColumnLayout
    rows: Iterator[Row]
    options: ReadOptions

    def example(self, row: Row) -> Example | None:
        """The pair in a row; None if it is skipped."""
        if row.error:
            return None
        try:
            return self.reader.parse_row(row, self)
        except BadLine as bad:
            reject_line(bad, self.file, row.line, self.options.on_error, self.options.report)
            return None


class TableReader(PairReader):
    """A format whose lines or rows are cells; subclasses read the rows."""

    has_schema = False  # the first row that is read has the names of the columns, and is no row of the table
    pads_rows = False  # rows may end early: cells at their end are blank
    has_clean_cells = False  # no cell has line breaks or other separators
    has_extra_targets = False  # columns after those named may be further references

    def read_rows(self, spec: str | IO[bytes], name: str | None, options: ReadOptions) -> Iterator[Row]:
        """All rows of a spec or stream that messages call `name`, a header row included, bad ones with their error."""
        raise NotImplementedError

    def open_table(self, spec: str | IO[bytes], name: str | None, options: ReadOptions) -> Table:
        """Read the header, and find the columns of the options."""
        file = name or (spec if isinstance(spec, str) and spec != "-" else "<stdin>")
        rows = self.read_rows(spec, name, options)
        first = next(rows, None)
        names, columns = None, options.columns
        if self.has_schema and first is not None:
            names, layout = tuple(first.cells), self._schema_layout(first, columns, file)
            return Table(self, file, names, layout, rows, options)
        if columns.names is not None:
            while first is not None and not any(cell.strip() for cell in first.cells):
                first = next(rows, None)
            header = first or Row([], 1)
            layout = _locate(columns, header.cells, file, header.line)
            return Table(self, file, tuple(header.cells), layout, rows, options)
        layout = layout_by_position(columns)
        if first is not None and not first.error and is_header(first.cells):
            _check_order(columns, first, file)
            options.report.add("header", file, first.line, ", ".join(first.cells))
            return Table(self, file, tuple(first.cells), layout, rows, options)
        return Table(self, file, None, layout, rows if first is None else chain([first], rows), options)

    def _schema_layout(self, names: Row, columns: Columns, file: str) -> ColumnLayout:
        """The layout by name: of the options or, where all columns have them, of the roles; else by position."""
        if columns.names is not None:
            return _locate(columns, names.cells, file, None)
        roles = [role for role in columns.roles if role != "-"]
        if set(roles) <= set(names.cells) and len(set(roles)) == len(roles):
            return layout_by_name(Columns(tuple(roles), tuple(roles)), names.cells)
        if len(names.cells) != len(columns.roles):
            named = ", ".join(names.cells[:20])
            raise DataError(
                f"found {len(names.cells)} columns ({named}), expected {len(columns.roles)}: {columns}. "
                "Name them with data.columns or --columns, as in source=NAME,target=NAME",
                file,
            )
        return layout_by_position(columns)

    def parse_row(self, row: Row, table: Table) -> Example:
        """The pair in the cells of a row; BadLine if there are too few or too many."""
        cells, layout, options = row.cells, table.layout, table.options
        if len(cells) != layout.width:
            cells = self._fit_width(row, table)
        if not self.has_clean_cells and any(SEPARATORS.search(cell) for cell in cells):
            options.report.add("separators", table.file, row.line)
            cells = [replace_separators(cell) for cell in cells]
        if layout.is_plain and len(cells) == 2 and not options.extra_targets:  # the common case, for speed
            return Example(cells[0], cells[1], None, None, table.file, row.line, row.is_truncated)
        source = join_cells([cells[i] for i in layout.source]) if layout.source else ""
        targets = [cells[i] for i in layout.targets]
        further = cells[layout.width :] if options.extra_targets and self.has_extra_targets else []
        several = (options.extra_targets or len(targets) > 1) and bool(targets)

        def cell(position: int | None) -> str:
            return "" if position is None else cells[position]

        return Example(
            source,
            targets[0] if targets else None,
            cell(layout.source_lang) or None,
            cell(layout.target_lang) or None,
            table.file,
            row.line,
            row.is_truncated,
            drop_blank_references(targets + further) if several else (),
            cell(layout.second_source),
        )

    def _fit_width(self, row: Row, table: Table) -> list[str]:
        """The cells of a row that has more or fewer than the table; BadLine where it may not."""
        cells, layout, options = row.cells, table.layout, table.options
        padded = [*cells, *[""] * (layout.width - len(cells))]
        if row.is_truncated or not any(cell.strip() for cell in cells):
            return padded[: layout.width]
        if len(cells) < layout.width:
            if self.pads_rows or (options.extra_targets and len(cells) >= min_columns(options.columns.roles)):
                return padded
        else:
            is_reference = options.extra_targets and self.has_extra_targets and options.columns.names is None
            is_note = self.pads_rows and options.columns.names is not None  # beside the table
            if is_reference or is_note:
                return cells
        raise self.width_error(cells, options.columns, table.header, layout)

    def width_error(
        self, cells: Sequence[str], columns: Columns, header: Sequence[str] | None, layout: ColumnLayout
    ) -> BadLine:
        """The problem of a row with too few or too many cells."""
        count = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
        if columns.names is not None:
            return BadLine("columns", f"found {count}, expected {layout.width} as in the header", "Mend the row")
        problem = f"found {count}, expected {layout.width} (the columns are {', '.join(columns.roles)})"
        return BadLine("columns", problem, columns_remedy(len(cells), columns.roles))

    def read_pairs(self, spec: str, options: ReadOptions) -> Iterator[Example]:
        """The pairs of a table; bad rows are left out."""
        table = self.open_table(spec, None, options)
        for row in table.rows:
            example = table.example(row)
            if example is not None:
                yield example

    def read_sources(self, spec: str | IO[bytes], name: str | None, options: ReadOptions) -> Iterator[Example]:
        """The sources of a table, one for each row, empty for a bad one."""
        table = self.open_table(spec, name, options)
        for row in table.rows:
            yield table.example(row) or blank_source(row, table)


def blank_source(row: Row, table: Table) -> Example:
    """The empty source of a row that cannot be used."""
    return Example("", file=table.file, line=row.line, source_truncated=row.is_truncated)


def drop_blank_references(targets: Sequence[str]) -> tuple[str, ...]:
    """The targets without blank ones, except the first (tables are often padded)."""
    return tuple(text for i, text in enumerate(targets) if i == 0 or text.strip())


def min_columns(roles: Sequence[str]) -> int:
    """The number of cells a row needs if only its first target is required."""
    count = len(roles)
    while count > 1 and roles[count - 1] == "target" and "target" in roles[: count - 1]:
        count -= 1
    return count


def columns_remedy(found: int, roles: Sequence[str]) -> str:
    """What to do about rows with another number of cells than there are roles."""
    if found > len(roles):
        named = ", ".join([*roles, *["-"] * min(found - len(roles), 5)])
        what = "'target' for one more target, '-' for one to ignore"
        return f"Name every column with data.columns or --columns, {what}: [{named}]"
    if found >= min_columns(roles):
        return f"Name the columns that are there with data.columns or --columns: [{', '.join(roles[:found])}]"
    return ""


def _locate(columns: Columns, header: Sequence[str], file: str, line: int | None) -> ColumnLayout:
    try:
        return layout_by_name(columns, header)
    except UserError as error:
        remedy = "Name the columns with data.columns or --columns"
        if line is not None and not set(columns.names or ()) & {name.strip() for name in header}:
            remedy += "; without a header row, say what each is, in their order, as in --columns target,source"
        raise DataError(f"{error}. {remedy}", file, line) from None


def _check_order(columns: Columns, header: Row, file: str) -> None:
    """Raise DataError if a header names a role where the options have another."""
    named = [cell.strip().lower() for cell in header.cells]
    both = zip(named, columns.roles, strict=False)
    if any(name in ROLES and role != "-" and name != role for name, role in both):
        problem = f"the header names the columns {', '.join(named)}, but they are read as {columns}"
        raise DataError(f"{problem}. Set data.columns or --columns to the order in the file", file, header.line)


# -- any format --------------------------------------------------------------------------------------------------------

readers: Registry[PairReader] = Registry("reader", __name__)


def find_reader(spec: str) -> PairReader:
    """The first reader that accepts a spec; TSV, which accepts any, comes last."""
    every = (readers[name]() for name in sorted(readers.names, key=lambda name: name == FALLBACK_READER))
    return next(reader for reader in every if reader.accepts(spec))


def read_pairs(
    spec: str | Path,
    *,
    columns: ColumnsLike = ("source", "target"),
    extra_targets: bool = False,
    on_error: OnError = "stop",
    report: ReadReport | None = None,
) -> Iterator[Example]:
    """The pairs of a file of any format, in order, each with file and line.

    With `extra_targets`, columns after the named ones are further references. Lines that are skipped are counted.
    """
    report = ReadReport() if report is None else report
    options = ReadOptions(Columns.parse(columns), extra_targets, on_error, report)
    return find_reader(str(spec)).read_pairs(str(spec), options)


def read_sources(
    spec: str | Path, *, on_error: OnError = "stop", report: ReadReport | None = None
) -> Iterator[Example]:
    """The sources to predict from, one Example for each line, in order; a blank or skipped line has an empty source."""
    options = ReadOptions(Columns(("source",)), False, on_error, ReadReport() if report is None else report)
    return find_reader(str(spec)).read_sources(str(spec), None, options)


def spec_files(spec: str | Path) -> list[Path]:
    """The files that a spec names, without the standard input."""
    return [path for path in find_reader(str(spec)).files(str(spec)) if str(path) != "-"]


def split_spec(spec: str) -> list[str]:
    """The comma-separated paths of a spec; an existing file may have a comma in its name."""
    if "," not in spec or Path(spec).exists():
        return [spec]
    return [side.strip() for side in spec.split(",")]
