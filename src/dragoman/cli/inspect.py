"""dragoman inspect: what the model looked at and why it said what it said; in the terminal, as a picture or a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import (
    Beam,
    Device,
    Imports,
    Model,
    SourceLang,
    TargetLang,
    choice,
    console,
    import_all,
    warn_untagged,
)
from dragoman.cli.predict import tagged_with

if TYPE_CHECKING:
    from rich.console import Console

    from dragoman.core.interfaces import Example
    from dragoman.inspection.picture import Panel
    from dragoman.pipeline import Pipeline

OF_TEXTS = ("alignment", "beam", "steps", "why")  # one for each source
OF_MODELS = ("space", "positions", "sequential", "replay")  # one for all
MAPS = ("soft", "cross", "encoder", "decoder")

Views = Annotated[
    str,
    typer.Option(
        "--view",
        help=f"What to show, separated by commas: {', '.join((*OF_TEXTS, *OF_MODELS))}. "
        "Default: alignment; in a page, all that the sources give.",
    ),
]
Picture = Annotated[Path | None, typer.Option(help="Draw the alignments into this file (.png, .svg or .pdf).")]


def inspect(
    model: Model,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Sources to look at; default: one line of the standard input each.")
    ] = None,
    target: Annotated[
        list[str], typer.Option(help="A target to look at beside the model's own output; once for each source.")
    ] = [],
    view: Views = "",
    beam: Beam = None,
    html: Annotated[Path | None, typer.Option(help="Write the views as a page into this file.")] = None,
    png: Picture = None,
    svg: Picture = None,
    pdf: Picture = None,
    maps: Annotated[
        str, typer.Option(help="What a picture shows: soft, or every head of cross, encoder or decoder attention.")
    ] = "soft",
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    device: Device = "auto",
    modules: Imports = [],
) -> None:
    """Show which source tokens the model attended to, what its beam kept and dropped, and what it nearly said."""
    import_all(modules)
    from dragoman import pipeline
    from dragoman.core.errors import UserError
    from dragoman.core.interfaces import Example
    from dragoman.data.readers import read_sources

    views = [choice(name.strip(), (*OF_TEXTS, *OF_MODELS), "--view") for name in view.split(",") if name.strip()]
    choice(maps, MAPS, "--maps")
    opened = pipeline.load(model, device, plain=True)
    wants_texts = not views or any(name in (*OF_TEXTS, "space") for name in views)
    given = [Example(text) for text in texts] if texts else read_sources("-") if wants_texts else []
    sources = list(warn_untagged(opened, tagged_with(given, source_lang, target_lang)))
    if target and len(target) != len(sources):
        raise UserError(f"there are {len(sources)} sources and {len(target)} targets; give one for each, or none")
    targets: Sequence[str | None] = target or [None] * len(sources)
    asked = list(zip(sources, targets, strict=True))
    pictures = [path for path in (png, svg, pdf) if path is not None]
    if html is not None:
        found = list(every(opened, asked, views or OF_TEXTS, beam, skip=not views))
        write_page(found, html, f"dragoman inspect {model}")
    if html is None or views:
        for source, data in every(opened, asked, views or ["alignment"], beam, skip=False, blank=True):
            show(console(), source, data)
    if pictures:
        draw([data for _, data in every(opened, asked, ["alignment"], beam, skip=True)], pictures, maps)


def every(
    pipeline: Pipeline,
    asked: Sequence[tuple[Example, str | None]],
    views: Sequence[str],
    beam: int | None,
    *,
    skip: bool,
    blank: bool = False,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each view of each source, and of the model; what a model cannot show is left out with a word, or is an error."""
    from dragoman.core.errors import UserError

    for source, target in asked:
        if not source.source.strip():
            if blank:
                yield source.source, {"view": "blank"}
            continue
        for name in (name for name in views if name in OF_TEXTS):
            try:
                yield source.source, of_text(pipeline, name, source, target, beam)
            except UserError as error:
                if not skip:
                    raise
                console(error=True).print(f"{name} is left out: {error}", markup=False, soft_wrap=True)
    for name in (name for name in views if name in OF_MODELS):
        yield "", of_model(pipeline, name, [source for source, _ in asked])


def of_text(pipeline: Pipeline, name: str, source: Example, target: str | None, beam: int | None) -> dict[str, Any]:
    from dragoman.inspection import alignment, beam_tree, steps, why

    if name == "alignment" and target is None and not writes_alone(pipeline):
        return said(pipeline, source, beam)
    if name == "alignment":
        return alignment.look(pipeline, source, target, beam=beam)
    if name == "beam":
        return beam_tree.tree(pipeline, source, target, beam=beam or 5)
    if name == "steps":
        return steps.walk(pipeline, source, target)
    return why.gradients(pipeline, source, target)


def writes_alone(pipeline: Pipeline) -> bool:
    """Whether this is one model that writes targets for texts, so that its layers can be looked into."""
    from dragoman.nn.seq2seq import Seq2Seq

    of_texts = pipeline.codec.medium is None and pipeline.codec.second is None
    return isinstance(pipeline.model, Seq2Seq) and pipeline.model.head is None and not pipeline.goes_on and of_texts


def said(pipeline: Pipeline, source: Example, beam: int | None) -> dict[str, Any]:
    """What a prediction shows of a model that answers with labels or goes on with a text, or of several as one."""
    found = pipeline.predict([source], beam=beam, attention=True)[0]
    soft = None if found.attention is None else found.attention.tolist()
    target = [*found.tokens, "</s>"][: len(soft) if soft is not None else None]
    return {
        "view": "alignment",
        "source_text": source.source,
        "target_text": found.text,
        "given": False,
        "source": found.source_tokens,
        "target": target,
        "inputs": ["<s>", *target[:-1]],
        "log_probs": found.log_probs,
        "log_prob": found.log_prob,
        "soft": soft,
        "maps": [],
        "words": None,
        "off": [],
        "log_prob_off": None,
        "log_probs_off": None,
    }


def of_model(pipeline: Pipeline, name: str, sources: Sequence[Example]) -> dict[str, Any]:
    from dragoman.inspection import positions, replay, space, why

    if name == "space":
        return space.space(pipeline, sources)
    if name == "positions":
        return positions.similarity(pipeline)
    if name == "sequential":
        return why.sequential(pipeline)
    return replay.replay(replay.run_of(pipeline))


# -- in the terminal ---------------------------------------------------------------------------------------------------


def show(out: Console, source: str, data: Mapping[str, Any]) -> None:
    """One view as lines."""
    from dragoman.inspection.terminal_tree import beam_lines, step_lines

    if data["view"] == "blank":
        out.print(f"{source} → \nnothing to look at: the source is blank", markup=False)
        return
    kind, width = data["view"], out.width
    if kind == "alignment":
        show_alignment(out, data)
    elif kind == "beam":
        out.print(beam_lines(data, width=width), end="")
    elif kind == "steps":
        out.print(step_lines(data, width=width), end="")
    elif kind == "why":
        out.print(f"‖∂ log p / ∂ source‖, the largest is {largest(data['norms']):.3g}:", markup=False)
        show_map(out, scaled(data["norms"]), data["source"], data["target"])
    elif kind == "positions":
        out.print(data["what"], markup=False, soft_wrap=True)
        names = [str(i) for i in range(len(data["matrix"]))]
        show_map(out, scaled(data["matrix"]), names, names)
    elif kind == "space":
        for point in data["points"]:
            near = "; ".join(data["points"][i]["text"] for i in point["near"])
            out.print(f"({point['x']:.2f}, {point['y']:.2f})  {point['text']}   near: {near}", markup=False)
    elif kind == "sequential":
        for row in data["rows"]:
            out.print(row["sentence"], markup=False)
    else:
        for one in data["frames"][-1]["sources"] if data["frames"] else []:
            out.print(f"step {data['frames'][-1]['step']}: {one['source']} → {one['output']}", markup=False)


def show_alignment(out: Console, data: Mapping[str, Any]) -> None:
    line = f"{data['source_text']} → {data['target_text']}   (log p {data['log_prob']:.2f})"
    out.print(line, markup=False, soft_wrap=True)
    if data["soft"] is None:
        out.print("this model has no attention to show")
    else:
        show_map(out, data["soft"], data["source"], data["target"])


def show_map(out: Console, weights: Any, source: Sequence[str], target: Sequence[str]) -> None:
    from dragoman.inspection.terminal import heat_map

    out.print(heat_map(weights, source, target, color=out.color_system is not None, width=out.width))


def largest(rows: Sequence[Sequence[float]]) -> float:
    return max((x for row in rows for x in row), default=0.0)


def scaled(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """From the smallest number, or 0, to the largest: what the shades of a map run over."""
    low = min(0.0, min((x for row in rows for x in row), default=0.0))
    span = (largest(rows) - low) or 1.0
    return [[(x - low) / span for x in row] for row in rows]


# -- in files ----------------------------------------------------------------------------------------------------------


def write_page(found: Sequence[tuple[str, dict[str, Any]]], path: Path, title: str) -> None:
    from dragoman.core import files
    from dragoman.core.errors import UserError
    from dragoman.inspection.page import page

    if not found:
        raise UserError("there is nothing to write into a page: no source was given, or all are blank")
    files.write(path, page([data for _, data in found], title).encode())
    console(error=True).print(f"wrote {path}", markup=False)


def draw(found: Sequence[Mapping[str, Any]], paths: Sequence[Path], maps: str) -> None:
    """The alignments as pictures; nothing is drawn where nothing was looked at."""
    from dragoman.inspection.picture import alignment

    panels = [panel for data in found for panel in panels_of(data, maps)]
    for path in paths if panels else ():
        alignment(path, panels)
        console(error=True).print(f"wrote {path}", markup=False)


def panels_of(data: Mapping[str, Any], maps: str) -> Iterator[Panel]:
    from dragoman.inspection.picture import Panel

    if maps == "soft":
        if data["soft"] is not None:
            title = f"{data['source_text']} → {data['target_text']}"
            yield Panel(data["soft"], data["source"], data["target"], title)
        return
    rows, columns = ("source", "source") if maps == "encoder" else ("target", "source" if maps == "cross" else "inputs")
    for one in (one for one in data["maps"] if one["kind"] == maps):
        for i, head in enumerate(one["heads"], 1):
            yield Panel(head["weights"], data[columns], data[rows], f"layer {one['layer']}, head {i}")
