"""dragoman data: commands on files of pairs. `data check` reports what is wrong or unusual in files of pairs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dragoman.cli import selection
from dragoman.cli.curve import curve
from dragoman.cli.options import AsJSON, Columns, MediaFolders, Plugins, load_plugins
from dragoman.cli.source_columns import choose_columns
from dragoman.core.errors import UserError
from dragoman.text.normalization import Form

app = typer.Typer(help="Check, split, deduplicate, filter and sample pairs; learning curves.", no_args_is_help=True)
for command in (selection.split, selection.dedupe, selection.filter, selection.sample, curve):
    app.command()(command)


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
    columns: Columns = "",
    as_json: AsJSON = False,
    files: MediaFolders = [],
    plugins: Plugins = [],
) -> None:
    """Report what is wrong or unusual in files of pairs, with file and line. Exit code 2 if there are errors."""
    load_plugins(plugins)
    from dragoman.data.quality.diagnosis import check_pairs

    codec, trained = None, None
    if model is not None and normalization is not None:
        raise UserError("--normalization cannot be combined with --model: the model has a form of its own")
    if model is not None:
        from dragoman.checkpoint import model_folder
        from dragoman.inference.inputs import with_media_roots

        config, codec = model_folder.load_codec(model)
        normalization, trained = config.data.normalization, config.columns
        codec = with_media_roots(codec, files) if files else codec
    elif files:
        raise UserError("--files tells a model where to search for images or audio; name the model with --model")
    form = normalization or "nfc"
    chosen = choose_columns(pairs[0], columns, trained)
    is_free = not columns and trained is None  # as `train PAIRS` reads them
    report = check_pairs(pairs, valid, test, columns=chosen, normalization=form, codec=codec, extra_targets=is_free)
    print(json.dumps(report.as_json(), indent=1, ensure_ascii=False) if as_json else report.render())
    if not report.ok:
        raise typer.Exit(2)
