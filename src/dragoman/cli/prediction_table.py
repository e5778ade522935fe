"""The result columns of `dragoman predict`, and the tables that they become columns of."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from dragoman.core.errors import UserError
from dragoman.data.lines import format_count

if TYPE_CHECKING:
    from dragoman.core.types import Example
    from dragoman.data.readers import Row
    from dragoman.data.readers.columns import ColumnProposal
    from dragoman.data.writers import FileFormat, LineFormat, Results
    from dragoman.inference.prediction import Prediction
    from dragoman.text.codec import Codec


INPUT_KEYS = {"source", "second_source", "source_lang", "target_lang", "text"}  # JSON lines of these alone are lines


class ResultColumns:
    """prediction, then, where requested, its probability and why it deserves a look; of n-best lists, all n.

    It sees the sources as they are read, and keeps what the model has never seen in each until its prediction comes.
    """

    def __init__(
        self,
        codec: Codec,
        probability: bool,
        check: bool,
        nbest: int,
        *,
        continues_text: bool = False,
        counts_unseen: bool = True,
    ) -> None:
        """Count what is unseen for the notices, unless others do."""
        from dragoman.text.unseen import UnseenCounter

        side: Literal["source", "target"] = "target" if continues_text else "source"
        self.probability, self.check, self.nbest = probability, check, nbest
        self._counts_unseen = counts_unseen or check
        self.target_tokenizer = codec.target.kind
        self._unseen, self._of_source = (UnseenCounter(codec, side=side) for _ in range(2))
        self._waiting: deque[Sequence[str]] = deque()
        self._formulas = 0  # predictions that look like formulas
        self.count, self.doubtful = 0, 0  # predictions, and those that deserve a look

    @property
    def types(self) -> list[tuple[str, type]]:
        """The name and the type of each column."""
        columns: list[tuple[str, type]] = []
        for rank in range(1, self.nbest + 1):
            number = f"_{rank}" if rank > 1 else ""
            columns.append((f"prediction{number}", str))
            if self.probability:
                columns.append((f"probability{number}", float))
        return [*columns, ("check", str)] if self.check else columns

    @property
    def names(self) -> list[str]:
        """The name of each column."""
        return [name for name, _ in self.types]

    def watch(self, sources: Iterable[Example]) -> Iterator[Example]:
        """Yield sources unchanged, and keep what is unseen in them."""
        for source in sources:
            units: list[str] = []
            if self._counts_unseen and self._unseen.add(source) and self.check:
                self._of_source.report.counts.clear()
                self._of_source.add(source)
                units = list(self._of_source.report.counts)
            self._waiting.append(units)
            yield source

    def discard_waiting(self) -> None:
        """Forget sources whose predictions are made elsewhere."""
        self._waiting.clear()

    def counts(self) -> dict[str, int]:
        """What was counted, to be added to the counts of others."""
        return {"predictions": self.count, "doubtful": self.doubtful, "formulas": int(self._formulas)}

    def add_counts(self, counts: Mapping[str, int]) -> None:
        """Add what others have counted."""
        self.count += counts.get("predictions", 0)
        self.doubtful += counts.get("doubtful", 0)
        self._formulas += counts.get("formulas", 0)

    def further(self, prediction: Prediction) -> dict[str, str | float]:
        """The columns after the prediction of the next source, by name."""
        from dragoman.inference.output_checks import find_doubts, output_probability

        unseen = self._waiting.popleft()
        self.count += 1
        further: dict[str, str | float] = {}
        if self.probability:
            further["probability"] = self._round(output_probability(prediction))
        if self.check:
            further["check"] = "; ".join(find_doubts(prediction, self.target_tokenizer, unseen))
            self.doubtful += bool(further["check"])
        return further

    def results(self, prediction: Prediction) -> Results:
        """All columns of the next source."""
        from dragoman.data.writers import FORMULA_STARTS
        from dragoman.inference.output_checks import output_probability

        further = self.further(prediction)
        ranked = [prediction, *prediction.alternatives][: self.nbest]
        self._formulas += any(p.text.startswith(FORMULA_STARTS) for p in ranked)
        results: list[str | float] = []
        for p in ranked:
            results.append(p.text)
            if self.probability:
                results.append(self._round(output_probability(p)))
        results += [""] * (self.nbest - len(ranked)) * (1 + self.probability)
        return [*results, further["check"]] if self.check else results

    def _round(self, probability: float) -> float:
        return float(f"{probability:.6g}")

    def summary(self, output: Path) -> str:
        """How many predictions are in the output, and how many of them deserve a look."""
        doubtful = f", {self.doubtful:,} to check," if self.check else ""
        return f"{format_count(self.count, 'prediction')}{doubtful} in {output}"

    def notices(self, file: str, kind: str = "") -> Iterator[str]:
        """Yield what is to be said at the end about the sources, and about cells that look like formulas."""
        if sentence := self._unseen.report.sentence():
            yield f"{'<stdin>' if file == '-' else file}: {sentence}"
        if self._formulas and kind == "csv":
            yield (
                f"{self._formulas:,} predictions begin with = + - or @, which spreadsheet programs take for formulas "
                "in a CSV file; in .xlsx they are texts"
            )


@dataclass
class PredictionTable:
    """A table to write: its kind, the names of all columns if it has a header, and the results after them."""

    kind: str
    results: ResultColumns
    header: Sequence[str] | None
    names: Sequence[str]
    keys: Sequence[str] | None
    delimiter: str = ","

    @classmethod
    def open(
        cls,
        file: str,
        proposal: ColumnProposal | None,
        format: str | None,
        output: Path | None,
        results: ResultColumns,
    ) -> PredictionTable | None:
        """The table for an input, by the name of the output or, for a table of several columns, as the input."""
        from dragoman.data.writers import FILE_KINDS, kind_of

        own = None
        if proposal is not None and len(proposal.names) > 1 and set(proposal.names) - INPUT_KEYS:
            own = kind_of(file.partition("#")[0].removesuffix(".gz"))
        wanted = None if output is None else kind_of(output)
        if format is not None:
            if wanted in FILE_KINDS:
                raise UserError(f"--format {format} is text, and {output} is a table; leave out --format")
            return None
        if output is not None and wanted is None and output.suffix:
            return None  # results.txt: lines
        kind = wanted or own
        if kind is None:
            return None
        if kind in FILE_KINDS and output is None:
            raise UserError(f"a table like {file} is no text to print: name a file with --output, or say --format text")
        return cls._of_kind(kind, own, file, proposal, results)

    @classmethod
    def _of_kind(
        cls,
        kind: str,
        own: str | None,
        file: str,
        proposal: ColumnProposal | None,
        results: ResultColumns,
    ) -> PredictionTable:
        names = ["source"] if proposal is None else list(proposal.names)
        has_header = proposal is not None and proposal.has_header
        header = names if has_header or (kind != own and kind != "tsv") else None
        keys = names if proposal is not None and proposal.has_header else None
        return cls(kind, results, header, names, keys, _delimiter(file) if own == kind == "csv" else ",")

    @property
    def is_lines(self) -> bool:
        """Whether the table is written line by line."""
        from dragoman.data.writers import FILE_KINDS

        return self.kind not in FILE_KINDS

    def lines(self, answered: Iterable[tuple[Row, Prediction]], *, continues: bool = False) -> Iterator[str]:
        """Yield the text of each row with its results; the header comes with the first, or alone.

        A table that `continues` another one has no header.
        """
        from dragoman.data.writers.lines import CSVFormat, JSONLinesFormat, TSVFormat

        names, width = self.results.names, len(self.names)
        table: LineFormat
        if self.kind == "jsonl":
            table = JSONLinesFormat(self.names, names)
        elif self.kind == "csv":
            table = CSVFormat(self.header, names, width, self.keys, self.delimiter)
        else:
            table = TSVFormat(self.header, names, width, self.keys)
        header = None if continues else table.header()
        for row, prediction in answered:
            line = table.line(row, self.results.results(prediction))
            yield line if header is None else f"{header}\n{line}"
            header = None
        if header is not None:
            yield header

    def rows(self, answered: Iterable[tuple[Row, Prediction]]) -> Iterator[tuple[Row, Results]]:
        """Yield each row with its results."""
        return ((row, self.results.results(prediction)) for row, prediction in answered)

    @property
    def open_format(self) -> Callable[[IO[bytes]], FileFormat]:
        """The function that begins the file in a stream."""
        from dragoman.data.writers.parquet import ParquetFormat
        from dragoman.data.writers.xlsx import XLSXFormat

        if self.kind == "xlsx":
            return lambda stream: XLSXFormat(stream, self.header, self.results.names, len(self.names))
        return lambda stream: ParquetFormat(stream, self.names, self.results.types, self.keys)

    @property
    def journal_format(self) -> LineFormat:
        """The lines that keep the results of a file that is not complete."""
        from dragoman.data.writers.lines import JSONLinesFormat

        return JSONLinesFormat(self.names, self.results.names)


def _delimiter(file: str) -> str:
    """The separator of a CSV file."""
    from itertools import islice

    from dragoman.data.lines import read_lines
    from dragoman.data.readers.csv import SNIFFED_LINES, sniff_delimiter

    return sniff_delimiter(line.text for line in islice(read_lines(file, on_error="skip"), SNIFFED_LINES))
