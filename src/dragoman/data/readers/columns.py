"""Propose which column of a file is the source and which the target, and say so in one sentence.

    first rows ─header or not→ names ─names, then contents→ roles ─→ ColumnProposal

Names decide first (ipa is a target, word is a source), then what is certain by content: numbers and ids are ignored,
language codes are tags, morphological features belong to the source, a transcription comes after its word. Whatever is
left keeps the order of the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dragoman.core.errors import DataError
from dragoman.data.cells import cell_text
from dragoman.data.column_names import (
    KNOWN_NAMES,
    LANGUAGE_CODES,
    LANGUAGE_NAMES,
    is_header,
    named_role,
    normalize_name,
)
from dragoman.data.column_profile import ColumnProfile, profile_column
from dragoman.data.columns import ROLES, Columns, ColumnsLike
from dragoman.data.lines import BadLine, ReadReport
from dragoman.data.readers import ReadOptions, Row, TableReader, find_reader, readers

SAMPLED_ROWS = 300
SCANNED_ROWS = 200_000  # of a file in which a sample names one language only
MAX_NAMES_SHOWN = 12
SPREADSHEET_FORMATS = ("csv", "xlsx")  # whose tables mostly have a header row
CHANGE = "(say --columns to change)"


@dataclass(frozen=True)
class ColumnProposal:
    """Which columns to read, and the sentence that says so."""

    columns: list[str] | dict[str, str | list[str]]  # as data.columns has them
    names: tuple[str, ...]  # of the file's columns: those of its header, or "column 1"
    has_header: bool
    is_certain: bool  # whether names or contents decided; else it was the order of the file
    sentence: str


def propose_columns(spec: str, *, rows: int = SAMPLED_ROWS) -> ColumnProposal:
    """Look at the first rows of a file; DataError if it cannot be read."""
    reader = find_reader(spec)
    if not isinstance(reader, TableReader):
        sentence = f"two files side by side; taking the first as the source {CHANGE}"
        return ColumnProposal(["source", "target"], ("source", "target"), False, True, sentence)
    names, cells = _read_sample(reader, spec, rows)
    if isinstance(reader, readers["jsonl"]) and {"source", "text"} & set(names or ()):  # type: ignore[arg-type]
        return _propose_keys(names or [])
    width = _width(reader, cells) if names is None else len(names)
    if names is None and cells and _has_header(reader, cells, width):
        names, cells = [cell.strip() for cell in cells[0]], cells[1:]
        names += [""] * (width - len(names))
        width = len(names)
    columns = [[row[i] if i < len(row) else "" for row in cells] for i in range(width)]
    profiles = [profile_column(column) for column in columns]
    roles, is_certain = _assign_roles(names, profiles)
    shown = tuple(names or (f"column {i + 1}" for i in range(width)))
    for i, role in enumerate(roles):
        if role == "target_lang" and "source_lang" not in roles and profiles[i].distinct == 1:
            roles[i] = "target_lang" if _has_other_value(reader, spec, names, i, columns[i]) else "-"
    if names is not None:
        _check_names(spec, names, roles)
        used = [(role, name) for role, name in zip(roles, names, strict=True) if role != "-"]
        proposed = Columns(tuple(role for role, _ in used), tuple(name for _, name in used))
    else:
        proposed = Columns(tuple(roles))
    return ColumnProposal(
        proposed.value, shown, names is not None, is_certain, _sentence(shown, roles, names, is_certain)
    )


def fit_columns(spec: str, trained: ColumnsLike) -> ColumnProposal | None:
    """None if a model's columns fit a file; else those proposed for the file.

    Names fit where the file has them. Positions fit a file without a header and with as many columns; more may be
    further references, unless it is certain that they are something else.
    """
    columns = Columns.parse(trained)
    if not isinstance(find_reader(spec), TableReader):
        return None
    proposal = propose_columns(spec)
    names = proposal.names
    if columns.names is not None:
        return None if proposal.has_header and set(columns.names) <= set(names) else proposal
    if isinstance(proposal.columns, list):  # no header, or JSON lines with our own keys
        may_be_references = len(names) > len(columns.roles) and not proposal.is_certain
        return None if proposal.has_header or may_be_references or len(names) == len(columns.roles) else proposal
    roles = {role for role in columns.roles if role != "-"}
    return None if {normalize_name(name) for name in names} >= roles and len(names) == len(columns.roles) else proposal


# -- the sample --------------------------------------------------------------------------------------------------------


def _read_sample(reader: TableReader, spec: str, count: int) -> tuple[list[str] | None, list[list[str]]]:
    """The names of a schema or of JSON keys, if there are any, and the cells of the first rows that are not blank."""
    options = ReadOptions(on_error="skip", report=ReadReport(), needs_all_cells=True)
    rows = islice(reader.read_rows(spec, None, options), count + 1)
    names: list[str] | None = None
    if reader.has_schema:
        first = next(rows, None)
        names = [] if first is None else first.cells
    used = [row for row in rows if not row.error and any(cell.strip() for cell in row.cells)]
    if any(isinstance(row.values, dict) for row in used):
        names = list(dict.fromkeys(key for row in used for key in row.values))
        return names, [[_json_text(row, name) for name in names] for row in used]
    return names, [row.cells for row in used]


def _width(reader: TableReader, rows: Sequence[Sequence[str]]) -> int:
    """The number of columns; lines that have more than nearly all others have further references."""
    widths = sorted(map(len, rows)) or [0]
    return widths[-1] if reader.pads_rows or len(widths) == 1 else widths[len(widths) // 20]


def _json_text(row: Row, key: str) -> str:
    value: Any = row.values.get(key)
    try:
        return cell_text(value[0] if isinstance(value, list) and value else value)
    except BadLine:
        return ""


def _propose_keys(names: Sequence[str]) -> ColumnProposal:
    """JSON lines with our own keys are read by these, languages and lists of targets included."""
    roles = ["source", *(role for role in ("second_source", "target") if role in names)]
    text = "source" if "source" in names else "text"
    what = f"{text} → target" if "target" in roles else f"{text}, without targets"
    sentence = f"keys: {_join_names(names)}; taking {what} {CHANGE}"
    return ColumnProposal([*roles], tuple(names), True, True, sentence)


def _has_other_value(reader: TableReader, spec: str, names: Sequence[str] | None, column: int, seen: list[str]) -> bool:
    """Whether a column with one value in the sample has another further down: files are often sorted by language."""
    first = next((cell.strip() for cell in seen if cell.strip()), "")
    options = ReadOptions(on_error="skip", report=ReadReport(), needs_all_cells=True)
    rows = islice(reader.read_rows(spec, None, options), 1 if names is not None else 0, SCANNED_ROWS)
    for row in rows:
        if isinstance(row.values, dict):
            cell = _json_text(row, (names or [])[column])
        else:
            cell = row.cells[column] if column < len(row.cells) else ""
        if cell.strip() and cell.strip() not in (first, (names or [""] * (column + 1))[column]):
            return True
    return False


# -- header or not -----------------------------------------------------------------------------------------------------


def _has_header(reader: TableReader, rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether the first row names the columns: by its words, or because the rows below are of another kind."""
    first, rest = rows[0], rows[1:]
    if is_header(first):
        return True
    named = [normalize_name(cell) for cell in first if cell.strip()]
    if not named or len(set(named)) < len(named) or not all(_is_name(cell) for cell in first if cell.strip()):
        return False
    below = [[row[i] for row in rest if i < len(row)] for i in range(width)]
    if any(
        cell.strip() and cell in column for cell, column in zip(first, below, strict=False)
    ):  # a pair that comes again
        return False
    known = sum(name in KNOWN_NAMES for name in named)
    is_spreadsheet = any(isinstance(reader, readers[name]) for name in SPREADSHEET_FORMATS)  # type: ignore[arg-type]
    if known >= (1 if is_spreadsheet else 2) and 2 * known >= (1 if is_spreadsheet else len(named)):
        return True
    if len(named) > 1 and all(name in LANGUAGE_NAMES for name in named):
        return True
    profiles = [profile_column(column) for column in below]
    if len(named) > 1 and all(name in LANGUAGE_CODES for name in named) and all(p.words > 3 for p in profiles):
        return True
    return any(_is_other_kind(cell, profile) for cell, profile in zip(first, profiles, strict=False))


def _is_name(cell: str) -> bool:
    """Whether a cell may be the name of a column."""
    return len(cell) <= 40 and not re.fullmatch(r"[\W\d]*", cell) and len(cell.split()) <= 4


def _is_other_kind(cell: str, below: ColumnProfile) -> bool:
    """Whether a first cell is a name above numbers, language codes or features."""
    own = profile_column([cell])
    if below.cells < 5 or not cell.strip():
        return False
    return (
        (below.is_number and not own.numbers)
        or (below.is_language and not own.language_codes and named_role(cell) is not None)
        or (below.is_features and not own.features)
    )


# -- roles -------------------------------------------------------------------------------------------------------------


def _assign_roles(names: Sequence[str] | None, profiles: Sequence[ColumnProfile]) -> tuple[list[str], bool]:
    """The role of each column, and whether names or contents decided."""
    kinds = [_column_kind(name, profile) for name, profile in zip(names or [""] * len(profiles), profiles, strict=True)]
    if names is not None:
        literal = [normalize_name(name) if name.strip() != "-" else "-" for name in names]
        if "source" in literal and all(name in ROLES for name in literal):
            return literal, True
    texts = [i for i, kind in enumerate(kinds) if kind in ("source", "target", "text")]
    if len(texts) < 2:  # a count or features may be all that there is to predict
        spare = [i for i, kind in enumerate(kinds) if kind not in ("source", "target", "text")]
        preferred = sorted(spare, key=lambda i: ("features", "ignored", "number").index(_spare_kind(kinds[i])))
        texts = sorted([*texts, *preferred[: 2 - len(texts)]])
        for i in texts:
            kinds[i] = kinds[i] if kinds[i] in ("source", "target") else "text"
    roles = ["-"] * len(kinds)
    if not texts:
        return ["source"], False
    source, target, is_certain = _source_and_target(texts, kinds, profiles)
    roles[source] = "source"
    if target is not None:
        roles[target] = "target"
        for i, kind in enumerate(kinds):
            if kind == "features" and roles[i] == "-":
                roles[i] = "source"
    _assign_languages(roles, kinds)
    return roles, is_certain


def _column_kind(name: str, profile: ColumnProfile) -> str:
    """What a column holds: a role by its name, or text, number, language, features."""
    named = named_role(name)
    if named == "count" or (named in (None, "ignored") and profile.is_number):
        return "number"
    if named is not None:
        return named
    if profile.is_features:
        return "features"
    return "language" if profile.is_language else "text"


def _spare_kind(kind: str) -> str:
    return kind if kind in ("features", "ignored") else "number"


def _source_and_target(
    texts: Sequence[int], kinds: Sequence[str], profiles: Sequence[ColumnProfile]
) -> tuple[int, int | None, bool]:
    """The columns of source and target among those with text, and whether that is certain."""
    if len(texts) == 1:
        return texts[0], None, True
    sources = [i for i in texts if kinds[i] == "source"]
    targets = [i for i in texts if kinds[i] == "target"]
    if sources and targets:
        return sources[0], targets[0], len(sources) == len(targets) == 1
    if sources:
        other = next((i for i in texts if i != sources[0]), None)
        return sources[0], other, len(texts) == 2
    if targets:
        others = [i for i in texts if i not in targets]
        if others:
            return others[0], targets[0], len(others) == len(targets) == 1
    first, second = texts[0], texts[1]
    if profiles[first].is_pronunciation_of(profiles[second]):
        return second, first, True
    return first, second, len(texts) == 2


def _assign_languages(roles: list[str], kinds: Sequence[str]) -> None:
    """Columns of languages: by name, else one is the target's and, of two, the first is the source's."""
    for i, kind in enumerate(kinds):
        if kind in ("source_lang", "target_lang") and roles[i] == "-" and kind not in roles:
            roles[i] = kind
    free = [i for i, kind in enumerate(kinds) if kind == "language" and roles[i] == "-"]
    wanted = [role for role in ("source_lang", "target_lang") if role not in roles]
    if len(free) == 1 and "target_lang" in wanted:
        roles[free[0]] = "target_lang"
    elif len(free) == len(wanted) == 2:
        for i, role in zip(free, wanted, strict=True):
            roles[i] = role


# -- the sentence ------------------------------------------------------------------------------------------------------


def _check_names(spec: str, names: Sequence[str], roles: Sequence[str]) -> None:
    """Raise DataError if a column that is needed shares its name with another."""
    counts = Counter(names)
    for name, role in zip(names, roles, strict=True):
        if role != "-" and counts[name] > 1:
            called = f"called '{name}'" if name else "without a name"
            raise DataError(f"{counts[name]} columns are {called}; give each a name of its own in the header", spec)


def _sentence(shown: Sequence[str], roles: Sequence[str], names: Sequence[str] | None, is_certain: bool) -> str:
    def joined(role: str) -> str:
        return " + ".join(name for name, other in zip(shown, roles, strict=False) if other == role)

    count = f"{len(shown)} column{'' if len(shown) == 1 else 's'}"
    have = f"columns: {_join_names(shown)}" if names is not None else f"{count} without a header row"
    if "target" not in roles:
        return f"{have}; taking {joined('source') or 'each line'} as texts without targets {CHANGE}"
    languages = [joined(role) for role in ("source_lang", "target_lang") if role in roles]
    tags = f", tagged by {' and '.join(languages)}" if languages else ""
    order = "" if is_certain else ", the first that may be source and target"
    return f"{have}; taking {joined('source')} → {joined('target')}{tags}{order} {CHANGE}"


def _join_names(names: Sequence[str]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > MAX_NAMES_SHOWN else ""
    return ", ".join(name or "''" for name in names[:MAX_NAMES_SHOWN]) + more
