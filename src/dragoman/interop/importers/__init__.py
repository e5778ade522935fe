"""Models of other programs as model folders of ours: `import_model` reads one and writes the other.

    hf:DIR       Hugging Face transformers         marian:FILE.npz     Marian
    ct2:DIR      CTranslate2                       opennmt:FILE        OpenNMT-py
    g2p-en       the package g2p_en                hub:OWNER/NAME      fetched from the Hugging Face Hub

Each importer is one file with one function. It returns an `Imported` (contents.py); here it is checked against the
model that its config describes, and written tensor by tensor.
"""

from __future__ import annotations

import importlib
import math
import os
from dataclasses import dataclass
from pathlib import Path

from dragoman import config as configs
from dragoman.checkpoint import model_folder
from dragoman.checkpoint.streaming import save_model
from dragoman.core.errors import ConfigError, ModelError, PartError, UserError, did_you_mean
from dragoman.interop.importers.contents import Imported

IMPORTERS = {  # the module and what SOURCE is for each prefix
    "hf": ("huggingface", "DIR"),
    "marian": ("marian", "FILE.npz"),
    "ct2": ("ctranslate2", "DIR"),
    "opennmt": ("opennmt", "FILE.pt"),
    "g2p-en": ("g2p_en", ""),
    "hub": ("hub", "OWNER/NAME"),
}


@dataclass(frozen=True)
class ImportOptions:
    """What a user may choose beside source and destination."""

    trust_pickle: bool = False
    source_lang: str = ""  # for programs that do not say it
    target_lang: str = ""


@dataclass
class ImportReport:
    """What was read, what license it names, and what could not be carried over."""

    path: Path
    program: str
    parameters: int
    vocabulary: tuple[int, int]  # source and target
    license: str
    limitations: list[str]
    takes_text: bool = True  # and not files

    def lines(self) -> list[str]:
        """The report in sentences."""
        source, target = self.vocabulary
        sizes = f"{source:,}" if source == target else f"{source:,} and {target:,}"
        license = f"license: {self.license}" if self.license else "it names no license: ask whoever gave it to you"
        return [
            f"read a {self.program} model: {self.parameters:,} parameters, a vocabulary of {sizes}; {license}",
            *(f"not carried over: {limitation}" for limitation in self.limitations),
        ]


def import_model(source: str, out: Path, options: ImportOptions | None = None) -> ImportReport:
    """Read a model of another program from `KIND:PATH`, and write it as a model folder, which must not exist."""
    kind, _, place = source.partition(":")
    if kind not in IMPORTERS:
        forms = ", ".join(f"{name}:{what}" if what else name for name, (_, what) in IMPORTERS.items())
        raise UserError(f"SOURCE is '{source}', but must be one of {forms}{did_you_mean(kind, IMPORTERS)}")
    module, what = IMPORTERS[kind]
    if bool(place) != bool(what):
        raise UserError(f"SOURCE is '{source}', but must be {kind}:{what}" if what else f"write {kind} alone")
    if os.path.lexists(out):
        raise UserError(f"{out}: exists already; name another folder, or remove it first")
    reader = importlib.import_module(f"dragoman.interop.importers.{module}")
    imported: Imported = reader.read_model(Path(place), options or ImportOptions())
    config, codec = check_imported(imported, source), imported.codec
    save_model(out, config, imported.weights, codec, {})
    return ImportReport(
        out,
        imported.program,
        sum(math.prod(x.shape) for x in imported.weights.values()),
        (codec.source_size if codec.modality is None else len(codec.target), len(codec.target)),
        imported.license,
        imported.limitations,
        takes_text=codec.modality is None,
    )


def check_imported(imported: Imported, source: str) -> configs.Config:
    """The config of an imported model; ModelError unless its weights are just those of the model that it describes."""
    try:
        config = configs.validate(imported.config, source)
    except ConfigError as error:
        raise ModelError(f"{source}: cannot be imported: {'; '.join(error.problems)}") from None
    codec = imported.codec
    try:
        model = configs.build_meta_model(config, (codec.source_size, len(codec.target), codec.second_source_size))
    except PartError as error:
        raise ModelError(f"{source}: cannot be imported: {error}") from None
    shapes = {name: tuple(x.shape) for name, x in model_folder.unique_weights(model).items()}
    found = {name: tuple(x.shape) for name, x in imported.weights.items()}
    for name in sorted(shapes.keys() | found.keys()):
        if shapes.get(name) != found.get(name):
            raise ModelError(
                f"{source}: its sizes contradict each other: '{name}' is {found.get(name, 'missing')} in the weights, "
                f"and {shapes.get(name, 'unknown')} by its config"
            )
    return config
