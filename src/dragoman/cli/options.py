"""Arguments and options that several commands share, and the console they print on."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from dragoman.core.types import Example
    from dragoman.inference.pipeline import Pipeline

Model = Annotated[str, typer.Argument(help="A run folder or a model folder.", metavar="MODEL")]
Pairs = Annotated[
    str, typer.Argument(help="file.tsv (source TAB target), source.txt,target.txt or .jsonl; .gz too.", metavar="PAIRS")
]
Set = Annotated[list[str], typer.Option("--set", help="KEY=VALUE over the config, as in model.decoder.layers=2.")]
AllowChange = Annotated[
    list[str], typer.Option(help="Resume although this key (or 'data', or 'ranks') is not as it was before.")
]
Imports = Annotated[list[str], typer.Option("--import", help="A Python module to import first: it may register parts.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Beam = Annotated[int | None, typer.Option(help="Hypotheses kept at each step; 1 is greedy. Default: the model's own.")]
Columns = Annotated[
    str,
    typer.Option(help="What the columns of a TSV file are, separated by commas. Default: as in the model's training."),
]
SourceLang = Annotated[str | None, typer.Option(help="The language of the sources, for models that know several.")]
TargetLang = Annotated[str | None, typer.Option(help="The language wanted, for models that know several.")]
Workers = Annotated[
    int | None, typer.Option(help="Processes that share a CPU; 1 is one. Default: as many as it has cores.", min=1)
]
Precision = Annotated[
    str | None, typer.Option(help="Of searching: float32, bfloat16 or int8. Default: as the model's config has it.")
]
Plain = Annotated[bool, typer.Option("--plain", help="The model's own equations, without the fast paths.")]
OnError = Annotated[str, typer.Option(help="stop or skip: what to do with a line, or a file, that cannot be read.")]
Places = Annotated[
    list[str],
    typer.Option("--files", help="A folder or archive with the images or sounds that sources name. Repeatable."),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="A file to write to, whole or not at all.")]


def console(error: bool = False) -> Console:
    """rich's console; it honors NO_COLOR and whether there is a terminal."""
    from rich.console import Console

    return Console(stderr=error, highlight=False)


def program() -> str:
    """How to call this command line again from here: it may not be on the PATH."""
    if shutil.which("dragoman"):
        return "dragoman"
    return "python -m dragoman" if sys.argv[0].endswith("__main__.py") else os.path.relpath(sys.argv[0])


def import_all(modules: Sequence[str]) -> None:
    """Import what the user named on the command line, from here or from what is installed."""
    from dragoman.core.errors import UserError

    sys.path.insert(0, "")
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UserError(f"--import {module}: {error}") from None


def columns_of(given: str, pipeline: Pipeline) -> list[str]:
    """The columns named on the command line, or those the model was trained on."""
    return given.split(",") if given else pipeline.config.columns


def readable(pipeline: Pipeline, examples: Iterable[Example], on_error: str, each: bool) -> Iterator[Example]:
    """The same examples but for those with a file that cannot be read, if they are to be skipped.

    Where `each` must have an answer they are blank. To know them, every file is read once more.
    """
    from dragoman.core.errors import DataError
    from dragoman.core.types import Example

    if on_error != "skip" or (pipeline.codec.modality is None and pipeline.codec.second_source in (None, "text")):
        yield from examples
        return
    count, first = 0, ""
    for example in examples:
        try:
            pipeline.reading.given(pipeline.reading.example(example))
        except DataError as error:
            count, first = count + 1, first or str(error)
            if each:
                yield Example("", file=example.file, line=example.line)
        else:
            yield example
    if count:
        text = f"{count:,} of the sources cannot be read and {'have no answer' if each else 'were left out'}: {first}"
        console(error=True).print(text, markup=False, soft_wrap=True)


def warn_untagged(pipeline: Pipeline, examples: Iterable[Example]) -> Iterator[Example]:
    """The same examples; a word of warning where a model of several languages is not told which one is wanted."""
    languages, untagged = pipeline.codec.languages, 0
    for example in examples:
        untagged += bool(languages) and example.target_lang is None and bool(example.source.strip())
        yield example
    if untagged:
        text = f"{untagged:,} sources do not say which language is wanted ({', '.join(languages)}); see --target-lang"
        console(error=True).print(text, markup=False, soft_wrap=True)


def choice(value: str, allowed: Sequence[str], option: str) -> str:
    """A word from a short list, or an error that shows the list."""
    from dragoman.core.errors import UserError, nearest

    if value not in allowed:
        raise UserError(f"{option} is '{value}'; it must be one of {', '.join(allowed)}{nearest(value, allowed)}")
    return value
