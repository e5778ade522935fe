"""dragoman list: every part there is, with one line and its options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import Imports, choice, console, import_all

if TYPE_CHECKING:
    from dragoman.core.registry import Registry

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
    "teachers",
    "tokenizers",
    "searches",
    "length_rules",
    "optimizers",
    "schedules",
    "metrics",
    "presets",
)


def show(
    kind: Annotated[str | None, typer.Argument(help=f"One of {', '.join(KINDS)}; default: all.")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a page in Markdown instead, with equations and types.")
    ] = False,
    modules: Imports = [],
) -> None:
    """Print the names of parts, what each is in one line, and its options with their defaults."""
    if kind is not None:
        choice(kind, KINDS, "list")
    import_all(modules)
    if markdown:
        from dragoman.cli.parts_page import page, section

        print(section(kind, registries()) if kind else page(registries()), end="")
        return
    out = console()
    for name in [kind] if kind else KINDS:
        if kind is None:
            out.print(f"\n{name}", style="bold")
        if name == "presets":
            from dragoman.config import presets

            for preset, line in presets().items():
                out.print(f"{preset}: {line}", markup=False, soft_wrap=True)
            continue
        registry = registries()[name]
        for part in registry.names:
            out.print(f"{part}: {registry.line(part)}", markup=False, soft_wrap=True)
            for option in options(registry, part):
                out.print(f"    {option}", markup=False, soft_wrap=True)


def registries() -> dict[str, Registry[Any]]:
    """Every registry by the name of its kind."""
    from dragoman.data.objectives import objectives
    from dragoman.evaluation.metrics import metrics
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
    from dragoman.optim.sampling_schedules import teachers
    from dragoman.optim.schedules import schedules
    from dragoman.search import searches
    from dragoman.search.scoring import length_rules
    from dragoman.text.tokenizers import tokenizers

    found = (
        frontends, encoders, decoders, heads, mixers, scores, normalizers, positions, norms, initializers,
        objectives, teachers, tokenizers, searches, length_rules, optimizers, schedules, metrics,
    )  # fmt: skip
    return dict(zip(KINDS, found, strict=False))


def options(registry: Registry[Any], part: str) -> list[str]:
    """`layers: int > 0 = 6` for every option."""
    from dragoman.core.registry import Part

    lines = []
    for name, info in registry.schema(part).model_fields.items():
        default = info.default.name if isinstance(info.default, Part) else info.default
        lines.append(f"{name} = {default}" if not info.is_required() else f"{name} (required)")
        allowed = getattr(info.annotation, "__args__", None)
        if allowed and all(isinstance(a, str) for a in allowed):
            lines[-1] += f"   ({', '.join(allowed)})"
    return lines
