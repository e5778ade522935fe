"""A process that loads the models and computes: `python -m dragoman.serve.worker_process`, started by worker_pool.py.

    parent ──load, job, cancel, ping──→ reader thread ──jobs──→ main thread ──ready, token, result, done, …──→ parent
                                            └──pong──────────────────────────────────────────────────────────→

A message is its length in four bytes, a line of JSON, and for a `result` the JSON that is sent to the client unchanged;
nothing is unpickled. Every message about a job carries its id: a `token` while it runs, the `result` of each item, and
one of done, failed and cancelled. A long result is sent in parts, of which the last is the `result`.

Without a first message it waits as a spare, whose imports are done when it becomes a worker.

To cancel a job, the reader thread signals the main thread, whose handler raises JobCancelled if that job is still
running. An import is not interrupted, since half of a module's parts would stay registered: SIGALRM tries again soon
after. When the parent dies, the pipe closes and the process exits. SIGINT and SIGTERM are ignored: the parent drains
and closes the pipe.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import queue
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING

from dragoman.core.errors import DragomanError, MissingExtra, UserError
from dragoman.core.generation import GenerationOptions
from dragoman.core.json import replace_nonfinite
from dragoman.core.plugins import load_plugin
from dragoman.serve import uploads
from dragoman.serve.schema import JSONObject, ModelInfo

if TYPE_CHECKING:
    from dragoman.inference.pipeline import Pipeline

LENGTH_PREFIX = struct.Struct(">I")
IMPORT_RETRY_S = 0.01  # until a job that imports is interrupted again
TRIM_S = 5.0  # seconds between two returns of freed memory to the system, which take some milliseconds
MAX_BATCH_SECONDS = 0.15  # of a batch that cannot be cancelled
PART_BYTES = 1 << 20  # of a result; a job that is cancelled while it sends one ends after some milliseconds

logger = logging.getLogger("dragoman")


class JobCancelled(BaseException):
    """The running job was cancelled. A BaseException, so that no `except Exception` on the way swallows it."""


def encode_message(message: JSONObject, result: bytes = b"") -> bytes:
    """Serialize a message with its length prefix; `result` is JSON that is appended unchanged."""
    data = json.dumps(message).encode() + b"\n" + result
    return LENGTH_PREFIX.pack(len(data)) + data


def decode_message(data: bytes) -> JSONObject:
    """Parse a message without its length prefix; an appended result is under the key "json", as bytes."""
    line, _, result = data.partition(b"\n")
    message: JSONObject = json.loads(line)
    return message | {"json": result} if result else message


def encode_result(value: object) -> Iterator[bytes]:
    """Serialize a value to JSON in parts, so that pongs are not delayed; log p of the impossible becomes null."""
    texts, size = list[str](), 0
    for text in _json_chunks(value):
        texts.append(text)
        size += len(text)
        if size >= PART_BYTES:
            yield "".join(texts).encode()
            texts, size = [], 0
    yield "".join(texts).encode()


def _json_chunks(value: object) -> Iterator[str]:
    """Yield the JSON of a value in parts; a list without nested values is one part."""
    if isinstance(value, dict):
        for i, (key, item) in enumerate(value.items()):
            yield f"{', ' if i else '{'}{json.dumps(str(key))}: "
            yield from _json_chunks(item)
        yield "}" if value else "{}"
    elif isinstance(value, list | tuple) and any(isinstance(item, dict | list | tuple) for item in value):
        for i, item in enumerate(value):
            yield ", " if i else "["
            yield from _json_chunks(item)
        yield "]"
    else:
        try:
            yield json.dumps(value, allow_nan=False)
        except ValueError:
            yield json.dumps(replace_nonfinite(value))


def read_message(file: IO[bytes]) -> JSONObject | None:
    """Read the next message from a pipe; None at its end."""
    prefix = file.read(LENGTH_PREFIX.size)
    if len(prefix) < LENGTH_PREFIX.size:
        return None
    (size,) = LENGTH_PREFIX.unpack(prefix)
    data = file.read(size)
    return decode_message(data) if len(data) == size else None


class WorkerProcess:
    """The worker's side of the pipes: reads messages in a thread, runs jobs one by one in the main thread."""

    def __init__(self, input: IO[bytes], output: IO[bytes]) -> None:
        self.input, self.output = input, output
        self.jobs: queue.SimpleQueue[JSONObject] = queue.SimpleQueue()
        self.write_lock = threading.Lock()
        self.running_job: int | None = None  # its id
        self.cancelled_job: int | None = None  # the id of the last one that was cancelled
        self.is_sending = False  # the main thread writes a message, which must not be interrupted
        self.pipelines: dict[str, Pipeline] = {}
        self.codec_fingerprints: dict[str, str] = {}

    def send(self, message: JSONObject, result: bytes = b"") -> None:
        """Write a message to the parent; safe from both threads. Without a pipe the process ends, and is replaced."""
        data = encode_message(message, result)
        with self.write_lock:
            try:
                self.output.write(data)
                self.output.flush()
            except OSError:  # no fault of the job: nobody can be told what came of it
                os._exit(1)

    def read_messages(self) -> None:
        """Read in a thread: answer pings, interrupt cancelled jobs, queue others; exit when the pipe closes."""
        try:
            while (message := read_message(self.input)) is not None:
                if message["kind"] == "ping":
                    self.send({"kind": "pong"})
                elif message["kind"] == "cancel":
                    self.cancelled_job = message["id"]
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                else:
                    self.jobs.put(message)
        finally:
            os._exit(0)

    def raise_if_cancelled(self, _: int = 0, frame: FrameType | None = None) -> None:
        """Raise JobCancelled if the running job is cancelled and not sending; also the handler of both signals."""
        if self.running_job is not None and self.running_job == self.cancelled_job and not self.is_sending:
            if is_importing(frame):
                signal.setitimer(signal.ITIMER_REAL, IMPORT_RETRY_S)
            else:
                raise JobCancelled

    def run(self) -> None:
        """Load the models of the first message, then run the queued jobs forever; return if loading fails."""
        import_libraries()
        try:
            models = self.load_models(self.jobs.get())
        except UserError as error:
            self.send({"kind": "unusable", "message": str(error)})
            return
        self.send({"kind": "ready", "models": models})
        trimmed_at = time.monotonic()
        while True:
            job = self.jobs.get()
            self.send({"id": job["id"]} | self.run_job(job))
            if time.monotonic() - trimmed_at > TRIM_S:
                release_memory()
                trimmed_at = time.monotonic()

    def load_models(self, message: JSONObject) -> list[ModelInfo]:
        """Import plugins, load each model and run it once, so that no request waits for that; return descriptions."""
        rename_process("dragoman-worker")
        for plugin in message["plugins"]:
            load_plugin(plugin)
        import torch

        from dragoman.engines.cpu.engine import CPUEngine
        from dragoman.inference import pipeline
        from dragoman.serve.responses import describe_model

        torch.set_num_threads(message["threads"])
        descriptions = []
        for name, path in message["models"].items():
            loaded = pipeline.load(
                path, message["device"], precision=message["precision"], reference=message["reference"]
            )
            loaded.input_processor = replace(loaded.input_processor, bounded=True)  # the pairs come from strangers
            if isinstance(loaded.engine, CPUEngine):
                loaded.engine.max_batch_seconds = MAX_BATCH_SECONDS
            self.pipelines[name] = loaded
            self.codec_fingerprints[name] = loaded.codec.fingerprint
            descriptions.append(describe_model(name, loaded))
            warm_up(loaded, descriptions[-1]["example"])
        if all(loaded.device.type == "cpu" for loaded in self.pipelines.values()):
            limit_memory(message["memory"])
        return descriptions

    def run_job(self, job: JSONObject) -> JSONObject:
        """Run a job and send its results; return the message that ends it, without the id, also if it is cancelled."""
        try:
            self.running_job = job["id"]
            self.raise_if_cancelled()
            return self._run_uncancelled(job)
        except JobCancelled:
            return {"kind": "cancelled"}
        finally:
            self.running_job = None

    def _run_uncancelled(self, job: JSONObject) -> JSONObject:
        """Compute a job and send each result; return {"kind": "done"}, or a failed message for an error."""
        from dragoman.inference.device import is_out_of_memory

        try:
            for i, result in enumerate(self.compute(job)):
                message, parts = {"kind": "part", "id": job["id"], "item": i}, encode_result(result)
                last = next(parts)
                for part in parts:
                    self.send_output(message, last)
                    last = part
                self.send_output(message | {"kind": "result"}, last)
            return {"kind": "done"}
        except DragomanError as error:
            return {"kind": "failed", "status": 422, "code": "refused", "message": str(error)}
        except Exception as error:
            if is_out_of_memory(error):
                text = "the model ran out of memory on this request; send less at a time"
                return {"kind": "failed", "status": 503, "code": "out_of_memory", "message": text}
            logger.exception("the task %s for the model '%s' failed", job["task"], job["model"])
            text = "the server failed on this request; see its log"
            return {"kind": "failed", "status": 500, "code": "internal", "message": text}

    def compute(self, job: JSONObject) -> list[JSONObject]:
        """Compute the result of each item of a job: views, scores or predictions; tokens are sent as they come."""
        from dragoman.serve.responses import prediction_to_json

        pipeline, items = self.pipelines[job["model"]], job["items"]
        if job["task"] == "inspect":
            from dragoman.serve import view_routes

            view = job["options"]["view"]
            return [view_routes.compute_view(self.pipelines, job["model"], view, item) for item in items]
        examples = [uploads.to_example(item) for item in items]
        if job["codec_fingerprint"] != self.codec_fingerprints[job["model"]]:  # the folder has changed: tokenize again
            examples = [replace(example, source_ids=None) for example in examples]
        if job["task"] == "score":
            rows = pipeline.token_scores(examples)
            return [{"log_prob": sum(row), "log_probs": row} for row in rows]

        def send_token(index: int, token: int) -> None:
            self.send_output({"kind": "token", "id": job["id"], "item": index - job["first_index"], "token": token})

        options, fields = job["options"], GenerationOptions.model_fields
        predictions = pipeline.stream(
            examples,
            GenerationOptions.model_validate({name: value for name, value in options.items() if name in fields}),
            attention=options.get("attention", False),
            token_log_probs=options.get("token_log_probs", True),
            first_index=job["first_index"],
            on_token=send_token if options.get("stream") else None,
        )
        return [prediction_to_json(prediction) for prediction in predictions]

    def send_output(self, message: JSONObject, result: bytes = b"") -> None:
        """Send a token or result of the running job; a cancellation takes effect after the write."""
        self.is_sending = True
        self.send(message, result)
        self.is_sending = False
        self.raise_if_cancelled()


def import_libraries() -> None:
    """Import what takes seconds and needs no model, so that a spare process has it when it becomes a worker."""
    import dragoman.inference.pipeline
    import dragoman.serve.responses
    import dragoman.serve.view_routes  # noqa: F401

    rename_process("dragoman-spare")


def rename_process(name: str) -> None:
    """Set the name that `ps` and `top` show, where the system has a file for it."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name, encoding="utf-8")


def is_importing(frame: FrameType | None) -> bool:
    """Whether a frame is part of an import, at any depth."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib."):
        frame = frame.f_back
    return frame is not None


def limit_memory(headroom: int) -> None:
    """Let this process allocate so many bytes more than it has; then allocations fail, and the machine is spared.

    A CUDA driver reserves far more than it uses, so this is for CPUs, and only Linux counts what is allocated.
    """
    status = Path("/proc/self/status")
    if status.exists():
        import resource

        allocated = int(status.read_text(encoding="utf-8").partition("VmData:")[2].split()[0]) << 10
        limit = allocated + headroom
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        if hard == resource.RLIM_INFINITY or limit < hard:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def release_memory() -> None:
    """Return freed memory to the system: glibc keeps what lies below a block in use, 95 MB after 7 long views."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def warm_up(pipeline: Pipeline, item: JSONObject) -> None:
    """Search two tokens greedily and by default; only MissingExtra is raised, other errors are logged."""
    item = uploads.prepare_sample(item, uploads.source_kinds(pipeline.codec))
    for options in (GenerationOptions(beam=1, max_new_tokens=2), GenerationOptions(max_new_tokens=2)):
        try:
            pipeline.predict([uploads.to_example(item)], options)
        except MissingExtra:
            raise
        except DragomanError as error:
            logger.info("the warm-up search failed: %s", error)


def main() -> None:
    """Run a worker on the process's stdin and stdout, which libraries then no longer print to."""
    for ignored in (signal.SIGINT, signal.SIGTERM):  # a terminal or a service manager sends them to all processes
        signal.signal(ignored, signal.SIG_IGN)
    input, output = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's prints must not be read as messages
    worker = WorkerProcess(input, output)
    for number in (signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, worker.raise_if_cancelled)
    threading.Thread(target=worker.read_messages, daemon=True).start()
    try:
        worker.run()
    except BrokenPipeError:  # the parent is gone
        sys.exit(0)


if __name__ == "__main__":
    main()
