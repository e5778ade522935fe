"""Tables in, tables out: every column is kept, results come after them, and what is interrupted is kept."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow
import pyarrow.parquet
import pytest

from .conftest import Done, process

RUN = "runs/copy"
HEADER = ["id", "word", "copy", "note"]
ROWS = [
    ["7", "a b", "a b", "=1+1"],
    ["8", "c", "c", 'two\nlines, "quoted"'],
    ["9", "", "", "a blank source"],
    ["10", "d d a", "d d a", ""],
]
FORMATS = ["tsv", "csv", "xlsx", "jsonl", "parquet"]


def write_rows(path: Path, header: list[str], rows: list[list[str]]) -> Path:
    if path.suffix == ".xlsx":
        book = openpyxl.Workbook()
        for number, row in enumerate([header, *rows], 1):
            for column, cell in enumerate(row, 1):
                place = book.active.cell(number, column)
                place.value = cell
                place.data_type = "s" if cell else place.data_type
        book.save(path)
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table({n: c for n, *c in zip(header, *rows, strict=True)}), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
    else:
        path.write_text("".join("\t".join(row).replace("\n", " ") + "\n" for row in [header, *rows]))
    return path


def read_rows(path: Path) -> tuple[list[str], list[list[Any]]]:
    """The header and rows of a table, by other readers than ours."""
    if path.suffix == ".xlsx":
        header, *rows = openpyxl.load_workbook(path).active.iter_rows(values_only=True)
        return list(header), [["" if cell is None else cell for cell in row] for row in rows]
    if path.suffix == ".parquet":
        table = pyarrow.parquet.read_table(path)
        return table.column_names, [list(row.values()) for row in table.to_pylist()]
    if path.suffix == ".jsonl":
        objects = [json.loads(line) for line in path.read_text().splitlines()]
        return list(objects[0]), [list(value.values()) for value in objects]
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            header, *rows = csv.reader(file)
        return header, rows
    header, *rows = [line.split("\t") for line in path.read_text().splitlines()]
    return header, rows


@pytest.fixture
def expected(here: Callable[..., Done]) -> list[str]:
    """What the model makes of the words, one line each."""
    return here("predict", RUN, input="".join(f"{row[1]}\n" for row in ROWS).encode()).out.split("\n")[:-1]


@pytest.mark.parametrize("format", FORMATS)
def test_a_table_comes_back_with_all_columns_and_the_predictions_after_them(
    here: Callable[..., Done], tmp_path: Path, expected: list[str], format: str
) -> None:
    source, output = write_rows(tmp_path / f"in.{format}", HEADER, ROWS), tmp_path / f"out.{format}"
    done = here("predict", RUN, source, "--column", "word", "-o", output)
    assert (done.code, done.out) == (0, ""), done.err
    header, rows = read_rows(output)
    assert header == [*HEADER, "prediction"]
    kept = [[cell.replace("\n", " ") if format == "tsv" else cell for cell in row] for row in ROWS]
    assert rows == [[*row, text] for row, text in zip(kept, expected, strict=True)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, output.name])


@pytest.mark.parametrize("wanted", FORMATS)
@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_the_name_of_the_output_decides_its_kind(
    here: Callable[..., Done], tmp_path: Path, expected: list[str], format: str, wanted: str
) -> None:
    source, output = write_rows(tmp_path / f"in.{format}", HEADER, ROWS[:1]), tmp_path / f"out.{wanted}"
    assert here("predict", RUN, source, "--column", "word", "-o", output).code == 0
    assert read_rows(output) == ([*HEADER, "prediction"], [[*ROWS[0], expected[0]]])


@pytest.mark.parametrize("wanted", ["csv", "xlsx", "jsonl", "parquet"])
def test_lines_become_a_table_where_the_output_is_one(
    here: Callable[..., Done], tmp_path: Path, expected: list[str], wanted: str
) -> None:
    output = tmp_path / f"out.{wanted}"
    lines = "".join(f"{row[1]}\n" for row in ROWS).encode()
    assert here("predict", RUN, "-o", output, input=lines).code == 0
    header, rows = read_rows(output)
    assert header == ["source", "prediction"]
    assert rows == [[row[1], text] for row, text in zip(ROWS, expected, strict=True)]


def test_a_printed_table_is_that_of_a_file_and_lines_stay_lines(
    here: Callable[..., Done], tmp_path: Path, expected: list[str]
) -> None:
    source = write_rows(tmp_path / "in.csv", HEADER, ROWS)
    printed = here("predict", RUN, source, "--column", "2")
    assert here("predict", RUN, source, "--column", "2", "-o", tmp_path / "out.csv").code == 0
    assert (tmp_path / "out.csv").read_text() == printed.out
    plain = here("predict", RUN, source, "--column", "word", "--format", "text")
    assert plain.out.split("\n")[:-1] == expected
    assert here("predict", RUN, source, "--column", "word", "-o", tmp_path / "out.txt").code == 0
    assert (tmp_path / "out.txt").read_text() == plain.out
    (tmp_path / "one.tsv").write_text("".join(f"{row[1]}\n" for row in ROWS))  # one column: lines
    assert here("predict", RUN, tmp_path / "one.tsv").out == plain.out


def test_a_table_without_a_header_stays_one(here: Callable[..., Done], tmp_path: Path, expected: list[str]) -> None:
    path = tmp_path / "in.tsv"
    path.write_text("a b\ta b\nc\tc\n")
    done = here("predict", RUN, path)
    assert done.out == f"a b\ta b\t{expected[0]}\nc\tc\t{expected[1]}\n"
    assert done.err == ""  # the columns are those of the training


def test_numbers_dates_and_types_survive(here: Callable[..., Done], tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in (["word", "n", "day", "yes"], ["a b", 12.5, date(2019, 1, 5), True], [None, 3, None, False]):
        book.active.append(row)
    book.active["C2"].number_format = "d.m.yyyy"
    book.active["B3"].number_format = "000"
    book.save(tmp_path / "in.xlsx")
    assert here("predict", RUN, tmp_path / "in.xlsx", "-o", tmp_path / "out.xlsx").code == 0
    sheet = openpyxl.load_workbook(tmp_path / "out.xlsx").active
    assert [cell.value for cell in sheet[2]][1:4] == [12.5, book.active["C2"].value, True] or sheet["C2"].is_date
    assert (sheet["C2"].value.date(), sheet["C2"].number_format) == (date(2019, 1, 5), "d.m.yyyy")
    assert (sheet["B3"].value, sheet["B3"].number_format) == (3, "000")
    schema = pyarrow.schema(
        [("word", pyarrow.string()), ("n", pyarrow.int16()), ("list", pyarrow.list_(pyarrow.int8()))]
    )
    rows = [{"word": "a b", "n": 5, "list": [1, 2]}, {"word": None, "n": None, "list": []}] * 700
    table = pyarrow.Table.from_pylist(rows, schema)
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet", row_group_size=500)
    done = here("predict", RUN, tmp_path / "in.parquet", "-o", tmp_path / "out.parquet", "--probability")
    assert done.code == 0, done.err
    found = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert found.select(["word", "n", "list"]).equals(table)
    assert [str(field.type) for field in found.schema][3:] == ["string", "double"]


def test_texts_that_look_like_formulas_are_texts_and_a_notice_says_where_they_are_not(
    here: Callable[..., Done], tmp_path: Path
) -> None:
    source = write_rows(tmp_path / "in.csv", HEADER, ROWS[:1])
    assert here("predict", RUN, source, "--column", "word", "-o", tmp_path / "out.xlsx").code == 0
    cell = openpyxl.load_workbook(tmp_path / "out.xlsx").active["D2"]
    assert (cell.value, cell.data_type) == ("=1+1", "s")


# -- columns of results ------------------------------------------------------------------------------------------------


def test_probabilities_and_checks_are_further_columns_in_every_format(
    here: Callable[..., Done], tmp_path: Path
) -> None:
    source = write_rows(tmp_path / "in.csv", HEADER, [*ROWS, ["11", "a z z", "", ""]])
    args = ["predict", RUN, source, "--column", "word", "--probability", "--check"]
    assert here(*args, "-o", tmp_path / "out.csv").code == 0
    header, rows = read_rows(tmp_path / "out.csv")
    assert header[4:] == ["prediction", "probability", "check"]
    done = here(*args, "--format", "jsonl")
    values = [json.loads(line) for line in done.out.splitlines()]
    for row, value in zip(rows, values, strict=True):
        assert row[4] == value["text"]
        wanted = math.exp(sum(value["log_probs"])) if value["log_probs"] else 0.0
        assert float(row[5]) == pytest.approx(wanted, rel=1e-5)
        assert value["probability"] == pytest.approx(wanted, rel=1e-5)
        assert row[6] == value["check"]
    assert values[2]["check"] == "empty source"
    assert "unseen: z" in values[4]["check"]
    assert "unseen" not in values[0]["check"]
    text = here(*args, "--format", "text").out.splitlines()
    assert [line.split("\t") for line in text] == [row[4:] for row in rows]


def test_characters_never_seen_are_said_once_with_counts_and_lines(here: Callable[..., Done]) -> None:
    done = here("predict", RUN, input="a b\nß a\na\nß ж\n".encode())
    assert done.err.count("\n") == 1
    assert "<stdin>" in done.err
    assert "ß (2×, first in line 2)" in done.err
    assert here("predict", RUN, input=b"a b\n").err == ""


def test_an_n_best_list_in_text_is_that_of_moses_and_in_a_table_columns(
    here: Callable[..., Done], tmp_path: Path
) -> None:
    data = b"a b\n\nc d a\n"
    tsv = [
        line.split("\t")
        for line in here("predict", RUN, "--nbest", "3", "--format", "tsv", input=data).out.splitlines()
    ]
    lines = [line.split(" ||| ") for line in here("predict", RUN, "--nbest", "3", input=data).out.splitlines()]
    assert [[str(int(row[0]) + 1), row[1], row[2]] for row in lines] == [[row[0], row[3], row[2]] for row in tsv]
    (tmp_path / "in.csv").write_text("word,note\na b,x\n,y\nc d a,z\n")
    assert here("predict", RUN, tmp_path / "in.csv", "--nbest", "3", "-o", tmp_path / "out.csv").code == 0
    header, rows = read_rows(tmp_path / "out.csv")
    assert header == ["word", "note", "prediction", "prediction_2", "prediction_3"]
    assert rows[0][2:] == [row[3] for row in tsv if row[0] == "1"]
    assert rows[1][2:] == ["", "", ""]


def test_a_column_of_that_name_is_kept(here: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("word,prediction\na b,from before\n")
    header, rows = read_rows_of(here("predict", RUN, tmp_path / "in.csv"))
    assert header == ["word", "prediction", "prediction (2)"]
    assert rows[0][:2] == ["a b", "from before"]


def read_rows_of(done: Done) -> tuple[list[str], list[list[str]]]:
    header, *rows = csv.reader(done.out.splitlines())
    return header, rows


# -- which column ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "column", "says"),
    [
        (["id", "word"], "wrod", "did you mean 'word'"),
        (["id", "word"], "3", "there is no column '3'"),
        (["id", "word"], "0", "there is no column '0'"),
    ],
)
def test_a_column_that_is_not_there_is_one_sentence(
    here: Callable[..., Done], tmp_path: Path, header: list[str], column: str, says: str
) -> None:
    source = write_rows(tmp_path / "in.csv", header, [["1", "a b"]])
    done = here("predict", RUN, source, "--column", column)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert says in done.err
    assert "id, word" in done.err


def test_what_is_taken_is_said_where_the_model_does_not_decide(here: Callable[..., Done], tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.csv", HEADER, ROWS)
    done = here("predict", RUN, source)
    assert "taking word as the source (say --column to change)" in done.err
    assert read_rows_of(done)[0] == [*HEADER, "prediction"]


def test_what_makes_no_sense_is_refused_before_anything_is_written(here: Callable[..., Done], tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.xlsx", HEADER, ROWS)
    for args, says in {
        ("predict", RUN, source): "name a file with --output",
        ("predict", RUN, source, "--format", "tsv", "-o", tmp_path / "out.xlsx"): "leave out --format",
        ("predict", RUN, "--column", "word"): "--column needs a file",
    }.items():
        done = here(*args, input=b"a\n")
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
        assert says in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["in.xlsx"]


@pytest.mark.parametrize("sheet", ["", "#Sheet"])
def test_a_table_does_not_eat_its_own_input(here: Callable[..., Done], tmp_path: Path, sheet: str) -> None:
    source = write_rows(tmp_path / "in.xlsx", HEADER, ROWS)
    before = source.read_bytes()
    done = here("predict", RUN, f"{source}{sheet}", "--column", "word", "-o", source)
    assert done.code == 2
    assert "is also an input" in done.err
    assert source.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["in.xlsx"]


def test_a_bad_row_stops_or_is_blank_in_its_place(here: Callable[..., Done], tmp_path: Path) -> None:
    path, output = tmp_path / "in.csv", tmp_path / "out.csv"
    path.write_text('word,copy\na b,a b\nc,"c"x\nd d a,d d a\n')
    done = here("predict", RUN, path, "-o", output)
    assert done.code == 2
    assert f"{path}:3: found 'x' after a closing quote in line 3, column 6" in done.err
    assert not output.exists()
    assert here("predict", RUN, path, "-o", output, "--on-error", "skip").code == 0
    _, rows = read_rows(output)
    assert [row[0] for row in rows] == ["a b", "", "d d a"]
    assert [bool(row[2]) for row in rows] == [True, False, True]


# -- the other commands ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_every_command_reads_every_format(here: Callable[..., Done], work: Path, tmp_path: Path, format: str) -> None:
    rows = [line.split("\t") for line in (work / "test.tsv").read_text().splitlines()]
    path = write_rows(
        tmp_path / f"test.{format}", ["n", "ipa", "word"], [[str(i), t, s] for i, (s, t) in enumerate(rows)]
    )
    for command in (
        ["score", RUN],
        ["evaluate", RUN, "--metrics", "exact", "--json"],
        ["data", "check"],
    ):
        wanted = here(*command, "test.tsv")
        done = here(*command, path)
        assert done.code == wanted.code == 0, done.err
        assert "taking word → ipa (say --columns to change)" in done.err
        named = here(*command, path, "--columns", "word,ipa")
        assert named.out == done.out or command[0] == "evaluate"  # which says how long it took
        assert "taking" not in named.err
        if command[0] == "score":
            assert done.out == wanted.out
        if command[0] == "evaluate":
            assert json.loads(done.out)["metrics"] == json.loads(wanted.out)["metrics"]


def test_a_model_trained_on_named_columns_reads_them_everywhere(
    here: Callable[..., Done], tmp_path: Path, work: Path
) -> None:
    for name in ("train", "valid", "test"):
        rows = [line.split("\t") for line in (work / f"{name}.tsv").read_text().splitlines()]
        write_rows(tmp_path / f"{name}.xlsx", ["ipa", "word", "tag"], [[t, s, "x"] for s, t in rows[:60]])
    data = "{train: train.xlsx, valid: valid.xlsx, columns: {source: [word, tag], target: ipa}}"
    config = (work / "copy.yaml").read_text().replace("{train: train.tsv, valid: valid.tsv}", data)
    (tmp_path / "named.yaml").write_text(config.replace("steps: 160", "steps: 4").replace("warmup: 20", "warmup: 2"))
    trained = process("train", "named.yaml", cwd=tmp_path)
    assert trained.code == 0, trained.err
    run = tmp_path / "runs" / "named"
    (tmp_path / "new.csv").write_text("tag,n,word\nx,1,a b\n")
    done = here("predict", run, tmp_path / "new.csv", "--format", "jsonl")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["source_tokens"] == [*"a␣b␣x", "</s>"]
    (tmp_path / "other.csv").write_text("n,form\n1,a b\n")
    refused = here("predict", run, tmp_path / "other.csv")
    assert refused.code == 2
    assert "there is no column 'word', which is the model's source (there is n, form)" in refused.err
    assert here("evaluate", run, tmp_path / "test.xlsx", "--metrics", "exact").code == 0


# -- what is interrupted -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("format", ["csv", "xlsx"])
@pytest.mark.long
def test_a_signal_keeps_whole_rows_and_says_where(
    number: signal.Signals, format: str, work: Path, tmp_path: Path
) -> None:
    source, output = tmp_path / "in.csv", tmp_path / f"out.{format}"
    source.write_text("id,word\n" + "".join(f"{i},a b c d\n" for i in range(60_000)))
    args = ["-m", "dragoman", "predict", RUN, str(source), "-o", str(output), "--workers", "1"]
    with subprocess.Popen([sys.executable, *args], cwd=work, stderr=subprocess.PIPE, text=True) as parent:
        deadline = time.monotonic() + 240
        while not any(path.stat().st_size > 5000 for path in tmp_path.glob(".tmp-*")):
            assert parent.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        parent.send_signal(number)
        _, err = parent.communicate(timeout=240)
        assert parent.returncode == (-number if number == signal.SIGKILL else 128 + number)
    if number == signal.SIGKILL:  # the next command finds it
        done = process("predict", RUN, "-o", output, cwd=work, input=b"a\n")
        assert done.code == 0
        err = done.err
    assert "Traceback" not in err
    kept = tmp_path / (f"{output.name}.partial-1" if format == "csv" else f"{output.name}.jsonl.partial-1")
    assert str(kept) in err
    lines = kept.read_text().splitlines()[: -1 if number == signal.SIGKILL else None]
    if format == "csv":
        assert lines[0] == "id,word,prediction"
        assert [line.split(",")[:2] for line in lines[1:]] == [[str(i), "a b c d"] for i in range(len(lines) - 1)]
    else:
        values = [json.loads(line) for line in lines]
        assert [(value["id"], value["word"]) for value in values] == [(str(i), "a b c d") for i in range(len(values))]
        assert all(value["prediction"] for value in values)
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_row_that_a_sheet_cannot_hold_leaves_the_results_before_it(here: Callable[..., Done], tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.csv", ["word", "note"], [["a b", "x"], ["c", "y" * 40_000]])
    done = here("predict", RUN, source, "-o", tmp_path / "out.xlsx")
    assert done.code == 2
    kept = tmp_path / "out.xlsx.jsonl.partial-1"
    assert str(kept) in done.err
    assert "32,767" in done.err
    assert json.loads(kept.read_text())["word"] == "a b"
    assert sorted(os.listdir(tmp_path)) == ["in.csv", kept.name]
