"""The table of errors reads back as it was written."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reports.made_up import made_assessment, made_pipeline

from dragoman.core.errors import UserError
from dragoman.reports.edits import align
from dragoman.reports.errors_table import COLUMNS, check_format, render_errors, write_errors
from dragoman.reports.items import Item
from dragoman.reports.report import build_report

texts = st.text(alphabet="ab ,\"'\t\n\r;é\\-", max_size=8).filter(lambda text: not text.startswith(("\t", "\r")))


def item_of(source: str, output: str, reference: str) -> Item:
    columns = tuple(align(list(output), list(reference)))
    return Item(0, "test.tsv", 3, source, output, reference, columns, False, 0.25, 0.5, ("copied", "in training"))


def read_csv(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline="")))


@given(texts, texts, texts)
def test_csv_reads_back(source: str, output: str, reference: str) -> None:
    head, row = read_csv(render_errors([item_of(source, output, reference)], "csv"))
    assert tuple(head) == COLUMNS
    assert row[:5] == ["test.tsv", "3", source, output, reference]


@given(texts, texts, texts)
def test_tsv_has_a_line_for_each_item_and_a_cell_for_each_column(source: str, output: str, reference: str) -> None:
    head, row, rest = render_errors([item_of(source, output, reference)], "tsv").split("\n")
    cells = row.split("\t")
    assert (tuple(head.split("\t")), rest, len(cells)) == (COLUMNS, "", len(COLUMNS))
    assert cells[2].encode().decode("unicode_escape").encode("latin-1").decode() == source or "é" in source


def test_a_row_worked_out_by_hand() -> None:
    (_, row) = read_csv(render_errors([item_of("x", "abd", "abcc")], "csv"))
    assert row[5:] == ["2", "0.5000", "0.2500", "0.5000", row[9], "copied, in training"]
    assert sorted(row[9].split()) in (["c>", "c>d"], ["c>d", "c>"])


@pytest.mark.parametrize("formula", ["=1+1", "@SUM(A1)", "+1|cmd", '-2+HYPERLINK("x")'])
def test_a_cell_that_a_spreadsheet_would_run_is_text(formula: str) -> None:
    (_, row) = read_csv(render_errors([item_of(formula, "a", "b")], "csv"))
    assert row[2] == f"'{formula}"


@pytest.mark.parametrize("text", ["-able", "- 3", "+49", "a=b"])
def test_affixes_and_numbers_stay_as_they_are(text: str) -> None:
    (_, row) = read_csv(render_errors([item_of(text, "a", "b")], "csv"))
    assert row[2] == text


def test_every_wrong_item_is_written_and_no_other(tmp_path: Path) -> None:
    rows = [("ab", "A B", "A B", 0.9), ("cd", "C D", "C E", 0.8), ("ef", "E F", "", 0.3)]
    report = build_report(made_pipeline(), made_assessment(rows))
    write_errors(tmp_path / "e.csv", report)
    _, *written = read_csv((tmp_path / "e.csv").read_text(encoding="utf-8"))
    assert [row[1:4] for row in written] == [["2", "cd", "C E"], ["3", "ef", ""]]
    assert [path.name for path in tmp_path.iterdir()] == ["e.csv"]


def test_other_formats_are_refused_before_any_work() -> None:
    with pytest.raises(UserError, match=r"errors\.txt: a table of errors is CSV or TSV"):
        check_format(Path("errors.txt"))
