"""Both families learn to copy, to reverse and to sort what they have never seen, from a fresh seed each time.

Strings of up to 10 letters run with the other tests: a decoder that finds its source in one vector, or looks nowhere in
particular, does not get there. Strings of up to 20 and 25 run in the long ones.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from bench import letters

from dragoman import config as configs
from dragoman import training
from dragoman.data.samples import synthetic
from dragoman.inference import pipeline

CONFIG = """
name: learning
seed: {seed}
data: {{train: {folder}/train.tsv, cache: {folder}/cache}}
tokenizer: {{source: symbols}}
model: {model}
training:
  steps: {steps}
  batch_tokens: {batch}
  optimizer: {{name: adam, rate: {rate}}}
  schedule: {{name: linear, warmup: 50}}
  clip: 0.3
  label_smoothing: 0.0
  save_every: 100000
runtime: {{device: cpu, threads: 1}}
"""
MODELS = {
    "rnn": """
  width: 64
  tie: none
  encoder: {name: rnn, cell: gru, width: 128, dropout: 0.0}
  decoder: {name: rnn, cell: gru, width: 128, order: before, score: additive, dropout: 0.0}""",
    "transformer": """
  width: 64
  encoder: {name: transformer, layers: 1, heads: 4, feedforward: 128, dropout: 0.0}
  decoder: {name: transformer, layers: 2, heads: 4, feedforward: 128, dropout: 0.0}""",
}
RATES = {"rnn": 4.0e-3, "transformer": 6.0e-3}
QUICK = {("transformer", "sort"): 600}  # test_learning_pairs.py has copying and reversing, and recurrent decoders
STEPS = {  # under a minute each on one thread
    ("rnn", "copy"): 800,
    ("rnn", "reverse"): 800,
    ("rnn", "sort"): 800,
    ("transformer", "copy"): 1100,
    ("transformer", "reverse"): 1700,
    ("transformer", "sort"): 1200,
}


@pytest.fixture(autouse=True)
def deadline(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ten seconds on a quiet machine, ten minutes at the very most; the long forms have an hour."""

    def late(*_: object) -> None:
        raise TimeoutError("this takes far too long")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(3600 if request.node.get_closest_marker("long") else 600)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def exact_match(
    family: str, task: str, folder: Path, steps: int, symbols: int = 8, longest: int = 20, batch: int = 1024
) -> float:
    """Train on random strings; the share of new ones (never a target in training) that come out right."""
    seed = torch.initial_seed() % 10**6
    print(f"seed {seed}")
    size = {"symbols": symbols, "max_length": longest}
    # Many small sets, since within one no string comes twice, and there are only so many short ones.
    parts = range(30 if longest > 10 else 10)
    rows = [pair for part in parts for pair in letters.generate_pairs(task, 2000, seed * 100 + part, **size)]
    synthetic.write_tsv(folder / "train.tsv", rows)
    known = {"model": MODELS[family], "rate": RATES[family], "steps": steps, "batch": batch}
    text = CONFIG.format(seed=seed, folder=folder, **known)
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    for _ in training.run(configs.load(folder / "config.yaml").config, folder / "run"):
        pass
    unseen = letters.generate_pairs(task, 500, seed, split="test", **size)
    found = pipeline.load(folder / "run", "cpu").predict([source for source, _ in unseen], beam=1)
    wrong = [(s, t, p.text) for (s, t), p in zip(unseen, found, strict=True) if p.text != t]
    print(f"{len(wrong)} of {len(unseen)} are wrong", *wrong[:5], sep="\n")
    return 1 - len(wrong) / len(unseen)


@pytest.mark.parametrize(("family", "task"), QUICK)
def test_a_model_learns_a_task_on_short_strings(family, task, tmp_path):
    assert exact_match(family, task, tmp_path, QUICK[family, task], longest=10, batch=512) >= 0.99


@pytest.mark.long
@pytest.mark.parametrize(("family", "task"), STEPS)
def test_a_model_learns_a_task_on_strings(family, task, tmp_path):
    assert exact_match(family, task, tmp_path, STEPS[family, task]) >= 0.99


@pytest.mark.long
@pytest.mark.parametrize(("family", "task"), STEPS)
def test_a_model_learns_a_task_on_longer_strings_of_more_letters(family, task, tmp_path):
    assert exact_match(family, task, tmp_path, 4 * STEPS[family, task], symbols=16, longest=25) >= 0.99
