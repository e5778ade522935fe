"""Models of other shapes from the command line, end to end: texts, tags or labels, a few steps, and answers."""

from __future__ import annotations

import io
import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from dragoman.checkpoint.model_folder import resolve
from dragoman.cli.main import main

from .conftest import Done, process

WORDS = ["the", "a", "dog", "cat", "bird", "sees", "likes", "eats", "big", "red"]
NOUNS = {"dog", "cat", "bird"}
COMMON = [
    *("training.steps=20", "training.validate_every=20", "training.schedule=constant", "training.average=1"),
    *("training.batch_tokens=400", "training.optimizer.rate=0.01", "training.log_every=5", "runtime.threads=1"),
    *("model.width=16", "model.encoder={name: transformer, layers: 1, heads: 2}", "tokenizer.source=words"),
    *("model.decoder={name: transformer, layers: 1, heads: 2}", "generation.max_length_extra=5"),
]
HEAD = ["model.decoder=null", "tokenizer.joint=false", "model.tie=none"]


def train(name: str, *sets: str) -> list[str]:
    options = [text for item in (f"name={name}", *COMMON, *sets) for text in ("--set", item)]
    return ["train", "--preset", "transformer-tiny", *options]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of random words: bare, backwards, with tags that mark the nouns, and with labels that count them."""
    place, rng = tmp_path_factory.mktemp("shapes"), random.Random(1)
    texts = [[rng.choice(WORDS) for _ in range(rng.randrange(2, 9))] for _ in range(120)]
    columns = {
        "texts.txt": [[" ".join(text)] for text in texts],
        "pairs.tsv": [[" ".join(text), " ".join(text[::-1])] for text in texts],
        "tags.tsv": [[" ".join(text), " ".join("N" if word in NOUNS else "O" for word in text)] for text in texts],
        "labels.tsv": [[" ".join(text), "some" if NOUNS & {*text} else "none"] for text in texts],
    }
    for file, rows in columns.items():
        (place / file).write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return place


@pytest.fixture
def say(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """`dragoman ARGS` in this process, which has imported torch; it must succeed."""

    def run(*args: str, input: str = "", code: int = 0) -> str:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["dragoman", *args])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(input.encode())))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        done = Done(int(ended.value.code or 0), *capsys.readouterr())
        assert done.code == code, done.err
        return done.out if code == 0 else done.err

    return run


def weights(run: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(resolve(run) / "model.safetensors")


def losses(run: Path) -> list[float]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if record["kind"] == "train"]


def test_a_language_model_is_trained_on_texts_scores_them_and_goes_on(folder: Path, say: Callable[..., str]) -> None:
    lm = ["model.encoder=none", "model.decoder.source=prefix", "training.objective=lm"]
    say(*train("lm", "data.train=texts.txt", "data.valid=texts.txt", *lm))
    found = losses(folder / "runs/lm")
    assert found[-1] < found[0]
    scores = [float(line) for line in say("score", "runs/lm", "texts.txt").split()]
    assert len(scores) == 120
    assert all(math.isfinite(score) and score < 0 for score in scores)
    tokens = say("score", "runs/lm", "texts.txt", "--tokens").split("\n")[:-1]
    texts = (folder / "texts.txt").read_text().split("\n")
    for text, line, score in zip(texts, tokens, scores, strict=False):
        assert len(line.split()) == len(text.split()) + 1
        assert sum(map(float, line.split())) == pytest.approx(score, abs=1e-4)
    # The mean over all tokens is what validation of the last step said.
    records = [json.loads(line) for line in (folder / "runs/lm/metrics.jsonl").read_text().splitlines()]
    mean = -sum(scores) / sum(len(line.split()) for line in tokens)
    assert mean == pytest.approx(next(r["loss"] for r in records if r["kind"] == "valid"), abs=1e-4)
    answers = say("predict", "runs/lm", "--beam", "1", input="the big\n\na dog\n").split("\n")
    assert len(answers) == 4
    assert answers[0].startswith("the big")
    assert answers[2].startswith("a dog")
    say(
        *train("lm", "data.train=texts.txt", "data.valid=texts.txt", *lm)
    )  # again: it is finished, and nothing is added
    assert losses(folder / "runs/lm") == found


def test_a_denoising_model_is_fine_tuned_on_pairs(folder: Path, say: Callable[..., str]) -> None:
    say(*train("bart", "data.train=texts.txt", "training.objective=denoising"))
    sets = ["data.train=pairs.tsv", "data.valid=pairs.tsv", "training.start_from=runs/bart"]
    say(*train("fine", *sets, "training.freeze=[encoder]"))
    before, after = weights(folder / "runs/bart"), weights(folder / "runs/fine")
    assert before.keys() == after.keys()
    for name, x in before.items():
        assert torch.equal(x, after[name]) == name.startswith("encoder."), name
    for file in resolve(folder / "runs/bart").glob("*tokenizer*"):
        assert (resolve(folder / "runs/fine") / file.name).read_bytes() == file.read_bytes()
    assert len(say("predict", "runs/fine", input="the dog\na cat\n").split("\n")) == 3


def test_a_masked_language_model_becomes_a_classifier_with_labels_of_its_own(
    folder: Path, say: Callable[..., str]
) -> None:
    say(*train("bert", "data.train=texts.txt", "training.objective=masked", "model.decoder=null", "model.head=tagger"))
    sets = ["data.train=labels.tsv", "training.start_from=runs/bert", "tokenizer.target=words", *HEAD]
    sets += ["training.objective=labels", "model.head=classifier"]
    parts = "training.start_parts=[encoder, frontend]"
    say(*train("labels", *sets, parts, "training.freeze=[encoder, frontend]"))
    before, after = weights(folder / "runs/bert"), weights(folder / "runs/labels")
    taken = [name for name in after if name.startswith(("encoder.", "frontend."))]
    assert taken
    assert all(torch.equal(before[name], after[name]) for name in taken)
    assert after["output.weight"].shape == (4 + 2, 16)
    answers = say("predict", "runs/labels", input="the dog sees a bird\nred\nthe big zebra\n").split("\n")
    assert {*answers[:3]} <= {"some", "none"}
    assert len(say("score", "runs/labels", "labels.tsv").split()) == 120
    # The same command again finds its tokenizers and its end; without start_parts the heads do not fit, and it says so.
    say(*train("labels", *sets, parts, "training.freeze=[encoder, frontend]"))
    told = say(*train("all", *sets), code=2)
    assert "start_parts" in told
    assert "encodr" in say(*train("typo", *sets, "training.start_parts=[encodr]"), code=2)


def test_a_tagger_learns_to_mark_nouns(folder: Path, say: Callable[..., str]) -> None:
    sets = ["data.train=tags.tsv", "data.valid=tags.tsv", "training.objective=tags", "model.head=tagger", *HEAD]
    say(*train("tags", *sets, "training.steps=60", "training.validate_metrics=[exact]"))
    assert say("predict", "runs/tags", input="the dog sees a big bird\ncat\n") == "O N O O O N\nN\n"
    scores = [float(line) for line in say("score", "runs/tags", "tags.tsv").split()]
    assert len(scores) == 120


OWN = """
import numpy as np
from dragoman.core.types import EOS, PAD
from dragoman.data.objectives import Objective, TrainingRow, objectives, to_list

@objectives.register("before")
class Before(Objective):
    'Predict at each token of a text the one before it.'

    needs_joint_vocabulary = has_token_labels = True
    head = "tagger"

    def max_lengths(self, source, target):
        return target, np.zeros_like(target)

    def __call__(self, source, target, rng):
        x = to_list(target)
        return TrainingRow(x, [], [PAD, *x[:-1]])

@objectives.register("backwards")
class Backwards(Objective):
    'Predict every token of a text from those behind it.'

    continues_text = has_empty_source = shares_embeddings = True
    decoder_source = "prefix"

    def max_lengths(self, source, target):
        return np.zeros_like(source), target

    def __call__(self, source, target, rng):
        return TrainingRow([], [*to_list(target)[-2::-1], EOS])
"""


@pytest.mark.parametrize(
    ("name", "other", "remedy"),
    [
        pytest.param(
            "before",
            ["model.head=classifier"],
            ["model.head=tagger", "model.decoder=null"],
            marks=pytest.mark.long,
        ),
        ("backwards", [], ["model.encoder=none", "model.decoder.source=prefix"]),
    ],
)
def test_an_objective_of_a_user_s_own_says_which_model_it_needs_and_trains_it(
    folder: Path, name: str, other: list[str], remedy: list[str]
) -> None:
    (folder / "own.py").write_text(OWN, encoding="utf-8")
    sets = ["data.train=texts.txt", f"training.objective={name}"]
    refused = process(*train(name, *sets, *other), "--plugin", "own", cwd=folder)
    assert refused.code == 2
    for key, value in (item.split("=") for item in remedy):
        assert f"{key} to {value}" in refused.err
    trained = process(*train(name, *sets, *remedy), "--plugin", "own", cwd=folder)
    assert trained.code == 0, trained.err
    found = losses(folder / "runs" / name)
    assert found[-1] < found[0]
    said = process("predict", f"runs/{name}", "--plugin", "own", cwd=folder, input=b"the big dog\n")
    assert said.code == 0, said.err
    assert said.out.strip()
