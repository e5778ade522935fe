"""Run a recipe: prepare the data, look it over, train each system, score it, and compare with what is expected.

    OUT/data[/PART]/{train,valid,test}.tsv       written once, and anew where the set changed before a training began
    OUT/JOB/                                     a run folder; the same command again goes on where it was stopped
    OUT/JOB/result.json                          scores with intervals, parameters, minutes, machine, overlap
    OUT/JOB/TEST.output.tsv                      source, output and reference of every test item

Nothing is fetched: data is read where the user points. Jobs may run side by side as processes of their own.
"""

from __future__ import annotations

import fcntl
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from dragoman import config as configs
from dragoman import pipeline, training
from dragoman.config import Config
from dragoman.core import files
from dragoman.core.errors import DataError, RunError, Stopped
from dragoman.core.interfaces import Example
from dragoman.data.check import check
from dragoman.data.diagnosis import counted
from dragoman.data.readers import read_pairs, read_sources
from dragoman.evaluation.metrics import metrics
from dragoman.evaluation.significance import interval
from dragoman.pipeline import Pipeline
from dragoman.recipes import origin, tables
from dragoman.recipes.origin import Origin
from dragoman.recipes.recipe import SURPRISE, TOGETHER, Figure, Job, Opened
from dragoman.recipes.spelling import spelled
from dragoman.training import Report

DONE = "prepared"  # beside the prepared files: all are there, and what they were made of (origin.py)
RESULT = {"system", "part", "seed", "steps", "minutes", "parameters", "overlap", "tests"}  # of a result.json, at least

# What --example changes: a look at the whole way, on a hundred pairs.
QUICK = (
    "training.steps=4",
    "training.epochs=null",
    "training.validate_every=4",
    "training.save_every=4",
    "training.log_every=4",
    "training.average=1",
    "training.batch_sentences=8",
    "training.accumulate=1",
    "training.precision=float32",
    "training.patience=null",
    "training.validate_examples=4",
    "training.replay=0",
    "data.workers=0",
    "runtime.device=cpu",
    "runtime.threads=1",
)


@dataclass(frozen=True)
class Setting:
    """How jobs of a recipe are run."""

    opened: Opened
    data: Path | None  # None where nothing is pointed to
    out: Path
    example: bool = False  # on made-up data, a few steps
    sets: Sequence[str] = ()
    allow_change: Sequence[str] = ()  # keys of the config that a run that is gone on with may differ in

    def folder(self, job: Job) -> Path:
        return self.out / job.name

    def prepared(self, part: str) -> Path:
        return self.out / "data" / part if part else self.out / "data"


def prepare(setting: Setting, part: str) -> Path:
    """The files of a part, written where they are not there yet, and anew where the set's files have changed since."""
    folder = setting.prepared(part)
    if not _current(setting, part):
        sets = _made_up(setting) if setting.example else _pointed_to(setting)
        with _alone(folder):  # another command may be at the same data
            if not _current(setting, part):
                files.make_folder(folder)
                (folder / DONE).unlink(missing_ok=True)
                with tables.reading() as read:
                    setting.opened.code.prepare(sets, part, folder)
                _require_some(setting, folder, read, sets)
                made = Origin(_places(setting)) if setting.example or not sets else origin.of(sets, read)
                files.write(folder / DONE, made.text().encode())
    return folder


def _current(setting: Setting, part: str) -> bool:
    """Whether a part is prepared from the data as it is; an error where it must not be prepared anew."""
    folder = setting.prepared(part)
    if not (folder / DONE).exists():
        return False
    before, here = origin.load(folder / DONE), _places(setting)
    if before is None:
        return True
    if not {*before.places} <= {*here}:
        remedy = f"choose another folder with --run, or remove {folder} to prepare it again"
        raise RunError(f"{folder}: was prepared from {', '.join(before.places)}, not from {here[0]}; {remedy}")
    changed = before.changed()
    if changed and (begun := _begun(setting, part)):
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise RunError(
            f"{changed[0]}{more}: is not what it was when {', '.join(begun)} began in {setting.out}; "
            "choose another folder with --run, or put the old file back"
        )
    return not changed


def _places(setting: Setting) -> list[str]:
    """Where the data comes from: what --data names, and the folder of each set there; or a phrase."""
    if setting.data is not None:
        return [str(path.resolve()) for path in (setting.data, *_pointed_to(setting).values())]
    return ["a hundred made-up items (--example)" if setting.example else "what the recipe makes up"]


def _begun(setting: Setting, part: str) -> list[str]:
    """The trainings of a part that have begun, with any seed."""
    names = "|".join(re.escape(Job(system, part, 1).name) for system in setting.opened.recipe.systems)
    return sorted(
        place.parent.name
        for place in setting.out.glob("*/config.yaml")
        if re.fullmatch(rf"({names})(-seed\d+)?", place.parent.name)
    )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """A folder for one command at a time; where filling it fails, what is new of it goes again."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    files.make_folder(folder)
    with (folder / ".lock").open("ab") as lock:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        except BaseException:
            if new:
                shutil.rmtree(folder, ignore_errors=True)
            for place in new[1:]:
                with suppress(OSError):  # something else is in it by now
                    place.rmdir()
            raise


def _require_some(setting: Setting, folder: Path, read: Mapping[Path, int | None], sets: Mapping[str, Path]) -> None:
    """That nothing which is trained on, validated on or tested is empty; else the set's file is named."""
    systems = setting.opened.recipe.systems.values()
    wanted = [*(one.train for one in systems), *(f"{test}.tsv" for test in setting.opened.recipe.tests)]
    wanted += [one.valid for one in systems if one.valid is not None and (folder / one.valid).exists()]
    for name in dict.fromkeys(wanted):
        if (folder / name).exists() and (folder / name).read_bytes().strip():
            continue
        tabled = [
            path for path, n in read.items() if n is not None and any(origin.within(path, s) for s in sets.values())
        ]
        for path in tabled:
            if not read[path]:
                raise DataError(f"has not one line, and nothing is left for {name}; {tables.AGAIN}", path)
        found = f"of {', '.join(path.name for path in tabled)} nothing is left for {name}"
        raise DataError(f"{found}; {tables.AGAIN}", next(iter(sets.values()), folder))


def _pointed_to(setting: Setting) -> dict[str, Path]:
    return {} if setting.data is None else setting.opened.sets(setting.data)


def _made_up(setting: Setting) -> dict[str, Path]:
    """Folders with a hundred items each, in the form of the recipe's data sets.

    Where `prepare` makes the data up, a single one called "example" tells it that a hundred items are enough.
    """
    sets = {name: setting.out / "example" / name for name in setting.opened.recipe.data or ["example"]}
    for folder in sets.values():
        files.make_folder(folder)
    setting.opened.code.example(sets, random.Random(1))
    return sets


def config_of(setting: Setting, job: Job) -> Config:
    """A system's config, with the data, the seed and what the user sets."""
    valid, data = setting.opened.recipe.systems[job.system].valid, prepare(setting, job.part)
    return _config(setting, job, validates=valid is not None and (data / valid).exists())


def check_configs(setting: Setting, jobs: Sequence[Job]) -> None:
    """That the configs of jobs are right, before any data is looked at."""
    for job in {job.system: job for job in jobs}.values():
        _config(setting, job, validates=setting.opened.recipe.systems[job.system].valid is not None)


def _config(setting: Setting, job: Job, validates: bool) -> Config:
    system, data = setting.opened.recipe.systems[job.system], setting.prepared(job.part)
    sets = [f"name={job.name}", f"seed={job.seed}", f"data.train={_quoted(data / system.train)}"]
    if validates:
        sets.append(f"data.valid={_quoted(data / str(system.valid))}")
    if system.after is not None:
        sets.append(f"training.start_from={_quoted(setting.folder(replace(job, system=system.after)))}")
    file, sets = setting.opened.config(job.system), [*sets, *setting.sets]
    if not setting.example:
        return configs.load(file, None, sets).config
    schedule = configs.load(file, None, sets).config.training.schedule.options
    warmup = ["training.schedule.warmup=1"] if "warmup" in schedule else []
    return configs.load(file, None, [*sets, *QUICK, *warmup]).config


def _quoted(path: Path) -> str:
    """A path as a value of --set, whatever it is called: JSON's strings are YAML's."""
    return json.dumps(str(path))


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


def train(setting: Setting, job: Job) -> Iterator[Report]:
    """Train one job; one that is finished only says so."""
    return training.run(config_of(setting, job), setting.folder(job), allow_change=setting.allow_change)


def scored(setting: Setting, job: Job) -> bool:
    """Whether a job has the scores of all its steps; one that was trained on has not."""
    saved = _saved(setting.folder(job) / "result.json")
    return bool(saved) and saved["steps"] == _spent(setting.folder(job))["steps"]


def _saved(path: Path) -> dict[str, Any]:
    """A result.json; nothing where there is none, or one that is broken and has to be made again."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.keys() >= RESULT else {}


# -- scoring -----------------------------------------------------------------------------------------------------------


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
            result = _saved(folder / "result.json")
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
        if model.goes_on:
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


# -- several jobs ------------------------------------------------------------------------------------------------------


def results(setting: Setting, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """What finished jobs left, in order."""
    paths = [setting.folder(job) / "result.json" for job in jobs if setting.opened.recipe.systems[job.system].scored]
    return [saved for path in paths if (saved := _saved(path))]


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


def side_by_side(setting: Setting, jobs: Sequence[Job], count: int, say: Callable[[str], None]) -> None:
    """Each job in a process of its own, so many at a time; a system that builds on another waits for it."""
    after = {name: system.after for name, system in setting.opened.recipe.systems.items()}
    if busy := {job.name: holder for job in jobs if (holder := _holder(setting.folder(job)))}:
        named = ", ".join(f"{name} by process {holder}" for name, holder in busy.items())
        raise RunError(
            f"{setting.out}: an earlier command still trains {named}; wait for that, "
            f"or end it with `kill {' '.join(busy.values())}`, and give the same command again"
        )
    for part in {job.part for job in jobs}:
        prepare(setting, part)
    for wave in (
        [job for job in jobs if after[job.system] is None],
        [job for job in jobs if after[job.system] is not None],
    ):
        errors = _in_processes(setting, wave, count, say)
        failed = [f"{job.name} ({error})" for job, error in zip(wave, errors, strict=True) if error]
        if failed:
            raise RunError(
                f"{len(failed)} of {len(wave)} jobs failed: {'; '.join(failed)}. {setting.out}/JOB.log says more"
            )


def _holder(folder: Path) -> str:
    """The process that trains in a folder, if any does."""
    with suppress(FileNotFoundError), (folder / ".lock").open("r+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return lock.read().strip() or "unknown"
    return ""


def _in_processes(setting: Setting, jobs: Sequence[Job], count: int, say: Callable[[str], None]) -> list[str]:
    """The errors of jobs, so many at a time; what ends this process early ends them too, and they save first."""
    children: list[subprocess.Popen[bytes]] = []
    beginning, ended = threading.Lock(), threading.Event()

    def run(job: Job) -> str:
        told = setting.out / f"{job.name}.log"
        with beginning, told.open("ab") as log:
            if ended.is_set():
                return "not begun"
            before = told.stat().st_size
            child = subprocess.Popen(_command(setting, job), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            children.append(child)
        say(f"{job.name}: begins; {told} tells more")
        code = child.wait()
        error = _error(told, before, code) if code else ""
        if not ended.is_set():
            say(f"{job.name}: failed ({error})" if code else f"{job.name}: {_reached(setting, job)}")
        return error

    files.make_folder(setting.out)
    with ThreadPoolExecutor(count) as pool, _terminable():
        try:
            return list(pool.map(run, jobs))
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            with beginning:  # one that begins right now is among the children, or does not begin
                ended.set()
            say("stopping; each training saves first")
            for child in children:
                child.terminate()
            if isinstance(error, KeyboardInterrupt):
                raise Stopped("stopped; the same command goes on", 128 + signal.SIGINT) from None
            raise


def _reached(setting: Setting, job: Job) -> str:
    """How a job ended well: its first score."""
    saved = _saved(setting.folder(job) / "result.json")
    for test, scored in saved.get("tests", {}).items():
        for name, score in scored["scores"].items():
            figure = setting.opened.recipe.scores.get(name)
            label = figure.label if figure is not None and figure.label else name
            return f"done, {label} {score['value']:.2f} on {test} after {saved['minutes']:.1f} minutes of training"
    return "done"


def _error(log: Path, begin: int, code: int) -> str:
    """Why a job failed: the last error that it told in its log."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = [line.strip() for line in log.read_bytes()[begin:].decode(errors="replace").split("\n") if line.strip()]
    errors = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    return " ".join(lines[errors[-1] if errors else -1 :]).removeprefix("error: ") or f"exit code {code}"


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM as an error inside, so that what was begun can be ended."""

    def stop(number: int, frame: Any) -> None:
        raise Stopped("stopped by a signal; the same command goes on", 128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _command(setting: Setting, job: Job) -> list[str]:
    """One job on the command line."""
    only = f"{job.system}/{job.part}" if job.part else job.system
    where = ["--data", str(setting.data)] if setting.data is not None else ["--example"] * setting.example
    name, out = setting.opened.name, str(setting.out)
    words = ["recipe", "run", name, *where, "--run", out, "--only", only, "--seed", str(job.seed)]
    more = (*(f"--set={value}" for value in setting.sets), *(f"--allow-change={key}" for key in setting.allow_change))
    return [sys.executable, "-m", "dragoman", *words, *more]
