"""dragoman blame: the training lines behind an answer."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import options
from dragoman.cli.output import write_page
from dragoman.core.errors import UserError

PROGRESS_INTERVAL_S = 15.0  # seconds between two lines


def blame(
    model: options.Model,
    source: Annotated[str, typer.Argument(help="A source; for a language model, the beginning of a text.")],
    output: Annotated[
        str | None, typer.Option(help="Explain this output instead of the model's answer.", show_default=False)
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="The right answer: only the tokens that depart from it are explained.", show_default=False),
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many training lines to name.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the answer and its lines as a page into this file.")] = None,
    source_lang: options.SourceLang = None,
    target_lang: options.TargetLang = None,
    device: options.Device = "auto",
    plugins: options.Plugins = [],
) -> None:
    """Name the training lines behind an answer, and the tokens that each of them speaks for.

    The first call indexes the training lines, which takes minutes for 100,000; the index is kept in the run folder.
    """
    options.load_plugins(plugins)
    from dragoman.core.types import Example
    from dragoman.inference import pipeline
    from dragoman.inspection.attribution import attribute
    from dragoman.inspection.views.blame import blame_lines, training_lines_blocker, view_data

    loaded = pipeline.load(model, device, reference=True)
    if (reason := training_lines_blocker(loaded)) is not None:
        raise UserError(reason)
    example = Example(source, source_lang=source_lang, target_lang=target_lang)
    if target is not None and (unknown := loaded.codec.target.unknown_words(target)):
        options.print_to_stderr(
            f"the model has no '{unknown[0]}', so that it can never write this target; are symbols separated by spaces?"
        )
    progress = _Progress()
    found = attribute(loaded, example, output=output, reference=target, top=top, on_progress=progress)
    data = {"view": "blame", **view_data(found)}
    if html is not None:
        write_page(html, [data], f"dragoman blame {model}")
    if as_json:
        data["lines"] = [asdict(line) for line in found.lines]  # with the folders of their files
        options.print_text(json.dumps(data, ensure_ascii=False, indent=1))
    elif html is None:
        blame_lines.print_view(options.console(), data)
        if folders := sorted({str(Path(line.file).parent) for line in found.lines}):
            options.print_text(f"the files are in {', '.join(folders)}")


class _Progress:
    """Says on the standard error that training lines are indexed, and how far it is, every PROGRESS_INTERVAL_S."""

    def __init__(self) -> None:
        self.printed = 0.0

    def __call__(self, done: int, total: int) -> None:
        if self.printed and done < total and time.monotonic() - self.printed < PROGRESS_INTERVAL_S:
            return
        text = f"{done:,} of {total:,}" if self.printed else f"{total:,} training lines, once; the index is kept"
        options.print_to_stderr(f"indexing {text}")
        self.printed = time.monotonic()
