"""dragoman inspect: views of a model in the terminal, in a page or in image files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli import options
from dragoman.cli.inputs import SecondSource, pair_with_second_source, set_languages
from dragoman.cli.options import check_choice, console, load_plugins, print_to_stderr, split_commas, warn_untagged
from dragoman.cli.output import write_page
from dragoman.core.errors import DataError, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from dragoman.core.types import Example
    from dragoman.inference.pipeline import Pipeline
    from dragoman.inspection.views import View, ViewData

ImageFile = Annotated[Path | None, typer.Option(help="Draw the alignments into this file (.png, .svg or .pdf).")]


def inspect(
    model: options.Model,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Sources: texts, or file names for a model that reads files; a tab separates two sources. "
            "Default: the lines of the standard input.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        list[str], typer.Option(help="A target to show instead of the model's output; once for each source.")
    ] = [],
    view: Annotated[
        str,
        typer.Option(
            help="Names of views, separated by commas; see `dragoman list views`. "
            "Default: alignment; in a page, all views of a source."
        ),
    ] = "",
    beside: Annotated[str | None, typer.Option(help="A second model, to show beside the first.")] = None,
    beam: options.Beam = None,
    html: Annotated[Path | None, typer.Option(help="Write the views as a page into this file.")] = None,
    png: ImageFile = None,
    svg: ImageFile = None,
    pdf: ImageFile = None,
    maps: Annotated[
        str,
        typer.Option(help="What an image shows: soft, or every head of cross, encoder, second_source or decoder."),
    ] = "soft",
    files: options.MediaFolders = [],
    second_source: SecondSource = "",
    source_lang: options.SourceLang = None,
    target_lang: options.TargetLang = None,
    device: options.Device = "auto",
    plugins: options.Plugins = [],
) -> None:
    """Show which source tokens the model attends to, what its beam kept and dropped, and other views."""
    load_plugins(plugins)
    from dragoman.inference import pipeline
    from dragoman.inspection.render.alignment_image import MAPS, draw_alignments
    from dragoman.inspection.views import find_view, views

    chosen = [find_view(check_choice(name, views.names, "--view")) for name in split_commas(view)]
    check_choice(maps, MAPS, "--maps")
    names = [model] if beside is None or beside == model else [model, beside]
    pipelines = {name: pipeline.load(name, device, reference=True).with_media_roots(files) for name in names}
    first = pipelines[model]
    needs_sources = not chosen or any(one.inputs != "none" and not one.inputs_optional for one in chosen)
    sources = read_inputs(first, texts or [], second_source) if texts or second_source or needs_sources else []
    tagged = warn_untagged(first.codec, set_languages(sources, source_lang, target_lang))
    examples = add_targets(list(tagged), target)
    view_options = {"beam": beam, "source_lang": source_lang, "target_lang": target_lang}
    if html is not None:
        of_source = [one for one in map(find_view, views.names) if one.inputs == "pair" and one.has_module]
        data = list(compute_views(pipelines, examples, chosen or of_source, view_options, skip=not chosen))
        if not data:
            raise UserError(f"{html}: there is nothing to write: no source, or no source can be shown; give a text")
        write_page(html, data, f"dragoman inspect {' --beside '.join(names)}")
    if html is None or chosen:
        shown = chosen or [find_view("alignment")]
        for one in compute_views(pipelines, examples, shown, view_options, keep_blank=True):
            print_data(console(), one)
    paths = [path for path in (png, svg, pdf) if path is not None]
    if paths and chosen and all(one.name != "alignment" for one in chosen):
        raise UserError(f"{paths[0]}: a picture shows the alignment; --html FILE writes the view {chosen[0].name}")
    if paths:
        named: list[tuple[str, ViewData]] = []  # with two models, each with the model's name
        for one in compute_views(pipelines, examples, [find_view("alignment")], view_options, skip=True):
            named += zip(one["models"], one["views"], strict=True) if one["view"] == "beside" else [("", one)]
        draw_alignments(paths, named, maps)
        for path in paths:
            print_to_stderr(f"wrote {path}")


def read_inputs(pipeline: Pipeline, texts: Sequence[str], second_source: str) -> Iterable[Example]:
    """Return the sources from the arguments, or the standard input's lines, with --second-source where it is set."""
    from dragoman.core.types import Example
    from dragoman.data.readers import read_sources

    if second_source:
        if not texts:
            raise UserError("--second-source needs sources given as arguments; on a line, a tab separates two sources")
        return pair_with_second_source(pipeline, texts, second_source)
    if pipeline.codec.second_source is None:
        return map(Example, texts) if texts else read_sources("-")
    for text in texts:
        if text.strip() and "\t" not in text:
            raise UserError(
                f"the model reads two sources, and '{text}' is one; give the other with --second-source, or both as "
                f"one argument with a tab between them: {pipeline.input_processor.source_order}"
            )
    return map(pipeline.input_processor.to_example, map(Example, texts) if texts else read_sources("-"))


def add_targets(examples: Sequence[Example], targets: Sequence[str]) -> list[Example]:
    """Return the examples with the targets of --target, one for each; without targets, unchanged."""
    if targets and len(targets) != len(examples):
        raise UserError(f"there are {len(examples)} sources and {len(targets)} targets; give one for each, or none")
    if not targets:
        return [*examples]
    return [replace(example, target=target) for example, target in zip(examples, targets, strict=True)]


def compute_views(
    pipelines: Mapping[str, Pipeline],
    examples: Sequence[Example],
    views: Sequence[View[Any, ...]],
    options: Mapping[str, Any],
    *,
    skip: bool = False,
    keep_blank: bool = False,
) -> Iterator[ViewData]:
    """Yield the views of each source, then those of all sources or of none; `skip` those that a model cannot show."""
    per_source = [view for view in views if view.inputs == "pair"]
    for example in examples if per_source else []:
        if example.source.strip():
            for view in per_source:
                yield from compute_view(pipelines, view, (replace(example, target=None), example.target), options, skip)
        elif keep_blank:
            yield {"view": "blank", "source_text": example.source}
    for view in views:
        if view.inputs != "pair":
            inputs = () if view.inputs == "none" or (view.inputs_optional and not examples) else (list(examples),)
            yield from compute_view(pipelines, view, inputs, options, skip)


def compute_view(
    pipelines: Mapping[str, Pipeline],
    view: View[Any, ...],
    inputs: tuple[Any, ...],
    options: Mapping[str, Any],
    skip: bool,
) -> Iterator[ViewData]:
    """Yield a view of one model; of two models, both as one "beside" view, unless it compares models itself."""
    from dragoman.inspection.views import views

    known = views.schema(view.name).model_fields
    own = {name: value for name, value in options.items() if name in known and value is not None}
    if view.compares_models:
        yield view(pipelines, *inputs, **own)
        return
    data = {name: one for name, p in pipelines.items() if (one := _compute_one(p, view, inputs, own, skip)) is not None}
    if len(pipelines) == 1:
        yield from data.values()
    elif data:
        text = next(iter(data.values())).get("source_text")
        yield {"view": "beside", "source_text": text, "models": list(data), "views": list(data.values())}


def _compute_one(
    pipeline: Pipeline, view: View[Any, ...], inputs: tuple[Any, ...], options: dict[str, Any], skip: bool
) -> ViewData | None:
    """Compute a view of one model, or its fallback; None, with a message, if it cannot and `skip` is set."""
    try:
        if view.fallback is not None and inputs[1] is None and view.blocker(pipeline) is not None:
            return view.fallback(pipeline, inputs[0], **options)
        if skip and view.needs_preparation and not view.is_prepared_for(pipeline):
            return None
        return view(pipeline, *inputs, **options)
    except DataError:  # a missing or damaged file, which no other view would show either
        raise
    except UserError as error:
        if not skip:
            raise
        print_to_stderr(f"{view.name} is left out: {error}")
        return None


def print_data(out: Console, data: ViewData) -> None:
    """Print the data of one view in the terminal, or of two models below each other."""
    from dragoman.inspection.views import find_view

    if data["view"] == "blank":
        out.print(f"{data['source_text']} → \nthe source is blank", markup=False)
    elif data["view"] == "beside":
        for model, one in zip(data["models"], data["views"], strict=True):
            out.print(f"{model}:", markup=False)
            print_data(out, one)
            out.print()
    else:
        find_view(data["view"]).print_view(out, data)
