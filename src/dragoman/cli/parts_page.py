"""Write the page of all parts and settings (docs/parts.md) from the code.

equations   the header of a module: once for parts that share a file, else with each part
a part      its docstring, and its options from the keyword-only parameters of its constructor
a setting   the field of a config class, and the comment behind it
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import typing
from collections.abc import Container, Iterator, Mapping, Sequence
from types import ModuleType, NoneType
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from dragoman.config import Config, list_presets
from dragoman.config.schema import GROUPS, nested_types
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import Options, Part, Registry

INTRODUCTION = """# Parts

Every part and every setting, written from the code by `dragoman list --markdown`.

A part is chosen by its name (`score: additive`), or with options by a mapping (`score: {name: additive, width: 64}`);
[guide.md](guide.md) shows how a model is put together. A default of `null` follows from the rest: a `width` is
`model.width`, a `feedforward` four times the width.
"""

# Equations that belong to no single part, by the module whose header has them.
SHARED_EQUATIONS = {
    "Whole shapes": "dragoman.config.compatibility",
    "The whole model": "dragoman.nn.seq2seq",
    "Attention": "dragoman.nn.attention",
    "Transformer blocks": "dragoman.nn.blocks",
    "Recurrent cells": "dragoman.nn.recurrent",
    "Gated convolutions": "dragoman.nn.convolution",
    "Source and target in one sequence": "dragoman.nn.prefix",
    "Copying (model.pointer)": "dragoman.nn.pointer_generator",
    "Scheduled sampling (training.scheduled_sampling)": "dragoman.training.scheduled_sampling",
}

MARKUP_CHARACTERS = re.compile(r"[\\*<\[|]|(?<!\w)_|_(?!\w)")  # that Markdown would interpret

AnyRegistry = Registry[Any]  # of parts of any type
Registries = Mapping[str, AnyRegistry]


def render_page(registries: Registries) -> str:
    """Render the whole reference page in Markdown: equations, settings, every kind of part, presets."""
    headers = {title: format_header(importlib.import_module(name)) for title, name in SHARED_EQUATIONS.items()}
    equations = "\n".join(f"### {title}\n\n{header}" for title, header in headers.items())
    sections = {"equations": equations, "settings": render_settings(registries)}
    sections |= {kind: render_section(kind, registries) for kind in (*registries, "presets")}
    names = {kind: f": {', '.join(registry.names)}" for kind, registry in registries.items()}
    contents = "".join(f"- [{name}](#{name}){names.get(name, '')}\n" for name in sections)
    return "\n".join([INTRODUCTION, contents, *(f"## {name}\n\n{text}" for name, text in sections.items())])


def render_section(kind: str, registries: Registries) -> str:
    """Render the Markdown section of a kind: where it is used, and every part with its options; or every preset."""
    if kind == "presets":
        rows = [f"| `{name}` | {escape_markdown(line)} |\n" for name, line in list_presets().items()]
        return "".join(["| preset | |\n|---|---|\n", *rows])
    registry = registries[kind]
    modules = {name: sys.modules[registry[name].__module__] for name in registry.names}
    uses = list(find_uses(registry, registries))
    blocks = [f"Goes into {'; '.join(uses)}.\n" if uses else "Shown by `dragoman inspect --view NAME`.\n"]
    if one_file := len(set(modules.values())) == 1:
        blocks.append(format_header(modules[registry.names[0]]))
    first: dict[ModuleType, str] = {}  # the first part of each module, with whom its header stands
    for name, module in modules.items():
        blocks.append(f"### {name}\n\n{escape_markdown(inspect.getdoc(registry[name]) or '')}\n")
        if module in first:
            blocks.append(f"Its equation stands with `{first[module]}`.\n")
        elif not one_file and module.__doc__:
            blocks.append(format_header(module))
            first[module] = name
        blocks.append(format_options(registry.schema(name), registries))
    return "\n".join(block for block in blocks if block)


def render_settings(registries: Registries) -> str:
    """Render every key of a config file in Markdown, by group."""
    blocks = [format_options(Config, registries, skip=GROUPS)]
    for name, group in GROUPS.items():
        line = "" if name == "model" else f"{escape_markdown(inspect.getdoc(group) or '')}\n\n"
        blocks.append(f"### {name}\n\n{line}{format_options(group, registries)}")
    return "\n".join(blocks)


def find_uses(registry: AnyRegistry, registries: Registries) -> Iterator[str]:
    """Yield the settings, and the options of other parts, that take a part of this kind, in Markdown."""
    for group, schema in GROUPS.items():
        yield from (f"`{group}.{name}`" for name, info in schema.model_fields.items() if registry in nested_types(info))
    for kind, other in registries.items():
        users: dict[str, list[str]] = {}
        for part in other.names:
            for option, info in other.schema(part).model_fields.items():
                if registry in nested_types(info):
                    users.setdefault(option, []).append(part)
        yield from (f"`{option}` of {kind} ({', '.join(parts)})" for option, parts in users.items())


# -- blocks of the page ------------------------------------------------------------------------------------------------


def format_header(module: ModuleType) -> str:
    """Format a module's docstring as a Markdown code block; empty if it has none."""
    return f"```text\n{inspect.getdoc(module)}\n```\n" if module.__doc__ else ""


def format_options(schema: type[Options], registries: Registries, skip: Container[str] = ()) -> str:
    """Format a Markdown table of a schema's options (allowed values, default, comment), without those in `skip`."""
    notes = field_comments(schema)
    rows = [
        [
            f"`{name}`",
            describe_type(info.annotation, info.metadata, registries),
            format_default(info),
            escape_markdown(notes.get(name, "")),
        ]
        for name, info in schema.model_fields.items()
        if name not in skip
    ]
    if not rows:
        return ""
    columns = 4 if notes else 3
    lines = [["option", "allowed", "default", ""], ["---"] * 4, *rows]
    return "".join(f"| {' | '.join(line[:columns])} |\n" for line in lines)


def field_comments(schema: type[Options]) -> dict[str, str]:
    """Return the notes on a schema's fields: descriptions, or the comments in a config class's source."""
    if described := {name: info.description for name, info in schema.model_fields.items() if info.description}:
        return described
    if not schema.__module__.startswith("dragoman.config"):
        return {}
    matches = re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(schema), re.MULTILINE)
    return {name: text for name, text in matches if name in schema.model_fields}


def format_default(info: FieldInfo) -> str:
    """Format the default of an option as a config file would write it, or "required"."""
    value = info.default.name if isinstance(info.default, Part) else info.default
    if value is None or isinstance(value, bool):
        value = {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Options):
        given = value.model_dump(exclude_unset=True)
        value = "{" + ", ".join(f"{name}: {item}" for name, item in given.items()) + "}"
    if isinstance(value, list | tuple):
        value = f"[{', '.join(map(str, value))}]"
    return "required" if info.is_required() else f"`{value}`"


def describe_type(kind: Any, bounds: Sequence[object], registries: Registries) -> str:
    """Describe a type with its `bounds` (annotations) in words, or as a Markdown link to a kind of part."""
    for bound in bounds:
        if isinstance(bound, Registry):
            name = next(name for name, registry in registries.items() if registry is bound)
            return f"[{bound.kind}](#{name})"
        if isinstance(bound, BeforeValidator):  # a config may write more than the validated type
            kind = bound.json_schema_input_type
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        inner = [y for x in arguments[1:] for y in (x.metadata if isinstance(x, FieldInfo) else [x])]
        return describe_type(arguments[0], inner, registries)
    if origin is Literal:
        return ", ".join(f"`{str(value).lower() if isinstance(value, bool) else value}`" for value in arguments)
    if origin in (list, tuple):
        return f"list of {describe_type(arguments[0], [], registries)}"
    if origin is dict:
        key, value = (describe_type(item, [], registries) for item in arguments)
        return f"mapping of {key} to {value}"
    if arguments:  # a union
        return " or ".join(describe_type(item, [], registries) for item in arguments)
    if kind is GenerationOptions:
        return "as `generation`"
    if issubclass(kind, Options):
        return f"`{{{', '.join(kind.model_fields)}}}`"
    words = {bool: "`true`, `false`", int: "whole number", float: "number", str: "text", NoneType: "`null`"}
    return describe_range(words[kind], bounds)


def describe_range(word: str, bounds: Sequence[object]) -> str:
    """Add bounds to a type's name: `0 ≤ number < 1`; upper bounds from 100,000 on are left out."""
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


def escape_markdown(text: str) -> str:
    """Escape the characters that Markdown would interpret, except inside backticks."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else MARKUP_CHARACTERS.sub(r"\\\g<0>", piece) for piece in pieces)
