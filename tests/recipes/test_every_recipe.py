"""Every recipe, the whole way on a hundred made-up pairs: prepared, trained for a few steps, decoded and scored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman import recipes
from dragoman.core.errors import MissingExtra
from dragoman.recipes import prepared_data, runner, scoring
from dragoman.recipes.recipe import RecipeRun

NEEDED = {"image": "PIL", "audio": "soundfile"}
SLOW = ("captioning", "dialogue", "inflection", "ladder", "pretraining", "pronunciation-languages", "speech-iban")
SLOW += ("translation", "transliteration", "video")
TRAINED = [pytest.param(name, marks=pytest.mark.long if name in SLOW else ()) for name in recipes.recipe_names()]


@pytest.fixture(params=recipes.recipe_names())
def opened(request: pytest.FixtureRequest):
    found = recipes.load_recipe(request.param)
    for extra in found.recipe.extras:
        pytest.importorskip(NEEDED[extra])
    return found


def test_every_system_of_a_recipe_is_trained_on_each_part(opened):
    jobs = [(job.part, job.system) for job in opened.select_jobs(seeds=[1])]
    assert sorted(jobs) == sorted((part, system) for part in opened.recipe.parts for system in opened.recipe.systems)


@pytest.mark.parametrize("opened", TRAINED, indirect=True)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])
def test_systems_of_a_recipe_train_and_are_scored_on_made_up_data(opened, every: bool, tmp_path: Path):
    """The first system that is scored, with those it builds on; or every system."""
    setting = RecipeRun(opened, None, tmp_path, example=True)
    first = opened.recipe.parts[0]
    jobs = [job for job in opened.select_jobs(seeds=[1]) if job.part == first]
    if not every:
        first_scored = next(i for i, job in enumerate(jobs) if opened.recipe.systems[job.system].scored)
        jobs = jobs[: first_scored + 1]
    for job in jobs:
        try:
            for _ in runner.train(setting, job):
                pass
        except MissingExtra as error:
            pytest.skip(str(error))
        if not opened.recipe.systems[job.system].scored:
            continue
        scoring.score_job(setting, job)
        saved = json.loads((tmp_path / job.name / "result.json").read_text(encoding="utf-8"))
        assert saved["parameters"] > 0
        assert list(saved["tests"]) == opened.recipe.tests
        for scored in saved["tests"].values():
            assert scored["n"] > 0
            assert all(isinstance(one["value"], float) for one in scored["scores"].values())


def test_every_part_of_a_recipe_can_be_prepared_from_data_of_its_form(opened, tmp_path: Path):
    setting = RecipeRun(opened, None, tmp_path, example=True)
    for part in opened.recipe.parts:
        folder = prepared_data.prepare_data(setting, part)
        for system in opened.recipe.systems.values():
            assert (folder / system.train).stat().st_size
        for test in opened.recipe.tests:
            lines = (folder / f"{test}.tsv").read_text(encoding="utf-8").split("\n")[:-1]
            assert lines
            kinds = scoring.read_groups(folder / f"{test}.tsv")
            assert kinds is None or len(kinds) == len(lines)


def test_every_config_is_right_before_any_data_is_there(opened, tmp_path: Path):
    for data in (None, tmp_path / "sets"):
        runner.check_configs(RecipeRun(opened, data, tmp_path / "run", example=data is None), opened.select_jobs())
    assert not list(tmp_path.iterdir())


def test_every_recipe_says_on_its_page_what_it_does_and_how_to_run_it(opened):
    text = opened.readme
    assert text.startswith("# ")
    assert f"dragoman recipe run {opened.name}" in text
    assert "## Scores" in text


def test_every_config_of_a_recipe_is_in_its_folder(opened):
    named = {system.config for system in opened.recipe.systems.values()}
    there = {file.name for file in opened.folder.glob("*.yaml")} - {"recipe.yaml"}
    assert named == there
