"""Presets, files and single values, laid one over the other; every value knows where it came from."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from dragoman.config import explain_origins, list_presets, load, validate
from dragoman.core import yaml
from dragoman.core.errors import ConfigError
from dragoman.core.registry import Part

from .conftest import TINY, written


def test_a_file_goes_over_its_preset_and_set_over_both(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "preset: rnn-attention\ndata: {train: a.tsv}\n"
        "model: {width: 32, encoder: {layers: 2}}\ntraining: {steps: 900}\n",
        "mine.yaml",
    )
    loaded = load(path, None, ["model.encoder.layers=3", "training.optimizer.rate=0.5", "name=other"])
    config: Any = loaded.config
    assert config.name == "other"
    assert config.model.width == 32
    assert dict(config.model.encoder.options) == {
        "cell": "lstm",  # of the preset
        "layers": 3,  # of --set
        "width": None,  # nobody's
        "reset": "after",
        "directions": "both",
        "residual": 0,
        "reverse": False,
        "dropout": 0.1,
    }
    assert (config.training.steps, config.training.batch_tokens) == (900, 2048)
    assert (config.training.optimizer.name, config.training.optimizer.options["rate"]) == ("adam", 0.5)
    origins = {key: origin for key, _, origin in explain_origins(loaded)}
    assert origins["model.width"] == origins["training.steps"] == str(path)
    assert origins["model.encoder.name"] == origins["training.batch_tokens"] == "preset rnn-attention"
    assert origins["model.encoder.layers"] == "--set model.encoder.layers"
    assert origins["training.optimizer.rate"] == "--set training.optimizer.rate"
    assert origins["seed"] == origins["model.encoder.width"] == "default"


def test_a_config_is_called_after_its_file_or_its_preset_where_it_does_not_say(tmp_path: Path) -> None:
    assert load(written(tmp_path, TINY, "reverse.words.yaml")).config.name == "reverse"
    assert load(None, "dates", ["data={train: a.tsv, valid: b.tsv}"]).config.name == "dates"


@pytest.mark.parametrize("how", ["encoder: transformer", "encoder: {name: transformer}"])
def test_a_part_under_another_name_starts_over_and_so_do_its_origins(tmp_path: Path, how: str) -> None:
    path = written(tmp_path, f"preset: rnn-attention\ndata: {{train: a.tsv}}\nmodel: {{{how}}}\n")
    loaded = load(path)
    encoder = loaded.config.model.encoder  # type: ignore[attr-defined]
    fresh = load(written(tmp_path, "data: {train: a.tsv}\nmodel: {encoder: transformer}\n", "fresh.yaml")).config
    assert encoder == fresh.model.encoder  # type: ignore[attr-defined]
    origins = {key: origin for key, _, origin in explain_origins(loaded) if key.startswith("model.encoder.")}
    assert origins.pop("model.encoder.name") == str(path)
    assert set(origins.values()) == {"default"}


def test_another_search_drops_the_options_of_earlier_layers_that_it_does_not_take(tmp_path: Path) -> None:
    path = written(tmp_path, "preset: bahdanau2015\ndata: {train: a.tsv}\ngeneration: {min_new_tokens: 2}\n")
    assert load(path).config.generation.explicit == {"beam": 12, "length_rule": Part("none"), "min_new_tokens": 2}
    for search, kept in (("greedy", []), ("diverse", ["beam", "length_rule"])):
        loaded = load(path, None, [f"generation.search={search}"])
        generation, origins = loaded.config.generation, {key: origin for key, _, origin in explain_origins(loaded)}
        assert set(generation.explicit) == {"search", "min_new_tokens", *kept}
        assert origins["generation.search"] == "--set generation.search"
        assert origins["generation.beam"] == ("preset bahdanau2015" if kept else "default")
    greedy = load(path, None, ["training.validate_generation.beam=3", "training.validate_generation.search=greedy"])
    assert set(greedy.config.training.validate_generation.explicit) == {"search"}
    with pytest.raises(
        ConfigError, match="beam is not an option of the search 'greedy': set search to beam or diverse"
    ):
        load(path, None, ["generation={search: greedy, beam: 3}"])


def test_options_inside_a_search_are_fields_beside_it_and_the_later_layer_wins(tmp_path: Path) -> None:
    path = written(
        tmp_path, "preset: bahdanau2015\ndata: {train: a.tsv}\ngeneration: {search: {name: beam, beam: 3}}\n"
    )
    assert load(path).config.generation.explicit == {"beam": 3, "length_rule": Part("none")}
    for later in ("generation.beam=4", "generation.search.beam=4", "generation.search={name: beam, beam: 4}"):
        assert load(path, None, [later]).config.generation.beam == 4


def test_naming_the_same_part_again_keeps_its_options(tmp_path: Path) -> None:
    path = written(tmp_path, "preset: dates\ndata: {train: a.tsv, valid: b.tsv}\nmodel: {decoder: rnn}\n")
    loaded = load(path, None, ["model.encoder.name=rnn"])
    for part in (loaded.config.model.decoder, loaded.config.model.encoder):  # type: ignore[attr-defined]
        assert (part.options["cell"], part.options["width"]) == ("gru", 128)
    origins = {key: origin for key, _, origin in explain_origins(loaded)}
    assert origins["model.decoder.width"] == "preset dates"


def test_options_may_be_added_to_a_part_named_before_by_its_bare_name(tmp_path: Path) -> None:
    path = written(tmp_path, TINY + "tokenizer: {source: bpe}\n")
    loaded = load(path, None, ["tokenizer.source.size=300"])
    assert (loaded.config.tokenizer.source.name, loaded.config.tokenizer.source.options["size"]) == ("bpe", 300)
    origins = {key: origin for key, _, origin in explain_origins(loaded)}
    assert origins["tokenizer.source.name"] == str(path)
    assert origins["tokenizer.source.size"] == "--set tokenizer.source.size"


def test_explain_lists_every_value_of_the_config_once(tmp_path: Path) -> None:
    loaded = load(written(tmp_path, TINY))

    def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
        if not isinstance(value, dict):
            return {".".join(path): value}
        return {key: item for name, one in value.items() for key, item in leaves(one, (*path, name)).items()}

    shown = list(explain_origins(loaded))
    assert {key: value for key, value, _ in shown} == leaves(loaded.config.model_dump())
    assert len({key for key, _, _ in shown}) == len(shown)


def test_yaml_traps_are_closed(tmp_path: Path) -> None:
    config = load(written(tmp_path, TINY + "name: no\n"), None, ["training.optimizer={name: adam, rate: 1e-4}"]).config
    assert config.name == "no"
    assert config.training.optimizer.options["rate"] == 1e-4
    assert load(written(tmp_path, TINY + "name: 2024-01-02\n")).config.name == "2024-01-02"


@pytest.mark.parametrize("text", ["model", "=3", "model..width=3", ".=1", "model.width=["])
def test_a_set_that_is_no_assignment_names_itself(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="--set") as caught:
        load(written(tmp_path, TINY), None, [text])
    assert text in caught.value.where


def test_a_mapping_without_a_name_means_the_default_part() -> None:
    config = load(None, None, ["data.train=a.tsv", "model.decoder.layers=2"]).config
    assert config.model.decoder.name == "transformer"
    assert config.model.decoder.options["layers"] == 2


def test_a_problem_set_on_the_command_line_says_so() -> None:
    with pytest.raises(ConfigError, match=r"training\.steps: .*\(from --set training\.steps\)"):
        load(None, "dates", ["data.train=a.tsv", "training.steps=0"])


def test_a_later_layers_fewer_steps_shrink_an_earlier_layers_warm_up(tmp_path: Path) -> None:
    model = TINY.partition("training:")[0]
    path = written(tmp_path, model + "training: {schedule: {name: linear, warmup: 500}, steps: 2000}\n")
    loaded = load(path, None, ["training.steps=300"])
    assert loaded.config.training.schedule.options["warmup"] == 30
    assert "500 would exceed" in loaded.origins["training.schedule.warmup"]
    assert load(path, None, ["training.steps=600"]).config.training.schedule.options["warmup"] == 500
    assert (
        load(None, "transformer-base", ["data.train=a.tsv", "training.steps=40"]).config.training.schedule.options[
            "warmup"
        ]
        == 4
    )
    default = written(tmp_path, model + "training: {steps: 300}\n")  # of a schedule that nobody named
    assert load(default).config.training.schedule.options["warmup"] == 30
    both = ["training.steps=300", "training.schedule.warmup=400"]
    with pytest.raises(ConfigError, match="warmup is 400"):  # whoever names both is told
        load(path, None, both)


@pytest.mark.parametrize("preset", list_presets())
def test_every_preset_is_right_once_it_has_data(preset: str) -> None:
    text = (resources.files("dragoman.presets") / f"{preset}.yaml").read_text(encoding="utf-8")
    value = yaml.parse(text, preset)  # validated, not rehearsed: at full size that takes seconds for each
    config = validate({**value, "data": {**value.get("data", {}), "train": "a.tsv", "valid": "b.tsv"}}, preset)
    assert list_presets()[preset], "the first line of a preset says what it is"
    assert validate(yaml.parse(config.to_yaml(), "saved"), "saved") == config
