"""Tiny runs: a config file of a model that trains in a second, and commands in processes that can be killed."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from bench import letters
from tests.training.rank_processes import World

from dragoman import config as configs
from dragoman.config import Config
from dragoman.data.samples import synthetic

DEADLINE = 60.0  # seconds that anything may take here, on a busy machine

MODELS = {
    "rnn": """
  width: 32
  tie: none
  encoder: {name: rnn, cell: gru, dropout: 0.1}
  decoder: {name: rnn, cell: gru, order: before, dropout: 0.1}""",
    "transformer": """
  width: 32
  encoder: {name: transformer, layers: 1, heads: 2, feedforward: 64, dropout: 0.1}
  decoder: {name: transformer, layers: 1, heads: 2, feedforward: 64, dropout: 0.1}""",
}

CONFIG = """
name: tiny
data: {{train: {folder}/train.tsv, valid: {folder}/valid.tsv, cache: {folder}/cache}}
tokenizer: {{source: characters}}
model: {model}
training:
  steps: 40
  batch_tokens: 256
  optimizer: {{name: adam, rate: 3.0e-3}}
  schedule: constant
  validate_every: 10
  save_every: 5
  log_every: 1
runtime: {{device: cpu, threads: 1}}
"""


@pytest.fixture(autouse=True)
def deadline(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that hangs fails."""
    seconds = DEADLINE * (30 if request.node.get_closest_marker("long") else 2)

    def late(*_: object) -> None:
        raise TimeoutError(f"this took more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@dataclass
class Tiny:
    """A folder with pairs and a config file; every run of it has its own folder."""

    folder: Path
    file: Path

    def config(self, *sets: str) -> Config:
        return configs.load(self.file, None, sets).config

    def command(self, run: Path, *sets: str, allow: tuple[str, ...] = ()) -> list[str]:
        """The arguments of the command line that trains it."""
        options = [text for item in sets for text in ("--set", item)]
        options += [text for key in allow for text in ("--allow-change", key)]
        return ["train", str(self.file), "--run", str(run), *options]


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Tiny]:
    """tiny("rnn", pairs=300) → words and their reverse, and a config that trains on them."""

    def make(family: str = "rnn", pairs: int = 300, longest: int = 10) -> Tiny:
        for side, count in (("train", pairs), ("valid", 30)):
            rows = letters.generate_pairs("reverse", count, 7, split=side, max_length=longest)  # type: ignore[arg-type]
            path = tmp_path / f"{side}.tsv"
            synthetic.write_tsv(path, [[text.replace(" ", "") for text in row] for row in rows])
            os.utime(path, (1e9, 1e9))  # long ago: a file that has just been written is not trusted to stay as it is
        file = tmp_path / f"{family}.yaml"
        file.write_text(CONFIG.format(folder=tmp_path, model=MODELS[family]))
        return Tiny(tmp_path, file)

    return make


# -- processes ---------------------------------------------------------------------------------------------------------

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["dragoman.training", "dragoman.cli.main", "torch._dynamo", "rich.console"])

# What a process does: its words go to a file, its memory may be limited, and it may die by its own hand.
PROGRAM = """
import os, resource, signal, sys
words = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
os.dup2(words, 1), os.dup2(words, 2)
sys.argv = ["dragoman", *arguments]
from dragoman.cli.main import main
if dies_at:
    flush, calls = os.fsync, 0
    def fsync(handle):
        global calls
        calls += 1
        if calls == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        flush(handle)
    os.fsync = fsync
if memory:
    size = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + memory, size + memory))
main()
"""


@dataclass
class Command:
    """A command line in a process of its own."""

    process: BaseProcess
    words: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.is_alive()

    @property
    def output(self) -> str:
        return self.words.read_text() if self.words.exists() else ""

    def wait(self, seconds: float = DEADLINE) -> int:
        """The exit code; of a process that was killed, the signal's number below 0."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"still running after {seconds} seconds:\n{self.output}"
        return self.process.exitcode

    def until(self, true: Callable[[], Any], seconds: float = DEADLINE) -> bool:
        """Wait for something; whether it came true while the process was running."""
        end = time.monotonic() + seconds
        while self.running:
            if true():
                return True
            assert time.monotonic() < end, f"did not come true in {seconds} seconds:\n{self.output}"
            self.process.join(0.002)
        return False

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()


@dataclass
class Shell:
    """Starts commands as forks of a process that has imported everything: each begins within a few milliseconds."""

    folder: Path
    started: list[Command] = field(default_factory=list)

    def __call__(self, arguments: list[str], *, dies_at: int = 0, memory: int = 0) -> Command:
        words = self.folder / f"words-{len(self.started)}"
        names = {"words": str(words), "arguments": arguments, "dies_at": dies_at, "memory": memory}
        process = FORKS.Process(target=exec, args=(PROGRAM, names | {"__name__": "command"}))
        process.start()
        self.started.append(Command(process, words))
        return self.started[-1]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    for command in made.started:
        if command.running:
            command.kill()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def start(arguments: list[str], count: int = 2, before: str = "") -> World:
        made.append(World(tmp_path, arguments, count, before))
        return made[-1]

    yield start
    for one in made:
        one.end()


# -- what a run left ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def metrics() -> Callable[[Path], list[dict[str, Any]]]:
    """metrics.jsonl of a run, less what depends on the clock."""

    def read(run: Path) -> list[dict[str, Any]]:
        try:
            text = (run / "metrics.jsonl").read_text()
        except FileNotFoundError:
            return []
        lines = [json.loads(line) for line in text.split("\n")[:-1]]
        return [{k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second")} for line in lines]

    return read


@pytest.fixture(scope="session")
def same_end(metrics: Callable[[Path], list[dict[str, Any]]]) -> Callable[[Path, Path], None]:
    """Two runs ended with the same weights, byte for byte, the same records, and the same words on where they stand."""

    def check(run: Path, other: Path) -> None:
        assert metrics(run) == metrics(other)
        for pointer in ("best", "last", "finished"):
            assert (run / pointer).read_text() == (other / pointer).read_text()
        for pointer in ("best", "last"):
            name = (run / pointer).read_text().strip()
            mine, theirs = run / "checkpoints" / name, other / "checkpoints" / name
            assert sorted(p.name for p in mine.iterdir()) == sorted(p.name for p in theirs.iterdir())
            for file in mine.iterdir():
                if file.name != "manifest.json":
                    assert file.read_bytes() == (theirs / file.name).read_bytes(), f"{name}/{file.name} differs"

    return check
