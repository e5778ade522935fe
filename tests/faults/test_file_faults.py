"""Every file call of a training and of a prediction fails once, in every way it can.

Nothing is lost, nothing is half there, one sentence says what happened, and the same command then ends as it should.
Twenty faults are drawn by the run's seed here; all of them are in `make test-long`. A failure names its call and fault:
DRAGOMAN_FAULT="train 17 EIO" repeats one.
"""

from __future__ import annotations

import errno
import importlib
import os
import random
import re
import shutil
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.checkpoint import model_folder

from .commands import Finished, dragoman, end_of_run, in_fork, temporary_files, write_data
from .disk import FAULTS, NUMBERS, Call, Fault, interpose

# What a fork would import each time, for half a second.
PRELOADED = ("dragoman.cli.main", "dragoman.cli.progress", "dragoman.cli.generation", "dragoman.training")
PRELOADED += ("dragoman.inference.parallel", "rich.console", "torch._dynamo", "numpy.ma", "typer._adapters")
DRAWN = {"train": 2, "resume": 2, "predict": 8, "overwrite": 8}  # in `make test`: twenty


# What an error of each kind must say.
SENTENCES = {
    "ENOSPC": ("disk is full", os.strerror(errno.ENOSPC)),
    "full": ("disk is full", os.strerror(errno.ENOSPC)),
    "EIO": (os.strerror(errno.EIO),),
    "EMFILE": (os.strerror(errno.EMFILE),),
}


class Scene:
    """A folder in which commands run, and their results when nothing fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.original = folder / "original"  # copied for each fault
        self.original.mkdir()
        self.expected: dict[str, Any] = {}  # the results of the commands

    def run(self, command: str, folder: Path, hook: Callable[[Call], int | None] | None = None) -> Finished:
        """Run one of the commands inside a copy of the folder, under a hook."""

        def work() -> None:
            os.chdir(folder)
            start = dragoman(*COMMANDS[command])
            with nullcontext() if hook is None else interpose(folder, hook):
                start()

        return in_fork(work)

    def copy(self) -> Path:
        """A fresh copy at a path of the same length; files keep their times."""
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        return Path(shutil.copytree(self.original, self.folder / "copy"))

    def calls(self, command: str) -> list[Call]:
        """The file calls of a command when nothing fails."""
        found: list[Call] = []
        folder = self.copy()

        def count() -> None:
            with interpose(folder, lambda call: found.append(call)):  # type: ignore[func-returns-value]
                os.chdir(folder)
                try:
                    dragoman(*COMMANDS[command])()
                finally:
                    lines = [f"{call.kind}\t{os.path.relpath(call.path, folder)}" for call in found]
                    (self.folder / "calls").write_text("\n".join(lines))

        ended = in_fork(count)
        assert ended.code == 0, ended.output
        self.expected[command] = result(command, folder)
        lines = (self.folder / "calls").read_text().split("\n")
        return [Call(*line.split("\t")) for line in lines]


PLAIN = ["--workers", "1", "--device", "cpu", "--min-new-tokens", "3"]
COMMANDS: dict[str, list[str]] = {
    "train": ["train", "tiny.yaml", "--run", "run"],
    "resume": ["train", "tiny.yaml", "--run", "half"],
    "predict": ["predict", "trained", "valid.txt", "-o", "out.txt", *PLAIN],
    "overwrite": ["predict", "trained", "valid.txt", "-o", "old.txt", *PLAIN],
}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    for module in PRELOADED:
        importlib.import_module(module)
    made = Scene(tmp_path_factory.mktemp("faults"))
    config = write_data(made.original)
    text = config.read_text().replace(str(made.original), ".")
    config.write_text(text)
    (made.original / "valid.txt").write_text("ab\nc\n\nabcd\n")
    (made.original / "old.txt").write_text("what was there before\n")
    for name, dies in (("trained", None), ("half", "step-2")):  # the second is killed after its first checkpoint

        def stop(call: Call, dies: str | None = dies) -> None:
            if dies is not None and call.kind == "create" and f".tmp-{dies}" in call.path:
                os.kill(os.getpid(), signal.SIGKILL)

        def work(name: str = name, stop: Any = stop) -> None:
            os.chdir(made.original)
            with interpose(made.original, stop):
                dragoman("train", "tiny.yaml", "--run", name)()

        ended = in_fork(work)
        assert ended.code == (0 if dies is None else -signal.SIGKILL), ended.output
    assert list(temporary_files(made.original / "half"))
    shutil.rmtree(made.original / "cache")  # the stores are built again under faults
    return made


@pytest.fixture(scope="module")
def every_fault(scene: Scene) -> list[tuple[str, int, str, str]]:
    """All faults of all calls; of calls that differ only in numbers (steps, process ids), the first and the last."""
    found = []
    for command in COMMANDS:
        alike: dict[tuple[str, str], list[int]] = {}
        for n, call in enumerate(calls := scene.calls(command)):
            alike.setdefault((call.kind, re.sub(NUMBERS, "", call.path)), []).append(n)
        kept = sorted({n for numbers in alike.values() for n in (numbers[0], numbers[-1])})
        cases = [(n, calls[n], fault) for n in kept for fault in FAULTS[calls[n].kind]]
        found += [(command, n, fault, f"{call.kind} {call.path}") for n, call, fault in cases]
    return found


def check_fault(scene: Scene, command: str, n: int, fault: str, call: str) -> list[str]:
    """What is wrong after a fault, as sentences; the command is then repeated without it."""
    folder = scene.copy()
    expected = None if call.endswith(" .") else Call(*call.split(" ", 1)).label
    ended, problems = scene.run(command, folder, Fault(n, fault, expected)), []
    allowed = {"kill": (0, -signal.SIGKILL), "slow": (0,), "short": (0,)}.get(fault, (0, 2))
    if ended.code not in allowed or "Traceback" in ended.output:
        problems.append(f"exit code {ended.code}:\n{ended.output}")
    if ended.code == 2 and sum(line.startswith("error: ") for line in ended.output.split("\n")) != 1:
        problems.append(f"not one sentence:\n{ended.output}")
    if ended.code == 2 and not any(text in ended.output for text in SENTENCES[fault]):
        problems.append(f"the sentence does not say what happened:\n{ended.output}")
    if command == "resume" and ended.code == 0 and "resumed from step" not in ended.output:
        problems.append(f"a whole checkpoint was not used:\n{ended.output}")
    may_remain = ended.code < 0 or (".tmp-" in call and call.split()[0] in ("remove", "list", "open"))
    problems += [f"before the second try: {text}" for text in damage(scene, folder, may_remain)]
    if ended.code == 0 and result(command, folder) != scene.expected[command]:
        problems.append("it said that all went well, and the result is another")
    if ended.code != 0:
        again = scene.run(command, folder)
        if again.code != 0:
            problems.append(f"the same command again: exit code {again.code}:\n{again.output}")
        elif result(command, folder) != scene.expected[command]:
            problems.append("the same command again ends otherwise")
        problems += [f"after the second try: {text}" for text in damage(scene, folder, may_remain=False)]
    return [f'DRAGOMAN_FAULT="{command} {n} {fault}" ({call}): {problem}' for problem in problems]


def damage(scene: Scene, folder: Path, may_remain: bool) -> list[str]:
    """What is lost or half there in the folder of a command that has ended; may temporary files remain?"""
    found = []
    for run in (folder / "trained", folder / "half", folder / "run"):
        for checkpoint in run.glob("checkpoints/[!.]*"):
            try:
                model_folder.verify(checkpoint, training=checkpoint.name.startswith("step-"))
            except Exception as error:
                found.append(f"{checkpoint} is damaged: {error}")
        found += [
            f"{run / name} names nothing: {(run / name).read_bytes()!r}"
            for name in ("best", "last")
            if (run / name).exists() and model_folder.read_pointer(run, name) is None
        ]
    if not model_folder.list_checkpoints(folder / "half"):
        found.append("the checkpoints that were there are lost")
    if (folder / "old.txt").read_text() not in ("what was there before\n", scene.expected["overwrite"]):
        found.append(f"old.txt is neither the old file nor the new one: {(folder / 'old.txt').read_bytes()!r}")
    if (folder / "out.txt").exists() and (folder / "out.txt").read_text() != scene.expected["predict"]:
        found.append(f"out.txt is half there: {(folder / 'out.txt').read_bytes()!r}")
    left = [path for path in temporary_files(folder) if path.parent.parent.name != "half" or "step-2" not in path.name]
    if not may_remain and left:
        found.append(f"temporary files are left: {', '.join(str(path.relative_to(folder)) for path in left)}")
    return found


def result(command: str, folder: Path) -> Any:
    if command in ("predict", "overwrite"):
        return (folder / COMMANDS[command][4]).read_text()
    return end_of_run(folder / COMMANDS[command][3])


def test_twenty_faults_of_the_disk_lose_nothing_and_say_one_sentence(scene: Scene, every_fault: list[Any]) -> None:
    rng = random.Random(torch.initial_seed())
    cases = {command: [case for case in every_fault if case[0] == command] for command in COMMANDS}
    drawn = [case for command, count in DRAWN.items() for case in rng.sample(cases[command], count)]
    if "DRAGOMAN_FAULT" in os.environ:
        drawn = [case for case in every_fault if " ".join(map(str, case[:3])) == os.environ["DRAGOMAN_FAULT"]]
    problems = [problem for case in drawn for problem in check_fault(scene, *case)]
    assert not problems, "\n".join(problems)


@pytest.mark.long
def test_any_fault_of_the_disk_loses_nothing_and_says_one_sentence(scene: Scene, every_fault: list[Any]) -> None:
    problems = [problem for case in every_fault for problem in check_fault(scene, *case)]
    assert not problems, f"{len(problems)} problems\n" + "\n".join(problems)


def test_signals_that_interrupt_every_call_change_nothing(scene: Scene, every_fault: list[Any]) -> None:
    """EINTR: a signal every half millisecond, whose handler does nothing."""
    for command in ("resume", "overwrite"):
        folder = scene.copy()

        def work(folder: Path = folder, command: str = command) -> None:
            os.chdir(folder)
            signal.signal(signal.SIGALRM, lambda *_: None)
            signal.siginterrupt(signal.SIGALRM, True)
            signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
            dragoman(*COMMANDS[command])()

        ended = in_fork(work)
        assert ended.code == 0, ended.output
        assert result(command, folder) == scene.expected[command], command
