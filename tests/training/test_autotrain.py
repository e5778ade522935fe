"""From a file of pairs to a trained model: the parts, the speed, the steps, the race, and the command."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dragoman
from dragoman import config as configs
from dragoman import training
from dragoman.checkpoint import model_folder
from dragoman.config.autoconfig import Candidate
from dragoman.core.errors import DataError, RunError, UserError
from dragoman.core.types import Example
from dragoman.data.readers import read_pairs
from dragoman.training import autotrain, race
from dragoman.training.autotrain import TrainingRequest, choose_steps
from dragoman.training.data_parts import merge_references, write_parts
from dragoman.training.speed import TrainingSpeed, measure_speed

SYLLABLES = {"ba": "B AA", "ke": "K EH", "li": "L IY", "to": "T OW", "mu": "M UW", "sho": "SH OW"}
SMALL = (  # over whatever is chosen
    "model.width=16",
    "model.tie=none",
    "model.encoder.width=32",
    "model.decoder.width=32",
    "runtime.device=cpu",
    "training.steps=24",
    "training.validate_every=12",
    "training.schedule.warmup=1",
)


def write_words(path: Path, count: int = 120) -> list[tuple[str, str]]:
    """Made-up words and their phones, in alphabetical order."""
    rng, words = random.Random(5), dict[str, str]()
    while len(words) < count:
        syllables = rng.choices(list(SYLLABLES), k=rng.randint(2, 4))
        words["".join(syllables)] = " ".join(SYLLABLES[s] for s in syllables)
    pairs = sorted(words.items())
    path.write_text("".join(f"{word}\t{phones}\n" for word, phones in pairs))
    return pairs


def test_a_file_of_pairs_becomes_a_trained_model_and_a_config_to_edit(tmp_path: Path) -> None:
    pairs = write_words(tmp_path / "words.tsv")
    folder = tmp_path / "runs" / "words"
    request = TrainingRequest(str(tmp_path / "words.tsv"), minutes=0.2, overrides=SMALL)
    reports = list(autotrain.run(request, folder))
    assert [report.kind for report in reports if report.kind in ("start", "end")] == ["start", "end"]
    model_folder.verify(folder / "checkpoints" / (folder / "best").read_text().strip())
    parts = {name: list(read_pairs(folder / "data" / f"{name}.tsv")) for name in ("train", "valid", "test")}
    together = sorted((e.source, e.target) for examples in parts.values() for e in examples)
    assert together == pairs
    assert min(map(len, parts.values())) >= 10
    text = (folder / "train.yaml").read_text()
    assert "letters → symbols (looks like pronunciation)" in text
    config = configs.load(folder / "train.yaml").config  # a config as any other
    assert (config.tokenizer.source.name, config.training.best) == ("characters", "per")

    # The same again, here in Python, finds a finished run; another one is refused, and nothing of it is changed.
    again = list(dragoman.train(data=request.pairs, minutes=0.2, set=SMALL, run=folder))
    assert again[-1].message.startswith("already finished")
    assert [report.message for report in again if report.kind == "notice"][:3] == autotrain.read_plan(folder)["lines"][
        :3
    ]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "train.log"}
    with pytest.raises(RunError, match="--minutes"):
        list(autotrain.run(TrainingRequest(request.pairs, minutes=3, overrides=SMALL), folder))
    with (tmp_path / "words.tsv").open("a") as file:
        file.write("babababa\tB AA B AA B AA B AA\n")
    with pytest.raises(RunError, match="its pairs"):
        list(autotrain.run(request, folder))
    assert before == {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "train.log"}


def test_too_few_pairs_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "few.tsv").write_text("colour\tK AH L ER\n" * 2)
    with pytest.raises(DataError, match="found 2 pairs; at least 20"):
        list(autotrain.run(TrainingRequest(str(tmp_path / "few.tsv")), tmp_path / "runs" / "few"))
    assert not (tmp_path / "runs").exists()
    with pytest.raises(UserError, match="either a config file or data="):
        dragoman.train()
    with pytest.raises(UserError, match="minutes and search go with data="):
        dragoman.train("config.yaml", minutes=3)
    with pytest.raises(UserError, match="--minutes must be above 0"):
        list(autotrain.run(TrainingRequest("none.tsv", minutes=-1), tmp_path / "runs" / "few"))


def test_parts_that_are_held_out_already_stay_as_they_are(tmp_path: Path) -> None:
    pairs = [Example(f"{chr(97 + i % 26) * 3}{i}", f"target {i}") for i in range(100)]
    own = [Example("mine", "my own", references=("my own", "mein eigenes"))]
    parts = write_parts(pairs, {"valid": own, "test": own}, tmp_path / "a")
    assert parts.counts == {"train": 100, "valid": 1, "test": 1}
    assert Path(parts.files["test"]).read_text() == "mine\tmy own\tmein eigenes\n"
    only_valid = write_parts(pairs, {"valid": own}, tmp_path / "b")
    assert only_valid.counts["valid"] == 1
    assert only_valid.counts["train"] + only_valid.counts["test"] == 100
    assert only_valid.counts["test"] > 0


def test_texts_with_tabs_and_languages_come_back_as_they_were(tmp_path: Path) -> None:
    pairs = [Example(f"{chr(97 + i % 26) * 3}\tb{i}", f"c {i}", "de", "en") for i in range(60)]
    parts = write_parts(pairs, {}, tmp_path)
    read = [e for file in parts.files.values() for e in read_pairs(file, columns=parts.columns, extra_targets=True)]
    # A tab inside a text is a space to every reader of lines; what matters is that it does not divide the columns.
    found = {(e.source.replace("\t", " "), e.target, e.source_lang, e.target_lang) for e in read}
    assert found == {(e.source.replace("\t", " "), e.target, "de", "en") for e in pairs}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.sampled_from(["de", "en"])), max_size=20))
def test_every_target_of_a_source_is_a_reference_of_it_once(rows: list[tuple[str, str, str]]) -> None:
    merged = merge_references([Example(source, target, language) for source, target, language in rows])
    accepted = {(e.source, e.source_lang): set(e.references) for e in merged}
    assert len(merged) == len(accepted)
    assert accepted == {key: {t for s, t, lang in rows if (s, lang) == key} for key in {(s, g) for s, _, g in rows}}
    assert all(e.target == e.references[0] and len(set(e.references)) == len(e.references) for e in merged)


def test_speed_counts_the_steps_of_an_epoch_and_the_parameters(tiny: Callable[..., Any], tmp_path: Path) -> None:
    config = tiny(pairs=100).config("training.batch_sentences=10", "training.accumulate=2")
    speed = measure_speed(config, tmp_path / "cache")
    assert 5 <= speed.steps_per_epoch <= 8  # ten batches of ten, some of fewer, two in an update
    assert 0 < speed.seconds_per_step < 30
    list(training.run(config, tmp_path / "run"))
    model = model_folder.load(tmp_path / "run").model
    assert speed.parameters == sum(x.numel() for x in model.parameters())


def test_steps_fit_the_time_the_epochs_and_a_least_number() -> None:
    candidate = Candidate("any", "any", epochs=10, least_epochs=0)
    assert choose_steps(candidate, TrainingSpeed(0.1, 500.0, 1), seconds=100) == 880  # 100 s less 12 %
    assert choose_steps(candidate, TrainingSpeed(0.1, 500.0, 1), seconds=10_000) == 5_000  # ten epochs
    assert choose_steps(candidate, TrainingSpeed(0.1, 5.0, 1), seconds=10_000) == autotrain.MIN_UPDATES
    assert choose_steps(candidate, TrainingSpeed(60.0, 5.0, 1), seconds=1) == 10


def test_the_better_of_three_wins_a_race_and_ends_as_if_it_had_run_alone(
    tiny: Callable[..., Any], tmp_path: Path, same_end: Callable[[Path, Path], None]
) -> None:
    made = tiny(pairs=300)
    rates = {"slow": 1e-7, "slower": 1e-8, "good": 3e-3}
    sets = "training.validate_every=5"
    runs = {name: made.config(sets, f"training.optimizer.rate={rate}") for name, rate in rates.items()}
    reports, winner = race.race(runs, tmp_path / "race"), ""
    while not winner:
        try:
            next(reports)
        except StopIteration as end:
            winner = end.value
    assert winner == "good"
    steps = {name: max(int(p.name[5:]) for p in (tmp_path / "race" / name / "checkpoints").iterdir()) for name in runs}
    assert steps["slower"] == 5  # an eighth of 40 steps, and then no more
    assert steps["good"] == 10
    list(training.run(runs["good"], tmp_path / "race" / "good"))
    list(training.run(runs["good"], tmp_path / "alone"))
    same_end(tmp_path / "race" / "good", tmp_path / "alone")


def test_a_race_that_was_stopped_is_resumed(tiny: Callable[..., Any], tmp_path: Path) -> None:
    made = tiny(pairs=100)
    rates = (("a", 1e-8), ("b", 3e-3))
    runs = {name: made.config("training.validate_every=5", f"training.optimizer.rate={rate}") for name, rate in rates}
    stopped = race.race(runs, tmp_path)
    for report in stopped:
        if report.kind == "saved":
            break
    stopped.close()
    state = model_folder.latest_checkpoint(tmp_path / "a")[0]
    assert state is not None
    first = (state / "model.safetensors").stat().st_mtime_ns
    reports = list(race.race(runs, tmp_path))
    assert reports[-1].message.endswith("going on: b")
    assert (state / "model.safetensors").stat().st_mtime_ns == first  # not trained again


def test_with_search_the_winner_is_the_run(tmp_path: Path) -> None:
    write_words(tmp_path / "words.tsv")
    folder = tmp_path / "runs" / "words"
    request = TrainingRequest(str(tmp_path / "words.tsv"), minutes=0.1, search=True, overrides=SMALL)
    reports = list(autotrain.run(request, folder))
    assert any("race, after" in report.message for report in reports)
    assert (folder / "finished").read_text().strip() == "24"
    assert not (folder / "race").exists()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "valid"] == [12, 24]
    assert torch.get_num_threads() == 1


def test_each_of_several_targets_in_a_line_makes_a_pair_and_held_out_lines_accept_them_all(tmp_path: Path) -> None:
    words = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnr"]
    rows = [
        f"{word}\t{' '.join(word)}" + (f"\t{' '.join(word[::-1])}" if i % 25 == 0 else "")
        for i, word in enumerate(words)
    ]
    (tmp_path / "w.tsv").write_text("".join(f"{row}\n" for row in rows))
    examples, _, sentences = TrainingRequest(str(tmp_path / "w.tsv")).read()
    assert len(examples) == 104
    assert any("4 lines with more than one target" in sentence for sentence in sentences)
    parts = write_parts(examples, {}, tmp_path / "data")
    held_out = [line for name in ("valid", "test") for line in Path(parts.files[name]).read_text().splitlines()]
    assert all(row in held_out or row.split("\t")[0] not in {h.split("\t")[0] for h in held_out} for row in rows)
