"""Requests share jobs, wait their turn and are refused in time; what they get depends on none of that."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from dragoman.core.types import Example
from dragoman.inference import pipeline
from dragoman.serve.batcher import Batcher, BatchJob, SourceTokenizer, count_hypotheses
from dragoman.serve.schema import APIError
from dragoman.serve.settings import ServerSettings
from dragoman.serve.worker_pool import WorkerPool

from .sockets import wait_for


def together(url: str, bodies: list[dict[str, Any]]) -> list[httpx.Response]:
    """The answers to requests that are sent at once."""

    async def send() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=60.0, limits=limits) as client:
            return await asyncio.gather(*(client.post("/v1/predict", json=body) for body in bodies))

    return asyncio.run(send())


# -- through a server --------------------------------------------------------------------------------------------------


def test_a_result_is_the_same_alone_and_in_any_batch(server: Any) -> None:
    sources = ["abc", "a", "hgfedcbahgfedcba", "ddd", "b" * 30, "fade", "cab", "feed"]
    for options in ({"beam": 1}, {"beam": 3, "nbest": 2}):
        alone = [server.predict(source, **options).json()["results"][0] for source in sources]
        whole = server.predict(*sources, **options).json()["results"]
        turned = server.predict(*reversed(sources), **options).json()["results"][::-1]
        bodies = [{"inputs": [source], **options} for source in sources]
        met = [answer.json()["results"][0] for answer in together(server.url, bodies)]
        for truth, *others in zip(alone, whole, turned, met, strict=True):
            for other in others:
                assert other["tokens"] == truth["tokens"]
                assert other["log_probs"] == pytest.approx(truth["log_probs"], abs=1e-5)


@pytest.mark.parametrize("name", ["small", "tagged"])
@pytest.mark.parametrize("beam", [1, 3])
def test_in_int8_too_a_result_is_the_same_alone_and_in_any_batch(models: Path, name: str, beam: int) -> None:
    opened = pipeline.load(models / name, "cpu", precision="int8")
    texts = ["abc", "a", "hgfedcbahgfedcba", "ddd", "b" * 30, "fade", "cab", "feed"]
    sources = [Example(text, target_lang="fr" if name == "tagged" else None) for text in texts]
    alone = [opened.predict([source], beam=beam)[0] for source in sources]
    for company in (opened.predict(sources, beam=beam), opened.predict(sources[::-1], beam=beam)[::-1]):
        for other, truth in zip(company, alone, strict=True):
            assert other.tokens == truth.tokens
            assert other.log_probs == pytest.approx(truth.log_probs, abs=1e-5)


def test_requests_with_the_same_options_share_a_job_and_others_do_not(narrow: Any) -> None:
    jobs, items = narrow.metric("dragoman_job_items_count"), narrow.metric("dragoman_job_items_sum")
    bodies = [{"inputs": ["abc"], "beam": 1}] * 3 + [{"inputs": ["abc"], "beam": 1, "forbid_phrases": ["h"]}] * 2
    assert [answer.status_code for answer in together(narrow.url, bodies)] == [200] * 5
    wait_for(lambda: narrow.metric("dragoman_job_items_sum") - items == 5)  # counted just after the last answer
    assert narrow.metric("dragoman_job_items_count") - jobs == 2


PROBE = """
import http.client, json, sys, time
port, seconds, found = int(sys.argv[1]), float(sys.argv[2]), []
end = time.monotonic() + seconds
while time.monotonic() < end:
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/health/live")
    assert connection.getresponse().status == 200
    found.append(time.monotonic() - began)
    time.sleep(0.01)
print(json.dumps(found))
"""


def resident(pid: int) -> int:
    """MiB of memory that a process holds."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().split("\n") if line.startswith("VmRSS"))
    return int(line.split()[1]) // 1024


class Answer(NamedTuple):
    """What a client of many got."""

    status: int
    head: str
    seconds: float


async def post(port: int, body: dict[str, Any]) -> Answer:
    """One request on a connection of its own, as cheaply as can be: the clients share the machine with the server."""
    began, data = time.monotonic(), json.dumps(body)
    head = f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(data)}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}Content-Type: application/json\r\n\r\n{data}".encode())
    text = (await reader.read()).decode()
    writer.close()
    return Answer(int(text.split(" ")[1]), text.split("\r\n\r\n")[0].lower(), time.monotonic() - began)


async def crowd(port: int, clients: int, seconds: float) -> list[Answer]:
    """The answers to clients that come within some seconds, each of which asks twice."""

    async def client(wait: float) -> list[Answer]:
        await asyncio.sleep(wait)
        return [await post(port, {"inputs": ["abc"], "beam": 1, "model": "endless"}) for _ in range(2)]

    every = await asyncio.gather(*(client(seconds * i / clients) for i in range(clients)))
    return [answer for answers in every for answer in answers]


def test_two_hundred_clients_are_served_or_refused_and_the_server_stays_alive(
    narrow: Any, until: Callable[..., float]
) -> None:
    asyncio.run(crowd(narrow.port, 50, 0.2))
    before = [resident(pid) for pid in (narrow.process.pid, *narrow.workers())]
    probe = subprocess.Popen([sys.executable, "-c", PROBE, str(narrow.port), "2"], stdout=subprocess.PIPE, text=True)
    answers = asyncio.run(crowd(narrow.port, 200, 1.0))
    said, _ = probe.communicate(timeout=60)
    latencies = sorted(json.loads(said))
    counts = {code: sum(answer.status == code for answer in answers) for code in (200, 429, 503, 504)}
    assert sum(counts.values()) == len(answers), "nothing else may happen to a request"
    assert counts[200] >= 8
    assert counts[429] > 0
    assert all("retry-after: " in answer.head for answer in answers if answer.status in (429, 503))
    assert (
        max(answer.seconds for answer in answers if answer.status == 200) < 2 + 2
    )  # the deadline, and the clients' own slowness
    assert latencies[int(0.99 * len(latencies))] < 1.0  # 50 ms on a machine with nothing else to do
    after = [resident(pid) for pid in (narrow.process.pid, *narrow.workers())]
    assert all(late < early + 30 for early, late in zip(before, after, strict=True)), (before, after)
    until(lambda: narrow.metric("dragoman_queue_tokens") == 0, 1.0)


# -- the queue itself --------------------------------------------------------------------------------------------------


def batcher(**settings: Any) -> Batcher:
    """A batcher whose worker is ready and takes nothing; a token is a character."""
    pool = WorkerPool(ServerSettings(workers=1, **settings), {"m": "nowhere"})
    search = {"beam": 1, "is_sampling": False, "max_length_ratio": 1.0, "max_length_extra": 3}
    pool.models = {"m": {"search": search, "max_source_positions": 1000}}
    pool.workers[0].ready.set()
    tokenizer = SourceTokenizer(lambda item: (len(item["source"]), None))
    return Batcher(pool.settings, pool, {"m": tokenizer})


async def admit(queue: Batcher, *texts: str, **options: Any) -> Any:
    return await queue.admit("predict", "m", [{"source": text} for text in texts], options)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def sources(job: BatchJob | None) -> list[str]:
    assert job is not None
    return [request.items[i]["source"] for request, i in job.items]


def test_a_small_request_gets_in_between_the_jobs_of_a_large_one() -> None:
    async def scenario() -> None:
        queue = batcher(batch_tokens=10)
        await admit(queue, *(f"large{i}" for i in range(4)))
        await admit(queue, "small!")
        jobs = [sources(queue.next_job()) for _ in range(5)]
        assert jobs == [["large0"], ["small!"], ["large1"], ["large2"], ["large3"]]
        assert queue.next_job() is None

    run(scenario)


def test_a_job_has_as_many_tokens_as_allowed_but_always_one_item() -> None:
    async def scenario() -> None:
        queue = batcher(batch_tokens=10)
        await admit(queue, "a" * 6, "b" * 4, "c", "d" * 50)
        assert [sources(queue.next_job()) for _ in range(3)] == [["a" * 6, "b" * 4], ["c"], ["d" * 50]]

    run(scenario)


def test_of_several_workers_one_is_kept_for_short_jobs() -> None:
    async def scenario() -> None:
        queue = batcher(batch_tokens=10)
        for text in ("a" * 50, "b" * 50):
            await admit(queue, text)
        queue.pool.workers *= 2
        first = queue.next_job()
        assert sources(first) == ["a" * 50]
        assert first is not None
        await admit(queue, "short")
        queue.running[first] = queue.pool.workers[0]
        assert sources(queue.next_job()) == ["short"]
        assert queue.next_job() is None
        assert not queue.has_work.is_set()
        del queue.running[first]
        assert sources(queue.next_job()) == ["b" * 50]

    run(scenario)


def test_a_long_job_that_waits_for_another_starts_when_that_ends() -> None:
    async def scenario() -> None:
        queue = batcher(batch_tokens=10, batch_wait_ms=0)
        queue.pool = WorkerPool(queue.settings.model_copy(update={"workers": 2}), {"m": "nowhere"})
        queue.pool.models = batcher().pool.models
        for worker in queue.pool.workers:
            worker.ready.set()
        queue.start()

        def running() -> list[Any]:
            return [worker for worker in queue.pool.workers if worker.running_job is not None]

        async with asyncio.timeout(10):
            requests = [await admit(queue, text * 50) for text in "ab"]
            for request in requests:
                while not running():
                    await asyncio.sleep(0)
                (worker,) = running()  # never both
                worker.handle_message({"kind": "result", "id": worker.running_job, "item": 0, "json": b"1"})
                worker.handle_message({"kind": "done", "id": worker.running_job})
                assert await queue.collect_results(request) == [b"1"]
                while worker.running_job is not None:
                    await asyncio.sleep(0)
        await queue.stop()

    run(scenario)


def test_a_request_counts_with_its_tokens_times_its_beam_until_its_job_is_done() -> None:
    async def scenario() -> None:
        queue = batcher(queue_tokens=100)
        first = await admit(queue, "a" * 10, beam=3)
        second = await admit(queue, "b" * 20, beam=3)
        assert queue.pending_tokens == 90
        with pytest.raises(APIError) as busy:
            await admit(queue, "c" * 11)
        assert (busy.value.status, busy.value.retry_after) == (429, 1)
        with pytest.raises(APIError) as never:
            await admit(queue, "c" * 51, beam=2)
        assert never.value.status == 413
        job = queue.next_job()
        assert job is not None
        assert queue.pending_tokens == 90
        for i, found in enumerate((b"1", b"2")):
            queue.handle_output(job, {"kind": "result", "item": i, "json": found})
        queue.finish_job(job, {"kind": "done"})
        assert queue.pending_tokens == 0
        assert [await queue.collect_results(first), await queue.collect_results(second)] == [[b"1"], [b"2"]]

    run(scenario)


def test_a_released_request_leaves_the_queue_and_a_job_is_cancelled_when_all_its_requests_are_released() -> None:
    async def scenario() -> None:
        queue = batcher()
        worker = queue.pool.workers[0]
        first, second = await admit(queue, "a"), await admit(queue, "b")
        job = queue.next_job()
        assert job is not None
        worker.running_job, queue.running[job] = job.id, worker
        third = await admit(queue, "c")
        queue.release(third)
        queue.release(first)
        assert worker.cancelled_at is None
        assert sources(job) == ["a", "b"]
        queue.release(second)
        assert worker.cancelled_at is not None
        assert queue.next_job() is None
        queue.finish_job(job, {"kind": "cancelled"})
        assert queue.pending_tokens == 0

    run(scenario)


def test_a_job_with_all_its_results_is_not_cancelled_and_counts_as_done_whenever_its_end_comes() -> None:
    async def scenario() -> None:
        queue = batcher(batch_wait_ms=0)
        (worker,) = queue.pool.workers
        ends: list[str] = []
        queue.on_job_finished = lambda size, outcome: ends.append(outcome)
        queue.start()
        async with asyncio.timeout(10):
            asked = await admit(queue, "a", "b")
            while worker.running_job is None:
                await asyncio.sleep(0)
            for i, found in enumerate((b"1", b"2")):
                worker.handle_message({"kind": "result", "id": worker.running_job, "item": i, "json": found})
            assert await queue.collect_results(asked) == [b"1", b"2"]
            assert asked.is_released
            assert worker.running_job is not None  # the end of the job has not come yet
            assert worker.cancelled_at is None
            worker.handle_message({"kind": "done", "id": worker.running_job})
            while not ends:
                await asyncio.sleep(0)
        assert (ends, queue.pending_tokens) == (["done"], 0)
        assert queue.tokens_per_second > 0  # by which the next is told when to come back
        await queue.stop()

    run(scenario)


def test_a_request_past_its_deadline_gets_a_504_and_is_released() -> None:
    async def scenario() -> None:
        queue = batcher(deadline_s=0.05)
        with pytest.raises(APIError) as late:
            async with asyncio.timeout(10):
                await queue.predict("m", [{"source": "abc"}], {})
        assert late.value.status == 504
        assert (queue.pending_tokens, len(queue.queue)) == (0, 0)

    run(scenario)


def test_where_a_job_fails_its_requests_are_tried_one_by_one() -> None:
    async def scenario() -> None:
        queue = batcher()
        good, bad = await admit(queue, "good"), await admit(queue, "bad", "worse")
        failed = {"kind": "failed", "status": 422, "code": "refused", "message": "no"}
        job = queue.next_job()
        assert sources(job) == ["good", "bad", "worse"]
        assert job is not None
        queue.finish_job(job, failed)
        assert queue.pending_tokens == 12
        job = queue.next_job()
        assert job is not None
        assert sources(job) == ["good"]
        queue.handle_output(job, {"kind": "result", "item": 0, "json": b"fine"})
        queue.finish_job(job, {"kind": "done"})
        job = queue.next_job()
        assert job is not None
        assert sources(job) == ["bad", "worse"]
        queue.finish_job(job, failed)
        assert await queue.collect_results(good) == [b"fine"]
        with pytest.raises(APIError) as refused:
            await queue.collect_results(bad)
        assert (refused.value.status, queue.pending_tokens) == (422, 0)

    run(scenario)


def test_without_a_worker_a_request_gets_a_503_with_retry_after() -> None:
    async def scenario() -> None:
        queue = batcher()
        queue.pool.workers[0].ready.clear()
        with pytest.raises(APIError) as refused:
            await admit(queue, "a")
        assert (refused.value.status, refused.value.retry_after) == (503, 1)

    run(scenario)


def test_a_sample_depends_on_the_index_in_its_own_request() -> None:
    async def scenario() -> None:
        queue = batcher(batch_tokens=2)
        queue.pool.models["m"]["search"]["is_sampling"] = True
        await admit(queue, "a", "b", "c", "d")
        await admit(queue, "e")
        jobs = [queue.next_job() for _ in range(3)]
        assert [sources(job) for job in jobs] == [["a", "b"], ["e"], ["c", "d"]]
        assert [job.to_message("")["first_index"] for job in jobs if job is not None] == [0, 0, 2]

    run(scenario)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 4),  # the model's own beam
        ({"beam": 7}, 7),
        ({"num_samples": 9}, 9),
        ({"beam": 2, "num_samples": 9}, 9),
        ({"search": "diverse"}, 6),  # no less than the default beam of another search
    ],
)
def test_the_cost_of_a_request_counts_every_hypothesis_and_sample(options: dict[str, Any], expected: int) -> None:
    assert count_hypotheses(options, {"name": "beam", "beam": 4, "is_sampling": False}) == expected
