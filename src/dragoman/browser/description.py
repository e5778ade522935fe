"""What a page says of a model: the description that the playground asks for, and a card for people.

The description has the fields of GET /v1/models of `dragoman serve` that a page of texts reads; tests hold both equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dragoman.checkpoint import model_folder
from dragoman.checkpoint.kept_examples import read_examples
from dragoman.core.types import Example
from dragoman.inference.pipeline import Pipeline
from dragoman.version import __version__

CARD_FILE = "card.json"  # of a packed model
MAX_CARD_BYTES = 2**20
MAX_LICENSE = 500  # characters
VIEWS = {"pairs": ["alignment", "beam", "steps"], "language model": ["beam", "steps"], "labels": []}
STORAGE = {"int8": "8-bit whole numbers, a scale for each row", "float16": "16 bits", "float32": "32 bits"}


def describe_model(name: str, pipeline: Pipeline) -> dict[str, Any]:
    """Return the description of a model whose views are computed in a browser."""
    model, codec, options = pipeline.model, pipeline.codec, pipeline.config.model
    kind = "language model" if pipeline.continues_text else "labels" if model.head is not None else "pairs"
    examples = [] if pipeline.path is None else read_examples(pipeline.path)
    return {
        "name": name,
        "source": "text",
        "second_source": None,
        "accepts": [],
        "languages": codec.target_languages,
        "source_languages": codec.source_languages,
        "kind": kind,
        "shape": {
            "encoder": options.encoder.name,
            "decoder": None if options.decoder is None else options.decoder.name,
            "width": options.width,
            "parameters": sum(p.numel() for p in model.parameters()),
            "source_vocabulary": len(codec.source),
            "source_tokenizer": codec.source.kind,
            "target_vocabulary": len(codec.target),
        },
        "device": "this browser",
        "example": _example(pipeline, examples),
        "metrics": [],
        "views": VIEWS[kind] + (["examples"] if examples else []),
        "has_head_switches": False,
    }


def _example(pipeline: Pipeline, examples: list[Example]) -> dict[str, Any]:
    """The first kept validation pair; without one, the languages to begin with."""
    languages = pipeline.codec.target_languages
    first = examples[0] if examples else Example("", target_lang=languages[0] if languages else None)
    return {"source": first.source, "source_lang": first.source_lang, "target_lang": first.target_lang}


def model_card(
    name: str, pipeline: Pipeline, header: Mapping[str, Any], description: Mapping[str, Any], date: str
) -> list[tuple[str, str]]:
    """Return the lines of a model's card, each a name and a text."""
    shape = description["shape"]
    parts = f"{shape['encoder']} encoder, {shape['decoder']} decoder"
    if shape["decoder"] is None:
        parts = f"{shape['encoder']} encoder, {pipeline.config.model.head.name} head"  # type: ignore[union-attr]
    elif shape["encoder"] == "none":
        parts = f"{shape['decoder']} decoder without an encoder"
    codec = pipeline.codec
    source = f"{codec.source.kind}, {shape['source_vocabulary']:,} tokens"
    target = f"{codec.target.kind}, {shape['target_vocabulary']:,} tokens"
    megabytes = header["size"] / 1e6
    lines = [
        ("model", name),
        ("parts", f"{parts}, width {shape['width']}"),
        ("parameters", f"{shape['parameters']:,}"),
        ("weights", f"{header['precision']} ({STORAGE[header['precision']]}), {megabytes:.1f} MB before compression"),
        ("tokenizer", f"{source}, of both sides" if codec.is_joint else f"source: {source}; target: {target}"),
        ("license", read_license(pipeline) or "not stated; ask whoever gave you this file"),
        ("written", f"{date} by Dragoman {__version__}"),
    ]
    if codec.target_languages:
        lines.insert(4, ("languages", ", ".join(codec.target_languages)))
    return lines


def read_license(pipeline: Pipeline) -> str | None:
    """Return the license on the card of a packed model; None where it states none."""
    if pipeline.path is None or CARD_FILE not in model_folder.read_manifest(pipeline.path):
        return None
    with model_folder.open_model_file(pipeline.path / CARD_FILE) as (file, _):
        data = file.read(MAX_CARD_BYTES)
    try:
        card = json.loads(data)
    except (ValueError, RecursionError):
        return None
    license = card.get("license") if isinstance(card, dict) else None
    return license[:MAX_LICENSE] if isinstance(license, str) else None
