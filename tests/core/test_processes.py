"""Many processes give what one gives, in order; none hangs, none is left behind, and none is missed when it dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core import processes
from dragoman.core.errors import ConfigError, DataError, UserError
from dragoman.core.processes import TASKS_PER_WORKER, map_in_order

pytestmark = pytest.mark.skipif(not processes.can_fork(), reason="workers need Linux")


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


@given(tasks=st.lists(st.integers(), max_size=25), count=st.integers(1, 4))
@settings(max_examples=15)
def test_any_number_of_workers_gives_the_results_of_none(tasks: list[int], count: int) -> None:
    assert list(map_in_order(lambda x: [x * x, str(x)], tasks, count)) == [[x * x, str(x)] for x in tasks]


def test_a_result_waits_for_its_turn() -> None:
    second_is_done = multiprocessing.get_context("fork").Event()

    def work(task: int) -> int:
        if task == 0:
            assert second_is_done.wait(60)  # else the workers do not work at the same time
        elif task == 1:
            second_is_done.set()
        return task

    assert list(map_in_order(work, range(6), 2)) == list(range(6))


@pytest.mark.parametrize("count", [1, 3])
def test_tasks_are_taken_only_so_far_ahead_of_the_results(count: int) -> None:
    taken = 0

    def endless() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    results = map_in_order(lambda x: x, endless(), count)
    for done in range(200):
        assert next(results) == done + 1
        assert taken <= done + TASKS_PER_WORKER * count
    results.close()


def test_tasks_and_results_larger_than_a_pipe_do_not_block_each_other() -> None:
    large = os.urandom(3 << 20)
    assert all(result == large for result in map_in_order(lambda x: x, [large] * 9, 2))


def test_few_tasks_start_few_workers() -> None:
    results = map_in_order(lambda x: os.getpid(), range(2), 8)
    pids = [next(results)]
    assert len(multiprocessing.active_children()) <= 2
    assert os.getpid() not in [*pids, *results]


# -- errors, in their turn ---------------------------------------------------------------------------------------------


def until_error(results: Iterator[Any]) -> tuple[list[Any], Exception]:
    found: list[Any] = []
    with pytest.raises(Exception) as caught:  # noqa: PT012
        for result in results:
            found.append(result)  # noqa: PERF402
    assert isinstance(caught.value, Exception)
    return found, caught.value


@pytest.mark.parametrize("place", [0, 1, 5, 11])
@pytest.mark.parametrize("count", [1, 3])
def test_an_error_of_the_function_comes_after_the_results_before_it(place: int, count: int) -> None:
    def work(task: int) -> int:
        if task >= place:
            raise DataError("no good", "pairs.tsv", task)
        return task

    found, error = until_error(map_in_order(work, range(12), count))
    assert found == list(range(place))
    assert isinstance(error, DataError)
    assert (error.file, error.line, str(error)) == ("pairs.tsv", place, f"pairs.tsv:{place}: no good")


def test_an_error_that_cannot_be_sent_arrives_in_words() -> None:
    def work(task: int) -> int:
        raise ConfigError("a.yaml", ["steps is wrong"])  # whose constructor wants more than its message

    _, error = until_error(map_in_order(work, range(3), 2))
    assert "steps is wrong" in str(error)


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_of_the_tasks_comes_after_the_results_before_it(count: int) -> None:
    def tasks() -> Iterator[int]:
        yield from range(7)
        raise DataError("not UTF-8", "sources.txt", 8)

    found, error = until_error(map_in_order(lambda x: x, tasks(), count))
    assert found == list(range(7))
    assert str(error) == "sources.txt:8: not UTF-8"


# -- death -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "said"), [(lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL"), (lambda: os._exit(3), "3")]
)
@pytest.mark.parametrize("place", [0, 6])
def test_a_worker_that_dies_is_named_after_the_results_before_it(place: int, end: Any, said: str) -> None:
    def work(task: int) -> int:
        if task == place:
            end()
        return task

    found, error = until_error(map_in_order(work, range(30), 2, describe_task=lambda task: f"task {task}"))
    assert found == list(range(place))
    assert isinstance(error, UserError)
    assert error.code == 2
    assert said in str(error)
    assert f"had task {place};" in str(error)
    assert "\n" not in str(error)


def test_a_worker_killed_from_outside_is_noticed_whatever_it_was_doing() -> None:
    def tasks() -> Iterator[int]:
        yield from range(10)
        for child in multiprocessing.active_children():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
        yield from range(10, 1000)

    found, error = until_error(map_in_order(lambda x: x, tasks(), 2))
    assert found == list(range(len(found)))
    assert len(found) < 10 + 2 * TASKS_PER_WORKER
    assert "SIGKILL" in str(error)


@pytest.mark.parametrize("size", [1, 1 << 22])  # a worker may freeze in the middle of a result
def test_a_frozen_worker_is_named_after_the_results_before_it(size: int) -> None:
    def tasks() -> Iterator[int]:
        yield from range(4)
        for child in multiprocessing.active_children():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGSTOP)
        yield from range(4, 1000)

    found, error = until_error(map_in_order(lambda x: bytes(size), tasks(), 2))
    assert len(found) < 4 + 2 * TASKS_PER_WORKER
    assert "was frozen (SIGSTOP)" in str(error)
    assert isinstance(error, UserError)


def test_ctrl_c_while_a_worker_is_forked_comes_right_after() -> None:
    forked = False
    with pytest.raises(KeyboardInterrupt), processes.defer_interrupt():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        forked = True
    assert forked
    with processes.defer_interrupt():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_who_stops_listening_leaves_no_worker() -> None:
    results = map_in_order(lambda x: os.getpid(), iter(int, 1), 2)
    pid = next(results)
    os.kill(pid, 0)  # it is there
    results.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


STUCK = """
import signal, sys
from dragoman.core.processes import map_in_order
results = map_in_order(lambda x: x if x == 0 else signal.pause(), iter(range(100)), 3)
print(next(results), flush=True)
next(results)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_parent_that_is_stopped_takes_its_workers_along(how: signal.Signals) -> None:
    source = Path(processes.__file__).parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", STUCK],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"0\n"
    if how == signal.SIGINT:
        os.killpg(child.pid, how)  # Ctrl-C reaches workers too
    else:
        child.send_signal(how)
    out, err = child.communicate(timeout=60)  # which ends when nobody holds the pipes any more, the workers neither
    assert out == b""
    assert child.returncode != 0
    assert err.count(b"Traceback") == (how == signal.SIGINT)  # the parent's alone


# -- what a fork brings along ------------------------------------------------------------------------------------------


def test_a_worker_computes_with_one_thread_after_the_parent_used_several() -> None:
    x = torch.randn(300, 300)

    def work(task: int) -> tuple[int, torch.dtype, float]:
        lstm = torch.nn.LSTM(300, 300)
        with torch.inference_mode():
            lstm(x[None])
            torch.nn.functional.conv1d(x[None], torch.ones(300, 300, 3))
            return torch.get_num_threads(), (x.bfloat16() @ x.bfloat16()).dtype, float((x @ x).sum())

    torch.set_num_threads(3)
    try:
        work(0)
        expected = float((x @ x).sum())
        for threads, _, total in map_in_order(work, range(4), 2):
            assert threads == 1
            assert total == pytest.approx(expected, rel=1e-3, abs=1e-2)
    finally:
        torch.set_num_threads(1)


def test_weights_lie_in_memory_once() -> None:
    weights = torch.ones(64 << 20)  # 256 MiB

    def work(task: int) -> int:
        assert float(weights.sum()) > 0
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) << 10

    assert max(map_in_order(work, range(4), 2)) < 128 << 20


def test_a_worker_that_cannot_be_started_is_an_error_that_says_what_to_do() -> None:
    code = """
import os, resource
from dragoman.core.processes import map_in_order
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 4096))
list(map_in_order(str, [1, 2, 3], 2))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UserError: cannot start a worker process: Too many open files; use fewer workers" in done.stderr
