"""PAIRS → Examples, one file for each format; the folder is the registry.

    pairs.tsv                source TAB target (any file that no other reader claims)
    source.txt,target.txt    two files in step
    pairs.jsonl              one JSON object on each line

`.gz` on any of them, and "-" for the standard input. A new format is one file dropped in here: a class with `accepts`,
`files`, `read` and `sources`, registered under its name. Its parsers raise BadLine for a line that cannot be used;
`examples` below then stops with the place, or skips and counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from dragoman.core.errors import UserError, nearest
from dragoman.core.registry import Registry
from dragoman.core.types import Example
from dragoman.data.lines import BadLine, Line, OnError, Tally, reject

COLUMNS = ("source", "second_source", "target", "source_lang", "target_lang", "-")
FALLBACK = "tsv"  # asked last: it takes any file


@dataclass(frozen=True)
class Reading:
    """How to read: what the columns are, whether further columns are further targets, what to do with a bad line."""

    columns: tuple[str, ...] = ("source", "target")
    extra_targets: bool = False
    on_error: OnError = "stop"
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        allowed = ", ".join(COLUMNS)
        for name in self.columns:
            if name not in COLUMNS:
                raise UserError(f"columns: there is no column '{name}'{nearest(name, COLUMNS)} (there is {allowed})")
            if name not in ("target", "-") and self.columns.count(name) > 1:
                raise UserError(f"columns: '{name}' is named twice; only 'target' (several references) and '-' may be")
        if not {"source", "target"} & set(self.columns):
            raise UserError(f"columns: {list(self.columns)} names neither 'source' nor 'target'")


class Reader(Protocol):
    """One format of pairs."""

    def accepts(self, spec: str) -> bool: ...

    def files(self, spec: str) -> list[Path]:
        """The files behind a spec."""
        ...

    def read(self, spec: str, reading: Reading) -> Iterator[Example]:
        """The pairs; bad lines are left out."""
        ...

    def sources(self, spec: str | IO[bytes], name: str | None, reading: Reading) -> Iterator[Example]:
        """The sources alone, exactly one for each line."""
        ...


readers: Registry[Reader] = Registry("reader", __name__)


def reader_of(spec: str) -> Reader:
    """The reader that takes a spec."""
    for name in sorted(readers.names, key=lambda name: name == FALLBACK):
        reader = readers[name]()
        if reader.accepts(spec):
            return reader
    raise UserError(f"'{spec}': no reader takes this (there is {', '.join(readers.names)})")


def read_pairs(
    spec: str | Path,
    *,
    columns: Sequence[str] = ("source", "target"),
    extra_targets: bool = False,
    on_error: OnError = "stop",
    tally: Tally | None = None,
) -> Iterator[Example]:
    """The pairs of a file of any format, in order, each with its place.

    With `extra_targets`, all columns after the named ones are further references. A line too long to be kept whole
    gives an Example with `cut` set. With on_error="skip" bad lines are left out and counted in the tally.
    """
    reading = Reading(tuple(columns), extra_targets, on_error, Tally() if tally is None else tally)
    return reader_of(str(spec)).read(str(spec), reading)


def read_sources(spec: str | Path, *, on_error: OnError = "stop", tally: Tally | None = None) -> Iterator[Example]:
    """What to predict from: exactly one Example for each line, in order; a blank or skipped one has an empty source."""
    reading = Reading(("source",), False, on_error, Tally() if tally is None else tally)
    return reader_of(str(spec)).sources(str(spec), None, reading)


def files_of(spec: str | Path) -> list[Path]:
    """The files behind a spec; the standard input is none."""
    return [path for path in reader_of(str(spec)).files(str(spec)) if str(path) != "-"]


# -- for the readers themselves ------------------------------------------------------------------------------------


def sides(spec: str) -> list[str]:
    """The comma-separated paths of a spec; a comma in the name of a file that exists separates nothing."""
    if "," not in spec or Path(spec).exists():
        return [spec]
    return [side.strip() for side in spec.split(",")]


def examples(
    lines: Iterable[Line], parse: Callable[[Line], Example], file: str, reading: Reading, keep: bool
) -> Iterator[Example]:
    """One Example from each line; bad lines become empty ones where `keep` asks for one for every line."""
    for line in lines:
        if not line.bad:
            try:
                example = parse(line)
            except BadLine as bad:
                reject(bad, file, line.number, reading.on_error, reading.tally)
            else:
                yield example
                continue
        if keep:
            yield Example("", file=file, line=line.number, source_truncated=line.cut)
