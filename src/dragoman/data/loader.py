"""Load batches ahead of the training step, in worker processes or a thread; the stream is always the same.

    worker i of n:   batches i, i + n, i + 2n, … of the stream ─pipe→ parent, which receives them in turn
    thread:          the parent's stream ─prepare→ at most `prefetch` results, which wait for the consumer

Every worker plans the whole order, which is cheap, and reads only its own batches. Workers are
spawned: a forked copy of a process with torch threads may hang on their locks. They send numpy
arrays, never import torch, ignore the signals that stop a training (the parent may need one more
batch before it saves), and end when the parent closes the stream or dies. The thread prepares a
batch for the device (pack, pin, copy) while the previous step still runs.
"""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from dragoman.core.errors import DataError, UserError
from dragoman.core.processes import Child, kill_children, picklable_exception
from dragoman.core.types import Batch
from dragoman.data.batching import BatchArrays, BatchStream, Cursor

T = TypeVar("T")


def load_batches(
    batches: BatchStream,
    cursor: Cursor,
    workers: int,
    *,
    prefetch: int = 0,
    prepare: Callable[[Batch], Any] | None = None,
) -> Generator[tuple[Any, Cursor]]:
    """The batches from a cursor on, each with the cursor after it, loaded by this process (0 workers) or by workers.

    With `prefetch`, a thread keeps that many batches ready; `prepare` is applied to each batch, in that thread.
    """
    stream = batches.batches_from(cursor) if workers == 0 else _load_with_workers(batches, cursor, workers)
    if prepare is not None:
        stream = _map_batches(stream, prepare)
    return _prefetch(stream, prefetch) if prefetch else stream


def _map_batches(
    stream: Generator[tuple[Batch, Cursor]], prepare: Callable[[Batch], Any]
) -> Generator[tuple[Any, Cursor]]:
    with closing(stream):
        for batch, next_cursor in stream:
            yield prepare(batch), next_cursor


def _load_with_workers(batches: BatchStream, cursor: Cursor, workers: int) -> Generator[tuple[Batch, Cursor]]:
    children: list[Child] = []
    end = partial(kill_children, children)
    atexit.register(end)  # for a stream that is never closed: before multiprocessing waits for its children
    try:
        task = pickle.dumps((batches, cursor))  # unpickled inside the worker's try: a store may be damaged
        for number in range(workers):
            child = Child(_send_batches, task, number, workers, duplex=False, name=f"loader-{number}")
            children.append(child)
        for number in itertools.cycle(range(workers)):
            arrays, next_cursor = _receive_batch(children, number)
            yield arrays.to_batch(), next_cursor
    finally:
        end()
        atexit.unregister(end)


def _prefetch(stream: Generator[T], count: int) -> Generator[T]:
    """The items of a stream, which a thread runs up to `count` items ahead of the consumer."""
    ready: queue.SimpleQueue[tuple[T] | BaseException | None] = queue.SimpleQueue()  # None: end of the stream
    free_slots, closed = threading.Semaphore(count), threading.Event()

    def run() -> None:
        try:
            with closing(stream):
                while free_slots.acquire() and not closed.is_set():
                    ready.put((next(stream),))
        except StopIteration:
            ready.put(None)
        except BaseException as error:  # raised again in the consumer
            ready.put(error)

    def stop() -> None:
        closed.set()
        free_slots.release()  # wakes the thread if it waits for a slot
        thread.join()

    thread = threading.Thread(target=run, name="loader-prefetch", daemon=True)
    thread.start()
    atexit.register(stop)  # a daemon thread inside torch at interpreter exit would abort the process
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            free_slots.release()
            yield item[0]
    finally:
        stop()
        atexit.unregister(stop)


def _receive_batch(children: list[Child], number: int) -> tuple[BatchArrays, Cursor]:
    """The next batch of one worker, and the cursor after it; raises its error, or one if any worker has died."""
    child = children[number]
    ready = wait([child.pipe, *(other.process.sentinel for other in children)])
    for i, other in enumerate(children):
        if other.process.sentinel in ready:
            raise _worker_exit_error(other, i)
    try:
        message = child.pipe.recv()
    except (EOFError, OSError):  # killed in the middle of a message
        raise _worker_exit_error(child, number) from None
    if isinstance(message, UserError):
        raise message
    if isinstance(message, Exception):
        notes = "\n".join(message.__notes__)
        raise RuntimeError(f"loader worker {number} (pid {child.process.pid}) failed: {message!r}\n{notes}")
    received: tuple[BatchArrays, Cursor] = message
    return received


def _worker_exit_error(child: Child, number: int) -> DataError:
    exit_reason = child.wait_for_exit()
    if child.was_frozen:
        remedy = "Start again to resume."
    elif (child.process.exitcode or 0) < 0:
        remedy = "The machine may be short of memory: start again to resume, with fewer workers if it happens again."
    else:
        remedy = (
            "Its error is printed above. A script that uses workers must guard its calls with "
            '`if __name__ == "__main__":`.'
        )
    return DataError(f"loader worker {number} (pid {child.process.pid}) {exit_reason}. {remedy}")


def _send_batches(pipe: Connection, task: bytes, number: int, workers: int) -> None:
    """In a worker: send every `workers`-th batch, from its number on, or the error, until the parent is gone."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(name, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    try:
        batches, cursor = pickle.loads(task)  # noqa: S301 (from the parent process)
        for planned in itertools.islice(batches.plan_from(cursor), number, None, workers):
            pipe.send((batches.read_batch(planned), planned.next_cursor))
    except BrokenPipeError:
        return  # the parent is gone
    except Exception as error:
        pipe.send(picklable_exception(error))
    parent.join()  # the parent takes a worker that ends for dead, and has yet to read its last batches
