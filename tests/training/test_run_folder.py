"""A run writes into its own folder alone, and reads plain files of a limited size there, whoever made the folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dragoman import training
from dragoman.core.errors import ConfigError, RunError
from dragoman.inspection.views.replay import read_run
from dragoman.training.run_folder import RunFolder

from .conftest import Tiny

HUGE = 8 * 2**30


def write_everything(run: RunFolder, tiny: Callable[..., Tiny]) -> dict[str, Callable[[], None]]:
    """What a training writes, by the file it goes to."""

    def lock() -> None:
        with run.lock():
            pass

    return {
        ".lock": lock,
        "train.log": lambda: run.log("text"),
        "metrics.jsonl": lambda: run.record({"kind": "train", "step": 1}),
        "replay.jsonl": lambda: run.record({"step": 1}, "replay.jsonl"),
        "config.yaml": lambda: run.write_config(tiny().config()),
        "run.json": lambda: run.write_config(tiny().config()),
        "env.json": lambda: run.describe_machine(torch.device("cpu"), 1, 1),
        "best": lambda: run.write_pointer("best", "step-1"),
        "last": lambda: run.write_pointer("last", "step-1"),
        "finished": lambda: run.write_pointer("finished", "1"),
    }


@pytest.mark.parametrize("is_dangling", [False, True])
def test_nothing_is_written_through_a_link(tmp_path: Path, tiny: Callable[..., Tiny], is_dangling: bool) -> None:
    run, outside = RunFolder(tmp_path / "run"), tmp_path / "outside"
    run.path.mkdir()
    for name, write in write_everything(run, tiny).items():
        (run.path / name).unlink(missing_ok=True)
        (run.path / name).symlink_to(outside)
        if not is_dangling:
            outside.write_text("secret")
        if name in (".lock", "train.log", "metrics.jsonl", "replay.jsonl"):  # the others are replaced as a whole
            with pytest.raises(RunError, match=f"{name}: cannot be written: it is not a plain file"):
                write()
            (run.path / name).unlink()
        else:
            write()
        assert not outside.exists() if is_dangling else outside.read_text() == "secret", name


def test_a_lock_that_is_a_link_stops_a_training_and_its_target_stays(tmp_path: Path, tiny: Callable[..., Tiny]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "outside").write_text("secret")
    (tmp_path / "run/.lock").symlink_to(tmp_path / "outside")
    with pytest.raises(RunError, match="not a plain file"):
        list(training.run(tiny().config(), tmp_path / "run"))
    assert (tmp_path / "outside").read_text() == "secret"


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_a_run_does_not_write_into_a_folder_elsewhere(tmp_path: Path, tiny: Callable[..., Tiny], name: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(RunError, match=f"{name}: is a link"):
        list(training.run(tiny().config(), tmp_path / "run"))
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("name", [".lock", "train.log", "metrics.jsonl", "replay.jsonl"])
def test_a_pipe_in_the_place_of_a_record_is_refused_without_waiting(
    tmp_path: Path, tiny: Callable[..., Tiny], name: str
) -> None:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    os.mkfifo(run.path / name)
    with pytest.raises(RunError, match="not a plain file"):
        write_everything(run, tiny)[name]()


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE)


@pytest.mark.parametrize("make", [os.mkfifo, zeros, sparse])
def test_what_is_no_plain_file_of_a_usual_size_is_not_read(
    tmp_path: Path, tiny: Callable[..., Tiny], make: Callable[[Path], None]
) -> None:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    for name in ("finished", "metrics.jsonl", "replay.jsonl", "config.yaml"):
        make(run.path / name)
    assert run.finished_step is None
    with pytest.raises(RunError, match=r"metrics\.jsonl: cannot be read: it "):
        _ = run.seconds
    with pytest.raises(RunError, match=r"metrics\.jsonl: cannot be read: it "):
        list(run.truncate_records(1, 1))
    with pytest.raises(RunError, match=r"metrics\.jsonl: cannot be read: it "):
        read_run(run.path)
    with pytest.raises(ConfigError, match="cannot be read: it "):
        run.check_config(tiny().config(), [])
    (run.path / "metrics.jsonl").unlink()
    (run.path / "metrics.jsonl").write_text(json.dumps({"step": 1, "kind": "train", "loss": 2.0}) + "\n")
    with pytest.raises(RunError, match=r"replay\.jsonl: cannot be read: it "):
        read_run(run.path)
    (run.path / "replay.jsonl").unlink()
    assert not read_run(run.path)["finished"]
