"""The typed config of a whole run: its groups of options, their defaults, and what in them does not go together.

    Config = name, seed, data, tokenizer, model, training, generation, runtime

The `problems` of a group are those between its own fields, those of the config are between groups. The model's options
are the keyword-only parameters of `Seq2Seq`; compatibility.py says which parts go together.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from dragoman.config import compatibility
from dragoman.core import yaml
from dragoman.core.errors import PartError, UserError, did_you_mean
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import NonNegativeInt, Options, Part, PositiveFloat, PositiveInt, UnitInterval, options_of
from dragoman.data.columns import Columns
from dragoman.data.objectives import objectives
from dragoman.evaluation.metrics import metrics
from dragoman.nn.adapters import adapters
from dragoman.nn.multi_source import SecondSourceConfig
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.optim.optimizers import optimizers
from dragoman.optim.sampling_schedules import sampling_schedules
from dragoman.optim.schedules import schedules
from dragoman.search import apply_overrides, build_search
from dragoman.text.normalization import Form
from dragoman.text.templates import LANGUAGE_TAG, SOURCE_TEMPLATE, TARGET_TEMPLATE, SequenceTemplate
from dragoman.text.tokenizers import tokenizers

MAX_NAME_BYTES = 200  # file systems allow 255, and .tmp-… is put before it
Role = Literal["source", "second_source", "target", "source_lang", "target_lang"]
Column = Literal["source", "second_source", "target", "source_lang", "target_lang", "-"]


class Corpus(Options):
    """One set of pairs; `weight` is how often each of its lines is seen in an epoch."""

    path: str
    weight: PositiveFloat = 1.0


def _parse_corpora(value: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    return [{"path": item} if isinstance(item, str) else item for item in values]


_Corpora = str | list[str | Corpus]  # what may be written


_Names = Annotated[
    list[str],
    BeforeValidator(lambda names: [names] if isinstance(names, str) else names, json_schema_input_type=str | list[str]),
    Field(min_length=1),
]
COLUMN_FORMS = ("a list of roles", "a mapping")  # tags of the union, which the keys of problems leave out


def _columns_form(value: Any) -> str | None:
    return COLUMN_FORMS[0] if isinstance(value, list) else COLUMN_FORMS[1] if isinstance(value, dict) else None


_ColumnsOption = Annotated[
    Annotated[list[Column], Field(min_length=1), Tag(COLUMN_FORMS[0])]
    | Annotated[dict[Role, _Names], Tag(COLUMN_FORMS[1])],
    Discriminator(
        _columns_form,
        custom_error_type="part",
        custom_error_message="must be a list of roles, or a mapping such as {source: word, target: ipa}",
    ),
]


class DataOptions(Options):
    """Where the pairs are, and which of them are used."""

    train: Annotated[
        list[Corpus], BeforeValidator(_parse_corpora, json_schema_input_type=_Corpora), Field(min_length=1)
    ]
    valid: str | None = None
    columns: _ColumnsOption = ["source", "target"]  # roles by position; or a mapping, role to name in a header row
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
        try:
            columns = Columns.parse(self.columns)
        except UserError as error:
            yield str(error).replace("columns: ", "columns ", 1)
            return
        if "source" not in columns:
            yield f"columns must name 'source', found {self.columns}"


class TokenizerOptions(Options):
    """How text becomes ids. Without `target` both sides use the tokenizer of the source."""

    source: Annotated[Part, tokenizers] = Part("characters")
    target: Annotated[Part, tokenizers] | None = None
    joint: bool = False  # one vocabulary for both sides
    copy_slots: NonNegativeInt | None = (
        None  # unknown words of a source told apart; null: 16 with model.pointer, else 0
    )
    load: str | None = None  # take the tokenizers of this model instead of learning them
    source_template: str = SOURCE_TEMPLATE  # the symbols around a source's tokens; see text/templates.py
    target_template: str = TARGET_TEMPLATE  # around a target's tokens; what stands before them is given to the search

    def problems(self) -> Iterator[str]:
        if self.joint and self.target is not None and self.target != self.source:
            yield "target must be left out (or equal source) when joint is true: there is one tokenizer for both sides"
        for name in ("source_template", "target_template"):
            try:
                SequenceTemplate.parse(getattr(self, name))
            except PartError as error:
                yield f"{name}: {error}"


class Backbone(Options):
    """Weights that another library trained: where in the model they go, by how their names begin in the file."""

    file: str  # safetensors
    map: Annotated[dict[str, str], Field(min_length=1)] = {"": "frontend.net"}  # as torchvision names a ResNet's

    def problems(self) -> Iterator[str]:
        return (f"map: '{key}' goes nowhere; name a part of the model" for key, place in self.map.items() if not place)


class TrainingOptions(Options):
    """How the weights are trained."""

    steps: PositiveInt = 10_000  # updates; training ends after `steps` or `epochs`, whichever comes first
    epochs: PositiveInt | None = None
    batch_tokens: PositiveInt = 4096  # padded tokens of the longer side of a batch
    batch_sentences: PositiveInt | None = None  # at most so many sentences in a batch
    accumulate: PositiveInt = 1  # batches per update
    objective: Annotated[Part, objectives] = Part("pairs")  # what is predicted from what
    scheduled_sampling: Annotated[Part, sampling_schedules] = Part("teacher_forcing")  # share of gold decoder inputs
    r_drop: Annotated[float, Field(ge=0.0, le=1e6)] = 0.0  # weight of the R-Drop loss
    ctc_weight: UnitInterval = 0.0  # share of the encoder's CTC loss in the loss, with model.ctc
    optimizer: Annotated[Part, optimizers] = Part("adamw")
    schedule: Annotated[Part, schedules] = Part("inverse_sqrt")  # of the learning rate
    clip: PositiveFloat | None = 1.0  # largest norm of the gradient
    label_smoothing: UnitInterval = 0.1
    loss_per: Literal["token", "sentence"] = "token"  # the gradient is a mean over these; the RNN papers: sentences
    precision: Literal["float32", "bfloat16"] = "float32"
    validate_every: PositiveInt = 500  # steps
    validate_metrics: list[Annotated[Part, metrics]] = []  # metrics of decoded text, besides the loss
    validate_examples: PositiveInt = 500  # examples to decode: a fixed sample of a larger set
    validate_generation: Annotated[  # overrides `generation`; what is not set here stays unset when it is saved
        GenerationOptions, PlainSerializer(lambda options: options.model_dump(exclude_unset=True))
    ] = GenerationOptions(search=Part("greedy"))
    best: str = "loss"  # what selects the best checkpoint: loss, or one of validate_metrics
    patience: PositiveInt | None = None  # stop after so many validations without improvement
    save_every: PositiveInt = 500  # steps
    keep: PositiveInt = 3  # checkpoints to keep, besides the best
    average: PositiveInt = 1  # average the last so many checkpoints at the end
    ema: UnitInterval = 0.0  # decay of a moving average of the weights; the average is then the model
    start_from: str | None = None  # model to take the initial weights and the tokenizers from
    start_parts: list[str] = []  # take only weights below these names (encoder, frontend, …); empty: all
    backbone: Backbone | None = None  # pretrained weights of another library for a part of the model
    adapter: Annotated[Part, adapters] | None = None  # train small matrices beside the frozen weights of start_from
    freeze: list[str] = []  # parameters below these names are not trained
    replay: NonNegativeInt = 3  # validation sources to predict at every checkpoint, for a replay of the run; 0: none
    log_every: PositiveInt = 20  # steps
    rank_timeout: PositiveInt = 600  # seconds without a heartbeat after which a rank is lost and the run ends

    def problems(self) -> Iterator[str]:
        warmup = self.schedule.options.get("warmup", 0)
        if warmup > self.steps:
            yield f"schedule.warmup is {warmup}; it must not exceed steps, {self.steps}"
        names = ["loss", *(metric.name for metric in self.validate_metrics)]
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            yield f"validate_metrics names '{name}' more than once, but values go by the metric's name; name it once"
        if self.best not in names:
            yield f"best is '{self.best}'; it must be one of {', '.join(names)}{did_you_mean(self.best, names)}"
        if self.start_parts and self.start_from is None:
            yield "start_parts selects weights of start_from, but start_from is missing"
        if self.backbone is not None:
            yield from (f"backbone.{problem}" for problem in self.backbone.problems())
        if self.adapter is not None:
            yield from self._adapter_problems()
        if self.average > self.keep:
            yield f"average is {self.average}; it must not exceed keep, {self.keep}, the number of checkpoints kept"

    def _adapter_problems(self) -> Iterator[str]:
        if self.start_from is None:
            yield "adapter adds to the weights of a trained model, but start_from is missing; name one"
        if self.start_parts:
            yield "adapter adds to all weights of start_from, and start_parts selects some; leave start_parts empty"
        if self.backbone is not None:
            yield "adapter adds to the weights of start_from, and backbone replaces some; set backbone to null"
        if self.average > 1:
            yield f"average is {self.average}, but the mean of A and that of B do not give the mean of B A; set it to 1"


class RuntimeOptions(Options):
    """Device, threads, precision and engines. `runtime: reference` is short for `{engine: reference}`."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: PositiveInt | None = None  # CPU threads; chosen once and kept with the run
    engine: Literal["auto", "reference"] = "auto"  # reference: the equations of nn/ and search/, nothing faster
    precision: Literal["float32", "bfloat16", "int8"] = "float32"  # of searching; training has its own
    workers: PositiveInt | None = None  # processes that search on a CPU; null: as many as pay
    sharding: Literal["none", "full"] = "none"  # full: each rank keeps a part of weights, gradients, optimizer state
    activation_checkpointing: bool = False  # compute a block's activations again in the backward pass
    tensorboard: bool = False  # event files beside metrics.jsonl

    @model_validator(mode="before")
    @classmethod
    def _from_engine_name(cls, value: Any) -> Any:
        return {"engine": value} if isinstance(value, str) else value


class Extension(Options):
    """What a model that starts from another has besides its vocabulary."""

    tokens: list[Annotated[str, Field(min_length=1, max_length=100)]] = []  # words; of characters and symbols, any
    languages: list[Annotated[str, Field(pattern=r"^[^\s<>{}]{1,40}$")]] = []

    def problems(self) -> Iterator[str]:
        for token in self.tokens:
            if token.split() != [token] or LANGUAGE_TAG.fullmatch(token):
                yield f"tokens: '{token}' must be one word, and no language tag; languages go into languages"


if TYPE_CHECKING:

    class ModelOptions(Options):
        """What a type checker sees of the model's options; the rest is the constructor's own."""

        width: int
        frontend: Part
        encoder: Part
        second_source: SecondSourceConfig | None
        decoder: Part | None
        head: Part | None
        tie: str
        pointer: Part | None
        ctc: bool
        output_bias: bool
        extend: Extension | None
else:

    class ModelOptions(
        options_of(Seq2Seq, "ModelOptions")
    ):  # a part's constructor is its schema, the whole model's too
        """The model's parts, and what is added to the vocabulary of the model to start from."""

        extend: Extension | None = None

        def problems(self) -> Iterator[str]:
            yield from super().problems()
            if self.extend is not None:
                yield from (f"extend.{problem}" for problem in self.extend.problems())


def _check_folder_name(name: str) -> str:
    if not name or "/" in name or name.startswith(".") or not name.isprintable():
        raise ValueError("it becomes a folder's name, so it needs letters and no '/'")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"it becomes a folder's name, so it has at most {MAX_NAME_BYTES} bytes")
    return name


class Config(Options):
    """Everything that decides a run."""

    name: Annotated[str, AfterValidator(_check_folder_name)] = "model"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    data: DataOptions
    tokenizer: TokenizerOptions = TokenizerOptions()
    model: ModelOptions = ModelOptions.model_validate({})
    training: TrainingOptions = TrainingOptions()
    generation: GenerationOptions = GenerationOptions()
    runtime: RuntimeOptions = RuntimeOptions()

    def problems(self) -> Iterator[str]:
        asked = {
            "training.patience": self.training.patience is not None,
            "training.validate_metrics": bool(self.training.validate_metrics),
            "training.schedule: plateau": self.training.schedule.name == "plateau",
        }
        if self.data.valid is None and any(asked.values()):
            needs_valid = [key for key, is_asked in asked.items() if is_asked]
            yield f"data.valid is missing, but {' and '.join(needs_valid)} needs it"
        yield from self._generation_problems()
        yield from self._ctc_problems()
        yield from compatibility.find_problems(self)

    def _generation_problems(self) -> Iterator[str]:
        """Yield what is wrong with the search and MBR metric of generation, then of validate_generation."""
        for key, overrides in {
            "generation": None,
            "training.validate_generation": self.training.validate_generation,
        }.items():
            try:
                options = apply_overrides(self.generation, overrides)
                build_search(options)
                if options.mbr is not None:
                    metrics.parse(options.mbr)
            except (UserError, PartError, PydanticCustomError, ValidationError) as error:
                message = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
                yield f"{key}: {message}"
                return  # the second builds on the first

    def _ctc_problems(self) -> Iterator[str]:
        has_ctc = self.model.ctc
        weights = {"training.ctc_weight": self.training.ctc_weight, "generation.ctc_weight": self.generation.ctc_weight}
        for key, weight in weights.items():
            if weight and not has_ctc:
                yield f"{key} is {weight}, but the model has no such layer: set model.ctc to true"
        if has_ctc and not self.training.ctc_weight:
            yield "model.ctc is true, but training.ctc_weight is 0, so the layer would not be trained; set it to 0.3"

    @property
    def columns(self) -> list[str] | dict[str, str | list[str]]:
        """The data's columns; an objective without pairs has no target, and ignores all but the source."""
        if objectives[self.training.objective.name].is_paired:  # type: ignore[attr-defined]
            return Columns.parse(self.data.columns).value
        if isinstance(self.data.columns, dict):
            return {"source": self.data.columns["source"]}
        return [name if name == "source" else "-" for name in self.data.columns if name != "target"]

    def to_yaml(self) -> str:
        """Return the text of a config file, every default filled in."""
        return yaml.dump(self.model_dump())


GROUPS: dict[str, type[Options]] = {
    name: info.annotation
    for name, info in Config.model_fields.items()
    if isinstance(info.annotation, type) and issubclass(info.annotation, Options)
}


def nested_types(item: Any) -> list[Any]:
    """Return a field or type and all types and metadata nested in it, such as the registry of a part."""
    if isinstance(item, FieldInfo):
        return [*item.metadata, *nested_types(item.annotation)]
    return [item, *(found for argument in typing.get_args(item) for found in nested_types(argument))]
