"""The training files are read as few times as possible before the first step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragoman import training

opened: list[str] | None = None  # paths, while a test counts them; an audit hook cannot be removed


def note_open(event: str, arguments: tuple[object, ...]) -> None:
    if opened is not None and event == "open":
        opened.append(str(arguments[0]))


sys.addaudithook(note_open)


@pytest.fixture
def count_opens() -> Iterator[Callable[[Path], int]]:
    """How often a file was opened in this process since the last call."""
    global opened
    opened = []

    def count(path: Path) -> int:
        global opened
        assert opened is not None
        total, opened = opened.count(str(path)), []
        return total

    yield count
    opened = None


def run_to_first_step(config, folder):
    reports = training.run(config, folder)
    next(report for report in reports if report.kind == "step")
    reports.close()


@pytest.mark.parametrize(
    "sets",
    [
        ["tokenizer.source=characters"],
        ["tokenizer={source: characters, joint: true}"],
        ["tokenizer={source: characters, target: words}"],
        ["tokenizer={source: {name: bpe, size: 300}}"],
    ],
)
def test_the_training_file_is_opened_to_check_and_learn_to_hash_and_to_encode(sets, tiny, count_opens, tmp_path):
    made = tiny()
    config, train = made.config(*sets), made.folder / "train.tsv"
    run_to_first_step(config, tmp_path / "fresh")
    assert count_opens(train) == 3
    run_to_first_step(config, tmp_path / "again")  # hash and token store are in the cache
    assert count_opens(train) == 1


def test_a_resumed_run_does_not_read_the_training_file(tiny, count_opens, tmp_path):
    made = tiny()
    list(training.run(made.config("training.steps=5"), tmp_path / "run"))
    assert count_opens(made.folder / "train.tsv") == 3
    list(training.run(made.config("training.steps=6"), tmp_path / "run", allow_change=["training.steps"]))
    assert count_opens(made.folder / "train.tsv") == 0
