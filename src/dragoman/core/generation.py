"""GenerationOptions: everything that decides how a trained model turns a source into outputs.

One typed object with one set of names. A config's `generation:` section, the options of the command line, the keywords
of Python and the fields of an HTTP request are all made from it, so a new option is one field here and its use.

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
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from dragoman.core.registry import NonNegativeInt, Options, Part, PositiveFloat, PositiveInt, UnitInterval

Scope = Literal["search", "length", "constraint", "output"]

SCOPES: dict[Scope, str] = {
    "search": "Search",
    "length": "Output length",
    "constraint": "Constraints on the output",
    "output": "Choice of the output",
}


class GenerationField(NamedTuple):
    """What a field is about: searches are shared by a batch, lengths and constraints may differ by source."""

    scope: Scope


def _part(value: Any) -> Any:
    """A name, a mapping with a name, or a Part → the Part; its options are checked later, by its registry."""
    if isinstance(value, Part):
        return value
    if isinstance(value, str):
        return Part(value)
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        return Part(value["name"], {key: item for key, item in value.items() if key != "name"})
    found = f"{value!r}"[:60]
    raise PydanticCustomError("part", "must be a name or a mapping with a name, not {found}", {"found": found})


def _phrases(value: Any) -> Any:
    """Phrases as a tuple; JSON, YAML and the command line bring lists."""
    return tuple(value) if isinstance(value, list) else value


NamedPart = Annotated[
    Part,
    BeforeValidator(_part, json_schema_input_type=str),
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
    tuple[Phrase, ...], BeforeValidator(_phrases, json_schema_input_type=list[Phrase]), PlainSerializer(list)
]
Probability = Annotated[float, Field(gt=0.0, le=1.0)]
Penalty = Annotated[float, Field(ge=0.0, le=1e6)]
Ratio = Annotated[float, Field(ge=0.0, le=1000.0)]

_SEARCH, _LENGTH, _CONSTRAINT, _OUTPUT = (GenerationField(scope) for scope in SCOPES)


class GenerationOptions(Options):
    """How outputs are generated: the search, their lengths, and what they must and must not contain."""

    search: Annotated[
        NamedPart, _SEARCH, Field(description="beam, greedy, sample, diverse, exhaustive, or a registered search.")
    ] = Part("beam")
    beam: Annotated[
        PositiveInt, _SEARCH, Field(description="Beam size: hypotheses kept at each step; 1 is greedy.")
    ] = 5
    nbest: Annotated[PositiveInt, _OUTPUT, Field(description="Outputs for each source, best first.")] = 1
    length_rule: Annotated[
        NamedPart, _SEARCH, Field(description="How scores of different lengths compare: none, mean, power or gnmt.")
    ] = Part("mean")
    length_penalty: Annotated[
        float | None, _SEARCH, Field(description="Exponent α of the length rules power and gnmt; null: the rule's own.")
    ] = None
    early_stopping: Annotated[
        Literal[False, True, "never"],
        _SEARCH,
        Field(
            description="When a beam stops: false, once no active hypothesis currently beats the worst finished one; "
            "never, once none can any more; true, as soon as `beam` hypotheses have finished."
        ),
    ] = False
    finished_policy: Annotated[
        Literal["collect", "shrink"],
        _SEARCH,
        Field(description="collect: finished hypotheses leave the beam its size; shrink: each narrows it by one."),
    ] = "collect"
    coverage_penalty: Annotated[
        Penalty, _SEARCH, Field(description="Weight β of GNMT's coverage penalty for source tokens without attention.")
    ] = 0.0
    num_beam_groups: Annotated[
        PositiveInt | None, _SEARCH, Field(description="Groups of a diverse beam search; null: one per hypothesis.")
    ] = None
    diversity_penalty: Annotated[
        Penalty, _SEARCH, Field(description="How strongly the groups of a diverse beam avoid each other's tokens.")
    ] = 0.5
    num_samples: Annotated[PositiveInt, _SEARCH, Field(description="Samples drawn for each source.")] = 1
    temperature: Annotated[
        PositiveFloat, _SEARCH, Field(description="Sampling temperature: below 1 sharper, above 1 flatter.")
    ] = 1.0
    top_k: Annotated[NonNegativeInt, _SEARCH, Field(description="Sample from the k most probable tokens; 0: all.")] = 0
    top_p: Annotated[
        Probability,
        _SEARCH,
        Field(description="Sample from the smallest set of tokens with this probability (nucleus)."),
    ] = 1.0
    min_p: Annotated[
        UnitInterval, _SEARCH, Field(description="Sample from tokens with at least this share of the best probability.")
    ] = 0.0
    typical_p: Annotated[
        Probability, _SEARCH, Field(description="Sample from the most typical tokens with this probability.")
    ] = 1.0
    epsilon_cutoff: Annotated[
        UnitInterval, _SEARCH, Field(description="Sample from tokens with at least this probability.")
    ] = 0.0
    seed: Annotated[NonNegativeInt, _SEARCH, Field(description="Seed of sampling.")] = 0
    mbr: Annotated[
        NamedPart | None, _OUTPUT, Field(description="Minimum Bayes risk: choose the output by this metric, as chrf.")
    ] = None
    ctc_weight: Annotated[
        UnitInterval, _SEARCH, Field(description="Weight of the encoder's CTC score, for models with model.ctc.")
    ] = 0.0

    max_new_tokens: Annotated[
        PositiveInt | None, _LENGTH, Field(description="Most tokens of an output; null: by max_length_ratio.")
    ] = None
    max_length_ratio: Annotated[
        Ratio, _LENGTH, Field(description="Most output tokens for each source token, plus max_length_extra.")
    ] = 2.0
    max_length_extra: Annotated[
        NonNegativeInt, _LENGTH, Field(description="Output tokens beyond max_length_ratio.")
    ] = 20
    min_new_tokens: Annotated[NonNegativeInt, _LENGTH, Field(description="Fewest tokens of an output.")] = 0
    min_length_ratio: Annotated[Ratio, _LENGTH, Field(description="Fewest output tokens for each source token.")] = 0.0

    prefix: Annotated[
        str, _CONSTRAINT, Field(max_length=1000, description="Text that every output begins with (prefix forcing).")
    ] = ""
    force_phrases: Annotated[
        Phrases, _CONSTRAINT, Field(max_length=100, description="Phrases that every output contains; needs a beam.")
    ] = ()
    force_phrases_ordered: Annotated[
        bool, _CONSTRAINT, Field(description="The forced phrases appear in the given order.")
    ] = False
    forbid_phrases: Annotated[
        Phrases, _CONSTRAINT, Field(max_length=1000, description="Phrases that no output contains.")
    ] = ()
    choices: Annotated[
        Phrases, _CONSTRAINT, Field(max_length=10_000, description="The only texts that an output may be.")
    ] = ()
    pattern: Annotated[
        str, _CONSTRAINT, Field(max_length=1000, description="Regular expression that the whole output matches.")
    ] = ""
    no_repeat_ngram_size: Annotated[
        NonNegativeInt, _CONSTRAINT, Field(description="No n-gram of this size twice in an output; 0: off.")
    ] = 0
    repetition_penalty: Annotated[
        float,
        _CONSTRAINT,
        Field(ge=1.0, le=100.0, description="Factor on log p of tokens that the output already contains."),
    ] = 1.0
    allow_unk: Annotated[bool, _CONSTRAINT, Field(description="Whether <unk> may be generated.")] = True
    replace_unk: Annotated[
        bool, _OUTPUT, Field(description="Replace <unk> by the source word with the most attention.")
    ] = False

    @model_validator(mode="before")
    @classmethod
    def _lift_search_options(cls, value: Any) -> Any:
        """Lift options of the search that are fields, before validation."""
        return lift_search_options(value) if isinstance(value, dict) else value

    def problems(self) -> Iterator[str]:
        """What is wrong between the fields."""
        if self.max_new_tokens is not None and self.max_new_tokens < self.min_new_tokens:
            yield f"max_new_tokens is {self.max_new_tokens}; it must be at least min_new_tokens, {self.min_new_tokens}"

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
    return next(item.scope for item in metadata if isinstance(item, GenerationField))


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
