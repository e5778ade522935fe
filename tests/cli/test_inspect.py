"""dragoman inspect: every view in the terminal, in files, and what it says when a model cannot show something."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.codec_learning import learn_codec

import dragoman
from dragoman import config as configs
from dragoman.checkpoint import model_folder
from dragoman.data.objectives import objectives
from dragoman.inspection.render.image import AttentionPanel
from dragoman.inspection.views import alignment, beam, positions, saliency, steps

RUN = "runs/copy"


def embedded(page: Path) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert found is not None
    views: list[dict[str, Any]] = json.loads(found[1])
    return views


def test_a_page_holds_the_views_that_python_gives(work: Path, tmp_path: Path, here: Callable[..., Any]) -> None:
    page = tmp_path / "look.html"
    done = here("inspect", RUN, "a b", "--html", str(page))
    assert done.code == 0, done.err
    assert done.out == ""
    views = embedded(page)
    assert [view["view"] for view in views] == ["alignment", "beam", "saliency", "steps"]
    model = dragoman.load(work / RUN, reference=True)
    assert views[0] == alignment.compute_alignment(model, "a b")
    assert views[1] == beam.trace_beam(model, "a b")
    assert views[3] == steps.trace_steps(model, "a b")


def test_views_in_the_terminal_say_what_the_data_says(work: Path, here: Callable[..., Any]) -> None:
    out = here("inspect", RUN, "a b", "--target", "a b", "--view", "beam,steps").out
    tree = beam.trace_beam(dragoman.load(work / RUN, reference=True), "a b", "a b")
    assert tree["verdict"]["sentence"] in " ".join(out.split())
    assert f"log p {tree['results'][0]['log_prob']:.3f}" in out
    assert "free:" in out
    assert "forced:" in out


def test_what_the_source_weighs_is_as_large_in_the_terminal_as_in_the_data(
    work: Path, here: Callable[..., Any]
) -> None:
    done = here("inspect", RUN, "a b", "--view", "saliency")
    assert done.code == 0, done.err
    norms = saliency.compute_saliency(dragoman.load(work / RUN, reference=True), "a b")["norms"]
    assert f"the largest is {max(map(max, norms)):.3g}:" in done.out


def test_a_recurrent_model_takes_a_step_for_each_token(here: Callable[..., Any]) -> None:
    done = here("inspect", RUN, "--view", "sequential")
    assert done.code == 0, done.err
    assert "encoder: 1 step for each token of the source\n" in done.out


def test_a_replay_ends_with_what_the_model_says_at_the_last_step(work: Path, here: Callable[..., Any]) -> None:
    done = here("inspect", RUN, "--view", "replay")
    assert done.code == 0, done.err
    frame = json.loads((work / RUN / "replay.jsonl").read_text("utf-8").splitlines()[-1])
    assert frame["sources"]
    assert done.out.splitlines() == [f"step 160: {one['source']} → {one['output']}" for one in frame["sources"]]


def test_positions_are_refused_in_one_sentence_where_a_model_has_none(here: Callable[..., Any]) -> None:
    done = here("inspect", RUN, "--view", "positions")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "there is no position scheme in the encoder 'rnn' and the decoder 'rnn'; use a model with" in done.err


def test_positions_are_a_map_of_places_where_a_model_has_them(tmp_path: Path, here: Callable[..., Any]) -> None:
    config = configs.load(None, "transformer-tiny", ["data.train=none.tsv", "tokenizer.source=characters"]).config
    codec = learn_codec(config.tokenizer.source, config.tokenizer.source, True, "nfc", ["ab"], ["ab"], [])
    model = configs.build_model(config, len(codec.source), len(codec.target))
    model_folder.save(tmp_path / "tiny", config, model_folder.unique_weights(model), codec, {})
    done = here("inspect", tmp_path / "tiny", "--view", "positions")
    assert done.code == 0, done.err
    assert done.out.startswith(
        positions.compute_position_similarity(dragoman.load(tmp_path / "tiny", reference=True))["description"] + "\n"
    )
    assert re.search(r"^ *0 ██", done.out, re.MULTILINE), done.out  # a place is most like itself


LABELS: dict[str, Any] = {"encoder": "transformer", "decoder": None, "tie": "none"}
PREFIX = {"name": "transformer", "layers": 2, "heads": 2, "feedforward": 32, "source": "prefix"}
ONE_SEQUENCE: dict[str, Any] = {"encoder": "none", "decoder": PREFIX}
# how a message calls it → (objective, what the model is made of)
WITHOUT_ALIGNMENT: dict[str, tuple[str, dict[str, Any]]] = {
    "a classifier": ("labels", LABELS | {"head": "classifier"}),
    "a tagger": ("tags", LABELS | {"head": "tagger"}),
    "a masked language model": ("masked", LABELS | {"head": "tagger"}),
    "a language model": ("lm", ONE_SEQUENCE | {"tie": "all"}),
}


def untrained(folder: Path, objective: str, parts: dict[str, Any]) -> Path:
    """A model of these parts over letters, in a folder."""
    joint = objective in ("masked", "lm")
    value = {
        "data": {"train": "none.tsv"},
        "tokenizer": {"source": "characters", "joint": joint},
        "model": {"width": 16, **parts},
        "training": {"objective": objective},
    }
    config = configs.validate(value, "a test")
    extra = list(objectives.build(config.training.objective).extra_symbols)
    codec = learn_codec(config.tokenizer.source, config.tokenizer.source, joint, "nfc", ["ab"], ["ab"], extra)
    model = configs.build_model(config, len(codec.source), len(codec.target))
    model_folder.save(folder, config, model_folder.unique_weights(model), codec, {})
    return folder


@pytest.mark.parametrize("kind", WITHOUT_ALIGNMENT)
def test_what_writes_no_target_beside_a_source_is_not_said_to_have_no_attention(
    kind: str, tmp_path: Path, here: Callable[..., Any]
) -> None:
    model, path = untrained(tmp_path / "model", *WITHOUT_ALIGNMENT[kind]), tmp_path / "a.png"
    done = here("inspect", model, "ab", "--png", path)
    assert (done.code, done.err.count("\n"), path.exists()) == (2, 1, False)
    sentence = f"the alignment shows attention from target to source, and {kind} has none"
    assert f"{path}: there is nothing to draw: {sentence}" in done.err
    assert sentence in done.out  # what it says is shown all the same
    assert "no attention to show" not in done.out + done.err


@pytest.mark.parametrize("option", ["--png", "--svg", "--pdf"])
def test_a_picture_of_a_model_without_heads_to_show_is_an_error_for_none_was_made(
    option: str, tmp_path: Path, here: Callable[..., Any]
) -> None:
    path = tmp_path / f"a.{option[2:]}"
    model = untrained(tmp_path / "labels", *WITHOUT_ALIGNMENT["a classifier"])
    done = here("inspect", model, "ab", option, path, "--maps", "encoder")
    assert (done.code, done.err.count("\n"), path.exists()) == (2, 1, False)
    assert "no encoder attention, because heads are shown only of a single model with a decoder" in done.err


@pytest.mark.parametrize("source", ["prefix", "full_prefix"])
def test_a_picture_of_what_reads_source_and_target_as_one_sequence_has_a_column_for_each_token(
    source: str, tmp_path: Path, here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[AttentionPanel] = []
    monkeypatch.setattr(
        "dragoman.inspection.render.alignment_image.draw_attention", lambda path, panels: drawn.extend(panels)
    )
    parts = {"encoder": "none", "decoder": PREFIX | {"source": source}, "tie": "none"}
    model = untrained(tmp_path / "one", "pairs", parts)
    done = here("inspect", model, "ab", "--target", "ba", "--png", tmp_path / "a.png", "--maps", "decoder")
    assert done.code == 0, done.err
    assert len(drawn) == 2 * 2
    for panel in drawn:
        assert list(panel.source) == ["a", "b", "</s>", "<s>", "b", "a"]
        assert list(panel.target) == ["b", "a", "</s>"]
        assert np.shape(panel.weights) == (3, 6)
    assert "over one sequence" in done.out
    assert "--maps decoder" in done.out


def test_sentences_near_each_other_are_named(here: Callable[..., Any]) -> None:
    out = here("inspect", RUN, "a b", "b a", "c c c", "--view", "embedding_space").out
    assert out.count("neighbors:") == 3


@pytest.mark.parametrize(("option", "first"), [("--svg", b"<?xml"), ("--pdf", b"%PDF")])
def test_pictures_of_every_head_are_drawn(option: str, first: bytes, tmp_path: Path, here: Callable[..., Any]) -> None:
    path = tmp_path / f"heads.{option[2:]}"
    done = here("inspect", RUN, "a b", option, str(path), "--maps", "cross")
    assert done.code == 0, done.err
    assert path.read_bytes().startswith(first)


def test_bad_requests_are_one_sentence(here: Callable[..., Any]) -> None:
    for arguments, words in {
        ("a", "--view", "beem"): ["--view", "beem", "beam"],
        ("a", "--maps", "all"): ["--maps", "soft"],
        ("a", "b", "--target", "x"): ["2 sources", "1 targets"],
        (" ", "--html", "x.html"): ["x.html", "nothing to write"],
        (" ", "--png", "x.png"): ["x.png", "nothing to draw", "no source"],
        ("a", "--svg", "x.svg", "--maps", "encoder"): ["x.svg", "no encoder attention"],
    }.items():
        done = here("inspect", RUN, *arguments)
        assert done.code == 2
        assert all(word in done.err for word in words), done.err
        assert "Traceback" not in done.err
