"""dragoman import: a model of another program as a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import options

SOURCE = (
    "hf:DIR (Hugging Face transformers), marian:FILE.npz, ct2:DIR (CTranslate2), opennmt:FILE.pt (OpenNMT-py), g2p-en, "
    "hub:OWNER/NAME (fetched from the Hugging Face Hub)."
)


def import_model(
    source: Annotated[str, typer.Argument(help=SOURCE, metavar="SOURCE")],
    out: Annotated[Path, typer.Argument(help="The model folder to write.", metavar="OUT")],
    trust_pickle: Annotated[
        bool,
        typer.Option(
            "--trust-pickle", help="Read weights that are pickled (.bin, .pt), in a process that can do nothing else."
        ),
    ] = False,
    source_lang: Annotated[str, typer.Option("--from", help="The language of the sources, if it is always one.")] = "",
    target_lang: Annotated[str, typer.Option("--to", help="The language of the targets, if it is always one.")] = "",
) -> None:
    """Read a trained model of another program, and write it as a model folder.

    Every command takes the folder: predict, score, evaluate, inspect, serve; and training goes on from it with
    training.start_from. Nothing is fetched unless SOURCE begins with hub:.
    """
    from dragoman.interop.importers import ImportOptions
    from dragoman.interop.importers import import_model as run

    report = run(source, out, ImportOptions(trust_pickle, source_lang, target_lang))
    for line in report.lines():
        options.print_to_stderr(line)
    options.print_to_stderr(f"wrote {out}")
    options.print_to_stderr(f"try it: {options.predict_command(out, [], takes_text=report.takes_text)}")
