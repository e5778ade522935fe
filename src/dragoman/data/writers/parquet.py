"""A Parquet file: the record batches that were read, with the results as further columns; other rows as texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

from dragoman.data.readers import Row
from dragoman.data.readers.parquet import ArrowRow, import_parquet
from dragoman.data.writers import Results, row_texts, unique_names

BUFFERED_ROWS = 1024


class ParquetFormat:
    """Writes rows in batches; the types of a Parquet input are kept."""

    def __init__(
        self,
        stream: IO[bytes],
        header: Sequence[str],
        results: Sequence[tuple[str, type]],
        keys: Sequence[str] | None,
    ) -> None:
        self.stream, self.names, self.keys, self.pq = stream, list(header), keys, import_parquet()
        self.result_names = unique_names(header, [name for name, _ in results])
        self.result_types = [kind for _, kind in results]
        self.rows: list[Row] = []
        self.results: list[Results] = []
        self.writer: Any = None

    def write(self, row: Row, results: Results) -> None:
        """Add a row and its results."""
        if self.rows and (self._batch_of(self.rows[0]) is not self._batch_of(row) or len(self.rows) >= BUFFERED_ROWS):
            self._flush()
        self.rows.append(row)
        self.results.append(results)

    def close(self) -> None:
        """Complete the file, which has a schema even without rows."""
        self._flush()
        self.writer.close()

    def _batch_of(self, row: Row) -> Any:
        return row.values.batch if isinstance(row.values, ArrowRow) else None

    def _flush(self) -> None:
        import pyarrow

        if not self.rows and self.writer is not None:
            return
        table = self._input_table(pyarrow)
        for i, (name, kind) in enumerate(zip(self.result_names, self.result_types, strict=True)):
            arrow_type = pyarrow.float64() if kind is float else pyarrow.string()
            values = [results[i] if results[i] != "" or kind is str else None for results in self.results]
            table = table.append_column(name, pyarrow.array(values, arrow_type))
        if self.writer is None:
            self.writer = self.pq.ParquetWriter(self.stream, table.schema)
        self.writer.write_table(table)
        self.rows, self.results = [], []

    def _input_table(self, pyarrow: Any) -> Any:
        """The columns of the buffered rows: a slice of the batch that they come from, or texts."""
        batch = self._batch_of(self.rows[0]) if self.rows else None
        if batch is not None:
            return pyarrow.Table.from_batches([batch.slice(self.rows[0].values.position, len(self.rows))])
        texts = [row_texts(row, len(self.names), self.keys) for row in self.rows]
        columns = list(zip(*texts, strict=True)) if texts else [()] * len(self.names)
        return pyarrow.table({n: pyarrow.array(c, pyarrow.string()) for n, c in zip(self.names, columns, strict=True)})
