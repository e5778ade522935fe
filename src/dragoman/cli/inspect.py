"""dragoman inspect: what the model looked at, in the terminal or as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import (
    Beam,
    Device,
    Imports,
    Model,
    SourceLang,
    TargetLang,
    console,
    import_all,
    warn_untagged,
)
from dragoman.cli.predict import tagged_with


def inspect(
    model: Model,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Sources to look at; default: one line of the standard input each.")
    ] = None,
    beam: Beam = None,
    png: Annotated[Path | None, typer.Option(help="Draw the alignments into this file (.png, .svg or .pdf).")] = None,
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    device: Device = "auto",
    modules: Imports = [],
) -> None:
    """Show which source tokens the model attended to for every token it wrote."""
    import_all(modules)
    from dragoman import pipeline
    from dragoman.core.interfaces import Example
    from dragoman.data.readers import read_sources
    from dragoman.inspection.picture import Panel, alignment
    from dragoman.inspection.terminal import heat_map

    opened = pipeline.load(model, device)
    given = [Example(text) for text in texts] if texts else read_sources("-")
    sources = list(warn_untagged(opened, tagged_with(given, source_lang, target_lang)))
    out, panels = console(), []
    for source, prediction in zip(sources, opened.predict(sources, beam=beam, attention=True), strict=True):
        out.print(
            f"{source.source} → {prediction.text}   (log p {prediction.log_prob:.2f})", markup=False, soft_wrap=True
        )
        if prediction.attention is None:
            out.print(
                "this model has no attention to show"
                if prediction.ended != "blank"
                else "nothing to look at: the source is blank"
            )
            continue
        labels = prediction.source_tokens, [*prediction.tokens, "</s>"]
        out.print(heat_map(prediction.attention, *labels, color=out.color_system is not None))
        panels.append(Panel(prediction.attention, *labels, f"{source.source} → {prediction.text}"))
    if png is not None and panels:
        alignment(png, panels)
        console(error=True).print(f"wrote {png}", markup=False)
