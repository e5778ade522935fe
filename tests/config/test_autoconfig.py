"""The table of choices: every candidate makes a whole config, for every kind of data and size."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dragoman import config as configs
from dragoman.config import autoconfig
from dragoman.config.autoconfig import RULES, Candidate
from dragoman.data.quality.profile import DataProfile, SideProfile, Task, Unit

UNITS: dict[Task, tuple[Unit, Unit]] = {
    "pronunciation": ("letters", "symbols"),
    "strings": ("letters", "letters"),
    "commands": ("sentences", "closed"),
    "code": ("sentences", "code"),
    "labels": ("sentences", "letters"),
    "sentences": ("sentences", "sentences"),
    "text": ("sentences", "sentences"),
    "image": ("letters", "sentences"),
    "audio": ("letters", "sentences"),
}


def side(unit: Unit) -> SideProfile:
    return SideProfile(unit, characters=30.0, words=6.0, longest=70, longest_words=15, alphabet=40, vocabulary=5_000)


def profile(task: Task, pairs: int) -> DataProfile:
    source, target = map(side, UNITS[task])
    return DataProfile(task, pairs, pairs, source, None if task == "text" else target, 0.0, 1, 3)


def test_every_task_has_rules_for_every_size() -> None:
    for task in UNITS:
        for pairs in (20, 3_000, 3_001, 50_000, 10**7):
            assert autoconfig.find_rule(profile(task, pairs)).task == task
    for rule in RULES:  # whatever the machine, there is something to take, and the last needs no time
        assert not rule.candidates[-1].gpu_only
        assert rule.candidates[-1].least_epochs <= 3


@pytest.mark.parametrize("has_gpu", [False, True])
@pytest.mark.parametrize(
    ("task", "pairs", "candidate"),
    [
        (rule.task, int(min(rule.max_pairs, 200_000)), candidate)
        for rule in RULES
        for candidate in (*rule.candidates, *rule.rivals)
    ],
    ids=lambda value: value.title if isinstance(value, Candidate) else str(value),
)
def test_every_candidate_makes_a_config_that_is_right(
    task: Task, pairs: int, candidate: Candidate, has_gpu: bool
) -> None:
    looks = profile(task, pairs)
    values = {
        "data.train": "train.tsv",
        "data.valid": "valid.tsv",
        **autoconfig.settings(looks, candidate, 500, has_gpu),
        **autoconfig.interval_settings(700, 2_000),
    }
    sets = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    config = configs.load(None, candidate.preset, sets).config  # checks and rehearses it
    assert config.training.steps == 700
    assert config.training.schedule.options["warmup"] == 70
    assert config.training.patience is not None
    if task in ("pronunciation", "strings", "commands", "code"):
        assert config.data.max_source is not None
        longest = 70 if task in ("pronunciation", "strings") else 15
        assert config.data.max_source >= 2 * longest


def test_on_few_validation_pairs_parts_of_outputs_choose_the_checkpoint() -> None:
    assert autoconfig.validation_metric(profile("pronunciation", 800), 80) == "per"
    assert autoconfig.validation_metric(profile("pronunciation", 8_000), 800) == "exact"
    assert autoconfig.validation_metric(profile("strings", 800), 80) == "cer"


def test_a_warm_up_is_at_most_a_tenth_of_the_steps() -> None:
    assert autoconfig.interval_settings(100, 400)["training.schedule.warmup"] == 10
    assert autoconfig.interval_settings(9_000, 400)["training.schedule.warmup"] == 400


def test_longer_texts_have_longer_limits() -> None:
    looks = profile("strings", 5_000)
    assert looks.target is not None
    longer = replace(looks, target=replace(looks.target, longest=200))
    candidate = autoconfig.candidates(looks, has_gpu=False)[0]
    short, long = (autoconfig.settings(one, candidate, 0, False)["data.max_target"] for one in (looks, longer))
    assert short < 200 <= 400 <= long


def test_grammatical_features_are_read_whole() -> None:
    looks = profile("strings", 5_000)
    tagged = replace(looks, source=replace(looks.source, has_features=True))
    for candidate in autoconfig.candidates(tagged, has_gpu=True):
        chosen = autoconfig.settings(tagged, candidate, 0, False)
        assert chosen["tokenizer.source"] == {"name": "characters", "features": True}
        if candidate.preset == "characters-transformer":  # letters are copied: both sides share one vocabulary
            assert (chosen["tokenizer.joint"], chosen["model.tie"]) == (True, "all")
        else:
            assert chosen["tokenizer.target"] == "characters"


def test_an_alphabet_of_thousands_numbers_its_rare_characters_where_they_are_copied() -> None:
    looks = profile("strings", 5_000)
    kanji = replace(looks, source=replace(looks.source, has_features=True, alphabet=2_000))
    chosen = autoconfig.settings(kanji, autoconfig.candidates(kanji, has_gpu=True)[0], 0, False)
    assert chosen["tokenizer.source"]["min_count"] > 1
    assert chosen["tokenizer.copy_slots"] > 0
    assert chosen["generation.allow_unk"] is False


def test_korean_syllables_are_taken_apart_into_letters_where_the_target_has_few() -> None:
    looks = profile("pronunciation", 5_000)
    korean = replace(looks, source=replace(looks.source, alphabet=1_000, decomposed=67))
    normalized = [
        autoconfig.settings(each, autoconfig.candidates(each, has_gpu=False)[0], 0, False).get("data.normalization")
        for each in (looks, korean)
    ]
    assert normalized == [None, "nfd"]
