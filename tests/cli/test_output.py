"""The one writer of results: what is kept when a signal comes, and what is never lost."""

from __future__ import annotations

import gc
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from dragoman.checkpoint import model_folder
from dragoman.cli.output import write_results, write_table
from dragoman.core.errors import Stopped
from dragoman.data.readers import Row
from dragoman.data.writers.lines import JSONLinesFormat
from dragoman.data.writers.parquet import ParquetFormat
from dragoman.data.writers.xlsx import XLSXFormat

from .conftest import Done, process

RUN = "runs/copy"
SIGNALS = [signal.SIGINT, signal.SIGTERM]


def interrupted(number: int, results: list[str]) -> Iterator[str]:
    yield from results
    signal.raise_signal(number)
    yield "never"


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_keeps_whole_results_beside_the_old_file_and_says_where(
    number: signal.Signals, tmp_path: Path
) -> None:
    output, before = tmp_path / "out.txt", signal.getsignal(signal.SIGTERM)
    output.write_text("old\n")
    (tmp_path / "link").symlink_to("out.txt")
    for n, name in enumerate(("out.txt", "link"), 1):
        with pytest.raises(Stopped) as stopped:
            write_results(interrupted(number, ["a", "b\nb"]), tmp_path / name)
        kept = tmp_path / f"out.txt.partial-{n}"
        assert kept.read_text() == "a\nb\nb\n"
        assert stopped.value.code == 128 + number
        assert number.name in str(stopped.value)
        assert str(kept) in str(stopped.value)
        assert "2 results" in str(stopped.value)
        assert "from 3 on" in str(stopped.value)
    assert output.read_text() == "old\n"
    assert len(list(tmp_path.iterdir())) == 4
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("ending", ["xlsx", "parquet"])
def test_a_signal_keeps_the_rows_of_a_table_that_is_whole_only_at_its_end(
    number: signal.Signals, ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / f"out.{ending}"
    output.write_text("old")

    def rows() -> Iterator[tuple[Row, list[str]]]:
        yield Row(["a"], 1), ["A"]
        yield Row(["b\nb"], 2), ["B"]
        signal.raise_signal(number)
        yield Row(["never"], 3), [""]

    def open_format(stream: IO[bytes]) -> XLSXFormat | ParquetFormat:
        if ending == "xlsx":
            return XLSXFormat(stream, ["word"], ["prediction"], 1)
        return ParquetFormat(stream, ["word"], [("prediction", str)], None)

    with pytest.raises(Stopped, match="2 results") as stopped:
        write_table(rows(), open_format, JSONLinesFormat(["word"], ["prediction"]), output)
    gc.collect()  # nothing half-written speaks up when it is thrown away
    kept = tmp_path / f"out.{ending}.jsonl.partial-1"
    assert [json.loads(line) for line in kept.read_text().splitlines()] == [
        {"word": "a", "prediction": "A"},
        {"word": "b\nb", "prediction": "B"},
    ]
    assert str(kept) in str(stopped.value)
    assert stopped.value.code == 128 + number
    assert output.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == [output.name, kept.name]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_before_the_first_result_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    with pytest.raises(Stopped, match="before the first result") as stopped:
        write_results(interrupted(number, []), tmp_path / "out.txt")
    assert stopped.value.code == 128 + number
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", SIGNALS)
def test_what_went_to_the_standard_output_or_a_pipe_is_counted(
    number: signal.Signals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Stopped, match="the first 2 results were written"):
        write_results(interrupted(number, ["a", "b"]), None)
    assert capsys.readouterr().out == "a\nb\n"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(Stopped, match=r"the first 2 results were written to .*pipe"):
            write_results(interrupted(number, ["a", "b"]), tmp_path / "pipe")
        assert os.read(reader, 10) == b"a\nb\n"
    finally:
        os.close(reader)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("command", ["predict", "score"])
@pytest.mark.parametrize("way", ["same", "symlink", "hard link"])
def test_a_command_does_not_eat_its_own_input(
    command: str, way: str, here: Callable[..., Done], tmp_path: Path
) -> None:
    source, output = tmp_path / "pairs.tsv", tmp_path / "out"
    source.write_text("a b\ta b\n")
    if way == "same":
        output = source
    else:
        output.symlink_to(source) if way == "symlink" else output.hardlink_to(source)
    done = here(command, RUN, source, "-o", output)
    assert done.code == 2
    assert "is also an input" in done.err
    assert done.err.count("\n") == 1
    assert source.read_text() == "a b\ta b\n"


def test_a_page_and_a_picture_go_where_links_lead_and_keep_the_mode(here: Callable[..., Done], tmp_path: Path) -> None:
    for name in ("page", "picture"):
        (tmp_path / name).write_text("old")
        (tmp_path / name).chmod(0o600)
    (tmp_path / "a.html").symlink_to("page")
    (tmp_path / "a.png").symlink_to("picture")
    done = here("inspect", RUN, "a b", "--html", tmp_path / "a.html", "--png", tmp_path / "a.png")
    assert done.code == 0, done.err
    assert (tmp_path / "page").read_text().lower().startswith("<!doctype html>")
    assert (tmp_path / "picture").read_bytes().startswith(b"\x89PNG")
    for name in ("page", "picture"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert all((tmp_path / name).is_symlink() for name in ("a.html", "a.png"))


def test_a_path_that_is_too_long_is_one_sentence(here: Callable[..., Done]) -> None:
    long = "x" * 300
    for arguments in (
        ["train", "copy.yaml", "--run", long],
        ["predict", long],
        ["predict", RUN, long],
        ["predict", RUN, "test.tsv", "-o", long],
        ["score", RUN, long],
        ["data", "check", long],
    ):
        done = here(*arguments)
        assert done.code == 2, arguments
        assert (done.out + done.err).count("\n") == 1, done.err
        assert long in done.out + done.err


def test_a_model_with_a_weight_of_nan_gives_an_error_and_no_blank_results(
    work: Path, here: Callable[..., Done], tmp_path: Path
) -> None:
    loaded = model_folder.load(work / RUN)
    weights = model_folder.unique_weights(loaded.model)
    name = list(weights)[3]
    weights[name].view(-1)[0] = math.nan
    model_folder.save(tmp_path / "model", loaded.config, weights, loaded.codec, {})
    for command in ("predict", "score", "evaluate"):
        done = here(command, tmp_path / "model", "test.tsv")
        assert done.code == 2
        assert done.out == ""
        assert f"'{name}'" in done.err
        assert done.err.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("number", [*SIGNALS, signal.SIGKILL])
def test_a_prediction_of_a_stream_stopped_or_killed_loses_nothing_that_was_finished(
    number: signal.Signals, workers: str, work: Path, tmp_path: Path
) -> None:
    source, output = tmp_path / "sources.txt", tmp_path / "out.txt"
    source.write_text("a b c d\n" * 60_000)
    args = [sys.executable, "-m", "dragoman", "predict", RUN, "-o", str(output), "--workers", workers]
    with (
        source.open() as stream,
        subprocess.Popen(args, cwd=work, stdin=stream, stderr=subprocess.PIPE, text=True) as parent,
    ):
        deadline = time.monotonic() + 120
        while not any(path.stat().st_size > 5000 for path in tmp_path.glob(".tmp-*")):
            assert parent.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        parent.send_signal(number)
        _, err = parent.communicate(timeout=120)
        assert parent.returncode == (-number if number == signal.SIGKILL else 128 + number)
    if number == signal.SIGKILL:  # the next command finds it
        done = process("predict", RUN, "-o", output, cwd=work, input=b"a\n")
        assert done.code == 0
        err = done.err
    kept = tmp_path / "out.txt.partial-1"
    assert str(kept) in err
    assert err.count("\n") == 1
    count = kept.read_text().count("\n")
    assert 0 < count < 60_000
    assert number == signal.SIGKILL or f"from {count + 1:,} on" in err
    assert not list(tmp_path.glob(".tmp-*"))
