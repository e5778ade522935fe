"""Pictures, questions about them and clips, drawn by the project itself, taught, and tested on what is new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dragoman import config as configs
from dragoman import training
from dragoman.core.errors import DataError, ModelError
from dragoman.core.types import Example
from dragoman.data.readers import read_pairs
from dragoman.data.samples import scenes
from dragoman.inference import ensemble, pipeline

IMAGE = {"name": "image", "pixels": 32, "channels": 16, "stages": [1, 1], "augment": False}
DECODER = {"name": "rnn", "cell": "gru", "order": "before", "gate": True, "dropout": 0.0}
READER = {"name": "rnn", "cell": "gru", "dropout": 0.0}
QUIET = {"name": "identity", "dropout": 0.0}
QUESTIONS: dict[str, Any] = {
    "width": 64,
    "tie": "none",
    "encoder": READER,
    "second_source": {"frontend": IMAGE, "encoder": QUIET},
    "decoder": DECODER,
}
CLIPS = {"name": "video", "frames": 6, "pixels": 24, "channels": 16, "stages": [1, 1], "augment": False}


def config(folder: Path, columns: list[str], model: dict[str, Any], **options: Any) -> configs.Config:
    value: dict[str, Any] = {
        "data": {
            "train": str(folder / "train.tsv"),
            "columns": columns,
            "files": [str(folder / scenes.ARCHIVE_NAME)],
            "cache": str(folder / "cache"),
        },
        "tokenizer": {"source": "words"},
        "model": model,
        "training": {
            "optimizer": {"name": "adam", "rate": 3e-3},
            "schedule": {"name": "linear", "warmup": 30},
            "label_smoothing": 0.0,
            "save_every": 10_000,
            **options,
        },
        "generation": {"search": "greedy", "max_length_ratio": 0.0, "max_length_extra": 8},
        "runtime": {"device": "cpu", "threads": 1},
    }
    found = configs.validate(value, "scenes")
    assert configs.rehearse(found) == []
    return found


def taught(found: configs.Config, run: Path) -> pipeline.Pipeline:
    for _ in training.run(found, run):
        pass
    return pipeline.load(run, "cpu")


def share(model: pipeline.Pipeline, folder: Path) -> float:
    """How many of a task's tests, all of combinations that training never showed, are passed."""
    examples = list(read_pairs(folder / "test.tsv", columns=model.config.columns))
    found = model.predict(examples)
    wrong = [(e.source, e.target, p.text) for e, p in zip(examples, found, strict=True) if e.target != p.text]
    print(*wrong[:5], sep="\n")
    return 1 - len(wrong) / len(examples)


def train_questions(folder: Path, steps: int) -> pipeline.Pipeline:
    scenes.write_dataset(folder, "questions", {"train": 800, "test": 60}, seed=1)
    found = config(folder, ["source", "second_source", "target"], QUESTIONS, steps=steps, batch_tokens=2048)
    return taught(found, folder / "run")


@pytest.mark.long
def test_questions_about_combinations_never_seen_are_answered(tmp_path: Path) -> None:
    assert share(train_questions(tmp_path, 650), tmp_path) >= 0.95


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pipeline.Pipeline]:
    """Questions about pictures, and a model that has seen a few."""
    folder = tmp_path_factory.mktemp("questions")
    return folder, train_questions(folder, 40)


def test_alone_and_in_a_batch_the_answer_is_the_same(asked: tuple[Path, pipeline.Pipeline]) -> None:
    folder, model = asked
    examples = list(read_pairs(folder / "test.tsv", columns=model.config.columns))[:6]
    examples.append(
        Example("what color is the square bar pole square thing ?", "red", second_source=examples[0].second_source)
    )
    together = model.predict(examples, beam=3, nbest=2)
    for example, found in zip(examples, together, strict=True):
        alone = model.predict([example], beam=3, nbest=2)[0]
        assert (alone.text, alone.alternatives[0].text) == (found.text, found.alternatives[0].text)
        assert alone.log_prob == pytest.approx(found.log_prob, abs=1e-5)
    scores = model.score(examples)
    assert scores == pytest.approx([model.score([example])[0] for example in examples], abs=1e-5)
    first = together[0]
    if first.text == examples[0].target:
        assert scores[0] == pytest.approx(first.log_prob, abs=1e-4)


def test_attention_has_labels_of_both_sources(asked: tuple[Path, pipeline.Pipeline]) -> None:
    folder, model = asked
    examples = list(read_pairs(folder / "test.tsv", columns=model.config.columns))[:2]
    for example, found in zip(examples, model.predict(examples, attention=True), strict=True):
        words = [*(f"▁{word}" for word in example.source.split()), "</s>"]
        assert found.source_tokens[: len(words)] == words
        assert found.source_tokens[len(words) :] == [f"{i},{j}" for i in range(1, 5) for j in range(1, 5)]
        assert found.attention is not None
        assert found.attention.shape == (len(found.tokens) + 1, len(found.source_tokens))
        np.testing.assert_allclose(found.attention.sum(-1), 1.0, atol=1e-5)


def test_a_line_with_a_tab_is_both_sources_and_one_without_is_an_error(asked: tuple[Path, pipeline.Pipeline]) -> None:
    folder, model = asked
    example = next(read_pairs(folder / "test.tsv", columns=model.config.columns))
    line = f"{example.source}\t{example.second_source}"
    assert model.predict([line])[0].text == model.predict([example])[0].text
    assert [p.text for p in model.predict(["", line])] == ["", model.predict([line])[0].text]
    with pytest.raises(DataError, match="put both on one line, with a tab"):
        model.predict([example.source])
    with pytest.raises(DataError, match=r"no file 'lost\.png'"):
        model.predict([f"{example.source}\tlost.png"])


def test_the_command_line_answers_pairs_of_sources(asked: tuple[Path, pipeline.Pipeline]) -> None:
    from dragoman.cli.main import build_app

    folder, model = asked
    examples = list(read_pairs(folder / "test.tsv", columns=model.config.columns))[:3]
    (folder / "asked.txt").write_text("".join(f"{e.source}\t{e.second_source}\n" for e in examples))
    done = CliRunner().invoke(
        build_app(["predict"]), ["predict", str(folder / "run"), str(folder / "asked.txt"), "--device", "cpu"]
    )
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [p.text for p in model.predict(examples)]


def test_engines_decline_and_ensembles_refuse_two_sources(asked: tuple[Path, pipeline.Pipeline]) -> None:
    folder, model = asked
    assert model.engine is None
    with pytest.raises(ModelError, match="reads two sources, and an ensemble reads one"):
        ensemble.load_models(f"{folder / 'run'}+{folder / 'run'}")


@pytest.mark.long
def test_clips_of_combinations_never_seen_are_described(tmp_path: Path) -> None:
    scenes.write_dataset(tmp_path, "clips", {"train": 700, "test": 60}, seed=2, pixels=24)
    # Without dropout the decoder learns from its own words which directions it never said of a red bar: 8 to 83 % are
    # passed; with 0.5 of it 82 to 94 %, with 0.7 89 to 99 % (three seeds each).
    decoder = DECODER | {"gate": False, "dropout": 0.7}
    model = {"width": 64, "frontend": CLIPS, "encoder": READER, "decoder": decoder}
    found = config(tmp_path, ["source", "target", "-"], model, steps=350, batch_sentences=24)
    assert share(taught(found, tmp_path / "run"), tmp_path) >= 0.95


@pytest.mark.parametrize(("task", "columns"), [("labels", ["source", "target"]), ("clips", ["source", "-", "target"])])
def test_pictures_and_clips_get_labels(tmp_path: Path, task: str, columns: list[str]) -> None:
    pixels = 32 if task == "labels" else 24
    scenes.write_dataset(tmp_path, task, {"train": 200, "test": 40}, seed=3, pixels=pixels)
    model = {
        "width": 32,
        "frontend": IMAGE if task == "labels" else CLIPS,
        "encoder": QUIET if task == "labels" else READER,
        "decoder": None,
        "head": {"name": "classifier", "dropout": 0.0},
    }
    found = config(tmp_path, columns, model, steps=100, batch_sentences=24, objective="labels")
    assert share(taught(found, tmp_path / "run"), tmp_path) >= 0.9
