"""The values of the cells of an XLSX workbook, read row by row.

    zip ─workbook.xml→ sheets ─expat, chunk by chunk→ cells ─shared strings, number formats→ values

Only the shared strings are held in memory. What a file claims is not trusted: sizes, depth and numbers of rows and
columns are limited, and a DTD is refused.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from posixpath import join, normpath
from typing import IO, Any
from xml.parsers import expat

from dragoman.core.errors import DataError, did_you_mean
from dragoman.data.cells import NumberCell

MAX_ROWS, MAX_COLUMNS = 1_048_576, 1_000  # rows as in a spreadsheet program; columns that a table of pairs may have
MAX_PART_BYTES = 64 << 20  # of styles and the like, unpacked
MAX_STRINGS_BYTES, MAX_STRINGS = 256 << 20, 5_000_000  # of the shared strings
MAX_SHEET_BYTES = 8 << 30
MAX_RATIO = 300  # of a part's size to its packed size, where it is large: XML of tables is packed to a tenth or so
MAX_TOKEN_BYTES = 4 << 20  # between two tags
MAX_DEPTH = 50
MAX_MERGED = 100_000  # cells merged downwards
CHUNK_SIZE = 1 << 16

_NO_TEXT = {0, *range(0xD800, 0xE000)}  # NUL and surrogates
_ESCAPE = re.compile("_x([0-9A-Fa-f]{4})_")
_MERGED = re.compile(rb'<(?:\w+:)?mergeCell\s+ref="([A-Z]{1,3})(\d{1,7}):([A-Z]{1,3})(\d{1,7})"')
_BUILT_IN_FORMATS = {
    int(number): format
    for number, format in re.findall(
        r"(\d+)=(\S+)",
        "1=0 2=0.00 3=#,##0 4=#,##0.00 9=0% 10=0.00% 14=mm-dd-yy 15=d-mmm-yy 16=d-mmm 17=mmm-yy 18=h:mm 19=h:mm:ss "
        "20=h:mm 21=h:mm:ss 22=m/d/yy_h:mm 37=#,##0 38=#,##0 39=#,##0.00 40=#,##0.00 45=mm:ss 46=[h]:mm:ss 47=mmss.0",
    )
}


class Workbook:
    """The parts of an XLSX file that its cells need."""

    def __init__(self, stream: IO[bytes], file: str) -> None:
        self.file, self.zip = file, zipfile.ZipFile(stream)
        self.counts_from_1904 = False
        self.sheets: dict[str, str] = {}  # name → member of the zip
        self.members: dict[str, str] = {}  # the others, by their kind
        self._read_parts()
        self.formats = self._read_formats()
        self.strings = self._read_strings()
        self.rows_without_value: set[int] = set()  # that were parsed, with a formula whose value is not stored

    def rows(self, sheet: str) -> Iterator[tuple[int, list[Any]]]:
        """The rows of a sheet with their numbers, from 1 on; those that the file leaves out are empty."""
        if not self.sheets:
            raise DataError("there is no sheet in the spreadsheet", self.file)
        if sheet and sheet not in self.sheets:
            named = ", ".join(list(self.sheets)[:20])
            hint = did_you_mean(sheet, self.sheets)
            raise DataError(f"there is no sheet '{sheet}'{hint} (there is {named})", self.file)
        member = self.sheets[sheet] if sheet else next(iter(self.sheets.values()))
        merged = self._merged_cells(member)
        parser, expected = SheetParser(self, merged), 1
        for number, values in parser.parse(self._read(member, MAX_SHEET_BYTES)):
            for blank in range(expected, number):
                yield blank, merged.fill(blank, [])
            yield number, merged.fill(number, values)
            expected = number + 1

    def error(self, problem: str) -> DataError:
        """The error of a file that breaks the rules or a limit."""
        return DataError(f"{problem}. Save the table alone, as CSV in UTF-8", self.file)

    def _read(self, member: str, limit: int) -> Iterator[bytes]:
        """The unpacked bytes of a part; zipfile holds it to the size it declares."""
        info = self.zip.getinfo(member)
        if info.file_size > limit:
            raise self.error(f"{member} has {info.file_size:,} bytes, at most {limit:,} are read")
        if info.file_size > max(MAX_PART_BYTES, MAX_RATIO * info.compress_size):
            raise self.error(f"{member} unpacks to {info.file_size:,} bytes from {info.compress_size:,}: a zip bomb")
        with self.zip.open(info) as part:
            while chunk := part.read(CHUNK_SIZE):
                yield chunk

    def _has(self, member: str) -> bool:
        return member in self.zip.NameToInfo

    def _related(self, part: str) -> Iterator[tuple[str, str, str]]:
        """The parts that a part refers to: id, kind and member."""
        folder, _, name = part.rpartition("/")
        found: list[tuple[str, str, str]] = []

        def start(path: list[str], name: str, attributes: dict[str, str]) -> None:
            if name == "Relationship":
                kind = attributes.get("Type", "").rpartition("/")[2]
                member = normpath(join("/", folder, attributes.get("Target", ""))).lstrip("/")
                found.append((attributes.get("Id", ""), kind, member))

        relations = f"{folder}/_rels/{name}.rels".lstrip("/")
        if self._has(relations):
            self._parse(relations, start)
        return (entry for entry in found if self._has(entry[2]))

    def _read_parts(self) -> None:
        """The sheets by name, and the members with the strings and the styles."""
        found: list[tuple[str, str]] = []

        def start(path: list[str], name: str, attributes: dict[str, str]) -> None:
            if name == "sheet":
                ids = [value for key, value in attributes.items() if key.rpartition(" ")[2] == "id"]
                found.append((attributes.get("name", ""), ids[0] if ids else ""))
            elif name == "workbookPr":
                self.counts_from_1904 = attributes.get("date1904") in ("1", "true")

        main = next((member for _, kind, member in self._related("") if kind == "officeDocument"), "xl/workbook.xml")
        self._parse(main, start)
        related = list(self._related(main))
        sheets = {id: member for id, kind, member in related if kind == "worksheet"}
        self.sheets = {name: sheets[id] for name, id in found if id in sheets}
        self.members = {kind: member for _, kind, member in related}

    def _read_formats(self) -> list[str]:
        """The number format of each cell style."""
        own: dict[str, str] = {}
        formats: list[str] = []

        def start(path: list[str], name: str, attributes: dict[str, str]) -> None:
            if name == "numFmt":
                own[attributes.get("numFmtId", "")] = attributes.get("formatCode", "")
            elif name == "xf" and path[-1:] == ["cellXfs"]:
                id = attributes.get("numFmtId", "0")
                built_in = _BUILT_IN_FORMATS.get(int(id), "General") if id.isdecimal() and len(id) < 6 else "General"
                formats.append(own.get(id, built_in))

        if "styles" in self.members:
            self._parse(self.members["styles"], start)
        return formats

    def _read_strings(self) -> list[str]:
        """The shared strings; the readings of East Asian words (rPh) are left out."""
        strings: list[str] = []
        parts: list[str] = []

        def end(path: list[str], name: str) -> None:
            if name == "si":
                if len(strings) >= MAX_STRINGS:
                    raise self.error(f"there are more than {MAX_STRINGS:,} texts in the spreadsheet")
                strings.append(unescape("".join(parts)))
                parts.clear()

        def text(path: list[str], data: str) -> None:
            if path[-1] == "t" and "rPh" not in path:
                parts.append(data)

        if "sharedStrings" in self.members:
            self._parse(self.members["sharedStrings"], end=end, text=text, limit=MAX_STRINGS_BYTES)
        return strings

    def _parse(
        self,
        member: str,
        start: Callable[[list[str], str, dict[str, str]], None] | None = None,
        end: Callable[[list[str], str], None] | None = None,
        text: Callable[[list[str], str], None] | None = None,
        limit: int = MAX_PART_BYTES,
    ) -> None:
        for _ in parse_xml(self._read(member, limit), self, start, end, text):
            pass

    def _merged_cells(self, member: str) -> MergedCells:
        """The cells of a sheet that are merged downwards; they are listed after all rows."""
        merged, tail = MergedCells(), b""
        for chunk in self._read(member, MAX_SHEET_BYTES):
            data = tail + chunk
            for match in _MERGED.finditer(data):
                merged.add(*match.groups())
                if len(merged.last_rows) > MAX_MERGED:
                    raise self.error(f"more than {MAX_MERGED:,} cells are merged")
            tail = data[-100:]  # a range that is found twice is added once
        return merged


def parse_xml(
    chunks: Iterator[bytes],
    workbook: Workbook,
    start: Callable[[list[str], str, dict[str, str]], None] | None = None,
    end: Callable[[list[str], str], None] | None = None,
    text: Callable[[list[str], str], None] | None = None,
) -> Iterator[None]:
    """Parse XML chunk by chunk, and yield after each; handlers get the open elements around theirs."""
    parser, path = expat.ParserCreate(namespace_separator=" "), list[str]()

    def on_start(tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition(" ")[2]
        if start is not None:
            start(path, name, attributes)
        path.append(name)
        if len(path) > MAX_DEPTH:
            raise workbook.error("the spreadsheet is damaged: elements are nested too deeply")

    def on_end(tag: str) -> None:
        name = path.pop()
        if end is not None:
            end(path, name)

    def on_doctype(*declaration: Any) -> None:
        raise workbook.error("the spreadsheet declares a document type, which no spreadsheet program does")

    parser.StartElementHandler, parser.EndElementHandler = on_start, on_end
    parser.StartDoctypeDeclHandler = on_doctype
    if text is not None:
        parser.CharacterDataHandler = lambda data: text(path, data) if path else None
    since_tag = 0
    for chunk in chunks:
        since_tag = since_tag + len(chunk) if (at := chunk.rfind(b">")) < 0 else len(chunk) - at
        if since_tag > MAX_TOKEN_BYTES:
            raise workbook.error(f"a cell or a tag of the spreadsheet has more than {MAX_TOKEN_BYTES:,} bytes")
        parser.Parse(chunk)
        yield
    parser.Parse(b"", True)
    yield


class SheetParser:
    """Reads the rows of a sheet, chunk by chunk."""

    def __init__(self, workbook: Workbook, merged: MergedCells) -> None:
        self.workbook = workbook
        self.ready: list[tuple[int, list[Any]]] = []
        self.row_number = 0
        self.values: list[Any] = []
        self.column = 0
        self.kind = self.style = ""
        self.has_formula = False
        self.parts: list[str] = []

    def parse(self, chunks: Iterator[bytes]) -> Iterator[tuple[int, list[Any]]]:
        """The rows of the file as far as they are complete."""
        for _ in parse_xml(chunks, self.workbook, self._start, self._end, self._text):
            yield from self.ready
            self.ready.clear()

    def _start(self, path: list[str], name: str, attributes: dict[str, str]) -> None:
        if name == "c":
            at = attributes.get("r")
            self.column = column_number(at) if at else self.column + 1
            if self.column == 0:
                raise self.workbook.error(f"row {self.row_number} has a cell called '{at[:20] if at else ''}'")
            self.kind, self.style = attributes.get("t", "n"), attributes.get("s", "0")
            self.parts, self.has_formula = [], False
        elif name == "f":
            self.has_formula = True
        elif name == "row":
            number = attributes.get("r", "")
            number_given = int(number) if number.isdecimal() and len(number) < 10 else self.row_number + 1
            if not self.row_number < number_given <= MAX_ROWS:
                raise self.workbook.error(f"row {number_given:,} follows row {self.row_number:,}")
            self.row_number, self.values, self.column = number_given, [], 0

    def _text(self, path: list[str], data: str) -> None:
        is_value = path[-1] == "v" or (path[-1] == "t" and "rPh" not in path)
        if is_value and "c" in path:
            self.parts.append(data)

    def _end(self, path: list[str], name: str) -> None:
        if name == "c" and self.has_formula and not "".join(self.parts):
            self.workbook.rows_without_value.add(self.row_number)
        elif name == "c" and self.parts:
            if self.column > MAX_COLUMNS:
                raise self.workbook.error(
                    f"row {self.row_number} has a cell in column {self.column:,}; at most {MAX_COLUMNS:,} are read"
                )
            self.values.extend([None] * (self.column - len(self.values)))
            self.values[self.column - 1] = self._value("".join(self.parts))
            self.parts = []
        elif name == "row":
            self.ready.append((self.row_number, self.values))
            self.values = []

    def _value(self, text: str) -> Any:
        """The value of a cell, by its type; DataError if it has none."""
        if self.kind == "s":
            strings = self.workbook.strings
            if not (text.isdecimal() and len(text) < 10 and int(text) < len(strings)):
                raise self.workbook.error(
                    f"row {self.row_number} names the shared text {text[:20]!r}, which is missing"
                )
            return strings[int(text)]
        if self.kind == "b":
            return text.strip() == "1"
        if self.kind in ("str", "inlineStr", "e", "d"):
            return unescape(text)
        number = float(text) if len(text) < 400 else float("nan")
        if number - number != 0:
            raise self.workbook.error(f"row {self.row_number} has the number {text[:20]!r}")
        formats, style = self.workbook.formats, self.style
        index = int(style) if style.isdecimal() and len(style) < 10 else 0
        format = formats[index] if index < len(formats) else "General"
        return NumberCell(number, format, self.workbook.counts_from_1904)


@dataclass
class MergedCells:
    """Cells that are merged downwards: their value counts for the rows below, too."""

    last_rows: dict[tuple[int, int], int] = field(default_factory=dict)  # (row, column) → the last row
    open: dict[int, tuple[int, Any]] = field(default_factory=dict)  # column → (last row, value)

    def add(self, left: bytes, top: bytes, right: bytes, bottom: bytes) -> None:
        """Add a range as the sheet writes it: A2:A4."""
        column = column_number(left.decode())
        if int(bottom) > int(top) and 0 < column <= MAX_COLUMNS:
            self.last_rows[int(top), column] = min(int(bottom), MAX_ROWS)

    def fill(self, row: int, values: list[Any]) -> list[Any]:
        """The values of a row, with those of merged cells above it."""
        if not self.last_rows:
            return values
        for column, (last, value) in list(self.open.items()):
            if row > last:
                del self.open[column]
                continue
            values.extend([None] * (column - len(values)))
            if values[column - 1] is None:
                values[column - 1] = value
        for column, value in enumerate(values, 1):
            if value is not None and (row, column) in self.last_rows:
                self.open[column] = (self.last_rows[row, column], value)
        return values


def column_number(reference: str) -> int:
    """The column of a cell's name, from 1 on: C7 → 3; 0 if it has none."""
    number = 0
    for letter in reference[:4]:
        if not "A" <= letter <= "Z":
            break
        number = number * 26 + ord(letter) - ord("A") + 1
    return number


def unescape(text: str) -> str:
    """The text of a cell: _x000A_ stands for a line break."""
    if "_x" not in text:
        return text
    return _ESCAPE.sub(lambda match: match[0] if (code := int(match[1], 16)) in _NO_TEXT else chr(code), text)


@contextmanager
def explain_damage(file: str) -> Iterator[None]:
    """Turn what zipfile and expat raise for a damaged file into a DataError."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, KeyError) as error:
        if isinstance(error, RuntimeError) and "password" in str(error):
            raise DataError("the spreadsheet has a password. Save it without one", file) from None
        raise DataError(f"this is no XLSX file, or a damaged one ({error}). Save it again as .xlsx", file) from None
    except expat.ExpatError as error:
        raise DataError(f"the spreadsheet is damaged ({error}). Save it again as .xlsx, or as CSV", file) from None
    except (OSError, ValueError, OverflowError) as error:
        raise DataError(f"the spreadsheet cannot be read ({error}). Save it again as .xlsx, or as CSV", file) from None
