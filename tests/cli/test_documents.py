"""Translators' files go through `dragoman predict` as files of the same kind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragoman.cli.output import write_document
from dragoman.core.errors import Stopped
from dragoman.data.documents import open_document
from dragoman.data.documents.segments import Translation

from .conftest import Done

Here = Callable[..., Done]
SRT = "1\n00:00:01,000 --> 00:00:02,000\n<i>a b</i>\n\n2\n00:00:03,000 --> 00:00:04,000\nc <b>d</b> a\n"
PO = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "a %s b"\nmsgstr ""\n'


def test_subtitles_come_back_as_subtitles_with_all_tags(here: Here, work: Path, tmp_path: Path) -> None:
    (tmp_path / "a.srt").write_text(SRT)
    done = here("predict", "runs/copy", tmp_path / "a.srt", "-o", tmp_path / "b.srt")
    assert done.code == 0, done.err
    lines = (tmp_path / "b.srt").read_text().split("\n")
    assert [lines[i] for i in (0, 1, 4, 5)] == [SRT.split("\n")[i] for i in (0, 1, 4, 5)]
    texts = ["a b", "c d a"]
    (tmp_path / "sources.txt").write_text("\n".join(texts) + "\n")
    expected = here("predict", "runs/copy", tmp_path / "sources.txt").out.splitlines()
    assert lines[2] == f"<i>{expected[0]}</i>"
    assert lines[6].replace("<b>", "").replace("</b>", "") == expected[1]
    assert lines[6].count("<b>") == lines[6].count("</b>") == 1


def test_a_tag_stands_at_the_word_that_the_model_attends_to(here: Here, work: Path, tmp_path: Path) -> None:
    (tmp_path / "a.srt").write_text(SRT.replace("c <b>d</b> a", "c <b>d</b> a b"))
    assert here("predict", "runs/copy", tmp_path / "a.srt", "-o", tmp_path / "b.srt").code == 0
    line = (tmp_path / "b.srt").read_text().split("\n")[6]
    if line.replace("<b>", "").replace("</b>", "") == "c d a b":  # an unchanged text, as a trained copier gives it
        assert line == "c <b>d</b> a b"


def test_a_catalog_is_filled_with_its_placeholders(here: Here, work: Path, tmp_path: Path) -> None:
    (tmp_path / "a.po").write_text(PO)
    done = here("predict", "runs/copy", tmp_path / "a.po", "-o", tmp_path / "b.po")
    assert done.code == 0, done.err
    output = (tmp_path / "b.po").read_text()
    assert output.startswith(PO[: PO.index("msgid", 5)] + '#, fuzzy\nmsgid "a %s b"\nmsgstr "')
    assert output.count("%s") == 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["a.srt"], "--output"),
        (["a.srt", "-o", "b.po"], "change the ending"),
        (["a.srt", "-o", "b.srt", "--format", "tsv"], "--format"),
        (["a.srt", "-o", "b.srt", "--nbest", "2", "--beam", "2"], "--nbest"),
        (["a.srt", "a.srt", "-o", "b.srt"], "one document"),
        (["a.srt", "-o", "a.srt"], "is also an input"),
        (["bad.srt", "-o", "b.srt"], "bad.srt:1: "),
        (["none.srt", "-o", "b.srt"], "none.srt: cannot be read"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_and_writes_nothing(
    here: Here, work: Path, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    (tmp_path / "a.srt").write_text(SRT)
    (tmp_path / "bad.srt").write_text("no times")
    before = sorted(tmp_path.iterdir())
    done = here(
        "predict", "runs/copy", *(one if one.startswith("-") or "." not in one else tmp_path / one for one in arguments)
    )
    assert done.code == 2
    assert problem in done.err
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "a.srt").read_text() == SRT


def test_a_signal_keeps_what_is_translated_and_leaves_the_output_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.srt").write_text(SRT)
    (tmp_path / "b.srt").write_text("old")
    document = open_document(tmp_path / "a.srt")

    def translations() -> Iterator[Translation]:
        yield Translation("x y")
        os.kill(os.getpid(), signal.SIGTERM)
        yield Translation("never")

    with pytest.raises(Stopped, match=r"first 1 segments translated is kept in .*partial-1") as stopped:
        write_document(translations(), document, tmp_path / "b.srt")
    assert stopped.value.code == 143
    assert (tmp_path / "b.srt").read_text() == "old"
    assert (tmp_path / "b.srt.partial-1").read_text() == SRT.replace("a b", "x y", 1)
    assert len(list(tmp_path.iterdir())) == 3
