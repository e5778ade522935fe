"""dragoman predict: N lines in, N lines out, in order; or a line for each media file."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli import generation
from dragoman.cli.inputs import Input, Media, SecondSource, media_inputs, reads_media, tagged_with, without_targets
from dragoman.cli.options import (
    Beam,
    Device,
    Imports,
    Model,
    OnError,
    Output,
    Places,
    Plain,
    Precision,
    SourceLang,
    TargetLang,
    Workers,
    choice,
    console,
    import_all,
    readable,
    warn_untagged,
)
from dragoman.cli.output import render, write
from dragoman.cli.progress import counted

if TYPE_CHECKING:
    from dragoman.core.types import Example
    from dragoman.inference.pipeline import Pipeline, Prediction


Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE|-",
        help="One source on each line, or .jsonl; - is the standard input. To a model of images or sounds, such files "
        "themselves, or one with their names on its lines (.txt, .tsv, .jsonl).",
    ),
]


def predict(
    model: Model,
    files: Files = ["-"],
    beam: Beam = None,
    nbest: Annotated[int, typer.Option(help="Results for each source; more than 1 needs --format tsv or jsonl.")] = 1,
    format: Annotated[str, typer.Option(help="text, tsv (line, rank, score, text) or jsonl.")] = "text",
    output: Output = None,
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    on_error: OnError = "stop",
    device: Device = "auto",
    workers: Workers = None,
    precision: Precision = None,
    plain: Plain = False,
    modules: Imports = [],
    search: generation.Name = None,
    length_rule: generation.LengthRule = None,
    alpha: generation.Alpha = None,
    coverage: generation.Coverage = None,
    ending: generation.Ending = None,
    stop: generation.Stop = None,
    groups: generation.Groups = None,
    strength: generation.Strength = None,
    samples: generation.Samples = None,
    temperature: generation.Temperature = None,
    top_k: generation.TopK = None,
    top_p: generation.TopP = None,
    min_p: generation.MinP = None,
    typical: generation.Typical = None,
    epsilon: generation.Epsilon = None,
    seed: generation.Seed = None,
    mbr: generation.MBR = None,
    lm: generation.LanguageModel = None,
    lm_weight: generation.Weight = 0.3,
    shortest: generation.Shortest = None,
    longest: generation.Longest = None,
    prefix: generation.Prefix = "",
    require: generation.Require = [],
    ordered: generation.Ordered = False,
    forbid: generation.Forbid = [],
    choose: generation.Choice = [],
    pattern: generation.Pattern = "",
    no_repeat: generation.NoRepeat = None,
    repetition: generation.Repetition = None,
    unknown: generation.Unknown = None,
    replace_unknown: generation.ReplaceUnknown = None,
    trace: Annotated[bool, typer.Option(help="With jsonl: what the beam kept and dropped at each step.")] = False,
    attention: Annotated[bool, typer.Option(help="With jsonl: where the model looked for each token.")] = False,
    places: Places = [],
    second_source: SecondSource = "",
) -> None:
    """Turn every source into its best result. A blank or skipped line gives an empty line."""
    from dragoman.core.errors import UserError
    from dragoman.data.lines import Tally

    choice(format, ("text", "tsv", "jsonl"), "--format")
    choice(on_error, ("stop", "skip"), "--on-error")
    if nbest > 1 and format == "text":
        raise UserError("--nbest needs --format tsv or jsonl: a text line has room for one result")
    import_all(modules)
    from dragoman.inference import parallel as streaming
    from dragoman.inference import pipeline
    from dragoman.inference.constraints import Constraints

    if (trace or attention) and format != "jsonl":
        raise UserError("--trace and --attention need --format jsonl: a text line has no room for them")
    how: dict[str, Any] = {"precision": precision, "plain": plain}
    opened = (
        pipeline.load(model, device, **how) if lm is None else pipeline.load_fused(model, lm, lm_weight, device, **how)
    )
    opened = opened.with_files(places).with_generation(
        no_repeat=no_repeat, repetition=repetition, unknown=unknown, replace_unknown=replace_unknown, mbr=mbr
    )
    options = {
        "alpha": alpha, "coverage": coverage, "ending": ending, "stop": stop, "groups": groups, "strength": strength,
        "samples": samples, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "typical": typical, "epsilon": epsilon, "seed": seed,
    }  # fmt: skip
    asked = {
        "beam": beam,
        "nbest": nbest,
        "search": generation.part(opened, search, beam, length_rule, options),
        "constraints": Constraints(
            prefix, tuple(require), ordered, tuple(forbid), tuple(choose), pattern, shortest, longest
        ),
        "trace": trace,
        "attention": attention,
    }
    tally, out = Tally(), console(error=True)
    media = media_inputs(opened, files, second_source)
    given = Input(files[0], on_error, tally) if media is None else Media(media)
    listed = given if media is not None or not reads_media(opened) else without_targets(given, opened.config.columns)
    sources = readable(opened, listed, on_error, each=True)
    tagged = warn_untagged(
        opened, tagged_with(sources, source_lang, target_lang, opened.codec.second_source is not None)
    )
    shows = out.is_terminal and not given.interactive and (output is not None or not sys.stdout.isatty())
    count = 0 if given.interactive else streaming.how_many(opened, workers)
    with (
        closing(_predictions(opened, tagged, asked, count)) as results,
        closing(counted(results, given, out)) if shows else nullcontext(results) as shown,
    ):
        write((line for i, p in enumerate(shown, 1) for line in render(i, p, format)), output)
    for notice in tally.notices():
        out.print(notice, markup=False, soft_wrap=True)


def _predictions(
    opened: Pipeline, sources: Iterable[Example], asked: dict[str, Any], workers: int
) -> Generator[Prediction, None, None]:
    """Results in order; a person at a terminal, for whom no worker works, gets an answer after every line."""
    from dragoman.inference import parallel as streaming

    if workers:
        results = streaming.stream(opened, sources, workers=workers, **asked)
    else:
        results = (p for i, source in enumerate(sources) for p in opened.stream([source], first=i, **asked))
    cut = 0
    with closing(results):
        for prediction in results:
            cut += prediction.source_truncated
            yield prediction
    if cut:
        what = "tokens" if opened.codec.modality is None else "positions"
        text = f"too long, so only the first {opened.reading.longest:,} {what} were read: {cut:,} of the sources"
        console(error=True).print(text, markup=False)
