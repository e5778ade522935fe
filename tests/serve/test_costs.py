"""What a request costs is an upper bound of its work, what costs too much is refused, and nobody waits for the rest."""

from __future__ import annotations

import asyncio
import inspect
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bench import planted_errors

from dragoman.checkpoint import model_folder
from dragoman.checkpoint.kept_examples import MAX_EXAMPLES
from dragoman.core.types import Example
from dragoman.inference import pipeline
from dragoman.inspection.training_index import build_index
from dragoman.inspection.views import find_view, register_view, views
from dragoman.serve import view_routes
from dragoman.serve.app import source_tokenizer
from dragoman.serve.batcher import Batcher, prediction_cost
from dragoman.serve.responses import describe_model
from dragoman.serve.schema import APIError
from dragoman.serve.settings import ServerSettings
from dragoman.serve.worker_pool import WorkerPool
from dragoman.serve.worker_process import WorkerProcess

from .conftest import save

LONG = "abcdefgh" * 125
TEXT, OTHER = LONG[:40], LONG[:40][::-1]
PAIR = {"source": {"source": TEXT}, "target": OTHER}
PAIRS = [{"source": TEXT[: 8 + i % 8], "target": OTHER[:8]} for i in range(30)]
# The fields of a request for each view, one that is as dear as may be in a second.
REQUESTS: dict[str, dict[str, Any]] = {
    "accuracy_by_position": {"inputs": PAIRS},
    "alignment": PAIR,
    "beam": {**PAIR, "beam": 8},
    "embedding_space": {"sources": [pair["source"] for pair in PAIRS]},
    "examples": {"count": 200},
    "head_effects": PAIR,
    "positions": {"length": 256},
    "probes": {"count": 60, "minimal_pairs": [["ab", "cd"]] * 10},
    "quality": {"inputs": PAIRS, "metric": "exact"},
    "saliency": PAIR,
    "sequential": {},
    "steps": {**PAIR, "prefix": [5] * 20},
}
SLACK = 3.0  # between two measurements of one thing


class Measured:
    """The batcher's costs for one model, and the seconds that a worker computes for them, in this process."""

    def __init__(self, folder: Path) -> None:
        loaded = pipeline.load(folder, "cpu")
        self.pool = WorkerPool(ServerSettings(workers=1), {"m": str(folder)})
        self.pool.models = {"m": describe_model("m", loaded)}
        self.pool.workers[0].ready.set()
        tokenizer = source_tokenizer(model_folder.load_codec(folder)[1], self.pool.models["m"])
        self.batcher = Batcher(self.pool.settings, self.pool, {"m": tokenizer})
        self.worker = WorkerProcess(open("/dev/null", "rb"), open("/dev/null", "wb"))  # noqa: SIM115
        self.worker.pipelines["m"], self.worker.codec_fingerprints["m"] = loaded, loaded.codec.fingerprint

    def cost(self, task: Any, items: list[Any], options: dict[str, Any]) -> int:
        return sum(asyncio.run(self.batcher.count_costs(task, "m", items, options)))

    def seconds(self, task: Any, items: list[Any], options: dict[str, Any]) -> float:
        """CPU seconds, the least of three: other processes' work does not count."""
        job = {"id": 1, "task": task, "model": "m", "options": options, "items": items, "first_index": 0}
        found = []
        for _ in range(3):
            began = time.thread_time()
            assert self.worker.run_job(job | {"codec_fingerprint": ""}) == {"kind": "done"}
            found.append(time.thread_time() - began)
        return min(found)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    torch.manual_seed(3)
    part = {"name": "transformer", "layers": 2, "heads": 4}
    kept = [Example(TEXT, OTHER)] * MAX_EXAMPLES
    return Measured(save(tmp_path_factory.mktemp("costs") / "model", part, kept=kept, endless=True))


@pytest.fixture(scope="module")
def unit(measured: Measured) -> float:
    """The seconds of one token that is read and answered by greedy search."""
    items, options = [{"source": TEXT[:8]}], {"beam": 1}
    return measured.seconds("predict", items, options) / measured.cost("predict", items, options)


def view_item(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A request as the route of a view passes it on, with all defaults."""
    body = view_routes.request_schema(name).model_validate(fields)
    return body.model_dump(exclude={"model"})


def test_every_view_is_measured_or_reads_only_files() -> None:
    assert {*REQUESTS, "replay", "blame"} == set(views.names)


def test_a_view_cannot_be_registered_without_its_cost() -> None:
    assert inspect.signature(register_view).parameters["cost"].default is inspect.Parameter.empty


@pytest.mark.parametrize("name", REQUESTS)
def test_the_cost_of_a_view_is_an_upper_bound_of_its_work(measured: Measured, unit: float, name: str) -> None:
    items, options = [view_item(name, REQUESTS[name])], {"view": name}
    cost = measured.cost("inspect", items, options)
    spent = measured.seconds("inspect", items, options) / unit
    print(f"{name}: {spent:.0f} of {cost:,}")
    assert spent < SLACK * cost


def test_the_cost_of_blame_is_an_upper_bound_of_its_work(tmp_path: Path) -> None:
    pairs = [(TEXT[i % 8 : 20 + i % 17], OTHER[i % 7 : 20 + i % 19]) for i in range(3_000)]
    trained = planted_errors.train(tmp_path, "transformer", [(x, " ".join(y)) for x, y in pairs], seed=1, steps=60)
    build_index(trained)
    assert trained.path is not None
    measured = Measured(trained.path)
    predicted = [{"source": TEXT[:8]}], {"beam": 1}
    unit = measured.seconds("predict", *predicted) / measured.cost("predict", *predicted)
    items, options = [view_item("blame", {**PAIR, "target": " ".join(OTHER)})], {"view": "blame"}
    spent = measured.seconds("inspect", items, options) / unit
    print(f"blame: {spent:.0f} of {measured.cost('inspect', items, options):,}")
    assert spent < SLACK * measured.cost("inspect", items, options)


@pytest.mark.parametrize(
    "options",
    [{"beam": 8}, {"beam": 1, "max_new_tokens": 400}, {"beam": 1, "max_length_ratio": 8.0}, {"attention": True}],
)
def test_the_cost_of_a_prediction_is_an_upper_bound_of_its_work(
    measured: Measured, unit: float, options: dict[str, Any]
) -> None:
    items = [{"source": TEXT}, {"source": TEXT[:10]}]
    cost = measured.cost("predict", items, options)
    assert measured.seconds("predict", items, options) < SLACK * unit * cost


def test_the_cost_of_scores_is_an_upper_bound_of_their_work(measured: Measured, unit: float) -> None:
    items = [{"source": TEXT, "target": OTHER}] * 5
    assert measured.seconds("score", items, {}) < SLACK * unit * measured.cost("score", items, {})


def test_a_prediction_that_may_be_longer_than_the_models_own_costs_more() -> None:
    search = {"beam": 4, "max_length_ratio": 2.0, "max_length_extra": 20}
    assert prediction_cost(10, {}, search) == 40
    assert prediction_cost(10, {"beam": 1}, search) == 10
    assert prediction_cost(10, {"beam": 1, "max_new_tokens": 5}, search) == 10
    assert prediction_cost(10, {"beam": 1, "max_new_tokens": 499}, search) == 100  # 510 positions, not 51
    assert prediction_cost(10, {"beam": 1, "min_new_tokens": 499}, search) == 100
    assert prediction_cost(10, {"beam": 1, "max_length_extra": 479}, search) == 100
    assert prediction_cost(0, {"beam": 1}, search) == 1


@pytest.mark.parametrize(
    ("view", "fields"),
    [
        ("probes", {"count": 2000}),
        ("probes", {"minimal_pairs": [["ab" * 30, "cd" * 30]] * 200}),
        ("saliency", {"source": LONG, "target": LONG}),
        ("saliency", {"source": LONG}),
        ("quality", {"inputs": [{"source": TEXT, "target": TEXT}] * 200, "beam": 32}),
        ("beam", {"source": LONG, "beam": 64}),
        ("embedding_space", {"sources": [TEXT] * 2000, "method": "tsne"}),
    ],
)
def test_what_costs_too_much_is_refused_before_it_starts(server: Any, view: str, fields: dict[str, Any]) -> None:
    before = server.metric('dragoman_jobs_total{outcome="done"}')
    answer = server.client.post(f"/v1/inspect/{view}", json=fields)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert "40,000" in answer.json()["error"]["message"]
    assert server.metric('dragoman_jobs_total{outcome="done"}') == before


def test_one_dear_input_is_refused_and_as_much_in_many_is_not(measured: Measured) -> None:
    def admit(texts: list[str], **options: Any) -> Callable[[], Any]:
        return lambda: measured.batcher.admit("predict", "m", [{"source": text} for text in texts], options)

    async def scenario() -> None:
        with pytest.raises(APIError) as refused:
            await admit([LONG], beam=41)()
        assert refused.value.status == 413
        request = await admit([LONG[:100]] * 40, beam=12)()
        assert sum(request.costs) > measured.pool.settings.item_tokens
        measured.batcher.release(request)

    asyncio.run(scenario())


def test_a_long_view_arrives_whole(server: Any, models: Path) -> None:
    text = LONG[:300]
    answer = server.client.post("/v1/inspect/alignment", json={"source": text, "target": text, "model": "endless"})
    assert len(answer.content) > 2 << 20  # three parts and more
    truth = find_view("alignment")(pipeline.load(models / "endless", "cpu"), text, text)
    assert [layer["kind"] for layer in answer.json()["maps"]] == [layer["kind"] for layer in truth["maps"]]
    assert answer.json()["target"] == truth["target"]


# -- a small request beside dear ones ----------------------------------------------------------------------------------

CLIENTS = 8  # of each route
WAIT_S = 2.0  # that one word may wait, on a machine that has nothing else to do
BUSY = 3.0  # times as long as that where other programs run, too
WORD = {"inputs": ["a"], "beam": 1, "model": "small"}
LINES = [{"source": TEXT, "target": OTHER}] * 120
# About the dearest request that each route serves with the default limits.
DEAREST: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": ("/v1/predict", {"inputs": [LONG[:600]] * 256, "beam": 1, "model": "small"}),
    "endless": ("/v1/predict", {"inputs": ["a"] * 180, "beam": 1, "max_new_tokens": 1000, "model": "endless"}),
    "plain": ("/v1/predict", {"inputs": [LONG[:700]] * 256, "beam": 1, "max_new_tokens": 20, "model": "plodding"}),
    "n-best": ("/v1/predict", {"inputs": [TEXT] * 150, "beam": 32, "nbest": 32, "model": "small"}),
    "one beam": ("/v1/predict", {"inputs": [LONG[:1000]], "beam": 32, "model": "small"}),
    "samples": ("/v1/predict", {"inputs": [LONG[:200]] * 20, "search": "sample", "num_samples": 32, "model": "small"}),
    "weights": ("/v1/predict", {"inputs": [LONG[:700]] * 20, "beam": 4, "attention": True, "model": "small"}),
    "stream": ("/v1/predict", {"inputs": [LONG[:600]] * 256, "beam": 1, "stream": True, "model": "small"}),
    "score": ("/v1/score", {"inputs": [{"source": LONG[:380], "target": LONG[:380]}] * 256, "model": "small"}),
    "one score": ("/v1/score", {"inputs": [{"source": LONG, "target": LONG}] * 90, "model": "plodding"}),
    "translate": ("/translate", {"q": [LONG[:600]] * 60, "source": "auto", "target": "small"}),
    "accuracy_by_position": ("", {"inputs": [{"source": LONG[:300], "target": LONG[:300]}] * 256}),
    "alignment": ("", {"source": LONG[:1000], "target": LONG[:1000]}),
    "beam": ("", {"source": LONG[:200], "beam": 64}),
    "embedding_space": ("", {"sources": [LONG[:100]] * 1900}),
    "examples": ("", {"count": 200}),
    "head_effects": ("", {"source": LONG[:1000], "target": LONG[:1000]}),
    "positions": ("", {"length": 256}),
    "probes": ("", {"count": 200}),
    "quality": ("", {"inputs": LINES, "metric": "chrf"}),
    "saliency": ("", {"source": LONG[:260], "target": LONG[:260]}),
    "sequential": ("", {}),
    "steps": ("", {"source": LONG[:1000], "target": LONG[:1000]}),
}
SERVED = {200, 413, 422, 429, 504}


@pytest.fixture(scope="module")
def pair(start: Callable[..., Any]) -> Iterator[Any]:
    """A server with two workers."""
    running = start("small", "endless", "plodding", "--workers", "2", "--set", "deadline_s=600")
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.stderr(), running.stderr()


async def post(port: int, path: str, body: dict[str, Any]) -> int:
    """Return the status of the answer to a request on a connection of its own."""
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    try:
        status = int((await reader.readline()).split()[1])
        while await reader.read(1 << 20):
            pass
        return status
    finally:
        writer.close()


async def waits_beside(port: int, names: list[str], seconds: float) -> tuple[list[float], dict[str, Counter[int]]]:
    """The seconds that greedy requests of one word took beside eight clients of each kind, and what those got."""
    statuses = {name: Counter[int]() for name in names}

    async def client(name: str) -> None:
        path, body = DEAREST[name]
        while True:
            statuses[name][await post(port, path or f"/v1/inspect/{name}", body)] += 1
            await asyncio.sleep(0.1)  # it may have been refused

    clients = [asyncio.create_task(client(name)) for name in names for _ in range(CLIENTS)]
    waits, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(0.1)
        began = time.monotonic()
        assert await post(port, "/v1/predict", WORD) == 200
        waits.append(time.monotonic() - began)
    failures = [client.exception() for client in clients if client.done()]
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    assert not failures
    return waits, statuses


def test_every_route_has_a_dearest_request() -> None:
    assert {*DEAREST} >= {*REQUESTS}


def test_a_word_waits_little_beside_dear_requests(pair: Any) -> None:
    waits, _ = asyncio.run(waits_beside(pair.port, ["score", "endless", "saliency"], 4.0))
    assert max(waits) < BUSY * WAIT_S


@pytest.mark.long
def test_a_word_waits_little_beside_the_dearest_requests_of_every_route(pair: Any, until: Callable[..., float]) -> None:
    late = []
    for title, names in [*((name, [name]) for name in DEAREST), ("all", list(DEAREST))]:
        waits, statuses = asyncio.run(waits_beside(pair.port, names, 30.0 if title == "all" else 5.0))
        codes, median, most = sum(statuses.values(), Counter[int]()), statistics.median(waits), max(waits)
        print(f"{title:22} {len(waits):3} words: {median:.2f} s, {most:.2f} at most, {dict(codes)}")
        assert set(codes) <= SERVED
        if median > WAIT_S or most > BUSY * WAIT_S:
            late.append(f"{title}: {most:.1f} s")
        until(lambda: pair.metric("dragoman_queue_tokens") == 0, 10)  # what nobody waits for is cancelled
    assert not late


@pytest.mark.long
def test_the_dearest_request_of_every_route_ends_beside_words_without_a_pause(pair: Any) -> None:
    async def scenario(name: str) -> int:
        async def words() -> None:
            while True:
                await post(pair.port, "/v1/predict", WORD)

        others = [asyncio.create_task(words()) for _ in range(4)]
        path, body = DEAREST[name]
        status = await post(pair.port, path or f"/v1/inspect/{name}", body)
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        return status

    ends = {name: asyncio.run(scenario(name)) for name in DEAREST}
    print(ends)
    assert set(ends.values()) <= {200}
