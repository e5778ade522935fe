"""A sheet of an XLSX workbook: the first one, or `file.xlsx#Name`.

A formula is its stored value. A cell that is merged downwards counts for all its rows. Blank rows at the end are left
out. Rows are streamed, see data/workbook.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from dragoman.data.cells import cell_text
from dragoman.data.lines import LINE_LIMIT, open_binary
from dragoman.data.readers import ReadOptions, Row, TableReader, readers, split_spec
from dragoman.data.workbook import Workbook, explain_damage

XLSX_SUFFIXES = (".xlsx", ".xlsm")


@readers.register("xlsx")
class XLSX(TableReader):
    """A sheet of a spreadsheet."""

    pads_rows = True

    def accepts(self, spec: str) -> bool:
        return len(split_spec(spec)) == 1 and split_sheet(spec)[0].lower().endswith(XLSX_SUFFIXES)

    def files(self, spec: str) -> list[Path]:
        return [Path(split_sheet(spec)[0])]

    def read_key(self, spec: str) -> str:
        return f"{super().read_key(spec)}#{split_sheet(spec)[1]}"

    def read_rows(self, spec: str | IO[bytes], name: str | None, options: ReadOptions) -> Iterator[Row]:
        """The rows of a sheet, with blank ones between them."""
        label = name or (spec if isinstance(spec, str) else "<stdin>")
        file, sheet = split_sheet(label)
        with ExitStack() as stack:
            stream = stack.enter_context(open_binary(file)) if isinstance(spec, str) else spec
            with explain_damage(file):
                workbook = Workbook(stream, file)
                blank = 0
                for number, values in workbook.rows(sheet):
                    if number in workbook.rows_without_value:
                        workbook.rows_without_value.remove(number)
                        options.report.add("formula", file, number)
                    values = values[: _used_width(values)]
                    if not values:
                        blank += 1
                        continue
                    yield from (Row([""], number - i) for i in range(blank, 0, -1))
                    blank = 0
                    texts = [cell_text(value) for value in values]
                    is_truncated = any(len(text) > LINE_LIMIT for text in texts)
                    if is_truncated:
                        options.report.add("truncated", file, number)
                        texts = [text[:LINE_LIMIT] for text in texts]
                    yield Row(texts, number, is_truncated, "", values)


def split_sheet(spec: str) -> tuple[str, str]:
    """The file of a spec and its sheet, "" for the first one: `words.xlsx#Verbs`."""
    for suffix in XLSX_SUFFIXES:
        at = spec.lower().find(f"{suffix}#")
        if at >= 0 and not Path(spec).exists():
            return spec[: at + len(suffix)], spec[at + len(suffix) + 1 :]
    return spec, ""


def _used_width(values: list[Any]) -> int:
    width = len(values)
    while width and (values[width - 1] is None or values[width - 1] == ""):
        width -= 1
    return width
