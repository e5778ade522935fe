"""A model folder is complete, unchanged and made of plain files, or it is refused in one sentence; it runs no code."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import resource
import shutil
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.checkpoint import model_folder
from dragoman.config import Config
from dragoman.core.errors import FormatError, ModelError, UserError
from dragoman.core.registry import Part
from dragoman.core.types import EOS, Batch
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.optim.schedules import schedules
from dragoman.text.codec import Codec
from dragoman.training import state
from dragoman.training.averaging import MovingAverage, temporary_weights

TEXTS = ["ab ba", "abc cab bac", "a b c d", "dada bcd"]


def tiny(**model: object) -> Config:
    value = {
        "data": {"train": "nowhere.tsv"},
        "tokenizer": {"source": "characters", "joint": True},
        "model": {
            "width": 16,
            "tie": "all",
            "encoder": {"name": "transformer", "layers": 1, "heads": 2},
            "decoder": {"name": "transformer", "layers": 1, "heads": 2},
            **model,
        },
    }
    return configs.validate(value, "tiny")


def learned(config: Config) -> Codec:
    tokenizing = config.tokenizer
    return learn_codec(
        tokenizing.source, tokenizing.target or tokenizing.source, tokenizing.joint, "nfc", TEXTS, TEXTS, ["<to:de>"]
    )


def save(folder: Path, config: Config) -> None:
    codec = learned(config)
    model = configs.build_model(config, len(codec.source), len(codec.target))
    model_folder.save(folder, config, model_folder.unique_weights(model), codec, {})


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save(folder, tiny())
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


def sign(folder: Path) -> None:
    """A manifest that fits whatever is in the folder: what someone would do who wants to be believed."""
    (folder / "manifest.json").write_bytes(model_folder.build_manifest(contents(folder)))


def sign_manifest(folder: Path, value: dict[str, object]) -> None:
    """A manifest of any content with a digest that fits, as the header of the module describes it."""
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    text = json.dumps(value | {"sha256": digest}, indent=1, sort_keys=True) + "\n"
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def outputs(opened: model_folder.LoadedModel) -> torch.Tensor:
    ids = torch.tensor([[*opened.codec.source.encode("abc"), EOS]])
    lengths = torch.tensor([4])
    with torch.no_grad():
        return opened.model(Batch(ids, lengths, ids, lengths))[0]


# -- saved and loaded --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["characters", "bytes", "words", "symbols", "bpe", "unigram"])
def test_a_saved_model_loads_equal(tmp_path: Path, tokenizer: str) -> None:
    size = (
        {"size": 300 if tokenizer == "bpe" else 290, "byte_fallback": True} if tokenizer in ("bpe", "unigram") else {}
    )
    config = tiny()
    config = config.model_copy(
        update={
            "tokenizer": configs.TokenizerOptions.model_validate({"source": {"name": tokenizer, **size}, "joint": True})
        }
    )
    codec = learned(config)
    model = configs.build_model(config, len(codec.source), len(codec.target))
    model_folder.save(tmp_path / "model", config, model_folder.unique_weights(model), codec, {})
    opened = model_folder.load(tmp_path / "model")
    assert opened.config == config
    assert opened.codec.fingerprint == codec.fingerprint
    assert not opened.model.training
    for name, p in model.named_parameters():
        assert torch.equal(p, opened.model.get_parameter(name)), name


def test_a_model_can_be_handed_on_without_the_state_of_its_training(tmp_path: Path) -> None:
    config = tiny()
    codec = learned(config)
    model = configs.build_model(config, len(codec.source), len(codec.target))
    folder = tmp_path / "checkpoints" / "step-3"
    model_folder.save(folder, config, model_folder.unique_weights(model), codec, {"training.json": b"{}"})
    whole = outputs(model_folder.load(folder))
    (folder / "training.json").unlink()
    assert torch.equal(outputs(model_folder.load(folder)), whole)
    assert model_folder.latest_checkpoint(tmp_path)[0] is None  # but nothing can be resumed from it


def test_a_folder_can_be_moved_anywhere(original: Path, tmp_path: Path) -> None:
    away = Path(shutil.copytree(original, tmp_path / "some" / "other place"))
    here, there = model_folder.load(original), model_folder.load(away)
    assert torch.equal(outputs(here), outputs(there))
    for path in original.iterdir():
        assert str(original.parent).encode() not in path.read_bytes()


@pytest.mark.parametrize(("tie", "tables"), [("all", 1), ("output", 2), ("none", 3)])
def test_a_tied_table_is_stored_once_and_tied_again_when_loaded(tmp_path: Path, tie: str, tables: int) -> None:
    config = tiny(tie=tie)
    save(tmp_path / "model", config)
    size = len(learned(config).source)
    stored = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    assert sum(tuple(x.shape) == (size, 16) for x in stored.values()) == tables
    model = model_folder.load(tmp_path / "model").model
    shared = model.embedding.table.weight is model.output.weight
    assert shared == (tie != "none")
    assert (model.frontend.table.weight is model.output.weight) == (tie == "all")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_permissions_follow_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        save(tmp_path / "model", tiny())
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()}
    assert set(modes.values()) == {mode}, modes
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o777 & ~umask


def test_the_manifest_lists_size_and_sha256_of_every_other_file(original: Path) -> None:
    manifest = json.loads((original / "manifest.json").read_text())
    assert manifest["files"] == {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in contents(original).items()
    }


def test_a_folder_that_cannot_be_written_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot be written"):
        save(tmp_path / "file" / "model", tiny())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# -- damage (FAULTS 6) -------------------------------------------------------------------------------------------------


def truncate(folder: Path, rng: random.Random) -> str:
    path = rng.choice(sorted(folder.iterdir()))
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])
    return f"truncate {path.name}"


def empty(folder: Path, rng: random.Random) -> str:
    path = rng.choice(sorted(folder.iterdir()))
    path.write_bytes(b"")
    return f"empty {path.name}"


def flip(folder: Path, rng: random.Random) -> str:
    path = rng.choice(sorted(folder.iterdir()))
    data = bytearray(path.read_bytes())
    bit = rng.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return f"flip bit {bit} of {path.name}"


def swap(folder: Path, rng: random.Random) -> str:
    a, b = rng.sample(sorted(folder.iterdir()), 2)
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)
    return f"swap {a.name} and {b.name}"


def delete(folder: Path, rng: random.Random) -> str:
    path = rng.choice(sorted(folder.iterdir()))
    path.unlink()
    return f"delete {path.name}"


def extend(folder: Path, rng: random.Random) -> str:
    path = rng.choice(sorted(folder.iterdir()))
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(1, 50)))
    return f"extend {path.name}"


MUTATIONS: list[Callable[[Path, random.Random], str]] = [truncate, empty, flip, swap, delete, extend]


def attempt(folder: Path) -> BaseException | None:
    """What comes of loading a folder."""
    try:
        model_folder.load(folder)
    except BaseException as error:
        return error
    return None


def test_a_hundred_random_mutations_are_all_detected(original: Path, tmp_path: Path) -> None:
    seed = torch.initial_seed()
    rng = random.Random(seed)
    for i in range(120):
        folder = Path(shutil.copytree(original, tmp_path / f"mutant{i}"))
        what = MUTATIONS[i % len(MUTATIONS)](folder, rng)
        refusal = attempt(folder)
        assert isinstance(refusal, ModelError), f"seed {seed}: {what} gave {refusal!r}"
        assert str(folder) in str(refusal), f"seed {seed}: {what}"
        assert "\n" not in str(refusal), f"seed {seed}: {what}"
        shutil.rmtree(folder)


def test_damage_under_a_fresh_manifest_is_refused_or_harmless_but_never_a_crash(original: Path, tmp_path: Path) -> None:
    seed = torch.initial_seed()
    rng = random.Random(seed)
    for i in range(150):
        folder = Path(shutil.copytree(original, tmp_path / f"mutant{i}"))
        what = MUTATIONS[i % len(MUTATIONS)](folder, rng)
        sign(folder)
        refusal = attempt(folder)
        assert refusal is None or isinstance(refusal, UserError), f"seed {seed}: {what} gave {refusal!r}"
        shutil.rmtree(folder)


def test_the_newest_whole_checkpoint_is_found_and_what_was_passed_over_is_named(original: Path, tmp_path: Path) -> None:
    for step in (9, 10, 200):
        shutil.copytree(original, tmp_path / "checkpoints" / f"step-{step}")
    assert [path.name for path in model_folder.list_checkpoints(tmp_path)] == ["step-9", "step-10", "step-200"]
    (tmp_path / "checkpoints" / "step-200" / "model.safetensors").write_bytes(b"")
    found, ignored = model_folder.latest_checkpoint(tmp_path)
    assert found == tmp_path / "checkpoints" / "step-10"
    assert len(ignored) == 1
    assert "step-200" in ignored[0]


# -- malice (FAULTS 7) -------------------------------------------------------------------------------------------------


class Bomb:
    """What a pickle can do to whoever opens it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["model.safetensors", "joint.tokenizer.json", "config.yaml"])
@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_a_pickle_under_another_name_is_refused_and_not_executed(folder: Path, name: str, how: str) -> None:
    mark = folder.parent / "executed"
    if how == "pickle":
        (folder / name).write_bytes(pickle.dumps(Bomb(mark)))
    else:
        torch.save({"weight": Bomb(mark)}, folder / name)
    sign(folder)
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(UserError) as caught:
        model_folder.load(folder)
    assert name in str(caught.value).replace("tokenizer.json", "joint.tokenizer.json")
    assert sorted(folder.parent.rglob("*")) == before
    pickle.loads(pickle.dumps(Bomb(mark)))  # the bomb is a real one
    assert mark.exists()


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/hostname", "sub/inside", "..", ".", "", ".hidden", "a\\b", "a\0b", "\ud800", "a\nb"]
)
def test_a_manifest_may_list_plain_names_only(folder: Path, name: str) -> None:
    (folder.parent / "outside").write_bytes(b"secret")
    (folder / "sub").mkdir()
    (folder / "sub" / "inside").write_bytes(b"secret")
    value = json.loads((folder / "manifest.json").read_text())
    del value["sha256"]
    value["files"][name] = {"bytes": 6, "sha256": hashlib.sha256(b"secret").hexdigest()}
    sign_manifest(folder, value)
    with pytest.raises(ModelError, match=r"manifest\.json"):
        model_folder.load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.yaml", "joint.tokenizer.json", "manifest.json"])
def test_a_link_is_refused_even_to_the_right_bytes(folder: Path, name: str) -> None:
    outside = folder.parent / f"outside-{name}"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    with pytest.raises(ModelError, match="link"):
        model_folder.load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.yaml", "manifest.json"])
def test_a_pipe_or_folder_in_the_place_of_a_file_is_refused_without_waiting(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ModelError):
        model_folder.load(folder)
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(ModelError):
        model_folder.load(folder)


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40, 100_000_000, 10**9])
def test_an_absurd_header_length_is_refused_with_flat_memory(folder: Path, length: int) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + data[8:])
    sign(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError, match="not a safetensors file"):
        model_folder.load(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}},
        {"w": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]}},
        {"w": {"dtype": "F32", "shape": [1], "data_offsets": [2**40, 2**40 + 4]}},
        {"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}},
        {"w": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}},
    ],
)
def test_a_header_that_lies_about_its_tensors_is_refused(folder: Path, header: dict[str, object]) -> None:
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 4)
    sign(folder)
    with pytest.raises(ModelError, match="not a safetensors file"):
        model_folder.load(folder)


@pytest.mark.parametrize("found", [..., None, 0, "1", True, 1.0, -3])
def test_a_model_of_an_earlier_format_is_refused_and_says_how_to_train_it_again(folder: Path, found: object) -> None:
    value = json.loads((folder / "manifest.json").read_text())
    del value["sha256"], value["format"]
    sign_manifest(folder, value if found is ... else value | {"format": found})
    with pytest.raises(ModelError, match="format") as refusal:
        model_folder.load(folder)
    assert f"train it again: dragoman train {folder}/config.yaml --run NEW" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("kind", [..., None, "dragoman", 1])
@pytest.mark.parametrize("number", [1, 2])
def test_a_manifest_without_the_kind_is_of_an_earlier_version_whatever_its_format_number(
    folder: Path, kind: object, number: int
) -> None:
    value = json.loads((folder / "manifest.json").read_text()) | {"format": number}
    del value["sha256"], value["kind"]
    sign_manifest(folder, value if kind is ... else value | {"kind": kind})
    with pytest.raises(FormatError, match="earlier development version") as refusal:
        model_folder.load(folder)
    assert f"train it again: dragoman train {folder}/config.yaml --run NEW" in str(refusal.value)


def test_a_model_of_a_newer_format_says_to_update_whatever_its_manifest_is_like(folder: Path) -> None:
    sign_manifest(folder, {"kind": model_folder.KIND, "format": 2, "contents": []})
    with pytest.raises(ModelError, match="update Dragoman") as refusal:
        model_folder.load(folder)
    assert "train it again" not in str(refusal.value)


@pytest.mark.parametrize(
    "text", [b"[]", b"3", b"{}", b'{"files": []}', b'{"files": {"a": 1}}', b"\xff", b"[" * 100_000, b"9" * 10_000]
)
def test_a_manifest_that_is_none_is_refused(folder: Path, text: bytes) -> None:
    (folder / "manifest.json").write_bytes(text)
    with pytest.raises(ModelError, match=r"manifest\.json"):
        model_folder.load(folder)


def test_a_manifest_must_list_config_and_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    sign(folder)
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        model_folder.load(folder)


@pytest.mark.parametrize(
    "line",
    ["_target_: os.system", "model: {_target_: os.system, width: 16}", "import: os", "model: !!python/name:os.system"],
)
def test_a_config_cannot_name_code(folder: Path, line: str) -> None:
    text = (folder / "config.yaml").read_text()
    kept = text[: text.index("\nmodel:")] + "\n" if line.startswith("model") else text
    (folder / "config.yaml").write_text(kept + line + "\n")
    sign(folder)
    with pytest.raises(UserError, match=r"config\.yaml"):
        model_folder.load(folder)


# -- does not fit ------------------------------------------------------------------------------------------------------


def test_weights_that_do_not_fit_the_config_are_named(folder: Path) -> None:
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    first, second, *_ = sorted(weights)
    weights["extra.weight"] = weights.pop(first)
    weights[second] = torch.zeros(3, 5, 7)
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    sign(folder)
    with pytest.raises(ModelError, match="does not fit the model of the config") as caught:
        model_folder.load(folder)
    assert all(word in str(caught.value) for word in (first, second, "extra.weight", "(3, 5, 7)"))


def test_another_tokenizer_than_the_config_says_is_refused(folder: Path, tmp_path: Path) -> None:
    config = configs.TokenizerOptions.model_validate({"source": "words", "joint": True})
    words = learn_codec(config.source, config.source, True, "nfc", TEXTS, TEXTS, [])
    (folder / "joint.tokenizer.json").write_bytes(words.to_files()["joint.tokenizer.json"])
    sign(folder)
    with pytest.raises(ModelError, match="words"):
        model_folder.load(folder)


# -- which folder is meant ---------------------------------------------------------------------------------------------


def test_a_run_folder_means_its_best_checkpoint_else_its_last(original: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (1, 2):
        shutil.copytree(original, run / "checkpoints" / f"step-{step}")
    (run / "run.json").write_text('{"format": 1}')
    (run / "last").write_text("step-2\n")
    assert model_folder.resolve(run) == run / "checkpoints" / "step-2"
    (run / "best").write_text("step-1\n")
    assert model_folder.resolve(run) == run / "checkpoints" / "step-1"
    for lie in ("../../elsewhere", "/etc", "", "step-9", "..", "\0"):
        (run / "best").write_text(lie)
        assert model_folder.resolve(run) == run / "checkpoints" / "step-2", lie


def test_a_folder_that_is_no_model_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "reverse").mkdir()
    with pytest.raises(ModelError, match="did you mean 'reverse'"):
        model_folder.resolve(tmp_path / "runs" / "revers")
    with pytest.raises(ModelError, match="neither a model folder"):
        model_folder.resolve(tmp_path / "runs")
    (tmp_path / "runs" / "reverse" / "config.yaml").write_text("")
    with pytest.raises(ModelError, match="no checkpoint yet"):
        model_folder.resolve(tmp_path / "runs" / "reverse")
    (tmp_path / "runs" / "file").write_text("")
    with pytest.raises(ModelError, match="neither a folder nor a zip"):
        model_folder.load(tmp_path / "runs" / "file")


# -- averaging ---------------------------------------------------------------------------------------------------------


def test_the_average_is_the_mean_of_every_weight(tmp_path: Path) -> None:
    folders = [tmp_path / f"step-{i}" for i in range(3)]
    for folder in folders:
        save(folder, tiny())
    every = [safetensors.torch.load_file(folder / "model.safetensors") for folder in folders]
    mean = model_folder.average_weights(folders)
    assert mean.keys() == every[0].keys()
    for name, x in mean.items():
        expected = sum(weights[name].double() for weights in every) / 3
        assert x.dtype == torch.float32
        torch.testing.assert_close(x.double(), expected, rtol=1e-6, atol=1e-7)


# -- what is counted along ---------------------------------------------------------------------------------------------


def counting() -> tuple[Config, Seq2Seq]:
    """A model with running averages (batch norm) and a baseline (hard attention), after a little training."""
    config = tiny(
        tie="none",
        encoder={"name": "transformer", "layers": 1, "heads": 2, "norm": "batch"},
        decoder={"name": "rnn", "normalizer": "hard"},
    )
    codec = learned(config)
    model = configs.build_model(config, len(codec.source), len(codec.target)).train()
    step(model)
    return config, model


def step(model: Seq2Seq) -> None:
    """One update by hand; whatever is counted along moves too."""
    ids = torch.randint(4, 8, (3, 5))
    lengths = torch.tensor([5, 3, 4])
    model.zero_grad()
    model.loss(Batch(ids, lengths, ids, lengths)).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad  # type: ignore[operator]


def counted(model: Seq2Seq) -> dict[str, torch.Tensor]:
    kept = model.state_dict().keys()  # not what is computed from the options, such as sinusoids
    return {name: x.clone() for name, x in model.named_buffers() if name in kept}


def test_running_averages_and_the_baseline_are_saved_and_loaded(tmp_path: Path) -> None:
    config, model = counting()
    assert any(name.endswith("running_mean") for name in counted(model))
    assert model.baseline is not None
    assert model.baseline != 0
    model_folder.save(tmp_path / "m", config, model_folder.unique_weights(model), learned(config), {})
    opened = model_folder.load(tmp_path / "m")
    assert counted(opened.model).keys() == counted(model).keys()
    for name, x in counted(opened.model).items():
        assert torch.equal(x, counted(model)[name]), name
    model.eval()
    ids, lengths = torch.randint(4, 8, (2, 3)), torch.tensor([3, 2])
    with torch.no_grad():
        assert torch.equal(*(one(Batch(ids, lengths, ids, lengths)).logits for one in (model, opened.model)))


def test_a_missing_running_average_is_named(tmp_path: Path) -> None:
    _, model = counting()
    weights = model_folder.unique_weights(model)
    del weights["baseline"]
    with pytest.raises(ModelError, match="'baseline' is missing"):
        model_folder.load_weights(model, weights, "here")


def test_an_average_of_checkpoints_averages_them_too(tmp_path: Path) -> None:
    config, model = counting()
    kept = []
    for i in range(2):
        model_folder.save(tmp_path / f"{i}", config, model_folder.unique_weights(model), learned(config), {})
        kept.append(counted(model))
        step(model)
    found = model_folder.average_weights([tmp_path / "0", tmp_path / "1"])
    for name in kept[0]:
        torch.testing.assert_close(found[name], (kept[0][name] + kept[1][name]) / 2)
    assert not torch.equal(kept[0]["baseline"], kept[1]["baseline"])


def test_a_moving_average_of_weights_takes_what_is_counted_along_as_it_is() -> None:
    _, model = counting()
    average = MovingAverage(model, 0.5)
    began = {name: x.clone() for name, x in average.shadow.items()}
    step(model)
    average.update(model, step=100)
    for name, p in model.named_parameters():
        torch.testing.assert_close(average.shadow[name], 0.5 * began[name] + 0.5 * p.detach(), msg=name)
    for name, x in counted(model).items():
        assert torch.equal(average.shadow[name], x), name
    now = {name: x.clone() for name, x in model_folder.unique_weights(model).items()}
    with temporary_weights(model, began):
        assert all(torch.equal(x, began[name]) for name, x in model_folder.unique_weights(model).items())
    assert all(torch.equal(x, now[name]) for name, x in model_folder.unique_weights(model).items())


@pytest.mark.parametrize("ema", [False, True])
def test_a_resumed_training_has_its_running_averages_and_baseline_back(tmp_path: Path, ema: bool) -> None:
    config, model = counting()
    average = MovingAverage(model, 0.5) if ema else None
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step(model)
    if average is not None:
        average.update(model, 1)
    weights = average.shadow if average is not None else model_folder.unique_weights(model)
    extra = state.serialize_state(state.Progress(step=1), model, optimizer, average)
    model_folder.save(tmp_path / "step-1", config, weights, learned(config), extra)
    _, other = counting()
    mean = MovingAverage(other, 0.5) if ema else None
    progress = state.restore_state(
        tmp_path / "step-1",
        other,
        torch.optim.SGD(other.parameters(), 0.1),
        schedules.build(Part("constant"), 10),
        mean,
    )
    assert progress.step == 1
    for name, x in model_folder.unique_weights(model).items():
        assert torch.equal(model_folder.unique_weights(other)[name], x), name
        if average is not None and mean is not None:
            assert torch.equal(mean.shadow[name], average.shadow[name]), name


# -- some parts of another model ---------------------------------------------------------------------------------------


def test_parts_are_filled_alone_and_the_others_stay() -> None:
    _, other = counting()
    _, model = counting()
    before = {name: x.clone() for name, x in model_folder.unique_weights(model).items()}
    weights = model_folder.unique_weights(other) | {
        "output.weight": torch.zeros(1, 1)
    }  # which does not fit, nor need it
    model_folder.load_weights(model, weights, "here", ["encoder", "frontend.table"])
    for name, x in model_folder.unique_weights(model).items():
        taken = name.startswith(("encoder.", "frontend.table."))
        assert torch.equal(x, weights[name] if taken else before[name]), name


def test_a_part_that_fits_nothing_is_named() -> None:
    _, model = counting()
    with pytest.raises(ModelError, match="begins with 'encodr'"):
        model_folder.load_weights(model, model_folder.unique_weights(model), "here", ["encodr", "frontend"])
    weights = {name: x for name, x in model_folder.unique_weights(model).items() if name != "frontend.table.weight"}
    with pytest.raises(ModelError, match=r"'frontend\.table\.weight' is missing"):
        model_folder.load_weights(model, weights, "here", ["frontend"])
