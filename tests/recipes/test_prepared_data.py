"""When data is prepared, when anew and when not: what was prepared knows the files that it was made of."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path

import pytest

from dragoman import recipes
from dragoman.core.errors import ConfigError, DataError, RunError
from dragoman.recipes import prepared_data, runner
from dragoman.recipes.recipe import RecipeRun, TrainingJob


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that holds the set `scan`, made up."""
    (tmp_path / "sets" / "scan").mkdir(parents=True)
    recipes.load_recipe("scan").recipe_module.make_example({"scan": tmp_path / "sets" / "scan"}, random.Random(1))
    return tmp_path / "sets"


def setting(place: Path, **options) -> RecipeRun:
    return RecipeRun(recipes.load_recipe("scan"), place, place.parent / "runs" / "scan", **options)


def train_file(place: Path, part: str = "simple") -> Path:
    return place / "scan" / f"{part}.train.tsv.gz"


def put(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()))


def prepared(place: Path, part: str = "simple") -> str:
    return (prepared_data.prepare_data(setting(place), part) / "train.tsv").read_text(encoding="utf-8")


def begin(place: Path, name: str) -> None:
    (place.parent / "runs" / "scan" / name).mkdir(parents=True)
    (place.parent / "runs" / "scan" / name / "config.yaml").touch()


def test_a_file_without_a_line_is_named_and_once_mended_it_is_read(place: Path):
    put(train_file(place), "")
    with pytest.raises(DataError, match=r"scan/simple\.train\.tsv\.gz: has no lines.* left for train\.tsv"):
        prepared(place)
    put(train_file(place), "walk twice\tI_WALK I_WALK\n")
    assert prepared(place) == "walk twice\tI_WALK I_WALK\n"


@pytest.mark.parametrize("lines", [1, 0])
def test_what_of_a_set_leaves_nothing_to_train_on_is_refused_with_its_files(place: Path, lines: int):
    for half in ("train", "test"):  # all of them longer than what length26 trains on
        put(place / "scan" / f"length.{half}.tsv.gz", f"walk\t{'I_WALK ' * 30}\n" * lines)
    with pytest.raises(DataError, match=r"length\.train\.tsv\.gz.* nothing is left for train\.tsv"):
        prepared(place, "length26")


def test_data_mended_in_place_is_prepared_anew(place: Path):
    first = prepared(place)
    put(train_file(place), "jump\tI_JUMP\n")
    assert prepared(place) == "jump\tI_JUMP\n" != first


def test_a_file_that_was_only_touched_or_that_another_part_reads_changes_nothing(place: Path):
    first, made = prepared(place), setting(place).data_folder("simple") / "train.tsv"
    before = made.stat().st_mtime_ns
    os.utime(train_file(place), ns=(1, 1))
    put(train_file(place, "length"), "jump\tI_JUMP\n")
    assert prepared(place) == first
    assert made.stat().st_mtime_ns == before


@pytest.mark.parametrize("name", ["transformer-simple", "transformer-simple-seed2"])
def test_what_a_training_began_with_is_never_prepared_anew_under_it(place: Path, name: str):
    first = prepared(place)
    begin(place, name)
    begin(place, "transformer-length")  # of another part
    old = train_file(place).read_bytes()
    put(train_file(place), "jump\tI_JUMP\n")
    with pytest.raises(RunError, match=rf"simple\.train\.tsv\.gz: has changed since {name} started .*--run"):
        prepared(place)
    train_file(place).write_bytes(old)
    assert prepared(place) == first


def test_trainings_of_another_part_do_not_keep_a_part_from_being_prepared_anew(place: Path):
    prepared(place)
    begin(place, "transformer-length")
    begin(place, "transformer-simple-ensemble")
    put(train_file(place), "jump\tI_JUMP\n")
    assert prepared(place) == "jump\tI_JUMP\n"


def test_a_set_is_the_same_by_its_own_folder_and_by_the_one_that_holds_it(place: Path):
    first = prepared(place)
    own = RecipeRun(recipes.load_recipe("scan"), place / "scan", setting(place).out)
    assert (prepared_data.prepare_data(own, "simple") / "train.tsv").read_text(encoding="utf-8") == first


@pytest.mark.parametrize("note", ["", "/elsewhere\n", "{}"])
def test_where_nobody_knows_what_data_was_prepared_from_it_is_prepared_anew(place: Path, note: str):
    prepared(place)
    (setting(place).data_folder("simple") / "prepared").write_text(note)
    put(train_file(place), "jump\tI_JUMP\n")
    assert prepared(place) == "jump\tI_JUMP\n"


def test_where_preparing_fails_nothing_is_left_behind(place: Path):
    train_file(place).unlink()
    with pytest.raises(DataError, match="lacks this file"):
        prepared(place)
    assert sorted(path.name for path in place.parent.iterdir()) == ["sets"]


def test_a_wrong_option_is_refused_before_anything_is_prepared(place: Path):
    wrong = setting(place, overrides=["training.stepps=3"])
    with pytest.raises(ConfigError, match="stepps"):
        runner.check_configs(wrong, [TrainingJob("transformer", "simple", 1)])
    assert not wrong.out.exists()


@pytest.mark.parametrize("name", ["a: b", "{x}", "#1", "it's", 'say "no"', "a  b"])
def test_a_run_may_be_called_what_one_likes(place: Path, name: str):
    out = place.parent / name
    config = runner.job_config(
        RecipeRun(recipes.load_recipe("scan"), place, out), TrainingJob("transformer", "simple", 1)
    )
    assert [corpus.path for corpus in config.data.train] == [str(out / "data/simple/train.tsv")]
