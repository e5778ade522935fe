"""A machine that loses its power during a training has a whole checkpoint, whichever unflushed writes are lost.

The file calls of a training are recorded once and replayed up to every point; a quick subset in `make test`.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
import torch

from dragoman import config as configs
from dragoman import training
from dragoman.checkpoint import model_folder

from .commands import end_of_run, temporary_files, write_data
from .crash import Bytes, Disk, Names, Recording, recorder, write_state
from .disk import interpose

BYTES: tuple[Bytes, ...] = ("kept", "dropped", "half", "zeros")
NAMES: tuple[Names, ...] = ("kept", "dropped", "cut")


@dataclass
class Recorded:
    """A whole training: its file calls, how many of them had been made when each checkpoint was reported, its end."""

    folder: Path
    calls: Recording
    saved: list[tuple[int, int]]  # calls so far, step
    end: dict[str, object]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("power")
    root, calls = folder / "disk", Recording()
    root.mkdir()
    write_data(folder)
    with interpose(root, recorder(calls)):
        reports = training.run(config_of(folder), root / "run")
        saved = [(len(calls), report.step) for report in reports if report.kind == "saved"]
    return Recorded(folder, calls, saved, end_of_run(root / "run"))


def config_of(folder: Path) -> configs.Config:
    """The config; its token stores are beside the run."""
    return configs.load(folder / "tiny.yaml", None, ["data.cache=null"]).config


State = tuple[int, Bytes, Names, dict[str, bytes | None]]


Point = tuple[int, Bytes, Names]


def every_point(recorded: Recorded) -> list[Point]:
    return list(product(range(1, len(recorded.calls) + 1), BYTES, NAMES))


def states(recorded: Recorded, points: list[Point], rng: random.Random) -> Iterator[State]:
    """The different states of the disk after crashes at some points, with the number of calls before each."""
    disk, seen = Disk(recorded.folder / "disk"), set[int]()
    at = {n: [point for point in points if point[0] == n] for n, _, _ in points}
    for n, call in enumerate(recorded.calls, 1):
        disk.apply(call)
        for _, kind, names in at.get(n, []):
            state = disk.after_crash(kind, names, rng)
            key = hash((sum(calls <= n for calls, _ in recorded.saved), *state.items()))
            if key not in seen:
                seen.add(key)
                yield n, kind, names, state


def check_state(recorded: Recorded, state: State, folder: Path) -> None:
    """A whole checkpoint loads, none that was reported is lost, and pointers name whole ones."""
    n, kind, names, _ = state
    where = f"after call {n} ({recorded.calls[n - 1].kind} {recorded.calls[n - 1].path}), bytes {kind}, names {names}"
    run = folder / "run"
    last = max((step for calls, step in recorded.saved if calls <= n), default=0)
    newest, ignored = model_folder.latest_checkpoint(run)
    step = 0 if newest is None else int(newest.name.removeprefix("step-"))
    assert step >= last, f"{where}: step {last} was saved, and {newest} is the newest whole checkpoint; {ignored}"
    if names != "cut":  # where folders keep their order, as on journaling file systems, nothing is half there
        assert not ignored, f"{where}: half there: {ignored}"
    if last:
        model_folder.verify(model_folder.resolve(run))


def resume(recorded: Recorded, state: State, folder: Path) -> None:
    """The same command ends as the training without a crash did."""
    list(training.run(config_of(recorded.folder), folder / "run"))
    assert end_of_run(folder / "run") == recorded.end, state[:3]
    assert not list(temporary_files(folder)), state[:3]


def check(recorded: Recorded, points: list[Point], resumed: int, folder: Path) -> None:
    rng = random.Random(torch.initial_seed())
    chosen = set(rng.sample(range(len(points)), resumed))
    for i, state in enumerate(states(recorded, points, rng)):
        place = folder / str(i)
        write_state(state[3], place)
        check_state(recorded, state, place)
        if i in chosen:
            resume(recorded, state, place)
        shutil.rmtree(place)


def test_a_power_cut_at_some_points_of_a_training_loses_no_saved_checkpoint(recorded: Recorded, tmp_path: Path) -> None:
    check(recorded, random.sample(every_point(recorded), 60), 2, tmp_path)


@pytest.mark.long
def test_a_power_cut_at_any_point_of_a_training_loses_no_saved_checkpoint(recorded: Recorded, tmp_path: Path) -> None:
    check(recorded, every_point(recorded), 400, tmp_path)


def test_the_recording_replayed_to_its_end_is_what_is_on_the_disk(recorded: Recorded) -> None:
    """The check is worth something only if no call escapes the recording."""
    disk = Disk(recorded.folder / "disk")
    for call in recorded.calls:
        disk.apply(call)
    root, state = recorded.folder / "disk", disk.after_crash("kept", "kept", random.Random(0))
    there = {os.path.relpath(path, root): None if path.is_dir() else path.read_bytes() for path in root.rglob("*")}
    assert state == there
