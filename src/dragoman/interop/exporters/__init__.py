"""Models of ours in the formats of other programs: `export_model` writes a folder, checks it, and says what was lost.

    ct2     ctranslate2.Translator        hf      Hugging Face transformers
    onnx    onnxruntime                   argos   argostranslate and LibreTranslate

The folder appears under its name when it is complete; export.json in it has the check and the versions.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.checkpoint import model_folder
from dragoman.checkpoint.model_folder import LoadedModel
from dragoman.core import files
from dragoman.core.errors import UserError, did_you_mean
from dragoman.interop.exporters import argos, ct2, hf, onnx
from dragoman.interop.exporters.contents import Exported, ExportOptions, check_exportable, write_json
from dragoman.interop.exporters.verification import Check, check_export
from dragoman.version import __version__

__all__ = ["EXPORTERS", "Check", "ExportOptions", "ExportReport", "export_model"]

EXPORTERS: dict[str, Callable[[LoadedModel, Path, ExportOptions], Exported]] = {
    "ct2": ct2.export_ct2,
    "hf": hf.export_hf,
    "onnx": onnx.export_onnx,
    "argos": argos.export_argos,
}
QUANTIZED_FORMATS = {"ct2": ("float16", "int8"), "argos": ("float16", "int8"), "hf": ("float16",)}
EXPORT_FILE = "export.json"


@dataclass
class ExportReport:
    """What was written, what was lost, and what the check found."""

    path: Path
    format: str
    versions: dict[str, str]
    limitations: list[str]
    check: Check

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "versions": self.versions,
            "limitations": self.limitations,
            "check": self.check.to_json(),
        }


def export_model(
    model: str | Path, out: Path, format: str, options: ExportOptions | None = None, *, check: int = 200
) -> ExportReport:
    """Write a model folder, run or zip in another program's format, and compare `check` outputs of that program."""
    options = options or ExportOptions()
    if format not in EXPORTERS:
        raise UserError(
            f"there is no format '{format}'{did_you_mean(format, EXPORTERS)}; the formats are {', '.join(EXPORTERS)}"
        )
    if options.quantization != "float32" and options.quantization not in QUANTIZED_FORMATS.get(format, ()):
        raise UserError(f"--quantization {options.quantization} cannot be used with --format {format}")
    if os.path.lexists(out):
        raise UserError(f"{out}: exists already; name another folder, or remove it first")
    loaded = model_folder.load(model)
    check_exportable(loaded)
    if format == "argos":
        return export_archive(loaded, out, options, check)
    with files.new_folder(out) as folder:
        report = write_and_check(loaded, folder, out, format, options, check)
        write_json(folder / EXPORT_FILE, report.to_json())
        for path in folder.rglob("*"):
            files.flush_to_disk(path)
    return report


def write_and_check(
    loaded: LoadedModel, folder: Path, out: Path, format: str, options: ExportOptions, check: int
) -> ExportReport:
    """Write a model into a temporary folder, and run the other side's program on it."""
    exported = EXPORTERS[format](loaded, folder, options)
    (folder / "README.md").write_text(exported.readme, encoding="utf-8")
    outcome = check_export(loaded, folder, exported, check)
    return ExportReport(out, format, versions(exported), exported.limitations, outcome)


def export_archive(loaded: LoadedModel, out: Path, options: ExportOptions, check: int) -> ExportReport:
    """Export to argostranslate, whose packages are one file."""
    files.make_folder(out.parent)
    with (
        files.explain_write_errors(out, 0),
        tempfile.TemporaryDirectory(prefix=f"{files.TEMPORARY_PREFIX}{out.name}-", dir=out.parent) as temporary,
    ):
        folder = Path(temporary)
        report = write_and_check(loaded, folder, out, "argos", options, check)
        write_json(next(folder.glob("translate-*")) / EXPORT_FILE, report.to_json())
        archive = argos.write_archive(folder)
        with files.open_atomic(out, archive.stat().st_size) as output, archive.open("rb") as file:
            shutil.copyfileobj(file, output, 2**20)
    return report


def versions(exported: Exported) -> dict[str, str]:
    """The versions of Dragoman and of the other side's program, if that is installed."""
    found = {"dragoman": __version__}
    for package in (exported.program, *exported.writers):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
