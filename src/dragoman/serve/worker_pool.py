"""The pool of worker processes: starts, monitors, cancels and replaces them.

    starting ──ready──→ ready ──no pong for silence_s──→ silent ──for hang_s──→ killed ──→ starting …
        │                 ├──its pipe closes (a crash)────────────────────────────→
        ├─────────────────┴──frozen (SIGSTOP) for silence_s───────────────────────→
        └──no CPU time for load_hang_s (waits for something that does not come)───→

A spare process has imported torch already, which takes seconds, and becomes the next worker: it only loads the models.
A worker runs one job at a time. If a worker dies, its job raises WorkerLost. If a cancelled job does not stop within
cancel_s, its worker is killed: the main thread must be stuck. This process never computes: it only reads and writes
messages (worker_process.py defines their format), so it stays responsive whatever the workers do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from dragoman.core.errors import UserError
from dragoman.core.processes import describe_exit, is_frozen
from dragoman.serve.schema import JSONObject, ModelInfo
from dragoman.serve.settings import ServerSettings
from dragoman.serve.worker_process import LENGTH_PREFIX, decode_message, encode_message

logger = logging.getLogger("dragoman")

OnOutput = Callable[[JSONObject], None]  # gets the tokens and results of a job

RESTART_DELAYS_S = (0.0, 0.0, 0.5, 1.0, 2.0, 4.0)  # by how often in a row a worker died while it loaded its models
EXIT_TIMEOUT_S = 2.0  # for a worker to exit after its pipe was closed
REAP_TIMEOUT_S = 0.2  # for the exit code of a crashed process
SPARE_DELAY_S = 1.0  # between two looks whether a spare process is missing


class WorkerLost(Exception):
    """The worker of a job died, or had to be killed."""


class WorkerHandle:
    """The server's side of one worker: a process, which is replaced when it dies."""

    def __init__(
        self,
        number: int,
        settings: ServerSettings,
        load_message: JSONObject,
        new_process: Callable[[], Awaitable[Process]],
    ) -> None:
        self.number, self.settings, self.load_message, self.new_process = number, settings, load_message, new_process
        self.ready = asyncio.Event()
        self.models: list[ModelInfo] = []
        self.process: Process | None = None
        self.restarts = 0
        self.is_stopping = False
        self.running_job: int | None = None  # its id
        self.outcome: asyncio.Future[JSONObject] | None = None  # of the running job
        self.on_output: OnOutput | None = None  # of the running job
        self.parts: list[bytes] = []  # of a result of the running job that is still arriving
        self.cancelled_at: float | None = None  # when the running job was cancelled
        self.last_pong = 0.0
        self.kill_reason = ""  # of the process, if it was killed while it loaded or was frozen

    # -- one job -----------------------------------------------------------------------------------------------------

    async def run_job(self, job: JSONObject, on_output: OnOutput) -> JSONObject:
        """Send a job, pass its outputs to `on_output`, and return its last message: done, failed or cancelled."""
        self.running_job, self.on_output, self.cancelled_at, self.parts = job["id"], on_output, None, []
        self.outcome = asyncio.get_running_loop().create_future()
        try:
            self.send(job)
            return await self.outcome
        finally:
            self.running_job = self.outcome = self.on_output = self.cancelled_at = None

    def cancel(self, job: int) -> None:
        """Cancel a job, by its id, if it is still running."""
        if self.running_job == job and self.cancelled_at is None:
            self.cancelled_at = asyncio.get_running_loop().time()
            self.send({"kind": "cancel", "id": job})

    def send(self, message: JSONObject) -> None:
        """Write a message without waiting: the worker's reader thread always reads. Ignore a closed pipe."""
        if self.process is not None and self.process.stdin is not None and not self.process.stdin.is_closing():
            self.process.stdin.write(encode_message(message))

    # -- the process -------------------------------------------------------------------------------------------------

    async def supervise(self, first_start: asyncio.Future[None]) -> None:
        """Run the process and restart it whenever it dies; a failure at first sets `first_start`'s exception."""
        failures = 0
        while True:
            try:
                reason = await self.run_process(first_start)
            except UserError as error:
                if not first_start.done():
                    first_start.set_exception(error)
                    return
                reason = f"cannot load its models: {error}"
            except OSError as error:  # no process, no memory, no right to run Python
                reason = f"could not be started: {error.strerror or error}"
            if self.is_stopping:
                return
            if not first_start.done():
                when = (
                    ""
                    if reason.startswith("could not be started")
                    else " while it loaded the models; see the messages above"
                )
                text = f"a worker {reason}{when}"
                first_start.set_exception(UserError(text))
                return
            failures = 0 if self.models else failures + 1
            logger.warning("worker %d %s; it is restarted", self.number, reason)
            self.restarts += 1
            await asyncio.sleep(RESTART_DELAYS_S[min(failures, len(RESTART_DELAYS_S) - 1)])

    async def run_process(self, first_start: asyncio.Future[None]) -> str:
        """Start a process, load its models and handle its messages until it exits; return how it did."""
        self.models = []
        self.process = await self.new_process()
        monitors = [asyncio.create_task(self.kill_if_stopped(self.process))]
        try:
            self.send(self.load_message)
            try:
                message = await asyncio.wait_for(self.read_message(), self.settings.start_s) or {"models": []}
                if message.get("kind") == "unusable":
                    raise UserError(message["message"])
                self.models = message["models"]
            except TimeoutError:
                self.kill_reason = f"did not load its models within {self.settings.start_s:g} s"
            if self.models:
                monitors.append(asyncio.create_task(self.monitor()))
                if not first_start.done():
                    first_start.set_result(None)
                while (output := await self.read_message()) is not None:
                    self.handle_message(output)
        finally:
            self.ready.clear()
            for monitor in monitors:
                monitor.cancel()
            reason = await self.reap()
        return reason

    async def read_message(self) -> JSONObject | None:
        """Read the next message of the process; None at the end of the pipe."""
        assert self.process is not None
        assert self.process.stdout is not None
        try:
            (size,) = LENGTH_PREFIX.unpack(await self.process.stdout.readexactly(LENGTH_PREFIX.size))
            return decode_message(await self.process.stdout.readexactly(size))
        except (asyncio.IncompleteReadError, OSError):  # e.g. EIO: a pipe that cannot be read has ended too
            return None

    def handle_message(self, message: JSONObject) -> None:
        """Note a pong, or pass on a token, a result or the end of the running job."""
        if message["kind"] == "pong":
            self.last_pong = asyncio.get_running_loop().time()
        elif message["id"] == self.running_job and self.on_output and self.outcome and not self.outcome.done():
            if message["kind"] == "part":
                self.parts.append(message["json"])
            elif message["kind"] == "result":
                self.on_output(message | {"json": b"".join([*self.parts, message.get("json", b"")])})
                self.parts.clear()
            elif message["kind"] == "token":
                self.on_output(message)
            else:
                self.outcome.set_result(message)

    async def monitor(self) -> None:
        """Ping regularly; mark a silent process as not ready, and kill it if it stays silent or does not cancel."""
        loop, settings = asyncio.get_running_loop(), self.settings
        self.last_pong = last_check = loop.time()
        while True:
            now = loop.time()
            if now - last_check > settings.silence_s / 2:  # this process itself was delayed: pongs may be unread
                self.last_pong = max(self.last_pong, now - settings.silence_s / 2)
            last_check = now
            silence = now - self.last_pong
            is_stuck = self.cancelled_at is not None and now - self.cancelled_at > settings.cancel_s
            if (silence > settings.hang_s or is_stuck) and self.process is not None:
                logger.warning("worker %d does not %s", self.number, "stop a cancelled job" if is_stuck else "respond")
                self.process.kill()
                self.ready.clear()
                return
            if silence > settings.silence_s:
                self.ready.clear()
            else:
                self.ready.set()
            self.send({"kind": "ping"})
            await asyncio.sleep(settings.ping_s)

    async def kill_if_stopped(self, process: Process) -> None:
        """Kill the process if it is frozen for silence_s, or takes no CPU time for load_hang_s while it loads.

        While it loads, its reader thread would answer pings; the main thread may wait for a pipe or a lock forever.
        """
        loop, settings, self.kill_reason = asyncio.get_running_loop(), self.settings, ""
        awake_at, idle_s, last_cpu_time = loop.time(), 0.0, None
        while not self.kill_reason:
            await asyncio.sleep(settings.ping_s)
            if not is_frozen(process.pid):
                awake_at = loop.time()
            cpu_time = None if self.models else main_thread_time(process.pid)
            is_idle = cpu_time is not None and cpu_time == last_cpu_time
            idle_s, last_cpu_time = idle_s + settings.ping_s if is_idle else 0.0, cpu_time
            if loop.time() - awake_at > settings.silence_s:
                self.kill_reason = "was frozen (SIGSTOP)"
            elif idle_s > settings.load_hang_s:
                self.kill_reason = f"did nothing for {settings.load_hang_s:g} s while it loaded its models"
        self.ready.clear()
        process.kill()

    async def reap(self) -> str:
        """Close the pipe, wait for the exit, kill if needed; fail the running job; return how it exited."""
        assert self.process is not None
        if self.process.stdin is not None:
            self.process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), EXIT_TIMEOUT_S if self.is_stopping else REAP_TIMEOUT_S)
        with suppress(ProcessLookupError):
            if self.process.returncode is None:
                self.process.kill()
        code = await self.process.wait()
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_exception(WorkerLost())
        return f"{self.kill_reason} and {describe_exit(code)}" if self.kill_reason else describe_exit(code)


class WorkerPool:
    """All workers, and the descriptions of the models that they have loaded."""

    def __init__(self, settings: ServerSettings, models: Mapping[str, str]) -> None:
        """Create the handles of all workers; `models` maps names to paths. `start` starts them."""
        load_options = settings.model_dump(include={"device", "precision", "reference", "threads", "plugins", "memory"})
        load_message = {"kind": "load", "models": dict(models), **load_options}
        self.settings, self.paths = settings, dict(models)
        count = settings.workers or default_worker_count(settings.device)
        self.workers = [WorkerHandle(i + 1, settings, load_message, self.take_process) for i in range(count)]
        self.spare: Process | None = None  # waits for its load message
        self.spare_keeper: asyncio.Task[None] | None = None
        self.models: dict[str, ModelInfo] = {}
        self.supervisors: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start all workers and wait until all have loaded the models; raise UserError if one cannot."""
        loop = asyncio.get_running_loop()
        starts = [loop.create_future() for _ in self.workers]
        self.supervisors = [
            loop.create_task(worker.supervise(start)) for worker, start in zip(self.workers, starts, strict=True)
        ]
        for outcome in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(outcome, BaseException):
                await self.stop()
                raise outcome
        self.models = {model["name"]: model for model in self.workers[0].models}
        if self.settings.spare:
            self.spare_keeper = loop.create_task(self.keep_spare())

    async def keep_spare(self) -> None:
        """Start a spare process whenever there is none and all workers are ready: it must not delay their start."""
        while True:
            await asyncio.sleep(SPARE_DELAY_S)
            is_missing = self.spare is None or self.spare.returncode is not None
            if is_missing and self.ready_count == len(self.workers):
                with suppress(OSError):  # it is tried again; a worker that is needed says what is wrong
                    self.spare = await start_process(self.settings)

    async def take_process(self) -> Process:
        """Return a process that waits for its load message: the spare one, or a new one."""
        spare, self.spare = self.spare, None
        return spare if spare is not None and spare.returncode is None else await start_process(self.settings)

    async def stop(self) -> None:
        """Close the pipes of all workers, and wait until they have exited, or cancel them after EXIT_TIMEOUT_S."""
        if self.spare_keeper is not None:
            self.spare_keeper.cancel()
        if self.spare is not None and self.spare.returncode is None:
            self.spare.kill()
            await self.spare.wait()
        for worker in self.workers:
            worker.is_stopping = True
            if worker.process is not None and worker.process.stdin is not None:
                worker.process.stdin.close()
        await asyncio.wait(self.supervisors, timeout=EXIT_TIMEOUT_S)
        for supervisor in self.supervisors:
            supervisor.cancel()
        await asyncio.gather(*self.supervisors, return_exceptions=True)

    @property
    def ready_count(self) -> int:
        """How many workers have answered a ping within silence_s."""
        return sum(worker.ready.is_set() for worker in self.workers)

    @property
    def restart_count(self) -> int:
        """How many times a worker was restarted."""
        return sum(worker.restarts for worker in self.workers)


async def start_process(settings: ServerSettings) -> Process:
    """Start a worker process, which imports torch and then waits for its load message."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # a file in the working directory is no module of ours
        "-m",
        "dragoman.serve.worker_process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": str(settings.threads)},
        start_new_session=True,  # Ctrl-C in a terminal is for the parent, which drains
    )


def main_thread_time(pid: int) -> int | None:
    """Return the nanoseconds that the main thread of a process has run; None where /proc does not tell."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        return None


def default_worker_count(device: str) -> int:
    """Return 1 for a GPU, which one process fills, and one worker per core (of one thread each) for a CPU."""
    if device != "cpu":
        from dragoman.inference.device import select_device

        if select_device(device).type != "cpu":
            return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
