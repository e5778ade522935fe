"""Score trained systems.

    OUT/JOB/result.json            scores with intervals, parameters, minutes, machine, overlap
    OUT/JOB/TEST.output.tsv        source, output and references of every test item

A result also holds the overlap of test and training pairs, and the scores of baselines that need no model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import log
from pathlib import Path
from statistics import mean
from typing import NamedTuple, NotRequired, TypedDict

from dragoman.config import Config
from dragoman.core import files
from dragoman.core.types import Example
from dragoman.data.lines import format_count
from dragoman.data.quality.diagnosis import check_pairs
from dragoman.data.readers import read_pairs, read_sources
from dragoman.evaluation.metrics import metrics
from dragoman.evaluation.significance import bootstrap_interval
from dragoman.inference import pipeline
from dragoman.inference.pipeline import Pipeline
from dragoman.recipes.recipe import BITS_PER_CHARACTER, ENSEMBLE, RecipeRun, ScoreSpec, TrainingJob
from dragoman.recipes.runner import job_config
from dragoman.recipes.scoring_tokenization import tokenize_for_scoring


class ScoreValue(TypedDict):
    """One score of a test, with its confidence interval and the metric's signature where they are known."""

    value: float
    interval: NotRequired[list[float]]
    signature: NotRequired[str | None]


class TestScores(TypedDict):
    """The scores of one test file, and of each of its groups."""

    n: int
    scores: dict[str, ScoreValue]
    groups: NotRequired[dict[str, dict[str, float]]]


class JobResult(TypedDict):
    """The content of a result.json: one model, or several that decode as an ensemble."""

    recipe: NotRequired[str]
    system: str
    part: str
    seed: int
    members: NotRequired[dict[str, int | None]]  # the training steps of each model
    parameters: int
    steps: int | None
    minutes: float
    machine: NotRequired[dict[str, object]]
    overlap: dict[str, str]
    tests: dict[str, TestScores]
    baselines: NotRequired[dict[str, dict[str, ScoreValue]]]


class TrainingCost(NamedTuple):
    """What a training took; `steps` is None before the first log line."""

    steps: int | None
    minutes: float


def is_scored(run: RecipeRun, job: TrainingJob) -> bool:
    """Whether a job's result.json is of the last step in its metrics."""
    result = load_result(run.job_folder(job) / "result.json")
    return result is not None and result["steps"] == _training_cost(run.job_folder(job)).steps


def load_result(path: Path) -> JobResult | None:
    """Read a result.json; None if it is missing or damaged, so that it has to be computed again."""
    try:
        result: JobResult = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return result if isinstance(result, dict) and result.keys() >= JobResult.__required_keys__ else None


def score_job(run: RecipeRun, job: TrainingJob) -> JobResult:
    """Decode the test files with a trained job's model, score them, and write result.json beside the model."""
    return _score_models(run, [job], run.job_folder(job), job.system)


def score_ensembles(run: RecipeRun, jobs: Sequence[TrainingJob]) -> list[JobResult]:
    """Score the seeds of each system, and the recipe's ensembles, as ensembles; results that are current are reused."""
    recipe = run.recipe
    ensembles = {name: [name] for name, system in recipe.systems.items() if system.scored} | recipe.ensembles
    results = []
    for part in dict.fromkeys(job.part for job in jobs):
        for name, systems in ensembles.items():
            members = [job for job in jobs if job.part == part and job.system in systems]
            if len(members) < 2 or {job.system for job in members} != {*systems}:
                continue
            folder = run.out / f"{TrainingJob(name, part, 1).name}-ensemble"
            result = load_result(folder / "result.json")
            steps = {job.name: _training_cost(run.job_folder(job)).steps for job in members}
            if result is None or result.get("members") != steps:  # of other members, or of fewer training steps
                files.make_folder(folder)
                result = _score_models(run, members, folder, f"{name}{ENSEMBLE}")
            results.append(result)
    return results


def _score_models(run: RecipeRun, jobs: Sequence[TrainingJob], folder: Path, system: str) -> JobResult:
    """Score the model of one job, or the ensemble of several, and write outputs and result.json into a folder."""
    job, members = jobs[0], [run.job_folder(job) for job in jobs]
    recipe, config = run.recipe, job_config(run, job)
    model = pipeline.load("+".join(map(str, members)))
    costs = [_training_cost(member) for member in members]
    result: JobResult = {
        "recipe": run.loaded.name,
        "system": system,
        "part": job.part,
        "seed": job.seed,
        "members": {member.name: cost.steps for member, cost in zip(members, costs, strict=True)},
        "parameters": sum(p.numel() for p in model.model.parameters()),
        "steps": costs[0].steps,
        "minutes": round(sum(cost.minutes for cost in costs), 2),
        "machine": json.loads((members[0] / "env.json").read_text(encoding="utf-8")),
        "overlap": find_overlap(run, job, config),
        "tests": {},
    }
    for test in recipe.tests:
        path = run.data_folder(job.part) / f"{test}.tsv"
        if model.continues_text:
            result["tests"][test] = _bits_per_character(model, path)
            continue
        examples = list(read_pairs(str(path), columns=config.columns, extra_targets=True))
        outputs = predict_outputs(run, model, examples, job.system)
        rows = ((example.source, text, *example.accepted) for example, text in zip(examples, outputs, strict=True))
        files.write_file(folder / f"{test}.output.tsv", "".join("\t".join(row) + "\n" for row in rows).encode())
        result["tests"][test] = _score_outputs(recipe.scores, outputs, examples, read_groups(path))
        if test == recipe.tests[0]:
            result["baselines"] = score_baselines(run, job, examples)
    files.write_file(folder / "result.json", (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
    return result


def find_overlap(run: RecipeRun, job: TrainingJob, config: Config) -> dict[str, str]:
    """Sentences about what each test file shares with the training pairs, by "test: code of the finding"."""
    data = run.data_folder(job.part)
    overlaps: dict[str, str] = {}
    for test in run.recipe.tests:
        report = check_pairs(
            [corpus.path for corpus in config.data.train],
            test=str(data / f"{test}.tsv"),
            columns=config.columns,
            fast=True,
        )
        for finding in report.findings:
            if finding.code.startswith("overlap"):
                message = finding.message.removeprefix("test: ")
                if "target" not in config.columns:  # a language model has lines, not pairs
                    lines = format_count(finding.count, "line", report.statistics["test"].pairs)
                    message = f"{lines} also in train; scores on them flatter the model"
                overlaps[f"{test}: {finding.code}"] = f"{test}: {message}"
    return overlaps


def predict_outputs(run: RecipeRun, model: Pipeline, examples: Sequence[Example], system: str) -> list[str]:
    """The model's output text for each example; a recipe's own `predict_outputs` is used where there is one."""
    module = run.loaded.recipe_module
    predict: Callable[[Pipeline, Sequence[Example], str], list[str]] | None = getattr(module, "predict_outputs", None)
    if predict is not None:
        return predict(model, examples, system)
    return [prediction.text for prediction in model.predict(examples, beam=run.recipe.beam)]


def read_groups(test: Path) -> list[str] | None:
    """The group of each test item (a language, a kind of generalization); None if the test has no groups."""
    path = test.with_suffix(".groups")
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else None


def score_baselines(run: RecipeRun, job: TrainingJob, examples: Sequence[Example]) -> dict[str, dict[str, ScoreValue]]:
    """The scores of the outputs that the recipe's `baseline_outputs` returns, by baseline; {} if it has none."""
    module = run.loaded.recipe_module
    baseline_outputs: Callable[[Path, str], dict[str, list[str]]] | None = getattr(module, "baseline_outputs", None)
    if baseline_outputs is None:
        return {}
    outputs = baseline_outputs(run.data_folder(job.part), job.part)
    return {name: _score_outputs(run.recipe.scores, texts, examples)["scores"] for name, texts in outputs.items()}


def _score_outputs(
    specs: Mapping[str, ScoreSpec],
    outputs: Sequence[str],
    examples: Sequence[Example],
    groups: Sequence[str] | None = None,
) -> TestScores:
    """Every score with its interval of all items and, with `groups`, of each group and the means over groups."""
    result: TestScores = {"n": len(outputs), "scores": {}}
    if groups is not None:
        result["groups"] = {}
    for name, spec in specs.items():

        def tokenize(text: str, spec: ScoreSpec = spec) -> str:
            return tokenize_for_scoring(text, spec.text, spec.lowercase)

        metric = metrics.build(spec.metric)
        references = [[tokenize(text) for text in example.accepted] for example in examples]
        stats = metric.statistics([tokenize(text) for text in outputs], references)
        low, high = bootstrap_interval(metric, stats)
        result["scores"][name] = {
            "value": round(float(metric.score(stats.sum(0))), 4),
            "interval": [round(low, 4), round(high, 4)],
            "signature": metric.signature,
        }
        if groups is None:
            continue
        by_group = {
            group: round(float(metric.score(stats[[g == group for g in groups]].sum(0))), 4)
            for group in sorted({*groups})
        }
        result["groups"][name] = by_group
        result["scores"][f"{name}, mean of groups"] = {"value": round(mean(by_group.values()), 4)}
        for family in sorted({group.split("/")[0] for group in by_group if "/" in group}):
            values = [value for group, value in by_group.items() if group.startswith(f"{family}/")]
            result["scores"][f"{name}, mean of {family}"] = {"value": round(mean(values), 4)}
    return result


def _bits_per_character(model: Pipeline, path: Path) -> TestScores:
    """The bits per character of a file's texts under a language model; each </s> counts as a character."""
    texts = [example.source for example in read_sources(str(path)) if example.source.strip()]
    nats, characters = -sum(model.score(texts)), sum(len(text) + 1 for text in texts)
    return {"n": len(texts), "scores": {BITS_PER_CHARACTER: {"value": round(nats / log(2) / characters, 4)}}}


def _training_cost(folder: Path) -> TrainingCost:
    """Steps and minutes of training, without validation, from the last line of a run's metrics.jsonl."""
    steps, seconds = None, 0.0
    path = folder / "metrics.jsonl"  # a run of fewer steps than log_every has none
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else ():
        if '"train"' in line:
            try:
                values = json.loads(line)
            except ValueError:  # a damaged line; the next one counts further
                continue
            steps, seconds = values.get("step"), values.get("seconds", 0.0)
    return TrainingCost(steps, round(seconds / 60, 2))


def load_results(run: RecipeRun, jobs: Sequence[TrainingJob]) -> list[JobResult]:
    """The results of those jobs whose system is scored and that have a result.json, in order."""
    paths = [run.job_folder(job) / "result.json" for job in jobs if run.recipe.systems[job.system].scored]
    return [result for path in paths if (result := load_result(path)) is not None]


def average_scores(results: Sequence[JobResult]) -> dict[str, dict[str, float]]:
    """The mean of each score over seeds, by system/part, and over seeds and parts, by system.

    A score is called NAME for the first test, and TEST.NAME for every test.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for result in results:
        system, part = result["system"], result["part"]
        keys = {system, f"{system}/{part}"} if part else {system}
        for i, (test, scored) in enumerate(result["tests"].items()):
            for name, score in scored["scores"].items():
                for key in keys:
                    for label in (f"{test}.{name}", *([name] if i == 0 else [])):
                        values.setdefault(key, {}).setdefault(label, []).append(score["value"])
    return {key: {name: mean(each) for name, each in scores.items()} for key, scores in values.items()}
