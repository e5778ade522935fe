"""GenerationOptions: everything that decides how a trained model turns a source into outputs.

A config's `generation:` section, the options of the command line, the keywords of Python and the fields of an HTTP
request are all made from it, so a new option is one field here and its use.

    config.generation ─merge(per request)→ GenerationOptions ─search.build_search→ a Search
                                                             └inference/constraints.py→ SearchConstraints

Only fields that are set explicitly override (`GenerationOptions(beam=4)` changes the beam and nothing else). A search
that a user registers keeps its own options: `search: {name: mine, width: 3}`. This module does not import torch.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema, model_validator

from dragoman.core.registry import NonNegativeInt, Options, Part, PositiveFloat, PositiveInt, UnitInterval

# In a field's metadata. A batch shares its search; lengths and constraints may differ by source.
Scope = Literal["search", "length", "constraint", "output"]

SCOPES: dict[Scope, str] = {
    "search": "Search",
    "length": "Output length",
    "constraint": "Constraints on the output",
    "output": "Choice of the output",
}

NamedPart = Annotated[
    Part,
    BeforeValidator(Part.parse, json_schema_input_type=str),
    PlainSerializer(lambda part: part.name if not part.options else part.to_mapping()),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
            ]
        }
    ),
]
Phrase = Annotated[str, Field(min_length=1, max_length=1000)]
Phrases = Annotated[
    tuple[Phrase, ...],
    Field(strict=False, fail_fast=True),  # JSON and YAML bring lists
    PlainSerializer(list),
]
Probability = Annotated[float, Field(gt=0.0, le=1.0)]
Penalty = Annotated[float, Field(ge=0.0, le=1e6)]
Ratio = Annotated[float, Field(ge=0.0, le=1000.0)]


class GenerationOptions(Options):
    """How outputs are generated: the search, their lengths, and what they must and must not contain."""

    model_config = ConfigDict(use_attribute_docstrings=True)  # the help texts of the command line and the HTTP API

    search: Annotated[NamedPart, "search"] = Part("beam")
    """beam, greedy, sample, diverse, exhaustive, or a registered search."""
    beam: Annotated[PositiveInt, "search"] = 5
    """Beam size: hypotheses kept at each step; 1 is greedy."""
    nbest: Annotated[PositiveInt, "output"] = 1
    """Outputs for each source, best first."""
    length_rule: Annotated[NamedPart, "search"] = Part("mean")
    """How scores of different lengths compare: none, mean, power or gnmt."""
    length_penalty: Annotated[float | None, "search"] = None
    """Exponent α of the length rules power and gnmt; null: the rule's own."""
    early_stopping: Annotated[
        Literal[False, True, "never"],
        "search",
        Field(
            description="When a beam stops: true, as soon as `patience` times `beam` hypotheses have finished; "
            "false, once no active hypothesis currently beats the worst finished one; never, once none can any more."
        ),
    ] = True
    patience: Annotated[float, "search", Field(ge=1.0, le=100.0)] = 2.0
    """With early_stopping true: how many times `beam` hypotheses finish before a beam stops."""
    finished_policy: Annotated[Literal["collect", "shrink"], "search"] = "collect"
    """collect: finished hypotheses leave the beam its size; shrink: each narrows it by one."""
    coverage_penalty: Annotated[Penalty, "search"] = 0.0
    """Weight β of GNMT's coverage penalty for source tokens without attention."""
    num_beam_groups: Annotated[PositiveInt | None, "search"] = None
    """Groups of a diverse beam search; null: one per hypothesis."""
    diversity_penalty: Annotated[Penalty, "search"] = 0.5
    """How strongly the groups of a diverse beam avoid each other's tokens."""
    num_samples: Annotated[PositiveInt, "search"] = 1
    """Samples drawn for each source."""
    temperature: Annotated[PositiveFloat, "search"] = 1.0
    """Sampling temperature: below 1 sharper, above 1 flatter."""
    top_k: Annotated[NonNegativeInt, "search"] = 0
    """Sample from the k most probable tokens; 0: all."""
    top_p: Annotated[Probability, "search"] = 1.0
    """Sample from the smallest set of tokens with this probability (nucleus)."""
    min_p: Annotated[UnitInterval, "search"] = 0.0
    """Sample from tokens with at least this share of the best probability."""
    typical_p: Annotated[Probability, "search"] = 1.0
    """Sample from the most typical tokens with this probability."""
    epsilon_cutoff: Annotated[UnitInterval, "search"] = 0.0
    """Sample from tokens with at least this probability."""
    seed: Annotated[NonNegativeInt, "search"] = 0
    """Seed of sampling."""
    mbr: Annotated[NamedPart | None, "output"] = None
    """Minimum Bayes risk: choose the output by this metric, as chrf."""
    ctc_weight: Annotated[UnitInterval, "search"] = 0.0
    """Weight of the encoder's CTC score, for models with model.ctc."""

    max_new_tokens: Annotated[PositiveInt | None, "length"] = None
    """Most tokens of an output; null: by max_length_ratio."""
    max_length_ratio: Annotated[Ratio, "length"] = 2.0
    """Most output tokens for each source token, plus max_length_extra."""
    max_length_extra: Annotated[NonNegativeInt, "length"] = 20
    """Output tokens beyond max_length_ratio."""
    min_new_tokens: Annotated[NonNegativeInt, "length"] = 0
    """Fewest tokens of an output."""
    min_length_ratio: Annotated[Ratio, "length"] = 0.0
    """Fewest output tokens for each source token."""

    prefix: Annotated[str, "constraint", Field(max_length=1000)] = ""
    """Text that every output begins with (prefix forcing)."""
    force_phrases: Annotated[Phrases, "constraint", Field(max_length=100)] = ()
    """Phrases that every output contains; needs a beam."""
    force_phrases_ordered: Annotated[bool, "constraint"] = False
    """The forced phrases appear in the given order."""
    forbid_phrases: Annotated[Phrases, "constraint", Field(max_length=1000)] = ()
    """Phrases that no output contains."""
    choices: Annotated[Phrases, "constraint", Field(max_length=10_000)] = ()
    """The only texts that an output may be."""
    pattern: Annotated[str, "constraint", Field(max_length=1000)] = ""
    """Regular expression that the whole output matches."""
    no_repeat_ngram_size: Annotated[NonNegativeInt, "constraint"] = 0
    """No n-gram of this size twice in an output; 0: off."""
    repetition_penalty: Annotated[float, "constraint", Field(ge=1.0, le=100.0)] = 1.0
    """Factor on log p of tokens that the output already contains."""
    allow_unk: Annotated[bool, "constraint"] = True
    """Whether <unk> may be generated."""
    replace_unk: Annotated[bool, "output"] = False
    """Replace <unk> by the source word with the most attention."""

    @model_validator(mode="before")
    @classmethod
    def _lift_search_options(cls, value: Any) -> Any:
        return lift_search_options(value) if isinstance(value, dict) else value

    def problems(self) -> Iterator[str]:
        if self.max_new_tokens is not None and self.max_new_tokens < self.min_new_tokens:
            yield f"max_new_tokens is {self.max_new_tokens}; it must be at least min_new_tokens, {self.min_new_tokens}"

        if "patience" in self.explicit and self.early_stopping is not True:
            yield f"patience is {self.patience:g}; it needs early_stopping: true"

    @property
    def explicit(self) -> dict[str, Any]:
        """The fields that were set to something other than their default, by name."""
        fields = type(self).model_fields
        return {name: value for name in self.model_fields_set if (value := getattr(self, name)) != fields[name].default}

    def merge(self, other: GenerationOptions | None) -> GenerationOptions:
        """These options, overridden by the fields that `other` sets explicitly."""
        if other is None or not other.model_fields_set:
            return self
        return self.model_copy(update={name: getattr(other, name) for name in other.model_fields_set})


def length_bounds(options: GenerationOptions, source_length: int, needed: int = 0) -> tuple[int, int]:
    """The most and the fewest tokens of an output, without </s>; `needed` is how many its constraints need."""
    fewest = max(int(options.min_length_ratio * source_length), options.min_new_tokens)
    most = options.max_new_tokens
    if most is None:
        most = max(int(options.max_length_ratio * source_length) + options.max_length_extra, needed)
    return max(most, fewest, 1), fewest


def lift_search_options(value: dict[str, Any]) -> dict[str, Any]:
    """Lift options of the search that are fields: `search: {name: beam, beam: 4}` sets `beam: 4`."""
    search = value.get("search")
    options = dict(search.options) if isinstance(search, Part) else search if isinstance(search, dict) else {}
    lifted = {name: item for name, item in options.items() if name in GenerationOptions.model_fields}
    if not lifted:
        return value
    own = {name: item for name, item in options.items() if name not in lifted}
    rest = {**lifted, **{name: item for name, item in value.items() if name != "search"}}
    kept = Part(search.name, own) if isinstance(search, Part) else own
    return {**rest, "search": kept} if kept else rest


def scope_of(name: str) -> Scope:
    """The scope of the field `name`: search, length, constraint or output."""
    metadata = GenerationOptions.model_fields[name].metadata
    return next(scope for scope in SCOPES if scope in metadata)


@cache
def fields_of(*scopes: Scope) -> tuple[str, ...]:
    """The fields of some scopes, in their order."""
    return tuple(name for name in GenerationOptions.model_fields if scope_of(name) in scopes)


def simple_type(name: str) -> Any:
    """The type of a field where all values are text (a command line, a query): bool, int, float, str or list[str]."""
    kinds = [kind for kind in _union_members(GenerationOptions.model_fields[name].annotation) if kind is not type(None)]
    if any(typing.get_origin(kind) is tuple for kind in kinds):
        return list[str]
    return kinds[0] if len(kinds) == 1 and kinds[0] in (bool, int, float) else str


def parse_simple(values: Mapping[str, Any]) -> dict[str, Any]:
    """Field values as a command line or a query gives them, without those that are missing (None or [])."""
    given = {name: value for name, value in values.items() if value is not None and value != []}
    if isinstance(stopping := given.get("early_stopping"), str):
        given["early_stopping"] = {"true": True, "false": False}.get(stopping.lower(), stopping)
    return given


def _union_members(kind: Any) -> list[Any]:
    """The members of a union, without their annotations."""
    if typing.get_origin(kind) is Annotated:
        return _union_members(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [member for one in typing.get_args(kind) for member in _union_members(one)]
    return [kind]
