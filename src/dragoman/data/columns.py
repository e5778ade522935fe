"""Which column of a table plays which role in a pair.

    [source, target, "-"]                          roles by position; the file has no header row
    {source: [lemma, features], target: form}      names of columns by role, in a header row, a schema or as JSON keys

The cells of several source columns are joined with a space: lemma and features make one source. Several targets are
several references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.core.errors import UserError, did_you_mean

ROLES = ("source", "second_source", "target", "source_lang", "target_lang", "-")
REPEATABLE_ROLES = ("source", "target", "-")


@dataclass(frozen=True)
class Columns:
    """The roles of columns: of all, in order, or (with `names`, one for each role) of those with these names."""

    roles: tuple[str, ...] = ("source", "target")
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        allowed = ", ".join(ROLES)
        for role in self.roles:
            if role not in ROLES:
                raise UserError(f"columns: there is no column '{role}'{did_you_mean(role, ROLES)} (there is {allowed})")
            if role not in REPEATABLE_ROLES and self.roles.count(role) > 1:
                raise UserError(
                    f"columns: '{role}' is named twice; only 'source' (joined), 'target' (several references) and '-' "
                    "may be"
                )
        if not {"source", "target"} & set(self.roles):
            raise UserError(f"columns: {list(self.roles)} names neither 'source' nor 'target'")

    @classmethod
    def parse(cls, value: ColumnsLike) -> Columns:
        """Columns as a config has them: a list of roles, or a mapping from roles to one name or several."""
        if isinstance(value, Columns):
            return value
        if not isinstance(value, Mapping):
            return cls(tuple(value))
        pairs = [
            (role, name) for role, names in value.items() for name in ([names] if isinstance(names, str) else names)
        ]
        return cls(tuple(role for role, _ in pairs), tuple(name for _, name in pairs))

    @property
    def value(self) -> list[str] | dict[str, str | list[str]]:
        """The columns as a config has them."""
        if self.names is None:
            return list(self.roles)
        value: dict[str, Any] = {}
        for role, name in zip(self.roles, self.names, strict=True):
            names = value.setdefault(role, [])
            names.append(name)
        return {role: names[0] if len(names) == 1 else names for role, names in value.items()}

    def __contains__(self, role: str) -> bool:
        return role in self.roles

    def without_targets(self) -> Columns:
        """The same columns to predict from: what is a target is ignored."""
        if "source" not in self.roles:
            return Columns(("source",))
        if self.names is None:
            return Columns(tuple("-" if role == "target" else role for role in self.roles))
        kept = [(role, name) for role, name in zip(self.roles, self.names, strict=True) if role not in ("target", "-")]
        return Columns(tuple(role for role, _ in kept), tuple(name for _, name in kept))

    def __str__(self) -> str:
        if self.names is None:
            return ", ".join(self.roles)
        return ", ".join(f"{role} = '{name}'" for role, name in zip(self.roles, self.names, strict=True))


ColumnsLike = Columns | Sequence[str] | Mapping[Any, str | Sequence[str]]


@dataclass(frozen=True)
class ColumnLayout:
    """The positions of the cells that play each role, in rows of `width` cells."""

    source: tuple[int, ...]
    targets: tuple[int, ...] = ()
    second_source: int | None = None
    source_lang: int | None = None
    target_lang: int | None = None
    width: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether rows are source, target and nothing else."""
        return self.source == (0,) and self.targets == (1,) and self.width == 2


def layout_by_position(columns: Columns) -> ColumnLayout:
    """The layout of a table without names."""
    return _layout(columns.roles, range(len(columns.roles)), len(columns.roles))


def layout_by_name(columns: Columns, header: Sequence[str]) -> ColumnLayout:
    """The layout of a table whose columns are named; UserError if a name is missing or ambiguous."""
    assert columns.names is not None
    stripped = [name.strip() for name in header]
    for name in columns.names:
        if (count := stripped.count(name.strip())) == 1:
            continue
        if count > 1:
            raise UserError(f"{count} columns are called '{name}'; give each a name of its own")
        named = ", ".join(name or "''" for name in stripped[:MAX_NAMES_SHOWN])
        more = ", …" if len(stripped) > MAX_NAMES_SHOWN else ""
        raise UserError(f"there is no column '{name}'{did_you_mean(name, stripped)} (there is {named}{more})")
    positions = [stripped.index(name.strip()) for name in columns.names]
    return _layout(columns.roles, positions, len(header))


def _layout(roles: Sequence[str], positions: Sequence[int], width: int) -> ColumnLayout:
    by_role: dict[str, list[int]] = {role: [] for role in ROLES}
    for role, position in zip(roles, positions, strict=True):
        by_role[role].append(position)
    single = {
        role: (by_role[role][0] if by_role[role] else None) for role in ("second_source", "source_lang", "target_lang")
    }
    return ColumnLayout(tuple(by_role["source"]), tuple(by_role["target"]), **single, width=width)


MAX_NAMES_SHOWN = 20  # names of columns in a message


def join_cells(cells: Sequence[str]) -> str:
    """One source of several cells, without the blank ones."""
    return " ".join(cell for cell in cells if cell.strip()) if len(cells) > 1 else cells[0]


def parse_columns_option(text: str) -> Columns:
    """The value of --columns: roles by position, names (the source, then the target), or ROLE=NAME.

    source,target,-     word,ipa     source=lemma,source=features,target=form
    """
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UserError(
            f"--columns is '{text}'; there is nothing between two commas, or at an end: '-' is a column to ignore"
        )
    if any("=" in word for word in words):
        pairs = [word.partition("=") for word in words]
        for role, equals, name in pairs:
            if not equals or not name.strip():
                raise UserError(
                    f"--columns: '{role}' names no column; write ROLE=NAME for all, as in source=word,target=ipa"
                )
        return Columns(tuple(role.strip() for role, _, _ in pairs), tuple(name.strip() for _, _, name in pairs))
    if any(word in ROLES for word in words):
        return Columns(tuple(words))
    if len(words) > 2:
        raise UserError(
            f"--columns names {len(words)} columns; which is the source, and which the target? "
            f"Write it as in source={words[0]},target={words[1]}"
        )
    return Columns(("source", "target")[: len(words)], tuple(words))
