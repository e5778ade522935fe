"""dragoman export: a trained model in the format of another program, checked by that program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dragoman.cli import options
from dragoman.core.errors import CheckFailed

Quantization = Literal["float32", "float16", "int8"]


def export(
    model: options.Model,
    out: Annotated[Path, typer.Argument(help="The folder to write; for argos, a file .argosmodel.", metavar="OUT")],
    format: Annotated[str, typer.Option("--format", "-f", help="ct2 (CTranslate2), hf (Hugging Face), onnx or argos.")],
    source_lang: Annotated[str, typer.Option("--from", help="The language of the sources, for argos.")] = "",
    target_lang: Annotated[str, typer.Option("--to", help="The language of the targets, for argos.")] = "",
    quantization: Annotated[
        Quantization, typer.Option(help="How weights are stored, for ct2 and argos; float16 also for hf.")
    ] = "float32",
    check: Annotated[
        int, typer.Option("--check", help="How many outputs of the other program are compared with ours.", min=1)
    ] = 200,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not run the other program.")] = False,
    plugins: options.Plugins = [],
) -> None:
    """Write a model for CTranslate2, Hugging Face transformers, onnxruntime or argostranslate.

    The other program then translates from the written files alone, in a process without Dragoman, and its greedy
    outputs are compared with ours. OUT keeps the result in export.json, and README.md says how to run the model. If any
    output differs, the exit code is 4.
    """
    options.load_plugins(plugins)
    from dragoman.interop.exporters import ExportOptions, export_model

    chosen = ExportOptions(quantization, source_lang, target_lang)
    report = export_model(model, out, format, chosen, check=0 if no_check else check)
    options.print_to_stderr(f"wrote {out}")
    for limitation in report.limitations:
        options.print_to_stderr(f"note: {limitation}")
    outcome = report.check.summary()
    if report.check.status == "failed":
        raise CheckFailed(f"{out}: {outcome}")
    options.print_text(outcome)
