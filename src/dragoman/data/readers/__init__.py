"""Readers of pairs (a PAIRS spec → Examples), one file for each format; the folder is the registry.

    pairs.tsv                source TAB target (any file that no other reader accepts)
    source.txt,target.txt    two aligned files
    pairs.jsonl              one JSON object on each line

Each may end with `.gz`; "-" is the standard input. A new format is a new file in this folder: a
class with the methods of PairReader, registered under its name. Its parser raises BadLine for a
line that cannot be used; `parse_examples` then stops with file and line, or skips and counts the
line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from dragoman.core.errors import UserError, did_you_mean
from dragoman.core.registry import Registry
from dragoman.core.types import Example
from dragoman.data.lines import BadLine, Line, OnError, ReadReport, reject_line

COLUMN_NAMES = ("source", "second_source", "target", "source_lang", "target_lang", "-")
FALLBACK_READER = "tsv"  # the last choice: it accepts any file


@dataclass(frozen=True)
class ReadOptions:
    """How to read pairs: the names of the columns, whether further columns are targets, what to do with a bad line."""

    columns: tuple[str, ...] = ("source", "target")
    extra_targets: bool = False
    on_error: OnError = "stop"
    report: ReadReport = field(default_factory=ReadReport)

    def __post_init__(self) -> None:
        allowed = ", ".join(COLUMN_NAMES)
        for name in self.columns:
            if name not in COLUMN_NAMES:
                raise UserError(
                    f"columns: there is no column '{name}'{did_you_mean(name, COLUMN_NAMES)} (there is {allowed})"
                )
            if name not in ("target", "-") and self.columns.count(name) > 1:
                raise UserError(f"columns: '{name}' is named twice; only 'target' (several references) and '-' may be")
        if not {"source", "target"} & set(self.columns):
            raise UserError(f"columns: {list(self.columns)} names neither 'source' nor 'target'")


class PairReader(Protocol):
    """One format of pairs."""

    def accepts(self, spec: str) -> bool:
        """Whether this reader reads a spec, judged by its form alone."""
        ...

    def files(self, spec: str) -> list[Path]:
        """The files that a spec names."""
        ...

    def read_pairs(self, spec: str, options: ReadOptions) -> Iterator[Example]:
        """The pairs of a spec; bad lines are left out."""
        ...

    def read_sources(self, spec: str | IO[bytes], name: str | None, options: ReadOptions) -> Iterator[Example]:
        """The sources of a spec or stream, exactly one for each line."""
        ...


readers: Registry[PairReader] = Registry("reader", __name__)


def find_reader(spec: str) -> PairReader:
    """The first reader that accepts a spec, TSV last; UserError if none does."""
    for name in sorted(readers.names, key=lambda name: name == FALLBACK_READER):
        reader = readers[name]()
        if reader.accepts(spec):
            return reader
    raise UserError(f"'{spec}': no reader accepts this (there is {', '.join(readers.names)})")


def read_pairs(
    spec: str | Path,
    *,
    columns: Sequence[str] = ("source", "target"),
    extra_targets: bool = False,
    on_error: OnError = "stop",
    report: ReadReport | None = None,
) -> Iterator[Example]:
    """The pairs of a file of any format, in order, each with file and line.

    With `extra_targets`, all columns after the named ones are further references. An overlong line
    gives an Example with `source_truncated`. With on_error="skip" bad lines are left out and
    counted in the report.
    """
    options = ReadOptions(tuple(columns), extra_targets, on_error, ReadReport() if report is None else report)
    return find_reader(str(spec)).read_pairs(str(spec), options)


def read_sources(
    spec: str | Path, *, on_error: OnError = "stop", report: ReadReport | None = None
) -> Iterator[Example]:
    """The sources to predict from, one Example for each line, in order; a blank or skipped line has an empty source."""
    options = ReadOptions(("source",), False, on_error, ReadReport() if report is None else report)
    return find_reader(str(spec)).read_sources(str(spec), None, options)


def spec_files(spec: str | Path) -> list[Path]:
    """The files that a spec names, without the standard input."""
    return [path for path in find_reader(str(spec)).files(str(spec)) if str(path) != "-"]


# -- for the readers themselves ------------------------------------------------------------------------------------


def split_spec(spec: str) -> list[str]:
    """The comma-separated paths of a spec; an existing file may have a comma in its name."""
    if "," not in spec or Path(spec).exists():
        return [spec]
    return [side.strip() for side in spec.split(",")]


def parse_examples(
    lines: Iterable[Line], parse: Callable[[Line], Example], file: str, options: ReadOptions, keep_bad_lines: bool
) -> Iterator[Example]:
    """Parse each line to an Example; bad lines are left out, or become empty ones with keep_bad_lines."""
    for line in lines:
        if not line.error:
            try:
                example = parse(line)
            except BadLine as bad:
                reject_line(bad, file, line.number, options.on_error, options.report)
            else:
                yield example
                continue
        if keep_bad_lines:
            yield Example("", file=file, line=line.number, source_truncated=line.is_truncated)
