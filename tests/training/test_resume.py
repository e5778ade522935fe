"""A run that was killed, stopped or abandoned and started again by the same command ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman import training
from dragoman.checkpoint import model_folder

LINEAR = "training.schedule={name: linear, warmup: 5}"
SUBWORDS = "tokenizer.source={name: bpe, size: 40, dropout: 0.1, byte_fallback: false}"
# All that has a state of its own: an average, accumulated batches, sampled subwords, dropout, a worker, and a schedule
# that listens to validations (of exact matches, of which there are none, so that it has something to do).
KINDS = {
    "rnn": ("rnn", [SUBWORDS, "tokenizer.joint=true", "training.ema=0.9", "training.accumulate=2", LINEAR]),
    "transformer": (
        "transformer",
        [
            SUBWORDS,
            "data.workers=1",
            "training.schedule={name: plateau, patience: 1}",
            "training.validate_every=6",
            "training.validate_metrics=[exact]",
            "training.best=exact",
        ],
    ),
    "transformer of averages": (
        "transformer",
        [
            "training.optimizer={name: adamw, rate: 0.003}",
            "training.average=3",
            "training.validate_every=7",
            "training.validate_metrics=[exact]",
            "training.log_every=3",
        ],
    ),
    "rnn without a validation set": ("rnn", ["data.valid=null", "training.keep=1", "training.epochs=2"]),
}


def train(config: Any, run: Path) -> list[training.Report]:
    return list(training.run(config, run))


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> random.Random:
    """Fresh randomness each time; the seed is printed where a test fails."""
    seed = torch.initial_seed() % 10**6
    print(f"kills are drawn from seed {seed}")
    return random.Random(seed)


def survive(
    start: Callable[[], Any], reached: Callable[[], int], steps: int, kills: int, draw: random.Random
) -> list[int]:
    """Start, kill -9 at a random moment, start again, …; at last let it finish. The steps it was killed at."""
    points = sorted(draw.sample(range(1, steps + 1), kills))
    died = []
    for point in points:
        command = start()
        if command.until(lambda point=point: reached() >= point):
            moment = time.perf_counter() + draw.random() * 0.03  # anywhere in a step, a validation, a save
            command.until(lambda moment=moment: time.perf_counter() > moment)
            command.kill()
            died.append(reached())
    command = start()
    assert command.wait() == 0, command.output
    return died


def reached(run: Path) -> int:
    """The last step that metrics.jsonl speaks of; its last line may be half written."""
    try:
        lines = (run / "metrics.jsonl").read_text().split("\n")
    except FileNotFoundError:
        return 0
    return max((json.loads(line)["step"] for line in lines[:-1]), default=0)


@pytest.mark.parametrize(
    "kind", [k if k in ("rnn", "transformer") else pytest.param(k, marks=pytest.mark.long) for k in KINDS]
)
def test_a_run_killed_three_times_ends_as_one_that_was_not(kind, tiny, shell, same_end, draw, tmp_path):
    family, sets = KINDS[kind]
    train(tiny(family).config(*sets), tmp_path / "whole")
    run = tmp_path / "killed"
    survive(lambda: shell(tiny(family).command(run, *sets)), lambda: reached(run), 40, 3, draw)
    same_end(run, tmp_path / "whole")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_twenty_times_ends_as_one_that_was_not(kind, tiny, shell, same_end, draw, tmp_path):
    family, sets = KINDS[kind]
    longer = [*sets, "training.steps=120"]
    train(tiny(family).config(*longer), tmp_path / "whole")
    run = tmp_path / "killed"
    died = survive(lambda: shell(tiny(family).command(run, *longer)), lambda: reached(run), 120, 20, draw)
    same_end(run, tmp_path / "whole")
    assert len(died) > 10 or "without" in kind  # which two epochs end early


def test_the_command_as_a_user_starts_it_survives_a_kill(tiny, same_end, draw, tmp_path):
    sets = KINDS["transformer"][1]
    train(tiny("transformer").config(*sets), tmp_path / "whole")
    run = tmp_path / "killed"
    command = [sys.executable, "-m", "dragoman", *tiny("transformer").command(run, *sets)]
    point = draw.randint(6, 36)
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while first.poll() is None and reached(run) < point:
        assert time.monotonic() < end
        time.sleep(0.005)  # the core is the run's
    first.kill()
    first.wait()
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    same_end(run, tmp_path / "whole")


@pytest.mark.parametrize("family", ["rnn", "transformer"])
def test_a_run_abandoned_at_random_steps_ends_as_one_that_was_not(family, tiny, same_end, draw, tmp_path):
    config = tiny(family).config("training.ema=0.99", "training.average=2", "training.epochs=3")
    train(config, tmp_path / "whole")
    run = tmp_path / "abandoned"
    for _ in range(6):
        stop, reports = draw.randint(5, 30), training.run(config, run)
        for number, _report in enumerate(reports):
            if number == stop:
                break
        reports.close()  # type: ignore[attr-defined]
    train(config, run)
    same_end(run, tmp_path / "whole")


def test_at_most_one_interval_is_lost(tiny, tmp_path):
    config = tiny().config("training.save_every=7", "data.valid=null")
    reports = training.run(config, tmp_path / "run")
    for report in reports:
        if report.kind == "step" and report.step == 20:
            break
    reports.close()  # type: ignore[attr-defined]
    start = next(report for report in training.run(config, tmp_path / "run") if report.kind == "start")
    assert start.step == 14


def test_metrics_after_the_checkpoint_are_removed_on_resume(tiny, metrics, tmp_path):
    config, run = tiny().config("training.validate_every=6"), tmp_path / "run"
    reports = training.run(config, run)
    for report in reports:
        if report.kind == "log" and report.step == 9:
            break
    reports.close()  # type: ignore[attr-defined]
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # what a kill in the middle of a line leaves
    resumed = training.run(config, run)
    assert next(report for report in resumed if report.kind == "start").step == 6
    assert [(line["kind"], line["step"]) for line in metrics(run)] == [
        *(("train", step) for step in range(1, 7)),
        ("valid", 6),
    ]
    resumed.close()  # type: ignore[attr-defined]


def test_the_time_spent_is_resumed_with_the_run(tiny, tmp_path):
    config, run = tiny().config("training.steps=12"), tmp_path / "run"
    for last in (3, 8):
        reports = training.run(config, run)
        next(report for report in reports if report.kind == "log" and report.step == last)
        reports.close()  # type: ignore[attr-defined]
    train(config, run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in lines if line["kind"] == "train"]
    assert len(seconds) == 12
    assert seconds == sorted(seconds)
    assert seconds[0] > 0


def test_a_finished_run_is_left_as_it_is(tiny, tmp_path):
    config, run = tiny().config("training.average=3"), tmp_path / "run"

    def everything() -> dict[str, bytes]:
        return {
            str(path.relative_to(run)): path.read_bytes()
            for path in run.rglob("*")
            if path.is_file() and path.name not in ("train.log", "env.json")
        }

    train(config, run)
    before = everything()
    reports = train(config, run)
    assert [report.kind for report in reports if report.kind != "notice"] == ["end"]
    assert everything() == before


@pytest.mark.parametrize("where", ["average", "finished"])
def test_a_run_killed_while_it_finishes_finishes(where, tiny, same_end, tmp_path):
    """The last steps of a run: the average is validated and saved, `best` points to it, the end is noted."""
    config = tiny().config("training.average=3", "training.steps=20")
    train(config, tmp_path / "whole")
    train(config, tmp_path / "run")
    run = tmp_path / "run"
    (run / "finished").unlink()
    if where == "average":
        (run / "best").write_text((run / "last").read_text())
    train(config, run)
    same_end(run, tmp_path / "whole")


def test_a_longer_run_by_allowed_change_is_the_longer_run(tiny, metrics, tmp_path):
    """With a schedule that does not know the end, 20 steps and then 20 more are 40."""
    common = ["training.validate_every=5"]
    train(tiny().config(*common), tmp_path / "whole")
    train(tiny().config(*common, "training.steps=20"), tmp_path / "run")
    list(training.run(tiny().config(*common), tmp_path / "run", allow_change=["training.steps"]))
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    mine, theirs = (model_folder.list_checkpoints(tmp_path / name)[-1] for name in ("run", "whole"))
    assert (mine / "model.safetensors").read_bytes() == (theirs / "model.safetensors").read_bytes()


def test_the_number_of_threads_belongs_to_the_run(tiny, tmp_path):
    """Sums in another order are other sums: a run keeps the threads it began with, whatever is asked for later."""
    config, run = tiny().config("training.steps=4", "training.save_every=2"), tmp_path / "run"
    reports = training.run(config, run)
    next(report for report in reports if report.kind == "saved")
    reports.close()  # type: ignore[attr-defined]
    try:
        resumed = training.run(tiny().config("training.steps=4", "training.save_every=2", "runtime.threads=2"), run)
        next(report for report in resumed if report.kind == "start")
        assert torch.get_num_threads() == 1
        resumed.close()  # type: ignore[attr-defined]
    finally:
        torch.set_num_threads(1)


# -- signals -----------------------------------------------------------------------------------------------------------

SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 143}


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_saves_the_step_it_came_in_and_stops(number, tiny, shell, same_end, draw, tmp_path):
    made, run = tiny("transformer"), tmp_path / "run"
    sets = ["training.save_every=40", "training.validate_every=40", "training.steps=100"]
    command = shell(made.command(run, *sets))
    point = draw.randint(2, 30)
    assert command.until(lambda: reached(run) >= point)
    command.send(number)
    assert command.wait() == SIGNALS[number], command.output
    saved = model_folder.list_checkpoints(run)[-1]
    assert saved.name == f"step-{reached(run)}"  # the very step it stopped after, not the last that was due
    assert "Traceback" not in command.output
    command = shell(made.command(run, *sets))
    assert command.wait() == 0, command.output
    train(made.config(*sets), tmp_path / "whole")
    same_end(run, tmp_path / "whole")


def test_a_second_interrupt_stops_at_once(tiny, shell, tmp_path):
    """Someone who keeps pressing Ctrl-C does not wait for a slow step to end and be saved."""
    made, run = tiny("rnn", pairs=3000, longest=100), tmp_path / "run"
    slow = ["training.batch_tokens=300000", "data.valid=null", "model.width=128"]  # a small batch, then a huge one
    command = shell(made.command(run, *slow))
    assert command.until(lambda: reached(run) >= 1)
    presses = 0
    while command.running:
        command.send(signal.SIGINT)
        presses += 1
        command.process.join(0.5)  # else two presses may arrive as one
    assert command.wait() == 130
    assert presses >= 2  # more where one came while another was not yet seen
    assert reached(run) == 1
    assert model_folder.list_checkpoints(run) == []
    assert "Traceback" not in command.output


def test_signal_handlers_are_restored(tiny, tmp_path):
    before = {number: signal.getsignal(number) for number in SIGNALS}
    reports = training.run(tiny().config(), tmp_path / "run")
    for report in reports:
        if report.kind == "step" and report.step == 2:
            break
    assert all(signal.getsignal(number) != before[number] for number in SIGNALS)
    reports.close()  # type: ignore[attr-defined]
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


# -- the lock ----------------------------------------------------------------------------------------------------------


def test_a_second_training_in_a_folder_is_refused_by_the_name_of_the_first(tiny, shell, tmp_path):
    made, run = tiny(), tmp_path / "run"
    first = shell(made.command(run, "training.steps=100000"))
    assert first.until(lambda: reached(run) >= 1)
    second = shell(made.command(run, "training.steps=100000"))
    assert second.wait() == 2
    assert str(first.pid) in second.output
    assert "Traceback" not in second.output
    assert first.running
    first.kill()
    third = shell(made.command(run, "training.steps=20", allow=("training.steps",)))
    assert third.wait() == 0, third.output


def test_a_lock_left_by_a_dead_process_is_free(tiny, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").write_text("1\n")
    assert train(tiny().config("training.steps=2"), run)[-1].kind == "end"
    assert (run / ".lock").read_text().strip() == str(os.getpid())
