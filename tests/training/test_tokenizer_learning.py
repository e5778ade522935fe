"""Tokenizers learned while the data is checked are those learned from the files alone."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from dragoman import config as configs
from dragoman.config import Config
from dragoman.core.errors import DataError
from dragoman.training import prepare, tokenizer_learning
from dragoman.training.tokenizer_learning import TokenizerLearner, load_or_learn_codec

WORDS = ["ein", "kleiner", "Hund", "bellt", "laut", "größer", "naïve", "</s>", "<to:de>"]


def write_corpus(folder: Path, name: str = "train.jsonl", pairs: int = 80) -> None:
    """Pairs in several languages; some have several targets, some are blank."""
    rng = random.Random(3)
    with (folder / name).open("w", encoding="utf-8") as file:
        for number in range(pairs):
            source, *targets = (" ".join(rng.choices(WORDS, k=rng.randint(0, 5))) for _ in range(rng.randint(2, 4)))
            row: dict[str, object] = {"source": source, "target": targets if len(targets) > 1 else targets[0]}
            if number % 3:
                row |= {"source_lang": "de", "target_lang": rng.choice(["en", "fr"])}
            file.write(json.dumps(row) + "\n")


def make_config(folder: Path, *sets: str) -> Config:
    (folder / "config.yaml").write_text(f"data: {{train: [{folder}/train.jsonl, {folder}/more.jsonl]}}\n")
    return configs.load(folder / "config.yaml", None, sets).config


@pytest.mark.parametrize("limit", [7, 5_000_000])
@pytest.mark.parametrize(
    "tokenizer",
    [
        "{source: characters}",
        "{source: words, target: characters}",
        "{source: {name: words, min_count: 2, lowercase: true}, joint: true}",
        "{source: {name: bpe, size: 300}, target: {name: unigram, size: 290}}",
        "{source: bytes}",
    ],
)
def test_learning_while_checking_equals_learning_from_the_files(tokenizer, limit, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_learning, "MAX_EXAMPLES", limit)
    write_corpus(tmp_path)
    write_corpus(tmp_path, "more.jsonl", pairs=20)
    config = make_config(tmp_path, f"tokenizer={tokenizer}", "data.on_error=skip")
    alone, _ = load_or_learn_codec(config)
    learner = TokenizerLearner(config)
    list(prepare.check_data(config, learner.add))
    together, _ = load_or_learn_codec(config, learner)
    assert together.to_files() == alone.to_files()
    assert together.target_languages == ["en", "fr"]


def test_no_example_after_a_bad_line_is_passed_on(tmp_path):
    write_corpus(tmp_path)
    write_corpus(tmp_path, "more.jsonl")
    lines = (tmp_path / "train.jsonl").read_text().split("\n")
    lines[10] = "{"
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    numbers: list[int] = []
    with pytest.raises(DataError, match=r"train\.jsonl:11"):
        list(prepare.check_data(make_config(tmp_path), lambda example: numbers.append(example.line)))
    assert numbers == list(range(1, 11))
    numbers.clear()
    list(prepare.check_data(make_config(tmp_path, "data.on_error=skip"), lambda example: numbers.append(example.line)))
    assert numbers == [*range(1, 11), *range(12, 81), *range(1, 81)]


def test_examples_beyond_the_fast_check_are_passed_on_too(tmp_path, monkeypatch):
    monkeypatch.setattr("dragoman.data.quality.diagnosis.FAST_CHECK_PAIRS", 5)
    write_corpus(tmp_path)
    write_corpus(tmp_path, "more.jsonl", pairs=5)
    lines: list[int] = []
    notices = list(prepare.check_data(make_config(tmp_path), lambda example: lines.append(example.line)))
    assert lines == [*range(1, 81), *range(1, 6)]
    assert any("only the first 5 pairs" in notice and "more.jsonl" not in notice for notice in notices)
