"""Curves and frames of a run, from files written by hand and from a run that trains."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dragoman import config as configs
from dragoman import training
from dragoman.core.errors import RunError
from dragoman.inspection.views.replay import read_run

METRICS = [
    {"kind": "train", "step": 1, "epoch": 0, "loss": 3.5, "learning_rate": 0.1, "gradient_norm": 2.0, "tokens": 7},
    {"kind": "train", "step": 2, "epoch": 0, "loss": 3.0, "learning_rate": 0.2, "gradient_norm": None, "tokens": 14},
    {"kind": "valid", "step": 2, "epoch": 0, "loss": 3.25, "perplexity": 25.79, "exact": 10.0},
    {"kind": "train", "step": 3, "epoch": 1, "loss": 2.5, "learning_rate": 0.1, "gradient_norm": 1.5, "tokens": 20},
    {"kind": "average", "step": 3, "checkpoints": 2, "loss": 1.0},
]
FRAME = {
    "step": 2,
    "sources": [
        {
            "source": "a",
            "output": "ä",
            "log_prob": -0.5,
            "source_tokens": ["a", "</s>"],
            "tokens": ["ä"],
            "attention": [[1.0, 0.0]],
        }
    ],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three steps whose process is just writing a line to each file."""
    folder = tmp_path / "by-hand"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in METRICS) + '{"kind": "tra')
    frame = json.dumps(FRAME, ensure_ascii=False).encode()
    (folder / "replay.jsonl").write_bytes(frame + b"\n" + frame[: frame.index("ä".encode()) + 1])  # half a letter
    return folder


def test_curves_and_frames_are_those_of_the_files_and_a_half_line_is_left_out(run: Path) -> None:
    assert read_run(run) == {
        "run": "by-hand",
        "curves": {
            "loss": [[1, 3.5], [2, 3.0], [3, 2.5]],
            "rate": [[1, 0.1], [2, 0.2], [3, 0.1]],
            "valid": [[2, 3.25]],
            "gradient_norm": [[1, 2.0], [3, 1.5]],
            "perplexity": [[2, 25.79]],
            "exact": [[2, 10.0]],
        },
        "frames": [FRAME],
        "finished": False,
    }


def test_a_run_is_finished_at_the_step_it_noted_and_not_beyond(run: Path) -> None:
    (run / "finished").write_text("3\n")
    assert read_run(run)["finished"]
    (run / "finished").write_text("2\n")  # it was made longer, and is on its way
    assert not read_run(run)["finished"]


def test_lines_that_a_kill_left_in_the_middle_are_passed_over(run: Path) -> None:
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text('{"kind": "train", "st\n[1]\n"step"\n' + text)
    assert read_run(run)["curves"]["loss"] == [[1, 3.5], [2, 3.0], [3, 2.5]]


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunError, match=rf"{folder}: there is no run"):
            read_run(folder)


def test_a_run_can_be_followed_from_its_first_moment_to_its_end(tmp_path: Path) -> None:
    """Read after every report of a run: each step and each checkpoint is there as soon as it was told."""
    for side, words in {"train": ["ab", "ba", "aab", "bba"], "valid": ["ab", "bb"]}.items():
        path = tmp_path / f"{side}.tsv"
        path.write_text("".join(f"{word}\t{word}\n" for word in words))
        os.utime(path, (1e9, 1e9))
    value = {
        "data": {"train": str(tmp_path / "train.tsv"), "valid": str(tmp_path / "valid.tsv")},
        "model": {"width": 8, "encoder": {"name": "rnn"}, "decoder": {"name": "rnn"}, "tie": "none"},
        "training": {"steps": 6, "save_every": 2, "validate_every": 3, "log_every": 1, "schedule": "constant"},
        "runtime": {"device": "cpu", "threads": 1},
    }
    logged: list[list[float]] = []
    saved: list[int] = []
    for report in training.run(configs.validate(value, "a test"), tmp_path / "run"):
        if report.kind == "log":
            logged.append([report.step, report.values["loss"]])
        if report.kind == "saved":
            saved.append(report.step)
        found = json.loads(json.dumps(read_run(tmp_path / "run"), allow_nan=False))
        assert found["curves"]["loss"] == logged
        assert [frame["step"] for frame in found["frames"]] == saved
        assert found["finished"] == (report.kind == "end")
    assert [step for step, _ in found["curves"]["valid"]] == [3, 6]
    assert {2, 4, 6} <= {*saved}
    for frame in found["frames"]:
        assert [entry["source"] for entry in frame["sources"]] == ["ab", "bb"]
