"""Every wrong item as a row of a table, as CSV or TSV.

    line, source, output, reference, edits, error_rate, probability, token_probability, aligned, flags

CSV begins with a byte order mark, without which spreadsheets take it for Latin-1, and a cell that a spreadsheet would
run as a formula begins with an apostrophe. In TSV, tabs and line breaks within a cell are escaped.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from pathlib import Path

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.reports.edits import Column
from dragoman.reports.items import Item
from dragoman.reports.report import EvaluationReport

COLUMNS = (
    "file", "line", "source", "output", "reference", "edits", "error_rate", "probability", "token_probability",
    "aligned", "flags",
)  # fmt: skip
FORMULA = re.compile(r"[=@\t\r]|[+-].*[(|!]", re.DOTALL)  # "-able" and "+ 3" are texts
ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def check_format(path: Path) -> str:
    """Return "csv" or "tsv", by the name of the file; UserError for others."""
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".tsv"):
        raise UserError(f"{path}: a table of errors is CSV or TSV; end its name with .csv or .tsv")
    return suffix[1:]


def write_errors(path: Path, report: EvaluationReport) -> None:
    """Write a row for every wrong item of a report."""
    files.write_output(path, render_errors(report.wrong, check_format(path)).encode())


def render_errors(items: Iterable[Item], format: str) -> str:
    """Render items as CSV (quoted where needed) or TSV, with a header."""
    rows = [item_cells(item) for item in items]
    if format == "tsv":
        return "".join("\t".join(cell.translate(ESCAPES) for cell in row) + "\n" for row in [list(COLUMNS), *rows])
    out = io.StringIO()
    writer = csv.writer(out)  # which ends lines with CR LF, as spreadsheets do
    writer.writerow(COLUMNS)
    writer.writerows([_guard_formula(cell) for cell in row] for row in rows)
    return f"\ufeff{out.getvalue()}"


def item_cells(item: Item) -> list[str]:
    """The cells of one item."""
    return [
        item.file,
        str(item.line or item.index + 1),
        item.source,
        item.output,
        item.reference,
        str(item.edits),
        f"{item.error_rate:.4f}",
        f"{item.probability:.4f}",
        f"{item.token_probability:.4f}",
        " ".join(map(format_column, filter(lambda column: column.is_edit, item.columns))),
        ", ".join(item.flags),
    ]


def format_column(column: Column) -> str:
    """One edit as text: `ʃː>ʃ`, `ʃː>` for a missing unit, `>ʃ` for an added one."""
    return f"{column.reference}>{column.output}"


def _guard_formula(cell: str) -> str:
    return f"'{cell}" if FORMULA.match(cell) else cell
