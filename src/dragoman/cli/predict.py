"""dragoman predict: N lines in, N lines out, in order.

    a file of lines   one source on each; where the model reads a medium, the name of a file on each
    media files       each is one input: photo.jpg, clip.wav, utterance.npy, a folder of frames

What is a medium's own file and what a list of them goes by its name: lists end with .txt, .tsv or .jsonl (.gz too).
A line of a list may have all columns that the model was trained on; those that are no source are left out.
"""

from __future__ import annotations

import json
import math
import os
import stat
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli import searching
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
from dragoman.cli.progress import clock
from dragoman.core.json import finite

if TYPE_CHECKING:
    from rich.console import Console

    from dragoman.core.interfaces import Example
    from dragoman.data.lines import Tally
    from dragoman.pipeline import Pipeline, Prediction


REDRAW = 0.2  # seconds between two states of the bar
LISTS = (".txt", ".tsv", ".jsonl", ".txt.gz", ".tsv.gz", ".jsonl.gz")
OTHER_LISTS = (".csv", ".json", ".lst", ".list")  # which are nobody's images or sounds

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE|-",
        help="One source on each line, or .jsonl; - is the standard input. To a model of images or sounds, such files "
        "themselves, or one with their names on its lines (.txt, .tsv, .jsonl).",
    ),
]
Second = Annotated[
    str, typer.Option(help="The other source, for a model of two: what is asked about the media files, say.")
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
    places: Places = [],
    second: Second = "",
) -> None:
    """Turn every source into its best result. A blank or skipped line gives an empty line."""
    from dragoman.core.errors import UserError
    from dragoman.data.lines import Tally

    choice(format, ("text", "tsv", "jsonl"), "--format")
    choice(on_error, ("stop", "skip"), "--on-error")
    if nbest > 1 and format == "text":
        raise UserError("--nbest needs --format tsv or jsonl: a text line has room for one result")
    import_all(modules)
    from dragoman import pipeline, streaming
    from dragoman.constraints import Constraints

    if (trace or attention) and format != "jsonl":
        raise UserError("--trace and --attention need --format jsonl: a text line has no room for them")
    how: dict[str, Any] = {"precision": precision, "plain": plain}
    opened = (
        pipeline.load(model, device, **how) if lm is None else pipeline.load_fused(model, lm, lm_weight, device, **how)
    )
    opened = opened.with_files(places).with_generation(
        no_repeat=no_repeat, repetition=repetition, unknown=unknown, mbr=mbr
    )
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
    tally, out = Tally(), console(error=True)
    media = media_inputs(opened, files, second)
    given = Input(files[0], on_error, tally) if media is None else Media(media)
    listed = given if media is not None or not reads_media(opened) else without_targets(given, opened.config.columns)
    sources = readable(opened, listed, on_error, each=True)
    tagged = warn_untagged(opened, tagged_with(sources, source_lang, target_lang, opened.codec.second is not None))
    shows = out.is_terminal and not given.interactive and (output is not None or not sys.stdout.isatty())
    count = 0 if given.interactive else streaming.how_many(opened, workers)
    with (
        closing(_predictions(opened, tagged, asked, count)) as results,
        closing(counted(results, given, out)) if shows else nullcontext(results) as shown,
    ):
        write((line for i, p in enumerate(shown, 1) for line in render(i, p, format)), output)
    for notice in tally.notices():
        out.print(notice, markup=False, soft_wrap=True)


def media_inputs(opened: Pipeline, files: Sequence[str], second: str) -> list[Example] | None:
    """The inputs that media files are, one each; None where the one file given holds lines."""
    from dragoman.core.errors import UserError

    named = [file for file in files if is_medium(file)] if reads_media(opened) else []
    for file in named:
        if file.lower().endswith(OTHER_LISTS):
            raise UserError(f"{file}: lists of names, one a line, end with .txt, .tsv or .jsonl; rename it, or give -")
    if not named:
        if len(files) > 1:
            raise UserError(f"there are {len(files)} files, and only media files are several inputs; give one of lines")
        if second:
            raise UserError("--second goes with a media file; in a file of lines both sources stand on one, with a tab")
        return None
    if len(named) < len(files):
        raise UserError("some files are media and some hold lines; give one of lines, or media files alone")
    return asked_about(opened, named, second)


def asked_about(opened: Pipeline, named: Sequence[str], second: str) -> list[Example]:
    """Sources given one by one, each with the one that --second gives; media are what a text asks about."""
    from dragoman.core.errors import UserError
    from dragoman.core.interfaces import Example

    if opened.codec.second is None:
        if second:
            raise UserError("--second is given, and the model reads one source; leave it out")
        return [Example(file) for file in named]
    if not second.strip():
        raise UserError("the model reads two sources, and found one; give the other with --second")
    if opened.codec.medium is None and opened.codec.second != "text":
        return [Example(second, second=file) for file in named]
    return [Example(file, second=second) for file in named]


def reads_media(opened: Pipeline) -> bool:
    return opened.codec.medium is not None or (opened.codec.second or "text") != "text"


def without_targets(sources: Iterable[Example], columns: Sequence[str]) -> Iterator[Example]:
    """The same; of lines with more columns than there are sources, those that training read sources from."""
    from dataclasses import replace

    own, more = [columns.index(name) for name in ("source", "second") if name in columns], 0
    for source in sources:
        cells = source.source.split("\t")
        if len(own) < len(cells) > max(own):
            more += 1
            source = replace(source, source="\t".join(cells[i] for i in own))
        yield source
    if more:
        text = f"{more:,} lines have columns besides their sources, left out (the model's: {', '.join(columns)})"
        console(error=True).print(text, markup=False, soft_wrap=True)


def is_medium(file: str) -> bool:
    """Whether a name is that of an image, a sound or a clip, and not of a list or a stream of them."""
    if not file.strip() or file == "-" or file.lower().endswith(LISTS):
        return False
    return os.path.isfile(file) or os.path.isdir(file) or not os.path.exists(file)  # a pipe brings lines


class Media:
    """Media files, each an input of its own."""

    interactive = False

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples, self.expected = examples, float(len(examples))
        self.file = f"{len(examples):,} files"

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)


class Input:
    """The sources of a file or of the standard input, and how far they have been read."""

    def __init__(self, file: str, on_error: str, tally: Tally) -> None:
        self.file, self.on_error, self.tally = file, on_error, tally
        self.interactive = file == "-" and sys.stdin.isatty()
        self.lines = 0
        self.share = 0.0  # of the bytes, as they lie on the disk; 0 where nobody knows how many there are: in a pipe

    def __iter__(self) -> Iterator[Example]:
        from dragoman.data.readers import Reading, read_sources, reader_of

        with ExitStack() as stack:
            stream: IO[bytes] | None = sys.stdin.buffer if self.file == "-" else None
            if os.path.isfile(self.file) and os.access(self.file, os.R_OK):
                stream = stack.enter_context(open(self.file, "rb"))
                reading = Reading(("source",), False, self.on_error, self.tally)  # type: ignore[arg-type]
                sources = reader_of(self.file).sources(stream, self.file, reading)
            else:  # the standard input, or a name of which the reader says what is wrong
                sources = read_sources(self.file, on_error=self.on_error, tally=self.tally)  # type: ignore[arg-type]
            size = 0 if stream is None else bytes_in(stream)
            for source in sources:
                self.lines += 1
                if stream is not None and size:
                    self.share = stream.tell() / size
                yield source
        self.share = 1.0

    @property
    def expected(self) -> float | None:
        """How many lines there will be, if the others are as long as those read."""
        return self.lines / self.share if self.share else None


def bytes_in(stream: IO[bytes]) -> int:
    """The size of a file; 0 of a pipe."""
    try:
        found = os.fstat(stream.fileno())
    except OSError:  # a stream in memory
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _predictions(
    opened: Pipeline, sources: Iterable[Example], asked: dict[str, Any], workers: int
) -> Generator[Prediction, None, None]:
    """Results in order; a person at a terminal, for whom no worker works, gets an answer after every line."""
    from dragoman import streaming

    if workers:
        results = streaming.stream(opened, sources, workers=workers, **asked)
    else:
        results = (p for i, source in enumerate(sources) for p in opened.stream([source], first=i, **asked))
    cut = 0
    with closing(results):
        for prediction in results:
            cut += prediction.cut
            yield prediction
    if cut:
        what = "tokens" if opened.codec.medium is None else "positions"
        text = f"too long, so only the first {opened.reading.longest:,} {what} were read: {cut:,} of the sources"
        console(error=True).print(text, markup=False)


def counted(results: Iterable[Prediction], given: Input | Media, out: Console) -> Generator[Prediction, None, None]:
    """The same results; a bar shows how many there are, how fast they come, and how long the rest will take."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TextColumn("{task.completed:,} lines"),
        TextColumn("{task.fields[rate]} lines/s"),
        TimeElapsedColumn(),
        TextColumn("left {task.fields[left]}"),
    )
    began, drawn, done = time.monotonic(), -math.inf, 0
    with Progress(*columns, console=out, refresh_per_second=5) as bar:
        task = bar.add_task(os.path.basename(given.file), total=None, rate="–", left="–")

        def draw(done: int, seconds: float) -> None:
            total = given.expected
            left = math.nan if total is None else seconds * (total - done) / done
            bar.update(task, completed=done, total=total, rate=f"{done / seconds:,.0f}", left=clock(left))

        for done, result in enumerate(results, 1):
            now = time.monotonic()
            if now - drawn > REDRAW:
                draw(done, now - began)
                drawn = now
            yield result
        if done:
            draw(done, time.monotonic() - began)


def tagged_with(
    sources: Iterable[Example], source_lang: str | None, target_lang: str | None, two: bool = False
) -> Iterator[Example]:
    """The same in the languages asked for; tabs, which part the sources of a model of two, are a warning elsewhere."""
    from dataclasses import replace

    tabs = 0
    for source in sources:
        tabs += "\t" in source.source and not two
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
