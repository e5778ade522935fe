"""Workers that crash, hang or are stuck are replaced, and work that nobody waits for is left."""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.core.generation import GenerationOptions
from dragoman.inference import pipeline
from dragoman.serve.worker_process import (
    PART_BYTES,
    JobCancelled,
    WorkerProcess,
    encode_message,
    encode_result,
    read_message,
)

DEADLINE = 2.0  # of `narrow`
SOON = 1.0  # seconds for what takes 200 ms on a machine with nothing else to do
REPLACED = 5.0  # until another worker is ready, where there is a spare process
AGAIN = 30.0  # and where there is none, since the one before it took it: 5 on a machine with nothing else to do


def ready(server: Any) -> bool:
    return bool(server.client.get("/health/ready").status_code == 200)


def worker_of(server: Any, until: Callable[..., float]) -> int:
    """The process id of the one worker, when it is ready and the last job has ended."""
    until(lambda: ready(server) and server.metric("dragoman_queue_tokens") == 0, AGAIN)
    (pid,) = server.workers()
    return int(pid)


def jobs(server: Any, outcome: str) -> float:
    return float(server.metric(f'dragoman_jobs_total{{outcome="{outcome}"}}'))


def later(request: Callable[[], httpx.Response]) -> queue.SimpleQueue[httpx.Response]:
    """Ask in a thread; the answer will be in the queue."""
    answers: queue.SimpleQueue[httpx.Response] = queue.SimpleQueue()
    threading.Thread(target=lambda: answers.put(request()), daemon=True).start()
    return answers


# -- work that nobody waits for ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ['"beam": 1', '"beam": 2', '"beam": 1, "stream": true'])
def test_the_job_of_a_client_that_disconnects_is_cancelled(
    narrow: Any, until: Callable[..., float], options: str
) -> None:
    before = jobs(narrow, "cancelled")
    body = f'{{"inputs": ["abc"], "model": "plodding", {options}}}'
    head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(("127.0.0.1", narrow.port)) as client:
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
        until(lambda: narrow.metric("dragoman_jobs_running") > 0)
    until(lambda: narrow.metric("dragoman_queue_tokens") == 0, SOON)
    until(lambda: jobs(narrow, "cancelled") == before + 1, SOON)
    assert narrow.predict("abc").status_code == 200


def test_a_deadline_ends_requests_at_work_and_waiting_and_frees_their_worker(
    narrow: Any, until: Callable[..., float], events: Callable[..., Any]
) -> None:
    pid = worker_of(narrow, until)
    asked = [{"beam": 1, "stream": True}, {"beam": 2}, {"beam": 1}]  # one after the other
    answers = [later(partial(narrow.predict, "abc", model="plodding", **options)) for options in asked]
    told, *late = [answer.get(timeout=10) for answer in answers]
    until(lambda: narrow.metric("dragoman_queue_tokens") == 0, SOON)
    for answer in late:
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline")
        assert DEADLINE <= answer.elapsed.total_seconds() < DEADLINE + 2
    *_, (name, data) = events(told.text)
    assert (name, data["code"]) == ("error", "deadline")
    assert narrow.predict("abc").status_code == 200
    assert narrow.workers() == [pid], "the worker need not die for that"


@pytest.mark.parametrize(("name", "beam"), [("endless", 1), ("endless", 4), ("plodding", 1), ("plodding", 4)])
def test_every_engine_can_be_interrupted_by_a_signal_and_works_afterwards(models: Path, name: str, beam: int) -> None:
    """CTranslate2 (where it is installed) and the CPU's engine search for `endless`, the plain path for `plodding`."""
    opened = pipeline.load(models / name, "cpu")
    options = GenerationOptions(beam=beam, max_new_tokens=30)
    truth = opened.predict(["abc", "de"], options)

    def leave(*_: Any) -> None:
        raise JobCancelled

    before = signal.signal(signal.SIGALRM, leave)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3, 5)  # again, should the first come where Python ignores errors
        with pytest.raises(JobCancelled):
            opened.predict(["abcdefgh"] * 3000, beam=beam)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert [p.tokens for p in opened.predict(["abc", "de"], options)] == [p.tokens for p in truth]


# -- workers that fail -------------------------------------------------------------------------------------------------


def test_a_crash_costs_the_requests_of_its_worker_and_another_one_comes(
    narrow: Any, until: Callable[..., float]
) -> None:
    pid = worker_of(narrow, until)
    restarts = narrow.metric("dragoman_worker_restarts_total")
    answer = later(lambda: narrow.predict("abc", model="plodding", beam=1))
    until(lambda: narrow.metric("dragoman_jobs_running") > 0)
    os.kill(pid, signal.SIGKILL)
    lost = answer.get(timeout=5)
    assert (lost.status_code, lost.json()["error"]["code"]) == (503, "worker_lost")
    assert lost.headers["retry-after"] == "1"
    until(lambda: not ready(narrow), 1.0)
    refused = narrow.predict("abc")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
    assert narrow.client.get("/health/live").status_code == 200
    until(lambda: ready(narrow), AGAIN)
    assert narrow.predict("abc").status_code == 200
    assert narrow.workers() != [pid]
    assert narrow.metric("dragoman_worker_restarts_total") == restarts + 1


def test_a_crash_does_not_affect_requests_of_other_workers(
    start: Callable[..., Any], until: Callable[..., float]
) -> None:
    server = start("endless", "--workers", "2")
    killed, other = server.workers()
    answers = [later(partial(server.predict, "abc", model="endless", beam=beam)) for beam in (7, 8)]
    until(lambda: server.metric("dragoman_jobs_running") == 2)
    os.kill(killed, signal.SIGKILL)
    until(lambda: server.client.get("/health/ready").json()["answering"] == 1)
    assert ready(server)
    assert sorted(answer.get(timeout=60).status_code for answer in answers) == [200, 503]
    until(lambda: server.client.get("/health/ready").json()["answering"] == 2, AGAIN)
    assert other in server.workers()
    assert server.stop() == 0


def test_a_worker_that_hangs_is_not_ready_and_is_replaced(narrow: Any, until: Callable[..., float]) -> None:
    pid = worker_of(narrow, until)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: not ready(narrow), 1.5)  # half a second, and the time of a look
    until(lambda: ready(narrow), AGAIN)
    assert narrow.workers() != [pid]
    assert narrow.predict("abc").status_code == 200


def test_a_worker_that_is_frozen_while_it_loads_is_replaced(narrow: Any, until: Callable[..., float]) -> None:
    worker_of(narrow, until)
    before = narrow.children()
    for pid in before:  # the spare one, too: the next starts from nothing
        os.kill(pid, signal.SIGKILL)
    until(lambda: set(narrow.children()) - set(before))
    (loading,) = set(narrow.children()) - set(before)
    os.kill(loading, signal.SIGSTOP)
    until(lambda: ready(narrow), AGAIN)
    assert loading not in narrow.children()
    assert narrow.predict("abc").status_code == 200


BLOCKED = """
from pathlib import Path

if Path("gate").exists():
    Path("gate").read_text()  # a pipe that nobody writes to
"""


def test_a_worker_that_waits_forever_while_it_loads_is_replaced(
    start: Callable[..., Any], until: Callable[..., float], models: Path
) -> None:
    (models / "blocked.py").write_text(BLOCKED, encoding="utf-8")
    gate = models / "gate"
    server = start("small", "--workers", "1", "--plugin", "blocked", "--set", "load_hang_s=2")
    os.mkfifo(gate)
    try:
        os.kill(server.workers()[0], signal.SIGKILL)
        until(lambda: "did nothing for 2 s while it loaded" in server.stderr(), AGAIN)
    finally:
        gate.unlink()
    until(lambda: ready(server), AGAIN)
    assert server.stop() == 0


def test_a_spare_process_replaces_a_worker(narrow: Any, until: Callable[..., float]) -> None:
    def spares() -> list[int]:
        return list(narrow.children("dragoman-spare"))

    pid = worker_of(narrow, until)
    until(spares, AGAIN)
    (spare,) = spares()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not ready(narrow), 1.0)
    until(lambda: ready(narrow), REPLACED)
    assert narrow.workers() == [spare]
    until(lambda: spares() not in ([], [spare]), AGAIN)  # there is another one


def test_a_worker_that_is_frozen_in_a_job_is_replaced_and_its_request_gets_a_503(
    narrow: Any, until: Callable[..., float]
) -> None:
    pid = worker_of(narrow, until)
    answer = later(lambda: narrow.predict("abc", model="plodding", beam=1))
    until(lambda: narrow.metric("dragoman_jobs_running") > 0)
    os.kill(pid, signal.SIGSTOP)
    lost = answer.get(timeout=5)
    assert (lost.status_code, lost.json()["error"]["code"]) == (503, "worker_lost")
    until(lambda: ready(narrow), AGAIN)


@pytest.mark.parametrize("hunger", ["block", "blocks"])
def test_a_request_that_takes_too_much_memory_gets_a_503_and_the_next_is_served(
    narrow: Any, until: Callable[..., float], hunger: str
) -> None:
    worker_of(narrow, until)
    answer = narrow.predict(hunger, beam=1)
    assert (answer.status_code, answer.json()["error"]["code"]) in (
        (503, "out_of_memory"),
        (503, "worker_lost"),  # where what needed the next byte was not Python
    )
    until(lambda: ready(narrow), AGAIN)
    assert narrow.predict("abc").status_code == 200


def test_a_worker_that_does_not_stop_a_cancelled_job_is_replaced(narrow: Any, until: Callable[..., float]) -> None:
    pid = worker_of(narrow, until)
    assert narrow.predict("stuck").status_code == 504
    until(lambda: not ready(narrow), 5.0)
    until(lambda: ready(narrow), AGAIN)
    assert narrow.workers() != [pid]
    assert "does not stop a cancelled job" in narrow.stderr()


def test_an_internal_error_is_logged_once_and_answered_without_details(
    narrow: Any, until: Callable[..., float]
) -> None:
    worker_of(narrow, until)
    answer = narrow.predict("boom")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    assert "secret" not in answer.text
    until(lambda: "ValueError: a secret of ours" in narrow.stderr())  # which a thread of the test reads
    assert narrow.predict("abc").status_code == 200
    assert narrow.stderr().count("ValueError: a secret of ours") == 1


PINNED = """
import re, sys
from pathlib import Path
from dragoman.serve.worker_process import release_memory

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10

blocks = [bytes(2000) for _ in range(50_000)]
del blocks[:-1]  # the last one lies above the others
before = resident()
release_memory()
print(before - resident())
"""


def test_freed_memory_below_a_block_in_use_is_returned_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", PINNED], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 50  # of 95 MiB


@pytest.mark.parametrize("view", ["saliency", "alignment"])
def test_a_view_whose_client_disconnects_is_cancelled(server: Any, until: Callable[..., float], view: str) -> None:
    before = jobs(server, "cancelled")
    body = json.dumps({"source": "abcdefgh" * 18, "target": "hgfedcba" * 18, "model": "plodding"})
    head = f"POST /v1/inspect/{view} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
        until(lambda: server.metric("dragoman_jobs_running") > 0)
    until(lambda: server.metric("dragoman_queue_tokens") == 0, SOON)
    assert jobs(server, "cancelled") == before + 1


# -- the messages ------------------------------------------------------------------------------------------------------


def test_a_message_arrives_as_it_was_sent() -> None:
    into, out = os.pipe()
    message = {"text": "ä\n\ud800 \u2028", "rows": [[1.5], []]}
    with os.fdopen(into, "rb") as reading:
        with os.fdopen(out, "wb") as writing:
            writing.write(
                encode_message(message)
                + encode_message({"kind": "result"}, b'{"a":\n1}')
                + encode_message({"cut": 1})[:-1]
            )
        assert read_message(reading) == message
        assert read_message(reading) == {"kind": "result", "json": b'{"a":\n1}'}
        assert read_message(reading) is None


def test_a_result_is_serialized_to_json_with_null_for_numbers_that_are_not_finite() -> None:
    plain = {"a": [], "b": {}, "c": [[1.5, 2], [], ["ä\ud800"]], "d": [{"e": None}, True], "f": (1, 2), "g": "x"}
    assert json.loads(b"".join(encode_result(plain))) == json.loads(json.dumps(plain))
    odd = {"a": float("-inf"), "b": [1.0, float("nan")], "c": [[float("inf")], {"d": -0.5}]}
    assert json.loads(b"".join(encode_result(odd))) == {"a": None, "b": [1.0, None], "c": [[None], {"d": -0.5}]}


def test_a_long_result_is_serialized_in_parts_of_bounded_size() -> None:
    """Whole, it was held four times, of which the allocator kept 100 MB."""
    value = {"maps": [[0.25] * 1000] * 1500, "flat": "x" * 100}
    parts = list(encode_result(value))
    assert len(parts) > 5
    assert max(map(len, parts)) < PART_BYTES + 10_000
    assert json.loads(b"".join(parts)) == value


def test_a_cancelled_job_finishes_its_import_and_is_left_right_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of an import would stay: a worker once had no views for the rest of its life."""
    (tmp_path / "cancelled_here.py").write_text("import signal\nsignal.raise_signal(signal.SIGUSR1)\nwhole = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    worker = WorkerProcess(open(os.devnull, "rb"), open(os.devnull, "wb"))  # noqa: SIM115
    worker.running_job = worker.cancelled_job = 7
    numbers = (signal.SIGUSR1, signal.SIGALRM)
    before = [signal.signal(number, worker.raise_if_cancelled) for number in numbers]
    try:
        with pytest.raises(JobCancelled):  # noqa: PT012
            importlib.import_module("cancelled_here")
            threading.Event().wait(10)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert sys.modules.pop("cancelled_here").whole


def test_a_job_that_was_cancelled_before_it_starts_is_not_run() -> None:
    worker = WorkerProcess(open(os.devnull, "rb"), open(os.devnull, "wb"))  # noqa: SIM115
    worker.cancelled_job = 7
    assert worker.run_job({"id": 7, "task": "predict", "model": "nowhere"}) == {"kind": "cancelled"}
    worker.raise_if_cancelled()  # nothing is at work any more
    assert worker.run_job({"id": 8, "task": "predict", "model": "nowhere", "items": []})["status"] == 500
