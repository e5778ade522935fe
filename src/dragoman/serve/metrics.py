"""The server's Prometheus metrics, and the middleware that counts requests and logs unhandled exceptions.

All are of this process since it started. A client that disconnects before its response counts with the code 499.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.responses import JSONResponse

from dragoman.serve.schema import APIError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from dragoman.serve.batcher import Batcher
    from dragoman.serve.worker_pool import WorkerPool

logger = logging.getLogger("dragoman.serve")

LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
JOB_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CLIENT_CLOSED_REQUEST = 499  # nginx's code for a client that disconnects before its response


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self, batcher: Batcher, pool: WorkerPool) -> None:
        self.batcher, self.pool = batcher, pool
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "dragoman_requests", "Responses by route and code.", ["route", "code"], registry=registry
        )
        self.refused = Counter(
            "dragoman_refused",
            "Requests refused before any route, by the code of the error.",
            ["code"],
            registry=registry,
        )
        self.latency = Histogram(
            "dragoman_request_seconds",
            "From the head of a request to the end of its response.",
            ["route"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.in_flight = Gauge("dragoman_in_flight", "Requests in flight.", registry=registry)
        self.queue_tokens = Gauge("dragoman_queue_tokens", "Tokens queued and running.", registry=registry)
        self.job_items = Histogram("dragoman_job_items", "Inputs per job.", buckets=JOB_SIZE_BUCKETS, registry=registry)
        self.jobs = Counter("dragoman_jobs", "Jobs by outcome.", ["outcome"], registry=registry)
        self.jobs_running = Gauge("dragoman_jobs_running", "Jobs running.", registry=registry)
        self.workers_ready = Gauge("dragoman_workers_ready", "Workers that are ready.", registry=registry)
        self.restarts = Counter("dragoman_worker_restarts", "Workers that were replaced.", registry=registry)
        self.counted_restarts = 0
        batcher.on_job_finished = self.observe_job

    def observe_job(self, size: int, outcome: str) -> None:
        """Count a finished job by its outcome, and its `size` inputs."""
        self.job_items.observe(size)
        self.jobs.labels(outcome).inc()

    def observe_refusal(self, code: str) -> None:
        """Count a request that was refused for its head, key or size, or a connection that sent no valid request."""
        self.refused.labels(code).inc()

    def render(self) -> bytes:
        """Update the gauges from the batcher and the pool; return all metrics in Prometheus' text format."""
        self.queue_tokens.set(self.batcher.pending_tokens)
        self.jobs_running.set(len(self.batcher.running))
        self.workers_ready.set(self.pool.ready_count)
        self.restarts.inc(self.pool.restart_count - self.counted_restarts)
        self.counted_restarts = self.pool.restart_count
        return generate_latest(self.registry)


class MetricsMiddleware:
    """ASGI middleware: counts every request once; logs an unhandled exception and answers 500 without details."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, started = CLIENT_CLOSED_REQUEST, time.perf_counter()

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.metrics.in_flight.inc()
        try:
            await self.app(scope, receive, send_and_note_status)
        except Exception:
            logger.exception("%s %s failed", scope["method"], route_pattern(scope))
            if status == CLIENT_CLOSED_REQUEST:  # nothing was sent yet
                error = APIError(500, "internal", "the server failed on this request; see its log")
                await JSONResponse(error.body(), error.status)(scope, receive, send_and_note_status)
        finally:
            self.metrics.in_flight.dec()
            route = route_pattern(scope)
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.latency.labels(route).observe(time.perf_counter() - started)


def route_pattern(scope: Scope) -> str:
    """Return the pattern of the matched route, or "other": unknown paths must not create time series."""
    return getattr(scope.get("route"), "path", None) or "other"
