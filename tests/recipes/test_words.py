"""Recipes whose sources and targets are single words: pronunciation, inflection, transliteration."""

from __future__ import annotations

import json
import random
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman import recipes
from dragoman.core.errors import DataError
from dragoman.core.types import Example
from dragoman.evaluation.metrics import corpus_score, metrics
from dragoman.recipes.recipe import LoadedRecipe
from dragoman.text import codec as codecs

JOBS = [
    *[("pronunciation", ""), ("pronunciation-languages", "2020"), ("pronunciation-languages", "2021")],
    *[("inflection", "all"), ("inflection", "swa")],
    *[("transliteration", part) for part in ("hindi", "telugu", "arabic", "katakana")],
]
Made = Callable[[str, str], Path]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """The files that a recipe prepares from its made-up data."""

    def prepare(name: str, part: str) -> Path:
        opened = recipes.load_recipe(name)
        sets = {one: tmp_path / "sets" / one for one in opened.recipe.data}
        opened.recipe_module.make_example(sets, random.Random(1))
        return prepared(opened, sets, part, tmp_path / "prepared")

    return prepare


def prepared(opened: LoadedRecipe, sets: dict[str, Path], part: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    opened.recipe_module.prepare(sets, part, folder)
    return folder


def rows(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def job_config(name: str, folder: Path, system: str = "transformer") -> configs.Config:
    sets = [f"data.train={folder / 'train.tsv'}", f"data.valid={folder / 'valid.tsv'}"]
    return configs.load(recipes.load_recipe(name).config_file(system), None, sets).config


# -- every recipe of words ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "part"), JOBS)
def test_every_file_has_the_columns_that_the_config_reads(name: str, part: str, made: Made) -> None:
    folder = made(name, part)
    for system in recipes.load_recipe(name).recipe.systems:
        count = len(job_config(name, folder, system).data.columns)
        assert {len(row) for row in rows(folder / "train.tsv")} == {count}
        for held_out in ("valid", "test"):
            found = rows(folder / f"{held_out}.tsv")
            assert found
            assert all(len(row) >= count and all(row) for row in found)


@pytest.mark.parametrize(("name", "part"), JOBS)
def test_the_same_data_is_prepared_from_the_same_files(name: str, part: str, made: Made, tmp_path: Path) -> None:
    folder = made(name, part)
    opened = recipes.load_recipe(name)
    again = prepared(opened, {one: tmp_path / "sets" / one for one in opened.recipe.data}, part, tmp_path / "again")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        file.name: file.read_bytes() for file in again.iterdir()
    }


@pytest.mark.parametrize(("name", "part"), [job for job in JOBS if job[1] not in ("hindi", "telugu")])
def test_no_test_source_is_among_what_a_model_is_trained_on_or_chosen_by(name: str, part: str, made: Made) -> None:
    folder = made(name, part)
    # A word may be tokenize_for_scoring alike in two languages, so that the tag belongs to the source.
    tagged = "target_lang" in job_config(name, folder).data.columns

    def sources(side: str) -> set[tuple[str, str]]:
        return {(row[0], row[2] if tagged else "") for row in rows(folder / f"{side}.tsv")}

    assert not (sources("train") | sources("valid")) & sources("test")
    assert not sources("train") & sources("valid")


@pytest.mark.parametrize(("name", "part"), [job for job in JOBS if job[0] in ("inflection", "pronunciation-languages")])
def test_there_is_a_group_for_each_test_line_and_it_names_the_language(name: str, part: str, made: Made) -> None:
    folder = made(name, part)
    groups = (folder / "test.groups").read_text(encoding="utf-8").split("\n")[:-1]
    assert [group.split("/")[-1] for group in groups] == [row[2] for row in rows(folder / "test.tsv")]


# -- pronunciation -----------------------------------------------------------------------------------------------------


def cmudict(folder: Path, **files: str) -> dict[str, Path]:
    """A CMUdict with these lines."""
    folder.mkdir()
    for name in ("train", "dev", "test"):
        (folder / f"{name}.tsv").write_text(files.get(name, "ba\tB AA1\n"), encoding="utf-8")
    return {"cmudict": folder}


def test_stress_goes_and_all_pronunciations_stay(tmp_path: Path) -> None:
    sets = cmudict(
        tmp_path / "set",
        train="tomado\tT AH0 M EY1 D OW2\ntomado\tT AH0 M AA1 D OW2\ntomado\tT AH1 M AA0 D OW2\n",
        test="lido\tL IH1 D OW0\tL IH0 D OW1\tL IY1 D OW0\nlido's\tL IH1 D OW0 Z\n",
    )
    folder = prepared(recipes.load_recipe("pronunciation"), sets, "", tmp_path / "prepared")
    assert rows(folder / "train.tsv") == [["tomado", "T AH M EY D OW"], ["tomado", "T AH M AA D OW"]]
    assert rows(folder / "test.tsv") == [["lido", "L IH D OW", "L IY D OW"], ["lido's", "L IH D OW Z"]]


def test_a_word_and_its_form_in_s_are_on_one_side_of_the_made_up_dictionary(made: Made) -> None:
    folder = made("pronunciation", "")
    sides = [{row[0].removesuffix("'s") for row in rows(folder / f"{n}.tsv")} for n in ("train", "valid", "test")]
    assert all(not a & b for i, a in enumerate(sides) for b in sides[i + 1 :])
    assert not any(figure in (folder / "train.tsv").read_text(encoding="utf-8") for figure in "012")


def test_a_word_has_no_error_if_any_pronunciation_matches() -> None:
    figure = recipes.load_recipe("pronunciation").recipe.scores["ser"]
    said, accepted = ["L IY D OW", "B AA", "K"], [["L IH D OW", "L IY D OW"], ["B AE"], ["K"]]
    assert figure.label == "words with an error"
    assert corpus_score(metrics.build(figure.metric), said, accepted) == pytest.approx(100 / 3)


# -- pronunciation in many languages -----------------------------------------------------------------------------------


def test_small_languages_are_repeated_in_training_and_nowhere_else(made: Made) -> None:
    folder = made("pronunciation-languages", "2021")
    times = {
        language: {n for row, n in Counter(map(tuple, rows(folder / "train.tsv"))).items() if row[2] == language}
        for language in ("alp", "bet", "gam")
    }
    assert times == {"alp": {1}, "bet": {2}, "gam": {8}}
    found = rows(folder / "train.tsv")
    assert len({tuple(row) for row in found[:72]}) == 72  # all words, before any comes again
    for held_out in ("valid", "test"):
        assert set(Counter(map(tuple, rows(folder / f"{held_out}.tsv"))).values()) == {1}
    groups = set((folder / "test.groups").read_text(encoding="utf-8").split())
    assert groups == {"high/alp", "medium/bet", "low/gam"}


def test_what_the_model_would_say_is_compared_in_its_own_spelling(tmp_path: Path) -> None:
    opened = recipes.load_recipe("pronunciation-languages")
    place = tmp_path / "sigmorphon2020-g2p"
    place.mkdir()
    composed = "k ã l"  # ã as one character, as the task has it
    for split in ("train", "dev", "test"):
        (place / f"{split}.tsv").write_text(f"xx\t곰{split}\t{composed}\n", encoding="utf-8")
    folder = prepared(opened, {place.name: place}, "2020", tmp_path / "prepared")
    config, (word, phones, _) = job_config("pronunciation-languages", folder), rows(folder / "train.tsv")[0]
    codec = learn_codec(
        *(config.tokenizer.source, config.tokenizer.target, False, config.data.normalization, [word], [phones], [])
    )
    [[_, reference, _]] = rows(folder / "test.tsv")
    assert codec.decode(codec.encode_phrase(composed)) == reference
    assert unicodedata.normalize("NFC", reference) == composed
    assert {"ᄀ", "ᅩ", "ᆷ"} <= set(codec.source.vocabulary.tokens)  # the letters of 곰


def test_a_set_without_one_of_its_folders_is_told_so(tmp_path: Path) -> None:
    opened = recipes.load_recipe("pronunciation-languages")
    with pytest.raises(DataError, match=r"LANGUAGE_test\.tsv"):
        prepared(opened, {"sigmorphon2021-g2p": tmp_path}, "2021", tmp_path / "prepared")


# -- inflection --------------------------------------------------------------------------------------------------------


def test_features_and_characters_are_symbols_that_cannot_be_taken_for_each_other(tmp_path: Path) -> None:
    code = recipes.load_recipe("inflection").recipe_module
    for split in ("train", "dev", "test"):
        line = "V top\tV;IMP;ACC(PL;PSS(2,SG));NOM(INFM,2,SG)\tto ptV\n"
        (tmp_path / f"deu.{split}.tsv").write_text(line, encoding="utf-8")
    code.prepare({"sigmorphon2023-inflection": tmp_path}, "deu", tmp_path / "prepared")
    assert rows(tmp_path / "prepared" / "test.tsv") == [
        ["V ␣ t o p [V] [IMP] [ACC] [PL] [PSS] [2] [SG] [NOM] [INFM] [2] [SG]", "t o ␣ p t V", "deu"]
    ]
    assert code.baseline_outputs(tmp_path / "prepared", "deu") == {"the lemma itself": ["V ␣ t o p"]}


def test_a_character_that_was_never_seen_comes_back_by_its_number(made: Made) -> None:
    config = job_config("inflection", made("inflection", "all"))
    options = config.tokenizer
    assert options.joint
    assert options.copy_slots
    lines = ["[V] a b c"] * 40
    tokens = learn_codec(
        *(options.source, options.source, True, config.data.normalization, lines, lines),
        codecs.copy_slot_symbols(options.copy_slots),
    )
    source = "[V] a 鰯 雲 b"
    ids = tokens.encode_target(Example(source, "a 鰯 雲 c"))
    assert tokens.decode(ids, source) == "a 鰯 雲 c"
    assert tokens.decode(ids, "[V] a 犬 猫 b") == "a 犬 猫 c"


def test_one_language_alone_is_its_share_of_all(made: Made) -> None:
    every = made("inflection", "all")
    shares = {name: [row for row in rows(every / name) if row[2] == "swa"] for name in ("train.tsv", "test.tsv")}
    alone = made("inflection", "swa")
    assert all(shares.values())
    assert {name: rows(alone / name) for name in shares} == shares


# -- transliteration ---------------------------------------------------------------------------------------------------


def test_every_native_word_of_a_romanization_is_accepted_the_most_attested_first(tmp_path: Path) -> None:
    opened = recipes.load_recipe("transliteration")
    for split in ("train", "dev", "test"):
        lines = "काल\tkal\t1\nकल\tkal\t4\nकलम\tkalam\t2\n"
        (tmp_path / f"hi.{split}.tsv").write_text(lines, encoding="utf-8")
    folder = prepared(opened, {"dakshina-translit": tmp_path}, "hindi", tmp_path / "prepared")
    assert rows(folder / "test.tsv") == [["kal", "कल", "काल"], ["kalam", "कलम"]]
    assert sorted(rows(folder / "train.tsv")) == sorted([["kal", "कल"], ["kal", "काल"], ["kalam", "कलम"]])


def test_the_characters_of_a_name_are_one_word_again(tmp_path: Path) -> None:
    opened = recipes.load_recipe("transliteration")
    for split in ("train", "dev", "test"):
        (tmp_path / f"katakana.{split}.tsv").write_text("lomé\tロ メ\t3\n", encoding="utf-8")
    folder = prepared(opened, {"wikidata-names-translit": tmp_path}, "katakana", tmp_path / "prepared")
    assert rows(folder / "test.tsv") == [["lomé", "ロメ"]]


# -- the real sets -----------------------------------------------------------------------------------------------------

COUNTS = {  # train, test; as the sets' descriptions have them, repetitions and what falls together taken into account
    ("pronunciation", ""): (None, 11_392),
    ("pronunciation-languages", "2020"): (54_000, 6_750),
    ("pronunciation-languages", "2021"): (33_344 + 9 * 2 * 8_000 + 9 * 8 * 800, 4_168 + 9_000 + 900),
    ("inflection", "all"): (100_000, 10_000),
    ("transliteration", "hindi"): (44_204, None),
    ("transliteration", "telugu"): (58_550, None),
    ("transliteration", "arabic"): (41_584, 12_994),
    ("transliteration", "katakana"): (63_246, 19_763),
}


QUICK = [("transliteration", "hindi")]


@pytest.mark.parametrize(
    ("name", "part"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.long) for case in COUNTS if case not in QUICK)]
)
def test_the_real_set_is_prepared_whole(name: str, part: str, data: Path, tmp_path: Path) -> None:
    opened = recipes.load_recipe(name)
    folder = prepared(opened, opened.find_data_sets(data), part, tmp_path)
    train, test = (rows(folder / f"{side}.tsv") for side in ("train", "test"))
    for found, wanted in zip((train, test), COUNTS[name, part], strict=True):
        assert wanted is None or len(found) == wanted
    if name == "pronunciation":
        assert len({row[0] for row in train}) == 112_100
        assert not {row[0] for row in train} & {row[0] for row in test}
    if part in ("hindi", "telugu"):
        native = {word for row in test for word in row[1:]}
        assert not native & {row[1] for row in train}
    for side in (train, test):  # nothing is so long that training or scoring would leave it out
        config = job_config(name, folder)
        form = config.data.normalization
        longest = max(len(unicodedata.normalize("NFD" if form == "nfd" else "NFC", row[0])) for row in side)
        assert longest + 2 <= config.data.max_source


def test_expectations_and_systems_are_well_formed() -> None:
    for name in {name for name, _ in JOBS}:
        opened = recipes.load_recipe(name)
        assert json.dumps(opened.recipe.model_dump(mode="json"))
        assert opened.readme.startswith("# ")
        assert "## Scores" in opened.readme
