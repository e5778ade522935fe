"""A Parquet file: columns with names and types, read batch by batch.

Columns are found by name or, where data.columns is a list, by the names of the roles (source, target) if the file has
them all, else by position. Numbers and dates are read as the texts that people write, see cells.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from dragoman.core.errors import DataError, MissingExtra
from dragoman.data.cells import cell_text
from dragoman.data.columns import Columns
from dragoman.data.lines import LINE_LIMIT, BadLine, open_binary, reject_line
from dragoman.data.readers import ReadOptions, Row, TableReader, readers, split_spec

if TYPE_CHECKING:
    from types import ModuleType

BATCH_ROWS = 256
MAX_COLUMNS = 1_000
MAX_CHUNK_BYTES, MAX_RATIO = 256 << 20, 1_000  # unpacked bytes of a column chunk; a larger one by its packed size


class ArrowRow(NamedTuple):
    """A row of a record batch, so that a file can be written with the same types."""

    batch: Any
    position: int

    def values(self) -> list[Any]:
        """The cells as Python values."""
        return [_to_python(self.batch.column(i).slice(self.position, 1))[0] for i in range(self.batch.num_columns)]


@readers.register("parquet")
class Parquet(TableReader):
    """A table of typed columns."""

    has_schema = True
    pads_rows = True

    def accepts(self, spec: str) -> bool:
        return len(split_spec(spec)) == 1 and spec.lower().endswith((".parquet", ".pq"))

    def read_rows(self, spec: str | IO[bytes], name: str | None, options: ReadOptions) -> Iterator[Row]:
        """The names of the columns, then every row; cells that no role needs are blank unless all are needed."""
        file = name or (spec if isinstance(spec, str) else "<stdin>")
        pq = import_parquet()
        with ExitStack() as stack, _explain_damage(file):
            stream = stack.enter_context(open_binary(spec)) if isinstance(spec, str) else spec
            table = pq.ParquetFile(stream, pre_buffer=False, thrift_container_size_limit=100_000)
            _check_sizes(table.metadata, file)
            names = list(table.schema_arrow.names)
            if len(set(names)) < len(names):
                raise DataError(f"columns have the same name ({', '.join(names[:20])}). Give each its own", file)
            yield Row(names, 0)
            wanted = None if options.needs_all_cells else _needed(options.columns, names)
            number = 0
            for batch in table.iter_batches(BATCH_ROWS, columns=wanted, use_threads=False):
                texts = {n: _to_python(batch.column(n)) for n in batch.schema.names}
                blank = [""] * batch.num_rows
                for index, values in enumerate(zip(*(texts.get(n, blank) for n in names), strict=True)):
                    number += 1
                    yield _to_row(list(values), number, file, options, ArrowRow(batch, index))


def _to_row(values: list[Any], number: int, file: str, options: ReadOptions, origin: ArrowRow) -> Row:
    try:
        cells = [cell_text(value) for value in values]
    except BadLine as bad:
        reject_line(bad, file, number, options.on_error, options.report)
        return Row([""] * len(values), number, False, bad.problem, origin)
    if not any(len(cell) > LINE_LIMIT for cell in cells):
        return Row(cells, number, False, "", origin)
    options.report.add("truncated", file, number)
    return Row([cell[:LINE_LIMIT] for cell in cells], number, True, "", origin)


def _needed(columns: Columns, names: list[str]) -> list[str] | None:
    """The columns to read; None for all."""
    wanted = columns.names or columns.roles
    return [name for name in names if name in wanted] if set(wanted) <= set(names) else None


def _to_python(column: Any) -> list[Any]:
    """The values of a column; those that Python has no type for (nanoseconds) as texts."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        raise
    except ValueError:
        return list(column.cast("string").to_pylist())


def _check_sizes(metadata: Any, file: str) -> None:
    """Raise DataError for a file that claims more than a table of pairs has."""
    if metadata.num_columns > MAX_COLUMNS:
        raise DataError(f"there are {metadata.num_columns:,} columns; at most {MAX_COLUMNS:,} are read", file)
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(index)
            unpacked, packed = chunk.total_uncompressed_size, chunk.total_compressed_size
            if unpacked > max(MAX_CHUNK_BYTES, MAX_RATIO * packed):
                problem = f"column '{chunk.path_in_schema[:50]}' unpacks to {unpacked:,} bytes from {packed:,}"
                raise DataError(f"{problem}, which is too much. Write smaller row groups", file)


@contextmanager
def _explain_damage(file: str) -> Iterator[None]:
    """Turn what pyarrow raises for a damaged file into a DataError."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError, OverflowError, IndexError, KeyError) as error:
        reason = str(error).split("\n", 1)[0][:200]
        raise DataError(f"this is no Parquet file, or a damaged one ({reason}). Write it again", file) from None


def import_parquet() -> ModuleType:
    """The module pyarrow.parquet; MissingExtra if it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "office", "reading and writing Parquet files") from None
    module: ModuleType = pyarrow.parquet
    return module
