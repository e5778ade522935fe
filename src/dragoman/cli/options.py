"""Arguments and options that several commands share, and how they print."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.core.errors import DataError, UserError, did_you_mean
from dragoman.data import lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table

    from dragoman.core.types import Example
    from dragoman.inference.pipeline import Pipeline
    from dragoman.text.codec import Codec

Model = Annotated[str, typer.Argument(help="A run folder, a model folder or a packed model (a zip).", metavar="MODEL")]
Pairs = Annotated[
    str, typer.Argument(help="file.tsv (source TAB target), source.txt,target.txt or .jsonl; .gz too.", metavar="PAIRS")
]
Set = Annotated[list[str], typer.Option("--set", help="KEY=VALUE over the config, as in model.decoder.layers=2.")]
AllowChange = Annotated[
    list[str], typer.Option(help="Resume although this key of the config (or 'data', or 'ranks') has changed.")
]
Plugins = Annotated[
    list[str],
    typer.Option(
        "--plugin", help="A Python module or file to import first; it may register parts.", metavar="MODULE|FILE.py"
    ),
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Beam = Annotated[int | None, typer.Option(help="Hypotheses kept at each step; 1 is greedy. Default: the model's own.")]
Columns = Annotated[
    str,
    typer.Option(
        help="Roles by position (source,target,-), names of the source and the target (word,ipa), or ROLE=NAME,… . "
        "Default: those the model was trained on, if the file has them."
    ),
]
SourceLang = Annotated[str | None, typer.Option(help="The language of the sources, for models that know several.")]
TargetLang = Annotated[str | None, typer.Option(help="The language of the results, for models that know several.")]
Workers = Annotated[int | None, typer.Option(help="Processes on a CPU. Default: one for each core.", min=1)]
Precision = Annotated[
    str | None, typer.Option(help="float32, bfloat16 or int8, for decoding. Default: that of the model's config.")
]
Reference = Annotated[bool, typer.Option("--reference", help="The reference equations, without the faster engines.")]
ExplainEngine = Annotated[
    bool, typer.Option("--explain-engine", help="Print which engine is used, and why the others are not.")
]
OnError = Annotated[lines.OnError, typer.Option(help="What to do with a line or a file that cannot be read.")]
MediaFolders = Annotated[
    list[str],
    typer.Option("--files", help="A folder or archive with the images or audio files that sources name. Repeatable."),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="The file to write to; it appears when it is complete.")
]


def console(error: bool = False) -> Console:
    """Return a rich console for the standard output or, with `error`, the standard error."""
    from rich.console import Console

    return Console(stderr=error, highlight=False)


def print_text(text: str) -> None:
    """Print a text on the standard output as it is, without markup and unwrapped."""
    console().print(text, markup=False, soft_wrap=True)


def print_to_stderr(text: str) -> None:
    """Print a message for the user on the standard error, unwrapped."""
    console(error=True).print(text, markup=False, soft_wrap=True)


def plain_table(*columns: str | Column, title: str | None = None) -> Table:
    """Return an empty table without borders."""
    from rich.table import Table

    return Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)


def program_name() -> str:
    """Return the command that runs this program again: `dragoman`, or a longer one if it is not on the PATH."""
    if shutil.which("dragoman"):
        return "dragoman"
    return "python -m dragoman" if sys.argv[0].endswith("__main__.py") else os.path.relpath(sys.argv[0])


def predict_command(model: Path, plugins: Sequence[str], *, takes_text: bool = True) -> str:
    """Return the command that tries a model, a run or a zip, on an example that it keeps."""
    from dragoman.checkpoint import kept_examples, model_folder

    command = f"{program_name()} predict {model}" + "".join(f" --plugin {plugin}" for plugin in plugins)
    if not takes_text:
        return f"{command} FILE"
    kept = kept_examples.read_examples(model_folder.resolve(model))
    source = next((one.source for one in kept if not one.second_source and len(one.source) < 60), "some source")
    return f"echo {shlex.quote(source)} | {command}"


def fetch_model(model: str) -> str:
    """Copy the models of a MODEL argument that are at URLs to this machine; return their paths here."""
    if "://" not in model:
        return model
    from dragoman.checkpoint.model_paths import parse_model_paths
    from dragoman.core import remote

    parts = parse_model_paths(model)
    return "+".join(str(remote.fetch_model(part)) if remote.is_url(part) else part for part in parts)


def fetch_files(spec: str) -> str:
    """Copy the files of a FILE or PAIRS argument that are at URLs to this machine; return their paths here."""
    if "://" not in spec:
        return spec
    from dragoman.core import remote

    return ",".join(str(remote.fetch_file(part)) if remote.is_url(part) else part for part in spec.split(","))


def load_plugins(plugins: Sequence[str]) -> None:
    """Import the modules and files of --plugin."""
    from dragoman.core.plugins import load_plugin

    for plugin in plugins:
        load_plugin(plugin)


def split_commas(text: str) -> list[str]:
    """Split a comma-separated list into its words, without blank ones."""
    return [word.strip() for word in text.split(",") if word.strip()]


def skip_unreadable(
    pipeline: Pipeline, examples: Iterable[Example], on_error: str, keep_blank: bool
) -> Iterator[Example]:
    """Yield examples; with on_error "skip", those whose media files cannot be read are left out or `keep_blank`."""
    from dragoman.core.types import Example

    if on_error != "skip" or not pipeline.reads_media:
        yield from examples
        return
    count, first = 0, ""
    for example in examples:
        try:
            pipeline.input_processor.encode_input(pipeline.input_processor.to_example(example))
        except DataError as error:
            count, first = count + 1, first or str(error)
            if keep_blank:
                yield Example("", file=example.file, line=example.line)
        else:
            yield example
    if count:
        outcome = "have no result" if keep_blank else "were left out"
        print_to_stderr(f"{count:,} of the sources cannot be read and {outcome}: {first}")


def warn_untagged(codec: Codec, examples: Iterable[Example]) -> Iterator[Example]:
    """Yield examples unchanged; warn at the end if a model of several languages got no target language for some."""
    languages, untagged = codec.target_languages, 0
    for example in examples:
        untagged += bool(languages) and example.target_lang is None and bool(example.source.strip())
        yield example
    if untagged:
        print_to_stderr(
            f"{untagged:,} sources do not name their target language ({', '.join(languages)}); see --target-lang"
        )


def warn_truncated(codec: Codec, longest: int, count: int) -> None:
    """Say how many sources were longer than the `longest` that the model reads."""
    unit = "tokens" if codec.modality is None else "positions"
    print_to_stderr(f"too long, so only the first {longest:,} {unit} were read: {count:,} of the sources")


def check_choice(value: str, allowed: Sequence[str], option: str) -> str:
    """Return the value of an option if it is allowed, else raise a UserError that lists the allowed ones."""
    if value in allowed:
        return value
    raise UserError(f"{option} is '{value}'; it must be one of {', '.join(allowed)}{did_you_mean(value, allowed)}")
