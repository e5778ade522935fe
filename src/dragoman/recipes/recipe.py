"""Load recipes: folders with a recipe.yaml that say what is trained on what, and which scores to expect.

    ─prepare(data_sets, part, folder)→ train.tsv, valid.tsv, test.tsv ─each system→ a model ─each metric→ a score

A part is a subset of the data with models of its own (a language, a split); most recipes have one. A job is one
training: a system, a part and a seed. `expect` holds the expected scores, by system/part or by system; a system with
several parts is expected to reach them in the mean over its parts.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal, NamedTuple, NoReturn

from pydantic import BeforeValidator, Field, ValidationError

from dragoman.core import yaml
from dragoman.core.errors import ConfigError, DataError, UserError, did_you_mean
from dragoman.core.registry import Options, Part, PositiveInt
from dragoman.evaluation.metrics import metrics

BITS_PER_CHARACTER = "bits per character"  # the score of a language model
ENSEMBLE = ", ensemble"  # after a system's name: the models of its seeds decode as one
ScoringTokenization = Literal["as it is", "spacy words", "moses words", "code tokens"]


def _parse_score(value: object) -> object:
    """Turn a bare metric of a recipe.yaml into a score spec with that metric; a full spec stays as it is."""
    return value if isinstance(value, dict) and "metric" in value else {"metric": value}


class ScoreSpec(Options):
    """One score: a metric, and how texts are tokenized before they are scored (scoring_tokenization.py)."""

    metric: Annotated[Part, metrics]
    text: ScoringTokenization = "as it is"
    lowercase: bool = False
    label: str | None = None  # in tables; default: its name


def _parse_system(value: object) -> object:
    """Turn a bare string of a recipe.yaml into a system with that config file; a mapping stays as it is."""
    return {"config": value} if isinstance(value, str) else value


class System(Options):
    """One model of a recipe: its config file and the files it is trained and validated on."""

    config: str
    after: str | None = None  # start from the weights and tokenizers of this system, which is trained first
    train: str = "train.tsv"
    valid: str | None = "valid.tsv"
    scored: bool = True  # false: only trained, for a system that starts from it


class ExpectedScore(Options):
    """A score, and how far below it (above, for an error rate) a run may be."""

    value: float
    tolerance: Annotated[float, Field(ge=0.0)]


class Recipe(Options):
    """The content of a recipe.yaml."""

    title: str
    task: str
    data: list[str] = []  # the folders of data sets; none: prepare generates the data
    parts: Annotated[list[str], Field(min_length=1)] = [""]
    systems: dict[str, Annotated[System, BeforeValidator(_parse_system)]]
    # The test files: NAME.tsv, and optionally NAME.groups with one group for each line.
    tests: Annotated[list[str], Field(min_length=1)] = ["test"]
    scores: dict[str, Annotated[ScoreSpec, BeforeValidator(_parse_score)]]  # the first is the main score
    beam: PositiveInt | None = None  # default: that of the config
    seeds: Annotated[list[int], Field(min_length=1)] = [1]
    ensembles: dict[str, Annotated[list[str], Field(min_length=2)]] = {}  # systems that decode as one, by name
    expect: dict[str, dict[str, ExpectedScore]] = {}
    extras: list[str] = []  # extras of the package that must be installed

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each `after`, ensemble or expected score that refers to nothing allowed."""
        for name, system in self.systems.items():
            if system.after is not None and system.after not in self.systems:
                yield f"systems.{name}.after is '{system.after}', which is not a system of this recipe"
            elif system.after is not None and self.systems[system.after].after is not None:
                yield f"systems.{name}.after is '{system.after}', which has an `after` itself; it must have none"
        for name, members in self.ensembles.items():
            if name in self.systems or not {*members} <= self.systems.keys():
                yield f"ensembles.{name} must be a new name for some of the systems {', '.join(self.systems)}"
        systems = [*self.systems, *(f"{name}{ENSEMBLE}" for name in (*self.systems, *self.ensembles))]
        known = {*systems, *(f"{system}/{part}" for system in systems for part in self.parts)}
        for key, scores in self.expect.items():
            if key not in known:
                yield f"expect: '{key}' is neither a system nor a system/part of this recipe"
            for score in scores:
                test, _, name = score.rpartition(".")
                if (test and test not in self.tests) or _without_mean(name) not in {*self.scores, BITS_PER_CHARACTER}:
                    yield f"expect.{key}: there is no score '{score}'"


@dataclass(frozen=True)
class TrainingJob:
    """One training: a system on a part of the data with a seed."""

    system: str
    part: str
    seed: int

    @property
    def name(self) -> str:
        """The name of the job's run folder: SYSTEM-PART-seedN, without an empty part or seed 1."""
        return "-".join(filter(None, (self.system, self.part, f"seed{self.seed}" if self.seed != 1 else "")))


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe with its name and its folder."""

    name: str
    recipe: Recipe
    folder: Path

    def config_file(self, system: str) -> Path:
        """The path of a system's config."""
        return self.folder / self.recipe.systems[system].config

    @property
    def readme(self) -> str:
        """The text of the recipe's README.md."""
        return (self.folder / "README.md").read_text(encoding="utf-8")

    @property
    def recipe_module(self) -> ModuleType:
        """The module recipes.NAME.prepare: `prepare`, `make_example`, some `baseline_outputs` or `predict_outputs`."""
        return importlib.import_module(f"dragoman.recipes.{self.folder.name}.prepare")

    def select_jobs(self, only: Sequence[str] = (), seeds: Sequence[int] = ()) -> list[TrainingJob]:
        """The jobs of the systems, parts or system/parts in `only` (default: all), each after its prerequisite."""
        recipe = self.recipe
        every = [
            (system, part, {system, *([part, f"{system}/{part}"] if part else [])})
            for part in recipe.parts
            for system in recipe.systems
        ]
        allowed = sorted({name for *_, known in every for name in known})
        for name in only:
            if name not in allowed:
                there = f"(there is {', '.join(allowed)})"
                raise UserError(
                    f"--only: the recipe '{self.name}' has no '{name}'{did_you_mean(name, allowed)} {there}"
                )
        selected: list[tuple[str, str]] = []
        for system, part, known in every:
            if not only or known & {*only}:
                before = recipe.systems[system].after
                selected += [(name, part) for name in (before, system) if name is not None]
        return [
            TrainingJob(system, part, seed)
            for seed in (seeds or recipe.seeds)
            for system, part in dict.fromkeys(selected)
        ]

    def find_data_sets(self, folder: Path) -> DataSets:
        """The recipe's data sets that exist in `folder`, which may itself be the only one; an error if none does."""
        names = self.recipe.data
        is_data_set = len(names) == 1 and not (folder / names[0]).is_dir()
        paths = {names[0]: folder} if is_data_set else {name: folder / name for name in names}
        data_sets = DataSets({name: path for name, path in paths.items() if path.is_dir()}, self.name, folder)
        if not data_sets:
            data_sets.raise_missing(names[0])
        return data_sets


class DataSets(dict[str, Path]):
    """The folders of data sets by name; looking up a missing one raises an error that says how to get it."""

    def __init__(self, paths: Mapping[str, Path], recipe: str, folder: Path) -> None:
        """Hold `paths`; `recipe` and `folder` are only for the error message."""
        super().__init__(paths)
        self.recipe, self.folder = recipe, folder

    def __missing__(self, name: str) -> Path:
        """Raise the DataError for a missing data set, instead of a KeyError."""
        self.raise_missing(name)

    def raise_missing(self, name: str) -> NoReturn:
        """Raise a DataError for a data set that is not there."""
        raise DataError(
            f"there is no folder with the data set '{name}'; --data names it, or the folder that holds it "
            f"(`dragoman recipe show {self.recipe}` says how to get it)",
            self.folder,
        )


def recipe_names() -> list[str]:
    """The names of all recipes, sorted."""
    root = Path(str(resources.files("dragoman.recipes")))
    return sorted(file.parent.name.replace("_", "-") for file in root.glob("*/recipe.yaml"))


def load_recipe(name: str) -> LoadedRecipe:
    """Read and check the recipe.yaml of a recipe."""
    known = recipe_names()
    if name not in known:
        raise UserError(
            f"there is no recipe '{name}'{did_you_mean(name, known)} (`dragoman recipe list` shows them all)"
        )
    folder = Path(str(resources.files("dragoman.recipes"))) / name.replace("-", "_")
    where = folder / "recipe.yaml"
    try:
        recipe = Recipe.model_validate(yaml.read(where))
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False)]
        raise ConfigError(where, problems) from None
    if problems := list(recipe.problems()):
        raise ConfigError(where, problems)
    return LoadedRecipe(name, recipe, folder)


def _without_mean(name: str) -> str:
    """The name of a score without its suffix ", mean of …"."""
    return name.split(", mean of ")[0]


def _higher_is_better(recipe: Recipe, name: str) -> bool:
    """Whether a higher value of the named score is better, by its metric."""
    if name == BITS_PER_CHARACTER:
        return False
    return metrics.build(recipe.scores[name].metric).higher_is_better


class ScoreCheck(NamedTuple):
    """A score of a system or system/part compared with the expected one."""

    system: str
    score: str
    value: float
    expected: ExpectedScore
    passed: bool


def check_expected_scores(recipe: Recipe, scores: Mapping[str, Mapping[str, float]]) -> list[ScoreCheck]:
    """Compare scores, by system and name, with the recipe's expected ones; those without a score are left out."""
    checks = []
    for system, expected in recipe.expect.items():
        for name, goal in expected.items():
            if name not in scores.get(system, {}):
                continue
            value = scores[system][name]
            if _higher_is_better(recipe, _without_mean(name.rpartition(".")[2])):
                passed = value >= goal.value - goal.tolerance
            else:
                passed = value <= goal.value + goal.tolerance
            checks.append(ScoreCheck(system, name, value, goal, passed))
    return checks


@dataclass(frozen=True)
class RecipeRun:
    """A recipe with the data and the options that its jobs are run with."""

    loaded: LoadedRecipe
    data: Path | None  # None if no data set is given
    out: Path
    example: bool = False  # a few steps on generated data
    overrides: Sequence[str] = ()  # KEY=VALUE over every config
    allow_change: Sequence[str] = ()  # keys of the config in which a resumed run may differ

    @property
    def recipe(self) -> Recipe:
        """The content of the recipe.yaml."""
        return self.loaded.recipe

    def job_folder(self, job: TrainingJob) -> Path:
        """The run folder of a job."""
        return self.out / job.name

    def data_folder(self, part: str) -> Path:
        """The folder with the prepared data of a part."""
        return self.out / "data" / part if part else self.out / "data"
