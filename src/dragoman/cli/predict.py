"""dragoman predict: N lines in, N lines out, in order."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli import searching
from dragoman.cli.options import (
    Beam,
    Device,
    Imports,
    Model,
    OnError,
    Output,
    SourceLang,
    TargetLang,
    choice,
    console,
    import_all,
    warn_untagged,
)

if TYPE_CHECKING:
    from dragoman.core.interfaces import Example
    from dragoman.pipeline import Pipeline, Prediction


def predict(
    model: Model,
    file: Annotated[str, typer.Argument(help="One source on each line, or .jsonl; - is the standard input.")] = "-",
    beam: Beam = None,
    nbest: Annotated[int, typer.Option(help="Results for each source; more than 1 needs --format tsv or jsonl.")] = 1,
    format: Annotated[str, typer.Option(help="text, tsv (line, rank, score, text) or jsonl.")] = "text",
    output: Output = None,
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    on_error: OnError = "stop",
    device: Device = "auto",
    modules: Imports = [],
    search: searching.Name = None,
    length_rule: searching.LengthRule = None,
    alpha: searching.Alpha = None,
    coverage: searching.Coverage = None,
    ending: searching.Ending = None,
    stop: searching.Stop = None,
    groups: searching.Groups = None,
    strength: searching.Strength = None,
    samples: searching.Samples = None,
    temperature: searching.Temperature = None,
    top_k: searching.TopK = None,
    top_p: searching.TopP = None,
    min_p: searching.MinP = None,
    typical: searching.Typical = None,
    epsilon: searching.Epsilon = None,
    seed: searching.Seed = None,
    mbr: searching.MBR = None,
    lm: searching.LanguageModel = None,
    lm_weight: searching.Weight = 0.3,
    shortest: searching.Shortest = None,
    longest: searching.Longest = None,
    prefix: searching.Prefix = "",
    require: searching.Require = [],
    ordered: searching.Ordered = False,
    forbid: searching.Forbid = [],
    choose: searching.Choice = [],
    pattern: searching.Pattern = "",
    no_repeat: searching.NoRepeat = None,
    repetition: searching.Repetition = None,
    unknown: searching.Unknown = None,
    trace: Annotated[bool, typer.Option(help="With jsonl: what the beam kept and dropped at each step.")] = False,
    attention: Annotated[bool, typer.Option(help="With jsonl: where the model looked for each token.")] = False,
) -> None:
    """Turn every source into its best result. A blank or skipped line gives an empty line."""
    from dragoman.core.errors import UserError
    from dragoman.data.lines import Tally
    from dragoman.data.readers import read_sources

    choice(format, ("text", "tsv", "jsonl"), "--format")
    choice(on_error, ("stop", "skip"), "--on-error")
    if nbest > 1 and format == "text":
        raise UserError("--nbest needs --format tsv or jsonl: a text line has room for one result")
    import_all(modules)
    from dragoman import pipeline
    from dragoman.constraints import Constraints

    if (trace or attention) and format != "jsonl":
        raise UserError("--trace and --attention need --format jsonl: a text line has no room for them")
    opened = pipeline.load(model, device) if lm is None else pipeline.load_fused(model, lm, lm_weight, device)
    opened = opened.with_generation(no_repeat=no_repeat, repetition=repetition, unknown=unknown, mbr=mbr)
    options = {
        "alpha": alpha, "coverage": coverage, "ending": ending, "stop": stop, "groups": groups, "strength": strength,
        "samples": samples, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "typical": typical, "epsilon": epsilon, "seed": seed,
    }  # fmt: skip
    asked = {
        "beam": beam,
        "nbest": nbest,
        "search": searching.part(opened, search, beam, length_rule, options),
        "constraints": Constraints(
            prefix, tuple(require), ordered, tuple(forbid), tuple(choose), pattern, shortest, longest
        ),
        "trace": trace,
        "attention": attention,
    }
    tally = Tally()
    sources = read_sources(file, on_error=on_error, tally=tally)  # type: ignore[arg-type]
    tagged = warn_untagged(opened, tagged_with(sources, source_lang, target_lang))
    results = _predictions(opened, tagged, asked, file)
    lines = (line for i, p in enumerate(results, 1) for line in render(i, p, format))
    write(counted(lines, file) if output is not None else lines, output)
    for notice in tally.notices():
        console(error=True).print(notice, markup=False, soft_wrap=True)


def _predictions(
    opened: Pipeline, sources: Iterable[Example], asked: dict[str, Any], file: str
) -> Iterator[Prediction]:
    """Results in order; a person at a terminal gets an answer after every line."""
    cut = 0
    interactive = file == "-" and sys.stdin.isatty()
    groups: Iterable[Iterable[Example]] = ([source] for source in sources) if interactive else [sources]
    for group in groups:
        for prediction in opened.stream(group, **asked):
            cut += prediction.cut
            yield prediction
    if cut:
        text = f"too long, so only the first {opened.longest:,} tokens were read: {cut:,} of the sources"
        console(error=True).print(text, markup=False)


def counted(lines: Iterable[str], file: str) -> Iterator[str]:
    """The same lines, with their number and rate shown on a terminal."""
    out = console(error=True)
    if not out.is_terminal:
        yield from lines
        return
    from rich.progress import Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    lines_column = TextColumn("{task.completed:,} lines")
    columns = (SpinnerColumn(), lines_column, TaskProgressColumn(show_speed=True), TimeElapsedColumn())
    with Progress(*columns, console=out) as bar:
        yield from bar.track(lines, description=file)


def tagged_with(sources: Iterable[Example], source_lang: str | None, target_lang: str | None) -> Iterator[Example]:
    from dataclasses import replace

    tabs = 0
    for source in sources:
        tabs += "\t" in source.source
        yield replace(
            source, source_lang=source.source_lang or source_lang, target_lang=source.target_lang or target_lang
        )
    if tabs:
        text = (
            f"{tabs:,} sources hold a tab: each line is one source as a whole; to score pairs use `dragoman evaluate`"
        )
        console(error=True).print(text, markup=False, soft_wrap=True)


def render(line: int, prediction: Prediction, format: str) -> Iterator[str]:
    """The output lines of one source; a newline inside a result is escaped, so that lines stay in step."""
    ranked = [prediction, *prediction.alternatives]
    if format == "text":
        yield escape(prediction.text)
    elif format == "tsv":
        for rank, p in enumerate(ranked, 1):
            yield f"{line}\t{rank}\t{p.score:.6f}\t{escape(p.text)}"
    else:
        fields = ("text", "score", "log_prob", "tokens", "log_probs", "ended")
        results = [{name: getattr(p, name) for name in fields} for p in ranked]
        value = {"line": line, "source_tokens": prediction.source_tokens, "cut": prediction.cut, **results[0]}
        if prediction.attention is not None:
            value["attention"] = [[round(float(a), 4) for a in row] for row in prediction.attention]
        if prediction.trace is not None:
            value["trace"] = prediction.trace
        yield json.dumps(finite(value | ({"alternatives": results[1:]} if results[1:] else {})), ensure_ascii=False)


def finite(value: Any) -> Any:
    """The same with null for the −∞ of a result that nothing fits: JSON has no such number."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def escape(text: str) -> str:
    return (
        text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
        if _odd(text)
        else text
    )


def _odd(text: str) -> bool:
    return any(c in text for c in "\n\r\t")


def write(lines: Iterable[str], output: object) -> None:
    """To the standard output as they come, or to a file that appears when it is whole; to a device as it is."""
    from pathlib import Path

    from dragoman.core import files

    if output is None:
        out = sys.stdout
        if hasattr(out, "reconfigure"):
            out.reconfigure(encoding="utf-8", newline="\n")
        for line in lines:
            out.write(line + "\n")
            if out.isatty():
                out.flush()
        out.flush()
        return
    assert isinstance(output, Path)
    device = output.exists() and not output.is_file()  # /dev/null must not be replaced
    with files.writing(output, 0), output.open("wb") if device else files.aside(output) as file:
        for line in lines:
            file.write((line + "\n").encode())
