"""Cells that are written come back the same through other readers, whatever they hold."""

from __future__ import annotations

import csv
import io
import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import DataError
from dragoman.data.cells import NumberCell
from dragoman.data.readers import Row, read_pairs
from dragoman.data.writers import kind_of, unique_names
from dragoman.data.writers.lines import CSVFormat, JSONLinesFormat, TSVFormat
from dragoman.data.writers.xlsx import XLSXFormat, column_name

CELL = st.text(st.sampled_from("ab\"',;=+-@\n\t é😀<&>"), max_size=8)


def write_sheet(header: list[str] | None, rows: list[tuple[Row, list[Any]]], results: list[str], width: int) -> Any:
    stream = io.BytesIO()
    table = XLSXFormat(stream, header, results, width)
    for row, values in rows:
        table.write(row, values)
    table.close()
    return openpyxl.load_workbook(stream).active


@given(cells=st.lists(CELL, min_size=1, max_size=4), result=CELL, delimiter=st.sampled_from(",;\t"))
def test_a_csv_row_is_what_csv_reads(cells: list[str], result: str, delimiter: str) -> None:
    table = CSVFormat(["n"] * len(cells), ["prediction"], len(cells), None, delimiter)
    text = f"{table.header()}\n{table.line(Row(cells, 1), [result])}\n"
    assert list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))[1] == [*cells, result]


@given(cells=st.lists(CELL, min_size=1, max_size=4), result=CELL)
def test_a_tsv_row_is_one_line_with_as_many_cells(cells: list[str], result: str) -> None:
    line = TSVFormat(None, ["prediction"], len(cells), None).line(Row(cells, 1), [result])
    assert "\n" not in line
    assert line.count("\t") == len(cells)


@given(cells=st.lists(CELL, min_size=1, max_size=4), result=CELL)
def test_a_json_line_holds_the_cells(cells: list[str], result: str) -> None:
    names = [f"c{i}" for i in range(len(cells))]
    value = json.loads(JSONLinesFormat(names, ["prediction"]).line(Row(cells, 1), [result]))
    assert list(value.values()) == [*cells, result]


@given(cells=st.lists(CELL, min_size=2, max_size=2), result=CELL)
def test_a_sheet_holds_texts_as_texts(cells: list[str], result: str) -> None:
    sheet = write_sheet(["a", "b"], [(Row(cells, 1), [result])], ["prediction"], 2)
    read = [sheet.cell(2, column) for column in (1, 2, 3)]
    for cell, text in zip(read, [*cells, result], strict=True):
        assert (cell.value or "") == text
        assert cell.value is None or cell.data_type == "s"


@pytest.mark.parametrize("text", ["a\x07b", "_x0041_", "a\r\nb", " x ", "_x005F_x0041_"])
def test_what_xml_cannot_hold_is_escaped_as_the_standard_says(tmp_path: Path, text: str) -> None:
    with (tmp_path / "a.xlsx").open("wb") as file:
        table = XLSXFormat(file, ["word"], [], 1)
        table.write(Row([text], 1), [])
        table.close()
    (example,) = read_pairs(tmp_path / "a.xlsx", columns={"source": "word"})
    assert example.source == text.replace("\r\n", " ")


def test_numbers_and_dates_keep_their_value_and_format() -> None:
    values = [
        NumberCell(43470.0, "d.m.yyyy"),
        NumberCell(7.0, "000"),
        NumberCell(43470.0 - 1462, "yyyy-mm-dd", counts_from_1904=True),
        True,
        12,
        0.1,
        Decimal("1.5"),
        date(2019, 1, 5),
        datetime(2019, 1, 5, 12, 30),
        None,
        10**20,
        float("inf"),
    ]
    sheet = write_sheet(None, [(Row(["?"] * len(values), 1, values=values), [])], [], len(values))
    read = [cell.value for cell in sheet[1]]
    day = datetime(2019, 1, 5)
    assert read == [day, 7, day, True, 12, 0.1, 1.5, day, datetime(2019, 1, 5, 12, 30), None, str(10**20), "inf"]
    assert [sheet.cell(1, i).number_format for i in (1, 2, 3)] == ["d.m.yyyy", "000", "yyyy-mm-dd"]


def test_notes_beside_a_table_come_after_the_results() -> None:
    sheet = write_sheet(["a", "b"], [(Row(["1", "2", "note"], 1), ["p"])], ["prediction"], 2)
    assert [cell.value for cell in sheet[2]] == ["1", "2", "p", "note"]


def test_what_a_sheet_cannot_hold_is_an_error() -> None:
    with pytest.raises(DataError, match="32,767"):
        write_sheet(None, [(Row(["a" * 32_768], 1), [])], [], 1)
    table = XLSXFormat(io.BytesIO(), None, [], 1)
    table.row_number = 1_048_576
    with pytest.raises(DataError, match="1,048,576 rows"):
        table.write(Row(["a"], 1), [])


def test_names_of_results_never_hide_a_column() -> None:
    assert unique_names(["a"], ["prediction", "check"]) == ["prediction", "check"]
    assert unique_names(["prediction", "prediction (2)"], ["prediction"]) == ["prediction (3)"]


@pytest.mark.parametrize(("number", "name"), [(1, "A"), (26, "Z"), (27, "AA"), (702, "ZZ"), (703, "AAA")])
def test_columns_of_a_sheet_are_named_in_letters(number: int, name: str) -> None:
    assert column_name(number) == name == openpyxl.utils.get_column_letter(number)


def test_the_name_of_a_file_says_what_it_is() -> None:
    kinds = ["tsv", "csv", "xlsx", "jsonl", "parquet", None]
    assert [kind_of(name) for name in ("a.tsv", "A.CSV", "a.xlsx", "a.jsonl", "a.parquet", "a.txt")] == kinds
