"""A process that loads the models and computes. `python -m dragoman.serve.worker_process`, started by workers.py alone.

    parent ──load, job, cancel, ping──→ listener ──jobs──→ main thread ──ready, token, result, done, …──→ parent
                                            └──pong──────────────────────────────────────────────────────→

A message is its length in four bytes, a line of JSON, and for a `result` the JSON that goes to the client as it is;
nothing is unpickled. A job names what to `do`, its model, items and options, and an id, which every answer carries: a
`token` on its way, the `result` of each item, and one of done, failed and cancelled, which ends it.

The listener answers pings while the main thread computes. To cancel a job it signals the main thread, whose handler
raises if that job is still the one at work; a search is left between two operations then, a few milliseconds later.
The end of the parent closes the pipe, which ends the process. SIGINT and SIGTERM are the parent's business: it drains.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

from dragoman.core.json import finite

if TYPE_CHECKING:
    from dragoman.core.types import Example
    from dragoman.inference.pipeline import Pipeline

Message = dict[str, Any]

HEAD = struct.Struct(">I")

logger = logging.getLogger("dragoman")


class Cancelled(BaseException):
    """The job at work is not wanted any more; no `except Exception` on the way shall keep it."""


# -- messages ----------------------------------------------------------------------------------------------------------


def frame(message: Message, result: bytes = b"") -> bytes:
    """A message as it travels, in ASCII."""
    data = json.dumps(message).encode() + b"\n" + result
    return HEAD.pack(len(data)) + data


def parse(data: bytes) -> Message:
    line, _, result = data.partition(b"\n")
    message: Message = json.loads(line)
    return message | {"json": result} if result else message


def encoded(value: Any) -> bytes:
    """JSON, row by row: one call for a view's millions of numbers would let no ping be answered for seconds."""
    return "".join(written_out(value)).encode()


def written_out(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for i, (key, item) in enumerate(value.items()):
            yield f"{', ' if i else '{'}{json.dumps(str(key))}: "
            yield from written_out(item)
        yield "}" if value else "{}"
    elif isinstance(value, list | tuple) and any(isinstance(item, dict | list | tuple) for item in value):
        for i, item in enumerate(value):
            yield ", " if i else "["
            yield from written_out(item)
        yield "]"
    else:
        yield flat(value)


def flat(value: Any) -> str:
    """A value, or a list of values; a number that JSON has no word for (log p of the impossible) is null."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(finite(value))


def receive(file: IO[bytes]) -> Message | None:
    """The next message; None at the end."""
    head = file.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (size,) = HEAD.unpack(head)
    data = file.read(size)
    return parse(data) if len(data) == size else None


# -- the process -------------------------------------------------------------------------------------------------------


class Worker:
    """The two pipes, the job at work, and the models."""

    def __init__(self, into: IO[bytes], out: IO[bytes]) -> None:
        self.into, self.out = into, out
        self.jobs: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.writing = threading.Lock()
        self.at_work: int | None = None  # the id of the job that may be cancelled now
        self.unwanted: int | None = None  # the id of the last one that was
        self.telling = False  # the main thread writes a message, which must not be left half written
        self.pipelines: dict[str, Pipeline] = {}

    def send(self, message: Message, result: bytes = b"") -> None:
        data = frame(message, result)
        with self.writing:
            self.out.write(data)
            self.out.flush()

    def listen(self) -> None:
        """Take messages as they come; without a parent there is no reason to go on."""
        try:
            while (message := receive(self.into)) is not None:
                if message["kind"] == "ping":
                    self.send({"kind": "pong", "id": message["id"]})
                elif message["kind"] == "cancel":
                    self.unwanted = message["id"]
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                else:
                    self.jobs.put(message)
        finally:
            os._exit(0)

    def check(self, *_: Any) -> None:
        """The handler of the signal: leave the job at work if it is not wanted."""
        if self.at_work is not None and self.at_work == self.unwanted and not self.telling:
            raise Cancelled

    def work(self) -> None:
        """Load the models, then answer jobs for ever."""
        from dragoman.core.errors import UserError

        try:
            models = self.load(self.jobs.get())
        except UserError as error:
            self.send({"kind": "unusable", "message": str(error)})
            return
        self.send({"kind": "ready", "models": models})
        while True:
            job = self.jobs.get()
            self.send({"id": job["id"]} | self.outcome(job))

    def load(self, message: Message) -> list[Message]:
        """Open every model, and use it once: what is made or imported on first use is made before anyone waits."""
        from dragoman.core.errors import UserError

        for module in message["imports"]:
            try:
                __import__(module)
            except ImportError as error:
                raise UserError(f"--import {module}: {error}") from None
        import torch

        from dragoman.inference import pipeline
        from dragoman.serve.responses import described

        torch.set_num_threads(message["threads"])
        found = []
        for name, path in message["models"].items():
            opened = pipeline.load(path, message["device"], precision=message["precision"], plain=message["plain"])
            opened.reading = replace(opened.reading, bounded=True)  # the pairs are strangers'
            self.pipelines[name] = opened
            found.append(described(name, opened))
            warm(opened, found[-1]["example"])
        return found

    def outcome(self, job: Message) -> Message:
        """What became of a job, without its id."""
        try:
            self.at_work = job["id"]
            self.check()
            return self.computed(job)
        except Cancelled:
            return {"kind": "cancelled"}
        finally:
            self.at_work = None

    def computed(self, job: Message) -> Message:
        import torch

        from dragoman.core.errors import DragomanError

        try:
            for i, result in enumerate(self.compute(job)):
                self.tell({"kind": "result", "id": job["id"], "item": i}, encoded(result))
            return {"kind": "done"}
        except DragomanError as error:
            return {"kind": "failed", "status": 422, "code": "refused", "message": str(error)}
        except (MemoryError, torch.OutOfMemoryError):
            text = "the model ran out of memory on this request; send less at a time"
            return {"kind": "failed", "status": 503, "code": "out_of_memory", "message": text}
        except Exception:
            logger.exception("a %s for the model '%s' failed", job["do"], job["model"])
            text = "the server failed on this request; its log says how"
            return {"kind": "failed", "status": 500, "code": "internal", "message": text}

    def compute(self, job: Message) -> list[Any]:
        from dragoman.serve import uploads as media

        pipeline, items = self.pipelines[job["model"]], job["items"]
        if job["do"] == "score":
            rows = pipeline.token_scores([media.example(item) for item in items])
            return [{"log_prob": sum(row), "log_probs": row} for row in rows]
        if job["do"] == "inspect":
            from dragoman.serve import view_routes

            return [view_routes.answer(self.pipelines, job["model"], job["view"], item) for item in items]

        def tell(place: int, token: int) -> None:
            self.tell({"kind": "token", "id": job["id"], "item": place - job["first"], "token": token})

        examples, told = [media.example(item) for item in items], tell if job["stream"] else None
        return predicted(pipeline, examples, job["options"], job["first"], told)

    def tell(self, message: Message, result: bytes = b"") -> None:
        """Send something about the job at work, which is not cancelled in the middle of it."""
        self.telling = True
        self.send(message, result)
        self.telling = False
        self.check()


# -- what it computes --------------------------------------------------------------------------------------------------


def predicted(
    pipeline: Pipeline,
    examples: Sequence[Example],
    options: Message,
    first: int = 0,
    tell: Callable[[int, int], None] | None = None,
) -> list[Message]:
    """The predictions of some sources, as the API writes them; options are those of schema.Predict."""
    from dragoman.inference.constraints import Constraints
    from dragoman.serve.responses import written

    constraints = Constraints(
        prefix=options.get("prefix", ""),
        require=tuple(options.get("require", ())),
        forbid=tuple(options.get("forbid", ())),
        shortest=options.get("min_length"),
        longest=options.get("max_length"),
    )
    found = pipeline.with_generation(no_repeat=options.get("no_repeat")).stream(
        examples,
        beam=options.get("beam"),
        nbest=options.get("nbest", 1),
        attention=options.get("attention", False),
        constraints=constraints,
        first=first,
        tell=tell,
    )
    return [written(prediction) for prediction in found]


def warm(pipeline: Pipeline, item: Message) -> None:
    """One greedy and one default search of a few tokens; what is missing for reading media is missed at once."""
    from dragoman.core.errors import DragomanError, MissingExtra
    from dragoman.serve import uploads as media

    item = media.ready(item, media.kinds(pipeline.codec))
    for options in ({"beam": 1, "max_length": 2}, {"max_length": 2}):
        try:
            predicted(pipeline, [media.example(item)], options)
        except MissingExtra:
            raise
        except DragomanError as error:
            logger.info("the first search was refused: %s", error)


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM):  # a terminal or a service manager sends them to all processes
        signal.signal(ignored, signal.SIG_IGN)
    into, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no message
    worker = Worker(into, out)
    signal.signal(signal.SIGUSR1, worker.check)
    threading.Thread(target=worker.listen, daemon=True).start()
    try:
        worker.work()
    except BrokenPipeError:  # the parent is gone
        sys.exit(0)


if __name__ == "__main__":
    main()
