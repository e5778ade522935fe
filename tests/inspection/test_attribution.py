"""The training lines behind an answer: the formula against autograd, the index against plain loops, and planted errors
that must be named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from bench import planted_errors
from typer.testing import CliRunner

import dragoman
from dragoman.cli.main import build_app
from dragoman.core.errors import UserError
from dragoman.core.types import Example
from dragoman.data.batching import collate
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection import attribution, training_index
from dragoman.inspection.attribution import attribute, weigh_differences
from dragoman.inspection.training_index import build_index, index_folder, open_index
from dragoman.inspection.views.blame import COMPARED_TOKENS, blame_lines
from dragoman.serve import view_routes
from dragoman.serve.responses import describe_model

WRONG = {"bada": "k u k", "tilo": "m i"}  # planted: no rule leads to them


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A model of 40 words that knows them by heart, two of which have the pronunciation of another word."""
    words = planted_errors.plant_errors("words", 1, size=40, planted=0).right
    pairs = [*words.items(), *WRONG.items()]
    return planted_errors.train(tmp_path_factory.mktemp("planted"), "lstm", pairs, seed=1, steps=100)


@pytest.fixture
def copied(trained: Pipeline, tmp_path: Path) -> Pipeline:
    """The same model in a run folder of its own, without an index, to change things in."""
    assert trained.path is not None
    shutil.copytree(trained.path.parents[2], tmp_path / "copy", ignore=shutil.ignore_patterns("blame"))
    return trained_on(dragoman.load(tmp_path / "copy" / "run", "cpu"), tmp_path / "copy" / "train.tsv")


def trained_on(pipeline: Pipeline, file: Path, path: Path | None = None) -> Pipeline:
    """The pipeline with another training file, whose token stores are beside it, and another folder."""
    data = pipeline.config.data
    corpora = [corpus.model_copy(update={"path": str(file)}) for corpus in data.train]
    data = data.model_copy(update={"train": corpora, "cache": str(file.parent / "cache")})
    return replace(pipeline, config=pipeline.config.model_copy(update={"data": data}), path=path or pipeline.path)


def training_pairs(pipeline: Pipeline) -> list[list[str]]:
    text = Path(pipeline.config.data.train[0].path).read_text(encoding="utf-8")
    return [line.split("\t") for line in text.split("\n")[:-1]]


# -- the lines that are named ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", WRONG)
def test_a_wrong_line_is_named_first_for_the_answer_it_spoiled(trained: Pipeline, word: str) -> None:
    found = attribute(trained, word)
    assert found.output == WRONG[word]  # learned by heart
    first, pairs = found.lines[0], training_pairs(trained)
    assert [first.source, first.target] == [word, WRONG[word]] == pairs[first.line - 1]
    assert Path(first.file).read_text(encoding="utf-8").split("\n")[first.line - 1] == f"{word}\t{WRONG[word]}"
    assert first.share > 2 * found.lines[1].share


def test_shares_are_of_the_lines_compared_and_of_the_tokens_of_each(trained: Pipeline) -> None:
    found = attribute(trained, "bada", top=100)
    shares = [line.share for line in found.lines]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1.0, abs=1e-4)
    assert found.compared == len(found.lines) <= found.indexed == found.total == len(training_pairs(trained))
    for line in found.lines:
        assert sum(line.token_shares) == pytest.approx(1.0, abs=1e-4)
        assert len(line.token_shares) == len(found.tokens)
        assert len(line.piece_shares) == len(line.pieces)
        spoken = {found.tokens[i] for i, share in enumerate(line.token_shares) if share > 0}
        assert spoken <= set(line.pieces)  # it speaks for tokens that it has


def test_of_another_output_the_lines_behind_that_are_named(trained: Pipeline) -> None:
    (source, target), other = training_pairs(trained)[:1][0], training_pairs(trained)[1]
    assert attribute(trained, source, output=target).lines[0].source == source
    assert attribute(trained, other[0], output=target).output == target


def test_with_a_reference_only_what_departs_from_it_is_explained(trained: Pipeline) -> None:
    found = attribute(trained, "bada", reference="k u d")
    assert found.tokens == ["k", "u", "k", "</s>"]
    assert found.weights == [0.0, 0.0, 1.0, 0.0]
    for line in found.lines:
        assert line.token_shares[0] == line.token_shares[1] == line.token_shares[3] == 0
    assert found.lines[0].source == "bada"


@pytest.mark.parametrize(
    ("answer", "reference", "weights"),
    [
        ([5, 6, 2], [5, 7, 2], [0, 1, 0]),
        ([5, 6, 2], [5, 6, 2], [1, 1, 1]),  # nothing departs: all is explained
        ([5, 6, 8, 2], [5, 2], [0, 1, 1, 0]),
        ([5, 2], [5, 6, 2], [0, 1]),  # </s> stands where 6 is missing
        ([5], [5, 6], [1]),
    ],
)
def test_what_departs_from_a_reference(answer: list[int], reference: list[int], weights: list[float]) -> None:
    assert weigh_differences(answer, reference) == weights


# -- the formula -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["transformer", "rnn", "convolutional", "decoder_only"])
def test_errors_times_states_are_inner_products_of_the_output_layers_gradients(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline: Pipeline = request.getfixturevalue(kind)
    texts = ("the bee", "a road") if kind == "transformer" else ("ab", "dcd")
    rows = [pipeline.input_processor.encode_pair(Example(*pair)) for pair in (texts, texts[::-1])]
    model = pipeline.model
    grads, results = [], []
    for row in rows:
        result = model(collate([row], [0]))
        o, y = result.output.o[0].detach(), torch.tensor(list(row.target))
        each = []
        for t in range(len(y)):
            weight = model.output.weight.detach().clone().requires_grad_()
            logits = torch.nn.functional.linear(o[t], weight, None if model.output.bias is None else model.output.bias)
            loss = torch.nn.functional.cross_entropy(logits[None], y[t][None])
            each.append(torch.autograd.grad(loss, weight)[0])
        grads.append(each)
        results.append((torch.log_softmax(result.logits[0].detach(), -1), o, y))
    monkeypatch.setattr(attribution, "STATE_POWER", 1)
    monkeypatch.setattr(attribution, "ERROR_POWER", 1)
    (log_p, o, y), (line_log_p, line_o, line_y) = results
    s = attribution.token_similarity(y.tolist(), log_p, o, line_y[None], line_log_p[None], line_o[None])[0]  # (J, T)
    compared = 0
    for j, t in np.ndindex(len(line_y), len(y)):
        if line_y[j] != y[t]:
            assert s[j, t] == 0
            continue
        truth = (grads[0][t] * grads[1][j]).sum() / (o[t].norm() * line_o[j].norm())
        assert float(s[j, t]) == pytest.approx(max(float(truth), 0.0), rel=1e-3, abs=1e-7)
        compared += 1
    assert compared


def test_the_error_of_a_token_that_is_almost_certain_is_no_rounding_error() -> None:
    z = torch.tensor([[20.0, 0.0, 0.0, 0.0]])
    log_p, o = torch.log_softmax(z, -1), torch.ones(1, 3)
    s = attribution.token_similarity(
        [1], torch.roll(log_p, 1, -1), o, torch.tensor([[1]]), torch.roll(log_p, 1, -1)[None], o[None]
    )
    p = 3 * np.exp(-20.0) / (1 + 3 * np.exp(-20.0))  # of all other tokens together
    assert float(s) == pytest.approx((p * p + 3 * (p / 3) ** 2) ** attribution.ERROR_POWER, rel=1e-3)


# -- the index ---------------------------------------------------------------------------------------------------------


def test_the_nearest_states_are_those_of_plain_loops(trained: Pipeline) -> None:
    index, pairs = build_index(trained), training_pairs(trained)
    row = trained.input_processor.encode_pair(Example(*pairs[3]))
    with torch.inference_mode():
        query = trained.model(collate([row], [0])).output.o[0, 0]
        found = []
        for n, pair in enumerate(pairs):
            other = trained.input_processor.encode_pair(Example(*pair))
            states = trained.model(collate([other], [0])).output.o[0] @ index.projection
            cosines = torch.nn.functional.cosine_similarity(states, query @ index.projection, dim=-1)
            found += [(float(c), n) for c, y in zip(cosines, other.target, strict=True) if y == row.target[0]]
    lines, cosines = index.nearest(int(row.target[0]), query, 5)
    truth = sorted(found, reverse=True)[:5]
    assert sorted(cosines.tolist(), reverse=True) == pytest.approx([c for c, _ in truth], abs=5e-3)
    assert 3 in lines
    assert len(index.nearest(int(row.target[0]), query, 10_000)[0]) == len(found)


def test_an_index_is_built_once_and_again_for_another_checkpoint(copied: Pipeline) -> None:
    calls: list[tuple[int, int]] = []
    build_index(copied, lambda *done: calls.append(done))
    assert calls[-1] == (len(training_pairs(copied)),) * 2
    size = len(calls)
    build_index(copied, lambda *done: calls.append(done))
    assert len(calls) == size
    assert copied.path is not None
    manifest = copied.path / "manifest.json"
    value = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(value | {"sha256": "0" * 64}))
    with pytest.raises(UserError, match="another checkpoint"):
        open_index(copied)
    build_index(copied, lambda *done: calls.append(done))
    assert len(calls) == 2 * size
    open_index(copied)


def test_training_data_that_changed_or_vanished_are_one_sentence(copied: Pipeline) -> None:
    file = Path(copied.config.data.train[0].path)
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("bada", "badi"), encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.tsv: has changed since the model was trained"):
        attribute(copied, "bada")
    assert not (index_folder(copied) / training_index.INDEX_FILE).exists()
    file.unlink()
    with pytest.raises(UserError, match=r"train\.tsv: is missing"):
        attribute(copied, "bada")
    file.write_text(text, encoding="utf-8")
    assert attribute(copied, "bada").lines[0].source == "bada"


def test_of_large_data_a_sample_of_the_lines_is_indexed(copied: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_index, "MAX_POSITIONS", 150)
    index = build_index(copied)
    lines = set(index.lines[: index.keys.get_shape()[0]].tolist())
    assert 5 < index.line_count == len(lines) < index.total == len(training_pairs(copied))
    found = attribute(copied, "bada", top=100)
    assert {line.line - 1 for line in found.lines} <= lines
    assert (found.indexed, found.total) == (index.line_count, index.total)


def test_a_damaged_index_is_one_sentence(copied: Pipeline) -> None:
    path = build_index(copied).path
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="is damaged"):
        open_index(copied)


def test_the_work_for_one_answer_is_bounded(trained: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attribution.MAX_LINE_TOKENS == COMPARED_TOKENS  # which a server counts
    monkeypatch.setattr(attribution, "MAX_LINE_TOKENS", 40)
    few = attribute(trained, "bada", top=100)
    tokens = [max(len(line.source) + 1, len(line.pieces)) for line in few.lines]
    assert few.compared < 20
    assert sum(tokens) <= 40
    assert few.lines[0].source == "bada"


# -- the view and the command ------------------------------------------------------------------------------------------


def test_the_view_is_there_once_an_index_is_and_names_no_folder(copied: Pipeline) -> None:
    assert not blame_lines.is_prepared_for(copied)
    with pytest.raises(UserError, match=r"no index .*dragoman blame"):
        blame_lines(copied, "bada")
    build_index(copied)
    assert blame_lines.is_prepared_for(copied)
    Path(copied.config.data.train[0].path).unlink()  # a server reads nothing but the index
    data = blame_lines(copied, "bada", top=3)
    found = json.loads(json.dumps(data, allow_nan=False))
    assert [line["file"] for line in found["lines"]] == ["train.tsv"] * 3
    assert found["lines"][0]["source"] == "bada"


def test_models_without_training_lines_say_so(classifier: Pipeline, trained: Pipeline, rnn: Pipeline) -> None:
    for pipeline, reason in {
        "labels": (classifier, "writes no target"),
        "no data": (rnn, "nowhere.tsv"),
        "packed": (replace(trained, path=Path("model.zip")), "no run folder"),
    }.values():
        with pytest.raises(UserError, match=reason):
            blame_lines(pipeline, "ab") if reason == "writes no target" else attribute(pipeline, "ab")


def test_the_lines_behind_a_language_models_text_are_named(language_model: Pipeline, tmp_path: Path) -> None:
    texts = ["abcdefgh", "hgfedcba", "bad cab", "a bead", "fed gab"]
    (tmp_path / "train.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    assert language_model.path is not None
    shutil.copytree(language_model.path, tmp_path / "model")
    pipeline = trained_on(language_model, tmp_path / "train.txt", tmp_path / "model")
    found = attribute(pipeline, "bad", output=" cab")
    assert found.tokens == [*"␣cab", "</s>"]  # not those of the beginning
    assert (found.lines[0].target, found.lines[0].line) == ("bad cab", 3)
    assert found.total == len(texts)


def test_a_server_lists_the_view_for_models_that_have_an_index_and_reads_no_named_file(copied: Pipeline) -> None:
    assert "blame" not in describe_model("one", copied)["views"]
    build_index(copied)
    assert "blame" in describe_model("one", copied)["views"]
    assert set(view_routes.request_schema("blame").model_fields) == {"model", "source", "target", "output", "top"}
    request = {"source": {"source": "bada"}, "target": None, "output": None, "top": 1}
    assert view_routes.compute_view({"one": copied}, "one", "blame", request)["lines"][0]["source"] == "bada"


@pytest.fixture
def invoke() -> Callable[..., str]:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(build_app(arguments), arguments, catch_exceptions=False)
        assert result.exit_code == 0
        return result.stdout

    return run


def test_the_command_prints_lines_json_and_a_page(
    trained: Pipeline, invoke: Callable[..., str], tmp_path: Path
) -> None:
    assert trained.path is not None
    run = str(trained.path.parents[1])
    printed = invoke("blame", run, "bada", "--top", "2")
    assert printed.split("\n")[0] == "bada → k u k"
    assert "train.tsv:" in printed.split("\n")[2]  # without folders
    data = json.loads(invoke("blame", run, "bada", "--json", "--top", "2"))
    assert [line["file"] for line in data["lines"]] == [trained.config.data.train[0].path] * 2
    page = tmp_path / "blame.html"
    assert invoke("blame", run, "bada", "--html", str(page)) == ""
    assert '"view":"blame"' in page.read_text()


# -- what it is for ----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("model", planted_errors.MODELS)
@pytest.mark.parametrize("scenario", ["words", "rules"])
def test_the_culprits_of_spoiled_answers_are_among_the_first_five(model: str, scenario: str, tmp_path: Path) -> None:
    seed = torch.initial_seed() % 1000
    result = planted_errors.measure(tmp_path, model, scenario, seed, retrain=True)
    print(result)
    assert result["spoiled"] >= 10
    assert result["blame"] >= 0.8
    assert result["blame"] >= result["nearest states"]
    # A wrong rule stays where other lines have it, too; but fewer lines do more than those of similar spelling.
    assert result["changed by blame"] >= (0.8 if scenario == "words" else result["changed by edit distance"])
