"""Sweeps: what is asked for is checked at once, results are those of the runs, and nothing that is killed is lost."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from dragoman import config as configs
from dragoman import training
from dragoman.checkpoint import model_folder
from dragoman.cli.main import build_app
from dragoman.core import yaml
from dragoman.core.errors import ConfigError, MissingExtra, RunError, UserError

pytest.importorskip("optuna")

from dragoman.jobs.sweep import driver, results, space, trial
from dragoman.jobs.sweep.driver import SweepRequest, open_sweep
from dragoman.jobs.sweep.executors import LocalExecutor
from dragoman.jobs.sweep.folder import SweepFolder, best_validation, import_optuna
from dragoman.jobs.sweep.folder import finished as done
from dragoman.reports.sweep_report import write_sweep_report

DEADLINE = 120.0  # seconds that anything may take here, on a busy machine

CONFIG = """
name: copy
data: {{train: {folder}/train.tsv, valid: {folder}/valid.tsv}}
tokenizer: {{source: characters}}
model:
  width: 16
  tie: none
  encoder: {{name: rnn, cell: gru, dropout: 0.1}}
  decoder: {{name: rnn, cell: gru, order: before, dropout: 0.1}}
training:
  steps: 10
  batch_tokens: 128
  optimizer: {{name: adam, rate: 3.0e-3}}
  schedule: constant
  validate_every: 5
  save_every: 10
  keep: 1
  replay: 0
  log_every: 1
runtime: {{device: cpu, threads: 1}}
"""
SPACE = """
model.width: {choices: [16, 24]}
training.optimizer.rate: {choices: [1.0e-3, 3.0e-3]}
"""
POINTS = {(width, rate) for width in (16, 24) for rate in (1e-3, 3e-3)}
SLOW = ("training.steps=40", "training.save_every=10")  # a run that can be killed between its checkpoints


def make_data(folder: Path) -> None:
    rng = random.Random(1)
    for side, count in (("train", 200), ("valid", 30)):
        words = ["".join(rng.choices("abcdef", k=rng.randint(2, 8))) for _ in range(count)]
        path = folder / f"{side}.tsv"
        path.write_text("".join(f"{word}\t{word}\n" for word in words))
        os.utime(path, (1e9, 1e9))  # long ago: a file that has just been written is not trusted to stay as it is
    (folder / "copy.yaml").write_text(CONFIG.format(folder=folder))
    (folder / "space.yaml").write_text(SPACE)


def make_request(folder: Path, **changes: Any) -> SweepRequest:
    request = SweepRequest(str(folder / "copy.yaml"), 4, str(folder / "space.yaml"), folder=folder / "sweep")
    return replace(request, **({"sampler": "random", "pruner": "none"} | changes))


@pytest.fixture
def request_for(tmp_path: Path) -> Callable[..., SweepRequest]:
    """request_for(trials=4) → a sweep of a tiny model that copies words."""
    make_data(tmp_path)
    return lambda **changes: make_request(tmp_path, **changes)


def train_here(request: SweepRequest) -> SweepFolder:
    """Train the trials of a sweep in this process."""
    folder = open_sweep(request).folder
    while trial.claim_and_train(folder, request.trials, "here") == "trained":
        pass
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> SweepRequest:
    """A sweep whose four trials are finished."""
    folder = tmp_path_factory.mktemp("finished")
    make_data(folder)
    train_here(request := make_request(folder))
    return request


@pytest.fixture
def copied(finished: SweepRequest, tmp_path: Path) -> SweepRequest:
    """A copy of its folder, which may be damaged."""
    assert finished.folder is not None
    shutil.copytree(finished.folder, tmp_path / "sweep")
    return replace(finished, folder=tmp_path / "sweep")


def values_of_runs(folder: SweepFolder) -> dict[int, float]:
    """The least validation loss of each run, from its metrics.jsonl."""
    found = {}
    for run in sorted(folder.trials.glob("0*")):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        found[int(run.name)] = min(line["loss"] for line in lines if line["kind"] == "valid")
    return found


def states_of(folder: SweepFolder) -> list[str]:
    return [each.state.name for each in folder.open_study().get_trials()]


# -- what is asked for -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("model.widht: {choices: [16]}", "model.widht is not an option; did you mean 'width'?"),
        ("model.width: {choices: [16, wide]}", "model.width: must be a valid integer"),
        ("model.encoder.cell: {choices: [gru, lstn]}", "did you mean 'lstm'?"),
        ("model.width: {choice: [16]}", "'choice' is not an option; did you mean 'choices'?"),
        ("model.width: [16, 24]", "model.width: must be {choices: […]} or {low: …, high: …}"),
        ("model.width: {low: 16}", "model.width: must be {choices"),
        ("model.width: {low: 24, high: 16}", "model.width: low is 24; it must not exceed high, 16"),
        ("model.width: {choices: []}", "model.width: choices"),
        ("model.width: {choices: [16, 16]}", "model.width: choices has a value twice"),
        ("training.optimizer.rate: {low: 0.0, high: 1.0, log: true}", "rate: low is 0.0; with log: true"),
        ("training.optimizer.rate: {low: 0.1, high: 1.0, log: true, step: 0.1}", "rate: log and step exclude"),
        ("model.encoder.layers: {low: 1, high: 4, step: 0.5}", "model.encoder.layers: step is 0.5"),
        ("model.encoder.layers: {low: 0, high: 4}", "model.encoder.layers"),
        ("model.width, model.width: {choices: [16]}", "model.width: is named twice"),
        ("training.best: {choices: [loss]}", "training.best: decides how trials are compared"),
        ("tokenizer.source: {choices: [characters, bytes]}", "losses of different tokens cannot be compared"),
        ("", "there is no key in it"),
    ],
)
def test_a_wrong_space_is_one_sentence_with_file_and_key(
    request_for: Callable[..., SweepRequest], tmp_path: Path, text: str, problem: str
) -> None:
    (tmp_path / "space.yaml").write_text(text + "\n")
    with pytest.raises(ConfigError) as caught:
        open_sweep(request_for())
    assert str(caught.value).startswith(f"{tmp_path}/space.yaml: 1 problem")
    assert problem in str(caught.value)
    assert not (tmp_path / "sweep").exists()


SMALL = {  # presets of each family, small
    "transformer": ("characters-transformer",),
    "rnn": ("pronunciation",),
    "conv": (
        "convs2s2017",
        "model.encoder.layers=2",
        "model.decoder.layers=2",
        "model.encoder.width=64",
        "model.decoder.width=64",
    ),
    "pyramid": ("speech-pyramid",),
}


@pytest.mark.parametrize("name", sorted(space.list_preset_spaces()))
def test_every_preset_space_suits_presets_of_its_family(name: str) -> None:
    preset, *sets = SMALL[name]
    request = SweepRequest(None, 1, preset=preset, overrides=("data.train=x", *sets))
    config = request.load()
    suited, left_out = space.suited_space(config)
    assert suited.where == f"space {name}"
    assert left_out == []
    widened = space.add_own_values(suited, config)
    own, outside = widened.own_values(config)
    assert outside == []
    assert configs.load(None, preset, [*request.overrides, *widened.overrides(own)]).config == config
    space.check_space(widened, config, request.load)


def test_options_that_a_config_lacks_are_left_out_of_a_preset_space(request_for: Callable[..., SweepRequest]) -> None:
    config = request_for(overrides=("model.decoder={name: attention}",)).load()
    suited, left_out = space.suited_space(config)
    assert left_out == ["model.decoder.cell", "model.decoder.width", "model.decoder.layers"]
    assert "model.encoder.cell" in suited.domains
    space.check_space(suited, config, request_for(overrides=("model.decoder={name: attention}",)).load)


def test_a_domain_draws_only_what_it_has_and_optuna_the_same() -> None:
    rng, optuna = random.Random(3), import_optuna()
    for text in (
        {"low": 1, "high": 9, "step": 3},
        {"low": 1, "high": 10, "step": 3},
        {"low": 2, "high": 64, "log": True},
        {"low": 0.1, "high": 0.5, "step": 0.1},
        {"low": 1e-4, "high": 1e-2, "log": True},
        {"low": 3, "high": 3},
        {"choices": ["a", None, 1, True, {"name": "linear", "warmup": 5}, [1, 2]]},
    ):
        (domain,) = space.parse_space({"key": text}, "here").domains.values()
        drawn = [domain.draw(rng) for _ in range(200)]
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(1))
        drawn += [study.ask({"key": domain.distribution()}).params["key"] for _ in range(50)]
        assert all(domain.has(domain.decode(value)) for value in [*drawn, *domain.edges()]), text
        if "choices" in text:
            assert {repr(domain.decode(value)) for value in drawn} == {repr(value) for value in text["choices"]}  # type: ignore[attr-defined]


def test_a_missing_package_is_a_sentence(
    request_for: Callable[..., SweepRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"pip install 'dragoman\[sweep\]'"):
        open_sweep(request_for())


def test_a_sweep_needs_validation_pairs_and_positive_numbers(request_for: Callable[..., SweepRequest]) -> None:
    with pytest.raises(UserError, match=r"data\.valid"):
        open_sweep(request_for(overrides=("data.valid=null",)))
    with pytest.raises(UserError, match="--workers must be above 0"):
        open_sweep(request_for(workers=0))


# -- results -----------------------------------------------------------------------------------------------------------


def test_the_best_config_is_that_of_the_run_with_the_least_loss(finished: SweepRequest, tmp_path: Path) -> None:
    assert finished.folder is not None
    folder = SweepFolder(finished.folder)
    found = results.write_results(folder)
    values = values_of_runs(folder)
    points = [(t.params["model.width"], t.params["training.optimizer.rate"]) for t in found.trials]
    assert set(points) == POINTS
    assert {t.number: t.value for t in found.trials} == values
    assert found.best is not None
    assert found.best.number == min(values, key=lambda number: values[number])
    assert found.trials[[t.number for t in found.trials].index(0)].params == {
        "model.width": 16,
        "training.optimizer.rate": 3e-3,  # the config's own values come first
    }
    saved = yaml.read(folder.trial_folder(found.best.number) / "config.yaml")
    best = configs.load(folder.path / "best.yaml").config.model_dump()
    expected = configs.validate(saved, "saved").model_dump() | {"name": "copy-best"}
    expected["data"]["max_source"] = best["data"]["max_source"]  # what a run resolves from its data
    assert best == expected
    assert found.note.startswith("the best of 4 trials on 30 validation examples: its validation score is optimistic")
    rows = [line.split("\t") for line in (folder.path / "trials.tsv").read_text().splitlines()]
    assert [row[2] for row in rows[1:]] == [str(value) for value in sorted(values.values())]


def test_the_report_has_every_trial_and_asks_for_nothing(finished: SweepRequest, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert finished.folder is not None
    results.write_results(SweepFolder(finished.folder))
    text = write_sweep_report(finished.folder).read_text()
    assert text.count("data:image/png;base64,") == 1  # too few trials to say what mattered
    assert "http" not in text.replace("http-equiv", "")
    assert (finished.folder / "coordinates.png").read_bytes().startswith(b"\x89PNG")
    assert text.count(">complete</span>") == 4


def test_the_same_command_again_prints_the_table(finished: SweepRequest, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", str(finished.config), "--space", str(finished.space), "--run", str(finished.folder)]
    words += ["--sampler", "random", "--pruner", "none", "--trials", "4"]
    build_app(words)(words, standalone_mode=False)
    table = capsys.readouterr().out
    build_app(words)([*words, "--status", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert [int(line.split()[0]) for line in table.splitlines()[1:5]] == [each["number"] for each in found["trials"]]
    assert found["best"] == found["trials"][0]["number"]
    assert found["note"] in table


def test_trials_are_the_same_whichever_process_begins_them(
    finished: SweepRequest, request_for: Callable[..., SweepRequest]
) -> None:
    assert finished.folder is not None
    known = SweepFolder(finished.folder).open_study().get_trials()
    folder = open_sweep(request_for()).folder
    for number in range(3):  # opened anew for each trial, as processes do
        study = folder.open_study()
        with folder.claiming():
            claim = trial.claim_trial(folder, study, 4, "here")
        assert claim is not None
        assert claim.trial.params == known[number].params
        study.tell(number, known[number].value)
        claim.lock.close()


def test_a_metric_that_is_better_when_higher_is_maximized(request_for: Callable[..., SweepRequest]) -> None:
    overrides = ("training.validate_metrics=[chrf]", "training.best=chrf")
    folder = train_here(request_for(trials=2, overrides=overrides))
    found = results.collect_results(folder)
    runs = [best_validation(folder.trial_folder(number), folder.config) for number in (0, 1)]
    values = [run[0] for run in runs if run is not None]
    assert found.higher_is_better
    assert [each.value for each in found.trials] == sorted(values, reverse=True)


def test_a_pruned_trial_stops_early_and_its_run_is_whole(
    request_for: Callable[..., SweepRequest], tmp_path: Path
) -> None:
    (tmp_path / "space.yaml").write_text("training.optimizer.rate: {choices: [3.0e-3, 1.0e-7]}\n")
    folder = train_here(request_for(trials=2, pruner="asha", overrides=("training.steps=20",)))
    first, second = results.collect_results(folder).trials
    assert (first.state, first.params["training.optimizer.rate"]) == ("complete", 3e-3)
    assert (second.state, second.step, second.reason) == ("pruned", 5, "pruned at step 5 of 20")
    run = folder.trial_folder(second.number)
    checkpoint, ignored = model_folder.latest_checkpoint(run)
    assert (checkpoint, ignored) == (run / "checkpoints" / "step-5", [])
    *_, last = training.run(configs.validate(yaml.read(run / "config.yaml"), "run"), run)  # goes on as any run does
    assert (last.kind, last.step) == ("end", 20)


LONG_ENOUGH = ("training.steps=120", "training.validate_every=60", "training.save_every=120")


def test_a_training_that_diverges_counts_as_pruned(request_for: Callable[..., SweepRequest], tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("training.optimizer.rate: {choices: [1.0e+30]}\n")
    folder = train_here(request_for(trials=1, overrides=("training.clip=null", *LONG_ENOUGH)))
    (only,) = results.collect_results(folder).trials
    assert only.state == "pruned"
    assert only.reason.startswith("diverged: ")


def test_the_steps_of_a_trial_with_minutes_are_measured_once(request_for: Callable[..., SweepRequest]) -> None:
    request = request_for(trials=1, trial_minutes=0.01)
    folder = open_sweep(request).folder
    study = folder.open_study()
    with folder.claiming():
        claim = trial.claim_trial(folder, study, 1, "here")
    assert claim is not None
    steps = {trial._trial_config(folder, claim.trial).training.steps for _ in range(2)}
    claim.lock.close()
    assert len(steps) == 1
    assert steps.pop() % 10 == 0


def test_no_trial_begins_when_the_time_is_up(request_for: Callable[..., SweepRequest]) -> None:
    request = request_for(minutes=1e-9)
    sentences = list(driver.run(request, opened := open_sweep(request)))
    assert sentences == ["the time is up: 0 of 4 trials are finished; the same command goes on"]
    assert states_of(opened.folder) == []


def test_workers_share_out_the_gpus() -> None:
    executor = LocalExecutor({}, 3, 2, ["3", "5"])
    try:
        for _ in range(3):
            executor.start()
        found = []
        for process in executor.processes.values():
            wait_until(lambda: b"OMP_NUM_THREADS=2" in environment_of(process.pid))  # noqa: B023
            found.append(re.findall(rb"CUDA_VISIBLE_DEVICES=(\d)", environment_of(process.pid)))
    finally:
        executor.stop()
    assert found == [[b"3"], [b"5"], [b"3"]]
    assert executor.running == 0


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def test_a_status_begins_no_sweep(request_for: Callable[..., SweepRequest], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no sweep"):
        open_sweep(request_for(), may_begin=False)
    assert not (tmp_path / "sweep").exists()


# -- what is damaged, or another ---------------------------------------------------------------------------------------


def snapshot(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file that holds something."""
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.stat().st_size
    }


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"overrides": ("training.clip=2.0",)}, "training.clip was 1.0, is now 2.0"),
        ({"overrides": ("seed=2",)}, "seed was 1, is now 2"),
        ({"sampler": "tpe"}, "--sampler was random, is now tpe"),
        ({"pruner": "median"}, "--pruner was none, is now median"),
        ({"trial_minutes": 1.0}, "--trial-minutes was None, is now 1.0"),
        ({"space": "rnn"}, "the space is another"),
    ],
)
def test_another_sweep_in_the_same_folder_is_refused(
    copied: SweepRequest, changes: dict[str, Any], problem: str
) -> None:
    assert copied.folder is not None
    before = snapshot(copied.folder)
    with pytest.raises(RunError) as caught:
        open_sweep(replace(copied, **changes))
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert snapshot(copied.folder) == before


def edit_value(text: str) -> str:
    value = json.loads(next(line for line in text.splitlines() if '"state":1' in line))["values"][0]
    return text.replace(f'"values":[{value}]', '"values":[0.001]')


DAMAGES: dict[str, Callable[[str], str]] = {
    "a line that is no JSON": lambda text: text.replace('{"op_code":6', '{"op_code":6,,', 1),
    "a line of something else": lambda text: "hello\n" + text,
    "a value that no run has": edit_value,
    "the first lines are missing": lambda text: "".join(text.splitlines(keepends=True)[1:]),
    "the last half is missing": lambda text: "".join(text.splitlines(keepends=True)[:20]),
    "nothing is left": lambda text: "",
    "another type": lambda text: text.replace('"trial_id":0', '"trial_id":[]'),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_journal_is_refused_and_left_as_it_is(copied: SweepRequest, name: str) -> None:
    assert copied.folder is not None
    journal = copied.folder / "journal.log"
    journal.write_text(DAMAGES[name](journal.read_text()))
    before = snapshot(copied.folder)
    with pytest.raises(RunError) as caught:
        open_sweep(copied)
    assert str(caught.value).startswith(f"{journal}: ")
    assert "\n" not in str(caught.value)
    assert snapshot(copied.folder) == before


@pytest.mark.parametrize("name", ["journal.log", "settings.json", "config.yaml", "space.yaml"])
def test_a_missing_file_is_refused(copied: SweepRequest, name: str) -> None:
    assert copied.folder is not None
    (copied.folder / name).unlink()
    with pytest.raises(UserError) as caught:
        open_sweep(copied)
    assert name in str(caught.value)


def test_a_line_that_was_not_written_to_its_end_is_dropped(copied: SweepRequest) -> None:
    assert copied.folder is not None
    with (copied.folder / "journal.log").open("a") as file:
        file.write('{"op_code":4,"worker_id":"x","study_')
    folder = open_sweep(copied).folder
    assert trial.claim_and_train(folder, 5, "here") == "trained"
    assert states_of(folder) == ["COMPLETE"] * 5


# -- what is killed ----------------------------------------------------------------------------------------------------


def test_a_trial_that_is_killed_again_and_again_has_failed_and_is_replaced(
    request_for: Callable[..., SweepRequest],
) -> None:
    folder = open_sweep(request_for(trials=1)).folder
    study = folder.open_study()
    asked = study.ask(folder.space.distributions())
    asked.set_user_attr("begun_at", (0, trial.MAX_KILLS))
    assert trial.claim_and_train(folder, 1, "here") == "trained"
    assert states_of(folder) == ["FAIL", "COMPLETE"]
    assert "was killed 3 times" in study.get_trials()[0].user_attrs["reason"]


def test_a_trial_that_was_killed_before_it_had_its_values_is_replaced(
    request_for: Callable[..., SweepRequest],
) -> None:
    folder = open_sweep(request_for(trials=1)).folder
    folder.open_study().ask()
    assert trial.claim_and_train(folder, 1, "here") == "trained"
    assert states_of(folder) == ["FAIL", "COMPLETE"]


def test_a_trial_that_ends_while_another_process_looks_is_not_taken_up(
    request_for: Callable[..., SweepRequest],
) -> None:
    folder = open_sweep(request_for(trials=1)).folder
    study = folder.open_study()
    asked = study.ask(folder.space.distributions())
    stale = study.get_trials()
    study.tell(asked, 1.0)

    class Stale:  # what was read just before the trial ended; then as it is
        reads = 0

        def get_trials(self, deepcopy: bool = True) -> Any:
            self.reads += 1
            return stale if self.reads == 1 else study.get_trials(deepcopy=deepcopy)

    with folder.claiming():
        assert trial.claim_trial(folder, Stale(), 1, "here") is None  # type: ignore[arg-type]


def test_a_trial_that_is_trained_by_another_process_is_left_alone(request_for: Callable[..., SweepRequest]) -> None:
    folder = open_sweep(request_for(trials=1)).folder
    with folder.claiming():
        claim = trial.claim_trial(folder, folder.open_study(), 1, "another")
    assert claim is not None
    assert trial.claim_and_train(folder, 1, "here") == "nothing"
    claim.lock.close()  # as the system does when a process ends
    assert trial.claim_and_train(folder, 1, "here") == "trained"
    assert states_of(folder) == ["COMPLETE"]


def claim_until_done(folder: SweepFolder, trials: int) -> None:
    """Claim trials and end them at once, in place of trainings, until so many are finished."""
    study = folder.open_study()
    while len(done(study.get_trials(deepcopy=False))) < trials:
        with folder.claiming():
            claim = trial.claim_trial(folder, study, trials, "here")
        if claim is not None:
            with claim.lock:
                claim.trial.report(1.0, 5)
                study.tell(claim.number, float(claim.trial.params["model.width"]))


def test_processes_that_are_killed_at_any_moment_finish_exactly_so_many_trials(
    request_for: Callable[..., SweepRequest],
) -> None:
    rng, wanted = random.Random(os.environ.get("DRAGOMAN_TEST_SEED")), 60
    folder = open_sweep(request := request_for(trials=wanted)).folder
    workers: list[BaseProcess] = []
    context = multiprocessing.get_context("fork")
    try:
        for kill in range(23):
            workers.append(context.Process(target=claim_until_done, args=(folder, wanted)))
            workers[-1].start()
            if kill < 3:
                continue
            time.sleep(rng.uniform(0.0, 0.15))  # a random moment, not a wait for anything
            victim = workers.pop(rng.randrange(len(workers)))
            victim.kill()
            victim.join()
        for worker in workers:
            worker.join(DEADLINE)
            assert worker.exitcode == 0
    finally:
        for worker in workers:
            worker.kill()
    states = states_of(open_sweep(request).folder)
    assert states.count("COMPLETE") == wanted
    assert set(states) <= {"COMPLETE", "FAIL"}


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """commands("--trials", "2") → the command line in a process of its own; none is left behind."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        words = ["sweep", "copy.yaml", "--space", "space.yaml", "--run", "sweep", "--sampler", "random"]
        with (tmp_path / f"words-{len(started)}.txt").open("wb") as out:
            command = [sys.executable, "-m", "dragoman", *words, *arguments]
            started.append(subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=out))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "this took too long"
        time.sleep(0.02)


def options(*sets: str) -> list[str]:
    return [word for text in sets for word in ("--set", text)]


def has_checkpoint(tmp_path: Path, number: int) -> bool:
    return any((tmp_path / f"sweep/trials/{number:04d}/checkpoints").glob("step-*"))


def weights_of(run: Path) -> dict[str, str]:
    """The SHA-256 of the files of a run's last checkpoint."""
    checkpoint, _ = model_folder.latest_checkpoint(run)
    assert checkpoint is not None
    return snapshot(checkpoint)


def test_a_trial_whose_process_is_killed_goes_on_with_the_same_bytes(
    request_for: Callable[..., SweepRequest], tmp_path: Path
) -> None:
    folder = open_sweep(request_for(trials=1, overrides=SLOW)).folder
    order = {"folder": str(folder.path), "trials": 1, "driver": "another", "plugins": []}
    command = [sys.executable, "-m", "dragoman.jobs.sweep.worker", json.dumps(order)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: has_checkpoint(tmp_path, 0) or process.poll() is not None)
        process.kill()
    assert trial.claim_and_train(folder, 1, "here") == "trained"
    assert_same_bytes(folder, tmp_path / "alone")


def assert_same_bytes(folder: SweepFolder, alone: Path) -> None:
    """The only trial of a sweep has the weights that its config trains without a sweep and without a stop."""
    assert states_of(folder) == ["COMPLETE"]
    run = folder.trial_folder(0)
    assert "resumed from step" in (run / "train.log").read_text()
    list(training.run(configs.validate(yaml.read(run / "config.yaml"), "run"), alone))
    assert weights_of(run) == weights_of(alone)


@pytest.mark.long
def test_a_sweep_whose_driver_is_killed_goes_on_with_the_same_bytes(
    request_for: Callable[..., SweepRequest], commands: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    arguments = ["--trials", "1", "--pruner", "none", *options(*SLOW)]
    killed = commands(*arguments)
    wait_until(lambda: has_checkpoint(tmp_path, 0) or killed.poll() is not None)
    killed.kill()
    killed.wait()
    assert commands(*arguments).wait(DEADLINE) == 0, (tmp_path / "words-1.txt").read_text()
    assert_same_bytes(SweepFolder(tmp_path / "sweep"), tmp_path / "alone")


@pytest.mark.long
def test_two_drivers_of_which_one_is_killed_finish_exactly_so_many_trials(
    request_for: Callable[..., SweepRequest], commands: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    rng = random.Random(os.environ.get("DRAGOMAN_TEST_SEED"))
    arguments = ["--trials", "8", "--pruner", "median", "--workers", "2", *options(*SLOW)]
    survivor, victim = commands(*arguments), commands(*arguments)
    folder = SweepFolder(tmp_path / "sweep")
    for _ in range(4):
        wait_until(lambda: (folder.path / "settings.json").exists() and folder.journal.exists())
        began = time.monotonic()
        pause = rng.uniform(0.5, 8.0)
        wait_until(lambda: time.monotonic() - began > pause or survivor.poll() is not None)  # noqa: B023
        victim.kill()
        victim.wait()
        victim = commands(*arguments)
    assert survivor.wait(DEADLINE) == 0, (tmp_path / "words-0.txt").read_text()
    assert victim.wait(DEADLINE) == 0
    states = [state for state in states_of(folder) if state != "FAIL"]
    assert len(states) == 8
    assert set(states) <= {"COMPLETE", "PRUNED"}
    for each in results.collect_results(folder).trials:
        if each.state == "complete":
            found = best_validation(folder.trial_folder(each.number), folder.config)
            assert found is not None
            assert found[0] == each.value


@pytest.mark.long
def test_a_worker_that_is_killed_is_replaced_and_its_trial_goes_on(
    request_for: Callable[..., SweepRequest], commands: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = commands("--trials", "2", "--pruner", "none", *options(*SLOW))
    wait_until(lambda: has_checkpoint(tmp_path, 0))
    pid = int((tmp_path / "sweep/trials/0000/.lock").read_text())
    os.kill(pid, signal.SIGKILL)
    assert process.wait(DEADLINE) == 0
    assert states_of(SweepFolder(tmp_path / "sweep")) == ["COMPLETE", "COMPLETE"]
    assert "resumed from step" in (tmp_path / "sweep/trials/0000/train.log").read_text()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_saves_its_trial_and_goes_on(
    request_for: Callable[..., SweepRequest],
    commands: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    arguments = ["--trials", "1", "--pruner", "none", *options("training.steps=400", "training.save_every=400")]
    process = commands(*arguments)
    record = tmp_path / "sweep/trials/0000/metrics.jsonl"
    wait_until(lambda: record.exists() and b'"step": 2' in record.read_bytes())
    process.send_signal(number)
    assert process.wait(DEADLINE) == 128 + number
    assert has_checkpoint(tmp_path, 0)
    assert commands(*arguments).wait(DEADLINE) == 0
    assert states_of(SweepFolder(tmp_path / "sweep")) == ["COMPLETE"]


@pytest.mark.long
def test_ray_trains_the_same_trials_also_when_a_worker_is_killed(
    request_for: Callable[..., SweepRequest], commands: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    arguments = ["--trials", "3", "--pruner", "none", "--executor", "ray", "--workers", "2", *options(*SLOW)]
    process = commands(*arguments)
    wait_until(lambda: has_checkpoint(tmp_path, 0) or process.poll() is not None)
    os.kill(int((tmp_path / "sweep/trials/0000/.lock").read_text()), signal.SIGKILL)
    assert process.wait(DEADLINE) == 0, (tmp_path / "words-0.txt").read_text()
    by_ray = SweepFolder(tmp_path / "sweep")
    assert states_of(by_ray) == ["COMPLETE"] * 3
    here = train_here(replace(request_for(trials=3, overrides=SLOW), folder=tmp_path / "here"))
    assert [t.params for t in by_ray.open_study().get_trials()] == [t.params for t in here.open_study().get_trials()]
    assert values_of_runs(by_ray) == values_of_runs(here)
