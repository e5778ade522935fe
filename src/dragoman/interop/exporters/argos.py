"""A package for argostranslate and LibreTranslate: one zip, OUT.argosmodel.

    translate-en_de-1_0/    metadata.json  README.md  sentencepiece.model  model/ (for CTranslate2)  export.json

The zip is written beside its folder, which the check needs not: it installs the zip as a user would.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from dragoman.checkpoint.model_folder import LoadedModel
from dragoman.core.errors import UserError
from dragoman.engines.cpu.ctranslate2 import max_positions
from dragoman.interop.exporters.contents import (
    SENTENCEPIECE,
    TOLERANCES,
    Exported,
    ExportOptions,
    check_source_template,
    is_sentencepiece,
    rounding_limitation,
    write_json,
    write_tokenizers,
)
from dragoman.interop.exporters.ct2 import write_model

LANGUAGE_CODE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")
ARGOS_VERSION = "1.5.0"  # the oldest that reads such packages
ARCHIVE = "model.argosmodel"
MAX_OUTPUT = 256  # tokens of an output by default in CTranslate2, which argostranslate does not change
DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can hold: equal models give equal bytes


def export_argos(loaded: LoadedModel, folder: Path, options: ExportOptions) -> Exported:
    """Write a package for argostranslate."""
    codec = loaded.codec

    def refuse(problem: str) -> UserError:
        return UserError(f"{loaded.path}: cannot be exported as argos: {problem}")

    for option, code in (("--from", options.source_lang), ("--to", options.target_lang)):
        if not LANGUAGE_CODE.fullmatch(code):
            found = f", found {code[:20]!r}" if code else ""
            raise refuse(f"give {option} with a language code such as en{found}")
    if not is_sentencepiece(codec) or not codec.is_joint:
        raise refuse("it has one sentencepiece model for both sides, so tokenizer.joint: true and bpe or unigram")
    if codec.source.vocabulary.extra_symbols:
        raise refuse("it puts no tags before a source, and this model needs them")
    ends_with_eos = check_source_template(loaded, "argos")
    package = folder / f"translate-{options.source_lang}_{options.target_lang}-1_0"
    (package / "model").mkdir(parents=True)
    write_model(loaded, package / "model", options, ends_with_eos)
    assert isinstance(codec.source, SENTENCEPIECE)
    (package / "sentencepiece.model").write_bytes(codec.source.model)
    write_tokenizers(codec, package)
    for name in ("source.spm", "target.spm"):
        (package / name).unlink()
    metadata = {
        "package_version": "1.0",
        "argos_version": ARGOS_VERSION,
        "from_code": options.source_lang,
        "from_name": options.source_lang,
        "to_code": options.target_lang,
        "to_name": options.target_lang,
        "links": [],
    }
    write_json(package / "metadata.json", metadata)
    positions = min(max_positions(loaded.model.encoder.stack), max_positions(loaded.model.decoder.stack))
    limitations = [
        f"sources and outputs have at most {min(positions, MAX_OUTPUT)} tokens, and outputs at least one",
        "argostranslate splits a text into sentences, and has to download a model for it at its first use",
        "argostranslate writes a space for every '_' in an output, a word of the source for <unk>, and does not "
        f"normalize a source's Unicode (the model expects {codec.normalization})",
        *rounding_limitation(options.quantization),
    ]
    readme = README.format(source=options.source_lang, target=options.target_lang)
    (package / "README.md").write_text(readme, encoding="utf-8")
    write_archive(folder)
    return Exported(
        "argostranslate",
        readme,
        "text",
        "argos",
        limitations,
        positions,
        min_length=1,
        max_length=MAX_OUTPUT,
        tolerance=TOLERANCES[options.quantization],
    )


def write_archive(folder: Path) -> Path:
    """Zip the package's folder, with all that is in it by now, into model.argosmodel beside it."""
    archive = folder / ARCHIVE
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as output:
        for path in sorted(folder.glob("translate-*/**/*")):
            if path.is_file():
                info = zipfile.ZipInfo(str(path.relative_to(folder)), DATE)
                info.compress_type, info.create_system, info.external_attr = zipfile.ZIP_DEFLATED, 3, 0o644 << 16
                with path.open("rb") as file, output.open(info, "w") as member:
                    while block := file.read(2**20):
                        member.write(block)
    return archive


README = """# A translation model for argostranslate and LibreTranslate

Written by Dragoman. It needs `pip install argostranslate`. Save this as translate.py, and run
`python translate.py FILE.argosmodel`:

```python
import sys

import argostranslate.package
import argostranslate.translate

argostranslate.package.install_from_path(sys.argv[1])  # once is enough
print(argostranslate.translate.translate(input(), "{source}", "{target}"))
```

The first translation downloads a model that splits texts into sentences.

The folder `model` is for CTranslate2. `export.json` says what was checked, and what differs from the model that was
exported.
"""
