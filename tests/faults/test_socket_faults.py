"""Every call on a socket or pipe of a server, a prediction and a training fails once, in every way it can.

Nothing is lost, doubled or wrong, one sentence says what happened, and the server goes on serving; a command that ended
then ends as it should. A few faults are drawn by the run's seed in `make test`, and all are tried in `make test-long`.
A failure names its call and fault: DRAGOMAN_FAULT="serve other write pipe 2 EPIPE" repeats one, and a regular
expression some.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch
from tests.serve.chaos import Clients, Question, children, draw_questions, exchange, read_answer
from tests.serve.conftest import SMALL, save

from .commands import Finished, end_of_run, temporary_files, write_data
from .sockets import FAULTS, HARMLESS, PID, PORT, Commands, Control, Site, free_port

DRAWN = {"serve": 6, "predict": 3}  # in `make test`: the scenarios in which a fault takes about a second
SERVER_SCENARIOS = ("serve", "replace")
AGAIN_S = 30.0  # until a worker has been replaced
COMMAND_S = 90  # until a command that hangs is killed
LINES = 3  # of the log for one fault, at most: the system's refusal, the worker that is lost, asyncio's own
RANK_TIMEOUT_S = 20


class Case(NamedTuple):
    """One fault: what is going on, where, at which call of that site, and how."""

    scenario: str
    site: Site
    n: int
    fault: str

    def __str__(self) -> str:
        return f"{self.scenario} {' '.join(self.site)} {self.n} {self.fault}"


def every_case(scenario: str, counts: dict[Site, int]) -> list[Case]:
    """All faults of the first, the middle and the last call of each site."""
    return [
        Case(scenario, site, n, fault)
        for site, count in counts.items()
        for n in sorted({0, count // 2, count - 1})
        for fault in FAULTS[site.call]
    ]


# -- a server ----------------------------------------------------------------------------------------------------------


class Server:
    """A running server under a control, and what it answers when nothing fails."""

    def __init__(self, folder: Path, control: Control) -> None:
        self.folder, self.control = folder, control
        self.start()

    def start(self) -> None:
        self.log = (self.folder / "log").open("w+")
        self.control[PID] = 0
        began = time.monotonic()
        self.process = start_server(self.folder, self.control, self.log, "spare=false")
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://[^:]+:(\d+)", line)
        assert found, f"{line}{self.words()}"
        self.port = int(found[1])
        self.again = max(AGAIN_S, 4 * (time.monotonic() - began))  # a busy machine takes longer for each worker
        self.questions = [*draw_questions(random.Random(4), 10), large_question()]
        for question in self.questions:
            (response,) = asyncio.run(exchange(self.port, [question.encode("quiet", close=True)]))
            assert response.status == 200, response
            question.answer = read_answer(question, response.body)
        self.until_ready()

    def words(self, start: int = 0) -> str:
        self.log.seek(start)
        return self.log.read()

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def until_ready(self) -> None:
        """Wait until both workers answer."""
        end = time.monotonic() + self.again
        while self.answering() < 2:
            assert self.process.poll() is None, f"the server has ended:\n{self.words()}"
            assert time.monotonic() < end, f"not ready within {self.again} s:\n{self.words()}"
            time.sleep(0.02)

    def answering(self) -> int:
        return int(httpx.get(f"http://127.0.0.1:{self.port}/health/ready", timeout=30).json()["answering"])

    def ask(self, scenario: str) -> Asked:
        """Do what a scenario asks of the server; what came of it."""
        asked = Asked(self.port, self.questions)
        if scenario == "replace":
            killed = children(self.process.pid)[0]
            os.kill(killed, signal.SIGKILL)
            end = time.monotonic() + self.again
            while killed in children(self.process.pid) and time.monotonic() < end:  # it counts as ready until then
                time.sleep(0.01)
            self.until_ready()
        else:
            asyncio.run(asked.ask())
        return asked

    def restart(self) -> None:
        """After a fault that it has not survived."""
        self.process.kill()
        self.process.wait(10)
        self.start()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)


class Asked(Clients):
    """Every question once, each on a connection of its own, one of which may break."""

    broken: int = 0

    async def ask(self) -> None:
        for i, question in enumerate(self.questions):
            try:
                responses = await exchange(self.port, [question.encode(f"q{i}", close=True)])
            except Exception:  # reset, or cut in the middle of a response
                self.broken += 1
                continue
            self.broken += not responses
            self.judge("fault", [(f"q{i}", question)][: len(responses)], responses)

    @property
    def refused(self) -> int:
        return sum(count for (_, status), count in self.outcomes.items() if status != 200)


def start_server(folder: Path, control: Control, log: Any, *settings: str) -> subprocess.Popen[str]:
    options = ["--port", "0", "--workers", "2", "--device", "cpu"]
    options += [text for setting in ("batch_wait_ms=0", *settings) for text in ("--set", setting)]
    return subprocess.Popen(
        [sys.executable, "-m", "dragoman", "serve", "small", "plodding", *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=control.environment,
    )


def large_question() -> Question:
    """A body that takes many reads, and a thread that parses it; an answer that takes many writes."""
    return Question("/v1/score", {"inputs": [{"source": "abcdefgh" * 20, "target": "hgfedcba" * 20}] * 60})


def check_server(server: Server, case: Case) -> list[str]:
    """What is wrong after a fault, as sentences; the server is then asked again without one."""
    start, problems, before = os.fstat(server.log.fileno()).st_size, list[str](), server.descriptors()
    server.control.arm(case.site, case.n, case.fault)
    asked = server.ask(case.scenario)
    server.control.clear()
    problems += asked.problems
    process, _, object = case.site
    is_harmless = case.fault in HARMLESS or case.site.call in ("accept", "wait")
    # A connection that breaks is one request's; a pipe that breaks is one worker's, which may have had some of them.
    if asked.broken > (process == "first" and object == "tcp" and not is_harmless):
        problems.append(f"{asked.broken} connections broke")
    if asked.refused and (is_harmless or object == "tcp"):
        problems.append(f"{asked.refused} requests were refused: {dict(asked.outcomes)}")
    server.until_ready()
    again = server.ask("serve")
    if again.problems or again.broken or again.refused:
        problems.append(f"afterwards: {again.problems}, {dict(again.outcomes)}, {again.broken} broke")
    server.until_ready()
    end = time.monotonic() + 10
    while server.descriptors() > before and time.monotonic() < end:  # a connection that has just been closed
        time.sleep(0.02)
    if server.descriptors() > before:
        problems.append(f"{server.descriptors()} descriptors, {before} before")
    words = server.words(start)
    if "Traceback" in words or words.count("\n") > LINES:
        problems.append(f"it logged:\n{words}")
    return problems


def check_start(folder: Path, control: Control, case: Case) -> list[str]:
    """What is wrong with a start under a fault: it serves, or says in one sentence why it cannot."""
    with (folder / "start.log").open("w+") as log:
        control[PID] = 0
        control.arm(case.site, case.n, case.fault)
        code, serves = start_and_end(folder, control, log)
        log.seek(0)
        words = log.read()
    errors = [line for line in words.split("\n") if line.startswith("error: ")]
    is_explained = code == 2 and len(errors) == 1 and case.fault not in HARMLESS
    if "Traceback" in words or not (is_explained or (code == 0 and serves)):
        return [f"exit code {code}:\n{words}"]
    return []


def start_and_end(folder: Path, control: Control, log: Any) -> tuple[int, bool]:
    process = start_server(folder, control, log, "spare=false")
    assert process.stdout is not None
    serves = "serving" in process.stdout.readline()
    if serves:
        process.send_signal(signal.SIGTERM)
    return process.wait(120), serves


# -- commands ----------------------------------------------------------------------------------------------------------


class Scene:
    """A folder in which commands run, and their results when nothing fails."""

    def __init__(self, folder: Path, control: Control) -> None:
        self.folder, self.control = folder, control
        self.original = folder / "original"  # copied for each fault
        self.original.mkdir()
        config = write_data(self.original, pairs=40)
        config.write_text(config.read_text().replace(str(self.original), ".").replace("steps: 2", "steps: 4"))
        (self.original / "inputs.txt").write_text("ab\nc\n\nabcd\n" * 60)
        modules = ["dragoman.cli.progress", "dragoman.cli.generation", "dragoman.training", "rich.console"]
        modules += ["dragoman.inference.parallel", "torch._dynamo", "torch.distributed", "typer._adapters"]
        self.commands = Commands(control, modules, COMMAND_S)
        ended = self.run("train", self.original)
        assert ended[0].code == 0, ended
        shutil.move(self.original / "run", self.original / "trained")
        self.expected: dict[str, Any] = {}

    def run(self, scenario: str, folder: Path) -> list[Finished]:
        arguments = COMMANDS[scenario]
        if scenario != "ranks":
            return self.commands.run(folder, (arguments, {}))
        self.control[PORT] = free_port()
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.control[PORT])}
        ranks = [(arguments, shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
        return self.commands.run(folder, *ranks)

    def copy(self) -> Path:
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        return Path(shutil.copytree(self.original, self.folder / "copy"))

    def result(self, scenario: str, folder: Path) -> Any:
        return (folder / "out.txt").read_text() if scenario == "predict" else end_of_run(folder / "run")

    def counts(self, scenario: str) -> dict[Site, int]:
        """The calls of a command when nothing fails; its result is kept."""
        folder = self.copy()
        self.control.clear()
        ended = self.run(scenario, folder)
        assert all(one.code == 0 for one in ended), ended
        self.expected[scenario] = self.result(scenario, folder)
        return self.control.counts()


SETS = ["--set", f"training.rank_timeout={RANK_TIMEOUT_S}"]
COMMANDS: dict[str, list[str]] = {
    "train": ["train", "tiny.yaml", "--run", "run"],
    "predict": ["predict", "trained", "inputs.txt", "-o", "out.txt", "--workers", "2", "--device", "cpu"],
    "load": ["train", "tiny.yaml", "--run", "run", "--set", "data.workers=1"],
    "ranks": ["train", "tiny.yaml", "--run", "run", *SETS],
}


def aborts_in_torch(case: Case) -> bool:
    """Whether libuv, below torch's store, or gloo ends the process where a call fails: at the start, at an accept."""
    calls = (case.site.call, case.site.object)
    return case.scenario == "ranks" and ("pipe" in calls or calls == ("accept", "listener"))


def check_command(scene: Scene, case: Case) -> list[str]:
    """What is wrong after a fault, as sentences; the command is then repeated without it."""
    folder, problems = scene.copy(), list[str]()
    scene.control.arm(case.site, case.n, case.fault)
    began = time.monotonic()
    ended = scene.run(case.scenario, folder)
    seconds = time.monotonic() - began
    scene.control.clear()
    for one in ended:
        errors = [line for line in one.output.split("\n") if line.startswith("error: ")]
        # A fresh interpreter that does not get its task ends with a traceback of its own; the error speaks of it.
        is_told = "Traceback" in one.output and (case.scenario, case.site.process) != ("load", "other")
        is_abort = one.code == -signal.SIGABRT and aborts_in_torch(case)
        if not is_abort and (one.code not in (0, 2) or is_told or len(errors) != (one.code == 2)):
            problems.append(f"exit code {one.code} after {seconds:.1f} s:\n{one.output}")
    # Gloo takes a few bytes that are sent in two pieces for an error, and says so.
    has_ended = all(one.code == 0 for one in ended)
    if case.fault in HARMLESS and not has_ended and not (case.scenario == "ranks" and case.fault == "short"):
        problems.append(f"it did not survive: {ended}")
    if has_ended and not (folder / "out.txt" if case.scenario == "predict" else folder / "run" / "finished").exists():
        problems.append("it said that all went well, and there is no result")
    elif has_ended and scene.result(case.scenario, folder) != scene.expected[case.scenario]:
        problems.append("it said that all went well, and the result is another")
    if not has_ended:
        if case.scenario == "predict" and (folder / "out.txt").exists():
            problems.append("the output is half there")
        again = scene.run(case.scenario, folder)
        if any(one.code for one in again):
            problems.append(f"the same command again: {again}")
        elif scene.result(case.scenario, folder) != scene.expected[case.scenario]:
            problems.append("the same command again ends otherwise")
    if list(temporary_files(folder)):
        problems.append(f"temporary files are left: {list(temporary_files(folder))}")
    return problems


# -- the tests ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models to serve."""
    folder = tmp_path_factory.mktemp("sockets")
    save(folder / "small", SMALL)
    save(folder / "plodding", {"name": "rnn", "cell": "gru"}, max_length_extra=200_000, endless=True)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    (folder / "server").mkdir()
    running = Server(folder, Control(folder / "server"))
    yield running
    if running.process.poll() is None:
        assert running.end() == 0, running.words()
    running.process.kill()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("commands")
    made = Scene(folder, Control(folder))
    yield made
    made.commands.end()


def find_cases(server: Server, scene: Scene, scenario: str) -> list[Case]:
    """All faults of a scenario, which runs once to count its calls."""
    if scenario in SERVER_SCENARIOS:
        server.control.clear()
        asked = server.ask(scenario)
        assert not asked.problems, asked.problems
        counts = server.control.counts()
    else:
        counts = scene.counts(scenario)
    found = every_case(scenario, counts)
    if scenario == "replace":  # it makes the calls of serving too; those of a start of a process are its own
        found = [case for case in found if case.site.object in ("new", "pipe")]
    pattern = re.compile(os.environ.get("DRAGOMAN_FAULT", ".*"))
    return [case for case in found if pattern.fullmatch(str(case))]


def check_all(server: Server, scene: Scene, cases: list[Case]) -> None:
    problems, hits = [], server.control.hits + scene.control.hits
    for case in cases:
        try:
            found = check_server(server, case) if case.scenario in SERVER_SCENARIOS else check_command(scene, case)
        except (AssertionError, OSError, httpx.HTTPError) as error:  # it does not come back
            found = [str(error)]
            server.control.clear()
            server.restart()
        for problem in found:
            problems.append(f'DRAGOMAN_FAULT="{case}": {problem}')
            print(problems[-1], flush=True)
    print(f"{server.control.hits + scene.control.hits - hits} of {len(cases)} faults met a call")
    assert not problems, f"{len(problems)} problems\n" + "\n".join(problems)


def test_faults_of_sockets_and_pipes_lose_nothing_and_say_one_sentence(server: Server, scene: Scene) -> None:
    rng, drawn = random.Random(torch.initial_seed()), list[Case]()
    for scenario, count in DRAWN.items():
        every = find_cases(server, scene, scenario)
        drawn += rng.sample(every, min(count, len(every)))
    check_all(server, scene, drawn)


@pytest.mark.long
def test_any_fault_of_a_socket_or_pipe_loses_nothing_and_says_one_sentence(server: Server, scene: Scene) -> None:
    every: list[Case] = []
    for scenario in (*SERVER_SCENARIOS, "predict", "load", "ranks"):
        found = find_cases(server, scene, scenario)
        print(f"{scenario}: {len({case.site for case in found})} call sites, {len(found)} faults", flush=True)
        every += found
    check_all(server, scene, every)


@pytest.mark.long
def test_a_server_starts_or_says_why_not_whatever_call_on_a_socket_or_pipe_fails(folder: Path) -> None:
    control = Control(folder)
    control[PID] = 0
    with (folder / "start.log").open("w+") as log:
        assert start_and_end(folder, control, log) == (0, True), (folder / "start.log").read_text()
    cases = every_case("start", control.counts())
    problems = [f'"{case}": {problem}' for case in cases for problem in check_start(folder, control, case)]
    assert not problems, f"{len(problems)} of {len(cases)}\n" + "\n".join(problems)
