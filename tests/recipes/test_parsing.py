"""The recipes that read commands, sentences, questions and requests, and write actions, logical forms, SQL and code."""

import ast
import random
from collections import Counter
from functools import cache
from math import log
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import config as configs
from dragoman.config import compatibility
from dragoman.recipes import load_recipe
from dragoman.recipes.code import prepare as code
from dragoman.recipes.scan import prepare as scan
from dragoman.recipes.text_to_sql import prepare as text_to_sql

PARTS = [(name, part) for name in ("scan", "cogs", "text-to-sql", "code") for part in load_recipe(name).recipe.parts]


def rows(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def made_up(name: str, place: Path) -> dict[str, Path]:
    """The folders of a recipe's data sets, with what its `example` writes."""
    opened = load_recipe(name)
    sets = {one: place / one for one in opened.recipe.data}
    opened.recipe_module.make_example(sets, random.Random(5))
    return sets


def prepared(name: str, part: str, place: Path) -> Path:
    folder = place / "prepared"
    load_recipe(name).recipe_module.prepare(made_up(name, place), part, folder)
    return folder


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_every_file_that_a_system_reads_holds_pairs_of_texts(name, part, tmp_path):
    recipe, folder = load_recipe(name).recipe, prepared(name, part, tmp_path)
    needed = {f"{test}.tsv" for test in recipe.tests}
    needed |= {file for system in recipe.systems.values() for file in (system.train, system.valid) if file is not None}
    for file in needed:
        found = rows(folder / file)
        assert found
        assert all(len(row) == 2 and all(row) for row in found)


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_preparing_twice_gives_the_same_files(name, part, tmp_path):
    first, second = (prepared(name, part, tmp_path / place) for place in ("one", "two"))
    files = sorted(path.name for path in first.iterdir())
    assert files == sorted(path.name for path in second.iterdir())
    assert all((first / file).read_bytes() == (second / file).read_bytes() for file in files)


@pytest.mark.long
def test_each_recipe_finds_as_many_pairs_as_its_sets_say(data, tmp_path):
    expected = {
        ("scan", "simple"): {"train": 16_728, "test": 4_182},
        ("scan", "addprim_jump"): {"train": 14_670, "test": 7_706},
        ("scan", "length"): {"train": 16_990, "test": 3_920},
        ("scan", "length26"): {"train": 20_910 - 2_624, "test": 2_624},
        ("cogs", ""): {"train": 24_155, "valid": 3_000, "test": 3_000, "gen": 21_000},
        ("text-to-sql", "geography-question"): {"train": 549, "valid": 49, "test": 279},
        ("text-to-sql", "geography-query"): {"train": 536, "valid": 159, "test": 182},
        ("text-to-sql", "atis-question"): {"train": 4_347, "valid": 486, "test": 447},
        ("text-to-sql", "atis-query"): {"train": 4_812, "valid": 121, "test": 347},
        ("text-to-sql", "advising-question"): {"train": 2_629, "valid": 229, "test": 573},
        ("text-to-sql", "advising-query"): {"train": 2_040, "valid": 515, "test": 1_832},
        ("code", "django"): {"train": 16_000, "valid": 1_000, "test": 1_805},
        ("code", "conala"): {"train": 2_178, "valid": 200, "test": 500},
        ("code", "nl2bash"): {"train": 10_666, "valid": 978, "test": 957},
    }
    for (name, part), counts in expected.items():
        opened = load_recipe(name)
        folder = tmp_path / name / part
        opened.recipe_module.prepare(opened.find_data_sets(data), part, folder)
        assert {path.stem: len(rows(path)) for path in folder.glob("*.tsv")} == counts
        assert lost(name, folder) < 0.001 * counts["train"]
        assert unreachable(name, folder) < 0.02 * counts["test"]


@cache
def limits(name: str) -> configs.Config:
    opened = load_recipe(name)
    first = next(iter(opened.recipe.systems))
    return configs.load(opened.config_file(first), None, ["data.train=unread.tsv", "data.valid=unread.tsv"]).config


def lost(name: str, folder: Path) -> int:
    """Training pairs that are too long to be read."""
    config = limits(name)
    longest, most = compatibility.max_source_length(config), config.data.max_target
    pairs = [[len(text.split()) for text in row] for row in rows(folder / "train.tsv")]
    return sum(source >= longest or target >= most for source, target in pairs)


def unreachable(name: str, folder: Path) -> int:
    """Test items whose reference is longer than a search may go."""
    generation, found = limits(name).generation, 0
    for test in load_recipe(name).recipe.tests:
        for source, target in rows(folder / f"{test}.tsv"):
            tokens = len((code.tokenize_code(target) if name == "code" else target).split())
            found += tokens > generation.max_length_ratio * (len(source.split()) + 1) + generation.max_length_extra
    return found


# -- scan --------------------------------------------------------------------------------------------------------------


def test_the_made_up_commands_mean_what_the_words_say():
    meanings = {command: " ".join(actions) for command, actions in scan.generate_commands()}
    assert meanings["walk and jump thrice"] == "I_WALK I_JUMP I_JUMP I_JUMP"
    around = "I_TURN_LEFT I_RUN " * 4
    assert meanings["run around left twice and walk"] == around + around + "I_WALK"


@pytest.mark.parametrize(("part", "longest"), [("length", None), ("length26", 26)])
def test_where_length_divides_every_test_output_is_longer_than_every_one_in_training(part, longest, tmp_path):
    folder = prepared("scan", part, tmp_path)
    train, test = ([len(row[1].split()) for row in rows(folder / f"{half}.tsv")] for half in ("train", "test"))
    assert max(train) <= min(test)
    assert longest is None or max(train) <= longest < min(test)


def test_drawing_another_line_by_length_loses_no_command(tmp_path):
    sets = made_up("scan", tmp_path)
    for part in ("length", "length26"):
        scan.prepare(sets, part, tmp_path / part)
    each = [
        sorted(row for half in ("train", "test") for row in rows(tmp_path / part / f"{half}.tsv"))
        for part in ("length", "length26")
    ]
    assert each[0] == each[1]


def test_a_verb_that_is_added_is_only_seen_alone_as_often_as_the_set_repeats_it(tmp_path):
    train = Counter(row[0] for row in rows(prepared("scan", "addprim_jump", tmp_path) / "train.tsv"))
    assert [command for command in train if "jump" in command] == ["jump"]
    assert train["jump"] == 20


# -- cogs --------------------------------------------------------------------------------------------------------------


def test_every_line_of_the_generalization_test_has_its_kind_and_no_other_test_has(tmp_path):
    folder = prepared("cogs", "", tmp_path)
    kinds = (folder / "gen.groups").read_text(encoding="utf-8").split("\n")[:-1]
    assert len(kinds) == len(rows(folder / "gen.tsv"))
    assert Counter(kinds) == {"obj_to_subj_common": 4, "obj_to_subj_proper": 4}
    assert not (folder / "test.groups").exists()


# -- text to sql -------------------------------------------------------------------------------------------------------


def test_signs_stand_alone_in_questions_and_queries():
    assert text_to_sql.separate_signs('WHERE A.NAME LIKE "%Ann Lee%" OR B = "x"').split() == [
        *("WHERE", "A", ".", "NAME", "LIKE", '"', "%", "Ann", "Lee", "%", '"'),
        *("OR", "B", "=", '"', "x", '"'),
    ]


def test_the_query_split_asks_for_what_training_never_asked_for(tmp_path):
    folder = prepared("text-to-sql", "atis-query", tmp_path)
    asked = {file: {row[1].split()[3] for row in rows(folder / f"{file}.tsv")} for file in ("train", "valid", "test")}
    assert asked == {"train": {"AREA", "POPULATION"}, "valid": {"MAYOR"}, "test": {"FOUNDED"}}


def test_the_question_split_leaves_out_what_the_set_excludes_and_shares_no_question(tmp_path):
    sets = made_up("text-to-sql", tmp_path)
    text_to_sql.prepare(sets, "geography-question", tmp_path / "prepared")
    halves = [{row[0] for row in rows(tmp_path / "prepared" / f"{file}.tsv")} for file in ("train", "valid", "test")]
    assert not halves[0] & halves[1]
    assert not halves[0] & halves[2]
    assert 0 < sum(map(len, halves)) < len(text_to_sql.TEMPLATES) * len(text_to_sql.FIELDS) * len(text_to_sql.VALUES)


def test_the_value_of_a_query_is_spelled_as_its_question_spells_it(tmp_path):
    for question, query in rows(prepared("text-to-sql", "advising-question", tmp_path) / "train.tsv"):
        value = query.split('"')[1].strip()
        assert value in text_to_sql.VALUES
        assert f" {value} " in f" {question} "


# -- code --------------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(exclude_categories=["Z", "C"], exclude_characters="␣"), min_size=1)))
def test_code_comes_back_from_its_tokens(chunks):
    line = " ".join(chunks)
    assert code.detokenize_code(code.tokenize_code(line)) == line


def test_a_command_is_cut_into_names_signs_and_spaces():
    assert code.tokenize_code('find /tmp -name "*.mp3"').split() == [
        *("find", "␣", "/", "tmp", "␣", "-", "name", "␣"),
        *('"', "*", ".", "mp3", '"'),
    ]
    assert code.tokenize_english('find "mp3" under /tmp.') == 'find " mp3 " under / tmp .'


@pytest.mark.parametrize(
    "line",
    [
        "value = signing . get_cookie_signer ( salt = key + salt ) . sign ( value )",
        "x = [ form for form in self . forms if form not in ( 'a b' , \"it's , so\" ) ]",
        "text = 'a \\' = b' + \"  c = d \" % ( e , )",
        "a = b if not - c else { 'k' : d [ 1 : ] } ; del a [ 0 ]",
        "f = lambda x , * y : x ** 2 >= 1 and x is not None",
    ],
)
def test_tight_python_is_the_same_program_without_needless_spaces(line):
    tight = code.strip_spaces(line)
    assert ast.dump(ast.parse(tight)) == ast.dump(ast.parse(line))
    assert len(tight) < len(line)
    assert code.strip_spaces(tight) == tight


def test_a_snippet_of_several_lines_has_a_sign_for_each_end():
    assert code.unescape(r"for a in b:\n    print('\\n', a)\n\nx = 1") == r"for a in b:⏎print('\n', a)⏎x = 1"


def test_the_last_snippets_of_training_are_held_out_and_no_snippet_is_lost(tmp_path):
    sets = made_up("code", tmp_path)
    read = code.read_conala(sets)
    assert (len(read["train"]), len(read["valid"]), len(read["test"])) == (90, 10, 8)


def test_a_snippet_without_a_rewritten_request_is_asked_for_in_the_words_of_the_first(tmp_path):
    asked = {row[0] for row in rows(prepared("code", "conala", tmp_path) / "train.tsv")}
    assert "sorting by a key" in asked
    assert not any("How do I" in request for request in asked)


def test_the_reference_of_a_test_is_the_code_itself(tmp_path):
    folder = prepared("code", "nl2bash", tmp_path)
    assert all("␣" not in row[1] for row in rows(folder / "test.tsv"))
    written = [row[1] for row in rows(folder / "train.tsv")]
    assert all("␣" in command for command in written)


words = st.lists(st.sampled_from(["ab", "cd", "ef", "gh", "ij", "kl"]), min_size=1, max_size=5).map(" ".join)


@given(st.lists(words, min_size=1, max_size=8), words)
def test_the_nearest_request_is_the_one_that_a_comparison_with_all_of_them_finds(texts, asked):
    def weight(shared):
        counts = [sum(word in text.split() for text in texts) for word in shared]
        return sum(log(len(texts) / max(count, 1)) for count in counts)

    def likeness(text):
        return weight({*text.split()} & {*asked.split()}) / max(weight({*text.split()} | {*asked.split()}), 1e-9)

    best = max(likeness(text) for text in texts)
    assert likeness(texts[code.NearestText(texts)(asked)]) == pytest.approx(best)
