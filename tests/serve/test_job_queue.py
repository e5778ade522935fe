"""Which request a worker gets next, and how much of it: small ones first, by measured time, and none is left out."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dragoman.serve.job_queue import TURNS, BatchJob, JobQueue, PendingRequest
from dragoman.serve.settings import ServerSettings


def request(costs: list[int], now: float = 0.0, **options: Any) -> PendingRequest:
    return PendingRequest("predict", "m", options, [{}] * len(costs), costs, now, False, True)


def job(queue: JobQueue, now: float = 0.0, allow_long: bool = True) -> BatchJob:
    made = queue.next_job(now, allow_long)
    assert made is not None
    return made


def measure(queue: JobQueue, cost: int, seconds: float, is_done: bool = True, **options: Any) -> None:
    queue.note_speed(BatchJob(0, [(request([cost], **options), 0)]), seconds, is_done)


def test_a_word_passes_dear_requests_and_these_still_get_a_fourth_of_the_jobs() -> None:
    queue, served = JobQueue(ServerSettings()), Counter[str]()
    for name in "ab":
        queue.add(request([100] * 1000, beam=4, name=name))
    for turn in range(80):
        queue.add(request([3], now=turn, beam=1, name="word"))
        served[job(queue, turn).requests[0].options["name"]] += 1
    assert served == {"word": 80 - 80 // TURNS, "a": 40 // TURNS, "b": 40 // TURNS}


def test_a_job_has_what_takes_job_s_by_the_measured_speed_of_its_kind() -> None:
    queue = JobQueue(ServerSettings(job_s=0.5))
    measure(queue, 1000, 1.0, beam=1)
    measure(queue, 1000, 10.0, beam=4)
    for beam, most in ((1, 500), (4, 50), (16, 128)):  # of the last kind there was no job yet
        queue.add(request([10] * 1000, beam=beam))
        assert len(job(queue).items) == most // 10
        queue.requests.clear()


def test_a_speed_falls_at_once_and_rises_slowly() -> None:
    queue, one = JobQueue(ServerSettings()), request([1])
    measure(queue, 1000, 1.0)
    measure(queue, 100, 1.0)
    assert queue.speed(one) == 100
    measure(queue, 1100, 1.0)
    assert queue.speed(one) == 300
    measure(queue, 16, 0.1)  # it says nothing about longer ones
    measure(queue, 2, 5.0)  # nor does one word, which a busy machine held up
    measure(queue, 10_000, 1.0, is_done=False)  # nor does this: it may just have begun
    assert queue.speed(one) == 300
    measure(queue, 100, 10.0, is_done=False)
    assert queue.speed(one) == 10


def test_a_long_item_does_not_get_the_worker_that_is_kept_free() -> None:
    queue = JobQueue(ServerSettings(long_s=1.0))
    measure(queue, 1000, 1.0)
    for cost in (1001, 5000, 1000):
        queue.add(request([cost]))
    assert job(queue, allow_long=False).cost == 1000
    assert queue.next_job(0.0, allow_long=False) is None
    assert [job(queue).is_long, job(queue).is_long] == [True, True]


def test_a_word_is_not_long_however_slow_its_kind_was() -> None:
    queue = JobQueue(ServerSettings())
    measure(queue, 1000, 1000.0)
    queue.add(request([3]))
    assert job(queue, allow_long=False).cost == 3
