"""The inputs of a command.

    a file of lines   one source on each line; for a model of media, one file name on each line
    a table           TSV with tabs, CSV, XLSX, Parquet or JSON lines: one column is the source, the others are kept
    media files       each is one input: photo.jpg, clip.wav, utterance.npy, a folder of frames

The name decides whether a file is a list or a media file: lists end with .txt, .tsv, .csv, .xlsx, .parquet or .jsonl. A
line of a list may have all columns that the model was trained on; those that are not sources are left out.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Annotated

import typer

from dragoman.cli.options import print_to_stderr
from dragoman.core.errors import UserError

if TYPE_CHECKING:
    from dragoman.core.types import Example
    from dragoman.data.columns import Columns
    from dragoman.data.lines import OnError, ReadReport
    from dragoman.data.readers import Row
    from dragoman.inference.pipeline import Pipeline

TABLE_SUFFIXES = (".tsv", ".tsv.gz", ".csv", ".csv.gz", ".xlsx", ".xlsm", ".parquet", ".pq", ".jsonl", ".jsonl.gz")
LIST_SUFFIXES = (".txt", ".txt.gz", *TABLE_SUFFIXES)
WRONG_LIST_SUFFIXES = (".json", ".lst", ".list", ".ods", ".xls")  # lists by their names, but not in our formats

SecondSource = Annotated[
    str, typer.Option(help="The other source, for a model of two: a question about the media files, say.")
]


def media_examples(pipeline: Pipeline, files: Sequence[str], second_source: str) -> list[Example] | None:
    """Return an example for each media file; None if the inputs are lines of a file. Mixed ones raise UserError."""
    media = [file for file in files if is_media_file(file)] if pipeline.reads_media else []
    for file in media:
        if file.lower().endswith(WRONG_LIST_SUFFIXES):
            raise UserError(
                f"{file}: a list of files must end with .txt, .tsv, .csv, .xlsx or .jsonl; "
                "rename it, or use - for stdin"
            )
    if not media:
        if len(files) > 1:
            raise UserError(f"there are {len(files)} files; several inputs must be media files; give one file of lines")
        if second_source:
            raise UserError("--second-source needs a media file; in a file of lines, a tab separates the two sources")
        return None
    if len(media) < len(files):
        raise UserError("some files are media files and some are lists; give one list, or media files only")
    return pair_with_second_source(pipeline, media, second_source)


def pair_with_second_source(pipeline: Pipeline, sources: Sequence[str], second_source: str) -> list[Example]:
    """Return an example for each source, with --second-source as the other; it comes first for a text and media."""
    from dragoman.core.types import Example

    if pipeline.codec.second_source is None:
        if second_source:
            raise UserError("the model has one source; leave out --second-source")
        return [Example(source) for source in sources]
    if not second_source.strip():
        raise UserError("the model has two sources; give the other one with --second-source")
    if pipeline.codec.modality is None and pipeline.codec.second_source != "text":
        return [Example(second_source, second_source=source) for source in sources]
    return [Example(source, second_source=second_source) for source in sources]


def drop_target_columns(sources: Iterable[Example], columns: Sequence[str]) -> Iterator[Example]:
    """Keep only the source columns of lines with more columns; at the end, warn how many had more."""
    own, count = [columns.index(name) for name in ("source", "second_source") if name in columns], 0
    for source in sources:
        cells = source.source.split("\t")
        if len(own) < len(cells) > max(own):
            count += 1
            source = replace(source, source="\t".join(cells[i] for i in own))
        yield source
    if count:
        print_to_stderr(
            f"{count:,} lines have columns besides their sources, which are left out (columns: {', '.join(columns)})"
        )


def is_media_file(file: str) -> bool:
    """Whether a name is that of a media file, not of a list by its suffix, the standard input or a pipe."""
    if not file.strip() or file == "-" or file.lower().partition("#")[0].endswith(LIST_SUFFIXES):
        return False
    return os.path.isfile(file) or os.path.isdir(file) or not os.path.exists(file)  # a pipe brings lines


class MediaInputs:
    """Media files, each of which is one input."""

    interactive = False

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples, self.expected = examples, float(len(examples))
        self.file = f"{len(examples):,} files"

    def __iter__(self) -> Iterator[tuple[Row, Example]]:
        from dragoman.data.readers import Row

        return ((Row([example.source], number), example) for number, example in enumerate(self.examples, 1))


class LineInputs:
    """The sources of a file or of the standard input, each with its row, and the share that has been read.

    Without `columns` every line is a source; with them the file is a table.
    """

    def __init__(self, file: str, on_error: OnError, report: ReadReport, columns: Columns | None = None) -> None:
        self.file, self.on_error, self.report, self.columns = file, on_error, report, columns
        self.interactive = file == "-" and sys.stdin.isatty()
        self.lines = 0
        self.share = 0.0  # of the file's bytes; 0 for a pipe, whose size is unknown

    def __iter__(self) -> Iterator[tuple[Row, Example]]:
        """Read the sources one by one, and update the number of lines and the share that was read."""
        from dragoman.data.readers import find_reader

        with ExitStack() as stack:
            stream: IO[bytes] | None = sys.stdin.buffer if self.file == "-" else None
            path = self.file if os.path.exists(self.file) else str(find_reader(self.file).files(self.file)[0])
            if os.path.isfile(path) and os.access(path, os.R_OK):
                stream = stack.enter_context(open(path, "rb"))
            size = 0 if stream is None else file_size(stream)
            for row, source in self._read(stream):
                self.lines += 1
                if stream is not None and size:
                    self.share = stream.tell() / size
                yield row, source
        self.share = 1.0

    def _read(self, stream: IO[bytes] | None) -> Iterator[tuple[Row, Example]]:
        from dragoman.data.columns import Columns
        from dragoman.data.readers import ReadOptions, Row, TableReader, blank_source, find_reader

        columns = self.columns or Columns(("source",))
        options = ReadOptions(columns, False, self.on_error, self.report, needs_all_cells=True)
        reader, spec = find_reader(self.file), self.file if stream is None else stream
        name = None if spec == "-" or self.file == "-" else self.file
        if self.columns is None or not isinstance(reader, TableReader):
            for source in reader.read_sources(spec, name, options):
                yield Row([source.source], source.line, source.source_truncated), source
            return
        table = reader.open_table(spec, name, options)
        for row in table.rows:
            yield row, table.example(row) or blank_source(row, table)

    @property
    def expected(self) -> float | None:
        """The estimated number of lines, from the share read so far; None if that is unknown."""
        return self.lines / self.share if self.share else None


def file_size(stream: IO[bytes]) -> int:
    """Return the size of an open regular file in bytes; 0 for a pipe or a stream in memory."""
    try:
        info = os.fstat(stream.fileno())
    except OSError:  # a stream in memory
        return 0
    return info.st_size if stat.S_ISREG(info.st_mode) else 0


def set_languages(
    sources: Iterable[Example], source_lang: str | None, target_lang: str | None, two_sources: bool = False
) -> Iterator[Example]:
    """Set the languages of sources that have none; at the end, warn of tabs unless the model has `two_sources`."""
    tabs = 0
    for source in sources:
        tabs += "\t" in source.source and not two_sources
        yield replace(
            source, source_lang=source.source_lang or source_lang, target_lang=source.target_lang or target_lang
        )
    if tabs:
        print_to_stderr(
            f"{tabs:,} sources contain a tab: each whole line is one source; to score pairs use `dragoman evaluate`"
        )
