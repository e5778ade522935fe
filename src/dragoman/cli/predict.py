"""dragoman predict: N lines in, N lines out, in order; or a line for each media file."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dragoman.cli import inputs, options
from dragoman.cli.output import render, write_results
from dragoman.cli.progress import with_progress_bar
from dragoman.core.errors import UserError

if TYPE_CHECKING:
    from dragoman.core.generation import GenerationOptions
    from dragoman.core.types import Example
    from dragoman.inference.pipeline import Pipeline, Prediction


def predict(
    model: options.Model,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|-",
            help="One source on each line, or .jsonl; - is the standard input. To a model of images or sounds, such "
            "files themselves, or one with their names on its lines (.txt, .tsv, .jsonl).",
        ),
    ] = ["-"],
    format: Annotated[
        Literal["text", "tsv", "jsonl"], typer.Option(help="text, tsv (line, rank, score, text) or jsonl.")
    ] = "text",
    output: options.Output = None,
    source_lang: options.SourceLang = None,
    target_lang: options.TargetLang = None,
    on_error: options.OnError = "stop",
    device: options.Device = "auto",
    workers: options.Workers = None,
    precision: options.Precision = None,
    reference: options.Reference = False,
    explain_engine: options.ExplainEngine = False,
    plugins: options.Plugins = [],
    lm: Annotated[str | None, typer.Option(help="A language model for shallow fusion.")] = None,
    lm_weight: Annotated[float, typer.Option(help="Weight of the language model's log p.")] = 0.3,
    trace: Annotated[bool, typer.Option(help="With jsonl: what the beam kept and dropped at each step.")] = False,
    attention: Annotated[bool, typer.Option(help="With jsonl: the attention weights of each token.")] = False,
    media_folders: options.MediaFolders = [],
    second_source: inputs.SecondSource = "",
    *,
    generation: GenerationOptions,
) -> None:
    """Predict the best output for every source. A blank or skipped line gives an empty line."""
    from dragoman.data.lines import ReadReport

    if generation.nbest > 1 and format == "text":
        raise UserError("--nbest needs --format tsv or jsonl: a text line has room for one output")
    if (trace or attention) and format != "jsonl":
        raise UserError("--trace and --attention need --format jsonl: a text line has no room for them")
    options.load_plugins(plugins)
    from dragoman.inference import pipeline
    from dragoman.inference.parallel import count_workers

    loaded = pipeline.load(model, device, precision=precision, reference=reference, lm=lm, lm_weight=lm_weight)
    loaded = loaded.with_media_roots(media_folders)
    request = loaded.request(generation, attention=attention, trace=trace)  # bad options fail before the first line
    if explain_engine:
        options.print_to_stderr("\n".join(loaded.report_engines(request).lines()))
    report, out = ReadReport(), options.console(error=True)
    media = inputs.media_examples(loaded, files, second_source)
    read = inputs.LineInputs(files[0], on_error, report) if media is None else inputs.MediaInputs(media)
    has_targets = media is None and loaded.reads_media
    examples = inputs.drop_target_columns(read, loaded.config.columns) if has_targets else read
    readable = options.skip_unreadable(loaded, examples, on_error, keep_blank=True)
    has_second_source = loaded.codec.second_source is not None
    tagged = inputs.set_languages(readable, source_lang, target_lang, has_second_source)
    sources = options.warn_untagged(loaded, tagged)
    shows_progress = out.is_terminal and not read.interactive and (output is not None or not sys.stdout.isatty())
    count = 0 if read.interactive else count_workers(loaded, workers)
    with (
        closing(_predictions(loaded, sources, generation, attention, trace, count)) as results,
        closing(with_progress_bar(results, read, out)) if shows_progress else nullcontext(results) as shown,
    ):
        write_results(("\n".join(render(i, p, format)) for i, p in enumerate(shown, 1)), output, files)
    for notice in report.notices():
        options.print_to_stderr(notice)


def _predictions(
    loaded: Pipeline,
    sources: Iterable[Example],
    generation: GenerationOptions,
    attention: bool,
    trace: bool,
    workers: int,
) -> Generator[Prediction, None, None]:
    """Yield predictions in order, and at the end warn of truncated sources; 0 workers: read and answer line by line."""
    from dragoman.inference.parallel import predict_stream

    results: Iterator[Prediction]
    if workers:
        results = predict_stream(loaded, sources, generation, workers=workers, attention=attention, trace=trace)
    else:
        results = (
            prediction
            for i, source in enumerate(sources)
            for prediction in loaded.stream([source], generation, attention=attention, trace=trace, first_index=i)
        )
    truncated = 0
    with closing(results):
        for prediction in results:
            truncated += prediction.source_truncated
            yield prediction
    if truncated:
        unit = "tokens" if loaded.codec.modality is None else "positions"
        longest = loaded.input_processor.max_source_length
        options.print_to_stderr(
            f"too long, so only the first {longest:,} {unit} were read: {truncated:,} of the sources"
        )
