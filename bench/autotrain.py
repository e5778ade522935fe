"""`dragoman train PAIRS` against the recipes: on ten sets, with no choice made and as much time.

    python bench/autotrain.py --data DATA --out OUT [--sets cmudict,scan] [--seeds 1,2,3] [--minutes 10] [--only chosen]

DATA has the folders of the data sets. The recipe's system gets the time that `train` gets: as many steps as fit into
it, or all of its own, with warm-up and validation scaled to them. Both learn from the same pairs, are validated on the
same, and are scored on the recipe's test set by the recipe's main score. Inflection is given to `train` as a table of
lemma, features and form, as it is published, and to the recipe in the form that the recipe makes of it.

Every result is a line of OUT/results.jsonl; what is in it already is not computed again. The table at the end has the
medians over seeds, and the ratio that is aimed at: errors at most 1.05 times the recipe's, BLEU at least 0.95 times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dragoman import config as configs
from dragoman import training
from dragoman.config import Config, autoconfig
from dragoman.core.types import Example
from dragoman.data.readers import read_pairs
from dragoman.data.readers.columns import fit_columns
from dragoman.evaluation.metrics import metrics
from dragoman.inference import pipeline
from dragoman.recipes import tables
from dragoman.recipes.prepared_data import prepare_data
from dragoman.recipes.recipe import RecipeRun, TrainingJob, load_recipe
from dragoman.recipes.runner import job_config
from dragoman.recipes.scoring_tokenization import tokenize_for_scoring
from dragoman.training import autotrain
from dragoman.training.autotrain import TrainingRequest
from dragoman.training.speed import measure_speed

Who = Literal["recipe", "chosen"]
MAX_ERROR, MIN_SCORE = 1.05, 0.95  # times the recipe's


class Task(NamedTuple):
    """A set: the recipe, the part of its data, and the best of its systems."""

    recipe: str
    part: str
    system: str


TASKS = {
    "cmudict": Task("pronunciation", "", "lstm"),
    "g2p-2020": Task("pronunciation-languages", "2020", "transformer"),
    "g2p-2021": Task("pronunciation-languages", "2021", "lstm"),
    "inflection-tur": Task("inflection", "tur", "transformer"),
    "inflection-swa": Task("inflection", "swa", "transformer"),
    "inflection-jap": Task("inflection", "jap", "transformer"),  # besides the ten: half of its lemmas have a new kanji
    "hindi": Task("transliteration", "hindi", "transformer"),
    "multi30k": Task("multi30k", "cased", "tiny"),
    "tatoeba-de": Task("translation", "tatoeba-de", "medium"),
    "scan": Task("scan", "simple", "transformer"),
    "django": Task("code", "django", "copying"),
}


def main() -> None:
    """Train what is missing, score it, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", default=",".join(TASKS))
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", choices=["recipe", "chosen"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "results.jsonl"
    done = read_results(results)
    names: list[Who] = [options.only] if options.only else ["recipe", "chosen"]
    for seed in map(int, options.seeds.split(",")):
        for name in options.sets.split(","):
            for who in names:
                if (name, who, seed, options.minutes) in done:
                    continue
                result = measure(name, who, seed, options.minutes, options.data, options.out)
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result, ensure_ascii=False) + "\n")
                print(json.dumps(result, ensure_ascii=False), flush=True)
    print_table(list(read_results(results).values()))


def read_results(path: Path) -> dict[tuple[str, str, int, float], dict[str, Any]]:
    """The results that are there, by set, side, seed and minutes."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    return {(row["set"], row["who"], row["seed"], row["minutes"]): row for row in rows}


def measure(name: str, who: Who, seed: int, minutes: float, data: Path, out: Path) -> dict[str, Any]:
    """Train and score one system on one set."""
    task, began = TASKS[name], time.perf_counter()
    run = RecipeRun(load_recipe(task.recipe), data, out / task.recipe)
    folder = out / "runs" / f"{name}-{who}-{seed}-{minutes:g}"
    prepared = prepare_data(run, task.part)
    job = TrainingJob(task.system, task.part, seed)
    if who == "recipe":
        config = fit_steps(run, job, minutes, out / "cache")
        finish(training.run(config, folder))
        test, columns = prepared / "test.tsv", config.columns
    else:
        parts = raw_inflection(data, task.part, prepared) if task.recipe == "inflection" else prepared
        valid = parts / "valid.tsv"
        request = TrainingRequest(
            str(parts / "train.tsv"),
            str(valid) if valid.exists() else None,
            minutes=minutes,
            overrides=(f"seed={seed}",),
        )
        finish(autotrain.run(request, folder))
        test = parts / "test.tsv"
        columns = configs.load(folder / "train.yaml", None, []).config.columns
        if (proposal := fit_columns(str(test), columns)) is not None:
            columns = proposal.columns
    trained = time.perf_counter() - began
    model = pipeline.load(folder)
    read = read_pairs(str(test), columns=columns, extra_targets=True)
    examples = [model.codec.normalize_targets(example) for example in read]
    beam = run.recipe.beam if who == "recipe" else None
    outputs = [prediction.text for prediction in model.predict(examples, beam=beam)]
    scores = {key: score(run, key, outputs, examples) for key in run.recipe.scores}
    main_score = next(iter(run.recipe.scores))
    return {
        "set": name,
        "who": who,
        "seed": seed,
        "minutes": minutes,
        "score": main_score,
        "value": scores[main_score],
        "scores": scores,
        "steps": model.config.training.steps,
        "parameters": sum(p.numel() for p in model.model.parameters()),
        "trained_minutes": round(trained / 60, 2),
        "system": task.system if who == "recipe" else chosen_system(folder),
    }


def finish(reports: Iterator[Any]) -> None:
    """Run a training to its end."""
    for _ in reports:
        pass


def fit_steps(run: RecipeRun, job: TrainingJob, minutes: float, cache: Path) -> Config:
    """A recipe's config with as many steps as fit into the time, at most its own, and intervals that belong to them."""
    config = job_config(run, job)
    speed = measure_speed(config, cache)
    own = config.training.steps or round((config.training.epochs or 1) * speed.steps_per_epoch)
    affordable = minutes * 60 * (1 - autotrain.VALIDATION_SHARE) / speed.seconds_per_step
    steps = max(int(min(own, affordable)), 100)
    warmup = config.training.schedule.options.get("warmup")
    values = {"training.epochs": None, **autoconfig.interval_settings(steps, round((warmup or 0) * steps / own))}
    if warmup is None:
        del values["training.schedule.warmup"]
    if config.data.valid is not None:
        values["training.validate_examples"] = min(config.training.validate_examples or 500, 500)
    return job_config(replace(run, overrides=[f"{key}={json.dumps(value)}" for key, value in values.items()]), job)


def raw_inflection(data: Path, language: str, prepared: Path) -> Path:
    """A folder with the pairs of a language as they are published: lemma, features, form."""
    folder = prepared.parent / f"{language}-raw"
    folder.mkdir(exist_ok=True)
    for part, name in (("train", "train"), ("valid", "dev"), ("test", "test")):
        source = data / "sigmorphon2023-inflection" / f"{language}.{name}.tsv"
        tables.write_rows(folder / f"{part}.tsv", tables.read_rows(source, num_columns=3))
    return folder


def score(run: RecipeRun, name: str, outputs: Sequence[str], examples: Sequence[Example]) -> float:
    """One of the recipe's scores."""
    spec = run.recipe.scores[name]
    metric = metrics.build(spec.metric)
    references = [[tokenize_for_scoring(t, spec.text, spec.lowercase) for t in each.accepted] for each in examples]
    texts = [tokenize_for_scoring(text, spec.text, spec.lowercase) for text in outputs]
    return round(float(metric.score(metric.statistics(texts, references).sum(0))), 3)


def chosen_system(folder: Path) -> str:
    """What was chosen, as the plan says it."""
    return next(str(line) for line in autotrain.read_plan(folder)["lines"] if line.startswith("model: "))


def print_table(results: Sequence[dict[str, Any]]) -> None:
    """Medians over seeds of both sides, and their ratio."""
    print("\n| set | score | recipe | chosen | ratio | aim |\n|---|---|---|---|---|---|")
    for name in TASKS:
        values = {who: sorted(r["value"] for r in results if r["set"] == name and r["who"] == who)
                  for who in ("recipe", "chosen")}  # fmt: skip
        if not all(values.values()):
            continue
        label = next(r["score"] for r in results if r["set"] == name)
        recipe = load_recipe(TASKS[name].recipe).recipe
        is_score = metrics.build(recipe.scores[label].metric).higher_is_better
        medians = {who: statistics.median(each) for who, each in values.items()}
        if label == "exact":  # as an error
            medians, is_score = {who: 100 - value for who, value in medians.items()}, False
        ratio = medians["chosen"] / max(medians["recipe"], 1e-9)
        is_met = ratio >= MIN_SCORE if is_score else ratio <= MAX_ERROR or medians["chosen"] < 0.5
        shown = [
            f"{medians[who]:.1f} ({len(values[who])}: {values[who][0]:.1f} … {values[who][-1]:.1f})" for who in medians
        ]
        named = f"{label}, % wrong" if label == "exact" else label
        print(f"| {name} | {named} | {' | '.join(shown)} | {ratio:.2f} | {'met' if is_met else 'missed'} |")


if __name__ == "__main__":
    main()
