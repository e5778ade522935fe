"""Dynamic batching: requests → jobs → workers, and the results back to their requests.

    request ─admission by tokens→ queue ─split and merged→ job ─next free worker→ results ─by index→ request

A request costs an upper bound of its work, while it is queued or running: its source tokens, times the hypotheses of
the beam; more if it allows longer outputs than the model's own options; and for a view what that declares. One that
does not fit into queue_tokens is refused at once, and so is an item above item_tokens. Requests of up to batch_tokens
are counted apart from larger ones, which so leave room for them. A job holds items of requests for the same task, model
and options; job_queue.py says which come first. When a job fails, its requests are retried one by one, so that only the
request that caused the failure gets the error. The ids of a text that were counted for admission are sent to the worker
with it.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from dragoman.core.errors import UserError
from dragoman.core.generation import GenerationOptions
from dragoman.inspection.views import find_view
from dragoman.serve import background, view_routes
from dragoman.serve.job_queue import BatchJob, JobQueue, PendingRequest, Task
from dragoman.serve.schema import APIError, JSONObject
from dragoman.serve.settings import ServerSettings
from dragoman.serve.worker_pool import WorkerHandle, WorkerLost, WorkerPool

RATE_SMOOTHING = 0.2  # weight of the newest job in the moving average of the throughput


@dataclass(frozen=True)
class SourceTokenizer:
    """Tokenizes the inputs of one model; `tokenize` raises UserError for an unknown language."""

    # The number of tokens (an estimate if the model reads files or two sources), and their ids if they are one text.
    tokenize: Callable[[JSONObject], tuple[int, list[int] | None]]
    codec_fingerprint: str = ""  # a worker uses the ids only if its tokenizers are the same
    count_target: Callable[[str], int] = len


class Batcher:
    """The queue of requests, and a task per worker that takes jobs from it."""

    def __init__(self, settings: ServerSettings, pool: WorkerPool, tokenizers: Mapping[str, SourceTokenizer]) -> None:
        self.settings, self.pool, self.tokenizers = settings, pool, tokenizers
        self.queue = JobQueue(settings)
        self.pending = {True: 0, False: 0}  # tokens queued and running, of small requests and of others
        self.tokens_per_second = 0.0  # a moving average
        self.has_work = asyncio.Event()
        self.dispatch_lock = asyncio.Lock()  # one worker at a time takes a job
        self.running: dict[BatchJob, WorkerHandle] = {}
        self.on_job_finished: Callable[[int, str], None] = lambda size, outcome: None
        self.dispatchers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start a dispatcher task for each worker."""
        self.dispatchers = [asyncio.create_task(self.dispatch_jobs(worker)) for worker in self.pool.workers]

    async def stop(self) -> None:
        """Cancel the dispatcher tasks and wait for their end."""
        for dispatcher in self.dispatchers:
            dispatcher.cancel()
        await asyncio.gather(*self.dispatchers, return_exceptions=True)

    # -- for routes --------------------------------------------------------------------------------------------------

    async def predict(self, model: str, items: list[JSONObject], options: JSONObject) -> list[JSONObject]:
        """Queue inputs, wait, and return a prediction for each, as /v1/predict writes them."""
        request = await self.admit("predict", model, items, options)
        results = await self.collect_results(request)
        return await background.run(sum(map(len, results)), lambda: [json.loads(result) for result in results])

    async def admit(self, task: Task, model: str, items: list[JSONObject], options: JSONObject) -> PendingRequest:
        """Queue a request; raise APIError if it is too large or the server busy."""
        loop = asyncio.get_running_loop()
        search = self.pool.models[model]["search"]
        costs = await self.count_costs(task, model, items, options)
        for cost, limit in ((max(costs), self.settings.item_tokens), (sum(costs), self.settings.queue_tokens)):
            if cost > limit:
                raise self.too_large(f"{cost:,}", limit)
        if not self.pool.ready_count:
            raise APIError(503, "not_ready", "no worker is ready; try again in a moment", retry_after=1)
        is_small = sum(costs) <= self.settings.batch_tokens
        if self.pending[is_small] + sum(costs) > self.settings.queue_tokens:
            text = f"the server is busy: {self.pending_tokens:,} tokens are ahead of this request; try again later"
            raise APIError(429, "busy", text, retry_after=self.retry_after())
        is_sampling = task == "predict" and uses_sampling(options, search)
        is_exclusive = is_sampling or task == "inspect"
        request = PendingRequest(task, model, options, items, costs, loop.time(), is_exclusive, is_small)
        request.deadline_timer = loop.call_later(self.settings.deadline_s, self.expire, request)
        self.pending[is_small] += sum(costs)
        self.queue.add(request)
        self.has_work.set()
        return request

    async def count_costs(self, task: Task, model: str, items: list[JSONObject], options: JSONObject) -> list[int]:
        """Count the cost of each item and store its source ids in it; long texts are tokenized in a thread."""
        limit, total = self.settings.queue_tokens, 0

        def count_all() -> list[int]:
            if task == "inspect":
                (item,) = items
                return [sum(view_cost(name, item) for name in item.get("models") or [model])]
            return [item_cost(i, item) for i, item in enumerate(items)]

        def item_cost(i: int, item: JSONObject) -> int:
            try:
                tokens, ids = self.tokenizers[model].tokenize(item)
            except UserError as error:
                raise APIError(422, "refused", str(error), f"inputs[{i}]") from None
            if ids is not None:
                item["source_ids"] = ids
            target = len(item.get("target") or "")  # almost never more tokens than characters
            read = min(add(tokens), self.pool.models[model]["max_source_positions"])  # the rest is cut off
            if task == "score":
                return read + add(target)
            return prediction_cost(read, options, self.pool.models[model]["search"])

        def view_cost(name: str, item: JSONObject) -> int:
            info, tokenizer = self.pool.models[name], self.tokenizers[name]

            def count_source(source: JSONObject) -> int:
                return min(add(tokenizer.tokenize(source)[0]), info["max_source_positions"])

            def count_target(text: str) -> int:
                return add(tokenizer.count_target(text))

            try:
                size = view_routes.measure_request(item, info, count_source, count_target)
            except UserError as error:
                raise APIError(422, "refused", str(error)) from None
            return find_view(options["view"]).cost(size)

        def add(tokens: int) -> int:
            nonlocal total
            total += tokens
            if total > limit:  # the rest need not be tokenized
                raise self.too_large(f"more than {limit:,}", limit)
            return tokens

        sides = ("source", "second_source", "target")
        texts = [text for item in items for side in sides if isinstance(text := item.get(side), str)]  # not files
        size = background.SMALL + 1 if task == "inspect" else sum(map(len, texts))
        return await background.run(size, count_all)

    def too_large(self, tokens: str, limit: int) -> APIError:
        """Build the 413 for a request, or one item of it, that costs more tokens than allowed."""
        size = f"the request counts {tokens} tokens (each once for every hypothesis or pass)"
        return APIError(413, "too_large", f"{size}, and the limit of this server is {limit:,}; send less")

    async def collect_results(self, request: PendingRequest) -> list[bytes]:
        """Wait for the results of all items; return them in order, as JSON."""
        results = [b""] * len(request.items)
        async for event in self.stream_events(request):
            if event["kind"] == "result":
                results[event["item"]] = event["json"]
        return results

    async def stream_events(self, request: PendingRequest) -> AsyncIterator[JSONObject]:
        """Yield tokens and results until all results have arrived; in any case, release the request at the end."""
        missing = len(request.items)
        try:
            while missing:
                event = await request.events.get()
                if isinstance(event, APIError):
                    raise event
                missing -= event["kind"] == "result"
                yield event
        finally:
            self.release(request)

    @property
    def pending_tokens(self) -> int:
        """The tokens of all requests that are queued or running."""
        return sum(self.pending.values())

    def retry_after(self) -> int:
        """Estimate the seconds until the pending tokens are done, from 1 to 30."""
        return min(max(math.ceil(self.pending_tokens / self.tokens_per_second), 1), 30) if self.tokens_per_second else 1

    # -- the end of a request ----------------------------------------------------------------------------------------

    def expire(self, request: PendingRequest) -> None:
        """Fail a request with a 504: its deadline has passed."""
        text = f"the request was not done within {self.settings.deadline_s:g} seconds; send less, or try again later"
        self.fail(request, APIError(504, "deadline", text))

    def abort_all(self) -> None:
        """Fail all requests, queued and running, with a 503: the server shuts down."""
        text = "the server shuts down before this request is done; send it to another server, or later"
        running = [request for job in self.running for request in job.requests]
        for request in dict.fromkeys([*self.queue.requests, *running]):
            self.fail(request, APIError(503, "ending", text, retry_after=5))

    def fail(self, request: PendingRequest, error: APIError) -> None:
        """Raise an error in the coroutine that waits for a request, and release the request."""
        request.events.put_nowait(error)
        self.release(request)

    def release(self, request: PendingRequest) -> None:
        """Remove a request from queue, timer and token count, once; cancel jobs that nobody waits for any more."""
        if request.is_released:
            return
        request.is_released = True
        if request.deadline_timer is not None:
            request.deadline_timer.cancel()
        self.queue.remove(request)
        self.pending[request.is_small] -= request.unscheduled_cost
        while request.unscheduled:
            request.schedule_next()
        for job, worker in self.running.items():
            if job.result_count < len(job.items) and all(other.is_released for other in job.requests):
                worker.cancel(job.id)

    # -- jobs --------------------------------------------------------------------------------------------------------

    async def dispatch_jobs(self, worker: WorkerHandle) -> None:
        """Run one job after another on a worker, forever, and update the measured tokens per second."""
        loop = asyncio.get_running_loop()
        while True:
            await worker.ready.wait()
            async with self.dispatch_lock:
                await self.has_work.wait()
                await self.wait_for_batch()
                job = self.next_job() if worker.ready.is_set() else None
            if job is None:
                continue
            started = loop.time()
            self.running[job] = worker
            fingerprint = self.tokenizers[job.requests[0].model].codec_fingerprint
            try:
                outcome = await worker.run_job(job.to_message(fingerprint), partial(self.handle_output, job))
            except WorkerLost:
                outcome = {"kind": "lost"}
            finally:
                del self.running[job]
                self.has_work.set()  # a long job may wait for the end of this one
            seconds = loop.time() - started
            self.finish_job(job, outcome)
            self.on_job_finished(len(job.items), outcome["kind"])
            if outcome["kind"] in ("done", "cancelled"):
                self.queue.note_speed(job, seconds, outcome["kind"] == "done")
            if outcome["kind"] == "done":
                rate = len(self.pool.workers) * job.cost / max(seconds, 1e-6)
                smoothing = RATE_SMOOTHING if self.tokens_per_second else 1.0
                self.tokens_per_second += smoothing * (rate - self.tokens_per_second)

    async def wait_for_batch(self) -> None:
        """Wait until batch_wait_ms after the next request's arrival, unless its job is full or exclusive."""
        loop = asyncio.get_running_loop()
        first = self.queue.next_request(self.may_run_long())
        if first is None or first.is_exclusive:
            return
        wait = first.arrival_time + self.settings.batch_wait_ms / 1000 - loop.time()
        if wait > 0 and self.queue.cost_with_key(first.batch_key) < self.queue.max_job_cost(first):
            await asyncio.sleep(wait)

    def next_job(self) -> BatchJob | None:
        """Make the next job; None if no request may run."""
        job = self.queue.next_job(asyncio.get_running_loop().time(), self.may_run_long())
        if job is None or not self.queue:
            self.has_work.clear()
        return job

    def may_run_long(self) -> bool:
        """Whether a long item may take a worker: of several, one is kept free of them."""
        workers = len(self.pool.workers)
        return workers == 1 or sum(job.is_long for job in self.running) < workers - 1

    def handle_output(self, job: BatchJob, message: JSONObject) -> None:
        """Pass a token or a result of a job on to its request, unless that is released."""
        request, i = job.items[message["item"]]
        if message["kind"] == "result":
            job.result_count += 1
            request.answered.add(i)
        else:
            job.token_counts[message["item"]] += 1
            if job.token_counts[message["item"]] <= request.token_counts[i]:  # sent before the job was retried
                return
            request.token_counts[i] += 1
        if not request.is_released:
            request.events.put_nowait(message | {"item": i})

    def finish_job(self, job: BatchJob, outcome: JSONObject) -> None:
        """Free the tokens of a job; if it failed, retry its requests one by one, or fail the only one."""
        for request, i in job.items:
            self.pending[request.is_small] -= request.costs[i]
        if outcome["kind"] == "done":
            return
        if outcome["kind"] == "failed" and len(job.requests) > 1:
            self.retry_separately(job)
        else:
            for request in job.requests:
                self.fail(request, job_error(outcome))

    def retry_separately(self, job: BatchJob) -> None:
        """Put the unanswered items of a job's requests back into the queue, as exclusive requests."""
        for request in job.requests:
            indices = [i for other, i in job.items if other is request and i not in request.answered]
            if request.is_released or not indices:
                continue
            self.pending[request.is_small] += sum(request.costs[i] for i in indices)
            request.put_back(indices)
            request.is_exclusive, request.waiting_since = True, request.arrival_time
            self.queue.add(request)
            self.has_work.set()


def job_error(outcome: JSONObject) -> APIError:
    """Return the APIError for the requests of a job that failed, or whose worker died."""
    if outcome["kind"] == "failed":
        retry = 1 if outcome["status"] == 503 else None
        return APIError(outcome["status"], outcome["code"], outcome["message"], retry_after=retry)
    return APIError(503, "worker_lost", "the worker process of this request died; try again in a moment", retry_after=1)


def count_hypotheses(options: JSONObject, search: JSONObject) -> int:
    """Bound the hypotheses per source by the request: its beam or num_samples, else the default of its search."""
    requested = max(int(options.get("beam", 0)), int(options.get("num_samples", 0)))
    default = GenerationOptions().beam + 1  # of a search that is not the model's own
    return requested or max(search["beam"], default if "search" in options else 1)


def prediction_cost(tokens: int, options: JSONObject, search: JSONObject) -> int:
    """Bound the work of a prediction: its tokens, times the hypotheses, and more if its outputs may be longer."""
    own, requested = (view_routes.max_output_length(tokens, values) for values in (search, search | options))
    longer = max((tokens + requested) / (tokens + own), 1.0)
    passes = count_hypotheses(options, search)
    if options.get("attention"):
        passes = 2 * passes + 1  # no engine searches with attention; the weights take a pass of their own
    return max(math.ceil(tokens * passes * longer), 1)


def uses_sampling(options: JSONObject, search: JSONObject) -> bool:
    """Whether a request's search may sample, so that its outputs depend on a source's index in the request."""
    if "search" in options:
        name = options["search"] if isinstance(options["search"], str) else options["search"]["name"]
        return name not in ("beam", "greedy", "diverse")
    return search["is_sampling"] and "beam" not in options
