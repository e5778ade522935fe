"""The decode workers as the server sees them: started, watched, cancelled, replaced.

    starting ──ready──→ ready ──no pong for silence_s──→ silent ──for hang_s──→ killed ──→ starting …
                          └──its pipe ends (a crash)──────────────────────────────────────→

A worker has one job at a time. A job whose worker is lost raises Lost; one that was cancelled and is not left within
cancel_s costs the worker its life, since its main thread must be stuck. This process never computes: it reads and
writes messages (worker.py has their form), so that it answers whatever the workers do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

from dragoman.core.errors import UserError
from dragoman.serve.settings import Serving
from dragoman.serve.worker_process import HEAD, Message, frame, parse

logger = logging.getLogger("dragoman")

Hear = Callable[[Message], None]  # takes the tokens and results of a job

AGAIN = (0.0, 0.0, 0.5, 1.0, 2.0, 4.0)  # seconds until the next start, by how often a worker was lost as it started
LEAVE_S = 2.0  # that a worker has to end after its pipe was closed
REAP_S = 0.2  # until the code of a process that crashed is known


class Lost(Exception):
    """The worker of a job died, or had to be killed."""


class Worker:
    """One process after the other, of which at most one lives."""

    def __init__(self, number: int, serving: Serving, load: Message) -> None:
        self.number, self.serving, self.load = number, serving, load
        self.ready = asyncio.Event()
        self.models: list[Message] = []
        self.process: asyncio.subprocess.Process | None = None
        self.restarts = 0
        self.ending = False
        self.job: int | None = None  # the id of the job at work
        self.outcome: asyncio.Future[Message] | None = None  # of that job
        self.hear: Hear | None = None  # who hears of its tokens and results
        self.cancelled_at: float | None = None  # when it was cancelled
        self.heard = 0.0  # when the last pong came
        self.pongs: dict[int, asyncio.Future[bool]] = {}  # of pings not answered yet
        self.pings = 0

    # -- one job -----------------------------------------------------------------------------------------------------

    async def do(self, job: Message, hear: Hear) -> Message:
        """The message that ends a job: done, failed or cancelled."""
        self.job, self.hear, self.cancelled_at = job["id"], hear, None
        self.outcome = asyncio.get_running_loop().create_future()
        try:
            self.send(job)
            return await self.outcome
        finally:
            self.job = self.outcome = self.hear = self.cancelled_at = None

    def cancel(self, job: int) -> None:
        """Have a job left, if it is still the one at work."""
        if self.job == job and self.cancelled_at is None:
            self.cancelled_at = asyncio.get_running_loop().time()
            self.send({"kind": "cancel", "id": job})

    async def answers(self, within: float) -> bool:
        """Whether the process answers a ping."""
        if not self.ready.is_set():
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                return await self.ping()
        return False

    def ping(self) -> asyncio.Future[bool]:
        self.pings += 1
        self.pongs[self.pings] = asyncio.get_running_loop().create_future()
        self.send({"kind": "ping", "id": self.pings})
        return self.pongs[self.pings]

    def send(self, message: Message) -> None:
        """Write without waiting: the listener in the worker always reads. A pipe that ended tells of itself."""
        if self.process is not None and self.process.stdin is not None and not self.process.stdin.is_closing():
            self.process.stdin.write(frame(message))

    # -- its lives ---------------------------------------------------------------------------------------------------

    async def keep(self, first: asyncio.Future[None]) -> None:
        """Live, and live again; `first` is done when the first life is ready, or fails as that failed."""
        failures = 0
        while True:
            try:
                reason = await self.live(first)
            except UserError as error:
                if not first.done():
                    first.set_exception(error)
                    return
                reason = f"cannot load its models: {error}"
            if self.ending:
                return
            if not first.done():
                first.set_exception(UserError(f"a worker {reason} while it loaded the models; see the messages above"))
                return
            failures = 0 if self.models else failures + 1
            wait = AGAIN[min(failures, len(AGAIN) - 1)]
            logger.warning("worker %d %s; another one starts", self.number, reason)
            self.restarts += 1
            await asyncio.sleep(wait)

    async def live(self, first: asyncio.Future[None]) -> str:
        """Start a process and take its messages until it ends; how it ended."""
        self.models = []
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "dragoman.serve.worker_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": str(self.serving.threads)},
            start_new_session=True,  # Ctrl-C in a terminal is for the parent, which drains
        )
        watch: asyncio.Task[None] | None = None
        try:
            self.send(self.load)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.serving.start_s):
                    self.models = self.loaded(await self.message())
            if self.models:
                watch = asyncio.create_task(self.watch())
                if not first.done():
                    first.set_result(None)
                while (message := await self.message()) is not None:
                    self.take(message)
        finally:
            self.ready.clear()
            if watch is not None:
                watch.cancel()
            reason = await self.bury()
        return reason

    def loaded(self, message: Message | None) -> list[Message]:
        """What a new process says of its models; nothing where it ended instead."""
        if message is None:
            return []
        if message["kind"] == "unusable":
            raise UserError(message["message"])
        return message["models"]  # type: ignore[no-any-return]

    async def message(self) -> Message | None:
        assert self.process is not None
        assert self.process.stdout is not None
        try:
            (size,) = HEAD.unpack(await self.process.stdout.readexactly(HEAD.size))
            return parse(await self.process.stdout.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def take(self, message: Message) -> None:
        if message["kind"] == "pong":
            self.heard = asyncio.get_running_loop().time()
            waiting = self.pongs.pop(message["id"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(True)
        elif message["id"] != self.job or self.outcome is None or self.outcome.done():
            return
        elif message["kind"] in ("token", "result"):
            if self.hear is not None:
                self.hear(message)
        else:
            self.outcome.set_result(message)

    async def watch(self) -> None:
        """Ping; a process that does not answer is not ready, and in the end it is killed."""
        loop, serving = asyncio.get_running_loop(), self.serving
        self.heard = before = loop.time()
        while True:
            now = loop.time()
            if now - before > serving.silence_s / 2:  # this process itself was held up: pongs may lie unread
                self.heard = max(self.heard, now - serving.silence_s / 2)
            before = now
            silence = now - self.heard
            stuck = self.cancelled_at is not None and now - self.cancelled_at > serving.cancel_s
            if (silence > serving.hang_s or stuck) and self.process is not None:
                logger.warning("worker %d does not %s", self.number, "leave a job" if stuck else "answer")
                self.process.kill()
                self.ready.clear()
                return
            if silence > serving.silence_s:
                self.ready.clear()
            else:
                self.ready.set()
            self.ping()
            await asyncio.sleep(serving.ping_s)

    async def bury(self) -> str:
        """Make sure that the process has ended, and let go who waits for it; how it ended."""
        assert self.process is not None
        if self.process.stdin is not None:
            self.process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S if self.ending else REAP_S):
                await self.process.wait()
        with suppress(ProcessLookupError):
            if self.process.returncode is None:
                self.process.kill()
        code = await self.process.wait()
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_exception(Lost())
        for waiting in self.pongs.values():
            if not waiting.done():
                waiting.set_result(False)
        self.pongs.clear()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


class Workers:
    """All of them, and what they say of their models."""

    def __init__(self, serving: Serving, models: Mapping[str, str]) -> None:
        """`models` are paths by name."""
        load = {
            "kind": "load",
            "models": dict(models),
            "device": serving.device,
            "precision": serving.precision,
            "plain": serving.plain,
            "threads": serving.threads,
            "imports": serving.imports,
        }
        self.serving, self.paths = serving, dict(models)
        self.every = [Worker(i + 1, serving, load) for i in range(serving.workers or how_many(serving.device))]
        self.models: dict[str, Message] = {}
        self.lives: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Until all are ready; a model that cannot be loaded is the user's error."""
        loop = asyncio.get_running_loop()
        firsts = [loop.create_future() for _ in self.every]
        self.lives = [loop.create_task(worker.keep(first)) for worker, first in zip(self.every, firsts, strict=True)]
        outcomes = await asyncio.gather(*firsts, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                await self.end()
                raise outcome
        self.models = {model["name"]: model for model in self.every[0].models}

    async def end(self) -> None:
        """Close their pipes and see them go."""
        for worker in self.every:
            worker.ending = True
            if worker.process is not None and worker.process.stdin is not None:
                worker.process.stdin.close()
        await asyncio.wait(self.lives, timeout=LEAVE_S)
        for life in self.lives:
            life.cancel()
        await asyncio.gather(*self.lives, return_exceptions=True)

    @property
    def ready(self) -> int:
        return sum(worker.ready.is_set() for worker in self.every)

    @property
    def restarts(self) -> int:
        return sum(worker.restarts for worker in self.every)

    async def probe(self) -> int:
        """How many answer a ping just now."""
        return sum(await asyncio.gather(*(worker.answers(self.serving.silence_s) for worker in self.every)))


def how_many(device: str) -> int:
    """One process fills a GPU; on a CPU one for each core, with one thread each, shares it best."""
    if device != "cpu":
        from dragoman.inference import device as devices

        if devices.pick(device).type != "cpu":
            return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
