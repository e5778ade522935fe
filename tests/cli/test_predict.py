"""N lines in, N lines out, in order, whatever they hold (FAULTS 9, 10, 11); a file of output is whole or absent."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cli import progress
from dragoman.cli.inputs import LineInputs
from dragoman.cli.output import render
from dragoman.core.processes import can_fork
from dragoman.data.lines import ReadReport
from dragoman.inference.prediction import Prediction

from .conftest import Done, process

RUN = "runs/copy"
workers_work = pytest.mark.skipif(not can_fork(), reason="workers need Linux")
CLEAN = ["a b", "", "c a d", "b", "  ", "d d a"]
RESULT = Prediction("a b", -0.5, -2.0, ["a", "␣", "b"], [-0.5, -0.5, -0.5, -0.5], "eos", ["a", "␣", "b", "</s>"])


def lines(done: Done) -> list[str]:
    assert done.code == 0, done.err
    assert done.out == "" or done.out.endswith("\n")
    return done.out.split("\n")[:-1]


@pytest.fixture
def clean(here: Callable[..., Done]) -> list[str]:
    return lines(here("predict", RUN, input="".join(f"{line}\n" for line in CLEAN).encode()))


@pytest.mark.parametrize(
    ("about", "data"),
    [
        ("no newline at the end", "\n".join(CLEAN).encode()),
        ("CRLF", "".join(f"{line}\r\n" for line in CLEAN).encode()),
        ("a byte order mark", b"\xef\xbb\xbf" + "".join(f"{line}\n" for line in CLEAN).encode()),
        ("both", b"\xef\xbb\xbf" + "".join(f"{line}\r\n" for line in CLEAN).encode()),
        ("separators inside a line", "a\u2028b\n\nc\x85a\x0bd\nb\n \u2029\nd\rd\x0ca\n".encode()),
        ("gzip", gzip.compress("".join(f"{line}\n" for line in CLEAN).encode(), mtime=0)),
    ],
)
def test_what_can_be_mended_gives_the_results_of_the_clean_file(
    here: Callable[..., Done], clean: list[str], tmp_path: Path, about: str, data: bytes
) -> None:
    assert len(clean) == len(CLEAN)
    assert [line == "" for line in clean] == [not line.strip() for line in CLEAN]
    assert lines(here("predict", RUN, input=data)) == clean
    (tmp_path / "sources.txt").write_bytes(data)
    done = here("predict", RUN, tmp_path / "sources.txt")
    assert lines(done) == clean
    assert done.err.count("\n") == {"no newline at the end": 0, "gzip": 0, "both": 2}.get(about, 1)  # a notice each


def test_an_empty_file_gives_an_empty_result(here: Callable[..., Done], tmp_path: Path) -> None:
    assert lines(here("predict", RUN, input=b"")) == []
    assert lines(here("predict", RUN, input=b"\n\n")) == ["", ""]
    (tmp_path / "empty.txt").write_bytes(b"")
    assert lines(here("predict", RUN, tmp_path / "empty.txt", "--format", "jsonl")) == []


BAD = {
    "not UTF-8": b"c \xe9 d",
    "NUL": b"c \x00 d",
    "a lone surrogate": b"c \xed\xa0\x80 d",
    "half a character": b"c \xe2\x82",
}


@pytest.mark.parametrize("what", BAD)
def test_a_line_that_is_no_text_stops_with_its_place_and_leaves_no_file(
    here: Callable[..., Done], tmp_path: Path, what: str
) -> None:
    source, output = tmp_path / "sources.txt", tmp_path / "results.txt"
    source.write_bytes(b"a b\n\n" + BAD[what] + b"\nb\n")
    done = here("predict", RUN, source, "--output", output)
    assert done.code == 2
    assert f"{source}:3: " in done.err
    assert "Traceback" not in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["sources.txt"]
    output.write_text("from before")
    assert here("predict", RUN, source, "--output", output).code == 2
    assert output.read_text() == "from before"


@pytest.mark.parametrize("what", BAD)
def test_a_skipped_line_is_an_empty_line_in_its_place(here: Callable[..., Done], tmp_path: Path, what: str) -> None:
    (tmp_path / "sources.txt").write_bytes(b"a b\n" + BAD[what] + b"\nb\n" + BAD[what] + b"\n")
    done = here("predict", RUN, tmp_path / "sources.txt", "--on-error", "skip")
    expected = lines(here("predict", RUN, input=b"a b\n\nb\n\n"))
    assert lines(done) == expected
    assert "2 lines" in done.err


def test_a_process_reads_the_standard_input_and_names_it(work: Path) -> None:
    done = process("predict", RUN, "-", cwd=work, input=b"a\n\xff\n")
    assert (done.code, done.out.count("\n")) == (2, 1)  # what was read before it is answered
    assert "<stdin>:2: " in done.err
    assert "Traceback" not in done.err


def test_jsonl_sources_are_read_by_their_name(here: Callable[..., Done], tmp_path: Path) -> None:
    path = tmp_path / "sources.jsonl"
    path.write_text('{"source": "a b"}\n\n{"source": "c", "other": 1}\n')
    assert lines(here("predict", RUN, path, "--format", "text")) == lines(here("predict", RUN, input=b"a b\n\nc\n"))
    path.write_text('{"source": "a b"}\n{"sorce": "c"}\n')
    done = here("predict", RUN, path)
    assert done.code == 2
    assert f"{path}:2: " in done.err
    assert "did you mean" in done.err


# -- formats -----------------------------------------------------------------------------------------------------------


def test_tsv_and_jsonl_hold_the_n_best_of_every_line(here: Callable[..., Done]) -> None:
    data = b"a b\n\nc d a\n"
    rows = [line.split("\t") for line in lines(here("predict", RUN, "--nbest", "3", "--format", "tsv", input=data))]
    assert [(row[0], row[1]) for row in rows] == [
        ("1", "1"),
        ("1", "2"),
        ("1", "3"),
        ("2", "1"),
        *((("3", str(i))) for i in (1, 2, 3)),
    ]
    objects = [
        json.loads(line) for line in lines(here("predict", RUN, "--nbest", "3", "--format", "jsonl", input=data))
    ]
    assert [value["line"] for value in objects] == [1, 2, 3]
    ranked = [result for value in objects for result in [value, *value.get("alternatives", [])]]
    for row, result in zip(rows, ranked, strict=True):
        assert row[3] == result["text"]
        assert abs(float(row[2]) - result["score"]) < 1e-5
        assert abs(sum(result["log_probs"]) - result["log_prob"]) < 1e-9
        assert len(result["log_probs"]) == len(result["tokens"]) + (result["finish_reason"] == "eos")
    assert objects[0]["source_tokens"] == ["a", "␣", "b", "</s>"]
    assert (objects[1]["finish_reason"], objects[1]["text"]) == ("empty_source", "")
    best = lines(here("predict", RUN, input=data))
    assert best == [value["text"] for value in objects]


@given(text=st.text(st.sampled_from("a\n\r\t\\ é\u2028"), max_size=10), alternative=st.text(max_size=10))
def test_a_result_with_line_breaks_or_tabs_keeps_its_line_and_columns(text: str, alternative: str) -> None:
    prediction = replace(RESULT, text=text, alternatives=[replace(RESULT, text=alternative)])
    (line,) = render(1, prediction, "text")
    assert not set(line) & set("\n\r\t")
    if not set(text) & set("\n\r\t"):
        assert line == text
    first, second = render(1, prediction, "tsv")
    assert (first.count("\t"), second.count("\t")) == (3, 3)
    assert "\n" not in first + second
    (row,) = render(1, prediction, "jsonl")
    assert "\n" not in row
    assert json.loads(row)["text"] == text


# -- files of output ---------------------------------------------------------------------------------------------------


def test_a_file_of_output_holds_what_would_have_been_printed(here: Callable[..., Done], tmp_path: Path) -> None:
    output = tmp_path / "results.txt"
    printed = here("predict", RUN, "test.tsv", "--format", "text")
    done = here("predict", RUN, "test.tsv", "-o", output)
    assert done._replace(out="") == printed._replace(out="")
    assert done.out == ""
    assert output.read_bytes().decode() == printed.out
    assert [path.name for path in tmp_path.iterdir()] == ["results.txt"]


def test_a_place_that_cannot_be_written_is_one_message(here: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    places = [tmp_path / "file" / "results.txt", tmp_path / "none" / "results.txt", tmp_path / "folder"]
    if os.geteuid() != 0:  # to root nothing is read-only
        (tmp_path / "closed").mkdir(mode=0o500)
        places.append(tmp_path / "closed" / "results.txt")
    for place in places:
        done = here("predict", RUN, "--output", place, input=b"a b\n")
        assert done.code == 2
        assert str(place) in done.err
        assert done.err.count("\n") == 1


def test_a_device_is_written_to_and_stays_a_device(here: Callable[..., Done], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert here("predict", RUN, "--output", pipe, input=b"\n\n").code == 0
        assert os.read(reader, 100) == b"\n\n"
        assert pipe.is_fifo()
    finally:
        os.close(reader)


# -- many lines, many processes ----------------------------------------------------------------------------------------


def many(count: int) -> list[str]:
    return [" ".join("abcd"[(i * i + k) % 4] for k in range(i % 6)) for i in range(count)]


@workers_work
def test_two_workers_write_what_one_process_writes(here: Callable[..., Done], tmp_path: Path) -> None:
    source = tmp_path / "sources.txt"
    source.write_text("".join(f"{line}\n" for line in many(300)))
    alone = here("predict", RUN, source, "--format", "jsonl", "--workers", "1")
    both = here("predict", RUN, source, "--format", "jsonl", "--workers", "2")
    assert both.err == alone.err == ""
    for a, b in zip(lines(both), lines(alone), strict=True):
        one, two = json.loads(a), json.loads(b)
        assert one.pop("log_probs") == pytest.approx(two.pop("log_probs"), abs=1e-5)
        for key in ("score", "log_prob"):
            assert one.pop(key) == pytest.approx(two.pop(key), abs=1e-4)
        assert one == two
    sampled = [here("predict", RUN, source, "--search", "sample", "--seed", "3", "--workers", n) for n in "12"]
    assert lines(sampled[0]) == lines(sampled[1])


@workers_work
def test_a_bad_line_stops_two_workers_after_the_lines_before_it(here: Callable[..., Done], tmp_path: Path) -> None:
    source, output = tmp_path / "sources.txt", tmp_path / "results.txt"
    source.write_bytes("".join(f"{line}\n" for line in many(250)).encode() + b"\xff\na\n")
    done = here("predict", RUN, source, "--workers", "2")
    assert done.code == 2
    assert f"{source}:251: " in done.err
    source.write_text("".join(f"{line}\n" for line in many(250)))
    assert done.out == here("predict", RUN, source, "--workers", "1").out
    assert here("predict", RUN, source, "--workers", "2", "--device", "cpu", "-o", output).code == 0
    assert output.read_text() == done.out


@workers_work
def test_a_killed_worker_is_one_sentence_and_what_was_answered_is_written(work: Path, tmp_path: Path) -> None:
    source = tmp_path / "sources.txt"
    source.write_text("a b c d\n" * 30_000)
    args = [sys.executable, "-m", "dragoman", "predict", RUN, str(source), "--workers", "2"]
    with subprocess.Popen(args, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        first = parent.stdout.readline()
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert len(children) == 2
        os.kill(int(children[0]), signal.SIGKILL)
        out, err = parent.communicate(timeout=120)
        assert parent.returncode == 2
    assert re.fullmatch(
        r"(.* lines/s.*\n)?error: worker 1 of 2 \(process \d+\) was killed by SIGKILL .*lines [\d,]+ to [\d,]+;.*\n",
        err,
    )
    assert len(set(out.split("\n")) - {first.strip(), ""}) <= 1  # whole lines alone; a near-tie may fall either way
    assert out.endswith("\n")
    assert out.count("\n") < 30_000 - 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_the_options_of_speed_are_refused_in_one_sentence(here: Callable[..., Done]) -> None:
    done = here("predict", RUN, "--precision", "float23", input=b"a\n")
    assert done.code == 2
    assert "float23" in done.err
    assert "int8" in done.err
    assert here("predict", RUN, "--workers", "0", input=b"a\n").code == 2


def test_results_of_the_reference_are_those_of_the_engines(here: Callable[..., Done]) -> None:
    data = "".join(f"{line}\n" for line in many(40)).encode()
    assert lines(here("predict", RUN, "--reference", input=data)) == lines(here("predict", RUN, input=data))


def test_the_engine_is_explained_on_request(here: Callable[..., Done]) -> None:
    done = here("predict", RUN, "--explain-engine", "--device", "cpu", input=b"a\n")
    assert "decoding on cpu: " in done.err
    assert "not cuda: " in done.err
    assert "decoding" not in here("predict", RUN, "--device", "cpu", input=b"a\n").err
    reference = here("predict", RUN, "--explain-engine", "--reference", "--device", "cpu", input=b"a\n")
    assert "decoding on cpu: reference" in reference.err


# -- the bar -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["txt", "txt.gz"])
def test_the_number_of_lines_is_guessed_from_the_bytes_read_and_right_in_the_end(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"sources.{ending}"
    rng = random.Random(5)
    data = "".join("".join(rng.choices("abcdefgh ", k=rng.randrange(90))) + "\n" for _ in range(20_000)).encode()
    path.write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    given = LineInputs(str(path), "stop", ReadReport())
    assert given.expected is None
    for number, _ in enumerate(given, 1):
        if number == 10_000:
            assert given.expected == pytest.approx(20_000, rel=0.1)
    assert (given.lines, given.expected) == (20_000, 20_000)


def test_nobody_knows_how_much_comes_through_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    there, here = os.pipe()
    os.write(here, b"a\nb\n")
    os.close(here)
    with os.fdopen(there, encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        given = LineInputs("-", "stop", ReadReport())
        assert [(source.source, given.expected) for _, source in given] == [("a", None), ("b", None)]
    assert given.expected == 2


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs terminals")
def test_a_terminal_shows_how_far_a_file_is_while_workers_answer_it(work: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "sources.txt", tmp_path / "results.txt"
    source.write_text("".join(f"{line}\n" for line in many(300)))
    ours, theirs = os.openpty()
    args = [sys.executable, "-m", "dragoman", "predict", RUN, str(source), "-o", str(output)]
    env = os.environ | {"COLUMNS": "120", "TERM": "xterm", "NO_COLOR": "1"}
    workers = ["--workers", "2"] if can_fork() else []
    with subprocess.Popen([*args, *workers], cwd=work, stderr=theirs, stdin=subprocess.DEVNULL, env=env) as parent:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # what a terminal gives when nobody writes to it any more
            while chunk := os.read(ours, 4096):
                shown += chunk
        assert parent.wait(120) == 0
    os.close(ours)
    assert "sources.txt" in shown.decode()
    assert re.search(r"300 lines .* lines/s .* left 0:00", shown.decode())
    assert output.read_text().count("\n") == 300


# -- what is not there -------------------------------------------------------------------------------------------------


def test_a_model_or_file_that_is_not_there_is_one_message_with_the_nearest_name(
    here: Callable[..., Done], work: Path
) -> None:
    for args, words in {
        ("predict", "runs/cpy"): ["runs/cpy", "did you mean 'copy'"],
        ("predict", RUN, "tset.tsv"): ["tset.tsv", "did you mean 'test.tsv'"],
        ("predict", RUN, "runs"): ["runs", "folder"],
        ("score", RUN, "none/test.tsv"): ["none"],
        ("evaluate", RUN, "test.txt,test.txt"): ["test.txt"],
        ("inspect", "copy.yaml", "a"): ["copy.yaml", "is no model"],
        ("predict", "runs/.."): ["neither a model folder"],
    }.items():
        done = here(*args, input=b"a\n")
        assert done.code == 2, args
        assert done.out == ""
        assert done.err.count("\n") == 1
        assert all(word in done.err for word in words), done.err


def test_a_damaged_model_is_named_and_not_used(work: Path, tmp_path: Path, here: Callable[..., Done]) -> None:
    run = Path(shutil.copytree(work / RUN, tmp_path / "run"))
    best = (run / "best").read_text().strip()
    weights = run / "checkpoints" / best / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 0x10
    weights.write_bytes(data)
    done = here("predict", run, input=b"a\n")
    assert (done.code, done.out) == (2, "")
    assert str(weights) in done.err
    assert "checksum" in done.err


def test_without_a_terminal_a_line_now_and_then_says_how_far_a_file_is(
    here: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "sources.txt"
    source.write_text("".join(f"{line}\n" for line in many(20)))
    assert "lines/s" not in here("predict", RUN, source, "--workers", "1").err
    monkeypatch.setattr(progress, "RESULT_INTERVAL_S", 0.0)
    told = here("predict", RUN, source, "--workers", "1").err.splitlines()
    assert len(told) == 20
    assert re.fullmatch(r"sources\.txt: 20 of about 20 lines, [\d.,]+ lines/s, 0:00 left", told[-1])
