"""The page of parts (docs/parts.md), written from the code: nothing in it is said twice.

equations   the header of a module: once above parts that share a file, else with each part
a part      its docstring, and its options from the keyword-only parameters of its constructor
a setting   the field of a config class, and the comment behind it
"""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from dragoman.config import Config, presets
from dragoman.config.schema import GROUPS, inside
from dragoman.core.registry import Options, Part, Registry

HEAD = """# Parts

Every part and every setting, written from the code by `dragoman list --markdown`.

A part is chosen by its name (`score: additive`), or with options by a mapping (`score: {name: additive, width: 64}`);
[guide.md](guide.md) shows how a model is put together. A default of `null` follows from the rest: a `width` is
`model.width`, a `feedforward` four times the width.
"""

# Equations that belong to no single part, by the module whose header has them.
SHARED = {
    "Whole shapes": "dragoman.config.compatibility",
    "The whole model": "dragoman.nn.seq2seq",
    "Attention": "dragoman.nn.attention",
    "Transformer blocks": "dragoman.nn.blocks",
    "Recurrent cells": "dragoman.nn.recurrent",
    "Gated convolutions": "dragoman.nn.convolution",
    "Source and target in one sequence": "dragoman.nn.prefix",
    "Copying (model.pointer)": "dragoman.nn.pointer_generator",
    "Scheduled sampling (training.teacher)": "dragoman.training.scheduled_sampling",
}

MARKUP = re.compile(r"[\\*<\[|]|(?<!\w)_|_(?!\w)")  # what Markdown would read as more than itself

Registries = Mapping[str, Registry[Any]]


def page(registries: Registries) -> str:
    """The whole page."""
    sections = {"equations": shared(), "settings": settings(registries)}
    sections |= {kind: section(kind, registries) for kind in (*registries, "presets")}
    contents = "".join(f"- [{name}](#{name}){_names(name, registries)}\n" for name in sections)
    return "\n".join([HEAD, contents, *(f"## {name}\n\n{text}" for name, text in sections.items())])


def _names(kind: str, registries: Registries) -> str:
    return f": {', '.join(registries[kind].names)}" if kind in registries else ""


def section(kind: str, registries: Registries) -> str:
    """Every part of a kind, or every preset."""
    if kind == "presets":
        rows = [f"| `{name}` | {prose(line)} |\n" for name, line in presets().items()]
        return "".join(["| preset | |\n|---|---|\n", *rows])
    registry = registries[kind]
    modules = {name: inspect.getmodule(registry[name]) for name in registry.names}
    blocks = [f"Goes into {'; '.join(places(registry, registries))}.\n"]
    if one_file := len(set(modules.values())) == 1:
        blocks.append(equations(modules[registry.names[0]]))
    first: dict[Any, str] = {}  # the part whose module's header was shown
    for name, module in modules.items():
        blocks.append(f"### {name}\n\n{prose(inspect.getdoc(registry[name]) or '')}\n")
        if module in first:
            blocks.append(f"Its equation stands with `{first[module]}`.\n")
        elif not one_file and module.__doc__:
            blocks.append(equations(module))
            first[module] = name
        blocks.append(table(registry.schema(name), registries))
    return "\n".join(block for block in blocks if block)


def shared() -> str:
    """What no single part has to itself."""
    return "\n".join(f"### {title}\n\n{equations(importlib.import_module(name))}" for title, name in SHARED.items())


def settings(registries: Registries) -> str:
    """Every key of a config file, group by group."""
    blocks = [table(Config, registries, skip=GROUPS)]
    for name, group in GROUPS.items():
        line = "" if name == "model" else f"{prose(inspect.getdoc(group) or '')}\n\n"
        blocks.append(f"### {name}\n\n{line}{table(group, registries)}")
    return "\n".join(blocks)


def places(registry: Registry[Any], registries: Registries) -> Iterator[str]:
    """Where a part of this kind can be named: settings, and options of other parts."""
    for group, schema in GROUPS.items():
        yield from (f"`{group}.{name}`" for name, info in schema.model_fields.items() if registry in inside(info))
    for kind, other in registries.items():
        found: dict[str, list[str]] = {}
        for part in other.names:
            for option, info in other.schema(part).model_fields.items():
                if registry in inside(info):
                    found.setdefault(option, []).append(part)
        yield from (f"`{option}` of {kind} ({', '.join(parts)})" for option, parts in found.items())


# -- what a block of the page looks like -------------------------------------------------------------------------------


def equations(module: Any) -> str:
    """The header of a module as it stands; nothing where it has none."""
    return f"```text\n{inspect.getdoc(module)}\n```\n" if module.__doc__ else ""


def table(schema: type[Options], registries: Registries, skip: Mapping[str, Any] = {}) -> str:
    """The options of a part or a group: what each may be, its default, and the comment behind it."""
    notes = comments(schema)
    rows = [
        [f"`{name}`", allowed(info.annotation, info.metadata, registries), default(info), prose(notes.get(name, ""))]
        for name, info in schema.model_fields.items()
        if name not in skip
    ]
    if not rows:
        return ""
    columns = 4 if notes else 3
    lines = [["option", "allowed", "default", ""], ["---"] * 4, *rows]
    return "".join(f"| {' | '.join(line[:columns])} |\n" for line in lines)


def comments(schema: type[Options]) -> dict[str, str]:
    """`steps: Positive = 1  # updates` in the source of a config class → {steps: updates}."""
    if not schema.__module__.startswith("dragoman.config"):
        return {}
    found = re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(schema), re.MULTILINE)
    return {name: text for name, text in found if name in schema.model_fields}


def default(info: FieldInfo) -> str:
    """As a config file would write it."""
    value = info.default.name if isinstance(info.default, Part) else info.default
    if value is None or isinstance(value, bool):
        value = {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        value = f"[{', '.join(map(str, value))}]"
    return "required" if info.is_required() else f"`{value}`"


def allowed(kind: Any, bounds: Sequence[Any], registries: Registries) -> str:
    """A type as words: `whole number > 0`, `0 ≤ number < 1`, what to choose from, a link to a kind of parts."""
    for bound in bounds:
        if isinstance(bound, Registry):
            name = next(name for name, registry in registries.items() if registry is bound)
            return f"[{bound.kind}](#{name})"
        if isinstance(bound, BeforeValidator):  # what may be written is more than what it becomes
            kind = bound.json_schema_input_type
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        inner = [y for x in arguments[1:] for y in (x.metadata if isinstance(x, FieldInfo) else [x])]
        return allowed(arguments[0], inner, registries)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is list:
        return f"list of {allowed(arguments[0], [], registries)}"
    if arguments:  # several types
        return " or ".join(allowed(item, [], registries) for item in arguments)
    if issubclass(kind, Options):
        return f"`{{{', '.join(kind.model_fields)}}}`"
    words = {bool: "`true`, `false`", int: "whole number", float: "number", str: "text", NoneType: "`null`"}
    return between(words[kind], bounds)


def between(word: str, bounds: Sequence[Any]) -> str:
    """`0 ≤ word < 1`; limits that nobody meets (what a float32 can hold) are left out."""
    low = high = ""
    for bound in bounds:
        match bound:
            case Gt(gt=limit):
                low = f"{limit:g} < "
            case Ge(ge=limit):
                low = f"{limit:g} ≤ "
            case Lt(lt=float() | int() as limit) if limit < 1e5:
                high = f" < {limit:g}"
            case Le(le=float() | int() as limit) if limit < 1e5:
                high = f" ≤ {limit:g}"
    if low and not high:  # number > 0 reads better than 0 < number
        return f"{word} {'≥' if '≤' in low else '>'} {low.split()[0]}"
    return f"{low}{word}{high}"


def prose(text: str) -> str:
    """A docstring's text as Markdown, with what would be markup in it made plain."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else MARKUP.sub(r"\\\g<0>", piece) for piece in pieces)
