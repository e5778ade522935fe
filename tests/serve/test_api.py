"""Over HTTP comes what the Python API gives, and whatever is refused has one shape."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dragoman.cli.serve import parse_model_arguments
from dragoman.core.errors import ModelError, UserError
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import Part
from dragoman.inference import pipeline
from dragoman.inference.pipeline import Pipeline
from dragoman.inference.prediction import Prediction
from dragoman.serve import schema
from dragoman.serve.schema import PredictRequest

Events = Callable[[str], list[tuple[str, Any]]]

SOURCES = ["abc", "hgfedcba", "", "a", "deadbeef"]


@pytest.fixture(scope="module")
def here(models: Path) -> Pipeline:
    return pipeline.load(models / "small", "cpu")


def same(result: dict[str, Any], prediction: Prediction) -> None:
    for key in ("text", "tokens", "finish_reason", "source_tokens", "source_truncated"):
        assert result[key] == getattr(prediction, key)
    for key in ("score", "log_prob", "log_probs"):
        assert result[key] == pytest.approx(getattr(prediction, key), abs=1e-4)
    assert len(result["alternatives"]) == len(prediction.alternatives)
    for other, alternative in zip(result["alternatives"], prediction.alternatives, strict=True):
        same(other, alternative)


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"beam": 1}, {"beam": 4, "nbest": 3}], ids=str)
def test_predict_gives_what_the_python_api_gives(server: Any, here: Pipeline, options: dict[str, int]) -> None:
    found = server.predict(*SOURCES, **options).json()
    assert found["model"] == "small"
    for result, prediction in zip(found["results"], here.predict(SOURCES, **options), strict=True):
        same(result, prediction)


def test_constraints_hold_over_http(server: Any, here: Pipeline) -> None:
    constraints: dict[str, Any] = {"prefix": "ba", "force_phrases": ["cd"], "forbid_phrases": ["h"]}
    options = constraints | {"beam": 6, "min_new_tokens": 5, "max_new_tokens": 6, "no_repeat_ngram_size": 2}
    (result,) = server.predict("abc", **options).json()["results"]
    assert result["text"].startswith("ba")
    assert "cd" in result["text"]
    assert "h" not in result["text"]
    assert 5 <= len(result["tokens"]) <= 6
    assert len({result["text"][i : i + 2] for i in range(len(result["text"]) - 1)}) == len(result["text"]) - 1
    same(result, here.predict(["abc"], GenerationOptions(**options))[0])


def test_attention_comes_on_request(server: Any, here: Pipeline) -> None:
    (result,) = server.predict("abc", beam=1, attention=True).json()["results"]
    (prediction,) = here.predict(["abc"], beam=1, attention=True)
    assert prediction.attention is not None
    assert [sum(row) for row in result["attention"]] == pytest.approx([1.0] * len(result["attention"]), abs=1e-5)
    for row, truth in zip(result["attention"], prediction.attention.tolist(), strict=True):
        assert row == pytest.approx(truth, abs=1e-5)


def test_scores_are_those_of_the_python_api(server: Any, here: Pipeline) -> None:
    pairs = [("abc", "cba"), ("h", ""), ("", "abcd")]
    body = {"inputs": [{"source": source, "target": target} for source, target in pairs]}
    found = server.client.post("/v1/score", json=body).json()["results"]
    for result, truth in zip(found, here.token_scores(pairs), strict=True):
        assert result["log_probs"] == pytest.approx(truth, abs=1e-5)
        assert result["log_prob"] == pytest.approx(sum(truth), abs=1e-4)


def test_the_models_are_listed_with_an_example_that_can_be_sent(server: Any) -> None:
    listed = server.client.get("/v1/models").json()["models"]
    assert [model["name"] for model in listed] == ["small", "tagged", "endless", "plodding"]
    assert listed[1]["languages"] == ["de", "fr"]
    assert listed[1]["shape"]["encoder"] == "transformer"
    assert listed[3]["shape"]["decoder"] == "rnn"
    for model in listed[:2]:
        assert server.predict(model["example"], model=model["name"]).status_code == 200


def test_a_language_can_be_asked_for(server: Any, models: Path) -> None:
    truth = pipeline.load(models / "tagged", "cpu")
    inputs = [{"source": "abcdefgh", "target_lang": language} for language in ("de", "fr")]
    found = server.predict(*inputs, model="tagged", beam=1).json()["results"]
    assert [result["source_tokens"][0] for result in found] == ["<to:de>", "<to:fr>"]
    for result, item in zip(found, inputs, strict=True):
        same(result, truth.predict([pipeline.Example(**item)], beam=1)[0])


# -- events ------------------------------------------------------------------------------------------------------------


def test_the_tokens_of_a_stream_are_those_of_the_results(server: Any, events: Events) -> None:
    alone = server.predict(*SOURCES, beam=1).json()["results"]
    answer = server.predict(*SOURCES, beam=1, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = events(answer.text)
    assert found[-1] == ("done", {})
    told: dict[int, list[str]] = {i: [] for i in range(len(SOURCES))}
    results = {}
    for name, data in found[:-1]:
        if name == "token":
            assert data["index"] not in results, "a token after its result"
            told[data["index"]].append(data["token"])
        else:
            results[data.pop("index")] = data
    for i, truth in enumerate(alone):
        assert told[i] == results[i]["tokens"] == truth["tokens"]
        assert results[i]["log_probs"] == pytest.approx(truth["log_probs"], abs=1e-5)


def test_tokens_come_while_the_search_still_runs(server: Any) -> None:
    body = {"inputs": ["abc"], "model": "plodding", "beam": 1, "stream": True}
    with server.client.stream("POST", "/v1/predict", json=body) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("event"))
        assert [next(lines) for _ in range(5)] == ["event: token"] * 5  # of 200,000, and then we leave


def test_a_beam_sends_results_alone(server: Any, events: Events) -> None:
    found = events(server.predict("abc", "de", beam=3, stream=True).text)
    assert sorted((name, data.get("index")) for name, data in found[:-1]) == [("result", 0), ("result", 1)]
    assert found[-1] == ("done", {})


def test_a_stream_that_a_worker_refuses_says_so_as_an_event(server: Any, events: Events) -> None:
    (found,) = events(server.predict("abc", prefix="zzz", stream=True).text)
    assert found[0] == "error"
    assert "vocabulary" in found[1]["message"]


# -- refusals ----------------------------------------------------------------------------------------------------------

REFUSED = [
    ({"inputs": ["a"], "beam": 0}, 422, "beam"),
    ({"inputs": ["a"], "beam": 10**6}, 422, "beam"),
    ({"inputs": ["a"], "beam": 33}, 422, "beam"),
    ({"inputs": ["a"], "beam": 2.0}, 422, "beam"),
    ({"inputs": ["a"], "beam": 2, "nbest": 3}, 422, None),
    ({"inputs": ["a"], "max_new_tokens": -1}, 422, "max_new_tokens"),
    ({"inputs": ["a"], "max_new_tokens": 5000}, 422, "max_new_tokens"),
    ({"inputs": ["a"], "bam": 1}, 422, "bam"),
    ({"inputs": ["a"], "\ud800": 1}, 422, None),
    ({"inputs": []}, 422, "inputs"),
    ({"inputs": ["a"] * 257}, 422, "inputs"),
    ({"inputs": ["a", 3]}, 422, "inputs[1]"),
    ({"inputs": ["a", {"text": "b"}]}, 422, "inputs[1].source"),
    ({"inputs": ["a", "\ud800"]}, 422, "inputs[1].source"),
    ({"inputs": ["a", "b" * 50_001]}, 422, "inputs[1]"),
    ({"inputs": ["a" * 50_000] * 5}, 413, None),
    ({"inputs": [{"source": "a", "target_lang": "xx"}]}, 422, "inputs[0]"),
    ({"inputs": ["a"], "model": "smal"}, 404, "model"),
    ({"inputs": ["a"], "beam": 1, "force_phrases": ["b"]}, 422, None),
    ({"inputs": ["a"], "prefix": "z"}, 422, None),
    ([], 422, None),
]


@pytest.mark.parametrize(("body", "status", "field"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_refusal_names_the_field_and_says_why_in_a_sentence(
    server: Any, body: Any, status: int, field: str | None
) -> None:
    answer = server.client.post("/v1/predict", content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "field"}
    assert error["field"] == field
    assert len(error["message"]) > 10
    assert "\n" not in error["message"]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text('ab,"\\\\[{]}\\u00e9', max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text('ab,"\\\\[', max_size=4), inner, max_size=5),
)


@given(JSON_VALUES, st.booleans())
def test_the_values_of_a_body_are_counted_without_parsing_it(value: Any, ascii: bool) -> None:
    def count(part: Any) -> int:
        inside = part.values() if isinstance(part, dict) else part if isinstance(part, list) else []
        return 1 + sum(map(count, inside))

    data, true_count = json.dumps(value, ensure_ascii=ascii).encode(), count(value)
    assert true_count <= schema.count_values(data, 10_000) <= 2 * true_count  # an empty list may count as two
    assert schema.count_values(data, 1) >= min(true_count, 2)


WIDE = [
    pytest.param({"inputs": ["a"], "choices": [0] * 20_000}, None, id="values"),
    pytest.param({"inputs": ["a"], **{str(i): i for i in range(100)}}, None, id="fields"),
    pytest.param({"inputs": [{str(i): i for i in range(100)}]}, None, id="fields of an input"),
    pytest.param({"inputs": [0] * 257}, "inputs", id="wrong inputs"),
]


@pytest.mark.parametrize(("body", "field"), WIDE)
def test_counts_are_checked_before_types(server: Any, body: Any, field: str | None) -> None:
    error = server.client.post("/v1/predict", json=body).json()["error"]
    assert (error["code"], error["field"]) == ("too_many", field)


@pytest.mark.parametrize("name", ["inputs", "force_phrases", "forbid_phrases", "choices"])
def test_a_list_of_wrong_items_has_one_error(name: str) -> None:
    with pytest.raises(ValidationError) as found:
        PredictRequest.model_validate({"inputs": ["a"], name: [0] * 1000})
    assert found.value.error_count() == 1


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_that_a_foreign_page_could_send_without_asking_is_not_read_as_json(server: Any, kind: str) -> None:
    headers = {"Content-Type": kind} if kind else {}
    assert server.client.post("/v1/predict", content=b'{"inputs": ["a"]}', headers=headers).status_code == 415


def test_unknown_paths_and_methods_get_errors_in_the_same_format(server: Any) -> None:
    for answer, status in [
        (server.client.get("/nowhere"), 404),
        (server.client.get("/static/views/../../pipeline.py"), 404),
        (server.client.get("/static/page/nothing.js"), 404),
        (server.client.get("/v1/predict"), 405),
        (server.client.post("/v1/inspect/nothing", json={}), 404),
        (server.client.post("/v1/score", json={"inputs": ["a text without a target"]}), 422),
        (server.client.post("/v1/predict", content=b"{", headers={"content-type": "application/json"}), 422),
    ]:
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"code", "message", "field"}


def test_a_view_is_what_python_gives(server: Any, here: Pipeline) -> None:
    steps = pytest.importorskip("dragoman.inspection.views.steps")
    found = server.client.post("/v1/inspect/steps", json={"source": "abc", "top": 3, "prefix": [5]}).json()
    truth = steps.trace_steps(here, "abc", prefix=(5,), top=3)
    assert [step["token"] for step in found["free"]["steps"]] == [step["token"] for step in truth["free"]["steps"]]
    assert found["free"]["log_prob"] == pytest.approx(truth["free"]["log_prob"], abs=1e-4)
    answer = server.client.post("/v1/inspect/steps", json={"source": "abc", "prefix": [10_000]})
    assert (answer.status_code, "prefix" in answer.json()["error"]["message"]) == (422, True)


def test_positions_are_shown_up_to_the_length_that_the_view_has(server: Any, here: Pipeline) -> None:
    described = server.client.get("/openapi.json").json()["components"]["schemas"]["PositionsRequest"]["properties"]
    longest = int(described["length"]["maximum"])
    view = pytest.importorskip("dragoman.inspection.views.positions")
    scheme = Part("sinusoidal")
    assert len(view.scheme_similarity(scheme, 16, longest)["matrix"]) == longest
    with pytest.raises(UserError, match=f"from 1 to {longest}"):
        view.scheme_similarity(scheme, 16, longest + 1)
    answer = server.client.post("/v1/inspect/positions", json={"length": longest + 1})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "length")


TOO_LONG = [
    ("/v1/score", {"inputs": [{"source": "a", "target": "b" * 50_001}]}, "inputs[0]"),
    ("/v1/inspect/alignment", {"source": "a" * 50_001}, "source"),
    ("/v1/inspect/alignment", {"source": "a", "target": "b" * 50_001}, "target"),
    ("/v1/inspect/beam", {"source": "a", "target": "b" * 50_001}, "target"),
    ("/v1/inspect/embedding_space", {"sources": ["a", "b" * 50_001]}, "sources[1]"),
    ("/v1/inspect/probes", {"sources": ["a", {"source": "b" * 50_001}]}, "sources[1]"),
    ("/v1/inspect/probes", {"minimal_pairs": [["a", "b" * 50_001]]}, "minimal_pairs[0][1]"),
    ("/v1/inspect/accuracy_by_position", {"inputs": [{"source": "a", "target": "b" * 50_001}]}, "inputs[0]"),
]


@pytest.mark.parametrize(("path", "body", "field"), TOO_LONG)
def test_no_text_of_a_request_has_more_characters_than_max_text(
    server: Any, path: str, body: dict[str, Any], field: str
) -> None:
    answer = server.client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["field"]) == (422, "too_long", field)
    assert "has 50,001 characters; send at most 50,000" in error["message"]


FORCED = [
    ("/v1/score", {"inputs": [{"source": "a", "target": "b" * 1024}]}, "target"),
    ("/v1/score", {"inputs": [{"source": "a" * 1024, "target": "b"}]}, "source"),
    ("/v1/inspect/alignment", {"source": "a", "target": "b" * 1024}, "target"),
    ("/v1/inspect/head_effects", {"source": "a", "target": "b" * 1024}, "target"),
    ("/v1/inspect/saliency", {"source": "a" * 1024, "target": "b"}, "source"),
    ("/v1/inspect/steps", {"source": "a", "target": "b" * 1024}, "target"),
    ("/v1/inspect/beam", {"source": "a", "target": "b" * 1024}, "target"),
    ("/v1/inspect/accuracy_by_position", {"inputs": [{"source": "a", "target": "b" * 1024}]}, "target"),
]


@pytest.mark.parametrize(("path", "body", "side"), FORCED)
def test_a_pair_far_longer_than_in_training_is_refused_though_positions_have_no_end(
    server: Any, here: Pipeline, path: str, body: dict[str, Any], side: str
) -> None:
    assert here.model.max_target_positions is None  # on one's own machine there is no limit
    assert len(here.token_scores([("a", "b" * 1024)])[0]) == 1025
    answer = server.client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, "refused")
    assert f"the {side} has 1,025 tokens, and the model reads" in error["message"]
    assert "1,024" in error["message"]
    assert "shorten" in error["message"]


def test_the_quality_view_accepts_such_a_pair_but_has_no_perplexity(server: Any) -> None:
    inputs = [{"source": "a", "target": "b" * 1024}]
    answer = server.client.post("/v1/inspect/quality", json={"inputs": inputs, "metric": "exact"})
    assert answer.status_code == 200, answer.text
    [model] = answer.json()["models"]
    assert model["n"] == 1
    assert model["perplexity"] is None


# -- for whoever watches -----------------------------------------------------------------------------------------------


def test_requests_are_counted_by_route_and_code(server: Any) -> None:
    name = 'dragoman_requests_total{code="%s",route="/v1/predict"}'
    good, bad = server.metric(name % 200), server.metric(name % 422)
    server.predict("a")
    server.predict("a", beam=0)
    assert (server.metric(name % 200) - good, server.metric(name % 422) - bad) == (1, 1)


def test_a_server_with_a_worker_is_live_and_ready(server: Any) -> None:
    assert server.client.get("/health/live").json() == {"live": True}
    assert server.client.get("/health/ready").json() == {"ready": True, "workers": 1, "answering": 1}


def test_the_api_describes_itself(server: Any) -> None:
    described = server.client.get("/openapi.json").json()
    assert {"/v1/predict", "/v1/score", "/v1/models", "/v1/inspect/steps"} <= set(described["paths"])
    assert "/v1/predict" in server.client.get("/docs").text


# -- starting ----------------------------------------------------------------------------------------------------------


def listening(port: int) -> list[str]:
    """The addresses on which someone listens on a port, as the kernel writes them."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().split("\n")[1:] if line]
    return [line[1].split(":")[0] for line in lines if line[3] == "0A" and int(line[1].split(":")[1], 16) == port]


def test_by_default_only_this_machine_can_connect(server: Any) -> None:
    assert listening(server.port) == ["0100007F"]  # 127.0.0.1
    assert "warning" not in server.stderr()


def command(folder: Path, *args: str, python: tuple[str, ...] = ("-m", "dragoman")) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *python, "serve", *args], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_a_port_in_use_is_one_sentence_and_everyones_server_warns_first(server: Any, models: Path) -> None:
    code, said = command(models, "small", "--host", "0.0.0.0", "--port", str(server.port))
    warning, error = said.strip().split("\n")
    assert code == 2
    assert warning.startswith("warning: everyone who can reach 0.0.0.0")
    assert str(server.port) in error
    assert "in use" in error


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["smal"], "did you mean 'small'?"),
        (["small", "small"], "two models are called 'small'"),
        (["small", "--set", "deadlines=3"], "did you mean 'deadline_s'?"),
        (["small", "--set", "drain_s=100", "--set", "max_beam=0"], "2 problems"),
        (["small", "--key-file", "nowhere.txt"], "nowhere.txt"),
    ],
    ids=str,
)
def test_a_mistake_on_the_command_line_is_explained(
    models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, args: list[str], says: str
) -> None:
    from dragoman.cli.main import main

    monkeypatch.chdir(models)
    monkeypatch.setattr(sys, "argv", ["dragoman", "serve", *args])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("text", ["small+", "+small", "both=small++small"])
def test_a_plus_beside_nothing_is_refused_before_any_worker_starts(
    models: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(models)
    with pytest.raises(ModelError, match="write MODEL"):
        parse_model_arguments([text])


def test_a_missing_extra_names_what_to_install(models: Path) -> None:
    hidden = "import sys; sys.modules['uvicorn'] = None; from dragoman.cli.main import main; main()"
    code, said = command(models, "small", python=("-c", hidden))
    assert code == 2
    assert "pip install 'dragoman[serve]'" in said
