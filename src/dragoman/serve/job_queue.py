"""The queue of requests: which one a free worker gets next, and how much of it.

    requests ─shortest next job; each fourth time, longest wait→ first ─and others with its key→ job of job_s at most

So a word waits for no more than two jobs of dear requests, and these have a fourth of the jobs whatever else comes. The
rest of a larger request waits anew, behind the others: large requests take turns.

The seconds of a job are estimated from its cost, by the measured speed of jobs of its task, model, view and search. An
item is never split. One that may take more than long_s is long: of several workers, one is kept free of long items.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from dragoman.serve.schema import APIError, JSONObject
from dragoman.serve.settings import ServerSettings

Task = Literal["predict", "score", "inspect"]

FIRST_SPEED = 2000.0  # tokens per second of a kind of which no job was measured yet
SPEED_SMOOTHING = 0.2  # weight of the newest job in a speed that rises; one that falls falls at once
GROWTH = 4  # a job may cost so many times what the largest one like it did: its speed may have been misjudged
SMALL_COST = 128  # of a job before one like it was measured, since some models' outputs are long; and of no long item
MIN_MEASURED_COST = 16  # a job below it says nothing: a busy machine may take a second for one word
TURNS = 4  # of so many, one is for the request that has waited longest
JOB_OVERHEAD_S = 0.01  # that a job takes whatever its cost: requests below it are served in the order of arrival


@dataclass(eq=False)
class PendingRequest:
    """Inputs that are queued or running, and the queue of events for the coroutine that waits for them.

    An event is a worker's token or result, with the index of its item in this request, or the error that ends it.
    """

    task: Task
    model: str
    options: JSONObject  # of generation, and `attention`, `stream` and `view`
    items: list[JSONObject]
    costs: list[int]  # of each item
    arrival_time: float
    is_exclusive: bool  # shares its jobs with no other request
    is_small: bool  # is counted among the small ones, see Batcher.admit
    is_released: bool = False  # nobody waits for it any more
    answered: set[int] = field(default_factory=set)  # items whose result has arrived
    token_counts: Counter[int] = field(default_factory=Counter)  # tokens that have arrived, by item
    events: asyncio.Queue[JSONObject | APIError] = field(default_factory=asyncio.Queue)
    deadline_timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.unscheduled = deque(range(len(self.items)))  # items that are in no job yet
        self.unscheduled_cost = sum(self.costs)
        self.waiting_since = self.arrival_time  # or since its last job was made

    @cached_property
    def options_key(self) -> str:
        """The options as sorted JSON."""
        return json.dumps(self.options, sort_keys=True)

    @property
    def batch_key(self) -> tuple[object, ...]:
        """The key under which requests may share a job; an exclusive request has a key of its own."""
        return (id(self),) if self.is_exclusive else (self.task, self.model, self.options_key)

    @cached_property
    def speed_key(self) -> tuple[object, ...]:
        """The key of what is measured together; it has few values, whatever clients send."""
        options = self.options
        search = options.get("search")
        name = search["name"] if isinstance(search, dict) else search
        width = max(options.get("beam", 0), options.get("num_samples", 0)).bit_length()  # 2 and 3, 4 to 7 and so on
        engine = bool(options.get("attention")), bool(options.get("stream"))  # which is slower with these
        return self.task, self.model, options.get("view"), name, width, *engine

    @property
    def next_cost(self) -> int:
        """The cost of the next item."""
        return self.costs[self.unscheduled[0]]

    def schedule_next(self) -> int:
        """Take the next item for a job; return its index."""
        i = self.unscheduled.popleft()
        self.unscheduled_cost -= self.costs[i]
        return i

    def put_back(self, indices: Iterable[int]) -> None:
        """Let items wait again, before the others."""
        for i in reversed(list(indices)):
            self.unscheduled.appendleft(i)
            self.unscheduled_cost += self.costs[i]


@dataclass(eq=False)
class BatchJob:
    """Items of one or more requests that a worker computes together."""

    id: int
    items: list[tuple[PendingRequest, int]]  # a request and the index of its item
    is_long: bool = False  # it may take more than long_s
    result_count: int = 0  # results that have arrived
    token_counts: Counter[int] = field(default_factory=Counter)  # tokens that have arrived, by index in the job

    @property
    def cost(self) -> int:
        return sum(request.costs[i] for request, i in self.items)

    @property
    def requests(self) -> list[PendingRequest]:
        """The distinct requests of the items, in order."""
        return list(dict.fromkeys(request for request, _ in self.items))

    def to_message(self, codec_fingerprint: str) -> JSONObject:
        """Return the job as a message to a worker; task, model and options are those of the first request."""
        request, first = self.items[0]
        return {
            "kind": "job",
            "id": self.id,
            "task": request.task,
            "model": request.model,
            "options": request.options,
            "first_index": first if request.is_exclusive else 0,  # a sample depends on its index in the request
            "items": [request.items[i] for request, i in self.items],
            "codec_fingerprint": codec_fingerprint,
        }


class JobQueue:
    """Requests with items that are in no job yet, and the measured speeds of jobs."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.requests: list[PendingRequest] = []  # in the order of their arrival, or of their last job
        self.speeds: dict[tuple[object, ...], float] = {}  # tokens per second of one worker
        self.largest: dict[tuple[object, ...], int] = {}  # the cost of the largest job that was done
        self.job_count = 0

    def __len__(self) -> int:
        return len(self.requests)

    def add(self, request: PendingRequest) -> None:
        """Let a request wait, if it does not already."""
        if request not in self.requests:
            self.requests.append(request)

    def remove(self, request: PendingRequest) -> None:
        """Let a request wait no longer, if it does."""
        if request in self.requests:
            self.requests.remove(request)

    def speed(self, request: PendingRequest) -> float:
        """Return the tokens per second of a worker in jobs like a request's."""
        return self.speeds.get(request.speed_key, FIRST_SPEED)

    def max_job_cost(self, request: PendingRequest) -> int:
        """Return how many tokens of a request a job may have: batch_tokens, or fewer if they took longer than job_s."""
        tokens = int(self.settings.job_s * self.speed(request))
        known = max(GROWTH * self.largest.get(request.speed_key, 0), SMALL_COST)
        return min(self.settings.batch_tokens, tokens, known)

    def is_long(self, request: PendingRequest) -> bool:
        """Whether the next item of a request may keep a worker for more than long_s."""
        tokens = max(int(self.settings.long_s * self.speed(request)), SMALL_COST)
        return request.next_cost > min(self.settings.batch_tokens, tokens)

    def job_seconds(self, request: PendingRequest) -> float:
        """Estimate the seconds of a request's next job."""
        return max(min(request.unscheduled_cost, self.max_job_cost(request)), request.next_cost) / self.speed(request)

    def next_request(self, allow_long: bool) -> PendingRequest | None:
        """Return the request that is served next; None if there is none, or only with long items."""
        requests = [request for request in self.requests if allow_long or not self.is_long(request)]
        if self.job_count % TURNS == TURNS - 1:
            return min(requests, key=lambda request: request.waiting_since, default=None)
        return min(requests, key=lambda request: self.job_seconds(request) // JOB_OVERHEAD_S, default=None)

    def cost_with_key(self, key: tuple[object, ...]) -> int:
        """Return the cost of all that could share a job under a key."""
        return sum(request.unscheduled_cost for request in self.requests if request.batch_key == key)

    def next_job(self, now: float, allow_long: bool) -> BatchJob | None:
        """Make a job of the next request and others with its key; None if there is no request to serve."""
        first = self.next_request(allow_long)
        if first is None:
            return None
        key, budget, is_long = first.batch_key, self.max_job_cost(first), self.is_long(first)
        items: list[tuple[PendingRequest, int]] = []
        for request in [first, *(other for other in self.requests if other.batch_key == key and other is not first)]:
            while request.unscheduled and (not items or request.next_cost <= budget):
                budget -= request.next_cost
                items.append((request, request.schedule_next()))
            if items[-1][0] is request:  # the rest of it waits behind the others
                self.requests.remove(request)
                if request.unscheduled:
                    request.waiting_since = now
                    self.requests.append(request)
        self.job_count += 1
        return BatchJob(self.job_count, items, is_long)

    def note_speed(self, job: BatchJob, seconds: float, is_done: bool) -> None:
        """Update the speed of jobs like this one. One that was cancelled can only show that they are slower."""
        request, measured = job.requests[0], job.cost / max(seconds, 1e-6)
        if is_done:
            self.largest[request.speed_key] = max(job.cost, self.largest.get(request.speed_key, 0))
        if job.cost < MIN_MEASURED_COST:
            return
        speed = self.speed(request)
        if measured < speed and seconds > self.settings.job_s / 2:  # of a shorter one, the overhead is too large a part
            speed = max(measured, 1.0)
        elif measured > speed and is_done:
            speed += SPEED_SMOOTHING * (measured - speed)
        elif not is_done:
            return
        self.speeds[request.speed_key] = speed
