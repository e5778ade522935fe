"""CSV, XLSX and Parquet → Examples, against files that csv, openpyxl and pyarrow write; what is hostile is refused."""

from __future__ import annotations

import csv
import gzip
import io
import re
import tracemalloc
import zipfile
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import DataError
from dragoman.data import workbook as workbook_module
from dragoman.data.cells import NumberCell
from dragoman.data.lines import ReadReport
from dragoman.data.readers import ReadOptions, TableReader, find_reader, read_pairs, read_sources, spec_files
from dragoman.data.readers.csv import sniff_delimiter

NAMED = {"source": "word", "target": "ipa"}


SHEET, TEXTS = "xl/worksheets/sheet1.xml", "xl/texts.xml"


def pairs(path: Path | str, columns: Any = NAMED, **options: Any) -> list[tuple[str, str | None]]:
    return [(example.source, example.target) for example in read_pairs(path, columns=columns, **options)]


def write(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# -- CSV ---------------------------------------------------------------------------------------------------------------

CELLS = st.text(st.sampled_from('abé,;"\t\n x'), max_size=6)


@given(
    rows=st.lists(st.lists(CELLS, min_size=2, max_size=2), min_size=1, max_size=8), delimiter=st.sampled_from(",;\t")
)
def test_what_csv_writes_is_read_cell_by_cell(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], delimiter: str
) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(
        [["wörd", "îpa"], *rows]
    )
    path = write(tmp_path_factory.mktemp("csv"), "a.csv", text.getvalue())
    found = pairs(path, {"source": "wörd", "target": "îpa"})
    assert found == [tuple(cell.replace("\n", " ") for cell in row) for row in rows]


@given(st.text(st.sampled_from('ab,"\n'), max_size=40))
def test_any_csv_is_read_or_skipped_and_no_line_is_lost_in_silence(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = write(tmp_path_factory.mktemp("csv"), "a.csv", text)
    reader, report = find_reader(str(path)), ReadReport()
    assert isinstance(reader, TableReader)
    rows = list(reader.read_rows(str(path), None, ReadOptions(on_error="skip", report=report)))
    lines = text.split("\n")[:-1] if text.endswith("\n") else text.split("\n") if text else []
    inside = sum(cell.count("\n") for row in rows for cell in row.cells)
    assert len(rows) + inside == len(lines)
    assert sum(bool(row.error) for row in rows) == sum(issue.count for issue in report)


@pytest.mark.parametrize(
    ("texts", "delimiter"),
    [
        (["a,b", "c,d"], ","),
        (["a;b,c", "d;e"], ";"),
        (["English;German", "one, two;eins, zwei, drei", "yes;ja"], ";"),
        (["a\tb", "c, d\te"], "\t"),
        (['"a,a,a";b', '"c,c,c";d'], ";"),
        (["alone", "in line"], ","),
        (["sep=;", "a,b;c", "d,e;f"], ";"),
        ([], ","),
    ],
)
def test_the_separator_is_the_one_that_lines_agree_on(texts: list[str], delimiter: str) -> None:
    assert sniff_delimiter(iter(texts)) == delimiter


def test_a_byte_order_mark_a_gzip_and_a_separator_line_are_no_cells(tmp_path: Path) -> None:
    text = "sep=;\r\nword;ipa\r\nHund;hʊnt\r\n"
    for name, data in {
        "a.csv": text.encode("utf-8-sig"),
        "b.csv.gz": gzip.compress(text.encode()),
    }.items():
        assert pairs(write(tmp_path, name, data)) == [("Hund", "hʊnt")]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("word,ipa\na,b\n".encode("utf-16"), r"a\.csv:1: the file is UTF-16, not UTF-8. Save it as UTF-8"),
        ("word,ipa\nsch\xf6n,b\n".encode("latin-1"), r"a\.csv:2: byte 0xF6 at offset 3"),
        (b'word,ipa\na,"b\nc,d\n', r"a\.csv:2: the quote opened in line 2, column 3 is never closed"),
        (b'word,ipa\na,b\n"c\nd"x,e\n', r"a\.csv:3: found 'x' after a closing quote in line 4, column 3"),
        (b"word,ipa\na,b,c\n", r"a\.csv:2: found 3 columns, expected 2 as in the header"),
        (b"word,ipa\na\n", r"a\.csv:2: found 1 column, expected 2"),
        (b"", r"a\.csv:1: there is no column 'word'"),
    ],
)
def test_a_broken_csv_is_refused_with_line_and_column(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(DataError, match=says):
        pairs(write(tmp_path, "a.csv", content))


def test_a_row_is_numbered_by_its_first_line_and_a_bad_one_hides_no_other(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", 'word,ipa\n"a\nb",c\n"d,e\nf,g\nh,i\n')
    report = ReadReport()
    found = [(e.source, e.line) for e in read_pairs(path, columns=NAMED, on_error="skip", report=report)]
    assert found == [("a b", 2), ("f", 5), ("h", 6)]
    assert {issue.kind: issue.locations for issue in report} == {"quote": [f"{path}:4"], "separators": [f"{path}:2"]}


# -- XLSX --------------------------------------------------------------------------------------------------------------


def workbook(path: Path, *sheets: list[list[Any]], merge: str = "", formats: dict[str, str] | None = None) -> Path:
    book = openpyxl.Workbook()
    for number, rows in enumerate(sheets, 1):
        sheet = book.active if number == 1 else book.create_sheet()
        sheet.title = f"Sheet{number}"
        for row in rows:
            sheet.append(row)
    if merge:
        book.worksheets[0].merge_cells(merge)
    for cell, format in (formats or {}).items():
        book.worksheets[0][cell].number_format = format
    book.save(path)
    return path


def test_cells_are_the_texts_that_the_sheet_shows(tmp_path: Path) -> None:
    shown = {
        12: "12",
        12.5: "12.5",
        0.1 + 0.2: "0.3",
        -3: "-3",
        10**20: "1e+20",
        True: "TRUE",
        date(2019, 1, 5): "2019-01-05",
        datetime(2019, 1, 5, 13, 5): "2019-01-05 13:05:00",
        time(13, 5): "13:05:00",
        "text": "text",
        "two\nlines": "two lines",
        "<&>": "<&>",
        "": "",
    }
    rows = [["word", "ipa"]] + [[f"w{i}", value] for i, value in enumerate(shown)]
    path = workbook(tmp_path / "a.xlsx", rows)
    assert pairs(path) == [(f"w{i}", text) for i, text in enumerate(shown.values())]


@pytest.mark.parametrize(
    ("number", "format", "shown"),
    [
        (7, "000", "007"),
        (12, "0.00", "12.00"),
        (0.5, "0%", "50%"),
        (0.125, "0.0%", "12.5%"),
        (1234.5, "#,##0.0", "1234.5"),
        (3, '0 "items"', "3"),
        (3, "[Red]0.0;[Blue]-0.0", "3.0"),
        (43470, "d.m.yyyy", "2019-01-05"),
        (43470.5, "yyyy-mm-dd hh:mm", "2019-01-05 12:00:00"),
        (43470, "[$-407]d. mmmm yyyy", "2019-01-05"),
        (0.5, "h:mm", "12:00:00"),
        (3, "# ?/?", "3"),
        (-1, "yyyy", "-1"),
        (1e300, "0", "1" + "0" * 300),
    ],
)
def test_number_formats_that_change_what_is_read_are_followed(number: float, format: str, shown: str) -> None:
    text = str(NumberCell(number, format))
    assert text == shown or (number == 1e300 and float(text) == 1e300)


def test_days_are_counted_from_1900_or_1904() -> None:
    assert str(NumberCell(1, "yyyy-mm-dd")) == "1900-01-01"
    assert str(NumberCell(61, "yyyy-mm-dd")) == "1900-03-01"
    assert str(NumberCell(1, "yyyy-mm-dd", counts_from_1904=True)) == "1904-01-02"


def test_sheets_rows_between_and_merged_cells(tmp_path: Path) -> None:
    rows = [
        [None, None],
        ["word", "ipa"],
        ["gehen", "ging"],
        [None, "gegangen"],
        [None, None],
        ["a", "b", None, "note"],
    ]
    path = workbook(tmp_path / "a.xlsx", [*rows, [None, None]], [["x", "y"]], merge="A3:A4")
    found = [(e.source, e.target, e.line) for e in read_pairs(path, columns=NAMED)]
    assert found == [("gehen", "ging", 3), ("gehen", "gegangen", 4), ("", "", 5), ("a", "b", 6)]
    assert pairs(f"{path}#Sheet2", ["source", "target"]) == [("x", "y")]
    assert spec_files(f"{path}#Sheet2") == [path]
    assert find_reader(f"{path}#Sheet2").read_key(f"{path}#Sheet2") != find_reader(str(path)).read_key(str(path))
    with pytest.raises(
        DataError, match=r"there is no sheet 'Shet2'; did you mean 'Sheet2'\? \(there is Sheet1, Sheet2\)"
    ):
        pairs(f"{path}#Shet2")


def test_a_formula_is_its_stored_value_and_one_without_is_reported(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", [["word", "ipa"], ["a", "=1+1"]])
    report = ReadReport()
    assert pairs(path, report=report) == [("a", "")]
    assert [issue.kind for issue in report] == ["formula"]
    stored = rewrite(
        path,
        "xl/worksheets/sheet1.xml",
        lambda xml: xml.replace(b"<v></v>", b"<v>2</v>").replace(b"<v />", b"<v>2</v>"),
    )
    assert pairs(stored) == [("a", "2")]


def share_strings(path: Path) -> Path:
    """The workbook as Excel writes it: its texts are in a part of their own."""
    shared, strings = path.with_name("shared.xlsx"), list[str]()

    def share(match: re.Match[str]) -> str:
        strings.append(match[2])
        return f'<c r="{match[1]}" t="s"><v>{len(strings) - 1}</v></c>'

    relation = (
        '<Relationship Id="texts" Target="texts.xml" '
        'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/sharedStrings"/></Relationships>'
    )
    kind = (
        '<Override PartName="/xl/texts.xml" ContentType='
        '"application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"/></Types>'
    )
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(shared, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            text = old.read(name).decode()
            if name == SHEET:
                text = re.sub('<c r="([A-Z0-9]+)" t="inlineStr"><is><t>(.*?)</t></is></c>', share, text)
            elif name == "xl/_rels/workbook.xml.rels":
                text = text.replace("</Relationships>", relation)
            elif name == "[Content_Types].xml":
                text = text.replace("</Types>", kind)
            new.writestr(name, text)
        items = "".join(f"<si><t>{text}</t></si>" for text in strings)
        namespace = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
        new.writestr(TEXTS, f'<sst xmlns="{namespace}" count="{len(strings)}">{items}</sst>')
    return shared


def test_texts_may_be_in_a_part_of_their_own(tmp_path: Path) -> None:
    path = share_strings(workbook(tmp_path / "a.xlsx", [["word", "ipa"], ["Hund", "h &lt; ʊ"]]))
    sheet = openpyxl.load_workbook(path).active
    assert pairs(path) == [(sheet["A2"].value, sheet["B2"].value)] == [("Hund", "h &lt; ʊ")]


def test_readings_of_east_asian_words_are_no_text(tmp_path: Path) -> None:
    path = share_strings(workbook(tmp_path / "a.xlsx", [["word", "ipa"], ["東京", "b"]]))
    furigana = "</t><rPh sb='0' eb='2'><t>トウキョウ</t></rPh></si><si><t>b".encode()
    changed = rewrite(path, TEXTS, lambda xml: xml.replace(b"</t></si><si><t>b", furigana))
    assert pairs(changed) == [("東京", "b")]


def rewrite(path: Path, member: str, change: Any) -> Path:
    """The same workbook with one part changed."""
    changed = path.with_name("changed.xlsx")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as new:
        assert member in old.namelist(), old.namelist()
        for info in old.infolist():
            data = old.read(info)
            after = change(data) if info.filename == member else data
            assert info.filename != member or after != data, data
            new.writestr(info.filename, after)
    return changed


HEAD = b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'


def sheet(rows: bytes) -> Any:
    return lambda xml: HEAD + rows + b"</sheetData></worksheet>"


HOSTILE = {
    "many columns": (SHEET, sheet(b"<row>" + b"<c><v>1</v></c>" * 100_000 + b"</row>"), "column"),
    "a cell far to the right": (SHEET, sheet(b'<row r="1"><c r="XFD1"><v>1</v></c></row>'), "column 16,384"),
    "a row far below": (SHEET, sheet(b'<row r="99999999"><c r="A1"><v>1</v></c></row>'), "row 99,999,999"),
    "rows backward": (SHEET, sheet(b'<row r="2"/><row r="1"/>'), "row 1 follows row 2"),
    "a huge cell": (SHEET, sheet(b'<row r="1"><c t="str"><v>' + b"a" * (64 << 20)), "bytes"),
    "spaces": (SHEET, lambda xml: HEAD + b" " * (80 << 20), "zip bomb|bytes"),
    "deep": (SHEET, lambda xml: HEAD + b"<a>" * 1_000_000, "nested"),
    "entities": (SHEET, lambda xml: b'<!DOCTYPE a [<!ENTITY b "c">]>' + HEAD, "document type"),
    "a missing text": (SHEET, sheet(b'<row r="1"><c t="s"><v>9999</v></c></row>'), "shared text '9999'"),
    "not a number": (SHEET, sheet(b'<row r="1"><c><v>twelve</v></c></row>'), "twelve"),
    "infinite": (SHEET, sheet(b'<row r="1"><c><v>1e999</v></c></row>'), "1e999"),
    "half a sheet": (SHEET, lambda xml: xml[: len(xml) // 2], "damaged"),
    "many texts": (TEXTS, lambda xml: b"<sst>" + b"<si/>" * 200_000 + b"</sst>", "100,000 texts"),
    "a text in a text": (TEXTS, lambda xml: b"<sst>" + b"<si><t>" * 100, "nested"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_workbook_is_refused_in_bounded_memory(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workbook_module, "MAX_STRINGS", 100_000)
    member, change, says = HOSTILE[what]
    path = rewrite(share_strings(workbook(tmp_path / "a.xlsx", [["word", "ipa"], ["a", "b"]])), member, change)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=says) as caught:
            pairs(path, ["source", "target"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert peak < 128 << 20


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.xlsx", b"word,ipa\na,b\n", "no XLSX file"),
        ("a.xlsx", b"", "no XLSX file"),
        ("a.xls", b"\xd0\xcf\x11\xe0" + b"\0" * 99, "old office document. Save it as .xlsx"),
        ("a.parquet", b"word,ipa\na,b\n", "no Parquet file"),
        ("a.tsv", b"PAR1\x15\0", "Give it a name that ends with .parquet"),
    ],
)
def test_another_file_under_the_name_is_one_sentence(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    with pytest.raises(DataError, match=says):
        pairs(write(tmp_path, name, content), ["source", "target"])
    with pytest.raises(DataError, match="there is no such file"):
        pairs(tmp_path / f"none-{name}")


def test_memory_does_not_grow_with_a_sheet(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", [["word", "ipa"], ["a", "b"]])
    row = b'<row><c t="inlineStr"><is><t>' + b"a" * 200 + b'</t></is></c><c t="inlineStr"><is><t>b</t></is></c></row>'
    large = rewrite(path, SHEET, sheet(row * 8_000))
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_pairs(large)) == 8_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 << 20


# -- Parquet -----------------------------------------------------------------------------------------------------------


def test_parquet_columns_are_found_by_name_by_role_or_by_position(tmp_path: Path) -> None:
    table = pyarrow.table(
        {
            "ipa": ["hʊnt", None, "a b"],
            "word": ["Hund", "x", "y\nz"],
            "n": [1.0, 2.5, None],
            "day": [date(2019, 1, 5)] * 3,
            "price": [Decimal("1.50")] * 3,
            "at": pyarrow.array([1, 2, 3], pyarrow.timestamp("ns")),
        }
    )
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=2)
    assert pairs(path) == [("Hund", "hʊnt"), ("x", ""), ("y z", "a b")]
    assert pairs(path, {"source": ["word", "n"], "target": "day"})[:2] == [
        ("Hund 1", "2019-01-05"),
        ("x 2.5", "2019-01-05"),
    ]
    assert pairs(path, {"source": "price", "target": "at"})[0] == ("1.50", "1970-01-01 00:00:00.000000001")
    assert [e.line for e in read_pairs(path, columns=NAMED)] == [1, 2, 3]
    pyarrow.parquet.write_table(pyarrow.table({"target": ["b"], "id": [1], "source": ["a"]}), path)
    assert pairs(path, ["source", "target"]) == [("a", "b")]
    pyarrow.parquet.write_table(pyarrow.table({"x": ["a"], "y": ["b"]}), path)
    assert pairs(path, ["source", "target"]) == [("a", "b")]
    with pytest.raises(DataError, match=r"there is no column 'word' \(there is x, y\)"):
        pairs(path)


def test_a_table_of_one_column_is_sources(tmp_path: Path) -> None:
    csv_path = write(tmp_path, "a.csv", "one\ntwo\n\nthree\n")
    xlsx = workbook(tmp_path / "a.xlsx", [["one"], ["two"], [None], ["three"]])
    pyarrow.parquet.write_table(pyarrow.table({"w": ["one", "two", "", "three"]}), tmp_path / "a.parquet")
    for path in (csv_path, xlsx, tmp_path / "a.parquet"):
        assert [example.source for example in read_sources(path)] == ["one", "two", "", "three"]


def test_a_parquet_file_that_is_cut_or_has_too_many_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"word": ["a"] * 1000, "ipa": ["b"] * 1000}), path)
    write(tmp_path, "cut.parquet", path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"cut\.parquet: this is no Parquet file, or a damaged one"):
        pairs(tmp_path / "cut.parquet")
    pyarrow.parquet.write_table(pyarrow.table({f"c{i}": ["a"] for i in range(1001)}), path)
    with pytest.raises(DataError, match="1,001 columns"):
        pairs(path)
