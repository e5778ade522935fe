"""dragoman list: every part, with one line and its options."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.options import Plugins, check_choice, console, load_plugins, print_text

if TYPE_CHECKING:
    from dragoman.cli.parts_page import AnyRegistry

KINDS = {  # the module of each kind's registry; presets have none
    "frontends": "nn.frontends",
    "encoders": "nn.encoders",
    "decoders": "nn.decoders",
    "heads": "nn.heads",
    "mixers": "nn.token_mixers",
    "scores": "nn.scores",
    "normalizers": "nn.normalizers",
    "positions": "nn.positions",
    "norms": "nn.layers",
    "adapters": "nn.adapters",
    "initializers": "nn.initialization",
    "objectives": "data.objectives",
    "sampling_schedules": "optim.sampling_schedules",
    "tokenizers": "text.tokenizers",
    "searches": "search",
    "length_rules": "search.scoring",
    "optimizers": "optim.optimizers",
    "schedules": "optim.schedules",
    "metrics": "evaluation.metrics",
    "views": "inspection.views",
    "presets": "",
}


def list_parts(
    kind: Annotated[str | None, typer.Argument(help=f"One of {', '.join(KINDS)}; default: all.")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a Markdown page with equations and types.")
    ] = False,
    plugins: Plugins = [],
) -> None:
    """List the parts, with a line about each and its options with their defaults."""
    if kind is not None:
        check_choice(kind, [*KINDS], "list")
    load_plugins(plugins)
    registries = load_registries()
    if markdown:
        from dragoman.cli.parts_page import render_page, render_section

        print(render_section(kind, registries) if kind else render_page(registries), end="")
        return
    for name in [kind] if kind else KINDS:
        if kind is None:
            console().print(f"\n{name}", style="bold")
        if name == "presets":
            from dragoman.config import list_presets

            for preset, line in list_presets().items():
                print_text(f"{preset}: {line}")
            continue
        registry = registries[name]
        for part in registry.names:
            print_text(f"{part}: {registry.summary(part)}")
            for option in describe_options(registry, part):
                print_text(f"    {option}")


def load_registries() -> dict[str, AnyRegistry]:
    """Import all parts; return every registry by the name of its kind."""
    return {kind: getattr(import_module(f"dragoman.{module}"), kind) for kind, module in KINDS.items() if module}


def describe_options(registry: AnyRegistry, part: str) -> list[str]:
    """Return a line for every option of a part: `layers = 6`, with the allowed values of a choice."""
    from dragoman.core.registry import Part

    lines = []
    for name, info in registry.schema(part).model_fields.items():
        default = info.default.name if isinstance(info.default, Part) else info.default
        lines.append(f"{name} = {default}" if not info.is_required() else f"{name} (required)")
        allowed = getattr(info.annotation, "__args__", None)
        if allowed and all(isinstance(a, str) for a in allowed):
            lines[-1] += f"   ({', '.join(allowed)})"
    return lines
