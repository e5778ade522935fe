"""The scores of trained systems.

    OUT/JOB/result.json            scores with intervals, parameters, minutes, machine, overlap
    OUT/JOB/TEST.output.tsv        source, output and reference of every test item

Beside them stand what the test items share with the training pairs, and the scores of what needs no model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from dragoman.config import Config
from dragoman.core import files
from dragoman.core.types import Example
from dragoman.data.quality.diagnosis import check
from dragoman.data.quality.report import counted
from dragoman.data.readers import read_pairs, read_sources
from dragoman.evaluation.metrics import metrics
from dragoman.evaluation.significance import interval
from dragoman.inference import pipeline
from dragoman.inference.pipeline import Pipeline
from dragoman.recipes.recipe import SURPRISE, TOGETHER, Figure, Job, Setting
from dragoman.recipes.runner import config_of
from dragoman.recipes.spelling import spelled

RESULT = {"system", "part", "seed", "steps", "minutes", "parameters", "overlap", "tests"}  # of a result.json, at least


def scored(setting: Setting, job: Job) -> bool:
    """Whether a job has the scores of all its steps; one that was trained on has not."""
    found = saved(setting.folder(job) / "result.json")
    return bool(found) and found["steps"] == _spent(setting.folder(job))["steps"]


def saved(path: Path) -> dict[str, Any]:
    """A result.json; nothing where there is none, or one that is broken and has to be made again."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.keys() >= RESULT else {}


def score(setting: Setting, job: Job) -> dict[str, Any]:
    """Decode the tests of a trained job, score them, and write result.json beside the model."""
    return _scored(setting, [job], setting.folder(job), job.system)


def together(setting: Setting, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The same of several models as one: the seeds of each system, and the systems that the recipe puts together."""
    recipe = setting.opened.recipe
    groups = {name: [name] for name, system in recipe.systems.items() if system.scored} | recipe.together
    found = []
    for part in dict.fromkeys(job.part for job in jobs):
        for name, systems in groups.items():
            mine = [job for job in jobs if job.part == part and job.system in systems]
            if len(mine) < 2 or {job.system for job in mine} != {*systems}:
                continue
            folder = setting.out / f"{Job(name, part, 1).name}-together"
            result = saved(folder / "result.json")
            steps = {job.name: _spent(setting.folder(job))["steps"] for job in mine}
            if result.get("members") != steps:  # others may have answered, or these before they were trained on
                files.make_folder(folder)
                result = _scored(setting, mine, folder, f"{name}{TOGETHER}")
            found.append(result)
    return found


def _scored(setting: Setting, jobs: Sequence[Job], folder: Path, system: str) -> dict[str, Any]:
    """The scores of a model, or of several that answer together, written into a folder."""
    job, members = jobs[0], [setting.folder(job) for job in jobs]
    recipe, config = setting.opened.recipe, config_of(setting, job)
    model = pipeline.load("+".join(map(str, members)))
    spent = [_spent(member) for member in members]
    result: dict[str, Any] = {
        "recipe": setting.opened.name,
        "system": system,
        "part": job.part,
        "seed": job.seed,
        "members": {member.name: one["steps"] for member, one in zip(members, spent, strict=True)},
        "parameters": sum(p.numel() for p in model.model.parameters()),
        "steps": spent[0]["steps"],
        "minutes": round(sum(one["minutes"] for one in spent), 2),
        "machine": json.loads((members[0] / "env.json").read_text(encoding="utf-8")),
        "overlap": overlap(setting, job, config),
        "tests": {},
    }
    for test in recipe.tests:
        path = setting.prepared(job.part) / f"{test}.tsv"
        if model.continues_text:
            result["tests"][test] = _surprise(model, path)
            continue
        examples = list(read_pairs(str(path), columns=config.columns, extra_targets=True))
        texts = answers(setting, model, examples, job.system)
        rows = ((one.source, text, *one.accepted) for one, text in zip(examples, texts, strict=True))
        files.write(folder / f"{test}.output.tsv", "".join("\t".join(row) + "\n" for row in rows).encode())
        result["tests"][test] = _scores(recipe.scores, texts, examples, groups(path))
        if test == recipe.tests[0]:
            result["baselines"] = baselines(setting, job, examples)
    files.write(folder / "result.json", (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
    return result


def overlap(setting: Setting, job: Job, config: Config) -> dict[str, str]:
    """What the doctor says of what the test items share with the training pairs."""
    data = setting.prepared(job.part)
    found: dict[str, str] = {}
    for test in setting.opened.recipe.tests:
        report = check(
            [corpus.path for corpus in config.data.train],
            test=str(data / f"{test}.tsv"),
            columns=config.columns,
            fast=True,
        )
        for one in report.findings:
            if one.code.startswith("overlap"):
                said = one.message.removeprefix("test: ")
                if "target" not in config.columns:  # a language model has lines, not pairs
                    lines = counted(one.count, "line", report.statistics["test"].pairs)
                    said = f"{lines} also in train; scores on them flatter the model"
                found[f"{test}: {one.code}"] = f"{test}: {said}"
    return found


def answers(setting: Setting, model: Pipeline, examples: Sequence[Example], system: str) -> list[str]:
    """What the model says; a recipe may ask it in a way of its own (`answer`, which knows the system)."""
    own: Callable[[Pipeline, Sequence[Example], str], list[str]] | None = getattr(setting.opened.code, "answer", None)
    if own is not None:
        return own(model, examples, system)
    return [found.text for found in model.predict(examples, beam=setting.opened.recipe.beam)]


def groups(test: Path) -> list[str] | None:
    """The group of each test item (a language, a kind of generalization), where there are any."""
    path = test.with_suffix(".groups")
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else None


def baselines(setting: Setting, job: Job, examples: Sequence[Example]) -> dict[str, Any]:
    """The scores of what needs no model (the most frequent answer, the first sentence), where a recipe has it."""
    own = getattr(setting.opened.code, "baselines", None)
    if own is None:
        return {}
    said: dict[str, list[str]] = own(setting.prepared(job.part), job.part)
    return {
        name: _scores(setting.opened.recipe.scores, texts, examples, None)["scores"] for name, texts in said.items()
    }


def _scores(
    figures: dict[str, Figure], texts: Sequence[str], examples: Sequence[Example], kinds: Sequence[str] | None
) -> dict[str, Any]:
    found: dict[str, Any] = {"n": len(texts), "scores": {}}
    for name, figure in figures.items():
        metric = metrics.build(figure.metric)
        said = [spelled(text, figure.text, figure.lowercase) for text in texts]
        wanted = [[spelled(text, figure.text, figure.lowercase) for text in one.accepted] for one in examples]
        stats = metric.statistics(said, wanted)

        def scaled(value: float, inverse: bool = figure.inverse) -> float:
            return round(100.0 - value if inverse else value, 4)

        low, high = sorted(map(scaled, interval(metric, stats)))
        found["scores"][name] = {
            "value": scaled(float(metric.score(stats.sum(0)))),
            "interval": [low, high],
            "signature": metric.signature,
        }
        if kinds is not None:
            each = {
                kind: scaled(float(metric.score(stats[[k == kind for k in kinds]].sum(0)))) for kind in sorted({*kinds})
            }
            found.setdefault("groups", {})[name] = each
            found["scores"][f"{name}, mean of groups"] = {"value": round(mean(each.values()), 4)}
            for family in sorted({kind.split("/")[0] for kind in each if "/" in kind}):
                values = [value for kind, value in each.items() if kind.startswith(f"{family}/")]
                found["scores"][f"{name}, mean of {family}"] = {"value": round(mean(values), 4)}
    return found


def _surprise(model: Pipeline, path: Path) -> dict[str, Any]:
    """Bits per character of a text under a language model, </s> of each line counted as one."""
    from math import log

    texts = [one.source for one in read_sources(str(path)) if one.source.strip()]
    nats, characters = -sum(model.score(texts)), sum(len(text) + 1 for text in texts)
    return {"n": len(texts), "scores": {SURPRISE: {"value": round(nats / log(2) / characters, 4)}}}


def _spent(folder: Path) -> dict[str, Any]:
    """Steps and minutes of training, validations not counted, as the run recorded them."""
    last: dict[str, Any] = {}
    recorded = folder / "metrics.jsonl"  # a run of fewer steps than log_every has none
    for line in recorded.read_text(encoding="utf-8").split("\n") if recorded.exists() else ():
        if '"train"' in line:
            last = json.loads(line)
    return {"steps": last.get("step"), "minutes": round(last.get("seconds", 0.0) / 60, 2)}


def results(setting: Setting, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """What finished jobs left, in order."""
    paths = [setting.folder(job) / "result.json" for job in jobs if setting.opened.recipe.systems[job.system].scored]
    return [found for path in paths if (found := saved(path))]


def summary(found: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The means of the scores over seeds: by system/part, and by system over its parts; TEST.score for any test."""
    values: dict[str, dict[str, list[float]]] = {}
    for one in found:
        keys = {one["system"], f"{one['system']}/{one['part']}"} if one["part"] else {one["system"]}
        for i, (test, scored) in enumerate(one["tests"].items()):
            for name, score in scored["scores"].items():
                for key in keys:
                    for label in (f"{test}.{name}", *([name] if i == 0 else [])):
                        values.setdefault(key, {}).setdefault(label, []).append(score["value"])
    return {key: {name: mean(every) for name, every in scores.items()} for key, scores in values.items()}
