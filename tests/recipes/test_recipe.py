"""Recipes: their jobs, their data, their expected scores, and the command line."""

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
from dragoman.recipes import parallel_jobs, prepared_data, provenance, runner, scoring
from dragoman.recipes.recipe import ExpectedScore, LoadedRecipe, Recipe, RecipeRun, TrainingJob, check_expected_scores

SYSTEMS = {"before": {"config": "a.yaml", "scored": False}, "after": {"config": "b.yaml", "after": "before"}}
PLAIN = {
    "title": "made up",
    "task": "none",
    "data": ["things"],
    "parts": ["north", "south"],
    "systems": SYSTEMS,
    "scores": {"exact": "exact", "errors": "ser"},
}


def loaded_recipe(**changes) -> LoadedRecipe:
    return LoadedRecipe("made-up", Recipe.model_validate(PLAIN | changes), Path("nowhere"))


def test_a_system_that_builds_on_another_brings_it_along_and_comes_after_it():
    jobs = loaded_recipe().select_jobs(["after/south"])
    assert jobs == [TrainingJob("before", "south", 1), TrainingJob("after", "south", 1)]
    turned = loaded_recipe(systems=dict(reversed(SYSTEMS.items())))
    assert turned.select_jobs(["south"]) == jobs
    assert turned.select_jobs(["before/south"]) == jobs[:1]


def test_a_system_builds_on_one_other_at_most():
    third = {"config": "c.yaml", "after": "after"}
    [problem] = loaded_recipe(systems=SYSTEMS | {"third": third}).recipe.problems()
    assert "systems.third.after" in problem


def test_by_default_every_part_of_every_system_is_trained_with_every_seed():
    jobs = loaded_recipe(seeds=[1, 2]).select_jobs()
    assert len(jobs) == len({*jobs}) == 2 * 2 * 2


def test_a_name_that_is_no_system_and_no_part_is_refused_with_those_there_are():
    with pytest.raises(UserError, match=r"no 'eastt'.*north"):
        loaded_recipe().select_jobs(["eastt"])


def test_a_recipe_without_parts_offers_its_systems_alone():
    with pytest.raises(UserError, match=r"\(there is after, before\)"):
        loaded_recipe(parts=[""]).select_jobs(["before/"])


def test_a_data_set_is_found_by_its_own_folder_and_by_the_one_that_holds_it(tmp_path: Path):
    (tmp_path / "things").mkdir()
    assert loaded_recipe().find_data_sets(tmp_path) == {"things": tmp_path / "things"}
    assert loaded_recipe().find_data_sets(tmp_path / "things") == {"things": tmp_path / "things"}


def test_a_missing_data_set_is_an_error_for_the_part_that_needs_it(tmp_path: Path):
    (tmp_path / "things").mkdir()
    result = loaded_recipe(data=["things", "other"]).find_data_sets(tmp_path)
    assert result["things"] == tmp_path / "things"
    with pytest.raises(DataError, match="no folder with the data set 'other'"):
        result["other"]
    with pytest.raises(DataError, match="no folder with the data set 'things'"):
        loaded_recipe(data=["things", "other"]).find_data_sets(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("score", "reached", "good"), [("exact", 89.9, False), ("exact", 90.0, True), ("exact", 99, True)]
)
def test_a_score_passes_down_to_its_tolerance(score, reached, good):
    recipe = loaded_recipe(expect={"after": {score: {"value": 92.0, "tolerance": 2.0}}}).recipe
    [row] = check_expected_scores(recipe, {"after": {score: reached}})
    assert row == ("after", score, reached, ExpectedScore(value=92.0, tolerance=2.0), good)


@pytest.mark.parametrize(("reached", "good"), [(7.9, True), (8.0, True), (8.1, False)])
def test_an_error_rate_passes_up_to_its_tolerance(reached, good):
    recipe = loaded_recipe(expect={"after": {"errors": {"value": 7.0, "tolerance": 1.0}}}).recipe
    assert [row[-1] for row in check_expected_scores(recipe, {"after": {"errors": reached}})] == [good]


def test_means_over_groups_and_bits_per_character_can_be_expected():
    wanted = {"exact, mean of groups": 80.0, "test.errors, mean of low": 9.0, "bits per character": 2.0}
    expect = {"after": {name: {"value": value, "tolerance": 0.0} for name, value in wanted.items()}}
    recipe = loaded_recipe(expect=expect).recipe
    assert not list(recipe.problems())
    result = check_expected_scores(recipe, {"after": {name: value + 1.0 for name, value in wanted.items()}})
    assert [row[-1] for row in result] == [True, False, False]


@pytest.mark.parametrize("expect", [{"nobody": {}}, {"after": {"bleu": {"value": 1.0, "tolerance": 0.0}}}])
def test_an_expected_score_of_an_unknown_system_or_score_is_a_problem(expect):
    assert list(loaded_recipe(expect=expect).recipe.problems())


def test_means_are_taken_over_seeds_and_over_parts():
    def result(part: str, seed: int, value: float) -> dict[str, object]:
        tests = {"test": {"scores": {"exact": {"value": value}}}, "far": {"scores": {"exact": {"value": value / 2}}}}
        return {"system": "after", "part": part, "seed": seed, "tests": tests}

    means = scoring.average_scores([result("north", 1, 80.0), result("north", 2, 90.0), result("south", 1, 40.0)])
    assert means["after/north"]["exact"] == pytest.approx(85.0)
    assert means["after"]["exact"] == pytest.approx(70.0)
    assert means["after"]["far.exact"] == pytest.approx(35.0)
    assert means["after"]["test.exact"] == pytest.approx(70.0)


def test_a_folder_that_was_prepared_from_other_data_is_refused(tmp_path: Path):
    loaded = recipes.load_recipe("scan")
    example = RecipeRun(loaded, None, tmp_path, example=True)
    assert prepared_data.prepare_data(example, "simple") == prepared_data.prepare_data(example, "simple")
    with pytest.raises(RunError, match=r"from a hundred generated items .* choose another folder with --run"):
        prepared_data.prepare_data(RecipeRun(loaded, tmp_path / "example", tmp_path), "simple")


def test_data_that_another_command_is_preparing_is_waited_for_and_used(tmp_path: Path):
    run = RecipeRun(recipes.load_recipe("scan"), None, tmp_path, example=True)
    folder = run.data_folder("simple")
    folder.mkdir(parents=True)
    with (folder / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = threading.Thread(target=prepared_data.prepare_data, args=(run, "simple"))
        other.start()
        deadline = time.monotonic() + 60
        while not (tmp_path / "example/scan/length.test.tsv.gz").exists():  # the last that is made up
            assert time.monotonic() < deadline
            time.sleep(0.01)
        note = provenance.DataOrigin(["a hundred generated items (--example)"])
        (folder / "prepared").write_text(note.to_json(), encoding="utf-8")
    other.join()
    assert not (folder / "train.tsv").exists()


# -- the command line --------------------------------------------------------------------------------------------------


def dragoman(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dragoman", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def run_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The same in this process: no seconds for importing torch."""

    def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["dragoman", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return subprocess.CompletedProcess(words, ended.value.code, *capsys.readouterr())

    return run


COMMAND = ("recipe", "run", "multi30k", "--example", "--only", "tiny/cased", "--seed", "1,2,1", "--ensemble")
COMMAND += ("--jobs", "2")


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("recipe")
    return folder, dragoman(*COMMAND, folder=folder)


def test_a_recipe_runs_from_one_command_and_leaves_its_scores(finished_run):
    folder, done = finished_run
    assert done.returncode == 0, done.stderr
    result = json.loads((folder / "runs/multi30k-example/tiny-cased/result.json").read_text(encoding="utf-8"))
    assert result["tests"]["test"]["n"] == 10
    output = (folder / "runs/multi30k-example/tiny-cased/test.output.tsv").read_text(encoding="utf-8")
    assert len(output.split("\n")) == 11
    assert "sacreBLEU" in done.stdout
    assert result["overlap"]
    assert all(f"\ncased {message}\n" in done.stdout for message in result["overlap"].values())
    for job in ("tiny-cased", "tiny-cased-seed2"):  # told as it went, side by side
        assert f"{job}: started" in done.stderr
        assert f"{job}: done, BLEU of tokens, lower-cased " in done.stderr


def test_the_models_of_several_seeds_are_scored_as_an_ensemble(finished_run):
    folder, done = finished_run
    runs = folder / "runs/multi30k-example"
    one, both = (
        json.loads((runs / name / "result.json").read_text(encoding="utf-8"))
        for name in ("tiny-cased", "tiny-cased-ensemble")
    )
    assert both["system"] == "tiny, ensemble"
    assert both["parameters"] == 2 * one["parameters"]
    assert both["tests"]["test"]["n"] == 10
    assert "tiny, ensemble" in done.stdout


def test_an_ensemble_has_no_seed_in_its_name_and_needs_several_models(finished_run, run_here, tmp_path: Path):
    folder, _ = finished_run
    runs = shutil.copytree(folder / "runs/multi30k-example", tmp_path / "runs")
    shutil.rmtree(runs / "tiny-cased-ensemble")
    words = (
        "recipe",
        "run",
        "multi30k",
        "--example",
        "--only",
        "tiny/cased",
        "--run",
        str(runs),
        "--ensemble",
        "--seed",
    )
    both = run_here(*words, "2,1", folder=tmp_path)
    assert "tiny, ensemble-cased " in both.stdout
    one = run_here(*words, "2", folder=tmp_path)
    assert one.returncode == 0
    assert "--ensemble needs several models of a system" in one.stderr


def test_parallel_jobs_that_fail_report_why(finished_run, tmp_path: Path):
    folder, _ = finished_run
    runs = shutil.copytree(folder / "runs/multi30k-example", tmp_path / "runs")
    done = dragoman(*COMMAND, "--run", str(runs), "--set", "training.label_smoothing=0.2", folder=tmp_path)
    assert done.returncode == 2
    output = " ".join(done.stderr.split())
    assert "error: 2 of 2 jobs failed: tiny-cased (" in output
    assert output.count("training.label_smoothing: was ") == 4  # as each ended, and in the end


def test_a_folder_that_an_earlier_command_still_trains_in_is_named_with_the_process(tmp_path: Path):
    loaded = recipes.load_recipe("scan")
    run = RecipeRun(loaded, None, tmp_path, example=True)
    jobs = loaded.select_jobs(["transformer/simple"], [1, 2])
    (tmp_path / jobs[1].name).mkdir()
    with (tmp_path / jobs[1].name / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("12345\n")
        lock.flush()
        with pytest.raises(RunError, match=r"still trains transformer-simple-seed2 in process 12345; .*kill 12345"):
            parallel_jobs.run_jobs(run, jobs, 2, print)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"steps": 4}'])
def test_a_broken_result_is_no_result(tmp_path: Path, broken: str):
    loaded = recipes.load_recipe("scan")
    run = RecipeRun(loaded, None, tmp_path, example=True)
    [job] = loaded.select_jobs(["transformer/simple"], [1])
    run.job_folder(job).mkdir()
    (run.job_folder(job) / "result.json").write_text(broken)
    assert not scoring.is_scored(run, job)
    assert scoring.load_results(run, [job]) == []


def test_overlap_of_test_and_train_is_reported_for_a_language_model_too(tmp_path: Path):
    loaded = recipes.load_recipe("character-lm")
    data_set = tmp_path / "tatoeba-fra-eng"
    data_set.mkdir()
    for name, english in {"train": ["one", "two"], "dev": ["three"], "test": ["two", "four"]}.items():
        (data_set / f"{name}.tsv").write_text("".join(f"{text}\tx\n" for text in english))
    run, job = RecipeRun(loaded, data_set, tmp_path / "run"), TrainingJob("rnn", "", 1)
    result = scoring.find_overlap(run, job, runner.job_config(run, job))
    assert [*result.values()] == ["test: 1 line (50.0%) also in train; scores on them flatter the model"]


def test_overlap_is_reported_with_the_name_of_the_test(tmp_path: Path):
    loaded, data_set = recipes.load_recipe("cogs"), tmp_path / "cogs"
    data_set.mkdir()
    for name, line in {"train": "a", "dev": "b", "test": "c", "gen": "a"}.items():
        (data_set / f"{name}.tsv").write_text(f"{line}\t{line}\tkind\n")
    run, job = RecipeRun(loaded, data_set, tmp_path / "run"), TrainingJob("transformer", "", 1)
    result = scoring.find_overlap(run, job, runner.job_config(run, job))
    assert [message.split(";")[0] for message in result.values()] == ["gen: 1 pair (100.0%) also in train"]


def test_an_example_is_one_training_of_each_system_unless_seeds_are_named(run_here, tmp_path: Path):
    words = ("recipe", "run", "multi30k", "--example", "--only", "tiny/cased")
    done = run_here(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.parent.name for path in tmp_path.glob("runs/*/*/config.yaml")] == ["tiny-cased"]


def test_an_ensemble_is_scored_again_for_other_seeds_or_further_training(finished_run, tmp_path: Path):
    folder, _ = finished_run
    runs = shutil.copytree(folder / "runs/multi30k-example", tmp_path / "runs")
    shutil.copytree(runs / "tiny-cased-seed2", runs / "tiny-cased-seed3")
    loaded = recipes.load_recipe("multi30k")
    run = RecipeRun(loaded, None, runs, example=True)
    for seeds in ([1, 2], [2, 3]):
        [result] = scoring.score_ensembles(run, loaded.select_jobs(["tiny/cased"], seeds))
        assert result["seed"] == seeds[0]
        assert [*result["members"]] == [TrainingJob("tiny", "cased", seed).name for seed in seeds]
    with (runs / "tiny-cased-seed3/metrics.jsonl").open("a") as metrics:
        metrics.write('{"kind": "train", "step": 99, "seconds": 1.0}\n')
    [result] = scoring.score_ensembles(run, loaded.select_jobs(["tiny/cased"], seeds))
    assert result["members"]["tiny-cased-seed3"] == 99


def test_ensembles_of_systems_are_scored_too(finished_run, tmp_path: Path):
    folder, _ = finished_run
    runs = shutil.copytree(folder / "runs/multi30k-example", tmp_path / "runs")
    shutil.copytree(runs / "tiny-cased-seed2", runs / "tiny-rdrop-cased")
    loaded = recipes.load_recipe("multi30k")
    recipe = loaded.recipe.model_copy(update={"ensembles": {"both": ["tiny", "tiny-rdrop"]}})
    run = RecipeRun(LoadedRecipe(loaded.name, recipe, loaded.folder), None, runs, example=True)
    [seeds] = scoring.score_ensembles(
        run, [TrainingJob("tiny", "cased", 1), TrainingJob("tiny", "cased", 2)]
    )  # of one system alone
    assert seeds["system"] == "tiny, ensemble"
    [result] = scoring.score_ensembles(run, [TrainingJob("tiny", "cased", 1), TrainingJob("tiny-rdrop", "cased", 1)])
    assert result["system"] == "both, ensemble"
    assert [*result["members"]] == ["tiny-cased", "tiny-rdrop-cased"]
    assert (runs / "both-cased-ensemble" / "test.output.tsv").exists()


def test_an_ensemble_has_a_new_name_and_existing_systems():
    assert not list(loaded_recipe(ensembles={"both": ["before", "after"]}).recipe.problems())
    assert list(loaded_recipe(ensembles={"before": ["before", "after"]}).recipe.problems())
    assert list(loaded_recipe(ensembles={"both": ["before", "never"]}).recipe.problems())


@pytest.mark.long
def test_the_same_command_again_trains_nothing_and_shows_the_scores(finished_run):
    folder, first = finished_run
    weights = sorted((folder / "runs/multi30k-example/tiny-cased").rglob("*.safetensors"))
    times = [file.stat().st_mtime_ns for file in weights]
    again = dragoman(*COMMAND, folder=folder)
    assert again.returncode == 0
    assert again.stdout == first.stdout
    assert [file.stat().st_mtime_ns for file in weights] == times


@pytest.mark.long
def test_a_job_that_is_trained_on_is_scored_anew_whatever_its_folder_is_called(finished_run, run_here, tmp_path: Path):
    folder, _ = finished_run
    runs = shutil.copytree(folder / "runs/multi30k-example", tmp_path / "runs")
    result = runs / "tiny-cased" / "result.json"
    saved = json.loads(result.read_text(encoding="utf-8"))
    result.write_text(json.dumps({**saved, "steps": 1, "parameters": 0}), encoding="utf-8")  # as of an earlier step
    words = ("recipe", "run", "multi30k", "--example", "--only", "tiny/cased", "--seed", "1", "--run")
    done = run_here(*words, str(runs), folder=tmp_path)  # the data of this copy is elsewhere, and the same
    assert done.returncode == 0, done.stderr
    assert json.loads(result.read_text(encoding="utf-8"))["parameters"] == saved["parameters"]
    refused = run_here(*words, "runs", "--set", "training.label_smoothing=0.2", folder=tmp_path)
    assert refused.returncode == 2
    allowed = ("--set", "training.label_smoothing=0.2", "--allow-change", "training.label_smoothing")
    assert run_here(*words, "runs", *allowed, folder=tmp_path).returncode == 0


def test_an_unknown_recipe_and_missing_data_are_one_sentence_and_code_2(run_here, tmp_path: Path):
    for words, sentence in (
        (("run", "multi30"), "did you mean 'multi30k'?"),
        (("run", "multi30k"), "needs --data DIR"),
        (("run", "multi30k", "--data", "nowhere"), "no folder with the data set"),
        (("run", "question-answering", "--data", "nowhere"), "leave out --data"),
        (("run", "multi30k", "--data", "nowhere", "--example"), "--data and --example exclude each other"),
        (("run", "multi30k", "--example", "--check"), "leave out --check or --example"),
        (("run", "multi30k", "--example", "--set", "training.stepps=3"), "did you mean 'steps'?"),
        (("show", "ladderr"), "did you mean 'ladder'?"),
    ):
        done = run_here("recipe", *words, folder=tmp_path)
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


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGINT])
def test_parallel_trainings_end_with_the_command_that_started_them(tmp_path: Path, number: signal.Signals):
    (tmp_path / "scan").mkdir()
    recipes.load_recipe("scan").recipe_module.make_example({"scan": tmp_path / "scan"}, random.Random(1))
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
    job_folders = [tmp_path / "runs/scan" / name for name in ("transformer-simple", "transformer-simple-seed2")]
    output = (tmp_path / "said.txt").open("w")
    began = subprocess.Popen(
        [sys.executable, "-m", "dragoman", *command], cwd=tmp_path, start_new_session=True, stderr=output
    )
    try:
        deadline = time.monotonic() + 120
        while not all((folder / "config.yaml").exists() for folder in job_folders):
            assert began.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        began.send_signal(number)
        assert began.wait(120) == 128 + number
        assert "run the same command again to resume" in (tmp_path / "said.txt").read_text()
        assert all(free(folder / ".lock") for folder in job_folders)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(began.pid, signal.SIGKILL)
        began.wait()
        output.close()


def test_every_recipe_is_listed(run_here, tmp_path: Path):
    listed = run_here("recipe", "list", folder=tmp_path).stdout
    assert all(name in listed for name in recipes.recipe_names())
