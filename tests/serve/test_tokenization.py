"""A text is tokenized once: the server counts its tokens, and the worker decodes from the ids it was sent."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.checkpoint import model_folder
from dragoman.core.types import Example
from dragoman.inference import pipeline
from dragoman.serve.app import source_tokenizer
from dragoman.serve.batcher import Batcher
from dragoman.serve.responses import describe_model
from dragoman.serve.settings import ServerSettings
from dragoman.serve.worker_pool import WorkerPool
from dragoman.serve.worker_process import WorkerProcess, decode_message, encode_message, read_message
from dragoman.text.codec import Codec


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language_model")
    decoder = {"name": "transformer", "layers": 1, "heads": 2, "source": "prefix"}
    value = {
        "data": {"train": "nowhere.tsv"},
        "tokenizer": {"joint": True},
        "model": {"width": 16, "tie": "all", "encoder": "none", "decoder": decoder},
        "training": {"objective": "lm"},
    }
    config = configs.validate(value, "a test")
    kind = config.tokenizer.source
    codec = learn_codec(kind, kind, True, "nfc", ["abcdefgh"], ["abcdefgh"], [])
    model = configs.build_model(config, len(codec.source), len(codec.target))
    model_folder.save(folder, config, model_folder.unique_weights(model), codec, {})
    return folder


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each text was tokenized."""
    counts: Counter[str] = Counter()
    encode_source, encode_phrase = Codec.encode_source, Codec.encode_phrase

    def count_source(self: Codec, example: Example, *args: Any, **options: Any) -> Any:
        counts[example.source] += 1
        return encode_source(self, example, *args, **options)

    def count_phrase(self: Codec, text: str, *args: Any, **options: Any) -> Any:
        counts[text] += 1
        return encode_phrase(self, text, *args, **options)

    monkeypatch.setattr(Codec, "encode_source", count_source)
    monkeypatch.setattr(Codec, "encode_phrase", count_phrase)
    return counts


class InProcessServer:
    """The batcher and one worker on one model, in this process; messages between them are serialized as over a pipe."""

    def __init__(self, folder: Path) -> None:
        loaded = pipeline.load(folder, "cpu")
        codec = model_folder.load_codec(folder)[1]
        self.pool = WorkerPool(ServerSettings(workers=1), {"m": str(folder)})
        self.pool.models = {"m": describe_model("m", loaded)}
        self.output = io.BytesIO()
        self.worker = WorkerProcess(io.BytesIO(), self.output)
        self.worker.pipelines["m"] = loaded
        self.worker.codec_fingerprints["m"] = loaded.codec.fingerprint
        self.tokenizer = source_tokenizer(codec, self.pool.models["m"])

    def run(self, task: Any, items: list[dict[str, Any]], options: dict[str, Any] | None = None) -> tuple[Any, int]:
        """The results of a request, and the tokens that it was admitted with."""

        async def admit() -> tuple[Any, int]:
            self.pool.workers[0].ready.set()
            batcher = Batcher(self.pool.settings, self.pool, {"m": self.tokenizer})
            await batcher.admit(task, "m", items, options or {})
            job = batcher.next_job()
            assert job is not None
            return job.to_message(self.tokenizer.codec_fingerprint), batcher.pending_tokens

        message, tokens = asyncio.run(admit())
        message = decode_message(encode_message(message)[4:])
        self.output.seek(0)
        self.output.truncate()
        assert self.worker.run_job(message) == {"kind": "done"}
        self.output.seek(0)
        results = []
        while (result := read_message(self.output)) is not None:
            results.append(json.loads(result["json"]))
        return results, tokens


def test_a_source_is_tokenized_once_and_costs_its_tokens(models: Path, calls: Counter[str]) -> None:
    truth = pipeline.load(models / "tagged", "cpu").predict([Example("deadbeef", target_lang="fr")], beam=2)[0]
    server = InProcessServer(models / "tagged")
    calls.clear()
    (result,), tokens = server.run("predict", [{"source": "deadbeef", "target_lang": "fr"}], {"beam": 2})
    assert calls == {"deadbeef": 1}
    assert tokens == 2 * len("deadbeef" + "t$")  # two hypotheses; the tag and </s> count
    assert (result["text"], result["source_tokens"]) == (truth.text, truth.source_tokens)


def test_a_pair_that_is_scored_is_tokenized_once(models: Path, calls: Counter[str]) -> None:
    (truth,) = pipeline.load(models / "small", "cpu").token_scores([("abc", "fade")])
    server = InProcessServer(models / "small")
    calls.clear()
    (result,), _ = server.run("score", [{"source": "abc", "target": "fade"}])
    assert calls == {"abc": 1, "fade": 1}
    assert result["log_probs"] == pytest.approx(truth, abs=1e-5)


def test_a_language_model_tokenizes_a_text_once(language_model: Path, calls: Counter[str]) -> None:
    loaded = pipeline.load(language_model, "cpu")
    (truth,), (scores,) = loaded.predict(["cab"], beam=1), loaded.token_scores(["cab"])
    server = InProcessServer(language_model)
    calls.clear()
    (result,), _ = server.run("predict", [{"source": "cab"}], {"beam": 1})
    assert (result["text"], calls) == (truth.text, {"cab": 1})
    (result,), _ = server.run("score", [{"source": "cab"}])
    assert (result["log_probs"], calls) == (pytest.approx(scores, abs=1e-5), {"cab": 2})


def test_a_worker_with_other_tokenizers_does_not_use_the_ids(models: Path, calls: Counter[str]) -> None:
    server = InProcessServer(models / "small")
    server.worker.codec_fingerprints["m"] = "of a model that was trained again in the same folder"
    calls.clear()
    server.run("predict", [{"source": "abc"}], {"beam": 1})
    assert calls == {"abc": 2}
