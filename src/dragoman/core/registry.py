"""Names → parts. A part's constructor is its schema.

Positional parameters are wiring (widths and the like, given by whoever builds the part); keyword-only parameters are
options (given by the user). The options become a pydantic model that forbids unknown keys, so that a misspelt option is
an error with a hint and never a silent default.

    encoders = Registry("encoder", __name__)        # in encoders/__init__.py: the folder is the registry

    @encoders.register("rnn")                       # in encoders/rnn.py
    class RNNEncoder(nn.Module):
        \"\"\"h_t = f(x_t, h_{t-1}), read in both directions.\"\"\"
        def __init__(self, d: int, *, layers: Positive = 1, score: Annotated[Part, scores] = Part("dot")): ...

    encoders.build(Part("rnn", {"layers": 2}), 256)

In YAML a part is a bare name (`encoder: rnn`) or a mapping (`encoder: {name: rnn, layers: 2}`). An option that is
itself a part is annotated with its registry, as `score` above. Others add parts through entry points
(`dragoman.encoders`) or plugins (plugins.py).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import pkgutil
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, create_model, model_validator
from pydantic.json_schema import JsonSchemaValue, PydanticJsonSchemaWarning
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from dragoman.core.errors import did_you_mean

T = TypeVar("T")

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
UnitInterval = Annotated[float, Field(ge=0.0, lt=1.0)]  # a probability or proportion below 1
PositiveFloat = Annotated[float, Field(gt=0.0, le=1e38)]  # what a float32 can hold


@dataclass(frozen=True)
class Part:
    """The name of a registered part and its options, as a config names it."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    @classmethod
    def parse(cls, value: Any, *, kind: str = "a name") -> Part:
        """A bare name, a mapping with a name, or a Part → the Part; its registry checks its options later."""
        if isinstance(value, Part):
            return value
        if isinstance(value, str):
            return Part(value)
        if isinstance(value, dict) and isinstance(value.get("name"), str):
            return Part(value["name"], {key: item for key, item in value.items() if key != "name"})
        found = {"kind": kind, "found": f"{value!r}"[:60]}
        raise PydanticCustomError("part", "must be {kind} or a mapping with one, not {found}", found)

    def to_mapping(self) -> dict[str, Any]:
        """The part as a config file writes it."""
        return {"name": self.name} | {
            key: value.to_mapping() if isinstance(value, Part) else value for key, value in self.options.items()
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return Part, (self.name, dict(self.options))  # a mapping proxy cannot travel to another process


class Options(BaseModel):
    """A group of settings: unknown keys are errors, types are not converted, nothing changes after construction."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, validate_default=True, protected_namespaces=(), allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _name_default_parts(cls, value: Any) -> Any:
        """`decoder: {layers: 2}` without a name means the part that is the default there."""
        if not isinstance(value, dict):
            return value
        given = dict(value)
        for name, info in cls.model_fields.items():
            if isinstance(info.default, Part) and isinstance(given.get(name), dict):
                given[name] = {"name": info.default.name, **given[name]}
        return given

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """A default that is a part is written as in a config file: pydantic cannot, and would warn."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
            json_schema = handler(schema)
        properties = handler.resolve_ref_schema(json_schema).get("properties", {})
        for name, info in cls.model_fields.items():
            if isinstance(info.default, Part) and name in properties:
                properties[name]["default"] = info.default.to_mapping() if info.default.options else info.default.name
        return json_schema

    def problems(self) -> Iterator[str]:
        """What is wrong between the fields, one sentence each; nothing unless a subclass overrides it."""
        return iter(())


@cache
def options_of(part: Callable[..., Any], title: str) -> type[Options]:
    """The keyword-only parameters of a constructor or function as a group of settings."""
    call: Any = part.__init__ if isinstance(part, type) else part  # type: ignore[misc]
    hints = typing.get_type_hints(call, include_extras=True)
    fields: dict[str, Any] = {
        key: (hints.get(key, Any), ... if parameter.default is inspect.Parameter.empty else parameter.default)
        for key, parameter in inspect.signature(call).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    return create_model(title, __base__=Options, **fields)


class Registry(Generic[T]):
    """The parts of one kind, by name; `package` is the folder whose modules hold them, read on first use."""

    def __init__(self, kind: str, package: str | None = None) -> None:
        self.kind, self.package = kind, package
        self._parts: dict[str, Callable[..., T]] = {}
        self._discovered = False

    def register(self, name: str) -> Callable[[Any], Any]:
        """A decorator that adds a class or function under a name."""

        def add(part: Any) -> Any:
            if name in self._parts:
                raise ValueError(f"there are two {self.kind}s called '{name}'")
            self._parts[name] = part
            return part

        return add

    def _discover(self) -> None:
        """Import, once, all modules of the package and all entry points, which register their parts."""
        if self._discovered:
            return
        self._discovered = True
        if self.package:
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(getattr(package, "__path__", [])):
                importlib.import_module(f"{self.package}.{module.name}")
        for entry in importlib.metadata.entry_points(group=f"dragoman.{self.kind.replace(' ', '_')}s"):
            entry.load()

    @property
    def names(self) -> list[str]:
        """The names of all registered parts, sorted."""
        self._discover()
        return sorted(self._parts)

    def __getitem__(self, name: str) -> Callable[..., T]:
        self._discover()
        if name not in self._parts:
            raise KeyError(self.unknown_name_message(name))
        return self._parts[name]

    def unknown_name_message(self, name: str) -> str:
        """The sentence that says a name is not one of ours."""
        return f"no {self.kind} called '{name}'{did_you_mean(name, self.names)} (there is {', '.join(self.names)})"

    def summary(self, name: str) -> str:
        """What a part is, in one line: the first of its docstring."""
        return (inspect.getdoc(self[name]) or "").split("\n", 1)[0]

    def schema(self, name: str) -> type[Options]:
        """The options of a part as a pydantic model."""
        return options_of(self[name], f"{self.kind} {name}")

    def build(self, part: Part, *wiring: Any) -> T:
        """The part itself: called with its wiring and its options, which are not checked again."""
        return self[part.name](*wiring, **part.options)

    # -- as a type in configs and in other parts' options ----------------------------------------------------------

    def parse(self, value: Any) -> Part:
        """A bare name, a mapping with a name, or a Part → the Part with every option checked and filled in."""
        part = Part.parse(value, kind=f"the name of {'an' if self.kind[0] in 'aeiou' else 'a'} {self.kind}")
        if part.name not in self.names:
            raise PydanticCustomError("part", "{message}", {"message": self.unknown_name_message(part.name)})
        options = self.schema(part.name).model_validate(dict(part.options))
        return Part(part.name, dict(options))

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.parse, serialization=core_schema.plain_serializer_function_ser_schema(Part.to_mapping)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        variants: list[JsonSchemaValue] = [{"enum": self.names}]
        for name in self.names:
            variant = self.schema(name).model_json_schema()
            variant["title"], variant["description"] = name, self.summary(name)
            variant["properties"] = {"name": {"const": name}} | variant.get("properties", {})
            variants.append(variant)
        return {"anyOf": variants, "title": self.kind}
