"""The typed config of a whole run, from YAML: every problem at once, or a config that has been rehearsed.

    load(path, preset, ["model.decoder.layers=2"]) → Loaded(config, origins)

A file may say `preset: NAME` to build on a preset; a file's values replace the preset's, `--set` values replace both.
Where a part changes its name, its options start over. `origins` says for each value where it came from.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from dragoman import shapes
from dragoman.core import yaml
from dragoman.core.errors import ConfigError, PartError, nearest
from dragoman.core.interfaces import Medium
from dragoman.core.registry import Count, Options, Part, Positive, Rate, Registry, Share, options_of
from dragoman.data.objectives import objectives
from dragoman.evaluation.metrics import metrics
from dragoman.nn.frontends import frontends
from dragoman.nn.joining import Second
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.optim.optimizers import optimizers
from dragoman.optim.schedules import schedules
from dragoman.optim.teachers import teachers
from dragoman.search import searches
from dragoman.text.codec import Reader
from dragoman.text.normalization import Form
from dragoman.text.tokenizers import tokenizers

Column = Literal["source", "second", "target", "source_lang", "target_lang", "-"]


class Corpus(Options):
    """One set of pairs; `weight` is how often each of its lines is seen in an epoch."""

    path: str
    weight: Rate = 1.0


def _corpora(value: Any) -> Any:
    """One path, a list of paths, or a list of mappings with weights."""
    values = value if isinstance(value, list) else [value]
    return [{"path": item} if isinstance(item, str) else item for item in values]


_Corpora = str | list[str | Corpus]  # what may be written


class Data(Options):
    """Where the pairs are, and which of them count."""

    train: Annotated[list[Corpus], BeforeValidator(_corpora, json_schema_input_type=_Corpora), Field(min_length=1)]
    valid: str | None = None
    columns: Annotated[list[Column], Field(min_length=1)] = ["source", "target"]
    normalization: Form = "nfc"
    max_source: Positive = 256  # tokens with </s> and tags, of each source; longer pairs are left out and counted
    max_target: Positive = 256
    files: list[str] = []  # folders and archives with the images or sounds that sources name
    on_error: Literal["stop", "skip"] = "stop"  # what to do with a line that cannot be read
    workers: Count = 0  # processes that prepare batches ahead
    cache: str | None = None  # where token stores are kept; default: beside the run folder

    def problems(self) -> Iterator[str]:
        if any(path == "-" for path in (self.valid, *(corpus.path for corpus in self.train))):
            yield "train and valid must be files: they are read more than once, which the standard input cannot be"
        if self.columns.count("source") != 1:
            yield f"columns must name 'source' exactly once, found {self.columns}"
        if self.columns.count("second") > 1:
            yield f"columns must name 'second' once at most, found {self.columns}"


class Tokenizing(Options):
    """How text becomes ids. Without `target` both sides use the kind named for the source."""

    source: Annotated[Part, tokenizers] = Part("characters")
    target: Annotated[Part, tokenizers] | None = None
    joint: bool = False  # one vocabulary for both sides
    copies: Count | None = None  # unknown words of a source that can be told apart; null: 16 with model.pointer, else 0
    load: str | None = None  # take the tokenizers of this model instead of learning them

    def problems(self) -> Iterator[str]:
        if self.joint and self.target is not None and self.target != self.source:
            yield "target must be left out (or equal source) when joint is true: there is one tokenizer for both sides"


class Backbone(Options):
    """Weights that another library trained: where in the model they go, by how their names begin in the file."""

    file: str  # safetensors
    map: Annotated[dict[str, str], Field(min_length=1)] = {"": "frontend.net"}  # as torchvision names a ResNet's

    def problems(self) -> Iterator[str]:
        return (f"map: '{key}' goes nowhere; name a part of the model" for key, place in self.map.items() if not place)


class Training(Options):
    """How weights are found."""

    steps: Positive = 10_000  # updates; training also ends after `epochs`, whichever comes first
    epochs: Positive | None = None
    batch_tokens: Positive = 4096  # padded tokens of the longer side in a batch
    batch_sentences: Positive | None = None
    accumulate: Positive = 1  # batches for each update
    objective: Annotated[Part, objectives] = Part("pairs")  # what is predicted from what
    teacher: Annotated[Part, teachers] = Part("gold")  # whose tokens the decoder reads in training
    r_drop: Annotated[float, Field(ge=0.0, le=1e6)] = 0.0  # weight of the disagreement of two passes
    ctc: Share = 0.0  # share of the encoder's own loss, with model.ctc
    optimizer: Annotated[Part, optimizers] = Part("adamw")
    schedule: Annotated[Part, schedules] = Part("inverse_sqrt")
    clip: Rate | None = 1.0  # the largest norm of a gradient
    label_smoothing: Share = 0.1
    loss_per: Literal["token", "sentence"] = "token"  # what the gradient is a mean over; the RNN papers: sentences
    precision: Literal["float32", "bfloat16"] = "float32"
    validate_every: Positive = 500  # steps
    validate_metrics: list[Annotated[Part, metrics]] = []  # decoded, besides the loss
    validate_examples: Positive = 500  # how many are decoded
    validate_search: Annotated[Part, searches] = Part("greedy")
    best: str = "loss"  # what decides which checkpoint is best: loss, or one of validate_metrics
    patience: Positive | None = None  # stop after so many validations without a better one
    save_every: Positive = 500  # steps
    keep: Positive = 3  # checkpoints, besides the best
    average: Positive = 1  # average the last so many checkpoints at the end
    ema: Share = 0.0  # decay of a moving average of the weights, which then is the model
    start_from: str | None = None  # a model whose weights, and tokenizers, to begin with
    start_parts: list[str] = []  # take over only what begins with one of these (encoder, frontend, …); empty: all
    backbone: Backbone | None = None  # pretrained weights to begin a part of the model with
    freeze: list[str] = []  # parameters whose name begins with one of these stay as they are
    replay: Count = 3  # of the first validation sources, what the model says at every checkpoint is kept; 0: none
    log_every: Positive = 20  # steps
    rank_timeout: Positive = 600  # seconds without a sign of life after which a rank is given up, and the run ends

    def problems(self) -> Iterator[str]:
        warmup = self.schedule.options.get("warmup", 0)
        if warmup > self.steps:
            yield f"schedule.warmup is {warmup}; it must not exceed steps, {self.steps}"
        names = ["loss", *(metric.name for metric in self.validate_metrics)]
        if self.best not in names:
            yield f"best is '{self.best}'; it must be one of {', '.join(names)}{nearest(self.best, names)}"
        if self.start_parts and self.start_from is None:
            yield "start_parts says which weights of start_from to take, but start_from is missing"
        if self.backbone is not None:
            yield from (f"backbone.{problem}" for problem in self.backbone.problems())
        if self.average > self.keep:
            yield f"average is {self.average}; it must not exceed keep, {self.keep}, the checkpoints there are"


class Generation(Options):
    """How results are searched for by default. A result has at most `ratio` × source tokens + `extra` tokens."""

    search: Annotated[Part, searches] = Part("beam")
    ratio: Annotated[float, Field(ge=0.0, le=1000.0)] = 2.0
    extra: Count = 20
    shortest: Count = 0  # tokens
    shortest_ratio: Annotated[float, Field(ge=0.0, le=1000.0)] = 0.0  # and so many for each source token
    no_repeat: Count = 0  # no run of so many tokens twice in a result; 0: they may repeat
    repetition: Annotated[float, Field(ge=1.0, le=100.0)] = 1.0  # log p of tokens said before, times this
    unknown: bool = True  # whether <unk> may be a result's token
    mbr: Annotated[Part, metrics] | None = None  # choose the result that agrees most with the others, by this metric
    ctc: Share = 0.0  # share of what the encoder alone hears in the score of a token, with model.ctc


class Runtime(Options):
    """The machine's side of things. `runtime: plain` is short for `{path: plain}`."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: Positive | None = None  # CPU threads; chosen once and kept with the run
    path: Literal["fast", "plain"] = "fast"  # plain: the model's own equations, nothing packed, compiled or captured
    precision: Literal["float32", "bfloat16", "int8"] = "float32"  # of searching; training has its own
    workers: Positive | None = None  # processes that search on a CPU; null: as many as pay
    tensorboard: bool = False  # event files beside metrics.jsonl

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value


if TYPE_CHECKING:
    Model = Options
else:
    Model = options_of(Seq2Seq, "Model")  # a part's constructor is its schema, the whole model's too


def _folder_name(name: str) -> str:
    if not name or "/" in name or name.startswith(".") or not name.isprintable():
        raise ValueError("it becomes a folder's name, so it needs letters and no '/'")
    return name


class Config(Options):
    """Everything that decides a run."""

    name: Annotated[str, AfterValidator(_folder_name)] = "model"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    data: Data
    tokenizer: Tokenizing = Tokenizing()
    model: Model = Model()
    training: Training = Training()
    generation: Generation = Generation()
    runtime: Runtime = Runtime()

    def problems(self) -> Iterator[str]:
        needs_valid = [
            key
            for key, asked in {
                "training.patience": self.training.patience is not None,
                "training.validate_metrics": bool(self.training.validate_metrics),
                "training.schedule: plateau": self.training.schedule.name == "plateau",
            }.items()
            if asked
        ]
        if self.data.valid is None and needs_valid:
            yield f"data.valid is missing, but {' and '.join(needs_valid)} needs it"
        yield from self._ctc_problems()
        yield from shapes.problems(self)

    def _ctc_problems(self) -> Iterator[str]:
        there: bool = self.model.ctc  # type: ignore[attr-defined]
        for key, weight in {"training": self.training.ctc, "generation": self.generation.ctc}.items():
            if weight and not there:
                yield f"{key}.ctc is {weight}, but the model has no such layer: set model.ctc to true"
        if there and not self.training.ctc:
            yield "model.ctc is true, but training.ctc is 0, so that nothing would teach it: set training.ctc to 0.3"

    @property
    def columns(self) -> list[str]:
        """What the columns of the data are; where single texts are read, there is one."""
        if objectives[self.training.objective.name].paired:  # type: ignore[attr-defined]
            return list(self.data.columns)
        return [name if name == "source" else "-" for name in self.data.columns if name != "target"]

    def plain(self) -> dict[str, Any]:
        """As a config file writes it, every default filled in."""
        return self.model_dump()

    def text(self) -> str:
        return yaml.dump(self.plain())


_GROUPS: dict[str, type[Options]] = {
    name: info.annotation
    for name, info in Config.model_fields.items()
    if isinstance(info.annotation, type) and issubclass(info.annotation, Options)
}


def validated_generation(config: Config, changes: dict[str, Any]) -> Generation:
    """The generation settings of a config with some of them changed, checked as a file's are."""
    try:
        return Generation.model_validate(config.generation.model_dump() | changes)
    except ValidationError as error:
        raise ConfigError("generation", [_sentence(item, {}) for item in error.errors(include_url=False)]) from None


def medium(config: Config) -> Medium | None:
    """What reads the sources of a config, where they are files and no texts."""
    return _reader(config.model.frontend, config)  # type: ignore[attr-defined]


def second(config: Config) -> Reader | None:
    """What reads the second sources of a config, where there are any."""
    parts: Second | None = config.model.second  # type: ignore[attr-defined]
    return None if parts is None else _reader(parts.frontend, config) or "text"


def _reader(frontend: Part, config: Config) -> Medium | None:
    kind: Any = frontends[frontend.name]
    found: Medium | None = kind.reader(frontend.options, config.data.files)
    return found


def build_model(config: Config, source_size: int, target_size: int, second_size: int = 0) -> Seq2Seq:
    """The model of a config, freshly initialized."""
    options = {key: getattr(config.model, key) for key in type(config.model).model_fields}
    return Seq2Seq(source_size, target_size, second_size, **options)


# -- loading -----------------------------------------------------------------------------------------------------------


@dataclass
class Loaded:
    """A config, and for each of its keys the file or option that set it."""

    config: Config
    origins: dict[str, str] = field(default_factory=dict)


def presets() -> dict[str, str]:
    """Every preset's name and the first line of its comment."""
    files = sorted(resources.files("dragoman.presets").iterdir(), key=lambda file: file.name)
    return {
        file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ")
        for file in files
        if file.name.endswith(".yaml")
    }


def load(path: str | Path | None = None, preset: str | None = None, sets: Sequence[str] = ()) -> Loaded:
    """A config from a file, a preset and single values, the later over the earlier; or one error with every problem."""
    where = str(path or (f"preset {preset}" if preset else "the config"))
    value = yaml.read(Path(path)) if path is not None else {}
    preset = value.pop("preset", None) or preset
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if preset is not None:
        merge(merged, _preset(preset, where), f"preset {preset}", origins)
    merge(merged, value, where, origins)
    for text in sets:
        merge(merged, _assignment(text), f"--set {text.split('=', 1)[0]}", origins)
    merged.setdefault("name", Path(path).name.split(".")[0] if path is not None else preset or "model")
    try:
        config = validate(merged, where)
    except ConfigError as error:
        raise ConfigError(where, [_blamed(problem, origins, where) for problem in error.problems]) from None
    problems = rehearse(config)
    if problems:
        raise ConfigError(where, problems)
    return Loaded(config, origins)


def _blamed(problem: str, origins: dict[str, str], where: str) -> str:
    """A problem with the place its key was set at, where that is not the file itself."""
    origin = origins.get(re.split(r"[: ]", problem, maxsplit=1)[0], where)
    return problem if origin == where else f"{problem} (from {origin})"


def validate(value: dict[str, Any], where: str) -> Config:
    """A plain mapping → the config, or an error with every problem in it."""
    problems: list[str] = []
    try:
        config = Config.model_validate(value)
    except ValidationError as error:
        problems = [_sentence(item, value) for item in error.errors(include_url=False)]
        groups = dict(_valid_groups(value))
        problems += [text for name, group in groups.items() for text in _cross((name + ".", group))]
        if groups.keys() == _GROUPS.keys():  # what goes between the groups can be told, too
            problems += Config.model_construct(**groups).problems()  # type: ignore[arg-type]
        raise ConfigError(where, sorted(set(problems), key=problems.index)) from None
    problems = list(_cross(("", config)))
    for name in _GROUPS:
        problems += _cross((name + ".", getattr(config, name)))
    if problems:
        raise ConfigError(where, problems)
    return config


def rehearse(config: Config) -> list[str]:
    """Build the model with a vocabulary of 8 and run a tiny batch through it: widths that do not fit fail here."""
    import torch

    from dragoman.core.interfaces import Capacity

    state = torch.random.get_rng_state()
    try:
        objectives.build(config.training.objective)  # which may refuse its own options
        readers = medium(config), second(config)
        sizes = [8 if reader is None or isinstance(reader, str) else reader.width for reader in readers]
        model, batch = build_model(config, sizes[0], 8, sizes[1]).eval(), shapes.rehearsal(config, *readers)
        with torch.no_grad():
            model.loss(batch)
            if model.decoder is not None:
                memory = model.encode(*batch.given)
                model.step(batch.target[:, :1], model.start(memory, Capacity(1, 2)))
    except PartError as error:
        return [f"model: {error}"]
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        return ["model: too large for this machine's memory; lower its widths"]
    finally:
        torch.random.set_rng_state(state)
    return []


def merge(into: dict[str, Any], value: dict[str, Any], origin: str, origins: dict[str, str], path: str = "") -> None:
    """Lay one mapping over another; a part under another name starts over."""
    for key, new in value.items():
        here, old = f"{path}{key}", into.get(key)
        if isinstance(new, dict):
            if isinstance(old, str):  # a part by its bare name, now given options
                old = {"name": old}
            renamed = isinstance(old, dict) and "name" in new and new["name"] != old.get("name")
            into[key] = {} if renamed or not isinstance(old, dict) else old
            if renamed:
                _forget(here, origins)
            merge(into[key], new, origin, origins, here + ".")
        else:
            same_part = isinstance(new, str) and isinstance(old, dict) and old.get("name") == new
            if not same_part:
                _forget(here, origins)
            into[key] = old if same_part else new
            origins[f"{here}.name" if isinstance(into[key], dict) else here] = origin


def _forget(path: str, origins: dict[str, str]) -> None:
    """What stood at a path and below it is replaced."""
    for gone in [key for key in origins if key == path or key.startswith(path + ".")]:
        del origins[gone]


def explain(loaded: Loaded) -> Iterator[tuple[str, Any, str]]:
    """Every value of a config with its key and where it came from."""

    def walk(value: dict[str, Any], path: str) -> Iterator[tuple[str, Any, str]]:
        for key, item in value.items():
            here = f"{path}{key}"
            if isinstance(item, dict):
                yield from walk(item, here + ".")
            else:
                bare = here.removesuffix(".name")
                yield here, item, loaded.origins.get(here) or loaded.origins.get(bare) or "default"

    return walk(loaded.config.plain(), "")


def _preset(name: Any, where: str) -> dict[str, Any]:
    names = presets()
    if not isinstance(name, str) or name not in names:
        raise ConfigError(
            where, [f"preset: no preset called '{name}'{nearest(str(name), names)} (there is {', '.join(names)})"]
        )
    return yaml.parse((resources.files("dragoman.presets") / f"{name}.yaml").read_text(encoding="utf-8"), name) or {}


def _assignment(text: str) -> dict[str, Any]:
    """`a.b.c=value` → {a: {b: {c: value}}}, the value read as YAML."""
    key, equals, value = text.partition("=")
    if not equals or not all(key.strip().split(".")):
        raise ConfigError(f"--set {text}", ["must read KEY=VALUE, as in --set model.decoder.layers=2"])
    result: Any = yaml.parse(value, f"--set {text}")
    for part in reversed(key.strip().split(".")):
        result = {part: result}
    return result  # type: ignore[no-any-return]


# -- problems as sentences ---------------------------------------------------------------------------------------------


def _cross(group: tuple[str, Options]) -> Iterator[str]:
    prefix, options = group
    return (f"{prefix}{problem}" for problem in options.problems())


def _valid_groups(value: dict[str, Any]) -> Iterator[tuple[str, Options]]:
    """The groups of a broken config that are right by themselves: their cross-field rules can still be checked."""
    for name, kind in _GROUPS.items():
        with suppress(ValidationError):
            yield name, kind.model_validate(value.get(name, {}))


def _sentence(error: Any, value: dict[str, Any]) -> str:
    """One of pydantic's errors as `key: what is wrong, what was found, what is allowed`."""
    location = [str(part) for part in error["loc"] if part != "function-plain[parse()]"]
    key, found, kind = ".".join(location), f"{error['input']!r}"[:60], error["type"]
    if kind == "extra_forbidden":
        options = _options_at(location[:-1], value)
        return f"{key} is not an option{nearest(location[-1], options)} (there is {', '.join(options)})"
    if kind == "missing":
        return f"{key} is missing" + ("; name the pairs, as in data.train=pairs.tsv" if location[0] == "data" else "")
    if kind == "part":
        return f"{key}: {error['msg']}"
    if kind == "literal_error":
        allowed = error["ctx"]["expected"]
        near = nearest(str(error["input"]), re.findall("'(.+?)'", allowed))
        return f"{key}: found {found}, allowed is {allowed}{near}"
    if kind == "model_type":
        return f"{key}: must be a mapping of settings, found {found}"
    text = error["msg"].replace("Input should be", "must be").replace("Value error, ", "")
    return f"{key}: {text[0].lower() + text[1:]}, found {found}"


def _options_at(location: Sequence[str], value: Any) -> list[str]:
    """The options there are at a place of the config."""
    kind: Any = Config
    for i, part in enumerate(location):
        if isinstance(value, list):  # the place in a list of what `kind` is already
            value = value[int(part)] if part.isdigit() and int(part) < len(value) else None
        elif part in kind.model_fields:
            value = value.get(part) if isinstance(value, dict) else None
            info = kind.model_fields[part]
        else:
            return []
        if isinstance(value, list) and i + 1 < len(location):
            continue
        inside = [*info.metadata, info.annotation, *_arguments(info.annotation)]
        registry = next((m for m in inside if isinstance(m, Registry)), None)
        if registry is not None:
            name = value.get("name") if isinstance(value, dict) else value
            kind = registry.schema(str(name)) if name in registry.names else Options
        else:
            kind = next((m for m in inside if isinstance(m, type) and issubclass(m, Options)), Options)
    return list(kind.model_fields)


def _arguments(annotation: Any) -> Iterator[Any]:
    """Everything inside a type: the registry of `Annotated[Part, registry] | None`."""
    for argument in typing.get_args(annotation):
        yield argument
        yield from _arguments(argument)
