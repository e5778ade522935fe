"""Readers of pairs (a PAIRS spec → Examples), one file for each format; the folder is the registry.

    pairs.tsv                source TAB target (any file that no other reader accepts)
    source.txt,target.txt    two aligned files
    pairs.jsonl              one JSON object on each line

Each may end with `.gz`; "-" is the standard input. A new format is a new file in this folder: a
PairReader, registered under its name. Its parser raises BadLine for a line that cannot be used;
reading then stops with file and line, or skips and counts the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from dragoman.core.errors import UserError, did_you_mean
from dragoman.core.registry import Registry
from dragoman.core.types import Example
from dragoman.data.lines import BadLine, Line, OnError, ReadReport, read_lines, reject_line

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


class PairReader:
    """One format of pairs: by default, each line of one file is a pair. Subclasses parse the line."""

    def accepts(self, spec: str) -> bool:
        """Whether this reader reads a spec, judged by its form alone."""
        return True

    def files(self, spec: str) -> list[Path]:
        """The files that a spec names."""
        return [Path(spec)]

    def parse_pair(self, line: Line, file: str, options: ReadOptions) -> Example:
        """The pair on a line, with the name of its file for messages; BadLine if it cannot be used."""
        raise NotImplementedError

    def parse_source(self, line: Line, file: str, options: ReadOptions) -> Example:
        """The source on a line of a file to predict from."""
        return self.parse_pair(line, file, options)

    def read_pairs(self, spec: str, options: ReadOptions) -> Iterator[Example]:
        """The pairs of a spec; bad lines are left out."""
        return _parse_lines(spec, None, self.parse_pair, options, keep_bad_lines=False)

    def read_sources(self, spec: str | IO[bytes], name: str | None, options: ReadOptions) -> Iterator[Example]:
        """The sources of a spec or stream that messages call `name`, exactly one for each line, empty for a bad one."""
        return _parse_lines(spec, name, self.parse_source, options, keep_bad_lines=True)


def _parse_lines(
    spec: str | IO[bytes],
    name: str | None,
    parse: Callable[[Line, str, ReadOptions], Example],
    options: ReadOptions,
    *,
    keep_bad_lines: bool,
) -> Iterator[Example]:
    file = name or (spec if isinstance(spec, str) and spec != "-" else "<stdin>")
    for line in read_lines(spec, name=file, on_error=options.on_error, report=options.report):
        if not line.error:
            try:
                example = parse(line, file, options)
            except BadLine as bad:
                reject_line(bad, file, line.number, options.on_error, options.report)
            else:
                yield example
                continue
        if keep_bad_lines:
            yield Example("", file=file, line=line.number, source_truncated=line.is_truncated)


readers: Registry[PairReader] = Registry("reader", __name__)


def find_reader(spec: str) -> PairReader:
    """The first reader that accepts a spec; TSV, which accepts any, comes last."""
    every = (readers[name]() for name in sorted(readers.names, key=lambda name: name == FALLBACK_READER))
    return next(reader for reader in every if reader.accepts(spec))


def read_pairs(
    spec: str | Path,
    *,
    columns: Sequence[str] = ("source", "target"),
    extra_targets: bool = False,
    on_error: OnError = "stop",
    report: ReadReport | None = None,
) -> Iterator[Example]:
    """The pairs of a file of any format, in order, each with file and line.

    With `extra_targets`, columns after the named ones are further references. Lines that are skipped are counted.
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


def split_spec(spec: str) -> list[str]:
    """The comma-separated paths of a spec; an existing file may have a comma in its name."""
    if "," not in spec or Path(spec).exists():
        return [spec]
    return [side.strip() for side in spec.split(",")]
