"""Which columns a command reads: those it is told, those the model was trained on, or those proposed for the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from dragoman.cli.options import print_to_stderr
from dragoman.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from dragoman.core.types import Example
    from dragoman.data.columns import Columns, ColumnsLike
    from dragoman.data.lines import OnError
    from dragoman.data.readers.columns import ColumnProposal
    from dragoman.inference.pipeline import Pipeline

SourceColumn = Annotated[
    str,
    typer.Option(
        "--column",
        help="The column of a table that is the source: its name or number; several are joined, as in lemma,features.",
        metavar="NAME|N",
    ),
]


def read_pairs_for(
    pairs: str, columns: str, pipeline: Pipeline, *, extra_targets: bool = False, on_error: OnError = "stop"
) -> Iterator[Example]:
    """Read pairs by --columns, else by the model's columns if these fit the file, else by those proposed for it.

    The proposal is said at the beginning; what was repaired or left out while reading is said at the end.
    """
    from dragoman.data.lines import ReadReport
    from dragoman.data.readers import read_pairs

    chosen, report = choose_columns(pairs, columns, pipeline.config.columns), ReadReport()
    yield from read_pairs(pairs, columns=chosen, extra_targets=extra_targets, on_error=on_error, report=report)
    for notice in report.notices():
        print_to_stderr(notice)


def choose_columns(pairs: str, columns: str, trained: ColumnsLike | None) -> Columns:
    """Return the columns of --columns, else those of a model if they fit the file, else those proposed for it."""
    from dragoman.data.columns import Columns, parse_columns_option
    from dragoman.data.readers import find_reader
    from dragoman.data.readers.columns import fit_columns, propose_columns

    if columns:
        return parse_columns_option(columns)
    own = Columns.parse(trained or ("source", "target"))
    if "target" not in own or not all(path.is_file() for path in find_reader(pairs).files(pairs)):
        return own  # a pipe can be read only once
    proposal = fit_columns(pairs, own) if trained is not None else propose_columns(pairs)
    if proposal is None or "target" not in proposal.columns:
        return own
    if proposal.columns != ["source", "target"]:
        print_to_stderr(f"{pairs}: {proposal.sentence}")
    return Columns.parse(proposal.columns)


SOURCE_ROLES = ("source", "second_source")


class SourceColumns(NamedTuple):
    """The columns of a table to predict from, what was found out about it, and the sentence where that decided."""

    columns: Columns
    proposal: ColumnProposal
    sentence: str = ""


def choose_source_columns(file: str, column: str, pipeline: Pipeline) -> SourceColumns | None:
    """Return which columns of a table are sources; None for a file of lines."""
    from dragoman.cli.inputs import TABLE_SUFFIXES
    from dragoman.data.columns import Columns
    from dragoman.data.readers.columns import propose_columns

    is_table = file.lower().partition("#")[0].endswith(TABLE_SUFFIXES)
    if file == "-" or not (is_table or column):
        if column:
            raise UserError("--column needs a file: the lines of the standard input are whole sources")
        return None
    proposal = propose_columns(file)
    if column:
        return SourceColumns(_named_columns(file, column, proposal), proposal)
    is_list = file.lower().endswith((".tsv", ".tsv.gz")) and len(proposal.names) < 2
    if is_list:
        return None
    trained = Columns.parse(pipeline.config.columns)
    names_files = pipeline.reads_media or "second_source" in trained
    return _source_columns(file, trained, proposal, may_have_more=names_files)


def _named_columns(file: str, column: str, proposal: ColumnProposal) -> Columns:
    """Return the columns of --column: names of the header, or numbers from 1 on."""
    from dragoman.data.columns import Columns

    names = proposal.names
    words = [column] if column in names else [word.strip() for word in column.split(",")]
    positions = []
    for word in words:
        if proposal.has_header and word in names:
            positions.append(names.index(word))
        elif word.isdecimal() and 1 <= int(word) <= len(names):
            positions.append(int(word) - 1)
        else:
            there = ", ".join(names[:20]) if proposal.has_header else f"1 to {len(names)}; there is no header row"
            raise UserError(f"{file}: there is no column '{word}'{did_you_mean(word, names)} (there is {there})")
    if proposal.has_header:
        return Columns(("source",) * len(positions), tuple(names[i] for i in positions))
    return Columns(tuple("source" if i in positions else "-" for i in range(len(names))))


def _source_columns(file: str, trained: Columns, proposal: ColumnProposal, *, may_have_more: bool) -> SourceColumns:
    """Return the sources of a table by the columns that the model was trained on, else the proposed ones.

    Proposals are made for texts; where sources are names of files, those of the training hold with more columns, too.
    """
    from dragoman.data.columns import Columns

    names, wanted = proposal.names, trained.without_targets()
    if len(names) == 1:
        return SourceColumns(Columns(("source",), names if proposal.has_header else None), proposal)
    if isinstance(proposal.columns, list) and proposal.has_header:  # JSON lines with our own keys
        return SourceColumns(Columns(("source",)), proposal)
    if wanted.names is not None and proposal.has_header:
        return SourceColumns(_present_columns(file, wanted, names), proposal)
    if wanted.names is None and not proposal.has_header:
        sources = tuple(role for role in wanted.roles if role in SOURCE_ROLES)
        for roles in (wanted.roles, sources):
            if len(roles) == len(names):
                return SourceColumns(Columns(roles), proposal)
        if may_have_more and len(names) > len(wanted.roles):
            return SourceColumns(Columns((*wanted.roles, *["-"] * (len(names) - len(wanted.roles)))), proposal)
    chosen = Columns.parse(proposal.columns).without_targets()
    agrees = trained.names is None and len(names) == len(trained.roles) and "source" in trained
    if agrees and _first_source(chosen, names) == trained.roles.index("source"):
        return SourceColumns(chosen, proposal)
    return SourceColumns(chosen, proposal, f"{file}: {_describe_source(chosen, proposal)}")


def _present_columns(file: str, wanted: Columns, names: tuple[str, ...]) -> Columns:
    """Return the columns of a model that a table has; languages may be missing, sources may not."""
    from dragoman.data.columns import Columns

    pairs = list(zip(wanted.roles, wanted.names or (), strict=True))
    missing = next((name for role, name in pairs if role in SOURCE_ROLES and name not in names), None)
    if missing is not None:
        there = ", ".join(names[:20])
        raise UserError(
            f"{file}: there is no column '{missing}', which is the model's source (there is {there}); "
            "name the source with --column"
        )
    present = [(role, name) for role, name in pairs if name in names]
    return Columns(tuple(role for role, _ in present), tuple(name for _, name in present))


def _first_source(columns: Columns, names: tuple[str, ...]) -> int:
    position = columns.roles.index("source")
    return position if columns.names is None else names.index(columns.names[position])


def _describe_source(columns: Columns, proposal: ColumnProposal) -> str:
    names = columns.names or proposal.names
    sources = [name for name, role in zip(names, columns.roles, strict=False) if role == "source"]
    have = f"columns: {', '.join(proposal.names[:12])}" if proposal.has_header else "no header row"
    return f"{have}; taking {' + '.join(sources)} as the source (say --column to change)"
