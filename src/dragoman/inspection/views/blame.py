"""The training lines behind an answer, and the tokens that each of them speaks for (attribution.py).

A model shows this view once its training lines are indexed, which `dragoman blame` does: nothing is indexed here, so a
server reads no file but the index.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from dragoman.core.errors import UserError
from dragoman.inspection.blockers import decoder_blocker, single_model_blocker
from dragoman.inspection.render.terminal import visible
from dragoman.inspection.views import RequestSize, ViewData, pass_cost, register_view

if TYPE_CHECKING:
    from dragoman.core.types import Example
    from dragoman.inference.pipeline import Pipeline
    from dragoman.inspection.attribution import Attribution

OBJECTIVES = ("pairs", "lm")  # whose rows are the lines themselves
SPOKEN_SHARE = 0.1  # of a line's score: it speaks for the tokens that have more
LEAST_SHARE = 0.005  # of a line that the terminal shows
LOOKUP_COST = 100  # for each token of the answer
COMPARED_TOKENS = 20_000  # attribution.MAX_LINE_TOKENS, which a server's front process cannot import: it loads torch


def training_lines_blocker(pipeline: Pipeline) -> str | None:
    """Return why a model's answers cannot be traced to training lines, with or without an index; else None."""
    reason = single_model_blocker(pipeline) or decoder_blocker(pipeline)
    if reason is None and pipeline.reads_media:
        return "this model reads files; training lines are found for models of texts"
    if reason is None and (name := pipeline.config.training.objective.name) not in OBJECTIVES:
        return f"this model was trained on parts of its lines ('{name}'); use one of pairs, or a language model"
    return reason


def _index_blocker(pipeline: Pipeline) -> str | None:
    reason = training_lines_blocker(pipeline)
    if reason is None:
        from dragoman.inspection.training_index import open_index

        try:
            open_index(pipeline)
        except UserError as error:
            return str(error)
    return reason


def _print_lines(out: Console, data: ViewData) -> None:
    out.print(f"{data['source_text']} → {data['target_text']}", markup=False, soft_wrap=True)
    table = Table("share", Column("line", no_wrap=True, overflow="fold"), box=None, pad_edge=False)
    for heading in ("source", "target", "speaks for"):
        table.add_column(heading)
    shown = [line for line in data["lines"] if line["share"] >= LEAST_SHARE] or data["lines"]
    for line in shown:
        spoken = [i for i, share in enumerate(line["token_shares"]) if share >= SPOKEN_SHARE]
        speaks_for = " ".join(visible(data["tokens"][i]["token"]) for i in spoken)
        cells = f"{line['share']:.2f}", f"{line['file']}:{line['line']}", line["source"], line["target"], speaks_for
        table.add_row(*map(Text, cells))
    out.print(table)
    left_out = len(data["lines"]) - len(shown)
    more = f"; {left_out} below {LEAST_SHARE} not shown" if left_out else ""
    out.print(describe_scope(data) + more, markup=False, soft_wrap=True)


def describe_scope(data: ViewData) -> str:
    """Say how many training lines were searched and compared."""
    searched = f"{data['indexed']:,} training lines"
    if data["indexed"] < data["total"]:
        searched += f" (a random sample of {data['total']:,})"
    return f"shares are of the {data['compared']:,} lines nearest to the answer, out of {searched}"


def _blame_cost(size: RequestSize) -> int:
    search = size.beam * sum(size.sources) + pass_cost(size.positions)
    return search + LOOKUP_COST * sum(size.targets) + pass_cost(2 * COMPARED_TOKENS)


@register_view(
    "blame", inputs="pair", cost=_blame_cost, print_view=_print_lines, blocker=_index_blocker, needs_preparation=True
)
def blame_lines(
    pipeline: Pipeline,
    source: str | Example,
    target: str | None = None,
    *,
    output: Annotated[str, Field(max_length=20_000)] | None = None,
    top: Annotated[int, Field(ge=1, le=100)] = 10,
) -> ViewData:
    """The training lines behind an answer; with a target, those behind the tokens that depart from it."""
    from dragoman.inspection.attribution import attribute_by_index
    from dragoman.inspection.training_index import open_index

    index = open_index(pipeline)
    return view_data(attribute_by_index(pipeline, index, source, output=output, reference=target, top=top))


def view_data(found: Attribution) -> ViewData:
    """Return an attribution as plain data, with the names of the files without their folders."""
    tokens = zip(found.tokens, found.probabilities, found.weights, strict=True)
    return {
        "source_text": found.source,
        "target_text": found.output,
        "tokens": [{"token": token, "p": p, "explained": weight > 0} for token, p, weight in tokens],
        "lines": [asdict(line) | {"file": PurePath(line.file).name} for line in found.lines],
        "compared": found.compared,
        "indexed": found.indexed,
        "total": found.total,
    }
