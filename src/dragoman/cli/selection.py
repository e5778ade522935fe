"""dragoman data split, dedupe, filter, sample: files of the pairs that are selected, with all their columns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import OnError, Pairs, console, plain_table, print_text, print_to_stderr, split_commas
from dragoman.core.errors import UserError
from dragoman.data.lines import format_count

if TYPE_CHECKING:
    from dragoman.core.types import Example
    from dragoman.data.columns import ColumnsLike

Columns = Annotated[
    str, typer.Option(help="The columns, as source,target,- or word,ipa or source=word,target=ipa. Default: guessed.")
]
Seed = Annotated[int, typer.Option(help="Another seed gives another choice; the same one always the same.")]
Output = Annotated[
    str, typer.Option("--output", "-o", help="The file to write, of the same kind; two with a comma for two files.")
]
Dropped = Annotated[
    Path | None,
    typer.Option(help="A file (.tsv or .jsonl) for what is left out, with the reason and the line of each pair."),
]
DEFAULT_NAMES = {2: ("train", "test"), 3: ("train", "valid", "test")}


def split(
    pairs: Pairs,
    out: Annotated[Path, typer.Option(help="The folder for train, valid and test.")],
    shares: Annotated[
        str | None,
        typer.Option(
            help="As in 80,10,10 (train, valid, test), 90,10 (train, test) or train=90,dev=10. "
            "Default: 80,10,10 with at least 15 and at most 5,000 pairs held out for each."
        ),
    ] = None,
    seed: Seed = 1,
    by: Annotated[
        str | None,
        typer.Option(help="Keep pairs together that are equal in this column (its name or number), and only those."),
    ] = None,
    columns: Columns = "",
    on_error: OnError = "stop",
) -> None:
    """Split pairs into files for training, validation and test, so that no source or similar one is in two of them."""
    from dragoman.data.selection.rows import copy_rows, name_parts, read_column
    from dragoman.data.selection.split import DEFAULT_SHARES, split_pairs

    wanted = DEFAULT_SHARES if shares is None else parse_shares(shares)
    examples, roles = _read(pairs, columns, on_error)
    keys = None if by is None else read_column(pairs, roles, examples, by)
    parts = split_pairs(examples, wanted, seed, exact=shares is not None, keys=keys)
    parts.kept_whole = f"column {by}" if by and by.isdecimal() else by or parts.kept_whole
    outputs = name_parts(pairs, out, parts)
    copy_rows(pairs, roles, examples, {outputs[name]: rows for name, rows in parts.items()})
    print_text(parts.sentence)
    _print_counts(examples, parts)
    print_text(f"written: {', '.join(outputs.values())}")


def dedupe(
    pairs: Pairs,
    output: Output,
    first_target: Annotated[
        bool, typer.Option("--first-target", help="Of a source with several targets, keep only the first.")
    ] = False,
    near: Annotated[
        bool, typer.Option("--near", help="Also leave out pairs that are nearly equal to an earlier one on both sides.")
    ] = False,
    dropped: Dropped = None,
    columns: Columns = "",
    on_error: OnError = "stop",
) -> None:
    """Leave out repeated pairs: of equal ones the first stays."""
    from dragoman.data.selection.duplicates import find_duplicates

    examples, roles = _read(pairs, columns, on_error)
    reasons = find_duplicates(examples, targets="first" if first_target else "all", near=near)
    _write_rest(pairs, roles, examples, reasons, output, dropped)


def filter(
    pairs: Pairs,
    output: Output,
    rules: Annotated[
        str,
        typer.Option(
            help="Of blank, length, ratio, identical, characters, script, language; separated by commas. Default: all."
        ),
    ] = "",
    min_length: Annotated[
        int, typer.Option(help="Words of a side, at least (characters where there are no spaces).", min=1)
    ] = 1,
    max_length: Annotated[
        int | None, typer.Option(help="Words of a side, at most (characters where there are no spaces).", min=1)
    ] = None,
    dropped: Dropped = None,
    columns: Columns = "",
    on_error: OnError = "stop",
) -> None:
    """Leave out pairs that are better not learned from: misaligned, not translated, damaged, too long."""
    from dragoman.data.selection.filter import LengthRange, find_unusable

    limits = LengthRange(min_length, max_length or float("inf"))
    examples, roles = _read(pairs, columns, on_error)
    found = find_unusable(examples, split_commas(rules), limits)
    for note in found.notes:
        print_to_stderr(note)
    _write_rest(pairs, roles, examples, found.rows, output, dropped)


def sample(
    pairs: Pairs,
    output: Output,
    count: Annotated[int | None, typer.Option("--count", "-n", help="How many pairs to take.", min=1)] = None,
    share: Annotated[float | None, typer.Option(help="What part of the pairs to take, in percent.")] = None,
    diverse: Annotated[
        bool, typer.Option("--diverse", help="The pairs whose words (or letters) differ most, not random ones.")
    ] = False,
    seed: Seed = 1,
    columns: Columns = "",
    on_error: OnError = "stop",
) -> None:
    """Take some of the pairs, with the same share of every language and length, or as diverse as possible."""
    from dragoman.data.selection.rows import copy_rows
    from dragoman.data.selection.sample import sample_pairs

    if (count is None) == (share is None):
        raise UserError("say how many pairs to take: --count N, or --share PERCENT")
    if share is not None and not 0 < share <= 100:
        raise UserError(f"--share is {share:g}; it is a percentage above 0, at most 100")
    examples, roles = _read(pairs, columns, on_error)
    wanted = count if count is not None else max(round(len(examples) * (share or 0) / 100), 1)
    rows = sample_pairs(examples, wanted, seed, diverse=diverse)
    copy_rows(pairs, roles, examples, {output: rows})
    how = "as diverse as possible" if diverse else f"seed {seed}"
    print_text(f"{format_count(len(rows), 'pair')} of {len(examples):,} ({how}) are in {output}")
    _print_counts(examples, {"all": range(len(examples)), "sample": rows})


def parse_shares(text: str) -> dict[str, float]:
    """The shares of --shares by part: numbers alone are train, valid, test (of two: train, test)."""
    words = split_commas(text)
    named = [word.partition("=") for word in words]
    if all(equals for _, equals, _ in named):
        names: Sequence[str] = [name.strip() for name, _, _ in named]
        numbers = [number for _, _, number in named]
    else:
        names, numbers = DEFAULT_NAMES.get(len(words), ()), words
    try:
        shares = {name: float(number) for name, number in zip(names, numbers, strict=True)}
    except ValueError:
        shares = {}
    is_plain = all(name and not {"/", "\\", "\0"} & {*name} and name not in (".", "..") for name in names)
    if len(shares) < 2 or len(shares) < len(names) or not is_plain or not all(0 < x < 1e9 for x in shares.values()):
        raise UserError(f"--shares is '{text}'; write it as in 80,10,10 or train=90,test=10, with numbers above 0")
    return shares


def _read(pairs: str, columns: str, on_error: Any) -> tuple[list[Example], ColumnsLike]:
    """The pairs of a file and its columns, which are guessed unless they are named; prints what was repaired."""
    from dragoman.data.columns import parse_columns_option
    from dragoman.data.lines import ReadReport
    from dragoman.data.readers import read_pairs
    from dragoman.data.readers.columns import propose_columns

    if pairs == "-":
        raise UserError("the standard input can be read only once, and copying takes twice; save it in a file")
    roles: ColumnsLike
    if columns:
        roles = parse_columns_option(columns)
    else:
        proposal = propose_columns(pairs)
        print_to_stderr(proposal.sentence)
        roles = proposal.columns
    report = ReadReport()
    examples = list(read_pairs(pairs, columns=roles, on_error=on_error, report=report))
    for notice in report.notices():
        print_to_stderr(notice)
    return examples, roles


def _write_rest(
    pairs: str,
    roles: ColumnsLike,
    examples: Sequence[Example],
    reasons: Mapping[int, str],
    output: str,
    dropped: Path | None,
) -> None:
    """Write the rows without a reason to leave them out and, if requested, the others; print the counts."""
    from dragoman.core.files import make_folder, open_output
    from dragoman.data.readers import spec_files, split_spec
    from dragoman.data.selection.rows import copy_rows

    kept = [row for row in range(len(examples)) if row not in reasons]
    copy_rows(pairs, roles, examples, {output: kept})
    if dropped is not None:
        make_folder(dropped.parent)
        with open_output(dropped, [*spec_files(pairs), *split_spec(output)]) as file:
            names = ("reason", "line", "source", "target")
            is_json = dropped.suffix.lower() == ".jsonl"
            if not is_json:
                file.write(("\t".join(names) + "\n").encode())
            for row, reason in reasons.items():
                cells = (reason, str(examples[row].line), examples[row].source, examples[row].target or "")
                line = (
                    json.dumps(dict(zip(names, cells, strict=True)), ensure_ascii=False)
                    if is_json
                    else "\t".join(cell.replace("\t", " ") for cell in cells)
                )
                file.write(f"{line}\n".encode())
    counts = ", ".join(f"{reason}: {n:,}" for reason, n in Counter(reasons.values()).most_common())
    which = f" ({counts})" if counts else ""
    print_text(f"{format_count(len(reasons), 'pair')} left out{which}; the other {len(kept):,} are in {output}")


def _print_counts(examples: Sequence[Example], parts: Mapping[str, Sequence[int]]) -> None:
    """Print how many pairs each part has and, if there are several languages, how many of each."""
    from rich.table import Column

    counts = {name: Counter(_language(examples[row]) for row in rows) for name, rows in parts.items()}
    languages = sorted({language for of_part in counts.values() for language in of_part})
    table = plain_table("", *(Column(name, justify="right") for name in counts))
    table.add_row("pairs", *(f"{of_part.total():,}" for of_part in counts.values()))
    for language in languages if len(languages) > 1 else ():
        table.add_row(language, *(f"{of_part[language]:,}" for of_part in counts.values()))
    console().print(table)


def _language(example: Example) -> str:
    return "→".join(name for name in (example.source_lang, example.target_lang) if name) or "-"
