"""The typed config: its text loads to the same, its JSON schema lists every option, and it does not change."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config import Config, load, validate
from dragoman.config.schema import nested_types
from dragoman.core import yaml
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import Options, Part, Registry

from .conftest import TINY, written

# The standard input is no file to train on, and is refused.
PATHS = st.text(min_size=1, max_size=30).filter(lambda path: path != "-")


@given(
    preset=st.sampled_from(["dates", "pronunciation", "rnn-attention"]),
    name=st.text(min_size=1, max_size=20).filter(lambda s: s.isprintable() and "/" not in s and s[0] != "."),
    train=st.lists(st.tuples(PATHS, st.floats(0.01, 100.0)), min_size=1, max_size=3),
    seed=st.integers(0, 2**63 - 1),
    rate=st.floats(1e-9, 10.0),
    metrics=st.lists(st.sampled_from(["bleu", "chrf", "exact", "per"]), unique=True),
    freeze=st.lists(st.text(max_size=5), max_size=2),
)
@settings(max_examples=60)
def test_the_text_of_a_config_loads_to_an_equal_config(
    preset: str,
    name: str,
    train: list[tuple[str, float]],
    seed: int,
    rate: float,
    metrics: list[str],
    freeze: list[str],
) -> None:
    value = yaml.parse((resources.files("dragoman.presets") / f"{preset}.yaml").read_text("utf-8"), preset)
    value["name"], value["seed"] = name, seed
    value["data"] = {"train": [{"path": path, "weight": weight} for path, weight in train], "valid": "valid.tsv"}
    value["training"] |= {"validate_metrics": metrics, "best": [*metrics, "loss"][0], "freeze": freeze}
    value["training"]["optimizer"]["rate"] = rate
    config = validate(value, "made up")
    again = validate(yaml.parse(config.to_yaml(), "saved"), "saved")
    assert again == config
    assert again.to_yaml() == config.to_yaml()


def test_the_schema_is_json_whose_references_resolve_and_which_lists_every_option() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "config", "schema"], capture_output=True, text=True, timeout=60, check=True
    )
    schema = json.loads(done.stdout)

    def resolved(node: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in node:
            prefix, _, name = node["$ref"].rpartition("/")
            assert prefix == "#/$defs"
            node = schema["$defs"][name]
        return node

    def variants(node: dict[str, Any]) -> list[dict[str, Any]]:
        node = resolved(node)
        inner = [variant for one in node.get("anyOf", []) for variant in variants(one)]
        return [node, *inner, *(variants(node["items"]) if "items" in node else [])]

    seen = set()

    def compare(fields: dict[str, Any], node: dict[str, Any]) -> None:
        assert node["additionalProperties"] is False
        assert set(fields) <= set(node["properties"])
        for name, info in fields.items():
            here = variants(node["properties"][name])
            for kind in nested_types(info):
                if isinstance(kind, Registry):
                    for part in kind.names:
                        (one,) = (v for v in here if v.get("properties", {}).get("name", {}).get("const") == part)
                        seen.add((kind.kind, part))
                        compare(kind.schema(part).model_fields, one)
                elif isinstance(kind, type) and issubclass(kind, Options):
                    compare(kind.model_fields, next(v for v in here if "properties" in v))

    compare(Config.model_fields, schema)
    assert "preset" in schema["properties"]
    generation = resolved(schema["properties"]["generation"])["properties"]
    for name, info in GenerationOptions.model_fields.items():
        assert generation[name]["description"] == info.description
    assert {("encoder", "rnn"), ("decoder", "transformer"), ("score", "additive")} <= seen
    assert {("metric", "bleu"), ("optimizer", "adamw"), ("schedule", "plateau"), ("tokenizer", "bpe")} <= seen


def test_a_config_does_not_change_after_it_was_checked(tmp_path: Path) -> None:
    config: Any = load(written(tmp_path, TINY)).config
    with pytest.raises(ValueError, match="frozen"):
        config.training.steps = 5
    with pytest.raises(TypeError):
        config.model.encoder.options["layers"] = 2
    assert isinstance(config.model.encoder, Part)
