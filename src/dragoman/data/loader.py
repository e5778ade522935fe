"""Batches made ahead of the training step, by other processes or by a thread; the stream is the same with any of them.

    worker i of n:   batches i, i + n, i + 2n, … of the one sequence ─pipe→ parent, which takes them in turn
    thread:          the parent's stream ─prepare→ at most `ahead` results, which wait for the consumer

Every worker plans the whole order (cheap) and makes only its own batches. A pipe holds a batch or a few, then its
worker waits. Workers are started fresh ("spawn"): a forked copy of a process in which torch has threads may hang on
their locks. They send plain arrays, never import torch, ignore the signals that stop a training (the parent decides,
and it may want one more batch before it saves), and end when the parent closes the stream or dies.

The thread is there for what another process cannot do: put a batch where the device wants it (`prepare`: pack it, pin
it, copy it) while the step before still runs. It ends with the stream, too, and its errors are raised in the consumer.
"""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import pickle
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, NamedTuple, TypeVar, overload

from dragoman.core.errors import DataError, UserError
from dragoman.core.types import Batch
from dragoman.data.batching import Arrays, Batches, Cursor

T = TypeVar("T")


class Failure(NamedTuple):
    """What a worker sends instead of a batch when it cannot go on."""

    message: str
    users: bool  # the user's data, not our bug


class Worker(NamedTuple):
    process: SpawnProcess
    pipe: Connection


@overload
def load(batches: Batches, cursor: Cursor, workers: int, *, ahead: int = 0) -> Iterator[tuple[Batch, Cursor]]: ...


@overload
def load(
    batches: Batches, cursor: Cursor, workers: int, *, ahead: int = 0, prepare: Callable[[Batch], T]
) -> Iterator[tuple[T, Cursor]]: ...


def load(
    batches: Batches,
    cursor: Cursor,
    workers: int,
    *,
    ahead: int = 0,
    prepare: Callable[[Batch], Any] | None = None,
) -> Iterator[tuple[Any, Cursor]]:
    """The batches from a cursor on, made by this process (0 workers) or ahead of it by others.

    With `ahead`, a thread keeps so many of them ready; `prepare` makes of each what is wanted instead, in that thread.
    """
    made = batches.after(cursor) if workers == 0 else _made_by_others(batches, cursor, workers)
    stream = made if prepare is None else _prepared(made, prepare)
    return Ahead(stream, ahead).results() if ahead else stream


def _prepared(made: Iterator[tuple[Batch, Cursor]], prepare: Callable[[Batch], T]) -> Iterator[tuple[T, Cursor]]:
    with closing(made):  # type: ignore[type-var]
        for batch, after in made:
            yield prepare(batch), after


def _made_by_others(batches: Batches, cursor: Cursor, workers: int) -> Iterator[tuple[Batch, Cursor]]:
    crew: list[Worker] = []
    end = partial(_end, crew)
    atexit.register(end)  # where nobody closed the stream, before multiprocessing waits for its children
    try:
        task = pickle.dumps((batches, cursor))  # read back where an error can be told: a store may be damaged
        for number in range(workers):
            crew.append(_start(task, number, workers))  # noqa: PERF401 - one by one: the next may fail
        for number in itertools.cycle(range(workers)):
            arrays, after = _take(crew, number)
            yield arrays.tensors(), after
    finally:
        end()
        atexit.unregister(end)


# -- in a thread -------------------------------------------------------------------------------------------------------


class Ahead(Generic[T]):
    """A stream, run by a thread as far as `count` items before its consumer."""

    def __init__(self, stream: Iterator[T], count: int) -> None:
        self.stream, self.room = stream, threading.Semaphore(count)
        self.done: queue.SimpleQueue[tuple[T] | BaseException | None] = queue.SimpleQueue()  # None: the stream is over
        self.closed = False
        self.thread = threading.Thread(target=self._run, name="loader-ahead", daemon=True)

    def results(self) -> Iterator[T]:
        """The items in order; the thread lives from the first one asked for until this is closed."""
        self.thread.start()
        atexit.register(self._end)  # a daemon still inside torch when the interpreter goes would abort it
        try:
            while (item := self.done.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                self.room.release()
                yield item[0]
        finally:
            self._end()
            atexit.unregister(self._end)

    def _run(self) -> None:
        try:
            with closing(self.stream):  # type: ignore[type-var]
                while self._may_go_on():
                    self.done.put((next(self.stream),))
        except StopIteration:
            self.done.put(None)
        except BaseException as error:  # raised where someone can act on it
            self.done.put(error)

    def _may_go_on(self) -> bool:
        self.room.acquire()
        return not self.closed

    def _end(self) -> None:
        self.closed = True
        self.room.release()  # it may be waiting for room that nobody will make
        self.thread.join()


# -- in the parent -----------------------------------------------------------------------------------------------------


def _start(task: bytes, number: int, workers: int) -> Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(task, number, workers, theirs), name=f"loader-{number}", daemon=True)
    process.start()
    theirs.close()  # else the pipe would not end with the worker
    return Worker(process, ours)


def _take(crew: list[Worker], number: int) -> tuple[Arrays, Cursor]:
    """The next batch of a worker; an error at once if any worker has died."""
    pipe = crew[number].pipe
    ready = wait([pipe, *(worker.process.sentinel for worker in crew)])
    for other, worker in enumerate(crew):
        if worker.process.sentinel in ready:
            raise _death(worker.process, other)
    try:
        message = pipe.recv()
    except (EOFError, OSError):  # killed in the middle of a message
        raise _death(crew[number].process, number) from None
    if isinstance(message, Failure):
        if message.users:
            raise DataError(message.message)
        raise RuntimeError(f"loader worker {number} (pid {crew[number].process.pid}) failed:\n{message.message}")
    arrays, after = message
    return Arrays(*arrays), Cursor(*after)


def _death(process: SpawnProcess, number: int) -> DataError:
    process.join()
    code = process.exitcode or 0
    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
        remedy = "The machine may be short of memory: start again to resume, with fewer workers if it happens again."
    else:
        how = f"ended by itself with exit code {code}"
        remedy = (
            'Its error stands above. A script that uses workers needs `if __name__ == "__main__":` around its calls.'
        )
    return DataError(f"loader worker {number} (pid {process.pid}) {how}. {remedy}")


def _end(crew: list[Worker]) -> None:
    """End all workers now; they hold nothing that needs saving."""
    for worker in crew:
        worker.process.kill()
    for worker in crew:
        worker.process.join()
        worker.pipe.close()
    crew.clear()


# -- in a worker -------------------------------------------------------------------------------------------------------


def _work(task: bytes, number: int, workers: int, pipe: Connection) -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(name, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    try:
        batches, cursor = pickle.loads(task)
        for place in itertools.islice(batches.places(cursor), number, None, workers):
            arrays = batches.arrays(place)
            pipe.send((tuple(arrays), (place.after.epoch, place.after.batch)))
    except BrokenPipeError:
        return  # the parent is gone
    except UserError as error:
        pipe.send(Failure(str(error), users=True))
    except Exception:
        pipe.send(Failure(traceback.format_exc(), users=False))
    parent.join()  # a worker that ends is taken for dead, and the batches before the failure are still to be read
