"""PAIRS → Examples: every format, what is refused, and one Example for every line to predict from."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import tracemalloc
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codec_learning import learn_codec

from dragoman.core.errors import DataError, UserError
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.data.columns import Columns
from dragoman.data.lines import LINE_LIMIT, ReadReport
from dragoman.data.readers import ReadOptions, parallel, read_pairs, read_sources, readers, spec_files
from dragoman.data.readers.parallel import find_misalignment

from .conftest import count_issues


def write(folder: Path, content: bytes | str, name: str) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def pairs(spec, **options) -> list[tuple[str, str | None]]:
    return [(example.source, example.target) for example in read_pairs(spec, **options)]


def sources_in(stream: io.RawIOBase | io.BytesIO, format: str, **options) -> Iterator[Example]:
    return readers[format]().read_sources(stream, None, ReadOptions(Columns(("source",)), **options))


# -- the formats --------------------------------------------------------------------------------------------------


def test_every_format_gives_the_same_pairs_with_file_and_line(tmp_path):
    expected = [("Hund", "dog"), ("", "blank"), ("Öl 😀", "oil")]
    tsv = write(tmp_path, "".join(f"{s}\t{t}\n" for s, t in expected), "a.tsv")
    source = write(tmp_path, "".join(f"{s}\n" for s, _ in expected), "a.de")
    target = write(tmp_path, "".join(f"{t}\n" for _, t in expected), "a.en")
    jsonl = write(tmp_path, "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in expected), "a.jsonl")
    for spec, file in (
        (f"{tsv}", tsv),
        (f"{source},{target}", source),
        (f"{source}, {target}", source),
        (jsonl, jsonl),
    ):
        found = list(read_pairs(spec))
        assert [(e.source, e.target) for e in found] == expected
        assert [(e.file, e.line) for e in found] == [(str(file), line) for line in (1, 2, 3)]
    for path in (tsv, source, target, jsonl):
        write(tmp_path, gzip.compress(path.read_bytes()), path.name + ".gz")
    for spec in (f"{tsv}.gz", f"{source}.gz,{target}.gz", f"{source}.gz,{target}", f"{jsonl}.gz"):
        assert pairs(spec) == expected


def test_a_messy_file_gives_the_texts_of_the_clean_one(tmp_path):
    tidy = "Öl\toil\nzwei Hunde\ttwo dogs\nein Wort\tone word\n"
    messy = "Öl\toil\r\nzwei\u2028Hunde\ttwo\rdogs\r\nein\x85Wort\tone word\r\n"
    a, b = write(tmp_path, tidy, "a.tsv"), write(tmp_path, messy.encode("utf-8-sig"), "b.tsv")
    report = ReadReport()
    assert pairs(b, report=report) == pairs(a)
    assert {issue.kind: issue.count for issue in report} == {"bom": 1, "crlf": 3, "separators": 2}
    assert len(report.notices()) == 3


def test_a_messy_file_gives_the_token_ids_of_the_clean_one(tmp_path):
    tidy = "Öl\toil\nzwei Hunde\ttwo dogs\nein Café\ta café\n"
    messy = unicodedata.normalize("NFD", tidy).replace("\n", "\r\n").replace("i H", "i\u2028H").replace("o d", "o\rd")
    a, b = write(tmp_path, tidy, "a.tsv"), write(tmp_path, messy.encode("utf-8-sig"), "b.tsv")
    clean, odd = list(read_pairs(a)), list(read_pairs(b))
    letters = Part("characters")
    codec = learn_codec(letters, letters, True, "nfc", [e.source for e in clean], [e.target or "" for e in clean], [])
    assert [codec.encode_source(e) for e in odd] == [codec.encode_source(e) for e in clean]
    assert [codec.encode_target(e) for e in odd] == [codec.encode_target(e) for e in clean]


def test_files_of_names_the_files_behind_a_spec(tmp_path):
    assert spec_files("a.tsv") == [Path("a.tsv")]
    assert spec_files("a.de,a.en") == [Path("a.de"), Path("a.en")]
    assert spec_files("a.jsonl.gz") == [Path("a.jsonl.gz")]
    assert spec_files("-") == []
    comma = write(tmp_path, "a\tb\n", "one,two.tsv")
    assert spec_files(str(comma)) == [comma]
    assert pairs(comma) == [("a", "b")]


def test_columns_say_what_each_column_is(tmp_path):
    path = write(tmp_path, "id1\tHund\tde\tdog\ten\nid2\tOui\t\tyes\t\n", "a.tsv")
    found = list(read_pairs(path, columns=("-", "source", "source_lang", "target", "target_lang")))
    assert found[0] == Example("Hund", "dog", "de", "en", str(path), 1)
    assert found[1] == Example("Oui", "yes", None, None, str(path), 2)


def test_one_text_on_each_line_needs_one_column(tmp_path):
    path = write(tmp_path, "a text\nanother\n", "a.txt")
    assert pairs(path, columns=["source"]) == [("a text", None), ("another", None)]
    assert pairs(path, columns=["target"]) == [("", "a text"), ("", "another")]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["sorce", "target"], "did you mean 'source'"),
        (["source", "source_lang", "source_lang"], "named twice"),
        (["-", "source_lang"], "neither 'source' nor 'target'"),
    ],
)
def test_columns_that_make_no_sense_are_refused(columns, says):
    with pytest.raises(UserError, match=says):
        read_pairs("a.tsv", columns=columns)


def test_several_references_come_from_further_columns_and_from_lists(tmp_path):
    tsv = write(tmp_path, "a\tb\tc\td\ne\tf\ng\th\t\ti\n", "a.tsv")
    lists = write(tmp_path, '{"source": "a", "target": ["b", "c", "d"]}\n{"source": "e", "target": "f"}\n', "a.jsonl")
    found = list(read_pairs(tsv, extra_targets=True))
    assert [(e.source, e.target, e.references) for e in found] == [
        ("a", "b", ("b", "c", "d")),
        ("e", "f", ("f",)),
        ("g", "h", ("h", "i")),
    ]
    assert [(e.target, e.references) for e in read_pairs(lists)] == [("b", ("b", "c", "d")), ("f", ())]
    assert [e.references for e in read_pairs(lists, extra_targets=True)] == [("b", "c", "d"), ("f",)]
    named = write(tmp_path, "a\tb\tc\n", "b.tsv")
    (only,) = read_pairs(named, columns=["source", "target", "target"])
    assert (only.target, only.references) == ("b", ("b", "c"))
    side = write(tmp_path, "x\n", "x.txt")
    assert [e.references for e in read_pairs(f"{side},{side}", extra_targets=True)] == [("x",)]


def test_references_may_be_fewer_than_the_columns_named_but_for_the_first(tmp_path):
    path = write(tmp_path, "a\tb\tc\td\ne\tf\n", "a.tsv")
    names = ["source", "target", "target"]
    found = [(e.source, e.target, e.references) for e in read_pairs(path, columns=names, extra_targets=True)]
    assert found == [("a", "b", ("b", "c", "d")), ("e", "f", ("f",))]
    for columns in (names, ["source", "target", "target_lang"], ["source", "second_source", "target"]):
        short = write(tmp_path, "a\n" if columns == names else "a\tb\n", "c.tsv")
        with pytest.raises(DataError, match="expected 2"):
            pairs(short, columns=columns, extra_targets=True)


@pytest.mark.parametrize("line", ["a\tb\n", "a\tb\tc\td\n"])
def test_a_varying_number_of_targets_is_an_error_with_a_remedy(tmp_path, line):
    report, path = ReadReport(), write(tmp_path, line, "a.tsv")
    with pytest.raises(DataError, match=r"data\.columns or --columns.*JSON lines with lists") as caught:
        pairs(path, columns=["source", "target", "target"])
    pairs(path, columns=["source", "target", "target"], on_error="skip", report=report)
    assert [issue.remedy in str(caught.value) for issue in report] == [True]


def test_blank_lines_are_blank_pairs_in_every_format(tmp_path):
    tsv = write(tmp_path, "a\tb\n\n \n\t\nc\t\n\td\n", "a.tsv")
    assert [(s.strip(), t) for s, t in pairs(tsv)] == [("a", "b"), ("", ""), ("", ""), ("", ""), ("c", ""), ("", "d")]
    jsonl = write(tmp_path, '{"source": "", "target": "b"}\n\n{"source": "a", "target": ""}\n', "a.jsonl")
    assert pairs(jsonl) == [("", "b"), ("", ""), ("a", "")]


def test_json_texts_are_cleaned_like_those_of_files(tmp_path):
    report = ReadReport()
    path = write(tmp_path, '{"source": "a\\nb\\r\\nc", "target": "d\\u2028e", "other": [1]}\n', "a.jsonl")
    assert pairs(path, report=report) == [("a b c", "d e")]
    assert count_issues(report, "separators") == 1


def test_languages_come_from_json(tmp_path):
    path = write(tmp_path, '{"source": "a", "target": "b", "source_lang": "de", "target_lang": null}\n', "a.jsonl")
    (example,) = read_pairs(path)
    assert (example.source_lang, example.target_lang) == ("de", None)


# -- twenty broken files ------------------------------------------------------------------------------------------

OBJECT = b'{"source": "a", "target": "b"}\n'
BROKEN = [
    ("bad-utf8.tsv", b"a\tb\ncaf\xe9\tb\n", 2, "0xE9 at offset 3"),
    ("bad-utf8-in-target.tsv", b"a\tb\na\tb\na\t\xff\n", 3, "0xFF at offset 2"),
    ("nul.tsv", b"a\tb\0\n", 1, "NUL"),
    ("surrogate.tsv", b"a\tb\n\xed\xb0\x80\tb\n", 2, "lone surrogate U+DC00"),
    ("utf16.tsv", "a\tb\n".encode("utf-16"), 1, "UTF-16"),
    ("no-tab.tsv", b"a\tb\na b\n", 2, "found no tab, expected 1"),
    ("three-columns.tsv", b"a\tb\tc\n", 1, "found 2 tabs, expected 1"),
    ("many-columns.tsv", b"a\tb\n" * 9 + b"a" + b"\tb" * 40 + b"\n", 10, "found 40 tabs"),
    ("truncated.tsv.gz", gzip.compress(b"a\tb\n" * 500)[:-12], None, "truncated"),
    ("not-gzip.tsv.gz", b"a\tb\n", None, "does not begin like gzip"),
    ("office.tsv", b"PK\x03\x04\x14\0\x06\0", 1, "zip archive"),
    ("broken.jsonl", OBJECT + b'{"source": "a", "target" "b"}\n', 2, "column 26: not valid JSON"),
    ("half.jsonl", OBJECT + OBJECT + b'{"source": "a", "tar', 3, "not valid JSON"),
    ("array.jsonl", b'["a", "b"]\n', 1, "found a list, expected an object"),
    ("text.jsonl", OBJECT + b"a\tb\n", 2, "column 1: not valid JSON"),
    ("misspelt.jsonl", b'{"source": "a", "traget": "b"}\n', 1, "the key 'target' is missing; did you mean 'traget'"),
    ("missing.jsonl", b'{"target": "b"}\n', 1, "the key 'source' is missing"),
    ("number.jsonl", OBJECT + b'{"source": 7, "target": "b"}\n', 2, "column 2, 'source': found a number"),
    ("null.jsonl", b'{"source": "a", "target": null}\n', 1, "column 17, 'target': found null"),
    ("nested-list.jsonl", b'{"source": "a", "target": ["b", ["c"]]}\n', 1, "'target': found a list"),
    ("empty-list.jsonl", b'{"source": "a", "target": []}\n', 1, "the list of targets is empty"),
    ("language.jsonl", b'{"source": "a", "target": "b", "source_lang": 0}\n', 1, "'source_lang': found a number"),
    ("surrogate.jsonl", OBJECT + b'{"source": "a\\ud800", "target": "b"}\n', 2, "lone surrogate \\ud800"),
    ("nul.jsonl", b'{"source": "a", "target": "\\u0000"}\n', 1, "NUL"),
    ("deep.jsonl", OBJECT + b"[" * 100_000 + b"\n", 2, "nested too deeply"),
    ("digits.jsonl", b'{"source": ' + b"1" * 10_000 + b"}\n", 1, "too long"),
    ("bad-utf8.jsonl", OBJECT + b'{"source": "\xe9"}\n', 2, "0xE9 at offset 12"),
]


@pytest.mark.parametrize(("name", "content", "line", "says"), BROKEN, ids=[row[0] for row in BROKEN])
def test_a_broken_file_is_refused_with_its_name_and_line(tmp_path, name, content, line, says):
    path = write(tmp_path, content, name)
    with pytest.raises(DataError) as caught:
        list(read_pairs(path))
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}: " if line else f"{path}")
    assert caught.value.file == str(path)
    assert line is None or caught.value.line == line
    assert caught.value.code == 2


def test_extra_columns_are_an_error_that_names_the_columns_option(tmp_path):
    with pytest.raises(DataError, match=r"\[source, target, -\], or pass --on-error skip"):
        pairs(write(tmp_path, "a\tb\tc\n", "a.tsv"))


@pytest.mark.parametrize("ending", ["tsv", "jsonl"])
def test_skipping_leaves_out_exactly_the_bad_lines_and_counts_them(tmp_path, ending):
    good = b"a\tb\n" if ending == "tsv" else OBJECT
    bad = [b"caf\xe9\tb\n", b"no tab\n" if ending == "tsv" else b"[1]\n", b"x\0\ty\n"]
    path = write(tmp_path, b"".join(bad[i % 3] if i % 4 == 0 else good for i in range(48)), f"a.{ending}")
    report = ReadReport()
    found = list(read_pairs(path, on_error="skip", report=report))
    assert [example.line for example in found] == [i + 1 for i in range(48) if i % 4]
    kinds = {issue.kind: issue.count for issue in report}
    assert kinds == {"encoding": 4, "nul": 4, "columns" if ending == "tsv" else "json": 4}


# -- two files in step --------------------------------------------------------------------------------------------


def corpus(rng: np.random.Generator, size: int) -> tuple[list[str], list[str]]:
    """Sentences of various lengths, and translations about 1.2 times as long."""
    lengths = rng.integers(5, 120, size)
    return ["s" * int(n) for n in lengths], ["t" * max(1, int(1.2 * n + rng.normal(0, 3))) for n in lengths]


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(("place", "missing"), [(0, 1), (300, 1), (300, 7), (999, 1), (640, 40)])
def test_files_of_different_lengths_are_an_error_with_both_counts_near_the_misalignment(tmp_path, side, place, missing):
    both = corpus(np.random.default_rng(place + missing), 1000)
    del both[side][place : place + missing]
    paths = [write(tmp_path, "\n".join(lines) + "\n", f"{i}.txt") for i, lines in enumerate(both)]
    with pytest.raises(DataError) as caught:
        list(read_pairs(f"{paths[0]},{paths[1]}"))
    for path, lines in zip(paths, both, strict=True):
        assert f"{path} has {len(lines):,} lines" in str(caught.value)
    assert caught.value.file in map(str, paths)
    assert abs(caught.value.line - (place + 1)) <= 4


def test_a_blank_line_put_in_by_mistake_is_found(tmp_path):
    source, target = corpus(np.random.default_rng(0), 200)
    target.insert(50, "")
    a, b = write(tmp_path, "\n".join(source), "a"), write(tmp_path, "\n".join(target), "b")
    with pytest.raises(DataError, match="201 lines") as caught:
        pairs(f"{a},{b}")
    assert (caught.value.file, caught.value.line) == (str(b), 51)


def test_a_side_that_ends_early_is_reported_as_such(tmp_path):
    source, target = corpus(np.random.default_rng(1), 100)
    a, b = write(tmp_path, "\n".join(source), "a"), write(tmp_path, "\n".join(target[:90]), "b")
    with pytest.raises(DataError, match="end 10 lines too early") as caught:
        pairs(f"{a},{b}")
    assert (caught.value.file, caught.value.line) == (str(b), 90)
    ten, seven = write(tmp_path, "x\n" * 10, "ten"), write(tmp_path, "x\n" * 7, "seven")  # nothing speaks for any place
    with pytest.raises(DataError, match="end 3 lines too early"):
        pairs(f"{ten},{seven}")
    empty = write(tmp_path, "", "empty")
    with pytest.raises(DataError, match="has 0 lines"):
        pairs(f"{empty},{b}")


def test_a_misalignment_after_the_kept_lengths_is_not_guessed(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "MAX_LENGTHS_KEPT", 100)
    source, target = corpus(np.random.default_rng(2), 400)
    del target[300]
    a, b = write(tmp_path, "\n".join(source), "a"), write(tmp_path, "\n".join(target), "b")
    with pytest.raises(DataError, match="first 99 lines seem to match; look after them"):
        pairs(f"{a},{b}")


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 50), max_size=25), st.lists(st.integers(0, 50), min_size=1, max_size=5), st.data())
def test_find_misalignment_equals_trying_every_line(shorter, extra, data):
    k = len(extra)
    longer = np.array(data.draw(st.permutations([*shorter, *extra])))
    typical = np.median(np.log1p(longer)) - (np.median(np.log1p(shorter)) if shorter else 0)

    def misfit(p: int) -> float:
        r = [np.log1p(longer[i + (k if i >= p else 0)]) - np.log1p(n) - typical for i, n in enumerate(shorter)]
        return float(np.abs(r).sum())

    if shorter:
        p = find_misalignment(longer, np.array(shorter), k)
        assert misfit(p) == pytest.approx(min(misfit(q) for q in range(len(shorter) + 1)), abs=1e-9)


def test_a_bad_line_on_either_side_leaves_out_the_pair_and_keeps_the_step(tmp_path):
    a, b = write(tmp_path, b"1\n\xff\n3\n4\n", "a"), write(tmp_path, b"1\n2\n\0\n4\n", "b")
    report = ReadReport()
    assert pairs(f"{a},{b}", on_error="skip", report=report) == [("1", "1"), ("4", "4")]
    assert (count_issues(report, "encoding"), count_issues(report, "nul")) == (1, 1)


@pytest.mark.parametrize("spec", ["a,b,c", "a,", ",b"])
def test_a_spec_with_commas_must_name_two_files(spec):
    with pytest.raises(DataError, match=r"expected two: source\.txt,target\.txt"):
        list(read_pairs(spec))


def test_a_missing_side_is_named(tmp_path):
    a = write(tmp_path, "a\n", "train.de")
    with pytest.raises(DataError, match=r"train\.en: there is no such file; did you mean 'train\.de'"):
        pairs(f"{a},{tmp_path}/train.en")


# -- long lines ---------------------------------------------------------------------------------------------------


def test_a_pair_that_is_too_long_is_flagged_and_nothing_else_is_lost(tmp_path):
    long = b"word " * (LINE_LIMIT // 5 + 100)
    tsv = write(tmp_path, b"a\tb\n" + long + b"\tb\na\t" + long + b"\nc\td\n", "a.tsv")
    assert [example.source_truncated for example in read_pairs(tsv)] == [False, True, True, False]
    jsonl = write(tmp_path, OBJECT + b'{"source": "' + long + b'", "target": ""}\n' + OBJECT, "a.jsonl")
    assert [(e.source, e.target, e.source_truncated) for e in read_pairs(jsonl)] == [
        ("a", "b", False),
        ("", "", True),
        ("a", "b", False),
    ]
    a, b = write(tmp_path, b"1\n" + long + b"\n", "a"), write(tmp_path, b"1\n2\n", "b")
    assert [example.source_truncated for example in read_pairs(f"{a},{b}")] == [False, True]


@pytest.mark.parametrize("format", ["tsv", "jsonl"])
def test_sources_without_a_newline_take_little_memory(format):
    class Endless(io.RawIOBase):
        left = 100 << 20

        def readable(self) -> bool:
            return True

        def readinto(self, buffer) -> int:
            size = min(len(buffer), self.left)
            buffer[:size] = b"\x61" * size
            self.left -= size
            return size

    tracemalloc.start()
    try:
        flags = [example.source_truncated for example in sources_in(Endless(), format)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert flags == [True]
    assert peak < 16 << 20


# -- sources to predict from --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=20), st.booleans())
def test_as_many_sources_come_out_as_lines_go_in(lines, ended):
    content = b"\n".join([b"first", *lines, b"last"]) + (b"\n" if ended else b"")
    for format in ("tsv", "jsonl"):
        report = ReadReport()
        found = list(sources_in(io.BytesIO(content), format, on_error="skip", report=report))
        assert [example.line for example in found] == list(range(1, len(lines) + 3))
    readable = [
        line.decode("utf-8", "ignore") == line.decode("utf-8", "replace") and b"\0" not in line for line in lines
    ]
    texts = list(sources_in(io.BytesIO(content), "tsv", on_error="skip", report=(report := ReadReport())))[1:-1]
    assert count_issues(report, "encoding") + count_issues(report, "nul") == readable.count(False)
    assert all(example.source == "" for example, good in zip(texts, readable, strict=True) if not good)


def test_sources_are_whole_lines_or_the_source_of_an_object(tmp_path):
    text = write(tmp_path, "a\tb\n\nlast", "a.tsv")
    assert [example.source for example in read_sources(text)] == ["a\tb", "", "last"]
    jsonl = write(tmp_path, b'{"source": "a", "target_lang": "en"}\n\n{"source": "b", "target": 3}\n', "a.jsonl")
    found = list(read_sources(jsonl))
    assert [(e.source, e.target, e.target_lang) for e in found] == [
        ("a", None, "en"),
        ("", None, None),
        ("b", None, None),
    ]
    assert [(e.file, e.line) for e in found] == [(str(jsonl), line) for line in (1, 2, 3)]


def test_a_bad_source_stops_with_its_line_unless_it_may_be_skipped():
    content = b'{"source": "a"}\n{"sauce": "b"}\n{"source": "c"}\n'
    with pytest.raises(DataError, match=r"^<stdin>:2: the key 'source' is missing"):
        list(sources_in(io.BytesIO(content), "jsonl"))
    skipped = sources_in(io.BytesIO(content), "jsonl", on_error="skip")
    assert [example.source for example in skipped] == ["a", "", "c"]


def test_pairs_cannot_be_sources(tmp_path):
    with pytest.raises(DataError, match="give the file with the sources alone"):
        list(read_sources("a.de,a.en"))


def test_a_dash_reads_the_standard_input():
    program = """
from dragoman.data.readers import read_pairs, read_sources
import sys
read = read_pairs if sys.argv[1] == "pairs" else read_sources
print([(e.source, e.target, e.file, e.line) for e in read("-")])
assert "torch" not in sys.modules
"""
    for what, expected in (("pairs", [("a", "b", "<stdin>", 1)]), ("sources", [("a\tb", None, "<stdin>", 1)])):
        done = subprocess.run([sys.executable, "-c", program, what], input=b"a\tb\n", capture_output=True, timeout=60)
        assert done.stdout.decode().strip() == repr(expected), done.stderr


# -- the registry -------------------------------------------------------------------------------------------------


def test_every_reader_has_a_one_line_description():
    assert {"tsv", "parallel", "jsonl"} <= set(readers.names)
    assert all(readers.summary(name) for name in readers.names)


def test_a_new_reader_comes_before_the_one_that_accepts_any_file(monkeypatch):
    class Numbers:
        """Pairs of numbers, from no file at all."""

        def accepts(self, spec):
            return spec.startswith("numbers:")

        def files(self, spec):
            return []

        def read_pairs(self, spec, options):
            return (Example(str(i), str(i * i)) for i in range(int(spec.removeprefix("numbers:"))))

    assert readers.names
    monkeypatch.setitem(readers._parts, "zahlen", Numbers)
    assert pairs("numbers:3") == [("0", "0"), ("1", "1"), ("2", "4")]
    assert spec_files("numbers:3") == []
