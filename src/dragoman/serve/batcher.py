"""Requests → jobs → workers, and the results back to their requests.

    request ─admitted by its tokens→ queue ─cut and joined→ job ─a free worker→ results ─to their places→ request

A request counts with its source tokens times the hypotheses that are kept, waiting or at work; what does not fit into
queue_tokens is refused at once, with a guess when to come back. A job holds items of requests that ask for the same of
the same model, as many as batch_tokens allow. A request that is larger than a job goes to the end of the queue with
what is left of it, so that a small one behind it waits for a job, not for the whole of it.

A request that nobody waits for any more (its deadline has passed, its client has left) loses its place; a job that
holds only such requests is cancelled, unless it owes them nothing more. Where a job fails, its requests are tried again
one by one: only the one that it failed on shall hear of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from dragoman.core.errors import UserError
from dragoman.core.types import Example
from dragoman.serve.schema import Refused
from dragoman.serve.settings import Serving
from dragoman.serve.worker_pool import Lost, Worker, Workers
from dragoman.serve.worker_process import Message

logger = logging.getLogger("dragoman")

NonNegativeInt = Callable[[Message], int]  # the tokens of an input's sources; refuses what the model cannot read

MANY = 5000  # characters that are counted beside the event loop, not in it (about 5 ms)
SHARE = 0.2  # of the newest job in the average rate


class Event(NamedTuple):
    """Something about one input of a request: a token that was chosen, or its result."""

    kind: str  # "token" or "result"
    item: int
    token: int = 0
    result: bytes = b""  # JSON


@dataclass(eq=False)
class Request:
    """Some inputs, and who waits for what becomes of them."""

    do: str  # predict, score or inspect
    model: str
    options: Message
    items: list[Message]
    costs: list[int]  # tokens, times hypotheses
    arrived: float
    alone: bool = False  # shares its jobs with no other
    stream: bool = False
    view: str = ""
    waiting: deque[int] = field(default_factory=deque)  # items that no job has yet
    gone: bool = False  # nobody waits for it any more
    events: asyncio.Queue[Event | Refused] = field(default_factory=asyncio.Queue)
    timer: asyncio.TimerHandle | None = None
    asked: str = ""  # the options as one text

    def __post_init__(self) -> None:
        self.asked = json.dumps(self.options, sort_keys=True)

    @property
    def key(self) -> tuple[Any, ...]:
        """Requests of one key may share a job."""
        return (id(self),) if self.alone else (self.do, self.model, self.stream, self.asked)


@dataclass(eq=False)
class Job:
    """Items of some requests, on their way through a worker."""

    id: int
    parts: list[tuple[Request, int]]
    owed: int = field(init=False)  # results that have not come yet

    def __post_init__(self) -> None:
        self.owed = len(self.parts)

    @property
    def tokens(self) -> int:
        return sum(request.costs[i] for request, i in self.parts)

    @property
    def requests(self) -> list[Request]:
        return list(dict.fromkeys(request for request, _ in self.parts))

    def message(self) -> Message:
        request, first = self.parts[0]
        return {
            "kind": "job",
            "id": self.id,
            "do": request.do,
            "model": request.model,
            "options": request.options,
            "view": request.view,
            "stream": request.stream,
            "first": first if request.alone else 0,  # what is drawn for a source depends on its place in the request
            "items": [request.items[i] for request, i in self.parts],
        }


class Batcher:
    """The queue, and a task for each worker that feeds it."""

    def __init__(self, serving: Serving, workers: Workers, counts: Mapping[str, NonNegativeInt]) -> None:
        self.serving, self.workers, self.counts = serving, workers, counts
        self.queue: deque[Request] = deque()
        self.held = 0  # tokens waiting and at work
        self.rate = 0.0  # tokens a second, of late
        self.something = asyncio.Event()  # something waits
        self.turn = asyncio.Lock()  # of the worker that takes the next job
        self.running: dict[Job, Worker] = {}
        self.jobs = 0
        self.on_job: Callable[[int, str], None] = lambda size, outcome: None  # hears of each job's size and end
        self.feeders: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.feeders = [asyncio.create_task(self.feed(worker)) for worker in self.workers.every]

    async def end(self) -> None:
        for feeder in self.feeders:
            feeder.cancel()
        await asyncio.gather(*self.feeders, return_exceptions=True)

    # -- for those who ask -------------------------------------------------------------------------------------------

    async def ask(self, model: str, examples: Sequence[Example], options: Message) -> list[Message]:
        """A prediction for each example, as /v1/predict writes them."""
        items = [
            {"source": one.source, "source_lang": one.source_lang, "target_lang": one.target_lang} for one in examples
        ]
        return [json.loads(result) for result in await self.results(await self.admit("predict", model, items, options))]

    async def admit(
        self,
        do: str,
        model: str,
        items: list[Message],
        options: Message,
        *,
        stream: bool = False,
        view: str = "",
        parts: Sequence[Any] = (),
    ) -> Request:
        """A place in the queue, or Refused. `parts` are the texts and media that an inspection is counted by."""
        loop = asyncio.get_running_loop()
        search = self.workers.models[model]["search"]
        kept = options.get("beam") or (search["beam"] if do == "predict" else 1)
        costs = [max(tokens * kept, 1) for tokens in await self.counted(model, items, do, parts)]
        if sum(costs) > self.serving.queue_tokens:
            found = f"the request counts {sum(costs):,} tokens (each once for every hypothesis)"
            raise Refused(413, "too_large", f"{found}, and there is room for {self.serving.queue_tokens:,}; send less")
        if not self.workers.ready:
            raise Refused(503, "not_ready", "no worker is ready; try again in a moment", retry_after=1)
        if self.held + sum(costs) > self.serving.queue_tokens:
            text = f"the server is busy: {self.held:,} tokens are before this request; try again later"
            raise Refused(429, "busy", text, retry_after=self.patience())
        draws = do == "predict" and search["draws"] and "beam" not in options
        alone, waiting = draws or do == "inspect", deque(range(len(items)))
        request = Request(do, model, options, items, costs, loop.time(), alone, stream, view, waiting)
        request.timer = loop.call_later(self.serving.deadline_s, self.expire, request)
        self.held += sum(costs)
        self.queue.append(request)
        self.something.set()
        return request

    async def counted(self, model: str, items: list[Message], do: str, parts: Sequence[Any]) -> list[int]:
        """The tokens of every item; counting much text takes a thread, so that the server goes on answering."""
        count = self.counts[model]

        def work() -> list[int]:
            if do == "inspect":
                return [sum(count({"source": part}) for part in parts)]
            return [one(i, item) for i, item in enumerate(items)]

        def one(i: int, item: Message) -> int:
            try:
                found = count(item)
            except UserError as error:
                raise Refused(422, "refused", str(error), f"inputs[{i}]") from None
            return found + len(item.get("target") or "")  # a character is a token at most, nearly always

        every = parts if do == "inspect" else [item["source"] for item in items]
        size = sum(len(part) for part in every if isinstance(part, str))  # a medium is not looked into
        return work() if size < MANY else await asyncio.to_thread(work)

    async def results(self, request: Request) -> list[bytes]:
        """The result of every item, in order, as JSON."""
        found = [b""] * len(request.items)
        async for event in self.events(request):
            if event.kind == "result":
                found[event.item] = event.result
        return found

    async def events(self, request: Request) -> AsyncIterator[Event]:
        """What becomes of a request until all of it is done; to stop reading is to leave."""
        left = len(request.items)
        try:
            while left:
                event = await request.events.get()
                if isinstance(event, Refused):
                    raise event
                left -= event.kind == "result"
                yield event
        finally:
            self.forget(request)

    def patience(self) -> int:
        """Seconds until what is held may be done."""
        return min(max(math.ceil(self.held / self.rate), 1), 30) if self.rate else 1

    # -- leaving -----------------------------------------------------------------------------------------------------

    def expire(self, request: Request) -> None:
        text = f"the request was not done within {self.serving.deadline_s:g} seconds; send less, or try again later"
        self.refuse(request, Refused(504, "deadline", text))

    def give_up(self) -> None:
        """Refuse all that is waiting or at work: the server ends."""
        text = "the server ends, and had no time left for this request; send it to another, or later"
        at_work = [request for job in self.running for request in job.requests]
        for request in dict.fromkeys([*self.queue, *at_work]):
            self.refuse(request, Refused(503, "ending", text, retry_after=5))

    def refuse(self, request: Request, why: Refused) -> None:
        request.events.put_nowait(why)
        self.forget(request)

    def forget(self, request: Request) -> None:
        """Let go of a request, done or not; jobs that nobody waits for any more are cancelled."""
        if request.gone:
            return
        request.gone = True
        if request.timer is not None:
            request.timer.cancel()
        if request in self.queue:
            self.queue.remove(request)
        for i in request.waiting:
            self.held -= request.costs[i]
        request.waiting.clear()
        for job, worker in self.running.items():
            if job.owed and all(part.gone for part in job.requests):
                worker.cancel(job.id)

    # -- jobs --------------------------------------------------------------------------------------------------------

    async def feed(self, worker: Worker) -> None:
        """Give a worker one job after the other."""
        loop = asyncio.get_running_loop()
        while True:
            await worker.ready.wait()
            async with self.turn:
                await self.something.wait()
                await self.join()
                job = self.cut() if worker.ready.is_set() else None
            if job is None:
                continue
            began = loop.time()
            self.running[job] = worker
            try:
                outcome = await worker.do(job.message(), partial(self.hear, job))
            except Lost:
                outcome = {"kind": "lost"}
            finally:
                del self.running[job]
            self.settle(job, outcome)
            self.on_job(len(job.parts), outcome["kind"])
            if outcome["kind"] == "done":
                rate = len(self.workers.every) * job.tokens / max(loop.time() - began, 1e-6)
                self.rate += (SHARE if self.rate else 1.0) * (rate - self.rate)

    async def join(self) -> None:
        """Wait a little for others, unless what waits fills a job or has waited long enough."""
        if not self.queue or self.queue[0].alone:
            return
        first, loop = self.queue[0], asyncio.get_running_loop()
        key = first.key
        waiting = sum(request.costs[i] for request in self.queue if request.key == key for i in request.waiting)
        wait = first.arrived + self.serving.batch_wait_ms / 1000 - loop.time()
        if wait > 0 and waiting < self.serving.batch_tokens:
            await asyncio.sleep(wait)

    def cut(self) -> Job | None:
        """The next job: what the first request asks for, and others with it."""
        if not self.queue:
            self.something.clear()
            return None
        key, room = self.queue[0].key, self.serving.batch_tokens
        parts: list[tuple[Request, int]] = []
        for request in [request for request in self.queue if request.key == key]:
            while request.waiting and (not parts or request.costs[request.waiting[0]] <= room):
                i = request.waiting.popleft()
                room -= request.costs[i]
                parts.append((request, i))
            if parts[-1][0] is request:  # it had its turn
                self.queue.remove(request)
                if request.waiting:
                    self.queue.append(request)
        if not self.queue:
            self.something.clear()
        self.jobs += 1
        return Job(self.jobs, parts)

    def hear(self, job: Job, message: Message) -> None:
        """Hand a token or a result of a job to its request."""
        request, i = job.parts[message["item"]]
        job.owed -= message["kind"] == "result"
        if not request.gone:
            request.events.put_nowait(Event(message["kind"], i, message.get("token", 0), message.get("json", b"")))

    def settle(self, job: Job, outcome: Message) -> None:
        """What becomes of a job's requests at its end."""
        self.held -= job.tokens
        if outcome["kind"] == "done":
            return
        if outcome["kind"] == "failed" and len(job.requests) > 1:
            self.separate(job)
        else:
            for request in job.requests:
                self.refuse(request, refusal(outcome))

    def separate(self, job: Job) -> None:
        """Have the requests of a job tried again, each by itself."""
        for request in reversed(job.requests):
            if request.gone:
                continue
            mine = [i for one, i in job.parts if one is request]
            self.held += sum(request.costs[i] for i in mine)
            request.waiting.extendleft(reversed(mine))
            request.alone = True
            if request in self.queue:
                self.queue.remove(request)
            self.queue.appendleft(request)
            self.something.set()


def refusal(outcome: Message) -> Refused:
    """Why a job gave no results."""
    if outcome["kind"] == "failed":
        retry = 1 if outcome["status"] == 503 else None
        return Refused(outcome["status"], outcome["code"], outcome["message"], retry_after=retry)
    return Refused(503, "worker_lost", "the process that had this request ended; try again in a moment", retry_after=1)
