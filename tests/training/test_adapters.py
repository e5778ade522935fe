"""Training with an adapter: what changes, what a checkpoint holds, and that everybody else sees an ordinary model."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.checkpoint.test_model_folder import sign_manifest
from torch.testing import assert_close

import dragoman
from dragoman import training
from dragoman.checkpoint import model_folder, packing
from dragoman.checkpoint.model_folder import ADAPTER, BASE, WEIGHTS
from dragoman.cli.main import main
from dragoman.config import Config
from dragoman.core.errors import ModelError, RunError, UserError
from dragoman.training.initial_weights import attach_adapter

LORA = "training.adapter={name: lora, rank: 4, alpha: 8.0, dropout: 0.1}"
SHORT = ("training.steps=12", "training.validate_every=6", "training.save_every=4", "training.replay=0")


@pytest.fixture
def start(tiny: Callable[..., Any]) -> Callable[..., tuple[Any, Path]]:
    """start("rnn") → a config, and a run of two steps to start from."""

    def make(family: str = "transformer", *sets: str) -> tuple[Any, Path]:
        made = tiny(family, pairs=100)
        base = made.folder / "base"
        steps = ("training.steps=2", "training.validate_every=2", "training.replay=0")
        list(training.run(made.config(*steps, *sets), base))
        return made, base

    return make


def adapt(made: Any, base: Path, run: Path, *sets: str) -> list[training.Report]:
    return list(training.run(config(made, base, *sets), run))


def config(made: Any, base: Path, *sets: str) -> Config:
    loaded: Config = made.config(f"training.start_from={base}", LORA, *SHORT, *sets)
    return loaded


def weights(folder: Path, file: str) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = safetensors.torch.load_file(model_folder.resolve(folder) / file)
    return loaded


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["transformer", "rnn"])
def test_only_a_and_b_change_and_a_checkpoint_holds_nothing_else(family, start, tmp_path):
    made, base = start(family)
    reports = adapt(made, base, tmp_path / "run")
    before, saved = weights(base, WEIGHTS), weights(tmp_path / "run", ADAPTER)
    assert all(name.endswith((".adapter.A", ".adapter.B")) for name in saved)
    assert all(x.any() for x in saved.values())  # also every B has moved away from 0
    folder = model_folder.resolve(tmp_path / "run")
    assert not (folder / WEIGHTS).exists()
    merged = model_folder.unique_weights(model_folder.load(tmp_path / "run").model)
    adapted = {f"{name.rpartition('.adapter.')[0]}.weight" for name in saved}
    assert merged.keys() == before.keys() > adapted
    for name, x in merged.items():
        assert torch.equal(x, before[name]) != (name in adapted), name
    state = weights(tmp_path / "run", "training.safetensors")
    moments = {name for name in state if name.endswith(".exp_avg")}
    assert len(moments) == len(saved)
    trained = sum(x.numel() for x in saved.values())
    assert any(f"{trained:,} of them trained" in report.message for report in reports if report.kind == "start")


def test_before_the_first_step_the_loss_is_the_base_models_to_the_last_bit(start, tmp_path):
    made, base = start()
    run = tmp_path / "run"
    adapt(
        made, base, run, "training.steps=1", "training.validate_every=1", "training.optimizer={name: sgd, rate: 1e-30}"
    )
    losses = [json.loads(line) for path in (base, run) for line in (path / "metrics.jsonl").read_text().splitlines()]
    first, second = [values["loss"] for values in losses if values["kind"] == "valid"]
    assert first == second


def test_the_reference_engine_and_the_automatic_one_have_the_same_loss_curve(start, metrics, tmp_path):
    made, base = start()
    rate = "training.optimizer={name: adam, rate: 0.02}"
    for engine in ("auto", "reference"):
        adapt(made, base, tmp_path / engine, f"runtime.engine={engine}", rate)
    curves = [[values["loss"] for values in metrics(tmp_path / engine)] for engine in ("auto", "reference")]
    assert len(curves[0]) == 14
    assert_close(*map(torch.tensor, curves), rtol=1e-5, atol=1e-6)
    assert curves[0][0] > curves[0][-1] + 0.05


def test_no_fused_training_engine_takes_a_model_with_an_adapter(start):
    from dragoman.engines import base as engines

    made, base = start()
    built = model_folder.load(base).model
    options = config(made, base).training
    choices = engines.choose_training_engine(built, torch.device("cuda"), options, on_this_machine=False)
    assert engines.chosen_engine(choices) == "reference"
    assert all("an adapter is trained" in str(choices[name]) for name in ("fused_transformer", "compiled", "rnn_graph"))
    plain = options.model_copy(update={"adapter": None})
    choices = engines.choose_training_engine(built, torch.device("cuda"), plain, on_this_machine=False)
    assert engines.chosen_engine(choices) != "reference"


def test_a_moving_average_is_that_of_a_and_b(start, tmp_path):
    made, base = start()
    adapt(made, base, tmp_path / "run", "training.ema=0.5")
    average, state = weights(tmp_path / "run", ADAPTER), weights(tmp_path / "run", "training.safetensors")
    raw = {name.removeprefix("weights."): x for name, x in state.items() if name.startswith("weights.")}
    assert raw.keys() == average.keys()
    assert any(not torch.equal(x, average[name]) for name, x in raw.items())


def test_buffers_that_training_changes_are_part_of_the_checkpoint(start, tmp_path):
    norm = "model.encoder={name: transformer, layers: 1, heads: 2, feedforward: 64, norm: batch}"
    made, base = start("transformer", norm)
    adapt(made, base, tmp_path / "run", norm)
    before, saved = weights(base, WEIGHTS), weights(tmp_path / "run", ADAPTER)
    means = [name for name in saved if name.endswith("running_mean")]
    assert means
    loaded = model_folder.unique_weights(model_folder.load(tmp_path / "run").model)
    for name in means:
        assert not torch.equal(saved[name], before[name])
        assert torch.equal(saved[name], loaded[name])


def test_frozen_parts_of_an_adapter_stay_as_they_began(start, tmp_path):
    made, base = start()
    adapt(made, base, tmp_path / "run", "training.freeze=[encoder]")
    for name, x in weights(tmp_path / "run", ADAPTER).items():
        if name.endswith(".B"):
            assert bool(x.any()) == name.startswith("decoder"), name


@pytest.mark.parametrize("sets", [(), ("training.ema=0.9", "training.optimizer=adafactor")])
def test_a_stopped_run_resumes_to_the_same_bytes(sets, start, same_end, tmp_path):
    made, base = start()
    adapt(made, base, tmp_path / "whole", *sets)
    steps = random.randint(2, 10)
    reports = training.run(config(made, base, *sets), tmp_path / "stopped")
    for report in reports:
        if report.kind == "step" and report.step == steps:
            break
    reports.close()  # type: ignore[attr-defined]
    adapt(made, base, tmp_path / "stopped", *sets)
    same_end(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.long
@pytest.mark.parametrize("family", ["rnn", "transformer"])
def test_a_run_killed_several_times_ends_as_one_that_was_not(family, start, shell, same_end, tmp_path):
    made, base = start(family)
    sets = [f"training.start_from={base}", LORA, "training.ema=0.9"]
    list(training.run(made.config(*sets), tmp_path / "whole"))
    run = tmp_path / "killed"
    for step in sorted(random.sample(range(2, 38), 4)):
        command = shell(made.command(run, *sets))
        command.until(lambda step=step: reached(run) >= step)
        command.kill()
    assert shell(made.command(run, *sets)).wait() == 0
    same_end(run, tmp_path / "whole")


def reached(run: Path) -> int:
    path = run / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return max((json.loads(line)["step"] for line in lines), default=0)


# -- a checkpoint ------------------------------------------------------------------------------------------------------

LARGE = (
    "model.width=128",
    "model.encoder={name: transformer, layers: 3, heads: 2, feedforward: 512}",
    "model.decoder={name: transformer, layers: 3, heads: 2, feedforward: 512}",
)


def test_a_checkpoints_adapter_is_a_tenth_of_the_base_and_gives_the_logits_that_training_had(start, tmp_path):
    made, base = start("transformer", *LARGE)
    run = tmp_path / "run"
    adapt(made, base, run, *LARGE, "training.steps=4")
    folder = model_folder.resolve(run)
    size = (model_folder.resolve(base) / WEIGHTS).stat().st_size
    assert size > 5e6
    assert sum(file.stat().st_size for file in folder.iterdir() if not file.name.startswith("training.")) < size / 10

    loaded, unmerged = model_folder.load(run), model_folder.load(base)
    assert loaded.config.training.adapter is not None
    attach_adapter(unmerged.model, loaded.config.training.adapter, model_folder.resolve(base))
    model_folder.load_weights(unmerged.model, weights(run, ADAPTER), "here")
    ids = torch.randint(4, len(loaded.codec.target), (3, 7))
    from dragoman.core.types import Batch

    batch = Batch(ids, torch.full((3,), 7), ids, torch.full((3,), 7))
    with torch.no_grad():
        merged, other = loaded.model(batch).logits, unmerged.model.eval()(batch).logits
        assert_close(merged, other, rtol=0, atol=1e-6)
        assert not torch.equal(merged, model_folder.load(base).model(batch).logits)


def test_a_run_with_an_adapter_is_a_model_to_start_from(start, tmp_path):
    made, base = start()
    adapt(made, base, tmp_path / "first")
    plain = [f"training.start_from={tmp_path / 'first'}", "training.steps=1", "training.validate_every=1"]
    rate = "training.optimizer={name: sgd, rate: 1e-30}"
    list(training.run(made.config(*plain, rate, "training.replay=0"), tmp_path / "second"))
    merged = model_folder.unique_weights(model_folder.load(tmp_path / "first").model)
    assert_close(weights(tmp_path / "second", WEIGHTS), merged, rtol=0, atol=0)
    with pytest.raises(RunError, match=r"holds an adapter.*dragoman pack .* -o base\.zip"):
        adapt(made, tmp_path / "first", tmp_path / "third")


def test_a_packed_model_has_merged_weights_and_needs_no_base(start, tmp_path):
    made, base = start()
    run, packed = tmp_path / "run", tmp_path / "packed.zip"
    adapt(made, base, run)
    sources = ["abc", "hello", "dragoman"]
    before = [p.text for p in dragoman.load(run).predict(sources)]
    packing.pack(run, packed, {})
    shutil.rmtree(base)
    assert [p.text for p in dragoman.load(packed).predict(sources)] == before
    with zipfile.ZipFile(packed) as file:
        assert {WEIGHTS, "config.yaml"} < set(file.namelist())
        assert ADAPTER not in file.namelist()
        file.extractall(tmp_path / "unpacked")
    assert [p.text for p in dragoman.load(tmp_path / "unpacked").predict(sources)] == before
    adapt(made, packed, tmp_path / "again")  # and a zip is a base
    model_folder.load(tmp_path / "again")


# -- a base that moved or changed --------------------------------------------------------------------------------------


def test_run_and_base_may_move_together(start, tmp_path):
    made, base = start()
    adapt(made, base, made.folder / "run")
    before = model_folder.unique_weights(model_folder.load(made.folder / "run").model)
    (tmp_path / "elsewhere").mkdir()
    for name in ("base", "run"):
        shutil.move(made.folder / name, tmp_path / "elsewhere" / name)
    assert_close(model_folder.unique_weights(model_folder.load(tmp_path / "elsewhere" / "run").model), before)


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        model_folder.load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_base_that_is_missing_or_changed_is_one_sentence_and_no_run_is_replaced(start, tmp_path):
    made, base = start()
    run = tmp_path / "run"
    adapt(made, base, run)
    folder, file = model_folder.resolve(run), model_folder.resolve(base) / WEIGHTS
    original, before = file.read_bytes(), sorted(path.name for path in folder.parent.iterdir())

    def check(state: str) -> None:
        for message in (refused(run), refused_to_train()):
            assert message.startswith(f"{folder / ADAPTER}: was trained on {file}, which {state}; ")
            assert "train again" in message
        assert sorted(path.name for path in folder.parent.iterdir()) == before

    def refused_to_train() -> str:
        with pytest.raises(UserError) as caught:
            adapt(made, base, run, "training.steps=20", "training.schedule=constant")
        newest = model_folder.list_checkpoints(run)[-1]
        return str(caught.value).replace(str(newest), str(folder))

    changed = bytearray(original)
    changed[-1] ^= 1
    file.write_bytes(changed)
    check("has changed since")
    file.write_bytes(original + b"more")
    check("has changed since")
    file.unlink()
    check("is missing")
    shutil.move(base, tmp_path / "moved")
    check("is missing")
    shutil.move(tmp_path / "moved", base)
    file.write_bytes(original)
    model_folder.load(run)


@pytest.mark.parametrize("arguments", [["predict", "{run}", "abc"], ["pack", "{run}", "-o", "{run}.zip"]])
def test_the_command_line_names_both_files_and_exits_with_2(arguments, start, tmp_path, monkeypatch, capsys):
    made, base = start()
    adapt(made, base, tmp_path / "run", "training.steps=1")
    file = model_folder.resolve(base) / WEIGHTS
    shutil.rmtree(base)
    monkeypatch.setattr("sys.argv", ["dragoman", *(text.format(run=tmp_path / "run") for text in arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"{ADAPTER}: was trained on {file}, which is missing" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run.zip").exists()


# -- a stranger's folder -----------------------------------------------------------------------------------------------


@pytest.fixture
def stranger(start: Callable[..., tuple[Any, Path]], tmp_path: Path) -> tuple[Path, Callable[..., None]]:
    """A checkpoint with an adapter, and a function that replaces one of its files and signs the manifest."""
    made, base = start()
    adapt(made, base, tmp_path / "run")
    folder = tmp_path / "model"
    shutil.copytree(model_folder.resolve(tmp_path / "run"), folder)

    def replace(name: str, data: bytes | None) -> None:
        value = json.loads((folder / "manifest.json").read_text())
        del value["sha256"]
        value["files"].pop(name, None)
        (folder / name).unlink(missing_ok=True)
        if data is not None:
            (folder / name).write_bytes(data)
            value["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        sign_manifest(folder, value)

    return folder, replace


def test_a_strangers_adapter_is_refused_in_one_sentence(stranger, tmp_path):
    folder, replace = stranger
    reference = json.loads((folder / BASE).read_text())
    matrices = safetensors.torch.load_file(folder / ADAPTER)
    model_folder.load(folder)

    def base(**changes: Any) -> str:
        replace(BASE, json.dumps(reference | changes).encode())
        return refused(folder)

    for bad in ({"base": 3}, {"base": "a\0b"}, {"relative": None}, {"bytes": "many"}, {"base": "x" * 20_000}):
        assert "adapter.json" in base(**bad)
    assert "which is missing" in base(base="/dev/null", relative="../nowhere")
    os.mkfifo(tmp_path / WEIGHTS)  # opening it would wait for ever
    assert "has changed since" in base(base=str(tmp_path), relative="../nowhere")
    assert "has changed since" in base(sha256="0" * 64)
    assert "has changed since" in base(bytes=2**40)
    replace(BASE, b"[" * 9000)
    assert "does not name a base model" in refused(folder)
    replace(BASE, None)
    assert "does not list adapter.json" in refused(folder)
    replace(BASE, json.dumps(reference).encode())

    name = next(iter(matrices)).rpartition(".")[0]
    huge = matrices | {f"{name}.A": torch.zeros(1, 10**5), f"{name}.B": torch.zeros(10**5, 1)}  # B A: 40 GB
    replace(ADAPTER, safetensors.torch.save(huge))
    assert "do not fit" in refused(folder)
    replace(ADAPTER, safetensors.torch.save(matrices | {f"{name}.B": torch.full((4, 4), float("nan"))}))
    assert "do not fit" in refused(folder)
    replace(ADAPTER, safetensors.torch.save(matrices | {f"{name}.B": matrices[f"{name}.B"] * float("nan")}))
    assert "NaN or infinite" in refused(folder)
    replace(ADAPTER, safetensors.torch.save(matrices | {"more": torch.zeros(1)}))
    assert "'more' is not a weight of this model" in refused(folder)
    replace(ADAPTER, b"\x80\x04pickle")
    assert "is not a safetensors file" in refused(folder)
    replace(ADAPTER, safetensors.torch.save(matrices))
    replace(WEIGHTS, safetensors.torch.save(matrices))
    assert "lists both model.safetensors and adapter.safetensors" in refused(folder)


# -- the config --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sets", "problem"),
    [
        (
            ["training.start_from=null"],
            "training.adapter adds to the weights of a trained model, but start_from is missing",
        ),
        (["training.start_parts=[encoder]"], "training.adapter adds to all weights of start_from"),
        (["training.backbone={file: x.safetensors}"], "and backbone replaces some; set backbone to null"),
        (["training.average=2"], "training.average is 2, but the mean of A and that of B"),
        (["training.adapter={name: lora, rank: 33}"], "training.adapter: rank is 33, but 'encoder.stack."),
        (["training.adapter={name: lora, parts: [decodr]}"], "did you mean 'decoder'?"),
        (["training.adapter={name: lora, rnak: 3}"], "training.adapter.rnak is not an option; did you mean 'rank'?"),
        (["training.adapter=lorra"], "no adapter called 'lorra'; did you mean 'lora'?"),
    ],
)
def test_problems_of_a_config_are_named(sets, problem, tiny, tmp_path):
    with pytest.raises(UserError) as caught:
        tiny("transformer").config("training.start_from=base", LORA, *sets)
    assert problem in str(caught.value)
