"""The typed config of a whole run: its groups of options, their defaults, and what in them does not go together.

    Config = name, seed, data, tokenizer, model, training, generation, runtime

Each group's `problems` are those between its own fields, the config's those between groups. What the model's options
are is what `Seq2Seq` takes; which parts make a whole is told by dragoman.config.compatibility.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.fields import FieldInfo

from dragoman.config import compatibility
from dragoman.core import yaml
from dragoman.core.errors import nearest
from dragoman.core.registry import NonNegativeInt, Options, Part, PositiveFloat, PositiveInt, UnitInterval, options_of
from dragoman.data.objectives import objectives
from dragoman.evaluation.metrics import metrics
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.optim.optimizers import optimizers
from dragoman.optim.sampling_schedules import teachers
from dragoman.optim.schedules import schedules
from dragoman.search import searches
from dragoman.text.normalization import Form
from dragoman.text.tokenizers import tokenizers

Column = Literal["source", "second_source", "target", "source_lang", "target_lang", "-"]


class Corpus(Options):
    """One set of pairs; `weight` is how often each of its lines is seen in an epoch."""

    path: str
    weight: PositiveFloat = 1.0


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
    max_source: PositiveInt | None = None  # tokens of each source; null: 256, or what is usual for the files it names
    max_target: PositiveInt = 256  # tokens; limits count </s> and tags, and longer pairs are left out and counted
    files: list[str] = []  # folders and archives with the images or sounds that sources name
    on_error: Literal["stop", "skip"] = "stop"  # what to do with a line that cannot be read
    workers: NonNegativeInt = 0  # processes that prepare batches ahead
    cache: str | None = None  # where token stores are kept; default: beside the run folder

    def problems(self) -> Iterator[str]:
        if any(path == "-" for path in (self.valid, *(corpus.path for corpus in self.train))):
            yield "train and valid must be files: they are read more than once, which the standard input cannot be"
        if self.columns.count("source") != 1:
            yield f"columns must name 'source' exactly once, found {self.columns}"
        if self.columns.count("second_source") > 1:
            yield f"columns must name 'second_source' once at most, found {self.columns}"


class Tokenizing(Options):
    """How text becomes ids. Without `target` both sides use the kind named for the source."""

    source: Annotated[Part, tokenizers] = Part("characters")
    target: Annotated[Part, tokenizers] | None = None
    joint: bool = False  # one vocabulary for both sides
    copies: NonNegativeInt | None = (
        None  # unknown words of a source that can be told apart; null: 16 with model.pointer, else 0
    )
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

    steps: PositiveInt = 10_000  # updates; training also ends after `epochs`, whichever comes first
    epochs: PositiveInt | None = None
    batch_tokens: PositiveInt = 4096  # padded tokens of the longer side in a batch
    batch_sentences: PositiveInt | None = None
    accumulate: PositiveInt = 1  # batches for each update
    objective: Annotated[Part, objectives] = Part("pairs")  # what is predicted from what
    teacher: Annotated[Part, teachers] = Part("gold")  # whose tokens the decoder reads in training
    r_drop: Annotated[float, Field(ge=0.0, le=1e6)] = 0.0  # weight of the disagreement of two passes
    ctc: UnitInterval = 0.0  # share of the encoder's own loss, with model.ctc
    optimizer: Annotated[Part, optimizers] = Part("adamw")
    schedule: Annotated[Part, schedules] = Part("inverse_sqrt")
    clip: PositiveFloat | None = 1.0  # the largest norm of a gradient
    label_smoothing: UnitInterval = 0.1
    loss_per: Literal["token", "sentence"] = "token"  # what the gradient is a mean over; the RNN papers: sentences
    precision: Literal["float32", "bfloat16"] = "float32"
    validate_every: PositiveInt = 500  # steps
    validate_metrics: list[Annotated[Part, metrics]] = []  # decoded, besides the loss
    validate_examples: PositiveInt = 500  # how many are decoded: a fixed sample of a larger set
    validate_search: Annotated[Part, searches] = Part("greedy")
    best: str = "loss"  # what decides which checkpoint is best: loss, or one of validate_metrics
    patience: PositiveInt | None = None  # stop after so many validations without a better one
    save_every: PositiveInt = 500  # steps
    keep: PositiveInt = 3  # checkpoints, besides the best
    average: PositiveInt = 1  # average the last so many checkpoints at the end
    ema: UnitInterval = 0.0  # decay of a moving average of the weights, which then is the model
    start_from: str | None = None  # a model whose weights, and tokenizers, to begin with
    start_parts: list[str] = []  # take over only what begins with one of these (encoder, frontend, …); empty: all
    backbone: Backbone | None = None  # pretrained weights to begin a part of the model with
    freeze: list[str] = []  # parameters whose name begins with one of these stay as they are
    replay: NonNegativeInt = (
        3  # of the first validation sources, what the model says at every checkpoint is kept; 0: none
    )
    log_every: PositiveInt = 20  # steps
    rank_timeout: PositiveInt = 600  # seconds without a sign of life after which a rank is given up, and the run ends

    def problems(self) -> Iterator[str]:
        warmup = self.schedule.options.get("warmup", 0)
        if warmup > self.steps:
            yield f"schedule.warmup is {warmup}; it must not exceed steps, {self.steps}"
        names = ["loss", *(metric.name for metric in self.validate_metrics)]
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            yield f"validate_metrics names '{name}' more than once, but values go by the metric's name; name it once"
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
    extra: NonNegativeInt = 20
    shortest: NonNegativeInt = 0  # tokens
    shortest_ratio: Annotated[float, Field(ge=0.0, le=1000.0)] = 0.0  # and so many for each source token
    no_repeat: NonNegativeInt = 0  # no run of so many tokens twice in a result; 0: they may repeat
    repetition: Annotated[float, Field(ge=1.0, le=100.0)] = 1.0  # log p of tokens said before, times this
    unknown: bool = True  # whether <unk> may be a result's token
    replace_unknown: bool = False  # write the source word that was looked at most in place of <unk>
    mbr: Annotated[Part, metrics] | None = None  # choose the result that agrees most with the others, by this metric
    ctc: UnitInterval = 0.0  # share of what the encoder alone hears in the score of a token, with model.ctc


class Runtime(Options):
    """The machine's side of things. `runtime: plain` is short for `{path: plain}`."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: PositiveInt | None = None  # CPU threads; chosen once and kept with the run
    path: Literal["fast", "plain"] = "fast"  # plain: the model's own equations, nothing packed, compiled or captured
    precision: Literal["float32", "bfloat16", "int8"] = "float32"  # of searching; training has its own
    workers: PositiveInt | None = None  # processes that search on a CPU; null: as many as pay
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
        yield from compatibility.problems(self)

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


GROUPS: dict[str, type[Options]] = {
    name: info.annotation
    for name, info in Config.model_fields.items()
    if isinstance(info.annotation, type) and issubclass(info.annotation, Options)
}


def inside(item: Any) -> list[Any]:
    """A field's type and everything in it: the registry of `Annotated[Part, registry] | None`."""
    if isinstance(item, FieldInfo):
        return [*item.metadata, *inside(item.annotation)]
    return [item, *(found for argument in typing.get_args(item) for found in inside(argument))]
