"""The rows of a file of pairs: copied into files of the same kind, with all columns and the header row.

    words.csv ─rows of each part→ train.csv, valid.csv, test.csv
    a.en,a.de ───────────────────→ train.en,train.de, valid.en,valid.de, …

Lines are copied byte by byte; cells of spreadsheets and Parquet files keep their values and types. No output appears
before all are complete. Names that end with .gz are compressed.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, cast

from dragoman.core.errors import UserError, did_you_mean
from dragoman.core.files import make_folder, open_output
from dragoman.core.types import Example
from dragoman.data.columns import ROLES, Columns, ColumnsLike
from dragoman.data.lines import GZIP_MAGIC, UTF8_BOM, open_binary
from dragoman.data.readers import ReadOptions, Row, Table, TableReader, find_reader, spec_files, split_spec
from dragoman.data.readers.parquet import Parquet, import_parquet
from dragoman.data.readers.xlsx import XLSX
from dragoman.data.writers.xlsx import XLSXFormat

CHUNK_SIZE = 1 << 20
BATCH_ROWS = 10_000


def copy_rows(
    spec: str, columns: ColumnsLike, examples: Sequence[Example], outputs: Mapping[str, Iterable[int]]
) -> None:
    """Write the rows of some `examples`, which were read from `spec`, to each output."""
    check_outputs(spec, outputs)
    inputs, kind = spec_files(spec), _file_kind(spec)
    starts = _row_starts(spec, columns) if kind is None else None
    with ExitStack() as stack:
        by_side: list[list[IO[bytes]]] = [[] for _ in inputs]
        for output in outputs:
            for side, file in zip(by_side, split_spec(output), strict=True):
                make_folder(Path(file).parent)
                side.append(stack.enter_context(_open_compressed(Path(file), inputs)))
        for source, streams in zip(inputs, by_side, strict=True):
            targets: dict[int, list[IO[bytes]]] = {}
            for stream, rows in zip(streams, outputs.values(), strict=True):
                for row in rows:
                    targets.setdefault(examples[row].line, []).append(stream)
            if kind == "xlsx":
                _copy_sheet(spec, columns, streams, targets)
            elif kind == "parquet":
                _copy_batches(source, streams, targets)
            else:
                _copy_lines(source, streams, targets, starts)


def _file_kind(spec: str) -> str | None:
    """The kind of a table that is no lines: xlsx or parquet."""
    reader = find_reader(spec)
    return "xlsx" if isinstance(reader, XLSX) else "parquet" if isinstance(reader, Parquet) else None


def check_outputs(spec: str, outputs: Iterable[str]) -> None:
    """Raise UserError unless each output names files of its own, of the kind of the spec's files."""
    inputs = spec_files(spec)
    if not inputs:
        raise UserError("the standard input cannot be copied from, which takes reading it twice; save it in a file")
    seen: set[str] = set()
    for output in outputs:
        files = split_spec(output)
        if len(files) != len(inputs):
            raise UserError(f"{output}: the pairs are in {len(inputs)} files; name {len(inputs)}, joined by a comma")
        for source, file in zip(inputs, files, strict=True):
            if type(find_reader(str(source))) is not type(find_reader(file)):
                suffix = Path(source.name.removesuffix(".gz")).suffix
                raise UserError(f"{file}: the rows of {source} are copied as they are; choose a name with '{suffix}'")
            if (path := os.path.realpath(file)) in seen:
                raise UserError(f"{file}: is named for two outputs; give each a name of its own")
            seen.add(path)


def read_column(spec: str, columns: ColumnsLike, examples: Sequence[Example], name: str) -> list[str]:
    """The cell of each example in a column: a role (source_lang), a name in the header, or a number from 1 on."""
    if name in ROLES and name != "-":
        return [getattr(example, name) or "" for example in examples]
    if not isinstance(find_reader(spec), TableReader):
        raise UserError(f"there is no column '{name}' in {spec}; there is source, target")
    table = _open_whole_table(spec, columns)
    header = [cell.strip() for cell in table.header or ()]
    if name not in header and not (name.isdecimal() and int(name) > 0):
        there = ", ".join(header) or "a number from 1 on"
        raise UserError(f"{spec}: there is no column '{name}'{did_you_mean(name, header)} (there is {there})")
    position = header.index(name) if name in header else int(name) - 1
    cells = {row.line: _cell(row, name, position) for row in table.rows}
    if examples and not any(cells.get(example.line) for example in examples):
        raise UserError(f"{spec}: column '{name}' is blank in all rows; name another")
    return [cells.get(example.line, "") for example in examples]


def _cell(row: Row, name: str, position: int) -> str:
    if isinstance(row.values, dict):  # a JSON object
        return str(row.values.get(name, ""))
    return row.cells[position] if position < len(row.cells) else ""


def name_parts(spec: str, folder: Path, parts: Iterable[str]) -> dict[str, str]:
    """part → the output for it in a folder: train.tsv, or train.en,train.de."""
    suffixes = [Path(path.name.removesuffix(".gz")).suffix or ".txt" for path in spec_files(spec)]
    suffixes = [".xlsx" if suffix.lower() == ".xlsm" else suffix for suffix in suffixes]  # written without its macros
    if len(suffixes) == 2 and len(set(suffixes)) == 1:
        suffixes = [f".source{suffixes[0]}", f".target{suffixes[1]}"]
    return {part: ",".join(str(folder / f"{part}{suffix}") for suffix in suffixes) for part in parts}


def _open_whole_table(spec: str, columns: ColumnsLike) -> Table:
    """A table with all its cells, its bad rows included."""
    reader = find_reader(spec)
    assert isinstance(reader, TableReader)
    return reader.open_table(spec, None, ReadOptions(Columns.parse(columns), on_error="skip", needs_all_cells=True))


def _row_starts(spec: str, columns: ColumnsLike) -> set[int] | None:
    """The lines on which rows begin; None if each line is a row, and none a header."""
    if not isinstance(find_reader(spec), TableReader):
        return None
    return {row.line for row in _open_whole_table(spec, columns).rows}


@contextmanager
def _open_compressed(path: Path, inputs: Sequence[Path]) -> Iterator[IO[bytes]]:
    """Open an output, compressed if its name says so, without a time in it: equal rows give equal files."""
    with open_output(path, inputs) as file:
        if not path.name.endswith(".gz"):
            yield file
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as compressed:
            yield cast(IO[bytes], compressed)


def _copy_lines(
    source: Path, streams: Sequence[IO[bytes]], targets: Mapping[int, Sequence[IO[bytes]]], starts: set[int] | None
) -> None:
    """Copy each line to the streams of its row; what stands before the first row, to all."""
    current, number, is_new_line = streams, 0, True
    for piece in _read_pieces(source):
        if is_new_line:
            number += 1
            piece = piece.removeprefix(UTF8_BOM) if number == 1 else piece
            if starts is None or number in starts:
                current = targets.get(number, ())
        is_new_line = piece.endswith(b"\n")
        for stream in current:
            stream.write(piece)


def _copy_sheet(
    spec: str, columns: ColumnsLike, streams: Sequence[IO[bytes]], targets: Mapping[int, Sequence[IO[bytes]]]
) -> None:
    """Copy the rows of a sheet, and its header to all."""
    table = _open_whole_table(spec, columns)
    writers = {stream: XLSXFormat(stream, table.header, (), table.layout.width) for stream in streams}
    for row in table.rows:
        for stream in targets.get(row.line, ()):
            writers[stream].write(row, ())
    for writer in writers.values():
        writer.close()


def _copy_batches(source: Path, streams: Sequence[IO[bytes]], targets: Mapping[int, Sequence[IO[bytes]]]) -> None:
    """Copy the rows of a Parquet file, which are numbered from 1 on."""
    pq = import_parquet()
    with ExitStack() as stack:
        table = pq.ParquetFile(stack.enter_context(open_binary(source)))
        writers = {stream: stack.enter_context(pq.ParquetWriter(stream, table.schema_arrow)) for stream in streams}
        first = 1
        for batch in table.iter_batches(BATCH_ROWS):
            for stream, writer in writers.items():
                rows = [row for row in range(batch.num_rows) if stream in targets.get(first + row, ())]
                if rows:
                    writer.write_batch(batch.take(rows))
            first += batch.num_rows


def _read_pieces(path: Path) -> Iterator[bytes]:
    """The lines of a file, decompressed, long ones in pieces; the last line ends with a line break, too."""
    with ExitStack() as stack:
        file: IO[bytes] = stack.enter_context(open_binary(path))
        is_gzip = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        file.seek(0)
        stream = cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=file))) if is_gzip else file
        piece = b"\n"
        while more := stream.readline(CHUNK_SIZE):
            piece = more
            yield piece
        if not piece.endswith(b"\n"):
            yield b"\n"
