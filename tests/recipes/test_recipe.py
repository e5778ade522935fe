"""What a recipe asks for: its jobs, its data, its expectations; and the command line around it."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from dragoman import recipes
from dragoman.cli.main import main
from dragoman.core.errors import DataError, RunError, UserError
from dragoman.recipes import prepared_data, processes, provenance, runner, scoring
from dragoman.recipes.recipe import Expected, Job, Opened, Recipe, Setting, passed

SYSTEMS = {"before": {"config": "a.yaml", "scored": False}, "after": {"config": "b.yaml", "after": "before"}}
PLAIN = {
    "title": "made up",
    "task": "none",
    "data": ["things"],
    "parts": ["north", "south"],
    "systems": SYSTEMS,
    "scores": {"exact": "exact", "errors": {"metric": "exact", "inverse": True}},
}


def made(**changes) -> Opened:
    return Opened("made-up", Recipe.model_validate(PLAIN | changes), Path("nowhere"))


def test_a_system_that_builds_on_another_brings_it_along_and_comes_after_it():
    jobs = made().jobs(["after/south"])
    assert jobs == [Job("before", "south", 1), Job("after", "south", 1)]
    turned = made(systems=dict(reversed(SYSTEMS.items())))
    assert turned.jobs(["south"]) == jobs
    assert turned.jobs(["before/south"]) == jobs[:1]


def test_a_system_builds_on_one_other_at_most():
    third = {"config": "c.yaml", "after": "after"}
    [problem] = made(systems=SYSTEMS | {"third": third}).recipe.problems()
    assert "systems.third.after" in problem


def test_without_a_choice_every_part_of_every_system_is_trained_with_every_seed():
    jobs = made(seeds=[1, 2]).jobs()
    assert len(jobs) == len({*jobs}) == 2 * 2 * 2


def test_a_name_that_is_no_system_and_no_part_is_refused_with_those_there_are():
    with pytest.raises(UserError, match=r"no 'eastt'.*north"):
        made().jobs(["eastt"])


def test_a_recipe_without_parts_offers_its_systems_alone():
    with pytest.raises(UserError, match=r"\(there is after, before\)"):
        made(parts=[""]).jobs(["before/"])


def test_data_is_found_in_its_own_folder_and_in_the_one_that_holds_it(tmp_path: Path):
    (tmp_path / "things").mkdir()
    assert made().sets(tmp_path) == {"things": tmp_path / "things"}
    assert made().sets(tmp_path / "things") == {"things": tmp_path / "things"}


def test_a_data_set_is_missed_by_the_part_that_needs_it(tmp_path: Path):
    (tmp_path / "things").mkdir()
    found = made(data=["things", "other"]).sets(tmp_path)
    assert found["things"] == tmp_path / "things"
    with pytest.raises(DataError, match="no folder with the data set 'other'"):
        found["other"]
    with pytest.raises(DataError, match="no folder with the data set 'things'"):
        made(data=["things", "other"]).sets(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("score", "reached", "good"), [("exact", 89.9, False), ("exact", 90.0, True), ("exact", 99, True)]
)
def test_a_score_passes_down_to_its_tolerance(score, reached, good):
    recipe = made(expect={"after": {score: {"value": 92.0, "tolerance": 2.0}}}).recipe
    [row] = passed(recipe, {"after": {score: reached}})
    assert row == ("after", score, reached, Expected(value=92.0, tolerance=2.0), good)


@pytest.mark.parametrize(("reached", "good"), [(7.9, True), (8.0, True), (8.1, False)])
def test_an_error_rate_passes_up_to_its_tolerance(reached, good):
    recipe = made(expect={"after": {"errors": {"value": 7.0, "tolerance": 1.0}}}).recipe
    assert [row[-1] for row in passed(recipe, {"after": {"errors": reached}})] == [good]


def test_a_mean_over_groups_and_the_surprise_of_a_language_model_can_be_expected():
    wanted = {"exact, mean of groups": 80.0, "test.errors, mean of low": 9.0, "bits per character": 2.0}
    expect = {"after": {name: {"value": value, "tolerance": 0.0} for name, value in wanted.items()}}
    recipe = made(expect=expect).recipe
    assert not list(recipe.problems())
    found = passed(recipe, {"after": {name: value + 1.0 for name, value in wanted.items()}})
    assert [row[-1] for row in found] == [True, False, False]


@pytest.mark.parametrize("expect", [{"nobody": {}}, {"after": {"bleu": {"value": 1.0, "tolerance": 0.0}}}])
def test_an_expectation_of_nobody_or_of_no_score_is_a_problem(expect):
    assert list(made(expect=expect).recipe.problems())


def test_means_are_taken_over_seeds_and_over_parts():
    def result(part: str, seed: int, value: float) -> dict[str, object]:
        tests = {"test": {"scores": {"exact": {"value": value}}}, "far": {"scores": {"exact": {"value": value / 2}}}}
        return {"system": "after", "part": part, "seed": seed, "tests": tests}

    found = scoring.summary([result("north", 1, 80.0), result("north", 2, 90.0), result("south", 1, 40.0)])
    assert found["after/north"]["exact"] == pytest.approx(85.0)
    assert found["after"]["exact"] == pytest.approx(70.0)
    assert found["after"]["far.exact"] == pytest.approx(35.0)
    assert found["after"]["test.exact"] == pytest.approx(70.0)


def test_a_folder_that_was_prepared_from_other_data_is_not_taken_for_this(tmp_path: Path):
    opened = recipes.open_recipe("scan")
    example = Setting(opened, None, tmp_path, example=True)
    assert prepared_data.prepare(example, "simple") == prepared_data.prepare(example, "simple")
    with pytest.raises(RunError, match=r"from a hundred made-up items .* choose another folder with --run"):
        prepared_data.prepare(Setting(opened, tmp_path / "example", tmp_path), "simple")


def test_data_that_another_command_is_preparing_is_waited_for_and_taken(tmp_path: Path):
    setting = Setting(recipes.open_recipe("scan"), None, tmp_path, example=True)
    folder = setting.prepared("simple")
    folder.mkdir(parents=True)
    with (folder / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = threading.Thread(target=prepared_data.prepare, args=(setting, "simple"))
        other.start()
        deadline = time.monotonic() + 60
        while not (tmp_path / "example/scan/length.test.tsv.gz").exists():  # the last that is made up
            assert time.monotonic() < deadline
            time.sleep(0.01)
        note = provenance.Origin(["a hundred made-up items (--example)"])
        (folder / "prepared").write_text(note.text(), encoding="utf-8")
    other.join()
    assert not (folder / "train.tsv").exists()


# -- the command line --------------------------------------------------------------------------------------------------


def dragoman(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dragoman", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def inside(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The same in this process: no seconds for importing torch."""

    def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["dragoman", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return subprocess.CompletedProcess(words, ended.value.code, *capsys.readouterr())

    return run


COMMAND = ("recipe", "run", "multi30k", "--example", "--only", "tiny/cased", "--seed", "1,2,1", "--together")
COMMAND += ("--jobs", "2")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("recipe")
    return folder, dragoman(*COMMAND, folder=folder)


def test_a_recipe_runs_from_one_command_and_leaves_its_scores(ran):
    folder, done = ran
    assert done.returncode == 0, done.stderr
    result = json.loads((folder / "runs/multi30k-example/tiny-cased/result.json").read_text(encoding="utf-8"))
    assert result["tests"]["test"]["n"] == 10
    output = (folder / "runs/multi30k-example/tiny-cased/test.output.tsv").read_text(encoding="utf-8")
    assert len(output.split("\n")) == 11
    assert "sacreBLEU" in done.stdout
    assert result["overlap"]
    assert all(f"\ncased {message}\n" in done.stdout for message in result["overlap"].values())
    for job in ("tiny-cased", "tiny-cased-seed2"):  # told as it went, side by side
        assert f"{job}: begins" in done.stderr
        assert f"{job}: done, BLEU of tokens, lower-cased " in done.stderr


def test_the_models_of_several_seeds_are_scored_as_one_besides(ran):
    folder, done = ran
    runs = folder / "runs/multi30k-example"
    one, both = (
        json.loads((runs / name / "result.json").read_text(encoding="utf-8"))
        for name in ("tiny-cased", "tiny-cased-together")
    )
    assert both["system"] == "tiny, together"
    assert both["parameters"] == 2 * one["parameters"]
    assert both["tests"]["test"]["n"] == 10
    assert "tiny, together" in done.stdout


def test_models_together_have_no_seed_in_their_name_and_one_alone_is_said_to_be_none(ran, inside, tmp_path: Path):
    folder, _ = ran
    runs = shutil.copytree(folder / "runs/multi30k-example", tmp_path / "runs")
    shutil.rmtree(runs / "tiny-cased-together")
    words = (
        "recipe",
        "run",
        "multi30k",
        "--example",
        "--only",
        "tiny/cased",
        "--run",
        str(runs),
        "--together",
        "--seed",
    )
    both = inside(*words, "2,1", folder=tmp_path)
    assert "tiny, together-cased " in both.stdout
    one = inside(*words, "2", folder=tmp_path)
    assert one.returncode == 0
    assert "--together: one model of each system is no group" in one.stderr


def test_jobs_that_fail_side_by_side_say_why(ran, tmp_path: Path):
    folder, _ = ran
    runs = shutil.copytree(folder / "runs/multi30k-example", tmp_path / "runs")
    done = dragoman(*COMMAND, "--run", str(runs), "--set", "training.label_smoothing=0.2", folder=tmp_path)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "error: 2 of 2 jobs failed: tiny-cased (" in said
    assert said.count("training.label_smoothing: was ") == 4  # as each ended, and in the end


def test_a_folder_that_an_earlier_command_still_trains_in_is_named_with_the_process(tmp_path: Path):
    opened = recipes.open_recipe("scan")
    setting = Setting(opened, None, tmp_path, example=True)
    jobs = opened.jobs(["transformer/simple"], [1, 2])
    (tmp_path / jobs[1].name).mkdir()
    with (tmp_path / jobs[1].name / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("12345\n")
        lock.flush()
        with pytest.raises(RunError, match=r"still trains transformer-simple-seed2 by process 12345; .*kill 12345"):
            processes.side_by_side(setting, jobs, 2, print)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"steps": 4}'])
def test_a_broken_result_is_no_result(tmp_path: Path, broken: str):
    opened = recipes.open_recipe("scan")
    setting = Setting(opened, None, tmp_path, example=True)
    [job] = opened.jobs(["transformer/simple"], [1])
    setting.folder(job).mkdir()
    (setting.folder(job) / "result.json").write_text(broken)
    assert not scoring.scored(setting, job)
    assert scoring.results(setting, [job]) == []


def test_what_test_and_train_share_is_said_with_the_test_and_of_a_language_model_too(tmp_path: Path):
    opened = recipes.open_recipe("character-lm")
    place = tmp_path / "tatoeba-fra-eng"
    place.mkdir()
    for name, english in {"train": ["one", "two"], "dev": ["three"], "test": ["two", "four"]}.items():
        (place / f"{name}.tsv").write_text("".join(f"{text}\tx\n" for text in english))
    setting, job = Setting(opened, place, tmp_path / "run"), Job("rnn", "", 1)
    found = scoring.overlap(setting, job, runner.config_of(setting, job))
    assert [*found.values()] == ["test: 1 line (50.0%) also in train; scores on them flatter the model"]


def test_overlap_is_named_by_the_test_it_is_of(tmp_path: Path):
    opened, place = recipes.open_recipe("cogs"), tmp_path / "cogs"
    place.mkdir()
    for name, line in {"train": "a", "dev": "b", "test": "c", "gen": "a"}.items():
        (place / f"{name}.tsv").write_text(f"{line}\t{line}\tkind\n")
    setting, job = Setting(opened, place, tmp_path / "run"), Job("transformer", "", 1)
    found = scoring.overlap(setting, job, runner.config_of(setting, job))
    assert [message.split(";")[0] for message in found.values()] == ["gen: 1 pair (100.0%) also in train"]


def test_an_example_is_one_training_of_each_system_unless_seeds_are_named(inside, tmp_path: Path):
    words = ("recipe", "run", "multi30k", "--example", "--only", "tiny/cased")
    done = inside(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.parent.name for path in tmp_path.glob("runs/*/*/config.yaml")] == ["tiny-cased"]


def test_models_of_other_seeds_and_models_trained_on_do_not_get_the_scores_of_those_before(ran, tmp_path: Path):
    folder, _ = ran
    runs = shutil.copytree(folder / "runs/multi30k-example", tmp_path / "runs")
    shutil.copytree(runs / "tiny-cased-seed2", runs / "tiny-cased-seed3")
    opened = recipes.open_recipe("multi30k")
    setting = Setting(opened, None, runs, example=True)
    for seeds in ([1, 2], [2, 3]):
        [found] = scoring.together(setting, opened.jobs(["tiny/cased"], seeds))
        assert found["seed"] == seeds[0]
        assert [*found["members"]] == [Job("tiny", "cased", seed).name for seed in seeds]
    with (runs / "tiny-cased-seed3/metrics.jsonl").open("a") as metrics:
        metrics.write('{"kind": "train", "step": 99, "seconds": 1.0}\n')
    [found] = scoring.together(setting, opened.jobs(["tiny/cased"], seeds))
    assert found["members"]["tiny-cased-seed3"] == 99


def test_systems_that_a_recipe_puts_together_are_scored_as_one_too(ran, tmp_path: Path):
    folder, _ = ran
    runs = shutil.copytree(folder / "runs/multi30k-example", tmp_path / "runs")
    shutil.copytree(runs / "tiny-cased-seed2", runs / "tiny-rdrop-cased")
    opened = recipes.open_recipe("multi30k")
    recipe = opened.recipe.model_copy(update={"together": {"both": ["tiny", "tiny-rdrop"]}})
    setting = Setting(Opened(opened.name, recipe, opened.folder), None, runs, example=True)
    [seeds] = scoring.together(setting, [Job("tiny", "cased", 1), Job("tiny", "cased", 2)])  # of one system alone
    assert seeds["system"] == "tiny, together"
    [found] = scoring.together(setting, [Job("tiny", "cased", 1), Job("tiny-rdrop", "cased", 1)])
    assert found["system"] == "both, together"
    assert [*found["members"]] == ["tiny-cased", "tiny-rdrop-cased"]
    assert (runs / "both-cased-together" / "test.output.tsv").exists()


def test_a_name_for_systems_together_is_new_and_of_systems_there_are():
    assert not list(made(together={"both": ["before", "after"]}).recipe.problems())
    assert list(made(together={"before": ["before", "after"]}).recipe.problems())
    assert list(made(together={"both": ["before", "never"]}).recipe.problems())


def test_the_same_command_again_trains_nothing_and_shows_the_scores(ran):
    folder, first = ran
    weights = sorted((folder / "runs/multi30k-example/tiny-cased").rglob("*.safetensors"))
    times = [file.stat().st_mtime_ns for file in weights]
    again = dragoman(*COMMAND, folder=folder)
    assert again.returncode == 0
    assert again.stdout == first.stdout
    assert [file.stat().st_mtime_ns for file in weights] == times


@pytest.mark.long
def test_a_job_that_is_trained_on_is_scored_anew_whatever_its_folder_is_called(ran, inside, tmp_path: Path):
    folder, _ = ran
    runs = shutil.copytree(folder / "runs/multi30k-example", tmp_path / "runs")
    result = runs / "tiny-cased" / "result.json"
    saved = json.loads(result.read_text(encoding="utf-8"))
    result.write_text(json.dumps({**saved, "steps": 1, "parameters": 0}), encoding="utf-8")  # as of an earlier step
    words = ("recipe", "run", "multi30k", "--example", "--only", "tiny/cased", "--seed", "1", "--run")
    done = inside(*words, str(runs), folder=tmp_path)  # the data of this copy is elsewhere, and the same
    assert done.returncode == 0, done.stderr
    assert json.loads(result.read_text(encoding="utf-8"))["parameters"] == saved["parameters"]
    refused = inside(*words, "runs", "--set", "training.label_smoothing=0.2", folder=tmp_path)
    assert refused.returncode == 2
    allowed = ("--set", "training.label_smoothing=0.2", "--allow-change", "training.label_smoothing")
    assert inside(*words, "runs", *allowed, folder=tmp_path).returncode == 0


def test_an_unknown_recipe_and_missing_data_are_one_sentence_and_code_2(inside, tmp_path: Path):
    for words, sentence in (
        (("run", "multi30"), "did you mean 'multi30k'?"),
        (("run", "multi30k"), "needs --data DIR"),
        (("run", "multi30k", "--data", "nowhere"), "no folder with the data set"),
        (("run", "question-answering", "--data", "nowhere"), "leave out --data"),
        (("run", "multi30k", "--data", "nowhere", "--example"), "--data and --example exclude each other"),
        (("run", "multi30k", "--example", "--check"), "leave out --check, or --example"),
        (("run", "multi30k", "--example", "--set", "training.stepps=3"), "did you mean 'steps'?"),
        (("show", "ladderr"), "did you mean 'ladder'?"),
    ):
        done = inside("recipe", *words, folder=tmp_path)
        assert done.returncode == 2
        assert sentence in done.stderr.replace("\n", " ")
        assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def free(lock: Path) -> bool:
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, token_labels=pytest.mark.long), signal.SIGINT])
def test_trainings_side_by_side_end_with_the_command_that_began_them(tmp_path: Path, number: signal.Signals):
    (tmp_path / "scan").mkdir()
    recipes.open_recipe("scan").code.example({"scan": tmp_path / "scan"}, random.Random(1))
    command = [
        "recipe",
        "run",
        "scan",
        "--data",
        "scan",
        "--only",
        "transformer/simple",
        "--seed",
        "1,2",
        "--jobs",
        "2",
    ]
    command += ["--set", "runtime.device=cpu", "--set", "training.precision=float32"]
    places = [tmp_path / "runs/scan" / name for name in ("transformer-simple", "transformer-simple-seed2")]
    said = (tmp_path / "said.txt").open("w")
    began = subprocess.Popen(
        [sys.executable, "-m", "dragoman", *command], cwd=tmp_path, start_new_session=True, stderr=said
    )
    try:
        deadline = time.monotonic() + 120
        while not all((place / "config.yaml").exists() for place in places):
            assert began.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        began.send_signal(number)
        assert began.wait(120) == 128 + number
        assert "the same command goes on" in (tmp_path / "said.txt").read_text()
        assert all(free(place / ".lock") for place in places)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(began.pid, signal.SIGKILL)
        began.wait()
        said.close()


def test_every_recipe_is_listed(inside, tmp_path: Path):
    listed = inside("recipe", "list", folder=tmp_path).stdout
    assert all(name in listed for name in recipes.names())
