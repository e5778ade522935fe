"""A workbook with one sheet, written row by row: texts are inline strings and never formulas.

    [Content_Types].xml   _rels/.rels   xl/workbook.xml   xl/_rels/workbook.xml.rels   the sheet   xl/styles.xml

Number formats of the input are kept; fonts, colors, widths and formulas (of which we read the values) are not.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import IO, Any
from xml.sax.saxutils import escape, quoteattr

from dragoman.core.errors import DataError
from dragoman.data.cells import EPOCHS, NumberCell, cell_text
from dragoman.data.readers import Row
from dragoman.data.writers import Results, row_values, unique_names

MAX_ROWS, MAX_CELL_CHARACTERS = 1_048_576, 32_767  # of a spreadsheet program
MAX_EXACT = 2**53  # larger whole numbers would lose digits, and are written as texts
DAYS_1900_TO_1904 = 1_462

_NAMESPACE = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATIONSHIPS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_PARTS = {
    "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Default Extension="xml" ContentType="application/xml"/>'
    f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPE}.sheet.main+xml"/>'
    f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{_TYPE}.worksheet+xml"/>'
    f'<Override PartName="/xl/styles.xml" ContentType="{_TYPE}.styles+xml"/></Types>',
    "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="rId1" '
    f'Type="{_RELATIONSHIPS}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{_NAMESPACE}" xmlns:r="{_RELATIONSHIPS}"><sheets>'
    '<sheet name="Predictions" sheetId="1" r:id="rId1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{_RELATIONSHIPS}/worksheet" Target="worksheets/sheet1.xml"/>'
    f'<Relationship Id="rId2" Type="{_RELATIONSHIPS}/styles" Target="styles.xml"/></Relationships>',
}
# What XML cannot hold, and what a reader would take for the escape of it.
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\r\ud800-\udfff\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)")


class XLSXFormat:
    """Writes rows into a workbook."""

    def __init__(self, stream: IO[bytes], header: Sequence[str] | None, results: Sequence[str], width: int):
        self.zip = zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED)
        for name, text in _PARTS.items():
            self.zip.writestr(zipfile.ZipInfo(name), _HEAD + text, zipfile.ZIP_DEFLATED)
        self.sheet = self.zip.open(zipfile.ZipInfo("xl/worksheets/sheet1.xml"), "w", force_zip64=True)
        self.sheet.write(f'{_HEAD}<worksheet xmlns="{_NAMESPACE}"><sheetData>'.encode())
        self.formats: dict[str, int] = {"General": 0}  # number format → style
        self.keys, self.width, self.row_number = header, width, 0
        if header is not None:
            self._write([*header, *unique_names(header, results)])

    def write(self, row: Row, results: Results) -> None:
        """Add a row and its results, notes beside the table after these; DataError if a sheet has no room for it."""
        values = row_values(row, self.keys)
        cells, notes = values[: self.width], values[self.width :]
        self._write([*cells, *[None] * (self.width - len(cells)), *results, *notes])

    def _write(self, values: Sequence[Any]) -> None:
        self.row_number += 1
        if self.row_number > MAX_ROWS:
            raise DataError(f"a sheet has {MAX_ROWS:,} rows, and there are more results; write .csv or .tsv")
        cells = "".join(self._cell(column, value) for column, value in enumerate(values, 1))
        self.sheet.write(f'<row r="{self.row_number}">{cells}</row>'.encode())

    def _cell(self, column: int, value: Any) -> str:
        at = f'<c r="{column_name(column)}{self.row_number}"'
        if value is None or value == "":
            return ""
        if isinstance(value, bool):
            return f'{at} t="b"><v>{int(value)}</v></c>'
        if isinstance(value, date):  # a datetime, too
            value = _date_cell(value)
        if isinstance(value, NumberCell):
            shift = DAYS_1900_TO_1904 if value.counts_from_1904 and value.moment is not None else 0
            return f'{at} s="{self._style(value.format)}"><v>{value.number + shift!r}</v></c>'
        if isinstance(value, float | int | Decimal) and math.isfinite(value) and abs(float(value)) < MAX_EXACT:
            return f"{at}><v>{value}</v></c>"
        text = cell_text(value)
        if len(text) > MAX_CELL_CHARACTERS:
            problem = f"a cell has {len(text):,} characters; a spreadsheet holds {MAX_CELL_CHARACTERS:,}"
            raise DataError(f"{problem}; write .csv or .tsv")
        text = escape(_NOT_XML.sub(lambda match: f"_x{ord(match[0]):04X}_", text))
        return f'{at} t="inlineStr"><is><t xml:space="preserve">{text}</t></is></c>'

    def _style(self, format: str) -> int:
        return self.formats.setdefault(format, len(self.formats))

    def close(self) -> None:
        """Complete the workbook."""
        self.sheet.write(b"</sheetData></worksheet>")
        self.sheet.close()
        own = list(self.formats)[1:]
        formats = "".join(f'<numFmt numFmtId="{164 + i}" formatCode={quoteattr(code)}/>' for i, code in enumerate(own))
        styles = "".join(f'<xf numFmtId="{164 + i}" applyNumberFormat="1"/>' for i in range(len(own)))
        numbers = f'<numFmts count="{len(own)}">{formats}</numFmts>' if own else ""
        text = (
            f'{_HEAD}<styleSheet xmlns="{_NAMESPACE}">{numbers}<fonts count="1"><font/></fonts>'
            '<fills count="2"><fill><patternFill patternType="none"/></fill>'
            '<fill><patternFill patternType="gray125"/></fill></fills><borders count="1"><border/></borders>'
            f'<cellStyleXfs count="1"><xf/></cellStyleXfs><cellXfs count="{len(own) + 1}"><xf/>{styles}</cellXfs>'
            '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>'
        )
        self.zip.writestr(zipfile.ZipInfo("xl/styles.xml"), text, zipfile.ZIP_DEFLATED)
        self.zip.close()


def _date_cell(moment: date) -> NumberCell | str:
    """A date as the number of its days; one before 1900 or with a time zone as text."""
    if isinstance(moment, datetime):
        if moment.tzinfo is not None or moment < datetime(1900, 3, 1):
            return cell_text(moment)
        return NumberCell((moment - EPOCHS[False]).total_seconds() / 86_400, "yyyy-mm-dd hh:mm:ss")
    if moment < date(1900, 3, 1):
        return cell_text(moment)
    return NumberCell(float((moment - EPOCHS[False].date()).days), "yyyy-mm-dd")


def column_name(number: int) -> str:
    """The name of a column: 1 is A, 28 is AB."""
    name = ""
    while number:
        number, letter = divmod(number - 1, 26)
        name = chr(ord("A") + letter) + name
    return name
