"""What a request costs is an upper bound of its work, and what costs too much is refused before it starts."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.checkpoint import model_folder
from dragoman.inference import pipeline
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
    return Measured(save(tmp_path_factory.mktemp("costs") / "model", part, endless=True))


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
    assert {*REQUESTS, "replay"} == set(views.names)


def test_a_view_cannot_be_registered_without_its_cost() -> None:
    assert inspect.signature(register_view).parameters["cost"].default is inspect.Parameter.empty


@pytest.mark.parametrize("name", REQUESTS)
def test_the_cost_of_a_view_is_an_upper_bound_of_its_work(measured: Measured, unit: float, name: str) -> None:
    items, options = [view_item(name, REQUESTS[name])], {"view": name}
    cost = measured.cost("inspect", items, options)
    spent = measured.seconds("inspect", items, options) / unit
    print(f"{name}: {spent:.0f} of {cost:,}")
    assert spent < SLACK * cost


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
