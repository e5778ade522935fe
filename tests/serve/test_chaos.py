"""A server under load while everything around it goes wrong: nothing is lost, doubled or mixed up, and all comes back.

Fifteen seconds here, ten minutes in `make test-long` (DRAGOMAN_CHAOS_SECONDS of load). A failure names its seed:
DRAGOMAN_CHAOS=SEED repeats its schedule of faults and what its clients ask.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import random
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.faults.shims import compile_shim

from .chaos import (
    HUNGER,
    KINDS,
    MANNERS,
    Clients,
    Fault,
    Faults,
    children,
    draw_faults,
    draw_questions,
    exchange,
    read_answer,
)

CLIENTS, QUESTIONS = 10, 20
SHORT_S, LONG_S = 4.0, float(os.environ.get("DRAGOMAN_CHAOS_SECONDS", 600))
FAULT_S = 4.0  # between two faults, in the mean
AGAIN_S = 30.0  # until all workers are ready after the last fault
CODES = {"200", "400", "404", "405", "408", "413", "415", "422", "429", "499", "503", "504"}
SETTINGS = ("deadline_s=20", "memory=400000000", "queue_tokens=20000", "batch_wait_ms=5")


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that holds the nanoseconds by which the clock of processes started from here on is wrong."""
    library, offset = compile_shim("clock", tmp_path), tmp_path / "clock"
    offset.write_bytes(struct.pack("q", 0))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("DRAGOMAN_CLOCK", str(offset))
    return offset


def holdings(server: Any) -> tuple[int, list[str]]:
    """What must not grow: the descriptors of the server, and its processes, by name."""
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in children(server.process.pid)]
    return len(os.listdir(f"/proc/{server.process.pid}/fd")), sorted(names)


def at_rest(server: Any) -> bool:
    running = server.metric("dragoman_jobs_running") + server.metric("dragoman_queue_tokens")
    answering = server.client.get("/health/ready").json()["answering"]
    return bool(running == 0 and server.metric("dragoman_in_flight") == 1 and answering == 2)


async def learn_answers(clients: Clients) -> None:
    """Ask a quiet server; keep questions whose answers no other one has, so that an answer given to another shows."""
    answers: set[str] = set()
    for question in list(clients.questions):
        (response,) = await exchange(clients.port, [question.encode("quiet", close=True)])
        assert response.status == 200, (question, response)
        question.answer = read_answer(question, response.body)
        text = json.dumps(question.answer)
        if text in answers:
            clients.questions.remove(question)
        answers.add(text)


async def run(server: Any, clock: Path, clients: Clients, seed: int, drawn: list[Fault], seconds: float) -> Faults:
    faults = Faults(server.process.pid, clock)
    happening = asyncio.ensure_future(faults.run(drawn, seconds))
    await asyncio.gather(happening, clients.run(seed, CLIENTS, happening))
    return faults


def check(start: Any, until: Any, models: Path, clock: Path, count: int, seconds: float, spare: int) -> None:
    seed = int(os.environ.get("DRAGOMAN_CHAOS") or torch.initial_seed() % 2**32)
    drawn = draw_faults(seed, count, seconds)
    print(f"DRAGOMAN_CHAOS={seed}", *drawn[:20], sep="\n  ")
    (models / "hunger.py").write_text(HUNGER, encoding="utf-8")
    settings = [text for setting in [*SETTINGS, f"spare={spare > 0}".lower()] for text in ("--set", setting)]
    began = time.monotonic()
    server = start("small", "plodding", "--workers", "2", "--plugin", "hunger", *settings)
    again = max(AGAIN_S, 4 * (time.monotonic() - began))  # where a machine is busy, it takes longer for each worker
    clients = Clients(server.port, draw_questions(random.Random(seed), QUESTIONS))
    asyncio.run(learn_answers(clients))
    until(lambda: at_rest(server))
    until(lambda: holdings(server)[1].count("dragoman-spare") == spare, again)
    before = holdings(server)

    faults = asyncio.run(run(server, clock, clients, seed, drawn, seconds))

    back = until(lambda: at_rest(server), again)
    until(lambda: holdings(server) == before, again)
    until(lambda: abs(shown_clock(server) - time.time() - hours(clock) * 3600) < 10)
    asyncio.run(clients.ask_all())
    codes = set(re.findall(r'dragoman_requests_total\{code="(\d+)"', server.client.get("/metrics").text))
    restarts = server.metric("dragoman_worker_restarts_total")
    print(f"{clients.outcomes.total():,} requests: {dict(clients.outcomes)}")
    print(f"{dict(faults.happened)}, {restarts:.0f} workers replaced, all back after {back:.1f} s")
    assert server.stop() == 0, server.stderr()
    assert not clients.problems, "\n".join(clients.problems[:20])
    assert codes <= CODES
    assert "Traceback" not in server.stderr(), server.stderr()
    assert set(faults.happened) == set(KINDS), "the run was too short for all kinds of faults"
    assert restarts >= faults.happened["freeze"] / 2
    assert sum(count for (_, status), count in clients.outcomes.items() if status == 200) > QUESTIONS
    assert {manner for manner, _ in clients.outcomes} == {manner.__name__ for manner in MANNERS}


def shown_clock(server: Any) -> float:
    """The time in the header Date, which uvicorn renews every second."""
    return email.utils.parsedate_to_datetime(server.client.get("/health/live").headers["date"]).timestamp()


def hours(clock: Path) -> float:
    (nanoseconds,) = struct.unpack("q", clock.read_bytes())
    return nanoseconds / 3600e9


def test_seconds_of_chaos_lose_double_and_mix_up_nothing_and_the_server_recovers(
    start: Callable[..., Any], until: Callable[..., float], models: Path, clock: Path
) -> None:
    check(start, until, models, clock, len(KINDS), SHORT_S, spare=0)


@pytest.mark.long
def test_ten_minutes_of_chaos_lose_double_and_mix_up_nothing_and_the_server_recovers(
    start: Callable[..., Any], until: Callable[..., float], models: Path, clock: Path
) -> None:
    check(start, until, models, clock, max(round(LONG_S / FAULT_S), len(KINDS)), LONG_S, spare=1)


def test_a_seed_has_one_schedule_of_all_kinds_of_faults() -> None:
    seed = torch.initial_seed() % 2**32
    drawn = draw_faults(seed, 300, 600.0)
    assert drawn == draw_faults(seed, 300, 600.0) != draw_faults(seed + 1, 300, 600.0)
    assert {fault.kind for fault in drawn} == {fault.kind for fault in draw_faults(seed, len(KINDS), 6.0)} == set(KINDS)
