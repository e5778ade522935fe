"""dragoman data check: report what is wrong or unusual in files of pairs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dragoman.cli.options import AsJSON, MediaFolders
from dragoman.core.errors import UserError
from dragoman.text.normalization import Form

app = typer.Typer(help="Check files of pairs.", no_args_is_help=True)


@app.command()
def check(
    pairs: Annotated[
        list[str], typer.Argument(help="Training pairs: file.tsv, source.txt,target.txt or .jsonl.", metavar="PAIRS…")
    ],
    valid: Annotated[
        list[str], typer.Option(help="Validation pairs: overlap with the training pairs is reported.")
    ] = [],
    test: Annotated[list[str], typer.Option(help="Test pairs: checked in the same way.")] = [],
    model: Annotated[
        str | None,
        typer.Option(
            help="A model: its tokenizers count tokens and unknown words; its modality reads images or audio."
        ),
    ] = None,
    normalization: Annotated[
        Form | None, typer.Option(help="The Unicode form of training; nfc, or that of the model, by default.")
    ] = None,
    columns: Annotated[str, typer.Option(help="What the columns of a TSV file are.")] = "source,target",
    as_json: AsJSON = False,
    files: MediaFolders = [],
) -> None:
    """Report what is wrong or unusual in files of pairs, with file and line. Exit code 2 if there are errors."""
    from dragoman.data.quality.diagnosis import check_pairs

    codec = None
    if model is not None and normalization is not None:
        raise UserError("--normalization cannot be combined with --model: the model has a form of its own")
    if model is not None:
        from dragoman.checkpoint import model_folder
        from dragoman.inference.inputs import with_media_roots

        config, codec = model_folder.load_codec(model)
        normalization = config.data.normalization
        codec = with_media_roots(codec, files) if files else codec
    elif files:
        raise UserError("--files tells a model where to search for images or audio; name the model with --model")
    form = normalization or "nfc"
    report = check_pairs(pairs, valid, test, columns=columns.split(","), normalization=form, codec=codec)
    print(json.dumps(report.as_json(), indent=1, ensure_ascii=False) if as_json else report.render())
    if not report.ok:
        raise typer.Exit(2)
