"""dragoman data check: the data doctor."""

from __future__ import annotations

import json
from typing import Annotated

import typer

app = typer.Typer(help="Look after files of pairs.", no_args_is_help=True)


@app.callback()
def root() -> None:
    pass


@app.command()
def check(
    pairs: Annotated[
        list[str], typer.Argument(help="Training pairs: file.tsv, source.txt,target.txt or .jsonl.", metavar="PAIRS…")
    ],
    valid: Annotated[
        list[str], typer.Option(help="Validation pairs: overlap with the training pairs is reported.")
    ] = [],
    test: Annotated[list[str], typer.Option(help="Test pairs: likewise.")] = [],
    model: Annotated[
        str | None, typer.Option(help="A model whose tokenizers to measure lengths and unknowns by.")
    ] = None,
    columns: Annotated[str, typer.Option(help="What the columns of a TSV file are.")] = "source,target",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what is wrong or odd in files of pairs, with file and line. Exit code 2 where it must be mended."""
    from dragoman.data.check import check

    codec = None
    if model is not None:
        from dragoman import checkpoint

        codec = checkpoint.load(model).codec
    report = check(pairs, valid, test, columns=columns.split(","), codec=codec)
    print(json.dumps(report.as_json(), indent=1, ensure_ascii=False) if as_json else report.render())
    if not report.ok:
        raise typer.Exit(2)
