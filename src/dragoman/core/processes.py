"""function(task) for every task, by many processes, in the order of the tasks.

    task 0, 1, 2, …  ─→  the worker with the least to do  ─→  result 0, 1, 2, …

The workers are forks of this process. So one starts in 6 ms (a fresh process imports torch for 1.4 s), function may be
any closure, and all that it reads, a model's weights first, lies in memory once. Each computes with one thread: it has
no need of OpenMP's threads, which do not come along, and processes do not wait for each other as threads do within
every small matrix product.

A worker has at most AHEAD tasks, one at work and one waiting, and results that come before their turn count among them.
So memory stays flat however many tasks there are, and a slow reader of the results slows the workers. An error, of the
tasks, of the function or of a worker that died, is raised in its turn, after all results before it.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from dragoman.core.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")

AHEAD = 2  # tasks of a worker: one at work, and one waiting, so that it never waits for the parent
PATIENCE = 5.0  # seconds that a worker, which has closed its pipe, has to end


def possible() -> bool:
    """Whether this process may fork workers: macOS's libraries do not outlive a fork, and a daemon has no children."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def ordered(
    function: Callable[[Task], Result], tasks: Iterable[Task], count: int, name: Callable[[Task], str] = repr
) -> Generator[Result, None, None]:
    """function(task) for each task, in order, by at most `count` processes; `name` says which task a dead one had."""
    if not possible():
        raise UserError("worker processes need Linux, and a parent that is none itself; use one worker: this process")
    crew = Crew(function, count, name)
    try:
        yield from _results(crew, iter(tasks))
    finally:
        crew.end()


def _results(crew: Crew[Task, Result], tasks: Iterator[Task]) -> Iterator[Result]:
    """Hand out what is due, else give a task while there is room, else wait; the next task may be long in coming."""
    due, more = 0, True
    failure: Exception | None = None
    while True:
        if due in crew.outcomes:
            found, error = crew.outcomes.pop(due)
            if error is not None:
                raise error
            yield found
            due += 1
        elif more and not crew.failed and crew.given - due < AHEAD * crew.count:
            try:
                crew.give(next(tasks))
            except StopIteration:
                more = False
            except Exception as error:  # of whoever makes the tasks: results before it come first
                failure, more = error, False
            crew.collect(wait=False)
        elif due < crew.given:
            crew.collect(wait=True)
        elif failure is not None:
            raise failure
        else:
            return


class Outcome(NamedTuple):
    """What became of a task: its result, or the error to raise."""

    found: Any
    error: Exception | None


class Crew(Generic[Task, Result]):
    """The workers; each of the first tasks starts one, so that few tasks start few."""

    def __init__(self, function: Callable[[Task], Result], count: int, name: Callable[[Task], str]) -> None:
        self.function, self.count, self.name = function, count, name
        self.workers: list[Worker] = []
        self.outcomes: dict[int, Outcome] = {}  # of tasks whose turn has not come, by their number
        self.given = 0
        self.failed = False

    def give(self, task: Task) -> None:
        """Hand the next task to a new worker, or to the one with the least to do."""
        if len(self.workers) < self.count:
            with uninterrupted():
                self.workers.append(Worker(self.function, self.workers))
        worker = min(self.workers, key=lambda worker: len(worker.tasks))
        worker.give(self.given, self.name(task), task)
        self.given += 1

    def collect(self, wait: bool) -> None:
        """Take what the workers have answered, or wait until one has."""
        busy = {worker.pipe: worker for worker in self.workers if worker.tasks}
        for pipe in connection.wait(list(busy), None if wait else 0):
            worker = busy[pipe]  # type: ignore[index]
            number, _ = worker.tasks[0]
            try:
                self.outcomes[number] = Outcome(*worker.pipe.recv())
                worker.tasks.popleft()
            except (EOFError, OSError):
                self.outcomes[number] = Outcome(None, self._death(worker))
                worker.tasks.clear()  # nobody will ask for the results after an error
            self.failed |= self.outcomes[number].error is not None

    def _death(self, worker: Worker) -> UserError:
        worker.process.join(PATIENCE)
        code = worker.process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with {code}"
        which = f"worker {self.workers.index(worker) + 1} of {len(self.workers)} (process {worker.process.pid})"
        return UserError(
            f"{which} {how} while it had {worker.tasks[0][1]}; "
            "if memory ran out, use fewer workers (--workers 1 is one process)"
        )

    def end(self) -> None:
        """Nothing of a worker is worth keeping, so it need not be asked."""
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.process.join()
            worker.pipe.close()


class Worker:
    """A fork of this process, the pipe to it, and the tasks it has: their numbers and names, oldest first."""

    def __init__(self, function: Callable[[Any], Any], others: Sequence[Worker]) -> None:
        fork = multiprocessing.get_context("fork")
        self.pipe, other_end = fork.Pipe()
        self.tasks: deque[tuple[int, str]] = deque()
        not_mine = [self.pipe, *(other.pipe for other in others)]
        self.process = fork.Process(target=_work, args=(function, other_end, not_mine), daemon=True)
        with (
            warnings.catch_warnings()
        ):  # of threads beside the fork: OpenMP's are idle now, and its one thread needs none
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        other_end.close()

    def give(self, number: int, name: str, task: Any) -> None:
        self.tasks.append((number, name))
        with suppress(OSError):  # it died; its pipe will say so in its turn
            self.pipe.send(task)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait: an exception that comes while Python forks is printed and forgotten."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            signal.raise_signal(signal.SIGINT)


# -- in the worker -----------------------------------------------------------------------------------------------------


def _work(function: Callable[[Any], Any], pipe: connection.Connection, not_mine: Sequence[Any]) -> None:
    """Answer tasks until the parent is gone. Leaves by _exit: what the parent was writing is not written twice."""
    try:
        for inherited in not_mine:  # else a worker would keep the pipes of others open after the parent's death
            inherited.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends its workers
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)
        tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=_receive, args=(pipe, tasks), daemon=True).start()
        while True:
            pipe.send_bytes(_answer(function, tasks.get()))
    finally:
        os._exit(1)


def _receive(pipe: connection.Connection, tasks: queue.SimpleQueue[Any]) -> None:
    """Take tasks as they come: were nobody to read while one is at work, the parent would wait in sending the next."""
    try:
        while True:
            tasks.put(pipe.recv())
    finally:  # the parent is gone, and with it all reason to go on
        os._exit(1)


def _answer(function: Callable[[Any], Any], task: Any) -> bytes:
    try:
        return pickle.dumps((function(task), None), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return pickle.dumps((None, _portable(error)))


def _portable(error: Exception) -> Exception:
    """The error with a note of its place; where it cannot be sent, its words alone."""
    place = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(place)
    error.add_note(f"In a worker process:\n{place}")
    return error
