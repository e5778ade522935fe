"""The metrics that fit a task: made-up pairs of every kind."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import config as configs
from dragoman.config import Config
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.inspection.assessment import score_metric
from dragoman.reports.metric_choice import choose_metrics, detect_task, label_scores

WORDS = ["dragon", "knight", "castle", "moat", "tower", "ladder", "banner", "shield"]
SENTENCE = "the old knight rode over the bridge into the castle at {} o'clock"
GERMAN = "der alte Ritter ritt um {} Uhr über die Brücke in die Burg"


def config_of(**sections: Any) -> Config:
    return configs.validate({"data": {"train": "nowhere.tsv"}} | sections, "a test")


TEXT = config_of()
PHONES = config_of(tokenizer={"source": "characters", "target": "symbols"})
IMAGE = config_of(model={"frontend": "image"})
AUDIO = config_of(model={"frontend": "audio"})


def pairs(*rows: tuple[str, ...]) -> list[Example]:
    return [Example(row[0], row[1], references=row[1:]) for row in rows]


KINDS: dict[str, tuple[Config, list[Example], list[str]]] = {
    "words": (PHONES, pairs(*((word, " ".join(word.upper())) for word in WORDS)), ["ser", "per"]),
    "words of letters": (TEXT, pairs(*((f"{word} V;PST", word + "ed") for word in WORDS)), ["exact", "cer"]),
    "strings": (TEXT, pairs(*((f"the {n}. of May 2020", f"2020-05-{n:02}") for n in range(1, 20))), ["exact", "cer"]),
    "labels": (
        TEXT,
        pairs(*((f"{word} {n}", "yes" if n % 2 else "no") for n in range(9) for word in WORDS)),
        ["accuracy"],
    ),
    "labels of two words": (
        TEXT,
        pairs(*((f"{word} {n}", "it follows" if n % 2 else "unknown") for n in range(9) for word in WORDS)),
        ["exact"],
    ),
    "sentences": (TEXT, pairs(*((SENTENCE.format(n), GERMAN.format(n)) for n in WORDS)), ["bleu", "chrf", "ter"]),
    "sentences without spaces": (
        TEXT,
        pairs(*((SENTENCE.format(n), f"老骑士在{i}点钟骑马过桥进入城堡了") for i, n in enumerate(WORDS))),
        ["bleu", "chrf"],
    ),
    "edits": (
        TEXT,
        pairs(*((f"{SENTENCE.format(n)} teh end", f"{SENTENCE.format(n)} the end") for n in WORDS)),
        ["exact", "wer", "cer"],
    ),
    "summaries": (
        TEXT,
        pairs(*((f"{SENTENCE.format(n)} and {GERMAN.format(n)} again", f"a ride at {n} at night") for n in WORDS)),
        ["rougel", "rouge1", "rouge2"],
    ),
    "programs": (
        TEXT,
        pairs(*((f"sort {word} by name", f"{word}.sort(key = name)") for word in WORDS)),
        ["exact", "bleu"],
    ),
    "symbols": (
        PHONES,
        pairs(*((f"walk {word} twice", f"WALK {word.upper()} WALK") for word in WORDS)),
        ["exact", "wer"],
    ),
    "captions": (
        IMAGE,
        pairs(*((f"{n}.png", f"a {word} on a hill", f"one {word} far away") for n, word in enumerate(WORDS))),
        ["bleu", "cider", "rougel", "bleu1", "bleu2", "bleu3"],
    ),
    "speech": (AUDIO, pairs(*((f"{n}.wav", f"{word} {word}") for n, word in enumerate(WORDS))), ["wer", "cer", "ser"]),
    "speech of few words": (AUDIO, pairs(*((f"{n}.wav", "one") for n in range(30))), ["wer", "cer", "ser"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_task_has_its_metrics(kind: str) -> None:
    config, examples, names = KINDS[kind]
    assert [part.name for part in choose_metrics(config, examples)] == names
    assert detect_task(config, examples).kind == kind.split(" ")[0]


def test_the_objective_decides_for_tags_and_labels() -> None:
    tags = config_of(training={"objective": "tags"}, model={"head": "tagger", "decoder": None})
    assert detect_task(tags, KINDS["sentences"][1]).kind == "tags"


def test_chinese_is_scored_by_characters() -> None:
    (bleu, _) = choose_metrics(*KINDS["sentences without spaces"][:2])
    assert bleu.options["tokenize"] == "zh"


def test_the_error_rate_of_words_is_called_words_with_an_error() -> None:
    config, examples, _ = KINDS["words"]
    scores = {"ser": score_metric(Part("ser"), ["a", "b"], [["a"], ["c"]])}
    label_scores(scores, detect_task(config, examples))
    assert str(scores["ser"]).startswith("words with an error 50.0 % [")


def test_no_pairs_are_no_reason_to_fail() -> None:
    assert choose_metrics(TEXT, [])
