"""dragoman predict: N lines in, N lines out, in order; tables with their columns; media files; documents."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dragoman.cli import bulk, documents, inputs, options, source_columns
from dragoman.cli.output import render, write_results, write_table
from dragoman.cli.predict_converted import is_short_text, predict_converted
from dragoman.cli.prediction_table import PredictionTable, ResultColumns
from dragoman.cli.progress import with_progress_bar, with_progress_lines
from dragoman.core.errors import UserError

if TYPE_CHECKING:
    from dragoman.core.generation import GenerationOptions
    from dragoman.core.types import Example
    from dragoman.data.columns import ColumnsLike
    from dragoman.data.readers import Row
    from dragoman.inference.pipeline import Pipeline
    from dragoman.inference.prediction import Prediction


def predict(
    model: options.Model,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|-",
            help="One source on each line, or a table (.tsv, .csv, .xlsx, .parquet, .jsonl); - is the standard input. "
            "To a model of images or sounds, such files themselves, or a list with their names. Or a document to "
            "translate (.srt, .po, .xlf, .tmx, .docx), with --output for the same kind of file.",
        ),
    ] = ["-"],
    format: Annotated[
        Literal["text", "tsv", "jsonl"] | None,
        typer.Option(help="text, tsv (line, rank, score, text) or jsonl. Default: text, for a table its own kind."),
    ] = None,
    output: options.Output = None,
    column: source_columns.SourceColumn = "",
    probability: Annotated[
        bool, typer.Option("--probability", help="Add the probability of each output: exp of the sum of its log p.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Add a column that says why an output deserves a look; blank for most."),
    ] = False,
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
    shards: bulk.ShardsFolder = None,
    shard: bulk.ShardChoice = None,
    executor: bulk.ExecutorName = "local",
    ray_address: bulk.RayAddress = None,
    as_json: bulk.JSONStatus = False,
    *,
    generation: GenerationOptions,
) -> None:
    """Predict the best output for every source. A blank or skipped line gives an empty line."""
    from dragoman.data.documents import is_document
    from dragoman.data.documents.languages import Languages
    from dragoman.data.lines import ReadReport
    from dragoman.data.readers import spec_files

    if (trace or attention) and format != "jsonl":
        raise UserError("--trace and --attention need --format jsonl: a text line has no room for them")
    chosen_bulk = bulk.BulkOptions(shards, shard, executor, ray_address, workers, as_json)
    chosen_bulk.check()
    if shards is not None:
        bulk.refuse_format(files[0])
    options.load_plugins(plugins)
    others = [format not in (None, "text"), output, column, probability, check, workers, reference, explain_engine]
    further = [plugins, lm, trace, attention, media_folders, second_source, shards, shard, as_json, "://" in model]
    is_short = not any(others) and not any(further) and device in ("auto", "cpu") and is_short_text(files)
    languages = source_lang, target_lang
    if is_short and predict_converted(model, files[0], precision, device, generation, on_error, languages):
        return
    from dragoman.inference import pipeline
    from dragoman.inference.parallel import count_workers

    source, model, files = model, options.fetch_model(model), [options.fetch_files(file) for file in files]
    own_device = "cpu" if executor == "ray" else device  # Ray's workers have the others
    loaded = pipeline.load(model, own_device, precision=precision, reference=reference, lm=lm, lm_weight=lm_weight)
    loaded = loaded.with_media_roots(media_folders)
    request = loaded.request(generation, attention=attention, trace=trace)  # bad options fail before the first line
    if explain_engine:
        options.print_to_stderr("\n".join(loaded.report_engines(request).lines()))
    report, out = ReadReport(), options.console(error=True)
    if is_document(files[0]):
        if shards is not None:
            raise UserError(f"{files[0]}: --shards needs lines, and this is a document; leave out --shards")
        unused = {"--format": format, "--column": column, "--second-source": second_source}
        documents.refuse_options(files, unused | {"--probability": probability, "--check": check}, request)
        predictions_of = partial(
            _predictions,
            loaded,
            generation=generation,
            trace=False,
            token_log_probs=False,
            workers=count_workers(loaded, workers),
        )
        own_languages = Languages(source_lang, target_lang)
        documents.predict_document(loaded, Path(files[0]), output, own_languages, predictions_of)
        return
    media = inputs.media_examples(loaded, files, second_source)
    if media is not None and shards is not None:
        raise UserError("--shards needs lines: give the names of the files in a list, one on each line (.txt)")
    chosen = source_columns.choose_source_columns(files[0], column, loaded) if media is None else None
    columns, proposal, sentence = chosen or (None, None, "")
    nbest, continues_text = request.options.nbest, loaded.continues_text
    results = ResultColumns(loaded.codec, probability, check, nbest, continues_text=continues_text)
    table = PredictionTable.open(files[0], proposal, format, output, results) if media is None else None
    if sentence:
        options.print_to_stderr(sentence)
    read = inputs.LineInputs(files[0], on_error, report, columns) if media is None else inputs.MediaInputs(media)
    inputs_read = files if media is not None else spec_files(files[0])  # a sheet is not part of a file's name
    rows: deque[Row] = deque()  # of the sources that are being answered
    trained = loaded.config.columns if media is None and columns is None else None
    prepare = partial(
        _prepare_sources,
        loaded,
        trained=trained,
        on_error=on_error,
        languages=languages,
    )
    kind = "nbest" if request.options.nbest > 1 and (format or "text") == "text" else format or "text"
    if media is None and (shards is not None or output is not None):
        from dragoman.cli.predict_shards import PredictJob, is_large, predict_in_shards, predict_large_file
        from dragoman.cli.shard_results import ModelSpec, PredictShard

        job = PredictJob(
            loaded,
            ModelSpec.of(
                loaded,
                model,
                own_device if executor == "local" else device,
                lm,
                lm_weight,
                media_folders,
                plugins,
                source,
            ),
            PredictShard(generation, kind, probability, check, attention, trace, table),
            files[0],
            columns,
            on_error,
            results,
            table,
            prepare,
            languages,
            output,
        )
        if shards is not None:
            predict_in_shards(job, chosen_bulk)
            return
        if is_large(job, count_workers(loaded, workers)):
            predict_large_file(job, count_workers(loaded, workers))
            return
    sources = results.watch(prepare(_split_rows(read, rows)))
    is_interactive = read.interactive
    shows_bar = out.is_terminal and not is_interactive and (output is not None or not sys.stdout.isatty())
    show = with_progress_bar if shows_bar else with_progress_lines
    count = 0 if is_interactive else count_workers(loaded, workers)
    with (
        closing(_predictions(loaded, sources, generation, attention, trace, kind == "jsonl", count)) as predictions,
        closing(show(predictions, read, out))
        if shows_bar or not out.is_terminal
        else nullcontext(predictions) as shown,
    ):
        answered = ((row, prediction) for prediction in shown for row in [rows.popleft()])
        if table is None:
            texts = (
                "\n".join(render(i, prediction, kind, results.further(prediction)))
                for i, (_, prediction) in enumerate(answered, 1)
            )
            write_results(texts, output, inputs_read)
        elif table.is_lines:
            write_results(table.lines(answered), output, inputs_read)
        elif output is not None:
            write_table(table.rows(answered), table.open_format, table.journal_format, output, inputs_read)
    for notice in (*report.notices(), *results.notices(read.file, table.kind if table else "")):
        options.print_to_stderr(notice)
    if table is not None and output is not None:
        options.print_to_stderr(results.summary(output))
    if is_short:
        from dragoman.inference.converted import write_converted

        write_converted(loaded, precision)


def _split_rows(read: Iterable[tuple[Row, Example]], rows: deque[Row]) -> Iterator[Example]:
    """Yield the sources; their rows wait for the predictions, which come in the same order."""
    for row, source in read:
        rows.append(row)
        yield source


def _prepare_sources(
    loaded: Pipeline,
    sources: Iterable[Example],
    *,
    trained: ColumnsLike | None,
    on_error: str,
    languages: tuple[str | None, str | None],
) -> Iterator[Example]:
    """Yield a source for each one: without targets, blank if unreadable, with its languages; warnings come at the end.

    `trained` are the columns of the model where lines may have all of them.
    """
    if loaded.reads_media and isinstance(trained, list):
        sources = inputs.drop_target_columns(sources, trained)
    readable = options.skip_unreadable(loaded, sources, on_error, keep_blank=True)
    tagged = inputs.set_languages(readable, *languages, loaded.codec.second_source is not None)
    return options.warn_untagged(loaded.codec, tagged)


def _predictions(
    loaded: Pipeline,
    sources: Iterable[Example],
    generation: GenerationOptions,
    attention: bool,
    trace: bool,
    token_log_probs: bool,
    workers: int,
) -> Generator[Prediction, None, None]:
    """Yield predictions in order, and at the end warn of truncated sources; 0 workers: read and answer line by line."""
    from dragoman.inference.parallel import predict_stream

    results: Iterator[Prediction]
    wanted: Any = {"attention": attention, "trace": trace, "token_log_probs": token_log_probs}
    if workers:
        results = predict_stream(loaded, sources, generation, workers=workers, **wanted)
    else:
        results = (
            prediction
            for i, source in enumerate(sources)
            for prediction in loaded.stream([source], generation, first_index=i, **wanted)
        )
    truncated = 0
    with closing(results):
        for prediction in results:
            truncated += prediction.source_truncated
            yield prediction
    if truncated:
        options.warn_truncated(loaded.codec, loaded.input_processor.max_source_length, truncated)
