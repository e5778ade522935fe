"""Load batches ahead of the training step, in worker processes or a thread; the stream is always the same.

    worker i of n:   batches i, i + n, i + 2n, … of the stream ─pipe→ parent, which receives them in turn
    thread:          the parent's stream ─prepare→ at most `prefetch` results, which wait for the consumer

Every worker plans the whole order, which is cheap, and reads only its own batches. A pipe holds a
few batches, then its worker waits. Workers are spawned: a forked copy of a process with torch
threads may hang on their locks. They send numpy arrays, never import torch, ignore the signals that
stop a training (the parent decides, and may need one more batch before it saves), and end when the
parent closes the stream or dies.

The thread does what another process cannot do: prepare a batch for the device (pack, pin, copy)
while the previous step still runs. It ends with the stream, too, and its errors are raised in the
consumer.
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
from typing import Generic, TypeVar, overload

from dragoman.core.errors import DataError, UserError
from dragoman.core.processes import Child, kill_children, picklable_exception
from dragoman.core.types import Batch
from dragoman.data.batching import BatchArrays, BatchStream, Cursor

T = TypeVar("T")


@overload
def load_batches(
    batches: BatchStream, cursor: Cursor, workers: int, *, prefetch: int = 0
) -> Generator[tuple[Batch, Cursor]]: ...


@overload
def load_batches(
    batches: BatchStream, cursor: Cursor, workers: int, *, prefetch: int = 0, prepare: Callable[[Batch], T]
) -> Generator[tuple[T, Cursor]]: ...


def load_batches(
    batches: BatchStream,
    cursor: Cursor,
    workers: int,
    *,
    prefetch: int = 0,
    prepare: Callable[[Batch], T] | None = None,
) -> Generator[tuple[Batch, Cursor]] | Generator[tuple[T, Cursor]]:
    """The batches from a cursor on, each with the cursor after it, loaded by this process (0 workers) or by workers.

    With `prefetch`, a thread keeps that many batches ready; `prepare` is applied to each batch, in that thread.
    """
    stream = batches.batches_from(cursor) if workers == 0 else _load_with_workers(batches, cursor, workers)
    if prepare is None:
        return Prefetcher(stream, prefetch).results() if prefetch else stream
    prepared = _map_batches(stream, prepare)
    return Prefetcher(prepared, prefetch).results() if prefetch else prepared


def _map_batches(stream: Generator[tuple[Batch, Cursor]], prepare: Callable[[Batch], T]) -> Generator[tuple[T, Cursor]]:
    """The stream with `prepare` applied to each batch; closing it closes the stream."""
    with closing(stream):
        for batch, next_cursor in stream:
            yield prepare(batch), next_cursor


def _load_with_workers(batches: BatchStream, cursor: Cursor, workers: int) -> Generator[tuple[Batch, Cursor]]:
    """The stream of batches, read by worker processes in turn, which end with this generator."""
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


# -- in a thread -------------------------------------------------------------------------------------------------------


class Prefetcher(Generic[T]):
    """Runs a stream in a thread, up to `count` items ahead of the consumer."""

    def __init__(self, stream: Generator[T], count: int) -> None:
        self.stream, self.free_slots = stream, threading.Semaphore(count)
        self.ready: queue.SimpleQueue[tuple[T] | BaseException | None] = queue.SimpleQueue()  # None: end of the stream
        self.closed = False
        self.thread = threading.Thread(target=self._run, name="loader-prefetch", daemon=True)

    def results(self) -> Generator[T]:
        """The items in order; the thread runs from the first request until this generator is closed."""
        self.thread.start()
        atexit.register(self._stop)  # a daemon thread inside torch at interpreter exit would abort the process
        try:
            while (item := self.ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                self.free_slots.release()
                yield item[0]
        finally:
            self._stop()
            atexit.unregister(self._stop)

    def _run(self) -> None:
        """In the thread: put the items, then None or the error, into the queue, as slots become free."""
        try:
            with closing(self.stream):
                while self._wait_for_slot():
                    self.ready.put((next(self.stream),))
        except StopIteration:
            self.ready.put(None)
        except BaseException as error:  # raised again in the consumer
            self.ready.put(error)

    def _wait_for_slot(self) -> bool:
        """Wait for a free slot; False if the stream was closed meanwhile."""
        self.free_slots.acquire()
        return not self.closed

    def _stop(self) -> None:
        """Tell the thread to end, and wait until it has."""
        self.closed = True
        self.free_slots.release()  # wakes the thread if it waits for a slot
        self.thread.join()


# -- in the parent -----------------------------------------------------------------------------------------------------


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
    arrays, next_cursor = message
    return BatchArrays(*arrays), Cursor(*next_cursor)


def _worker_exit_error(child: Child, number: int) -> DataError:
    """The error for a worker process that has ended: how, and what to do."""
    exit_reason = child.wait_for_exit()
    if (child.process.exitcode or 0) < 0:
        remedy = "The machine may be short of memory: start again to resume, with fewer workers if it happens again."
    else:
        remedy = (
            "Its error is printed above. A script that uses workers must guard its calls with "
            '`if __name__ == "__main__":`.'
        )
    return DataError(f"loader worker {number} (pid {child.process.pid}) {exit_reason}. {remedy}")


# -- in a worker -------------------------------------------------------------------------------------------------------


def _send_batches(pipe: Connection, task: bytes, number: int, workers: int) -> None:
    """In a worker: send every `workers`-th batch, from its number on, or the error, until the parent is gone."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(name, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    try:
        batches, cursor = pickle.loads(task)
        for planned in itertools.islice(batches.plan_from(cursor), number, None, workers):
            arrays = batches.read_batch(planned)
            pipe.send((tuple(arrays), (planned.next_cursor.epoch, planned.next_cursor.batch)))
    except BrokenPipeError:
        return  # the parent is gone
    except Exception as error:
        pipe.send(picklable_exception(error))
    parent.join()  # the parent takes a worker that ends for dead, and has yet to read its last batches
