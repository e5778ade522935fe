"""What goes wrong around a training leaves whole checkpoints, a sentence and the right exit code."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from dragoman import config as configs
from dragoman import training
from dragoman.checkpoint import model_folder
from dragoman.core.errors import DataError, RunError, TrainingDiverged, UserError
from dragoman.training import divergence, prepare
from dragoman.training.run_folder import RunFolder
from dragoman.training.tokenizer_learning import load_or_learn_codec
from dragoman.training.trainer import Trainer

SAVED = ["training.steps=6", "training.save_every=3", "training.validate_every=2", "training.average=2"]


def train(config: Any, run: Path, allow: tuple[str, ...] = ()) -> list[training.Report]:
    return list(training.run(config, run, allow_change=allow))


def whole(run: Path) -> list[Path]:
    """Every checkpoint of a run; each must open, and nothing beside them may be half there."""
    folders = list((run / "checkpoints").iterdir()) if (run / "checkpoints").is_dir() else []
    kept = [folder for folder in folders if not folder.name.startswith(".tmp-")]
    for folder in kept:
        model_folder.load(folder)
    for pointer in ("best", "last"):
        if (run / pointer).exists():
            assert model_folder.read_pointer(run, pointer) is not None
    return kept


# -- 1: killed while writing -------------------------------------------------------------------------------------------


COUNT = """
import os, sys
flush, calls = os.fsync, 0
def fsync(handle):
    global calls
    calls += 1
    flush(handle)
os.fsync = fsync
sys.argv = ["dragoman", *arguments]
sys.stderr = open(os.devnull, "w")
from dragoman.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code
open(result, "w").write(str(calls))
"""


def flushes(made: Any, run: Path, sets: list[str]) -> int:
    """How often a whole run flushes something to the disk, the token stores being there already."""
    train(made.config(*sets), run)
    names = {"arguments": made.command(run.with_name("counted"), *sets), "result": str(run.with_name("calls"))}
    process = multiprocessing.get_context("forkserver").Process(
        target=exec, args=(COUNT, names | {"__name__": "count"})
    )
    process.start()
    process.join(60)
    assert process.exitcode == 0
    return int(run.with_name("calls").read_text())


def check_the_dead_run(run: Path, made: Any, sets: list[str], shell: Any, same_end: Any, reference: Path) -> None:
    """Nothing of it is half there, no more than one interval of it is lost, and the same command finishes it."""
    before = whole(run)
    steps = [int(folder.name.split("-")[1]) for folder in before if folder.name.startswith("step-")]
    recorded = [json.loads(line)["step"] for line in _lines(run / "metrics.jsonl")]
    assert max(recorded, default=0) - max(steps, default=0) <= made.config(*sets).training.save_every
    again = shell(made.command(run, *sets))
    assert again.wait() == 0, again.output
    same_end(run, reference)
    assert not list(run.rglob(".tmp-*"))
    assert len(model_folder.list_checkpoints(run)) <= 4


def _lines(path: Path) -> list[str]:
    return path.read_text().split("\n")[:-1] if path.exists() else []


SWEPT = {
    "with a validation set": SAVED,
    "with one checkpoint": ["training.steps=4", "training.save_every=2", "data.valid=null", "training.keep=1"],
    "by epochs": [
        *("training.epochs=1", "training.save_every=1", "training.validate_every=2", "training.keep=1"),
        *("training.batch_tokens=1100", "training.log_every=2"),
    ],
}


def sweep(kind: str, tiny: Any, shell: Any, same_end: Any, folder: Path, chosen: Any) -> None:
    made, sets = tiny(), SWEPT[kind]
    total = flushes(made, folder / "reference", sets)
    for n in chosen(total):
        run = folder / f"run-{n}"
        dead = shell(made.command(run, *sets), dies_at=n)
        assert dead.wait() == -signal.SIGKILL, dead.output
        check_the_dead_run(run, made, sets, shell, same_end, folder / "reference")
        shutil.rmtree(run)


@pytest.mark.parametrize(
    "kind", [k if k == "with a validation set" else pytest.param(k, marks=pytest.mark.long) for k in SWEPT]
)
def test_a_kill_while_a_file_is_written_leaves_whole_checkpoints(kind, tiny, shell, same_end, tmp_path):
    """The process dies at one flush or another; a few of them here, the last ones (the end of the run) among them."""
    sweep(kind, tiny, shell, same_end, tmp_path, lambda total: [*range(7, total - 1, max(total // 4, 1)), total - 1])


@pytest.mark.long
@pytest.mark.parametrize("kind", SWEPT)
def test_a_kill_at_any_flush_leaves_whole_checkpoints(kind, tiny, shell, same_end, tmp_path):
    sweep(kind, tiny, shell, same_end, tmp_path, lambda total: range(1, total + 1))


def strace_works() -> bool:
    try:
        probe = ["strace", "-f", "-e", "trace=fsync", "-e", "inject=fsync:signal=KILL:when=9999", "true"]
        return subprocess.run(probe, capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def traced(made: Any, run: Path, sets: list[str], when: int) -> subprocess.CompletedProcess[bytes]:
    """The command line as a user starts it, killed by the kernel at its fsync number `when`."""
    inject = f"inject=fsync:signal=KILL:when={when}"
    command = ["strace", "-f", "-qq", "-e", "trace=fsync", "-e", inject, "-o", "/dev/null"]
    command += [sys.executable, "-m", "dragoman", *made.command(run, *sets)]
    return subprocess.run(command, capture_output=True, timeout=300)


@pytest.mark.long
def test_a_kill_from_outside_while_a_file_is_written_leaves_whole_checkpoints(tiny, shell, same_end, tmp_path):
    if not strace_works():
        pytest.skip("needs strace, and the right to trace")
    made, sets, run = tiny(), SAVED, tmp_path / "run"
    total = flushes(made, tmp_path / "reference", sets)
    traced(made, run, sets, total // 2)
    assert not (run / "finished").exists()
    check_the_dead_run(run, made, sets, shell, same_end, tmp_path / "reference")


@pytest.mark.long
def test_a_kill_from_outside_at_any_flush_leaves_whole_checkpoints(tiny, shell, same_end, tmp_path):
    if not strace_works():
        pytest.skip("needs strace, and the right to trace")
    made, sets = tiny(), SAVED
    total = flushes(made, tmp_path / "reference", sets)
    for n in range(1, total + 1):
        traced(made, tmp_path / f"run-{n}", sets, n)
        check_the_dead_run(tmp_path / f"run-{n}", made, sets, shell, same_end, tmp_path / "reference")


def test_temporary_files_of_a_killed_process_are_named_and_removed(tiny, tmp_path):
    config, run = tiny().config(*SAVED), tmp_path / "run"
    train(config, run)
    for leaf in ("checkpoints/.tmp-step-9-1/model.safetensors", ".tmp-best-1"):
        (run / leaf).parent.mkdir(exist_ok=True)
        (run / leaf).write_bytes(b"half")
    newest = model_folder.list_checkpoints(run)[-1]
    (newest / "model.safetensors").write_bytes(b"cut")
    notices = [report.message for report in train(config, run) if report.kind == "notice"]
    for name in (".tmp-step-9-1", ".tmp-best-1", newest.name):
        assert any(name in text for text in notices)
    assert not list(run.rglob(".tmp-*"))
    model_folder.load(newest)  # written again from the one before


# -- 3: another config, other data -------------------------------------------------------------------------------------


def test_a_changed_config_is_refused_key_by_key(tiny, shell, tmp_path):
    made, run = tiny(), tmp_path / "run"
    train(made.config("training.steps=10"), run)
    changed = ["training.steps=20", "training.optimizer.rate=0.5", "model.decoder.dropout=0.3"]
    with pytest.raises(RunError) as refused:
        train(made.config(*changed), run)
    for key, old, new in [
        ("training.steps", "10", "20"),
        ("training.optimizer.rate", "0.003", "0.5"),
        ("model.decoder.dropout", "0.1", "0.3"),
    ]:
        row = next(line for line in str(refused.value).split("\n") if line.strip().startswith(key + ":"))
        assert old in row
        assert new in row
    command = shell(made.command(run, *changed))
    assert command.wait() == 2
    assert "training.optimizer.rate" in command.output
    assert "Traceback" not in command.output

    with pytest.raises(RunError) as rest:  # one of three is not enough, and only the others are named now
        train(made.config(*changed), run, ("training.steps",))
    assert "training.steps:" not in str(rest.value)
    command = shell(made.command(run, *changed, allow=("training", "model.decoder.dropout")))
    assert command.wait() == 0, command.output
    assert model_folder.list_checkpoints(run)[-1].name == "step-20"
    assert train(made.config(*changed), run)[-1].kind == "end"  # the changed config is the run's own now


def test_options_that_change_no_weight_may_change(tiny, tmp_path):
    made, run = tiny(), tmp_path / "run"
    train(made.config("training.steps=10"), run)
    other = f"data.cache={tmp_path / 'elsewhere'}"
    assert train(made.config("training.steps=10", "data.workers=1", "runtime.threads=2", other), run)[-1].kind == "end"


def everything(run: Path) -> dict[str, bytes]:
    """All that a run has kept; a refusal is logged."""
    files = [path for path in run.rglob("*") if path.is_file() and path.name not in ("train.log", ".lock")]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


@pytest.mark.parametrize("found", [..., 0, None])
@pytest.mark.parametrize("place", ["run.json", "manifest.json", "training.json"])
def test_a_run_of_an_earlier_format_is_refused_untouched_and_says_how_to_train_it_again(
    place, found, tiny, shell, tmp_path
):
    made, run = tiny(), tmp_path / "run"
    train(made.config("training.steps=2"), run)
    set_format(run, place, found)
    before = everything(run)
    command = shell(made.command(run, "training.steps=2"))
    assert command.wait() == 2
    said = " ".join(command.output.split()).replace("/ ", "/")
    assert "earlier development version" in said
    assert "train it again: dragoman train" in said
    assert "--run NEW" in said
    assert "Traceback" not in said
    assert everything(run) == before


@pytest.mark.parametrize("place", ["run.json", "manifest.json", "training.json"])
def test_a_run_of_a_newer_format_is_refused_untouched_and_says_to_update(place, tiny, tmp_path):
    made, run = tiny(), tmp_path / "run"
    train(made.config("training.steps=2"), run)
    set_format(run, place, 2)
    before = everything(run)
    with pytest.raises(UserError, match="update Dragoman"):
        train(made.config("training.steps=2"), run)
    assert everything(run) == before


def test_the_model_of_a_run_of_an_earlier_format_is_refused_too(tiny, tmp_path):
    made, run = tiny(), tmp_path / "run"
    train(made.config("training.steps=2"), run)
    set_format(run, "run.json", ...)
    with pytest.raises(UserError, match=f"train it again: dragoman train {run}/config.yaml --run NEW"):
        model_folder.load(run)


def set_format(run: Path, place: str, found: object) -> None:
    """Say another format (`...`: none) in a file of a run, or of its newest checkpoint, under a manifest that fits."""
    folder = run if place == "run.json" else model_folder.list_checkpoints(run)[-1]
    value = {key: item for key, item in json.loads((folder / place).read_text()).items() if key != "sha256"}
    value = {key: item for key, item in (value | {"format": found}).items() if item is not ...}
    if place == "manifest.json":
        value["sha256"] = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    (folder / place).write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    if place == "training.json":
        contents = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}
        (folder / "manifest.json").write_bytes(model_folder.build_manifest(contents))


def test_a_run_killed_before_its_config_was_written_begins_again(tiny, tmp_path):
    made, run = tiny(), tmp_path / "run"
    train(made.config("training.steps=2"), run)
    shutil.rmtree(run / "checkpoints")
    (run / "config.yaml").unlink()
    assert train(made.config("training.steps=2"), run)[-1].kind == "end"


def test_changed_data_is_refused_and_can_be_allowed(tiny, shell, tmp_path):
    made, run = tiny(), tmp_path / "run"
    train(made.config("training.steps=10"), run)
    with (made.folder / "train.tsv").open("a") as file:
        file.write("abc\tcba\n")
    with pytest.raises(RunError, match="--allow-change data"):
        train(made.config("training.steps=10"), run)
    command = shell(made.command(run, "training.steps=10"))
    assert command.wait() == 2
    more = ("data", "training.steps")
    assert train(made.config("training.steps=12"), run, more)[-1].kind == "end"
    assert model_folder.list_checkpoints(run)[-1].name == "step-12"
    assert train(made.config("training.steps=12"), run)[-1].kind == "end"


# -- 4 and 5: disks and folders ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    """A file system of its own in a folder, where one may make one."""
    place.mkdir(exist_ok=True)
    try:
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True)
    except OSError:
        pytest.skip("there is no mount here")
    if made.returncode:
        pytest.skip("may not mount a file system here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def numbers(text: str) -> list[int]:
    return [int(word.replace(",", "")) for word in text.split() if word.replace(",", "").isdigit()]


def test_a_full_disk_keeps_what_was_saved_and_says_what_is_needed(tiny, shell, same_end, tmp_path):
    made = tiny()
    sets = ["training.keep=40", "training.save_every=2", "model.width=64"]
    with mounted(tmp_path / "disk", "size=2m"):
        run = tmp_path / "disk" / "run"
        command = shell(made.command(run, *sets))
        assert command.wait() == 2, command.output
        assert "Traceback" not in command.output
        needed, free = numbers(command.output.split("the disk is full")[1])
        assert needed > free
        assert str(run) in command.output
        saved = whole(run)
        assert saved
        assert not list(run.rglob(".tmp-*"))
        before = {folder.name for folder in saved}
        subprocess.run(["mount", "-o", "remount,size=64m", str(tmp_path / "disk")], check=True)  # some space is freed
        command = shell(made.command(run, *sets))
        assert command.wait() == 0, command.output
        assert before <= {folder.name for folder in whole(run)}
        train(made.config(*sets), tmp_path / "reference")
        same_end(run, tmp_path / "reference")


def test_a_disk_full_to_the_last_byte_is_one_error_message(tiny, shell, tmp_path):
    """When even a line of metrics.jsonl finds no room."""
    made = tiny()
    with mounted(tmp_path / "disk", "size=2m"):
        run = tmp_path / "disk" / "run"
        reports = training.run(made.config(), run)
        for report in reports:
            if report.kind == "saved":
                break
        for size in (1000, 1):
            with contextlib.suppress(OSError), (tmp_path / "disk" / "filler").open("ab", buffering=0) as filler:
                while True:
                    filler.write(b"x" * size)
        with pytest.raises(RunError, match="disk is full") as full:
            list(reports)
        needed, free = numbers(str(full.value).split("the disk is full")[1])
        assert needed > free
        assert whole(run)


@pytest.mark.parametrize("events", ["false", "true"])
def test_a_run_folder_that_cannot_be_made_is_named(events, tiny, shell, tmp_path):
    (tmp_path / "file").write_text("in the way")
    run = tmp_path / "file" / "run"
    command = shell(tiny().command(run, f"runtime.tensorboard={events}"))
    assert command.wait() == 2, command.output
    assert str(run) in command.output
    assert "Not a directory" in command.output
    assert "Traceback" not in command.output


def test_a_read_only_disk_is_named(tiny, shell, tmp_path):
    made = tiny()
    with mounted(tmp_path / "disk", "ro"):
        command = shell(made.command(tmp_path / "disk" / "run"))
        assert command.wait() == 2, command.output
        assert str(tmp_path / "disk") in command.output
        assert "ead-only" in command.output
        assert "Traceback" not in command.output


@pytest.mark.parametrize("side", ["train", "valid"])
def test_a_missing_data_file_is_named(side, tiny, shell, tmp_path):
    made = tiny()
    (made.folder / f"{side}.tsv").unlink()
    command = shell(made.command(tmp_path / "run"))
    assert command.wait() == 2
    assert f"{side}.tsv" in command.output
    assert "Traceback" not in command.output


def test_a_data_file_that_went_missing_is_named_on_resume(tiny, shell, tmp_path):
    made = tiny()
    train(made.config(*SAVED), tmp_path / "run")
    (made.folder / "train.tsv").unlink()
    command = shell(made.command(tmp_path / "run", *SAVED))
    assert command.wait() == 2, command.output
    assert "train.tsv" in command.output
    assert "Traceback" not in command.output


# -- 8: no finite number -----------------------------------------------------------------------------------------------


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def trainer_of(config: Any, run: Path) -> Trainer:
    """The trainer of a new run."""
    run_folder = RunFolder(run)
    run.mkdir()
    codec, config = load_or_learn_codec(config)
    run_folder.write_config(config)
    trainer = Trainer(config, run_folder, prepare.prepare_data(config, codec, run.parent / "cache"))
    trainer.start()
    return trainer


def steps_of(trainer: Trainer) -> Iterator[list[training.Report]]:
    """Reports of one step after another."""
    reports: list[training.Report] = []
    for report in trainer.train(lambda: None):
        reports.append(report)
        if report.kind == "step":
            yield reports
            reports = []


def state(trainer: Trainer) -> list[torch.Tensor]:
    """All that an update changes: weights, the optimizer's moments and counts, the moving average."""
    assert trainer.average is not None
    moments = [x for s in trainer.optimizer.state_dict()["state"].values() for x in s.values()]
    every = [*trainer.model.parameters(), *moments, *trainer.average.shadow.values()]
    return [x.detach().clone() for x in every]


FAULTS = ["a gradient of inf", "a gradient of nan", "a loss of nan", "a loss of inf", "a hidden vector of nan"]


@pytest.mark.parametrize("what", FAULTS)
def test_a_step_without_a_finite_number_changes_nothing(what, tiny, tmp_path):
    engine = "reference" if what.startswith("a loss") else "auto"  # which has no logits to spoil
    sets = [
        f"runtime.engine={engine}",
        "training.ema=0.9",
        "training.save_every=100",
        "training.validate_every=100",
        "training.log_every=100",
    ]
    trainer = trainer_of(tiny().config(*sets), tmp_path / "run")
    steps = steps_of(trainer)
    next(steps), next(steps)
    before = state(trainer)
    tokens, window = trainer.progress.tokens, trainer.progress.window_loss
    output = trainer.model.output
    only = torch.full((output.out_features,), -math.inf)  # with this every token but one has probability 0
    only[5] = 0.0
    fault = {
        "a gradient of inf": lambda: output.bias.register_hook(lambda gradient: gradient + math.inf),
        "a gradient of nan": lambda: output.bias.register_hook(lambda gradient: gradient * math.nan),
        "a loss of nan": lambda: output.register_forward_hook(lambda _m, _i, logits: logits * math.nan),
        "a loss of inf": lambda: output.register_forward_hook(lambda _m, _i, logits: logits + only),
        "a hidden vector of nan": lambda: trainer.model.decoder.register_forward_hook(
            lambda _m, _i, output: replace(output, o=output.o * math.nan)
        ),
    }[what]()
    lines, loss = [], trainer.loss
    trainer.loss = lambda batch: (lines.extend(batch.lines), loss(batch))[1]  # which batch it is
    reports = next(steps)
    assert [report.kind for report in reports] == ["skipped", "step"]
    assert trainer.progress.nonfinite_updates == 1
    said = re.match(r"step 3: loss .* at learning rate (\S+), lines ([\d, ]+)…", reports[0].message)
    assert said is not None
    assert float(said[1]) == 3e-3
    assert said[2] == ", ".join(map(str, lines[:5]))
    assert all(torch.equal(a, b) for a, b in zip(before, state(trainer), strict=True))
    assert (trainer.progress.tokens, trainer.progress.window_loss) == (tokens, window)
    fault.remove()
    assert [report.kind for report in next(steps)] == ["step"]
    assert trainer.progress.nonfinite_updates == 0  # it is three in a row that end a training
    assert not all(torch.equal(a, b) for a, b in zip(before, state(trainer), strict=True))
    assert all(x.isfinite().all() for x in state(trainer))


def test_training_ends_at_the_third_bad_step_in_a_row(tiny, tmp_path):
    trainer = trainer_of(tiny().config(), tmp_path / "run")
    steps = steps_of(trainer)
    next(steps)
    for pattern in ([1, 1, 0], [1, 1, 1]):
        for bad in pattern:
            hook = trainer.model.output.bias.register_hook(lambda g: g * math.nan) if bad else None
            if sum(pattern) == 3 and trainer.progress.nonfinite_updates == 2:
                with pytest.raises(TrainingDiverged) as diverged:
                    next(steps)
                assert f"step {trainer.progress.step}" in str(diverged.value)
                return
            next(steps)
            if hook is not None:
                hook.remove()
    pytest.fail("three bad steps did not end it")


EXPLODE = ["training.optimizer={name: sgd, rate: 1.0e38}", "training.clip=null"]


def test_a_run_that_diverges_exits_with_3_and_keeps_the_same_weights_through_bad_steps(tiny, shell, tmp_path):
    made, run = tiny(), tmp_path / "run"
    sets = [*EXPLODE, "training.save_every=1", "training.keep=10", "training.validate_every=1"]
    command = shell(made.command(run, *sets))
    assert command.wait() == 3, command.output
    assert "Traceback" not in command.output
    found = [weights(folder) for folder in model_folder.list_checkpoints(run)]
    for step, values in enumerate(found, 1):
        assert all(x.isfinite().all() for x in values.values()), f"step {step} was saved with a weight not finite"
        if step > 1:
            assert all(torch.equal(values[name], found[0][name]) for name in values)
    for line in (run / "metrics.jsonl").read_text().split("\n")[:-1]:
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@pytest.mark.parametrize("valid", ["with", "without"])
def test_the_best_model_is_never_one_that_diverged(valid, tiny, shell, tmp_path):
    """A good run, gone on with at an absurd rate: what `best` names is still good."""
    made, run = tiny(), tmp_path / "run"
    common = ["training.save_every=1", "training.validate_every=1", "training.keep=2"]
    common += ["data.valid=null"] if valid == "without" else []
    train(made.config(*common, "training.steps=10"), run)
    command = shell(made.command(run, *common, *EXPLODE, allow=("training",)))
    assert command.wait() == 3, command.output
    best = model_folder.load(run)
    assert all(x.isfinite().all() for x in best.model.parameters())
    if valid == "with":
        assert int(best.path.name.split("-")[1]) <= 10
    assert whole(run)


def test_weights_that_are_not_finite_are_never_saved(tiny, tmp_path):
    """A gradient can be finite and the step it makes too large for a float: no later step will mend that."""
    sets = [*EXPLODE, "training.save_every=1", "data.valid=null"]
    trainer = trainer_of(tiny().config(*sets), tmp_path / "run")
    trainer.peak_rates = [1e-3] * len(trainer.peak_rates)  # two good steps
    reports = trainer.train(lambda: None)
    for report in reports:
        if report.kind == "saved" and report.step == 2:
            break
    trainer.peak_rates = [1e38] * len(trainer.peak_rates)
    trainer.model.output.bias.register_hook(lambda gradient: gradient * 1e6)
    with pytest.raises(TrainingDiverged):
        list(reports)
    assert trainer.progress.step == 3
    saved = whole(tmp_path / "run")
    assert {folder.name for folder in saved} == {"step-1", "step-2"}
    assert all(x.isfinite().all() for folder in saved for x in weights(folder).values())
    assert model_folder.resolve(tmp_path / "run").name == "step-2"


# -- 37: a loss that runs away but stays finite ------------------------------------------------------------------------


def test_a_loss_that_runs_away_ends_the_training_at_the_same_step_also_when_resumed(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(divergence, "MAX_RUNAWAY_UPDATES", 8)
    sets = ["training.optimizer={name: sgd, rate: 100.0}", "training.save_every=4", "data.valid=null"]
    config = tiny().config(*sets)
    with pytest.raises(TrainingDiverged, match=r"step (\d+): loss .* at learning rate 100; for 8 updates") as diverged:
        train(config, tmp_path / "run")
    assert diverged.value.code == 3
    for report in training.run(config, tmp_path / "other"):
        if report.kind == "saved":
            break
    with pytest.raises(TrainingDiverged) as resumed:
        train(config, tmp_path / "other")
    assert str(resumed.value) == str(diverged.value)
    assert all(x.isfinite().all() for x in weights(whole(tmp_path / "run")[-1]).values())


def test_a_training_that_only_stumbles_goes_on(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(divergence, "MAX_RUNAWAY_UPDATES", 8)
    sets = ["training.optimizer={name: adam, rate: 0.05}", "training.steps=20", "data.valid=null"]  # far too high
    assert train(tiny("transformer").config(*sets), tmp_path / "run")[-1].kind == "end"


# -- 38: damaged records and pointers ----------------------------------------------------------------------------------

HALF = ["training.steps=8", "training.save_every=4", "training.validate_every=4"]


def half_trained(made: Any, run: Path) -> Any:
    """A run that was killed after its checkpoint at step 4; returns its config."""
    config = made.config(*HALF)
    reports = training.run(config, run)
    for report in reports:
        if report.kind == "saved":
            break
    reports.close()
    return config


def test_a_run_with_damaged_records_and_pointers_resumes_exactly_and_says_so(tiny, metrics, tmp_path):
    made, run, other = tiny(), tmp_path / "run", tmp_path / "other"
    train(made.config(*HALF), other)
    config, damaged = half_trained(made, run), {}
    for name in ("metrics.jsonl", "replay.jsonl", "train.log", "best", "last"):
        data = (run / name).read_bytes()
        damaged[name] = data[:2] + b"\xff" + data[3:]
        (run / name).write_bytes(damaged[name])
    reports = train(config, run)
    for name, data in damaged.items():
        if name != "train.log":  # which is only appended to
            assert (run / f"{name}.damaged-1").read_bytes() == data
            assert [r.kind for r in reports if f"{name}.damaged-1" in r.message] == ["notice"]
    for file in ("model.safetensors", "training.json", "training.safetensors"):
        mine, theirs = (folder / "checkpoints" / "step-8" / file for folder in (run, other))
        assert mine.read_bytes() == theirs.read_bytes()
    assert metrics(run) == metrics(other)[1:]  # without the damaged line
    for pointer in ("best", "last", "finished"):
        assert (run / pointer).read_text() == (other / pointer).read_text()
    before = everything(run)
    (run / "best").write_bytes(b"")
    (run / "metrics.jsonl").write_bytes(b"\xff")
    assert train(config, run)[-1].message.startswith("already finished")
    assert (run / "best").read_bytes() == before["best"]


DAMAGES = {
    "a bad byte": lambda data: data[:10] + b"\xff" + data[11:],
    "a cut end": lambda data: data[:-9],
    "a line cut in the middle": lambda data: data[:10] + data[data.index(b"\n") :],
    "another value": lambda data: b"[1]\n" + data,
    "a text for a number": lambda data: b'{"kind": "train", "step": "1"}\n' + data,
    "a deep value": lambda data: b"[" * 100_000 + b"\n" + data,
    "zeros": lambda data: b"\0" * 50 + b"\n" + data,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["metrics.jsonl", "replay.jsonl"])
def test_damaged_lines_are_left_out_and_the_file_is_kept_beside(name, damage, tmp_path):
    lines = [f'{{"kind": "train", "step": {n}, "seconds": {n}.5}}'.encode() for n in range(1, 4)]
    damaged = DAMAGES[damage](b"".join(line + b"\n" for line in lines))
    (tmp_path / name).write_bytes(damaged)
    run = RunFolder(tmp_path)
    [said] = run.truncate_records(3, 3)
    assert f"{name}.damaged-1" in said
    assert (tmp_path / f"{name}.damaged-1").read_bytes() == damaged
    kept = (tmp_path / name).read_bytes().splitlines()
    assert kept == [line for line in lines if line in damaged.split(b"\n")]
    assert run.seconds == (len(kept) + (lines[0] not in kept) + 0.5 if name == "metrics.jsonl" else 0.0)
    assert list(run.truncate_records(3, 3)) == []


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"../../etc", b"x" * 10_000, "a link", "a pipe", "a folder"])
def test_damaged_pointers_are_set_aside(content, tmp_path):
    for name in ("best", "last", "finished"):
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content == "a link":
            path.symlink_to("secret")
        else:
            os.mkfifo(path) if content == "a pipe" else path.mkdir()
    said = list(RunFolder(tmp_path).set_aside_damaged_pointers())
    assert len(said) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{n}.damaged-1" for n in ("best", "finished", "last")]
    for name, text in {"best": "average-6", "last": "step-6", "finished": "6"}.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert list(RunFolder(tmp_path).set_aside_damaged_pointers()) == []


def test_a_finished_run_whose_average_was_the_best_finds_it_again(tiny, tmp_path):
    run, config = tmp_path / "run", tiny().config(*SAVED, "data.valid=null")
    train(config, run)
    assert (run / "best").read_text() == "average-6\n"
    (run / "best").write_bytes(b"\xff")
    assert train(config, run)[-1].message.startswith("already finished")
    assert (run / "best").read_text() == "average-6\n"


def test_a_key_that_no_config_has_cannot_be_allowed_to_change(tiny, tmp_path):
    config = tiny().config(*HALF)
    for key, hint in {"nonsense.key": "no such key", "training.step": "did you mean 'training.steps'"}.items():
        with pytest.raises(UserError, match=f"--allow-change {key}: .*{hint}"):
            train(config, tmp_path / "run", (key,))
    with pytest.raises(UserError, match="allow_change takes a list"):
        train(config, tmp_path / "run", "training.steps")
    assert not (tmp_path / "run").exists()


# -- 15: a worker dies -------------------------------------------------------------------------------------------------


def test_the_death_of_a_loader_worker_is_an_error_that_names_it(tiny, tmp_path):
    reports = training.run(tiny().config("data.workers=1", "training.steps=100000"), tmp_path / "run")
    for report in reports:
        if report.kind == "step" and report.step == 3:
            break
    worker = next(child for child in multiprocessing.active_children() if child.name.startswith("loader"))
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(DataError) as death:
        list(itertools.islice(reports, 1000))
    assert f"worker 0 (pid {worker.pid})" in str(death.value)
    assert not [child for child in multiprocessing.active_children() if child.name.startswith("loader")]
    assert whole(tmp_path / "run") is not None


def test_a_training_that_cannot_begin_leaves_no_folder_behind(tmp_path):
    (tmp_path / "bad.tsv").write_text("a\tb\nno tab\n", encoding="utf-8")
    config = configs.load(None, "pronunciation", [f"data.train={tmp_path / 'bad.tsv'}"]).config
    with pytest.raises(DataError, match=r"bad\.tsv:2"):
        list(training.run(config, tmp_path / "run"))
    assert not (tmp_path / "run").exists()
