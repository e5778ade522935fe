"""A machine to run the server's batcher and worker pool on: its clock jumps, and its processes fail by a seed.

The batcher, the pool and the messages between pool and workers are the real ones; simulated are time, processes and
pipes. The same seed gives the same schedule of arrivals, deaths, hangs and cancellations, event by event.
"""

from __future__ import annotations

import asyncio
import json
import random
import selectors
from collections.abc import Callable
from typing import Any

from dragoman.serve.worker_process import LENGTH_PREFIX, decode_message, encode_message

MODEL = "echo"
MODEL_INFO = {
    "name": MODEL,
    "source": "text",
    "second_source": None,
    "kind": "pairs",
    "languages": [],
    "source_languages": [],
    "max_source_positions": 1000,
    "search": {
        "name": "greedy",
        "beam": 1,
        "is_sampling": False,
        "max_length_ratio": 1.0,
        "max_length_extra": 3,
        "max_length": None,
    },
}
POISON = "boom"  # a source on which a worker fails


class VirtualSelector(selectors.DefaultSelector):
    """Never waits: the loop's clock jumps to the next timer instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing can happen any more, and somebody still waits"
        self.loop.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is virtual, and whose threads are calls."""

    def __init__(self) -> None:
        self.now = 1000.0
        selector = VirtualSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class Process:
    """A worker process that echoes its sources; its random generator decides what goes wrong."""

    def __init__(self, rng: random.Random, faults: float, pid: int, speed: float | None = None) -> None:
        self.rng, self.faults, self.pid = rng, faults, pid
        self.speed = speed  # tokens per second; None: the random generator decides how long an item takes
        self.loop = asyncio.get_running_loop()
        self.stdin, self.stdout = self, asyncio.StreamReader()
        self.returncode: int | None = None
        self.exited = self.loop.create_future()
        self.is_frozen = False  # answers nothing, as after SIGSTOP or in an endless loop of C
        self.waits_forever = False  # in loading: its reader thread answers
        self.is_closed = False
        self.buffer = b""
        self.jobs: list[dict[str, Any]] = []
        self.running: dict[str, Any] | None = None
        self.steps: list[asyncio.TimerHandle] = []  # of the running job

    def happens(self, share: float) -> bool:
        return self.rng.random() < share * self.faults

    # -- asyncio's interface of a process ------------------------------------------------------------------------------

    async def wait(self) -> int:
        return int(await asyncio.shield(self.exited))

    def kill(self) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        self.exit(-9)

    send_signal = terminate = None

    def exit(self, code: int) -> None:
        if self.returncode is None:
            self.returncode = code
            self.stop_job()
            self.stdout.feed_eof()
            self.exited.set_result(code)

    # -- … and of its standard input -----------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        if not self.is_closed and not self.is_frozen:
            self.loop.call_later(0.001, self.exit, 0)
        self.is_closed = True

    async def drain(self) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.buffer += data
        while len(self.buffer) >= LENGTH_PREFIX.size:
            end = LENGTH_PREFIX.size + LENGTH_PREFIX.unpack_from(self.buffer)[0]
            if len(self.buffer) < end:
                return
            message, self.buffer = decode_message(self.buffer[LENGTH_PREFIX.size : end]), self.buffer[end:]
            self.loop.call_soon(self.receive, message)

    # -- what it does --------------------------------------------------------------------------------------------------

    def send(self, message: dict[str, Any], result: bytes = b"") -> None:
        if self.returncode is None and not self.is_frozen:
            self.stdout.feed_data(encode_message(message, result))

    def receive(self, message: dict[str, Any]) -> None:
        if self.returncode is not None or self.is_frozen:
            return
        kind = message["kind"]
        if kind == "ping":
            if self.happens(0.002):
                self.is_frozen = True
            elif self.happens(0.002):
                self.exit(-11)
            else:
                self.send({"kind": "pong"})
        elif kind == "load":
            self.is_frozen = self.happens(0.02)
            self.waits_forever = self.happens(0.02)  # for a lock, a pipe, a disk
            if not self.waits_forever:
                self.loop.call_later(self.rng.uniform(0.1, 1.0), self.finish_loading)
        elif kind == "cancel":
            if self.running is not None and self.running["id"] == message["id"] and not self.running.get("stuck"):
                self.loop.call_later(self.rng.choice([0.0, 0.001, 0.2]), self.cancel_job, message["id"])
        else:
            self.jobs.append(message)
            self.next_job()

    def finish_loading(self) -> None:
        if self.happens(0.05):
            self.exit(1)
        self.send({"kind": "ready", "models": [MODEL_INFO]})

    def next_job(self) -> None:
        if self.running is not None or not self.jobs:
            return
        self.running = job = self.jobs.pop(0)
        if self.happens(0.03):
            job["stuck"] = True  # pongs come, results do not, and no cancellation is obeyed
            return
        at, results = 0.0, []
        for i in range(len(job["items"])):
            at += self.seconds(job, i)
            for token in range(2 if job["options"].get("stream") else 0):
                self.later(at, self.send, {"kind": "token", "id": job["id"], "item": i, "token": token})
            results.append({"kind": "result", "id": job["id"], "item": i})
        poisoned = [i for i, item in enumerate(job["items"]) if item["source"] == POISON]
        sent = self.rng.randint(0, poisoned[0]) if poisoned else len(results)  # memory may run out between two results
        for i, message in enumerate(results[:sent]):
            self.later(at, self.send, message, json.dumps({"text": answer(job, i)}).encode())
        if self.happens(0.03):
            self.later(self.rng.uniform(0.0, at), self.exit, -9)
        elif self.happens(0.02):
            self.later(self.rng.uniform(0.0, at), self.freeze)
        failed = {"kind": "failed", "status": 500, "code": "internal", "message": "the server failed on this request"}
        self.later(at, self.end_job, failed if poisoned else {"kind": "done"})

    def seconds(self, job: dict[str, Any], i: int) -> float:
        if self.speed is None:
            return self.rng.choice([0.0, 0.001, 0.01, 0.1])
        return len(job["items"][i]["source"]) * int(job["options"].get("beam", 1)) / self.speed

    def later(self, seconds: float, function: Callable[..., None], *args: Any) -> None:
        """Do something for the running job; what is due at the same time comes in the order of these calls."""
        self.steps.append(self.loop.call_later(seconds + 1e-6 * len(self.steps), function, *args))

    def freeze(self) -> None:
        self.is_frozen = True

    def cancel_job(self, job: int) -> None:
        if self.running is not None and self.running["id"] == job:
            self.end_job({"kind": "cancelled"})

    def end_job(self, message: dict[str, Any]) -> None:
        assert self.running is not None
        self.send({"id": self.running["id"]} | message)
        self.stop_job()
        self.next_job()

    def stop_job(self) -> None:
        for step in self.steps:
            step.cancel()
        self.steps.clear()
        self.running = None


def answer(job: dict[str, Any], i: int) -> str:
    """What a worker says to an item: the source, the options, and for a sample the index of the item in its request."""
    return expected_answer(job["items"][i]["source"], job["options"], job["first_index"] + i)


def expected_answer(source: str, options: dict[str, Any], index: int) -> str:
    return f"{source} {options.get('beam', 1)}" + (f" {index}" if options.get("search") == "sample" else "")
