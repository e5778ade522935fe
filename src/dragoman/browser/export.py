"""Models in one HTML file that opens anywhere, and a model as ES modules for pages and for Node.

    name → Pipeline ─export_page→ OUT.html       the playground, the engine, and the models as text in data blocks
    Pipeline ─export_modules→ folder             index.js, types, engine/*.js, model.json, weights.bin, manifest.json

A data block is base64 of bytes, compressed where that makes it smaller. The page's script holds the size and the
SHA-256 of each header, a header those of its weights, and the page's policy allows the script by its hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Any

from dragoman.browser.data_blocks import encode_block
from dragoman.browser.description import describe_model, model_card
from dragoman.browser.engine_script import module_names, read_module
from dragoman.browser.model_data import FORMAT, Precision, model_data
from dragoman.browser.page_html import render_page
from dragoman.browser.page_script import build_page_script
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.inference.pipeline import Pipeline
from dragoman.version import __version__


def export_page(
    pipelines: Mapping[str, Pipeline],
    out: Path,
    precision: Precision = "int8",
    *,
    inputs: Iterable[str | Path] = (),
    today: str | None = None,
) -> int:
    """Write models into one HTML file and return its size; UserError if the engine cannot compute one of them."""
    page = build_page(pipelines, precision, today or date.today().isoformat()).encode()
    files.make_folder(out.parent)
    with files.open_output(out, inputs) as file:
        file.write(page)
    return len(page)


def build_page(pipelines: Mapping[str, Pipeline], precision: Precision, today: str) -> str:
    """Return the HTML of a page with these models, by name."""
    models: list[dict[str, Any]] = []
    blocks: dict[str, str] = {}
    for index, (name, pipeline) in enumerate(pipelines.items()):
        header, weights = named_model_data(name, pipeline, precision)
        description = describe_model(name, pipeline)
        card = model_card(name, pipeline, header, description, today)
        content = {"engine": header, "description": description, "card": card}
        model: dict[str, Any] = {"name": name}
        for part, data in (("header", to_json(content)), ("weights", weights)):
            block = encode_block(data)
            blocks[f"{part}-{index}"] = block["text"]
            model[part] = {name: value for name, value in block.items() if name != "text"}
        models.append(model)
    return render_page(" and ".join(pipelines), build_page_script(models), blocks)


def named_model_data(name: str, pipeline: Pipeline, precision: Precision) -> tuple[dict[str, Any], bytes]:
    """Return header and tensors of a model; an error names the model."""
    try:
        return model_data(pipeline, precision)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def export_modules(pipeline: Pipeline, folder: Path, precision: Precision = "int8", *, name: str = "model") -> int:
    """Write a model with the engine as ES modules and return the size of all files; `folder` must not exist."""
    header, weights = named_model_data(name, pipeline, precision)
    data = {"model.json": to_json(header), "weights.bin": weights}
    described = {file: describe_bytes(content) for file, content in data.items()}
    package = resources.files("dragoman.browser") / "package"
    texts = {
        "index.js": (package / "index.js").read_text("utf-8"),
        "index.d.ts": (package / "index.d.ts").read_text("utf-8"),
        "README.md": (package / "README.md").read_text("utf-8"),
        "package.json": json.dumps(package_description(name), indent=2) + "\n",
        "manifest.json": json.dumps({"format": FORMAT, "name": name, "files": described}, indent=2) + "\n",
    }
    engine = {f"{module}.js": read_module(module).encode() for module in module_names()}
    written = data | {file: text.encode() for file, text in texts.items()}
    size = sum(map(len, (written | engine).values()))
    with files.new_folder(folder, size) as temporary:
        for file, content in written.items():
            (temporary / file).write_bytes(content)
        (temporary / "engine").mkdir()
        for file, content in engine.items():
            (temporary / "engine" / file).write_bytes(content)
        for path in temporary.rglob("*"):
            files.flush_to_disk(path)
    return size


def package_description(name: str) -> dict[str, Any]:
    """Return the package.json by which Node and bundlers find the module and its types."""
    plain = "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in name.lower()).strip("-")
    return {
        "name": plain or "model",
        "version": "1.0.0",
        "private": True,
        "description": f"A model of Dragoman {__version__} and the engine that computes it",
        "type": "module",
        "main": "./index.js",
        "types": "./index.d.ts",
        "exports": {".": {"types": "./index.d.ts", "default": "./index.js"}, "./*": "./*"},
    }


def describe_bytes(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def to_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")
