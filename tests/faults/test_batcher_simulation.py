"""Seeded schedules of arrivals, deaths, hangs and cancellations against the real batcher and worker pool.

Every admitted request is answered or refused exactly once and never with another's text; afterwards all slots and
tokens are free, and the server serves. Without faults, a request of one word waits little beside dear ones, and each of
these ends, too. 300 schedules here, 100,000 in `make test-long`; DRAGOMAN_SCHEDULE=SEED repeats
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
WORD_S = 2.0  # that a request of one word may take beside dear ones
LAST_S = 45.0  # until the last dear request is admitted and ends: one of 32,000 tokens takes 32 s


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
            start_s=30.0,
            load_hang_s=2.0,
            spare=draw([True, False]),
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

        def run_time(pid: int) -> int | None:  # of a process that is not frozen, it grows
            process = processes[pid]
            return 0 if process.is_frozen or process.waits_forever else int(1e9 * process.loop.time())

        monkeypatch.setattr(worker_pool, "is_frozen", is_stopped)
        monkeypatch.setattr(worker_pool, "main_thread_time", run_time)
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
        self.expect(batcher.pending == {True: 0, False: 0}, f"{batcher.pending} tokens are never freed")
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


class Fairness:
    """A server without faults: dear requests fill its queue, others keep it busy, and now and then one word comes."""

    def __init__(self, seed: int) -> None:
        self.rng, self.problems = random.Random(seed), list[str]()
        self.is_busy = self.rng.random() < 0.5  # with requests that are neither dear nor small, without a pause
        self.speed = 1000.0 if self.is_busy else self.rng.choice([1000.0, 8000.0])  # of a worker
        patience = {"ping_s": 5.0, "silence_s": 20.0, "hang_s": 30.0}  # fewer events: no process fails
        self.settings = ServerSettings(workers=self.rng.choice([1, 2, 3]), deadline_s=3600.0, spare=False, **patience)
        self.dear_cost, self.is_over = 0, False

    async def run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        processes: list[Process] = []

        async def start_process(*args: Any, **options: Any) -> Process:
            processes.append(Process(self.rng, 0.0, FIRST_PID + len(processes), self.speed))
            return processes[-1]

        monkeypatch.setattr(worker_pool.asyncio, "create_subprocess_exec", start_process)
        pool = WorkerPool(self.settings, {MODEL: "nowhere"})
        await pool.start()
        batcher = Batcher(self.settings, pool, {MODEL: SourceTokenizer(lambda item: (len(item["source"]), None))})
        batcher.start()
        loop = asyncio.get_running_loop()
        began = loop.time()
        words = [asyncio.create_task(self.send_words(batcher))]
        words += [asyncio.create_task(self.send_sentences(batcher)) for _ in range(6 if self.is_busy else 0)]
        await asyncio.gather(*(self.send_dear(batcher) for _ in range(16)))
        spent = loop.time() - began
        capacity = self.speed * max(len(pool.workers) - 1, 1)  # one may serve nothing but words
        most = (6 if self.is_busy else 2) * self.dear_cost / capacity + LAST_S
        self.expect(spent < most, f"dear requests of {self.dear_cost:,} tokens took {spent:.1f} s, not {most:.1f}")
        self.is_over = True
        await asyncio.gather(*words)
        await asyncio.sleep(1.0)  # the end of a job comes after its results
        self.expect(batcher.pending == {True: 0, False: 0}, f"{batcher.pending} tokens are never freed")
        await batcher.stop()
        await pool.stop()

    async def send_dear(self, batcher: Batcher) -> None:
        """Send the request until it is admitted: many inputs, or one long one where there are workers for both."""
        await asyncio.sleep(self.rng.uniform(0.0, 2.0))
        beam = self.rng.choice([1, 4, 32])
        items = 1 if len(batcher.pool.workers) > 1 and self.rng.random() < 0.4 else 128
        length = 1000 if items == 1 else self.rng.choice([4000, 8000, 20_000]) // (beam * items)
        item = {"source": "x" * max(length, 1)}
        while True:
            try:
                results = await batcher.predict(MODEL, [dict(item) for _ in range(items)], {"beam": beam})
            except APIError as error:
                self.expect(error.status == 429, f"a dear request got {error.status}: {error}")
                await asyncio.sleep(0.5)
                continue
            self.expect(len(results) == items, f"a dear request got {len(results)} of {items} results")
            self.dear_cost += items * beam * len(item["source"])
            return

    async def send_sentences(self, batcher: Batcher) -> None:
        while not self.is_over:
            await batcher.predict(MODEL, [{"source": "x" * self.rng.randint(50, 150)}], {"search": "sample"})

    async def send_words(self, batcher: Batcher) -> None:
        loop = asyncio.get_running_loop()
        while not self.is_over:
            await asyncio.sleep(self.rng.uniform(0.05, 0.5))
            began = loop.time()
            await batcher.predict(MODEL, [{"source": "word"}], {"beam": 1})
            waited = loop.time() - began
            self.expect(waited < WORD_S, f"a word waited {waited:.2f} s at {self.speed:,.0f} tokens/s")

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


def problems_of(kind: type[Schedule | Fairness], seed: int) -> list[str]:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    schedule = kind(seed)
    loop.set_exception_handler(lambda _, context: schedule.problems.append(f"{context.get('exception', context)!r}"))
    try:
        with pytest.MonkeyPatch.context() as patch:  # one for all schedules would keep the processes of each
            loop.run_until_complete(schedule.run(patch))
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


def check(count: int, kind: type[Schedule | Fairness] = Schedule) -> None:
    first = torch.initial_seed() % 2**32
    seeds = [int(os.environ["DRAGOMAN_SCHEDULE"])] if "DRAGOMAN_SCHEDULE" in os.environ else range(first, first + count)
    problems = []
    for seed in seeds:
        problems += problems_of(kind, seed)
        if len(problems) > 10:
            break
    assert not problems, "\n".join(problems)


def test_every_request_of_300_schedules_is_answered_or_refused_once() -> None:
    check(300)


@pytest.mark.long
def test_every_request_of_100_000_schedules_is_answered_or_refused_once() -> None:
    check(100_000)


def test_a_word_waits_at_most_2_s_beside_dear_requests_and_all_of_them_end() -> None:
    check(3, Fairness)


@pytest.mark.long
def test_a_word_waits_at_most_2_s_in_500_schedules_of_dear_requests() -> None:
    check(500, Fairness)
