"""dragoman inspect: what the model looked at and why it said what it said; in the terminal, as a picture or a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.inputs import SecondSource, asked_about, tagged_with
from dragoman.cli.options import (
    Beam,
    Device,
    Imports,
    Model,
    Places,
    SourceLang,
    TargetLang,
    choice,
    console,
    import_all,
    warn_untagged,
)

if TYPE_CHECKING:
    from rich.console import Console

    from dragoman.core.types import Example
    from dragoman.inference.pipeline import Pipeline
    from dragoman.inspection.render.image import Panel
    from dragoman.inspection.render.media_image import Look

    Opened = Mapping[str, Pipeline]  # by the name that the user gave; one, or two to be shown beside each other

OF_TEXTS = ("alignment", "beam", "steps", "why")  # one for each source
OF_MODELS = ("space", "positions", "sequential", "replay")  # one for all
MAPS = ("soft", "cross", "encoder", "second_source", "decoder")

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
        list[str] | None,
        typer.Argument(
            help="Sources to look at: texts, or names of files where the model reads such; two sources with a tab "
            "between them. Default: one line of the standard input each.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        list[str], typer.Option(help="A target to look at beside the model's own output; once for each source.")
    ] = [],
    view: Views = "",
    beside: Annotated[str | None, typer.Option(help="A second model, to show beside the first.")] = None,
    beam: Beam = None,
    html: Annotated[Path | None, typer.Option(help="Write the views as a page into this file.")] = None,
    png: Picture = None,
    svg: Picture = None,
    pdf: Picture = None,
    maps: Annotated[
        str, typer.Option(help="What a picture shows: soft, or every head of cross, encoder, second_source or decoder.")
    ] = "soft",
    files: Places = [],
    second_source: SecondSource = "",
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    device: Device = "auto",
    modules: Imports = [],
) -> None:
    """Show which source tokens the model attended to, what its beam kept and dropped, and what it nearly said."""
    import_all(modules)
    from dragoman.inference import pipeline

    views = [choice(name.strip(), (*OF_TEXTS, *OF_MODELS), "--view") for name in view.split(",") if name.strip()]
    choice(maps, MAPS, "--maps")
    names = [model] if beside is None or beside == model else [model, beside]
    opened = {name: pipeline.load(name, device, plain=True).with_files(files) for name in names}
    wants_texts = not views or any(name in (*OF_TEXTS, "space") for name in views)
    given = sources(opened[model], texts or [], second_source) if texts or second_source or wants_texts else []
    asked = with_targets(list(warn_untagged(opened[model], tagged_with(given, source_lang, target_lang))), target)
    pictures = [path for path in (png, svg, pdf) if path is not None]
    if html is not None:
        found = list(every(opened, asked, views or OF_TEXTS, beam, skip=not views))
        write_page(found, html, f"dragoman inspect {' --beside '.join(names)}")
    if html is None or views:
        for source, data in every(opened, asked, views or ["alignment"], beam, skip=False, blank=True):
            show(console(), source, data)
    if pictures:
        draw([data for _, data in every(opened, asked, ["alignment"], beam, skip=True)], pictures, maps)


def sources(opened: Pipeline, texts: Sequence[str], second_source: str) -> Iterable[Example]:
    """What to look at: what was given as arguments, or the lines of the standard input."""
    from dragoman.core.errors import UserError
    from dragoman.core.types import Example
    from dragoman.data.readers import read_sources

    if second_source:
        if not texts:
            raise UserError(
                "--second-source goes with sources given as arguments; on a line both stand with a tab between them"
            )
        return asked_about(opened, texts, second_source)
    if opened.codec.second_source is None:
        return map(Example, texts) if texts else read_sources("-")
    for text in texts:
        if text.strip() and "\t" not in text:
            raise UserError(
                f"the model reads two sources, and '{text}' is one; give the other with --second-source, or both as "
                f"one argument with a tab between them: {opened.reading.order}"
            )
    return map(opened.reading.example, map(Example, texts) if texts else read_sources("-"))


def with_targets(sources: Sequence[Example], targets: Sequence[str]) -> list[tuple[Example, str | None]]:
    from dragoman.core.errors import UserError

    if targets and len(targets) != len(sources):
        raise UserError(f"there are {len(sources)} sources and {len(targets)} targets; give one for each, or none")
    each: Sequence[str | None] = targets or [None] * len(sources)
    return list(zip(sources, each, strict=True))


def every(
    opened: Opened,
    asked: Sequence[tuple[Example, str | None]],
    views: Sequence[str],
    beam: int | None,
    *,
    skip: bool,
    blank: bool = False,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each view of each source, and of the model; what a model cannot show is left out with a word, or is an error."""
    for source, target in asked:
        if not source.source.strip():
            if blank:
                yield source.source, {"view": "blank"}
            continue
        for name in (name for name in views if name in OF_TEXTS):
            found = {key: shown(one, name, source, target, beam, skip) for key, one in opened.items()}
            yield from ((source.source, data) for data in together(found))
    for name in (name for name in views if name in OF_MODELS):
        sources = [source for source, _ in asked]
        yield from (("", data) for data in together({key: of_model(p, name, sources) for key, p in opened.items()}))


def shown(
    pipeline: Pipeline, name: str, source: Example, target: str | None, beam: int | None, skip: bool
) -> dict[str, Any] | None:
    """A view; None where the model cannot show it and that is no error."""
    from dragoman.core.errors import DataError, UserError

    try:
        return of_text(pipeline, name, source, target, beam)
    except DataError:  # a file that is missing or damaged, which no other view would show
        raise
    except UserError as error:
        if not skip:
            raise
        console(error=True).print(f"{name} is left out: {error}", markup=False, soft_wrap=True)
        return None


def together(found: Mapping[str, dict[str, Any] | None]) -> Iterator[dict[str, Any]]:
    """The view of one model as it is, those of two as one."""
    views = {model: data for model, data in found.items() if data is not None}
    if len(found) == 1:
        yield from views.values()
    elif views:
        text = next(iter(views.values())).get("source_text")
        yield {"view": "beside", "source_text": text, "models": list(views), "views": list(views.values())}


def of_text(pipeline: Pipeline, name: str, source: Example, target: str | None, beam: int | None) -> dict[str, Any]:
    from dragoman.inspection.views import alignment, beam_tree, steps
    from dragoman.inspection.views import saliency as why

    if name == "alignment" and target is None and not writes_alone(pipeline):
        return alignment.said(pipeline, source, beam=beam)
    if name == "alignment":
        return alignment.look(pipeline, source, target, beam=beam)
    if name == "beam":
        return beam_tree.tree(pipeline, source, target, beam=beam or 5)
    if name == "steps":
        return steps.walk(pipeline, source, target)
    return why.gradients(pipeline, source, target)


def writes_alone(pipeline: Pipeline) -> bool:
    """Whether this is one model that writes targets, so that its layers can be looked into."""
    from dragoman.nn.seq2seq import Seq2Seq

    return isinstance(pipeline.model, Seq2Seq) and pipeline.model.head is None and not pipeline.continues_text


def of_model(pipeline: Pipeline, name: str, sources: Sequence[Example]) -> dict[str, Any]:
    from dragoman.inspection.views import embedding_space, positions, replay
    from dragoman.inspection.views import saliency as why

    if name == "space":
        return embedding_space.space(pipeline, sources)
    if name == "positions":
        return positions.similarity(pipeline)
    if name == "sequential":
        return why.sequential(pipeline)
    return replay.replay(replay.run_of(pipeline))


# -- in the terminal ---------------------------------------------------------------------------------------------------


def show(out: Console, source: str, data: Mapping[str, Any]) -> None:
    """One view as lines."""
    from dragoman.inspection.render.terminal_tree import beam_lines, step_lines

    if data["view"] == "blank":
        out.print(f"{source} → \nnothing to look at: the source is blank", markup=False)
        return
    kind, width = data["view"], out.width
    if kind == "beside":
        for model, one in zip(data["models"], data["views"], strict=True):
            out.print(f"{model}:", markup=False)
            show(out, source, one)
            out.print()
    elif kind == "alignment":
        show_alignment(out, data)
    elif kind == "beam":
        out.print(beam_lines(data, width=width), end="")
    elif kind == "steps":
        out.print(step_lines(data, width=width), end="")
    elif kind == "why":
        out.print(f"‖∂ log p / ∂ source‖, the largest is {largest(data['norms']):.3g}:", markup=False)
        show_looks(out, data, scaled(data["norms"]), data["target"])
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
        out.print(data["soft_blocker"], markup=False, soft_wrap=True)
    else:
        show_looks(out, data, data["soft"], data["target"])


def show_looks(
    out: Console, data: Mapping[str, Any], weights: Sequence[Sequence[float]], target: Sequence[str]
) -> None:
    """Grids where the source is an image; a map of all that is not, with times where it is a sound."""
    from dragoman.inspection import media_layout
    from dragoman.inspection.render.terminal import EACH, grid_maps

    modality, source = data["medium"], data["source"]
    if modality is None:
        show_map(out, weights, source, target)
        return
    if modality["kind"] == "sound" or modality.get("per_frame") == 1:  # whose states stand in a row already
        names = [label.removesuffix(" s") for label in source]
        show_map(out, [media_layout.scaled(row) for row in weights], names, target, EACH)
        return
    out.print(grid_maps(modality, weights, target, color=out.color_system is not None, width=out.width))
    others = media_layout.outside(modality, len(source))
    if others:
        show_map(out, [[row[j] for j in others] for row in weights], [source[j] for j in others], target)


def show_map(out: Console, weights: Any, source: Sequence[str], target: Sequence[str], most: str = "1") -> None:
    from dragoman.inspection.render.terminal import heat_map

    out.print(heat_map(weights, source, target, color=out.color_system is not None, width=out.width, most=most))


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
    from dragoman.inspection.render.page import page

    if not found:
        raise UserError(
            f"{path}: there is nothing to write, for no source was given, or none can be shown; give a text"
        )
    files.write(path, page([data for _, data in found], title).encode())
    console(error=True).print(f"wrote {path}", markup=False, soft_wrap=True)


def draw(found: Sequence[Mapping[str, Any]], paths: Sequence[Path], maps: str) -> None:
    """The alignments as pictures, over images and sounds where there are such; an error where nothing was looked at."""
    from dragoman.core.errors import UserError
    from dragoman.inspection.render.image import alignment
    from dragoman.inspection.render.media_image import looks

    views = [one for data in found for one in named(data)]
    over = [look for name, data in views for look in looks_of(name, data)] if maps == "soft" else []
    panels = [panel for name, data in views for panel in panels_of(name, data, maps)]
    if not panels:
        reason = "; ".join(dict.fromkeys(picture_blocker(data, maps) for _, data in views))
        reason = reason or "no source was given, or nothing could be looked at in any; leave the picture out"
        raise UserError(f"{', '.join(map(str, paths))}: there is nothing to draw: {reason}")
    for path in paths:
        if over:
            looks(path, over)
        else:
            alignment(path, panels)
        console(error=True).print(f"wrote {path}", markup=False, soft_wrap=True)


def picture_blocker(data: Mapping[str, Any], maps: str) -> str:
    """Why a view has no map of this kind to draw, and what to do."""
    if maps == "soft":
        return str(data["soft_blocker"])
    if maps in data["left_out"]:
        return f"the {maps} attention is too large to show; take less text"
    why = "" if data["maps"] else ", for heads are shown of a single model with a decoder"
    return f"the view has no {maps} attention{why}; leave the picture out"


def named(data: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each view with the model's name, where there are two."""
    if data["view"] == "beside":
        yield from ((model, one) for model, one in zip(data["models"], data["views"], strict=True))
    else:
        yield "", data


def looks_of(name: str, data: Mapping[str, Any]) -> Iterator[Look]:
    from dragoman.inspection.render.media_image import Look

    if data["medium"] is not None and data["soft"] is not None:
        heard = data["medium"]["kind"] == "sound"
        unit = data if heard else data["words"] or data  # a panel for each word, and not for each of its letters
        yield Look(data["medium"], unit["soft"], unit["target"], data["source_text"], data["target_text"], name)


def panels_of(name: str, data: Mapping[str, Any], maps: str) -> Iterator[Panel]:
    from dragoman.inspection.render.image import Panel

    name = f"{name}: " if name else ""
    if maps == "soft":
        if data["soft"] is not None:
            title = f"{name}{data['source_text']} → {data['target_text']}"
            yield Panel(data["soft"], data["source"], data["target"], title)
        return
    for one in (one for one in data["maps"] if one["kind"] == maps):
        own = one.get("tokens", data["source"])
        back = one.get("tokens", data["inputs"])  # with the source, where both are one sequence
        axes = {"cross": (data["source"], data["target"]), "decoder": (back, data["target"])}
        columns, rows = axes.get(maps, (own, own))
        for i, head in enumerate(one["heads"], 1):
            yield Panel(head["weights"], columns, rows, f"{name}layer {one['layer']}, head {i}")
