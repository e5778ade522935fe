"""dragoman data check: the data doctor."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dragoman.cli.options import Places
from dragoman.text.normalization import Form

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
        str | None,
        typer.Option(
            help="A model whose tokenizers to measure lengths and unknowns by; one of images or sounds reads them."
        ),
    ] = None,
    normalization: Annotated[
        Form | None, typer.Option(help="The Unicode form of training, nfc by default; a model brings its own.")
    ] = None,
    columns: Annotated[str, typer.Option(help="What the columns of a TSV file are.")] = "source,target",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    files: Places = [],
) -> None:
    """Say what is wrong or odd in files of pairs, with file and line. Exit code 2 where it must be mended."""
    from dragoman.core.errors import UserError
    from dragoman.data.quality.diagnosis import check

    codec = None
    if model is not None and normalization is not None:
        raise UserError("--normalization is for pairs without --model: a model reads texts in its own form")
    if model is not None:
        from dragoman.checkpoint import model_folder
        from dragoman.inference.inputs import looking_in

        config, codec = model_folder.open_codec(model)
        normalization = config.data.normalization
        codec = looking_in(codec, files) if files else codec
    elif files:
        raise UserError("--files says where a model looks for images or sounds; name the model with --model")
    form = normalization or "nfc"
    report = check(pairs, valid, test, columns=columns.split(","), normalization=form, codec=codec)
    print(json.dumps(report.as_json(), indent=1, ensure_ascii=False) if as_json else report.render())
    if not report.ok:
        raise typer.Exit(2)
