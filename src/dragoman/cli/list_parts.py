"""dragoman list: every part, with one line and its options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.options import Plugins, check_choice, console, load_plugins

if TYPE_CHECKING:
    from dragoman.cli.parts_page import AnyRegistry

KINDS = (
    "frontends",
    "encoders",
    "decoders",
    "heads",
    "mixers",
    "scores",
    "normalizers",
    "positions",
    "norms",
    "initializers",
    "objectives",
    "sampling_schedules",
    "tokenizers",
    "searches",
    "length_rules",
    "optimizers",
    "schedules",
    "metrics",
    "views",
    "presets",
)


def list_parts(
    kind: Annotated[str | None, typer.Argument(help=f"One of {', '.join(KINDS)}; default: all.")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a Markdown page with equations and types.")
    ] = False,
    plugins: Plugins = [],
) -> None:
    """List the parts, with a line about each and its options with their defaults."""
    if kind is not None:
        check_choice(kind, KINDS, "list")
    load_plugins(plugins)
    if markdown:
        from dragoman.cli.parts_page import render_page, render_section

        print(render_section(kind, load_registries()) if kind else render_page(load_registries()), end="")
        return
    out, registries = console(), load_registries()
    for name in [kind] if kind else KINDS:
        if kind is None:
            out.print(f"\n{name}", style="bold")
        if name == "presets":
            from dragoman.config import list_presets

            for preset, line in list_presets().items():
                out.print(f"{preset}: {line}", markup=False, soft_wrap=True)
            continue
        registry = registries[name]
        for part in registry.names:
            out.print(f"{part}: {registry.summary(part)}", markup=False, soft_wrap=True)
            for option in describe_options(registry, part):
                out.print(f"    {option}", markup=False, soft_wrap=True)


def load_registries() -> dict[str, AnyRegistry]:
    """Import all parts; return every registry by the name of its kind."""
    from dragoman.data.objectives import objectives
    from dragoman.evaluation.metrics import metrics
    from dragoman.inspection.views import views
    from dragoman.nn.decoders import decoders
    from dragoman.nn.encoders import encoders
    from dragoman.nn.frontends import frontends
    from dragoman.nn.heads import heads
    from dragoman.nn.initialization import initializers
    from dragoman.nn.layers import norms
    from dragoman.nn.normalizers import normalizers
    from dragoman.nn.positions import positions
    from dragoman.nn.scores import scores
    from dragoman.nn.token_mixers import mixers
    from dragoman.optim.optimizers import optimizers
    from dragoman.optim.sampling_schedules import sampling_schedules
    from dragoman.optim.schedules import schedules
    from dragoman.search import searches
    from dragoman.search.scoring import length_rules
    from dragoman.text.tokenizers import tokenizers

    registries = (
        frontends, encoders, decoders, heads, mixers, scores, normalizers, positions, norms, initializers,
        objectives, sampling_schedules, tokenizers, searches, length_rules, optimizers, schedules, metrics,
        views,
    )  # fmt: skip
    return dict(zip(KINDS, registries, strict=False))


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
