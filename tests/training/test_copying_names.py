"""A model with a pointer says names it has never seen (SPEC: pointer-generator, for rare words and names)."""

from __future__ import annotations

import random
from pathlib import Path

from dragoman import config as configs
from dragoman import training
from dragoman.inference import pipeline


def a_name(rng: random.Random) -> str:
    return "".join(rng.choice("bcdfgklmnprst") + rng.choice("aeiou") for _ in range(4)).capitalize()


def test_names_never_seen_in_training_are_copied_each_to_its_place(tmp_path: Path) -> None:
    rng = random.Random(1)
    names = [(a_name(rng), a_name(rng), rng.choice(["meets", "sees", "calls"])) for _ in range(1500)]
    rows = [f"{a} {verb} {b} today\t{b} , whom {a} {verb} ." for a, b, verb in names]
    (tmp_path / "train.tsv").write_text("\n".join(rows[:-50]) + "\n", encoding="utf-8")
    small = {"name": "rnn", "cell": "gru", "dropout": 0.0}
    value = {
        "name": "names",
        "data": {"train": str(tmp_path / "train.tsv"), "cache": str(tmp_path / "cache")},
        "tokenizer": {"source": {"name": "words", "min_count": 5}, "joint": True},
        "model": {"width": 32, "tie": "all", "encoder": small, "decoder": small, "pointer": "general"},
        "training": {
            "steps": 300,
            "batch_tokens": 400,
            "optimizer": {"name": "adam", "rate": 0.01},
            "schedule": {"name": "linear", "warmup": 20},
            "label_smoothing": 0.0,
        },
        "runtime": {"device": "cpu", "threads": 1},
    }
    for _ in training.run(configs.validate(value, "names"), tmp_path / "run"):
        pass
    model = pipeline.load(tmp_path / "run", "cpu")
    pairs = [row.split("\t") for row in rows[-50:]]
    found = [prediction.text for prediction in model.predict([source for source, _ in pairs], beam=1)]
    wrong = [(source, target, text) for (source, target), text in zip(pairs, found, strict=True) if text != target]
    print(*wrong[:5], sep="\n")
    assert len(wrong) <= 1
