"""`dragoman data split`, `dedupe`, `filter`, `sample`: files in, files of the same kind out, counts printed."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.data.selection.test_split import make_words

from dragoman.cli.main import main
from dragoman.cli.selection import parse_shares
from dragoman.core.errors import UserError

from .conftest import Done


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """`dragoman ARGS` in this process, without a model."""

    def run_command(*args: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["dragoman", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return Done(int(end.value.code or 0), captured.out, captured.err)

    return run_command


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A table with a header row and a third column, in alphabetical order."""
    path = tmp_path / "words.csv"
    rows = [f"{word},{' '.join(word)},note {i}" for i, word in enumerate(sorted(make_words(300)))]
    path.write_text("\n".join(["word,ipa,gloss", *rows]) + "\n", encoding="utf-8")
    return path


def test_split_writes_three_files_with_all_columns(words: Path, run: Callable[..., Done]) -> None:
    done = run("data", "split", words, "--out", words.parent / "parts")
    assert done.code == 0, done.err
    assert "word, ipa, gloss; taking word → ipa" in done.err
    assert done.out.startswith("240 to learn from, 30 for validation, 30 for the test (seed 1; no source in two parts;")
    parts = [lines(words.parent / "parts" / f"{name}.csv") for name in ("train", "valid", "test")]
    assert [len(part) for part in parts] == [241, 31, 31]
    header, *rows = lines(words)
    assert {part[0] for part in parts} == {header}
    assert sorted(row for part in parts for row in part[1:]) == sorted(rows)
    again = run("data", "split", words, "--out", words.parent / "again", "--seed", "1")
    assert [lines(words.parent / "again" / f"{name}.csv") for name in ("train", "valid", "test")] == parts
    assert again.code == 0


def test_split_by_a_column_keeps_its_values_together(tmp_path: Path, run: Callable[..., Done]) -> None:
    words = make_words(100) * 2  # the same word in two parts, since only the column decides
    rows = [f"{word}\tx\tspeaker {i % 25}" for i, word in enumerate(words)]
    (tmp_path / "a.tsv").write_text("\n".join(rows))
    options = ("--columns", "source,target,-", "--by", "3", "--shares", "train=80,dev=20")
    done = run("data", "split", tmp_path / "a.tsv", "--out", tmp_path, *options)
    assert done.code == 0, done.err
    train, dev = ({row.split("\t")[2] for row in lines(tmp_path / f"{name}.tsv")} for name in ("train", "dev"))
    assert (len(train), len(dev), train & dev) == (20, 5, set())
    assert "160 to learn from, 40 in dev (seed 1; no column 3 in two parts)" in done.out


def test_languages_are_counted_for_each_part(tmp_path: Path, run: Callable[..., Done]) -> None:
    rows = [f"{word}\tx\t{'de' if i % 4 else 'fr'}" for i, word in enumerate(make_words(200))]
    (tmp_path / "a.tsv").write_text("\n".join(rows))
    done = run("data", "split", tmp_path / "a.tsv", "--out", tmp_path, "--columns", "source,target,target_lang")
    assert [row.split() for row in done.out.splitlines()[1:5]] == [
        ["train", "valid", "test"], ["pairs", "160", "20", "20"], ["de", "120", "15", "15"], ["fr", "40", "5", "5"],
    ]  # fmt: skip


def test_dedupe_and_filter_say_what_they_left_out_and_where(tmp_path: Path, run: Callable[..., Done]) -> None:
    words = make_words(150)
    rows = [f"{word}\t{' '.join(word)}" for word in words]
    (tmp_path / "a.tsv").write_text("\n".join([*rows, rows[0], rows[1], f"{words[2]}\tother", "x\t"]))
    options = ("--columns", "source,target", "--dropped", tmp_path / "dropped.tsv")
    done = run("data", "dedupe", tmp_path / "a.tsv", "-o", tmp_path / "b.tsv", "--first-target", *options)
    assert done.out.startswith("3 pairs left out (repeated pair: 2, another target: 1); the other 151 are in ")
    assert lines(tmp_path / "b.tsv") == [*rows, "x\t"]
    assert [row.split("\t")[:2] for row in lines(tmp_path / "dropped.tsv")] == [
        ["reason", "line"], ["repeated pair", "151"], ["repeated pair", "152"], ["another target", "153"],
    ]  # fmt: skip
    done = run("data", "filter", tmp_path / "b.tsv", "-o", tmp_path / "c.tsv", *options)
    assert done.out.startswith("1 pair left out (blank: 1); the other 150 are in ")
    assert lines(tmp_path / "c.tsv") == rows


def test_sample_takes_a_number_or_a_share(words: Path, run: Callable[..., Done]) -> None:
    out = words.parent / "few.csv"
    assert run("data", "sample", words, "-o", out, "-n", "10").code == 0
    assert len(lines(out)) == 11
    assert run("data", "sample", words, "-o", out, "--share", "20", "--diverse").code == 0
    assert len(lines(out)) == 61


def test_mistakes_are_one_sentence_and_leave_no_file(words: Path, run: Callable[..., Done]) -> None:
    before = sorted(path.name for path in words.parent.iterdir())
    for arguments, message in [
        (("split", words, "--out", words.parent, "--shares", "50"), "--shares is '50'"),
        (("split", words, "--out", words.parent, "--by", "glos"), "did you mean 'gloss'"),
        (("split", words.parent / "word.csv", "--out", words.parent), "did you mean 'words.csv'"),
        (("split", "-", "--out", words.parent), "save it in a file"),
        (("dedupe", words, "-o", words), "is also an input"),
        (("dedupe", words, "-o", words.parent / "b.tsv"), "choose a name with '.csv'"),
        (("filter", words, "-o", words.parent / "b.csv", "--rules", "blnk"), "did you mean 'blank'"),
        (("sample", words, "-o", words.parent / "b.csv"), "--count N, or --share PERCENT"),
        (("sample", words, "-o", words.parent / "b.csv", "-n", "301"), "there are 300 pairs"),
    ]:
        done = run("data", *arguments)
        assert done.code == 2, arguments
        assert message in done.err, done.err
        assert "Traceback" not in done.err
    assert sorted(path.name for path in words.parent.iterdir()) == before


def test_shares_are_numbers_or_named() -> None:
    assert parse_shares("80,10,10") == {"train": 80, "valid": 10, "test": 10}
    assert parse_shares("9, 1") == {"train": 9, "test": 1}
    assert parse_shares("a=0.5,b=0.5,c=1,d=2") == {"a": 0.5, "b": 0.5, "c": 1, "d": 2}
    for wrong in ("", "80", "80,x,10", "80,-10", "a=1,a=2", "../a=1,b=2", "a=nan,b=1", "1,2,3,4", "a=1,2"):
        with pytest.raises(UserError, match="--shares is"):
            parse_shares(wrong)


def test_what_is_kept_does_not_depend_on_the_order_of_the_file(words: Path, run: Callable[..., Done]) -> None:
    header, *rows = lines(words)
    random.Random(1).shuffle(rows)
    shuffled = words.parent / "shuffled.csv"
    shuffled.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    for path in (words, shuffled):
        assert run("data", "split", path, "--out", words.parent / path.stem).code == 0
    for name in ("train", "valid", "test"):
        first, second = (lines(words.parent / path.stem / f"{name}.csv") for path in (words, shuffled))
        assert sorted(first) == sorted(second)
