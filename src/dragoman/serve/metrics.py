"""What the server counts, in Prometheus' text form, and the middleware that counts requests and catches our errors.

    dragoman_requests_total{route, code}   dragoman_request_seconds{route}   dragoman_in_flight
    dragoman_queue_tokens   dragoman_job_items   dragoman_jobs_running   dragoman_jobs_total{outcome}
    dragoman_workers_ready   dragoman_worker_restarts_total

All are of this process since it started; a client that left before its answer counts with the code 499.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.responses import JSONResponse

from dragoman.serve.schema import Refused

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from dragoman.serve.batcher import Batcher
    from dragoman.serve.worker_pool import Workers

logger = logging.getLogger("dragoman.serve")

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
GONE = 499  # the code counted for a client that left before its answer


class Metrics:
    """The counters of one server, in a registry of their own."""

    def __init__(self, batcher: Batcher, workers: Workers) -> None:
        self.batcher, self.workers = batcher, workers
        self.registry = CollectorRegistry()
        where: Any = {"registry": self.registry}
        self.requests = Counter("dragoman_requests", "Answers by route and code.", ["route", "code"], **where)
        self.seconds = Histogram("dragoman_request_seconds", "From head to end.", ["route"], buckets=SECONDS, **where)
        self.in_flight = Gauge("dragoman_in_flight", "Requests being answered.", **where)
        self.queue = Gauge("dragoman_queue_tokens", "Tokens waiting and at work.", **where)
        self.items = Histogram(
            "dragoman_job_items", "Inputs that went through a worker together.", buckets=ITEMS, **where
        )
        self.jobs = Counter("dragoman_jobs", "Jobs by what became of them.", ["outcome"], **where)
        self.running = Gauge("dragoman_jobs_running", "Jobs at work.", **where)
        self.ready = Gauge("dragoman_workers_ready", "Workers that answer.", **where)
        self.restarts = Counter("dragoman_worker_restarts", "Workers that were replaced.", **where)
        self.restarted = 0  # counted already
        batcher.on_job = self.job

    def job(self, size: int, outcome: str) -> None:
        self.items.observe(size)
        self.jobs.labels(outcome).inc()

    def text(self) -> bytes:
        self.queue.set(self.batcher.held)
        self.running.set(len(self.batcher.running))
        self.ready.set(self.workers.ready)
        self.restarts.inc(self.workers.restarts - self.restarted)
        self.restarted = self.workers.restarts
        return generate_latest(self.registry)


class Counted:
    """ASGI middleware: every request is counted once, and an error of ours is logged once and told without details."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, began = GONE, time.perf_counter()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.metrics.in_flight.inc()
        try:
            await self.app(scope, receive, noted)
        except Exception:
            logger.exception("%s %s failed", scope["method"], route_of(scope))
            if status == GONE:  # nothing was sent yet
                problem = Refused(500, "internal", "the server failed on this request; its log says how")
                await JSONResponse(problem.body(), problem.status)(scope, receive, noted)
        finally:
            self.metrics.in_flight.dec()
            route = route_of(scope)
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - began)


def route_of(scope: Scope) -> str:
    """The route's pattern: a path that nobody serves makes no series of its own."""
    return getattr(scope.get("route"), "path", None) or "other"
