"""Recipes whose sources are pictures, clips and sound."""

from __future__ import annotations

import io
import itertools
import random
import zipfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from PIL import Image

from dragoman import config as configs
from dragoman import recipes
from dragoman.config import compatibility
from dragoman.core.types import Example
from dragoman.data.readers import read_pairs
from dragoman.data.samples import scenes
from dragoman.modalities.audio import AudioModality
from dragoman.modalities.features import FeatureModality
from dragoman.recipes.captioning import prepare as captioning
from dragoman.recipes.speech_digits import prepare as digits
from dragoman.recipes.speech_iban import prepare as iban

SOUND = ["speech-an4", "speech-digits", "speech-iban"]
EVERY = ["captioning", *SOUND, "visual-questions", "video"]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Where each recipe's made-up set is, and what was prepared from it."""
    found = {}
    for name in EVERY:
        recipe, root = recipes.load_recipe(name), tmp_path_factory.mktemp(name)
        sets = {one: root / one for one in recipe.recipe.data}
        for folder in [*sets.values(), root / "prepared"]:
            folder.mkdir()
        recipe.recipe_module.make_example(sets, random.Random(1))
        recipe.recipe_module.prepare(sets, "", root / "prepared")
        found[name] = next(iter(sets.values()), root), root / "prepared"
    return found


Places = dict[str, tuple[Path, Path]]


def rows(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def picture(name: str) -> NDArray[Any]:
    """The pixels of a member of an archive, named as …/pictures.zip/member."""
    archive, _, member = name.partition(".zip/")
    return np.asarray(Image.open(io.BytesIO(opened(f"{archive}.zip").read(member))).convert("RGB"))


@cache
def opened(archive: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(archive)


def configs_of(name: str, folder: Path) -> list[configs.Config]:
    recipe = recipes.load_recipe(name)
    sets = [f"data.train={folder / 'train.tsv'}", f"data.valid={folder / 'valid.tsv'}"]
    return [configs.load(recipe.config_file(system), None, sets).config for system in recipe.recipe.systems]


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_every_source_can_be_read_and_none_is_too_long(name: str, places: Places) -> None:
    folder = places[name][1]
    tests = recipes.load_recipe(name).recipe.tests
    for config in configs_of(name, folder):
        first, second = configs.source_readers(config)
        medium = first or second
        assert medium is not None
        assert not isinstance(medium, str)
        for side in ("train", "valid", *tests):
            examples = list(read_pairs(str(folder / f"{side}.tsv"), columns=config.columns, extra_targets=True))
            for one in examples[:20]:
                assert one.target
                x = medium.read(Example(one.second_source or one.source, file=one.file))
                assert 0 < len(x) <= compatibility.max_source_length(config)


@pytest.mark.parametrize("name", [name for name in EVERY if name != "visual-questions"])
def test_no_source_is_on_two_sides(name: str, places: Places) -> None:
    folder = places[name][1]
    sides = [{row[0] for row in rows(folder / f"{side}.tsv")} for side in ("train", "valid", "test")]
    assert all(not a & b for a, b in itertools.combinations(sides, 2))


@pytest.mark.parametrize("name", ["captioning", *SOUND])
def test_what_is_prepared_twice_is_the_same(name: str, places: Places, tmp_path: Path) -> None:
    recipe, (root, folder) = recipes.load_recipe(name), places[name]
    recipe.recipe_module.prepare(dict.fromkeys(recipe.recipe.data, root), "", tmp_path)
    for file in sorted(folder.glob("*.tsv")):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


# -- captions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("caption", "wanted"),
    [
        ("A dog 's ball , red .", "a dog 's ball red"),
        ('Two T-shirts " 84 " !', "two t-shirts 84"),
        ("no punctuation", "no punctuation"),
    ],
)
def test_captions_are_lower_case_words_without_punctuation(caption: str, wanted: str) -> None:
    assert captioning.normalize_caption(caption) == wanted


def test_all_five_captions_are_learned_from_and_are_references(places: Places) -> None:
    root, folder = places["captioning"]
    given = rows(root / "test.tsv")
    for config in configs_of("captioning", folder):
        found = list(read_pairs(str(folder / "test.tsv"), columns=config.columns, extra_targets=True))
        assert [len(one.accepted) for one in found] == [5] * len(given)
        for one, (name, *captions) in zip(found, given, strict=True):
            assert one.source.endswith(f"/test.zip/{name}")
            assert list(one.accepted) == [c.lower().replace(" ,", "").replace(" .", "") for c in captions]


def test_baselines_are_the_most_frequent_caption_and_that_of_the_nearest_picture(places: Places) -> None:
    folder = places["captioning"][1]
    train, test = rows(folder / "train.tsv"), rows(folder / "test.tsv")
    found = captioning.baseline_outputs(folder, "")
    counts = Counter(caption for row in train for caption in row[1:])
    assert {counts[said] for said in found["most frequent caption"]} == {max(counts.values())}

    def small(name: str) -> NDArray[Any]:
        return np.asarray(Image.fromarray(picture(name)).resize((16, 16), Image.Resampling.BICUBIC), np.float64)

    every = [small(row[0]) for row in train]
    for row, said in zip(test, found["nearest picture"], strict=True):
        distances = [float(((small(row[0]) - other) ** 2).sum()) for other in every]
        nearest = {train[i][1] for i, distance in enumerate(distances) if distance == min(distances)}
        assert said in nearest


def test_flickr8k_has_the_pictures_and_captions_its_page_says(data: Path, tmp_path: Path) -> None:
    captioning.prepare({"flickr8k": data / "flickr8k"}, "", tmp_path)
    found = {side: rows(tmp_path / f"{side}.tsv") for side in ("train", "valid", "test")}
    assert {side: len(every) for side, every in found.items()} == {"train": 6000, "valid": 500, "test": 500}
    captions = [caption for every in found.values() for row in every for caption in row[1:]]
    assert len(captions) == 35_000
    assert all(captions)
    assert max(len(caption.split()) for caption in captions) <= 40  # what the presets have room for
    assert picture(found["test"][7][0]).shape == (128, 128, 3)


# -- AN4 ---------------------------------------------------------------------------------------------------------------


def test_a_name_stands_for_the_frames_of_its_line(places: Places) -> None:
    root, folder = places["speech-an4"]
    for side, split in {"train": "train", "valid": "dev", "test": "test"}.items():
        arrays = np.load(root / f"{split}.npz")
        given = rows(root / f"{split}.tsv")
        for i, ((name, text), line) in enumerate(zip(rows(folder / f"{side}.tsv"), given, strict=True)):
            x = FeatureModality(normalize=False).read(Example(name))
            assert (x == arrays["feats"][arrays["offsets"][i] : arrays["offsets"][i + 1]]).all()
            assert (str(len(x)), text) == (line[2], line[3])


def test_an4_has_the_utterances_and_words_its_page_says(data: Path, tmp_path: Path) -> None:
    recipes.load_recipe("speech-an4").recipe_module.prepare({"an4-mfcc": data / "an4-mfcc"}, "", tmp_path)
    found = {side: rows(tmp_path / f"{side}.tsv") for side in ("train", "valid", "test")}
    assert {side: len(every) for side, every in found.items()} == {"train": 844, "valid": 104, "test": 130}
    assert sum(len(text.split()) for _, text in found["test"]) == 773
    lengths = [int(row[2]) for split in ("train", "dev", "test") for row in rows(data / f"an4-mfcc/{split}.tsv")]
    longest = max(len(text) for every in found.values() for _, text in every)
    for config in configs_of("speech-an4", tmp_path):
        assert max(lengths) <= config.data.max_source
        assert longest + 1 <= config.data.max_target
    assert len(FeatureModality().read(Example(found["test"][-1][0]))) == lengths[-1]


# -- digits ------------------------------------------------------------------------------------------------------------


def test_a_string_is_its_recordings_with_silence_between_them(places: Places) -> None:
    root, folder = places["speech-digits"]
    recordings, made = opened(f"{root}/recordings.zip"), opened(f"{folder}/test.zip")
    for row, (name, words) in zip(rows(root / "strings.test.tsv"), rows(folder / "test.tsv"), strict=True):
        files, gaps = row[4].split(","), [*(int(gap) for gap in row[5].split(",") if gap), 0]
        wanted: list[int] = []
        for file, gap in zip(files, gaps, strict=True):
            wanted += soundfile.read(io.BytesIO(recordings.read(file)), dtype="int16")[0].tolist() + [0] * (8 * gap)
        samples, rate = soundfile.read(io.BytesIO(made.read(name.removeprefix("test.zip/"))), dtype="int16")
        assert rate == 8000
        assert samples.tolist() == wanted
        assert words == row[3]


def test_single_digits_are_those_of_the_test_part(places: Places) -> None:
    root, folder = places["speech-digits"]
    wanted = [(row[0], digits.DIGITS[int(row[3])]) for row in rows(root / "single.tsv") if row[2] == "test"]
    assert [(Path(name).name, word) for name, word in rows(folder / "single.tsv")] == wanted
    assert all(word == digits.DIGITS[int(file[0])] for file, word in wanted)


def test_no_recording_of_fsdd_is_in_two_parts_and_strings_are_composed(data: Path, tmp_path: Path) -> None:
    place = data / "fsdd"
    parts = {part: list(digits.tables.read_rows(place / f"strings.{part}.tsv", 6)) for part in ("train", "dev", "test")}
    assert {part: len(every) for part, every in parts.items()} == {"train": 6000, "dev": 400, "test": 400}
    used = [{file for row in every for file in row[4].split(",")} for every in parts.values()]
    assert all(not a & b for a, b in itertools.combinations(used, 2))
    with zipfile.ZipFile(place / "recordings.zip") as recordings:
        pairs = digits.compose_strings(itertools.islice(parts["test"], 20), recordings, tmp_path / "test.zip")
    seconds = [len(AudioModality(8000, 40).read(Example(str(tmp_path / name)))) / 100 for name, _ in pairs]
    assert all(0.1 < second / len(words.split()) < 1.5 for second, (_, words) in zip(seconds, pairs, strict=True))


# -- Iban --------------------------------------------------------------------------------------------------------------


def test_training_also_hears_neighbors_of_a_speaker_two_by_two(places: Places) -> None:
    root, folder = places["speech-iban"]
    given = {row[0]: row for row in rows(root / "train.tsv")}
    train = rows(folder / "train.tsv")
    joined = [row for row in train if row[0].startswith("joined.zip/")]
    alone = [Path(name).stem for name, _ in train if not name.startswith("joined.zip/")]
    assert alone == list(given)
    assert len(joined) == len(given) // 2
    made, heard = opened(f"{folder}/joined.zip"), []
    for name, text in joined:
        pair = [given[utterance] for utterance in Path(name).stem.split("+")]
        heard += [row[0] for row in pair]
        assert pair[0][1] == pair[1][1]
        assert text == f"{pair[0][3]} {pair[1][3]}"
        samples, rate = soundfile.read(io.BytesIO(made.read(name.removeprefix("joined.zip/"))))
        assert len(samples) / rate == pytest.approx(sum(float(row[2]) for row in pair), abs=0.03)
    assert len(heard) == len(set(heard))


def test_transcripts_that_nobody_can_say_so_fast_are_not_learned_from(places: Places, tmp_path: Path) -> None:
    root = tmp_path / "iban-asr"
    root.mkdir()
    for file in places["speech-iban"][0].iterdir():
        (root / file.name).write_bytes(file.read_bytes())
    given = rows(root / "train.tsv")
    given[3][3] = "x" * (int(25 * float(given[3][2])) + 1)
    (root / "train.tsv").write_text("".join("\t".join(row) + "\n" for row in given))
    iban.prepare({"iban-asr": root}, "", tmp_path)
    names = [name for name, _ in rows(tmp_path / "train.tsv")]
    assert not any(given[3][0] in name for name in names)
    assert all(any(row[0] in name for name in names) for row in given if row is not given[3])


def test_iban_has_the_utterances_its_page_says_and_all_of_them_fit(data: Path) -> None:
    place = data / "iban-asr"
    found = {split: rows(place / f"{split}.tsv") for split in ("train", "dev", "test")}
    assert {split: len(every) for split, every in found.items()} == {"train": 1302, "dev": 103, "test": 106}
    speakers = [{row[1] for row in every} for every in found.values()]
    assert all(not a & b for a, b in itertools.combinations(speakers, 2))
    two = list(iban.pair_neighbors(found["train"]))
    seconds = [float(row[2]) for every in found.values() for row in every] + [float(a[2]) + float(b[2]) for a, b in two]
    texts = [row[3] for every in found.values() for row in every] + [f"{a[3]} {b[3]}" for a, b in two]
    for config in configs_of("speech-iban", place):
        assert 100 * max(seconds) <= config.data.max_source
        assert max(map(len, texts)) + 1 <= config.data.max_target
    assert len(AudioModality().read(Example(iban.name_files(found["test"], place / "test.zip")[5][0]))) > 10


# -- drawn -------------------------------------------------------------------------------------------------------------


def share(pixels: NDArray[Any], color: str) -> float:
    """How much of a picture has a color, give or take its noise."""
    return float((abs(pixels.astype(int) - scenes.COLORS[color]).max(-1) < 30).mean())


def test_answers_are_to_be_seen_in_the_picture(places: Places) -> None:
    folder = places["visual-questions"][1]
    for question, name, answer in rows(folder / "test.tsv")[:60]:
        pixels = picture(str(folder / name))
        colors = [color for color in scenes.COLORS if share(pixels, color) > 0.01]
        assert len(colors) == 2
        asked = question.split()[1]
        if asked == "color":
            assert answer in colors
        else:
            y, x = np.nonzero(abs(pixels.astype(int) - scenes.COLORS[question.split()[4]]).max(-1) < 30)
            wide, high = np.ptp(x) > 8, np.ptp(y) > 8
            assert (
                answer == {(True, True): "square", (True, False): "bar", (False, True): "pole"}[bool(wide), bool(high)]
            )


def test_questions_are_grouped_by_what_they_ask_for(places: Places) -> None:
    folder = places["visual-questions"][1]
    groups = (folder / "test.groups").read_text().split("\n")[:-1]
    test = rows(folder / "test.tsv")
    assert len(groups) == len(test)
    for group, (_, _, answer) in zip(groups, test, strict=True):
        assert (group == "color") == (answer in scenes.COLORS)
        assert (group == "shape") == (answer in scenes.SHAPES)


def test_who_does_not_look_says_the_most_frequent_answer(places: Places) -> None:
    folder = places["visual-questions"][1]
    train, test = rows(folder / "train.tsv"), rows(folder / "test.tsv")
    said = recipes.load_recipe("visual-questions").recipe_module.baseline_outputs(folder, "")["without looking"]
    counts = Counter((question, answer) for question, _, answer in train)
    answers = [*scenes.COLORS, *scenes.SHAPES]
    for (question, _, _), answer in zip(test, said, strict=True):
        assert counts[question, answer] == max(counts[question, other] for other in answers)
    right = sum(answer == row[2] for answer, row in zip(said, test, strict=True))
    assert right < len(test) / 2


def test_things_in_clips_move_where_the_label_says(places: Places) -> None:
    folder = places["video"][1]
    members: dict[str, list[str]] = {}
    for member in opened(f"{folder}/pictures.zip").namelist():
        members.setdefault(member.rpartition("/")[0], []).append(member)
    for name, sentence, label in rows(folder / "test.tsv")[:40]:
        frames = sorted(members[name.removeprefix("pictures.zip/")], key=lambda m: int(Path(m).stem))
        first, last = (picture(f"{folder}/pictures.zip/{frame}") for frame in (frames[0], frames[-1]))
        color = sentence.split()[1]
        (y0, x0), (y1, x1) = (
            np.array(np.nonzero(abs(p.astype(int) - scenes.COLORS[color]).max(-1) < 30)).mean(1) for p in (first, last)
        )
        dx, dy = x1 - x0, y1 - y0
        assert sentence.endswith(f" {label}")
        seen = ("right" if dx > 0 else "left") if abs(dx) > abs(dy) else ("down" if dy > 0 else "up")
        assert seen == label
