"""Seeded schedules of arrivals, deaths, hangs and cancellations against the real batcher and worker pool.

Every admitted request is answered or refused exactly once and never with another's text; afterwards all slots and
tokens are free, and the server serves. 300 schedules here, 100,000 in `make test-long`; DRAGOMAN_SCHEDULE=SEED repeats
one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dragoman.serve import worker_pool
from dragoman.serve.batcher import Batcher, SourceTokenizer
from dragoman.serve.schema import APIError
from dragoman.serve.settings import ServerSettings
from dragoman.serve.worker_pool import WorkerPool

from .simulation import MODEL, POISON, Process, VirtualLoop, expected_answer

REFUSALS = (413, 429, 503)  # of a request that is not admitted
ERRORS = (500, 503, 504)  # of one that is: its own fault, a lost worker, the deadline
FIRST_PID = 10_000_000  # of no real process
LATE_S = 0.01  # that an answer may come after the deadline


@pytest.fixture(autouse=True)
def silent_log() -> Iterator[None]:
    logger = logging.getLogger("dragoman")
    logger.disabled = True
    yield
    logger.disabled = False


class Schedule:
    """Some seconds of a server, with settings, clients and faults by a seed."""

    def __init__(self, seed: int) -> None:
        self.rng, self.problems = random.Random(seed), list[str]()
        self.faults = self.rng.choice([0.0, 1.0, 1.0, 4.0])
        draw = self.rng.choice
        self.settings = ServerSettings(
            workers=draw([1, 2, 3]),
            queue_tokens=draw([8, 40, 200]),
            batch_tokens=draw([4, 12, 60]),
            batch_wait_ms=draw([0.0, 3.0, 50.0]),
            deadline_s=draw([0.3, 1.0, 4.0]),
            cancel_s=draw([0.3, 1.0]),
            ping_s=0.2,
            silence_s=0.5,
            hang_s=1.0,
            start_s=3.0,
        )

    async def run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        processes: dict[int, Process] = {}

        async def start_process(*args: Any, **options: Any) -> Process:
            is_first = len(processes) < len(pool.workers)  # these succeed, or there would be no server
            pid = FIRST_PID + len(processes)
            processes[pid] = Process(self.rng, 0.0 if is_first else self.faults, pid)
            return processes[pid]

        def is_stopped(pid: int) -> bool:  # by SIGSTOP, which the kernel tells; another hang it does not
            return processes[pid].is_frozen and pid % 2 == 0

        monkeypatch.setattr(worker_pool.asyncio, "create_subprocess_exec", start_process)
        monkeypatch.setattr(worker_pool, "is_frozen", is_stopped)
        pool = WorkerPool(self.settings, {MODEL: "nowhere"})
        await pool.start()
        for process in processes.values():
            process.faults = self.faults
        batcher = Batcher(self.settings, pool, {MODEL: SourceTokenizer(lambda item: (len(item["source"]), None))})
        batcher.start()
        loop = asyncio.get_running_loop()
        clients = [asyncio.create_task(self.client(batcher, k)) for k in range(self.rng.choice([3, 10, 25]))]
        _, waiting = await asyncio.wait(clients, timeout=60)
        self.expect(not waiting, f"{len(waiting)} clients wait forever")
        for client in clients:
            if client.done() and not client.cancelled() and client.exception() is not None:
                raise client.exception() or AssertionError
        self.faults = 0.0
        end = loop.time() + 20.0  # what hangs is killed and loads again, at most four times in a row with a delay
        while not (is_healthy(pool) and not batcher.running) and loop.time() < end:
            await asyncio.sleep(0.2)
        self.expect(pool.ready_count == len(pool.workers), f"{pool.ready_count} of {len(pool.workers)} workers ready")
        self.expect(batcher.pending_tokens == 0, f"{batcher.pending_tokens} tokens are never freed")
        self.expect(not batcher.queue, "requests stay queued")
        self.expect(not batcher.running, "jobs stay running")
        try:
            results = await batcher.predict(MODEL, [{"source": "last"}], {})
            self.expect(results == [{"text": "last 1"}], f"the last request got {results}")
        except APIError as error:
            self.expect(False, f"the last request was refused: {error.status} {error}")
        await batcher.stop()
        await pool.stop()

    async def client(self, batcher: Batcher, number: int) -> None:
        """Arrive, send a request, and wait, or go away before the answer."""
        rng, loop = random.Random(self.rng.random()), asyncio.get_running_loop()
        await asyncio.sleep(rng.choice([0.0, rng.uniform(0.0, 0.05), rng.uniform(0.0, 3.0)]))
        sources = [f"{number}.{i}" + "x" * rng.randint(0, 4) for i in range(rng.choice([1, 1, 2, 6]))]
        if rng.random() < 0.1:
            sources[rng.randrange(len(sources))] = POISON
        options = rng.choice([{}, {}, {"beam": 2}, {"stream": True}, {"search": "sample"}])
        arrival = loop.time()
        try:
            request = await batcher.admit("predict", MODEL, [{"source": source} for source in sources], dict(options))
        except APIError as error:
            self.expect(error.status in REFUSALS, f"client {number} was refused with {error.status}: {error}")
            return
        reading = asyncio.create_task(self.read(batcher, request, sources, options, number))
        if rng.random() < 0.2:
            await asyncio.wait([reading], timeout=rng.uniform(0.0, 0.5))
            reading.cancel()
        await asyncio.wait([reading])
        late = loop.time() - arrival - self.settings.deadline_s
        self.expect(late < LATE_S, f"client {number} got its answer {late:.3f} s after the deadline")
        if not reading.cancelled():
            reading.result()

    async def read(self, batcher: Batcher, request: Any, sources: list[str], options: Any, number: int) -> None:
        results: dict[int, str] = {}
        tokens: list[list[int]] = [[] for _ in sources]
        try:
            async for event in batcher.stream_events(request):
                item = event["item"]
                if event["kind"] == "token":
                    tokens[item].append(event["token"])
                    continue
                text = json.loads(event["json"])["text"]
                self.expect(item not in results, f"client {number} got two results for item {item}")
                expected = expected_answer(sources[item], options, item)
                self.expect(text == expected, f"client {number} got {text!r} instead of {expected!r}")
                results[item] = text
            self.expect(len(results) == len(sources), f"client {number} got {len(results)} of {len(sources)} results")
            self.expect(POISON not in sources, f"client {number} got an answer to a source that cannot be answered")
        except APIError as error:
            self.expect(error.status in ERRORS, f"client {number} got {error.status}: {error}")
            self.expect(error.status != 500 or POISON in sources, f"client {number} got another's error: {error}")
        for i, said in enumerate(tokens):
            self.expect(said in ([], [0], [0, 1]), f"client {number} got the tokens {said} of item {i}")

    def expect(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)


def is_healthy(pool: WorkerPool) -> bool:
    """Whether all workers are ready and none has hung since; from here on nothing goes wrong with them."""
    processes = [worker.process for worker in pool.workers]
    for process in processes:
        assert isinstance(process, Process)
        process.faults = 0.0
    return pool.ready_count == len(processes) and not any(process.is_frozen for process in processes)


def problems_of(seed: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    schedule = Schedule(seed)
    loop.set_exception_handler(lambda _, context: schedule.problems.append(f"{context.get('exception', context)!r}"))
    try:
        loop.run_until_complete(schedule.run(monkeypatch))
    except Exception as error:
        schedule.problems.append(repr(error))
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()
    return [f"DRAGOMAN_SCHEDULE={seed}: {problem}" for problem in schedule.problems]


def check(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    first = torch.initial_seed() % 2**32
    seeds = [int(os.environ["DRAGOMAN_SCHEDULE"])] if "DRAGOMAN_SCHEDULE" in os.environ else range(first, first + count)
    problems = []
    for seed in seeds:
        problems += problems_of(seed, monkeypatch)
        if len(problems) > 10:
            break
    assert not problems, "\n".join(problems)


def test_every_request_of_300_schedules_is_answered_or_refused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    check(300, monkeypatch)


@pytest.mark.long
def test_every_request_of_100_000_schedules_is_answered_or_refused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    check(100_000, monkeypatch)
