"""Bulk work through the command line: byte for byte what the plain command writes, in whichever way it is shared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bench import letters

from dragoman.cli import predict_shards
from dragoman.core import processes
from dragoman.data.samples import synthetic
from dragoman.inference import pipeline as inference

from .conftest import Done

pytestmark = pytest.mark.skipif(not processes.can_fork(), reason="workers need Linux")
RUN = "runs/copy"
FAST = ("--beam", "1", "--workers", "2")
LINES = 70


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows so small that a few lines are many shards."""
    monkeypatch.setattr(inference, "WINDOW", 8)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    made = letters.generate_pairs("copy", LINES, 1, split="test", symbols=4, max_length=5)
    synthetic.write_tsv(tmp_path / "pairs.tsv", made)
    return tmp_path / "pairs.tsv"


@pytest.fixture
def sources(pairs: Path) -> Path:
    path = pairs.with_name("sources.txt")
    path.write_text("".join(line.split("\t")[0] + "\n" for line in pairs.read_text().splitlines()))
    return path


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "options",
    [("--format", "tsv", "--nbest", "2", "--beam", "3"), ("--format", "jsonl", "--probability", "--check")],
    ids=str,
)
def test_shards_give_what_the_plain_command_gives(
    options: tuple[str, ...], here: Callable[..., Done], sources: Path, tmp_path: Path
) -> None:
    plain = here("predict", RUN, sources, *FAST, *options)
    assert plain.code == 0, plain.err
    done = here("predict", RUN, sources, *FAST, *options, "--shards", tmp_path / "a", "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert (tmp_path / "out").read_text() == plain.out


@pytest.mark.usefixtures("small")
def test_parts_computed_in_any_order_are_merged_to_what_the_plain_command_gives(
    here: Callable[..., Done], sources: Path, tmp_path: Path
) -> None:
    for i in (2, 1):
        part = here("predict", RUN, sources, *FAST, "--shards", tmp_path / "a", "--shard", f"{i}/2", "--json")
        assert part.code == 0, part.err
        assert json.loads(part.out)["complete"] == (i == 1)
    assert here("shards", "merge", tmp_path / "a", "-o", tmp_path / "merged").code == 0
    assert (tmp_path / "merged").read_text() == here("predict", RUN, sources, *FAST).out
    status = here("shards", "status", tmp_path / "a")
    assert status.code == 0
    assert "70 of 70 lines in 9 of 9 shards" in status.out


@pytest.mark.usefixtures("small")
def test_a_table_keeps_its_columns_and_its_header(here: Callable[..., Done], pairs: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.tsv"
    table.write_text("word\tnote\n" + "".join(f"{line}\n" for line in pairs.read_text().splitlines()))
    args = ("predict", RUN, table, *FAST, "--column", "word")
    assert here(*args, "-o", tmp_path / "plain.tsv").code == 0
    done = here(*args, "--shards", tmp_path / "a", "-o", tmp_path / "out.tsv")
    assert done.code == 0, done.err
    assert (tmp_path / "out.tsv").read_bytes() == (tmp_path / "plain.tsv").read_bytes()
    assert (tmp_path / "out.tsv").read_text().count("\n") == LINES + 1
    assert "70 predictions in" in done.err


@pytest.mark.usefixtures("small")
def test_scores_and_evaluations_by_shards_are_those_of_the_plain_commands(
    here: Callable[..., Done], pairs: Path, tmp_path: Path
) -> None:
    plain = here("score", RUN, pairs, "--workers", "2")
    args = ("score", RUN, pairs, "--workers", "2", "--shards", tmp_path / "a", "-o", tmp_path / "out")
    half = here(*args, "--shard", "1/2")
    assert half.code == 0, half.err
    assert not (tmp_path / "out").exists()
    done = here(*args, "--shard", "2/2")
    assert done.code == 0, done.err
    assert (tmp_path / "out").read_text() == plain.out
    assert done.err == plain.err
    assert "run the same command again" in here("shards", "merge", tmp_path / "a", "-o", tmp_path / "x").err
    plain = here("evaluate", RUN, pairs, *FAST, "--json")
    done = here("evaluate", RUN, pairs, *FAST, "--json", "--shards", tmp_path / "b")
    assert done.code == 0, done.err
    values = json.loads(plain.out), json.loads(done.out)
    assert [value.pop("decoding") is None for value in values] == [False, True]
    assert values[0] == values[1]


@pytest.mark.usefixtures("small")
def test_another_model_other_options_or_another_input_are_refused_in_one_sentence(
    here: Callable[..., Done], sources: Path, tmp_path: Path
) -> None:
    args = ("predict", RUN, sources, "--workers", "2", "--shards", tmp_path / "a")
    assert here(*args, "--beam", "2").code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    for options, difference in [
        (("--beam", "3"), "--beam was 2 and is 3"),
        (("--beam", "2", "--check"), "--check was false and is true"),
        (("--beam", "2", "--precision", "bfloat16"), "--precision was float32 and is bfloat16"),
    ]:
        done = here(*args, *options)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert difference in done.err
    with sources.open("a") as file:
        file.write("a b\n")
    done = here(*args, "--beam", "2")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "it has grown" in done.err
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before


def test_what_shards_cannot_do_is_refused_in_one_sentence(
    here: Callable[..., Done], sources: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "a"
    for args, sentence in [
        ((sources, "--shard", "1/2"), "--shard needs --shards DIR"),
        ((sources, "--json"), "--json needs --shards DIR"),
        ((sources, "--executor", "ray"), "--executor needs --shards DIR"),
        ((sources, "--shards", folder, "--shard", "0/2"), "it must be i/n"),
        ((sources, "--shards", folder, "--shard", "3/2"), "it must be i/n"),
        ((sources, "--shards", folder, "--ray-address", "auto"), "needs --executor ray"),
        (("-", "--shards", folder), "the standard input cannot be read again"),
        (("table.xlsx", "--shards", folder), "save the table as .tsv or .jsonl first"),
        (("text.docx", "--shards", folder), "this is a document"),
        ((sources, "--shards", sources), "is a file; name a folder"),
        ((sources, "--shards", folder, "-o", sources), "is also an input"),
        ((sources, "--shards", folder, "-o", tmp_path / "no" / "out"), "there is no such folder"),
    ]:
        done = here("predict", RUN, *args)
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
        assert sentence in done.err
    assert not folder.exists()
    done = here("shards", "status", tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1)


@pytest.mark.usefixtures("small")
def test_a_poisoned_line_is_set_aside_with_its_number_and_the_rest_finishes(
    here: Callable[..., Done], sources: Path, tmp_path: Path
) -> None:
    lines = sources.read_bytes().splitlines()
    lines[20] = b"a \xff b"
    sources.write_bytes(b"\n".join(lines))
    folder, output = tmp_path / "a", tmp_path / "out"
    args = ("predict", RUN, sources, *FAST, "--shards", folder, "-o", output)
    done = here(*args)
    assert (done.code, done.err.count("\n")) == (4, 1)
    assert f"{sources}:21: byte 0xFF" in done.err
    assert not output.exists()
    status = here("shards", "status", folder, "--json")
    assert status.code == 4
    value = json.loads(status.out)
    assert (value["done_shards"], value["shards"]) == (8, 9)
    assert [(f["shard"], f["first_line"], f["last_line"]) for f in value["failures"]] == [(2, 17, 24)]
    assert here("shards", "retry", folder).code == 0
    assert here(*args).code == 4
    skipped = here(*args, "--on-error", "skip")
    assert skipped.code == 0, skipped.err
    assert output.read_text() == here("predict", RUN, sources, *FAST, "--on-error", "skip").out
    assert output.read_text().count("\n") == LINES


@pytest.mark.usefixtures("small")
def test_a_large_file_goes_through_a_ledger_that_is_gone_at_the_end(
    here: Callable[..., Done], sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    run = predict_shards.bulk.run

    def watch(ledger: object, *args: object) -> object:
        seen.append(len(ledger.done()))  # type: ignore[attr-defined]
        return run(ledger, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(predict_shards.bulk, "run", watch)
    output = tmp_path / "out"
    for workers in ("1", "2"):
        assert here("predict", RUN, sources, "--beam", "1", "--workers", workers, "-o", output).code == 0
        assert output.read_text() == here("predict", RUN, sources, "--beam", "1", "--workers", workers).out
    assert seen == [0, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "pairs.tsv", "sources.txt"]


@pytest.mark.usefixtures("small")
def test_a_large_file_that_cannot_be_finished_goes_on_and_not_with_other_options(
    here: Callable[..., Done], sources: Path, tmp_path: Path
) -> None:
    lines, output = sources.read_bytes().splitlines(keepends=True), tmp_path / "out"
    sources.write_bytes(b"".join([*lines[:20], b"a \xff b\n", *lines[20:]]))
    done = here("predict", RUN, sources, *FAST, "-o", output)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"{sources}:21: byte 0xFF" in done.err
    assert "8 of 9 shards are kept" in done.err
    assert not output.exists()
    done = here("predict", RUN, sources, *FAST, "-o", output, "--check")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "--check was false and is true; give the same again, delete" in done.err
    assert here("predict", RUN, sources, *FAST, "-o", output, "--on-error", "skip").code == 0
    assert output.read_text() == here("predict", RUN, sources, *FAST, "--on-error", "skip").out


def stop_in_the_middle(args: list[str | Path], work: Path, folder: Path, number: signal.Signals) -> tuple[int, str]:
    """Start a command, and send it a signal when two shards are done."""
    command = [sys.executable, "-m", "dragoman", *map(str, args)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=work, stderr=subprocess.PIPE, text=True, env=env) as parent:
        deadline = time.monotonic() + 120
        while len(list(folder.glob("shard-*"))) < 2:
            assert parent.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        parent.send_signal(number)
        _, err = parent.communicate(timeout=120)
    return parent.returncode, err


@pytest.mark.long
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_large_prediction_stopped_or_killed_goes_on_where_it_was(
    number: signal.Signals, workers: str, work: Path, here: Callable[..., Done], tmp_path: Path
) -> None:
    source, output, folder = tmp_path / "sources.txt", tmp_path / "out.txt", tmp_path / ".out.txt.shards"
    source.write_text("a b c d\nd c\n" * 30_000)
    args = ["predict", RUN, source, "-o", output, "--workers", workers]
    code, err = stop_in_the_middle(args, work, folder, number)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        assert err.count("\n") == 1
        assert "the same command goes on from there" in err
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("shard-*")}
    assert len(kept) >= 2
    assert not output.exists()
    stop_in_the_middle(args, work, folder, signal.SIGKILL)
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items()), "what is done is not done again"
    assert here(*args).code == 0
    assert output.read_text() == here("predict", RUN, source, "--workers", workers).out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.txt", "sources.txt"]
