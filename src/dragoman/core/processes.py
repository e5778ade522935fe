"""Child processes: start them, notice how they end, pass their exceptions on, end them.

    task 0, 1, 2, …  ─→  the worker with the fewest tasks  ─→  result 0, 1, 2, …

A fork starts in 6 ms (a fresh process imports torch for 1.4 s), its function may be any closure, and all that it reads,
a model's weights first, lies in memory once. Each worker computes with one thread: OpenMP's threads do not survive a
fork, and processes do not wait for each other as threads do within every small matrix product.

A worker has at most TASKS_PER_WORKER tasks; finished results that wait for an earlier one count among them. So memory
stays flat however many tasks there are, and a slow consumer of the results slows the workers. An error, of the tasks,
of the function or of a worker that died, is raised after all results before it.

A thread kills children that stay frozen (SIGSTOP): so a reader who waits for one gets an error, not silence.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Generic, TypeVar

from dragoman.core.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")

TASKS_PER_WORKER = 2  # one running and one queued, so that a worker never waits for the parent
EXIT_TIMEOUT_S = 5.0  # seconds that a process that has closed its pipe has to end
FROZEN_S = 1.0  # seconds between two looks at the children; one that is frozen at both is killed


class Child:
    """A child process and this process's end of the pipe to it."""

    def __init__(
        self,
        target: Callable[..., None],
        *args: object,
        fork: bool = False,
        duplex: bool = True,
        name: str | None = None,
        siblings: Sequence[Child] = (),
    ) -> None:
        """Run target(pipe, *args) in a fork or a fresh interpreter; with `duplex` false it can only send."""
        context = multiprocessing.get_context("fork") if fork else multiprocessing.get_context("spawn")
        with explain_failed_start():
            self.pipe, child_end = context.Pipe(duplex)
        if fork:  # which closes the other pipes: left open, they would not end with the parent
            inherited = [self.pipe, *(sibling.pipe for sibling in siblings)]
            args, target = (target, inherited, *args), _run_fork
        self.process = context.Process(target=target, args=(child_end, *args), name=name, daemon=True)
        try:
            with explain_failed_start(), defer_interrupt(), warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # threads beside a fork: OpenMP's, which are idle
                self.process.start()
        except UserError:
            self.pipe.close()
            raise
        finally:
            child_end.close()  # else the pipe would not end with the child
        self.frozen_count = 0  # looks in a row of the watcher at which it was frozen
        _children.add(self)
        if not _watcher.is_alive():
            with suppress(RuntimeError):  # another thread has just started it
                _watcher.start()

    def wait_for_exit(self) -> str:
        """Wait up to EXIT_TIMEOUT_S for a process that has closed its pipe, and say how it ended."""
        self.process.join(EXIT_TIMEOUT_S)
        how = describe_exit(self.process.exitcode)
        return f"was frozen (SIGSTOP) for more than {FROZEN_S:g} s and {how}" if self.was_frozen else how

    @property
    def was_frozen(self) -> bool:
        """Whether it was killed because it was frozen: twice in a row, since Ctrl-Z and fg do not reach all at once."""
        return self.frozen_count > 1

    def kill_if_frozen(self) -> None:
        """Kill a process that was frozen at the last look too: nothing that it was to send would ever arrive."""
        if self.was_frozen or not is_frozen(self.process.pid):
            self.frozen_count = self.frozen_count if self.was_frozen else 0
            return
        self.frozen_count += 1
        if self.frozen_count > 1:
            self.process.kill()


@contextmanager
def explain_failed_start() -> Iterator[None]:
    """Turn an error of the system into one that says what to do; a BrokenPipeError would be taken for `| head`."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot start a worker process: {error.strerror}; use fewer workers, or end other programs and try again"
        ) from None


def is_frozen(pid: int | None) -> bool:
    """Whether a process is stopped by SIGSTOP or SIGTSTP; False where /proc does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "T"  # behind the name, which may hold anything


def _watch_children() -> None:
    while True:
        time.sleep(FROZEN_S)
        for child in list(_children):
            child.kill_if_frozen()


_children: weakref.WeakSet[Child] = weakref.WeakSet()
_watcher = threading.Thread(target=_watch_children, name="child-watcher", daemon=True)


def describe_exit(code: int | None) -> str:
    """Say how a process ended: "was killed by SIGKILL", "exited with code 3"; `code` as Popen.returncode has it."""
    if code is None:
        return "closed its pipe"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def kill_children(children: Sequence[Child]) -> None:
    """Kill processes that hold nothing worth saving, wait until they are gone, and close their pipes."""
    for child in children:
        child.process.kill()
    for child in children:
        child.process.join()
        child.pipe.close()


def picklable_exception(error: Exception) -> Exception:
    """The exception, or one that can be pickled in its place, with the traceback of this process as a note."""
    stack = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 (our own bytes)
    except Exception:
        error = UserError(str(error)) if isinstance(error, UserError) else RuntimeError(stack)
    error.add_note(f"In a worker process:\n{stack}")
    return error


@contextmanager
def handle_signal(number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Install a signal handler inside the block; does nothing outside the main thread, which signals never reach."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def defer_interrupt() -> Iterator[None]:
    """Deliver Ctrl-C after the block: an exception that comes while Python forks is printed and lost."""
    pending: list[int] = []
    try:
        with handle_signal(signal.SIGINT, lambda number, frame: pending.append(number)):
            yield
    finally:
        if pending:
            signal.raise_signal(signal.SIGINT)


def _run_fork(pipe: Connection, target: Callable[..., None], inherited: Sequence[Connection], *args: object) -> None:
    for other in inherited:
        other.close()
    target(pipe, *args)


# -- forked workers, results in order ----------------------------------------------------------------------------------


def can_fork() -> bool:
    """Whether this process can fork workers: macOS's libraries do not survive a fork, and a daemon has no children."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def map_in_order(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    workers: int,
    describe_task: Callable[[Task], str] = repr,  # for the error of a worker that died
) -> Generator[Result, None, None]:
    """Yield function(task) for each task, in order, computed by at most `workers` forked processes."""
    if not can_fork():
        raise UserError("worker processes need Linux and a parent that is not a worker itself; use one worker")
    pool, remaining = TaskPool(function, workers, describe_task), iter(tasks)
    due, has_tasks = 0, True
    tasks_error: Exception | None = None
    try:
        while True:
            if due in pool.outcomes:
                outcome = pool.outcomes.pop(due)
                if isinstance(outcome, Exception):
                    raise outcome
                yield outcome[0]
                due += 1
            elif has_tasks and not pool.has_failed and pool.submitted - due < TASKS_PER_WORKER * workers:
                try:
                    pool.submit(next(remaining))
                except StopIteration:
                    has_tasks = False
                except Exception as error:  # of the iterable of tasks: results before it come first
                    tasks_error, has_tasks = error, False
                pool.collect(wait=False)
            elif due < pool.submitted:
                pool.collect(wait=True)
            elif tasks_error is not None:
                raise tasks_error
            else:
                return
    finally:
        kill_children(list(pool.workers))


class TaskPool(Generic[Task, Result]):
    """Forked workers that compute one function; each of the first tasks starts one, so few tasks start few."""

    def __init__(
        self, function: Callable[[Task], Result], max_workers: int, describe_task: Callable[[Task], str]
    ) -> None:
        self.function, self.max_workers, self.describe_task = function, max_workers, describe_task
        self.workers: dict[Child, deque[tuple[int, str]]] = {}  # unfinished tasks: number and description, oldest first
        self.outcomes: dict[int, tuple[Result] | Exception] = {}  # by the task's number, until they are yielded
        self.submitted = 0
        self.has_failed = False

    def submit(self, task: Task) -> None:
        """Send the next task to a new worker, while there are fewer than allowed, else to the least busy one."""
        if len(self.workers) < self.max_workers:
            with defer_interrupt():
                self.workers[Child(answer_tasks, self.function, fork=True, siblings=list(self.workers))] = deque()
        worker = min(self.workers, key=lambda worker: len(self.workers[worker]))
        self.workers[worker].append((self.submitted, self.describe_task(task)))
        try:
            worker.pipe.send(task)
        except OSError:  # the worker died, or will wait forever for a task that did not arrive; collect() notices
            worker.process.kill()
        self.submitted += 1

    def collect(self, wait: bool) -> None:
        """Receive the results that have arrived; with `wait`, block until there is one."""
        ready = connection.wait([worker.pipe for worker, tasks in self.workers.items() if tasks], None if wait else 0)
        for i, (worker, tasks) in enumerate(self.workers.items()):
            if worker.pipe not in ready:
                continue
            number, description = tasks[0]
            try:
                self.outcomes[number] = worker.pipe.recv()
                tasks.popleft()
            except (EOFError, OSError):
                self.outcomes[number] = UserError(
                    f"worker {i + 1} of {len(self.workers)} (process {worker.process.pid}) {worker.wait_for_exit()} "
                    f"while it had {description}; if memory ran out, use fewer workers (--workers 1 is one process)"
                )
                tasks.clear()  # results after an error are never yielded
            self.has_failed |= isinstance(self.outcomes[number], Exception)


# -- in the worker -----------------------------------------------------------------------------------------------------


def answer_tasks(pipe: Connection, function: Callable[[Task], Result]) -> None:
    """Answer tasks until the parent is gone. Leaves by _exit: what the parent has buffered is not written twice."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends its workers
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        import torch  # here: batch loaders import this module and need no torch

        torch.set_num_threads(1)
        tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        threading.Thread(target=_receive_tasks, args=(pipe, tasks), daemon=True).start()
        while True:
            pipe.send_bytes(_pickled_outcome(function, tasks.get()))
    finally:
        os._exit(1)


def _receive_tasks(pipe: Connection, tasks: queue.SimpleQueue[Task]) -> None:
    """Queue tasks as they arrive: were one not read while another runs, the parent would block in sending it."""
    try:
        while True:
            tasks.put(pipe.recv())
    finally:  # the parent is gone
        os._exit(1)


def _pickled_outcome(function: Callable[[Task], Result], task: Task) -> bytes:
    try:
        return pickle.dumps((function(task),), pickle.HIGHEST_PROTOCOL)  # a result may itself be an exception
    except Exception as error:
        return pickle.dumps(picklable_exception(error))
