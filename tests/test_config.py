"""A config is right, or one error names every problem with its key, what was found and what is allowed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman import config as configs
from dragoman.cli.main import main
from dragoman.config import Config, explain, load, presets, rehearse, validate
from dragoman.core import yaml
from dragoman.core.errors import ConfigError
from dragoman.core.registry import Part, Registry

TINY = """
data: {train: pairs.tsv}
model:
  width: 8
  encoder: {name: rnn, layers: 1}
  decoder: {name: rnn, layers: 1}
training: {steps: 10, schedule: {name: linear, warmup: 2}}
"""


def written(folder: Path, text: str, name: str = "broken.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(path: Path, sets: list[str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, None, sets or [])
    assert str(caught.value).startswith(f"{caught.value.where}: ")
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


# -- broken configs ----------------------------------------------------------------------------------------------------


class Broken(NamedTuple):
    """A config and, for each of its problems, the words that the sentence about it must hold."""

    about: str
    text: str
    problems: list[list[str]]


DATA = "data: {train: a.tsv}\n"
BROKEN = [
    Broken("empty", "", [["data is missing"]]),
    Broken("a list", "- a\n- b\n", [["mapping", "list"]]),
    Broken("not YAML", DATA + "model: {width: 3\n", [["line", "column", "not valid YAML"]]),
    Broken("a key twice", DATA + "seed: 1\nseed: 2\n", [["line 3", "duplicate", "seed"]]),
    Broken("a number as key", DATA + "1: 2\n", [["key 1", "must be text"]]),
    Broken("a misspelt group", DATA + "modle: {width: 8}\n", [["modle is not an option", "'model'"]]),
    Broken(
        "three misspelt names in one group",
        DATA + "model: {widht: 3, encoder: {name: rnm}, decoder: {name: rnn, layer: 2}}\n",
        [
            ["model.widht is not an option", "did you mean 'width'"],
            ["model.encoder", "'rnm'", "did you mean 'rnn'", "transformer"],
            ["model.decoder.layer is not an option", "did you mean 'layers'"],
        ],
    ),
    Broken(
        "a part inside a part",
        DATA + "model: {decoder: {name: rnn, score: aditive, cell: lstmm}}\n",
        [
            ["model.decoder.score", "'aditive'", "did you mean 'additive'", "scaled_dot"],
            ["model.decoder.cell", "'lstmm'", "'gru' or 'lstm'", "did you mean 'lstm'"],
        ],
    ),
    Broken(
        "options of parts in a list",
        DATA + "training: {validate_metrics: [blue, {name: bleu, tokenise: no}]}\n",
        [
            ["training.validate_metrics.0", "'blue'", "did you mean 'bleu'"],
            ["training.validate_metrics.1.tokenise is not an option", "did you mean 'tokenize'"],
        ],
    ),
    Broken(
        "a weighted corpus",
        "data: {train: [a.tsv, {path: b.tsv, wieght: 2.0}, {weight: 0.0}]}\n",
        [
            ["data.train.1.wieght is not an option", "did you mean 'weight'"],
            ["data.train.2.path is missing"],
            ["data.train.2.weight", "greater than 0", "0.0"],
        ],
    ),
    Broken("no corpus", "data: {train: []}\n", [["data.train", "at least 1"]]),
    Broken("a corpus that is a number", "data: {train: 5}\n", [["data.train.0", "5"]]),
    Broken(
        "numbers of the wrong kind",
        DATA
        + 'training: {steps: 1.5, batch_tokens: "many", keep: true, epochs: 0, clip: -1.0, label_smoothing: 1.0}\n',
        [
            ["training.steps", "integer", "1.5"],
            ["training.batch_tokens", "integer", "'many'"],
            ["training.keep", "integer", "True"],
            ["training.epochs", "greater than 0", "found 0"],
            ["training.clip", "greater than 0", "-1.0"],
            ["training.label_smoothing", "less than 1", "1.0"],
        ],
    ),
    Broken(
        "numbers that are none",
        DATA + "training: {clip: .nan, optimizer: {name: adam, rate: .nan}}\ngeneration: {ratio: .inf}\n",
        [["training.clip", "nan"], ["training.optimizer.rate", "nan"], ["generation.ratio", "finite", "inf"]],
    ),
    Broken(
        "rules between fields, and a wrong type elsewhere",
        DATA
        + "seed: -1\ntokenizer: {source: bpe, target: characters, joint: true}\n"
        + "training: {steps: 10, schedule: {name: linear, warmup: 20}, average: 4, keep: 3, best: blue}\n",
        [
            ["seed", "greater than or equal to 0", "-1"],
            ["tokenizer.target", "joint"],
            ["training.schedule.warmup is 20", "10"],
            ["training.average is 4", "3"],
            ["training.best is 'blue'", "loss"],
        ],
    ),
    Broken(
        "rules between groups, and a wrong type elsewhere",
        "seed: x\ndata: {train: a.tsv, max_source: 100, max_target: 50}\n"
        + "model: {encoder: {name: transformer, position: {name: learned, length: 64}}}\n"
        + "training: {patience: 3}\n",
        [
            ["seed", "integer", "'x'"],
            ["data.valid is missing", "training.patience"],
            ["data.max_source is 100", "model.encoder.position", "64"],
        ],
    ),
    Broken(
        "a name that is no folder's, a seed that is too large",
        DATA + "name: ../escape\nseed: 99999999999999999999\n",
        [["name", "folder", "'../escape'"], ["seed", "less than", "99999999999999999999"]],
    ),
    Broken("columns", "data: {train: a.tsv, columns: [source, taget]}\n", [["data.columns.1", "'taget'", "'target'"]]),
    Broken(
        "columns without a target", "data: {train: a.tsv, columns: [source, '-']}\n", [["data.columns", "'target'"]]
    ),
    Broken("an unknown preset", "preset: dats\n" + DATA, [["preset", "'dats'", "did you mean 'dates'"]]),
    Broken("a preset that is a list", "preset: [dates]\n" + DATA, [["preset", "dates"]]),
    Broken("a group that is a word", DATA + "model: rnn\n", [["model", "mapping", "'rnn'"]]),
    Broken("a part that is a list", DATA + "model: {encoder: [rnn]}\n", [["model.encoder", "encoder", "['rnn']"]]),
    Broken("code by key", DATA + "model: {_target_: os.system}\n", [["model._target_ is not an option"]]),
    Broken("code by tag", DATA + "model: !!python/object/apply:os.system [touch owned]\n", [["line 2", "tag"]]),
    Broken(
        "heads that do not divide the width",
        DATA + "model: {width: 64, encoder: {name: transformer, heads: 3}}\n",
        [["model", "64", "3 heads"]],
    ),
    Broken(
        "a tie that does not fit", DATA + "model: {width: 16, decoder: {name: rnn, width: 8}}\n", [["tie", "16", "8"]]
    ),
    Broken("a model larger than any memory", DATA + "model: {width: 6000000}\n", [["model", "memory"]]),
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.about)
def test_every_problem_is_named_with_its_key_what_was_found_and_what_is_allowed(broken: Broken, tmp_path: Path) -> None:
    found = problems_of(written(tmp_path, broken.text))
    assert len(found) == len(broken.problems), found
    for words in broken.problems:
        matching = [sentence for sentence in found if all(word in sentence for word in words)]
        assert len(matching) == 1, (words, found)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("missing.yaml", None, "no such file"),
        ("latin.yaml", "name: caf\xe9".encode("latin-1"), "not UTF-8"),
        ("folder.yaml", "folder", "cannot be read"),
        ("huge.yaml", b"#" * 1_000_001, "1,000,000"),
        ("deep.yaml", b"a: " + b"[" * 1000, "not a config"),
        (
            "bomb.yaml",
            ("a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))).encode(),
            "aliases",
        ),
    ],
)
def test_a_file_that_is_no_config_is_refused_in_one_sentence(
    tmp_path: Path, name: str, content: bytes | str | None, word: str
) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "folder":
        path.mkdir()
    (problem,) = problems_of(path)
    assert word in problem


@pytest.mark.parametrize("text", ["model", "=3", "model..width=3", ".=1", "model.width=["])
def test_a_set_that_is_no_assignment_names_itself(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="--set") as caught:
        load(written(tmp_path, TINY), None, [text])
    assert text in caught.value.where


def test_the_command_line_shows_the_same_problems_exits_with_2_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for i, broken in enumerate(BROKEN):
        path = written(tmp_path, broken.text, f"broken{i}.yaml")
        before = sorted(tmp_path.iterdir())
        if broken.about == "a part inside a part":  # one as a process of its own, the others in this one to save time
            command = [sys.executable, "-m", "dragoman", "train", path.name]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            code, out, err = done.returncode, done.stdout, done.stderr
        else:
            monkeypatch.setattr(sys, "argv", ["dragoman", "train", path.name])
            with pytest.raises(SystemExit) as ended:
                main()
            code, (out, err) = ended.value.code, capsys.readouterr()
        assert (code, out) == (2, ""), broken.about
        assert "Traceback" not in err
        for words in broken.problems:
            assert any(all(word in line for word in words) for line in err.split("\n")), (words, err)
        assert sorted(tmp_path.iterdir()) == before


# -- layers ------------------------------------------------------------------------------------------------------------


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
    origins = {key: origin for key, _, origin in explain(loaded)}
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
    origins = {key: origin for key, _, origin in explain(loaded) if key.startswith("model.encoder.")}
    assert origins.pop("model.encoder.name") == str(path)
    assert set(origins.values()) == {"default"}


def test_naming_the_same_part_again_keeps_its_options(tmp_path: Path) -> None:
    path = written(tmp_path, "preset: dates\ndata: {train: a.tsv, valid: b.tsv}\nmodel: {decoder: rnn}\n")
    loaded = load(path, None, ["model.encoder.name=rnn"])
    for part in (loaded.config.model.decoder, loaded.config.model.encoder):  # type: ignore[attr-defined]
        assert (part.options["cell"], part.options["width"]) == ("gru", 128)
    origins = {key: origin for key, _, origin in explain(loaded)}
    assert origins["model.decoder.width"] == "preset dates"


def test_options_may_be_added_to_a_part_named_before_by_its_bare_name(tmp_path: Path) -> None:
    path = written(tmp_path, TINY + "tokenizer: {source: bpe}\n")
    loaded = load(path, None, ["tokenizer.source.size=300"])
    assert (loaded.config.tokenizer.source.name, loaded.config.tokenizer.source.options["size"]) == ("bpe", 300)
    origins = {key: origin for key, _, origin in explain(loaded)}
    assert origins["tokenizer.source.name"] == str(path)
    assert origins["tokenizer.source.size"] == "--set tokenizer.source.size"


def test_explain_lists_every_value_of_the_config_once(tmp_path: Path) -> None:
    loaded = load(written(tmp_path, TINY))

    def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
        if not isinstance(value, dict):
            return {".".join(path): value}
        return {key: item for name, one in value.items() for key, item in leaves(one, (*path, name)).items()}

    shown = list(explain(loaded))
    assert {key: value for key, value, _ in shown} == leaves(loaded.config.plain())
    assert len({key for key, _, _ in shown}) == len(shown)


def test_yaml_traps_are_closed(tmp_path: Path) -> None:
    config = load(written(tmp_path, TINY + "name: no\n"), None, ["training.optimizer={name: adam, rate: 1e-4}"]).config
    assert config.name == "no"
    assert config.training.optimizer.options["rate"] == 1e-4
    assert load(written(tmp_path, TINY + "name: 2024-01-02\n")).config.name == "2024-01-02"


# -- presets, and texts that load to the same --------------------------------------------------------------------------


@pytest.mark.parametrize("preset", presets())
def test_every_preset_is_right_once_it_has_data(preset: str) -> None:
    text = (resources.files("dragoman.presets") / f"{preset}.yaml").read_text(encoding="utf-8")
    value = yaml.parse(text, preset)  # validated, not rehearsed: at full size that takes seconds for each
    config = validate({**value, "data": {**value.get("data", {}), "train": "a.tsv", "valid": "b.tsv"}}, preset)
    assert presets()[preset], "the first line of a preset says what it is"
    assert validate(yaml.parse(config.text(), "saved"), "saved") == config


@given(
    preset=st.sampled_from(["dates", "pronunciation", "rnn-attention"]),
    name=st.text(min_size=1, max_size=20).filter(lambda s: s.isprintable() and "/" not in s and s[0] != "."),
    train=st.lists(st.tuples(st.text(min_size=1, max_size=30), st.floats(0.01, 100.0)), min_size=1, max_size=3),
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
    value = yaml.parse((Path(configs.__file__).parent / "presets" / f"{preset}.yaml").read_text("utf-8"), preset)
    value["name"], value["seed"] = name, seed
    value["data"] = {"train": [{"path": path, "weight": weight} for path, weight in train], "valid": "valid.tsv"}
    value["training"] |= {"validate_metrics": metrics, "best": [*metrics, "loss"][0], "freeze": freeze}
    value["training"]["optimizer"]["rate"] = rate
    config = validate(value, "made up")
    again = validate(yaml.parse(config.text(), "saved"), "saved")
    assert again == config
    assert again.text() == config.text()


# -- rehearsal and schema ----------------------------------------------------------------------------------------------


def test_a_rehearsal_leaves_the_random_numbers_as_they_were(tmp_path: Path) -> None:
    config = load(written(tmp_path, TINY)).config
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert rehearse(config) == []
    assert torch.equal(torch.rand(3), expected)


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
            inside = [*info.metadata, info.annotation, *configs._arguments(info.annotation)]
            here = variants(node["properties"][name])
            for kind in inside:
                if isinstance(kind, Registry):
                    for part in kind.names:
                        (one,) = (v for v in here if v.get("properties", {}).get("name", {}).get("const") == part)
                        seen.add((kind.kind, part))
                        compare(kind.schema(part).model_fields, one)
                elif isinstance(kind, type) and issubclass(kind, configs.Options):
                    compare(kind.model_fields, next(v for v in here if "properties" in v))

    compare(Config.model_fields, schema)
    assert "preset" in schema["properties"]
    assert {("encoder", "rnn"), ("decoder", "transformer"), ("score", "additive"), ("search", "beam")} <= seen
    assert {("metric", "bleu"), ("optimizer", "adamw"), ("schedule", "plateau"), ("tokenizer", "bpe")} <= seen


def test_a_config_does_not_change_after_it_was_checked(tmp_path: Path) -> None:
    config: Any = load(written(tmp_path, TINY)).config
    with pytest.raises(ValueError, match="frozen"):
        config.training.steps = 5
    with pytest.raises(TypeError):
        config.model.encoder.options["layers"] = 2
    assert isinstance(config.model.encoder, Part)


def test_one_table_for_two_vocabularies_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.tie is 'all', but tokenizer\.joint is false"):
        configs.load(None, "transformer-tiny", ["data.train=a.tsv", "tokenizer.joint=false"])


def test_a_mapping_without_a_name_means_the_default_part() -> None:
    config = configs.load(None, None, ["data.train=a.tsv", "model.decoder.layers=2"]).config
    assert config.model.decoder.name == "transformer"
    assert config.model.decoder.options["layers"] == 2


def test_a_problem_set_on_the_command_line_says_so() -> None:
    with pytest.raises(ConfigError, match=r"training\.steps: .*\(from --set training\.steps\)"):
        configs.load(None, "dates", ["data.train=a.tsv", "training.steps=0"])
