"""Rows are copied as they are, with all columns and the header, in every format; nothing is half-written."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import RunError, UserError
from dragoman.data.readers import read_pairs
from dragoman.data.selection.rows import copy_rows, name_parts, read_column

NAMED = {"source": "word", "target": "ipa"}
HEADER = ("id", "word", "ipa", "note")
TABLE = [
    (str(i), word, ipa, f"no. {i}") for i, (word, ipa) in enumerate([("abba", "ɒbːɒ"), ("ág", "aːɡ"), ("ár", "aːr")])
]


def split_in_two(spec: str, columns, folder: Path, suffix: str) -> tuple[Path, Path]:
    examples = list(read_pairs(spec, columns=columns))
    first, second = folder / f"first{suffix}", folder / f"second{suffix}"
    copy_rows(spec, columns, examples, {str(first): [0, 2], str(second): range(1, len(examples), 2)})
    return first, second


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def test_tsv_lines_keep_their_bytes(tmp_path):
    lines = [b"\xef\xbb\xbfa\tb\r\n", b"c\xcc\x81\td \n", "e\u2028\tf".encode()]
    first, second = split_in_two(write(tmp_path / "a.tsv", b"".join(lines)), ["source", "target"], tmp_path, ".tsv")
    assert first.read_bytes() == b"a\tb\r\n" + lines[2] + b"\n"
    assert second.read_bytes() == lines[1]


def test_the_header_is_in_every_file(tmp_path):
    rows = ["\t".join(row) for row in (HEADER, *TABLE)]
    first, second = split_in_two(write(tmp_path / "a.tsv", "\n".join(rows)), NAMED, tmp_path, ".tsv")
    assert first.read_text().splitlines() == [rows[0], rows[1], rows[3]]
    assert second.read_text().splitlines() == [rows[0], rows[2]]


cells = st.text('ab,;"\n é=', max_size=6)


@given(rows=st.lists(st.tuples(cells, cells, cells), min_size=3, max_size=8))
def test_csv_rows_of_several_lines_stay_whole(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("csv")
    rows = [(a.replace("\n", " ") or "x", b or "y", c) for a, b, c in rows]
    with open(folder / "a.csv", "w", newline="") as file:
        csv.writer(file).writerows([("source", "target", "note"), *rows])
    columns = {"source": "source", "target": "target"}
    first, second = split_in_two(str(folder / "a.csv"), columns, folder, ".csv")
    for path, kept in ((first, [rows[0], rows[2]]), (second, rows[1::2])):
        with open(path, newline="") as file:
            assert [tuple(row) for row in csv.reader(file)] == [("source", "target", "note"), *kept]


def test_gzip_is_read_and_written_by_name(tmp_path):
    spec = write(tmp_path / "a.tsv.gz", gzip.compress(b"a\tb\nc\td\ne\tf\n"))
    first, _ = split_in_two(spec, ["source", "target"], tmp_path, ".tsv.gz")
    again, _ = split_in_two(spec, ["source", "target"], tmp_path / "x", ".tsv.gz")
    assert gzip.decompress(first.read_bytes()) == b"a\tb\ne\tf\n"
    assert first.read_bytes() == again.read_bytes()


def test_json_objects_keep_their_other_keys(tmp_path):
    lines = [json.dumps({"id": i, "source": s, "target": t}) for i, (s, t) in enumerate(["ab", "cd", "ef"])]
    first, second = split_in_two(
        write(tmp_path / "a.jsonl", "\n".join(lines)), ["source", "target"], tmp_path, ".jsonl"
    )
    assert (first.read_text().splitlines(), second.read_text().splitlines()) == ([lines[0], lines[2]], [lines[1]])


def test_parallel_files_stay_aligned_and_skip_what_was_not_read(tmp_path):
    a, b = write(tmp_path / "a.en", b"1\n\xff\n3\n4\n"), write(tmp_path / "a.de", "eins\nzwei\ndrei\nvier\n")
    examples = list(read_pairs(f"{a},{b}", on_error="skip"))
    outputs = name_parts(f"{a},{b}", tmp_path / "out", ["train", "test"])
    assert outputs == {p: f"{tmp_path}/out/{p}.en,{tmp_path}/out/{p}.de" for p in ("train", "test")}
    copy_rows(f"{a},{b}", ["source", "target"], examples, {outputs["train"]: [0, 2], outputs["test"]: [1]})
    read = {path.name: path.read_text().split() for path in (tmp_path / "out").iterdir()}
    assert read == {"train.en": ["1", "4"], "train.de": ["eins", "vier"], "test.en": ["3"], "test.de": ["drei"]}


def test_files_of_one_suffix_get_names_for_their_sides(tmp_path):
    assert name_parts("a.txt,b.txt", Path("o"), ["valid"]) == {"valid": "o/valid.source.txt,o/valid.target.txt"}
    assert name_parts("words", Path("o"), ["valid"]) == {"valid": "o/valid.txt"}


def test_sheets_keep_numbers_and_dates(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    from datetime import datetime

    book = openpyxl.Workbook()
    values = [("abba", 1.5, datetime(2024, 5, 1)), ("ág", 2, None), ("ár", "=x", datetime(2024, 5, 2))]
    for row in [("word", "n", "day"), *values]:
        book.active.append(row)
    book.active["B4"].data_type = "s"  # a text that begins with =
    book.save(tmp_path / "a.xlsx")
    first, second = split_in_two(str(tmp_path / "a.xlsx"), {"source": "word", "target": "n"}, tmp_path, ".xlsx")
    read = [list(openpyxl.load_workbook(path).active.iter_rows(values_only=True)) for path in (first, second)]
    assert read == [[("word", "n", "day"), values[0], values[2]], [("word", "n", "day"), values[1]]]


def test_parquet_keeps_its_types(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pyarrow.table({"word": [f"w{i}" for i in range(30_000)], "ipa": ["x"] * 30_000, "n": list(range(30_000))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7_000)
    spec = str(tmp_path / "a.parquet")
    examples = list(read_pairs(spec, columns=NAMED))
    rows = [5, 6_999, 7_000, 29_999]
    copy_rows(spec, NAMED, examples, {str(tmp_path / "b.parquet"): rows})
    copied = pq.read_table(tmp_path / "b.parquet")
    assert copied.schema.equals(table.schema)
    assert copied["n"].to_pylist() == rows


def test_inputs_are_never_overwritten_and_nothing_is_half_written(tmp_path):
    spec = write(tmp_path / "train.tsv", "a\tb\nc\td\n")
    examples = list(read_pairs(spec))
    with pytest.raises(RunError, match="is also an input"):
        copy_rows(spec, ["source", "target"], examples, {str(tmp_path / "test.tsv"): [0], spec: [1]})
    assert [path.name for path in tmp_path.iterdir()] == ["train.tsv"]
    assert Path(spec).read_text() == "a\tb\nc\td\n"


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (["b.csv"], r"rows of .*a\.tsv are copied as they are; choose a name with '\.tsv'"),
        (["b.en,b.de"], "the pairs are in 1 files?; name 1"),
        (["b.tsv", "./b.tsv"], "named for two outputs"),
    ],
)
def test_outputs_of_another_kind_are_refused(tmp_path, outputs, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = write(tmp_path / "a.tsv", "a\tb\n")
    with pytest.raises(UserError, match=message):
        copy_rows(spec, ["source", "target"], list(read_pairs(spec)), {output: [0] for output in outputs})
    assert [path.name for path in tmp_path.iterdir()] == ["a.tsv"]


def test_a_column_is_found_by_role_name_or_number(tmp_path):
    rows = ["\t".join(row) for row in (HEADER, *TABLE)]
    spec = write(tmp_path / "a.tsv", "\n".join(rows))
    examples = list(read_pairs(spec, columns=NAMED))
    notes = [row[3] for row in TABLE]
    assert read_column(spec, NAMED, examples, "note") == notes
    assert read_column(spec, NAMED, examples, "4") == notes
    assert read_column(spec, NAMED, examples, "target") == [row[2] for row in TABLE]
    objects = write(tmp_path / "a.jsonl", '{"source": "a", "target": "b", "group": 7}\n')
    examples = list(read_pairs(objects))
    assert read_column(objects, ["source", "target"], examples, "group") == ["7"]
    with pytest.raises(UserError, match=r"no column 'nte'; did you mean 'note'\? \(there is id, word, ipa, note\)"):
        read_column(spec, NAMED, list(read_pairs(spec, columns=NAMED)), "nte")
