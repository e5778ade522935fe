"""What a command is given to read.

    a file of lines   one source on each; where the model reads a medium, the name of a file on each
    media files       each is one input: photo.jpg, clip.wav, utterance.npy, a folder of frames

What is a medium's own file and what a list of them goes by its name: lists end with .txt, .tsv or .jsonl (.gz too).
A line of a list may have all columns that the model was trained on; those that are no source are left out.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Annotated

import typer

from dragoman.cli.options import console

if TYPE_CHECKING:
    from dragoman.core.types import Example
    from dragoman.data.lines import Tally
    from dragoman.inference.pipeline import Pipeline

LISTS = (".txt", ".tsv", ".jsonl", ".txt.gz", ".tsv.gz", ".jsonl.gz")
OTHER_LISTS = (".csv", ".json", ".lst", ".list")  # which are nobody's images or sounds

SecondSource = Annotated[
    str, typer.Option(help="The other source, for a model of two: what is asked about the media files, say.")
]


def media_inputs(opened: Pipeline, files: Sequence[str], second_source: str) -> list[Example] | None:
    """The inputs that media files are, one each; None where the one file given holds lines."""
    from dragoman.core.errors import UserError

    named = [file for file in files if is_medium(file)] if reads_media(opened) else []
    for file in named:
        if file.lower().endswith(OTHER_LISTS):
            raise UserError(f"{file}: lists of names, one a line, end with .txt, .tsv or .jsonl; rename it, or give -")
    if not named:
        if len(files) > 1:
            raise UserError(f"there are {len(files)} files, and only media files are several inputs; give one of lines")
        if second_source:
            raise UserError(
                "--second-source goes with a media file; in a file of lines both sources stand on one, with a tab"
            )
        return None
    if len(named) < len(files):
        raise UserError("some files are media and some hold lines; give one of lines, or media files alone")
    return asked_about(opened, named, second_source)


def asked_about(opened: Pipeline, named: Sequence[str], second_source: str) -> list[Example]:
    """Sources given one by one, each with the one that --second-source gives; media are what a text asks about."""
    from dragoman.core.errors import UserError
    from dragoman.core.types import Example

    if opened.codec.second_source is None:
        if second_source:
            raise UserError("--second-source is given, and the model reads one source; leave it out")
        return [Example(file) for file in named]
    if not second_source.strip():
        raise UserError("the model reads two sources, and found one; give the other with --second-source")
    if opened.codec.modality is None and opened.codec.second_source != "text":
        return [Example(second_source, second_source=file) for file in named]
    return [Example(file, second_source=second_source) for file in named]


def reads_media(opened: Pipeline) -> bool:
    return opened.codec.modality is not None or (opened.codec.second_source or "text") != "text"


def without_targets(sources: Iterable[Example], columns: Sequence[str]) -> Iterator[Example]:
    """The same; of lines with more columns than there are sources, those that training read sources from."""
    from dataclasses import replace

    own, more = [columns.index(name) for name in ("source", "second_source") if name in columns], 0
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
