"""dragoman export: a trained model in the format of another program, or in a page that computes it by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dragoman.cli import options
from dragoman.core.errors import CheckFailed, UserError, did_you_mean

Quantization = Literal["float32", "float16", "int8"]
Precision = Literal["int8", "float16", "float32"]
BROWSER_FORMATS = ("html", "js")


def export(
    model: options.Model,
    out: Annotated[
        Path,
        typer.Argument(help="The folder to write; for html a file .html, for argos a file .argosmodel.", metavar="OUT"),
    ],
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help="html (one page that needs nothing else), js (ES modules), ct2 (CTranslate2), hf (Hugging Face), onnx "
            "or argos. Default: html for a file .html.",
        ),
    ] = None,
    others: Annotated[
        list[str],
        typer.Option(
            "--with", help="A further model on the same page, for html; NAME=MODEL gives it a name.", metavar="MODEL"
        ),
    ] = [],
    precision: Annotated[
        Precision | None, typer.Option(help="How weights are stored, for html and js. Default: int8.")
    ] = None,
    source_lang: Annotated[str, typer.Option("--from", help="The language of the sources, for argos.")] = "",
    target_lang: Annotated[str, typer.Option("--to", help="The language of the targets, for argos.")] = "",
    quantization: Annotated[
        Quantization | None,
        typer.Option(help="How weights are stored, for ct2 and argos; float16 also for hf. Default: float32."),
    ] = None,
    check: Annotated[
        int | None,
        typer.Option("--check", help="How many outputs of the other program are compared. Default: 200.", min=1),
    ] = None,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not run the other program.")] = False,
    plugins: options.Plugins = [],
) -> None:
    """Write a model as one HTML file, as ES modules, or for another program.

    OUT.html opens in any browser, offline: it holds the model, an engine and the playground. With --format js the same
    engine is a folder of ES modules for pages and for Node.

    For CTranslate2, Hugging Face transformers, onnxruntime and argostranslate, the other program translates from the
    written files alone, in a process without Dragoman, and its greedy outputs are compared with ours. OUT keeps the
    result in export.json, and README.md says how to run the model. If any output differs, the exit code is 4.
    """
    options.load_plugins(plugins)
    if format is None:
        if out.suffix.lower() not in (".html", ".htm"):
            raise UserError("--format is missing: say html, js, ct2, hf, onnx or argos (OUT.html needs none)")
        format = "html"
    foreign = {"--from": source_lang, "--to": target_lang, "--quantization": quantization, "--check": check}
    own = {"--precision": precision, "--with": others}
    if format not in BROWSER_FORMATS:
        check_unused(own, format)
        return export_for_program(
            model, out, format, quantization, (source_lang, target_lang), 0 if no_check else check
        )
    check_unused(foreign | {"--no-check": no_check}, format)
    if format == "js":
        check_unused({"--with": others}, format)
        return export_modules(model, out, precision or "int8")
    return export_page([model, *others], out, precision or "int8")


def check_unused(given: dict[str, Any], format: str) -> None:
    """Raise UserError for options that a format does not have."""
    for name, value in given.items():
        if value:
            hint = {"--quantization": "; use --precision", "--precision": "; use --quantization"}.get(name, "")
            raise UserError(f"{name} cannot be used with --format {format}{hint}")


def export_page(models: Sequence[str], out: Path, precision: Precision) -> None:
    """Write models into one HTML file."""
    from dragoman.browser import export
    from dragoman.cli.serve import parse_model_arguments
    from dragoman.core.files import check_output
    from dragoman.inference import pipeline

    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{out}: a page is a file whose name ends in .html")
    paths = parse_model_arguments([options.fetch_model(model) for model in models])
    inputs = [file for path in paths.values() for file in model_files(path)]
    if out.parent.is_dir():
        check_output(out, inputs)  # before the models are loaded
    pipelines = {name: pipeline.load(path, "cpu", reference=True) for name, path in paths.items()}
    size = export.export_page(pipelines, out, precision, inputs=inputs)
    options.print_to_stderr(f"wrote {out} ({size / 1e6:,.1f} MB)")
    options.print_text(f"open {out} in a browser; it needs no network and no server, and can be sent as it is")


def export_modules(model: str, out: Path, precision: Precision) -> None:
    """Write a model as ES modules."""
    import os

    from dragoman.browser import export
    from dragoman.checkpoint.model_paths import model_name
    from dragoman.inference import pipeline

    if os.path.lexists(out):
        raise UserError(f"{out}: exists already; name another folder, or remove it first")
    path = options.fetch_model(model)
    size = export.export_modules(pipeline.load(path, "cpu", reference=True), out, precision, name=model_name(path))
    options.print_to_stderr(f"wrote {out} ({size / 1e6:,.1f} MB)")
    options.print_text(f"""import {{ load }} from "./{out.name}/index.js"; {out}/README.md says how to use it""")


def model_files(path: str) -> list[Path]:
    """Return the files of a MODEL argument, which an output must not replace."""
    from dragoman.checkpoint.model_paths import parse_model_paths

    parts = [Path(part) for part in parse_model_paths(path)]
    return [file for part in parts for file in (part.rglob("*") if part.is_dir() else [part])]


def export_for_program(
    model: str, out: Path, format: str, quantization: Quantization | None, languages: tuple[str, str], check: int | None
) -> None:
    """Write a model for another program, and print what the check by that program found."""
    from dragoman.interop.exporters import EXPORTERS, ExportOptions, export_model

    formats = [*EXPORTERS, *BROWSER_FORMATS]
    if format not in formats:
        raise UserError(
            f"there is no format '{format}'{did_you_mean(format, formats)}; the formats are {', '.join(formats)}"
        )
    chosen = ExportOptions(quantization or "float32", *languages)
    report = export_model(model, out, format, chosen, check=200 if check is None else check)
    options.print_to_stderr(f"wrote {out}")
    for limitation in report.limitations:
        options.print_to_stderr(f"note: {limitation}")
    outcome = report.check.summary()
    if report.check.status == "failed":
        raise CheckFailed(f"{out}: {outcome}")
    options.print_text(outcome)
