"""Recipes that read texts and write texts: translation, summaries, dialogue, answers, labels, and letters."""

import random
import re
from collections import Counter
from itertools import combinations, islice, pairwise, product
from pathlib import Path

import numpy as np
import pytest

from dragoman import config as configs
from dragoman import recipes
from dragoman.recipes.dialogue import prepare as dialogue
from dragoman.recipes.entailment import prepare as entailment
from dragoman.recipes.entailment import sentences as logic
from dragoman.recipes.headline import prepare as headline
from dragoman.recipes.question_answering import prepare as answering
from dragoman.recipes.question_answering import stories
from dragoman.recipes.summarization import prepare as summarization
from dragoman.recipes.translation import prepare as translation

READS = ["translation", "pretraining", "headline", "summarization", "dialogue", "character-lm"]
SETS = ["data.train=x", "data.valid=y"]  # a config alone names no files
PARTS = [(name, part) for name in READS for part in recipes.load_recipe(name).recipe.parts]


def rows(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def write(path: Path, every: list[list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in every), encoding="utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """What each part of a recipe makes of made-up data."""
    found = {}
    for name in READS:
        opened, root = recipes.load_recipe(name), tmp_path_factory.mktemp(name)
        sets = {one: root / "sets" / one for one in opened.recipe.data}
        opened.recipe_module.make_example(sets, random.Random(1))
        for part in opened.recipe.parts:
            found[name, part] = root / "prepared" / part
            found[name, part].mkdir(parents=True)
            opened.recipe_module.prepare(sets, part, found[name, part])
    return found


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_made_up_data_becomes_files_with_the_columns_that_the_configs_name(made, name, part):
    opened, folder = recipes.load_recipe(name), made[name, part]
    for key, system in opened.recipe.systems.items():
        least = len(configs.load(opened.config_file(key), None, SETS).config.columns)
        for file in (system.train, system.valid):
            wide = [len(row) for row in rows(folder / file)]
            assert wide
            assert set(wide) == {least} or (file == system.valid and min(wide) >= least)


@pytest.mark.parametrize(("name", "part"), [(name, part) for name, part in PARTS if name != "dialogue"])
def test_no_test_source_is_trained_on(made, name, part):
    opened, folder = recipes.load_recipe(name), made[name, part]
    tested = {row[0] for test in opened.recipe.tests for row in rows(folder / f"{test}.tsv")}
    for system in opened.recipe.systems.values():
        assert not tested & {row[0] for row in rows(folder / system.train)}


# -- translation, and pretraining for it -------------------------------------------------------------------------------


def test_german_and_french_are_translated_into_english_and_english_into_the_others(made):
    first = {part: rows(made["translation", part] / "train.tsv")[0] for part in translation.SETS}
    english = re.compile(r"(the|our) ", re.IGNORECASE)
    for part, (source, target) in first.items():
        assert english.match(target if part.startswith("tatoeba") else source)
        assert not english.match(source if part.startswith("tatoeba") else target.replace("Our padi", ""))


def test_a_training_pair_whose_source_is_tested_is_left_out(tmp_path):
    place = tmp_path / "mafand-en-pcm"
    write(place / "train.tsv", [["seen", "one"], ["new", "two"], ["seen", "three"]])
    write(place / "dev.tsv", [["other", "four"]])
    write(place / "test.tsv", [["seen", "five"]])
    translation.prepare({"mafand-en-pcm": place}, "mafand", tmp_path)
    assert rows(tmp_path / "train.tsv") == [["new", "two"]]
    assert rows(tmp_path / "test.tsv") == [["seen", "five"]]
    assert translation.baseline_outputs(tmp_path, "mafand") == {"the source as it is": ["seen"]}
    assert translation.baseline_outputs(tmp_path, "tanaka") == {}


@pytest.mark.parametrize("part", ["mafand", "menyo20k"])
def test_texts_to_mend_are_both_sides_of_the_training_pairs_and_no_longer_side_by_side(made, part):
    pairs = rows(made["pretraining", part] / "train.tsv")
    texts = [text for (text,) in rows(made["pretraining", part] / "texts.tsv")]
    assert sorted(texts) == sorted({text for pair in pairs for text in pair})
    together = sum([source, target] in pairs for source, target in pairwise(texts))
    assert together < len(pairs) / 4


def test_pretraining_is_compared_at_equal_steps_on_pairs_and_at_equal_steps_in_all():
    opened = recipes.load_recipe("pretraining")
    loaded = {name: configs.load(opened.config_file(name), None, SETS).config for name in opened.recipe.systems}
    steps = {name: config.training.steps for name, config in loaded.items()}
    assert steps["scratch"] == steps["pretrained"]
    assert steps["scratch-long"] == steps["denoising"] + steps["pretrained"]
    for other in loaded.values():
        assert other.training.batch_tokens == loaded["scratch"].training.batch_tokens
        assert other.tokenizer == loaded["scratch"].tokenizer
    assert loaded["scratch"].model == loaded["scratch-long"].model == loaded["pretrained"].model


# -- subjects of e-mails -----------------------------------------------------------------------------------------------


@pytest.fixture
def mails(tmp_path):
    place = tmp_path / "aeslc"
    long = " ".join(f"word{i}" for i in range(300))
    write(place / "train.tsv", [["1", "hello there you", "hi"], ["2", long, "long"], ["3", "asked in test", "no"]])
    write(place / "dev.tsv", [["4", "one two three four five six", "one two three four", "a", "b", "c"]])
    write(place / "test.tsv", [["5", "asked in test", "yes", "d", "e", "f"]])
    headline.prepare({"aeslc": place}, "", tmp_path)
    return tmp_path


def test_a_mail_is_read_up_to_its_200th_word_and_left_out_where_it_is_tested(mails):
    train = rows(mails / "train.tsv")
    assert [row[1] for row in train] == ["hi", "long"]
    assert train[1][0].split() == [f"word{i}" for i in range(200)]


def test_the_subjects_of_others_are_references_of_people_alone(mails):
    assert rows(mails / "test.tsv") == [["asked in test", "yes"]]
    assert rows(mails / "people.tsv") == [["asked in test", "yes", "d", "e", "f"]]
    assert rows(mails / "valid.tsv") == [["one two three four five six", "one two three four"]]


def test_the_baseline_says_as_many_first_words_as_are_best_on_validation(mails):
    assert headline.baseline_outputs(mails, "") == {"first 4 words": ["asked in test"]}


# -- abstracts ---------------------------------------------------------------------------------------------------------


def test_sentences_end_at_a_period_before_a_capital():
    text = "We use e.g. trees. Do they help? Yes! (See below.) It is 3.5 times faster."
    assert summarization.split_sentences(text) == [
        *("We use e.g. trees.", "Do they help?", "Yes!", "(See below.) It is 3.5 times faster.")
    ]


def test_one_sentence_of_each_abstract_is_the_best_and_it_shares_most_words_with_the_summary(made):
    folder = made["summarization", ""]
    labels = iter(rows(folder / "sentences.tsv"))
    for abstract, summary in rows(folder / "train.tsv"):
        every = re.split(r"(?<=\.) ", abstract)
        marked = [next(labels) for _ in every]
        assert [text.split(" : ", 1)[1] for text, _ in marked] == every
        assert [text.split(" : ")[0] for text, _ in marked] == [
            f"place {i + 1} of {len(every)}" for i in range(len(every))
        ]
        assert Counter(label for _, label in marked)["best"] == 1
        shared = [f1(one, summary, 1) + f1(one, summary, 2) for one in every]
        assert shared[[label for _, label in marked].index("best")] == pytest.approx(max(shared))
    assert next(labels, None) is None


def f1(text: str, reference: str, n: int) -> float:
    """ROUGE-n by plain counting."""
    sides = [re.findall(r"\w+", side.lower()) for side in (text, reference)]
    grams = [[tuple(side[i : i + n]) for i in range(len(side) - n + 1)] for side in sides]
    left, shared = list(grams[1]), 0
    for gram in grams[0]:
        if gram in left:
            left.remove(gram)
            shared += 1
    return 2 * shared / max(len(grams[0]) + len(grams[1]), 1)


def test_reading_asks_for_every_sentence_in_its_gap_and_for_two_of_the_whole():
    abstract = "Dogs bark. Old dogs bark at cats. Cats sleep."
    asked = list(summarization.make_reading_tasks(abstract))
    assert asked[:3] == [
        ("____ Old dogs bark at cats. Cats sleep.", "Dogs bark."),
        ("Dogs bark. ____ Cats sleep.", "Old dogs bark at cats."),
        ("Dogs bark. Old dogs bark at cats. ____", "Cats sleep."),
    ]
    # Shared with the rest: 2 words and a pair of them of 2, 3 and that pair of 5, 1 of 2.
    assert asked[3:] == [(abstract, "Old dogs bark at cats."), (abstract, "Dogs bark.")]
    assert list(summarization.make_reading_tasks("Only one.")) == []


def test_the_sentence_with_the_highest_score_is_chosen_the_first_of_equals():
    def length(pairs):
        assert all(label == "best" for _, label in pairs)
        return [float(len(text)) for text, _ in pairs]

    abstracts = [["one", "three", "two"], ["alone"], ["aa", "bb"]]
    assert summarization.choose_sentences(length, abstracts) == ["three", "alone", "aa"]


def test_the_oracle_is_at_least_as_like_the_references_as_the_first_sentence(made):
    folder = made["summarization", ""]
    found = summarization.baseline_outputs(folder, "")
    for row, first, best in zip(rows(folder / "test.tsv"), *found.values(), strict=True):
        assert row[0].startswith(first)
        assert best in row[0]
        goodness = [sum(max(f1(text, one, n) for one in row[1:]) for n in (1, 2)) for text in (first, best)]
        assert goodness[0] <= goodness[1] + 1e-9


# -- dialogue ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def talks(tmp_path):
    place = tmp_path / "dailydialog"
    known, shared = ["a", "b", "c", "d", "e"], ["x", "b", "c", "d", "e", "new"]
    write(place / "train.txt", [known, ["hi", "hi"], ["so", "e"]])
    write(place / "dev.txt", [["hi", "hi"], ["hi", "ho"], ["ho", "hi"]])
    write(place / "test.txt", [known, shared])
    dialogue.prepare({"dailydialog": place}, "", tmp_path)
    return tmp_path


def test_a_response_follows_the_three_utterances_before_it(talks):
    assert rows(talks / "train.tsv")[:4] == [["a", "b"], ["a | b", "c"], ["a | b | c", "d"], ["b | c | d", "e"]]


def test_unseen_responses_are_of_other_dialogues_and_follow_other_utterances(talks):
    assert len(rows(talks / "test.tsv")) == 4 + 5
    assert rows(talks / "unseen.tsv") == [["x", "b"], ["x | b", "c"], ["x | b | c", "d"], ["c | d | e", "new"]]
    assert rows(talks / "valid.tsv") == [["ho", "hi"]]


def test_the_baselines_of_a_dialogue_say_what_is_usual_or_what_was_said_last(talks):
    usual, echo = dialogue.baseline_outputs(talks, "").items()
    assert usual == ("always 'e'", ["e"] * 4)
    assert echo == ("an echo", ["x", "b", "c", "e"])


# -- letters -----------------------------------------------------------------------------------------------------------


def test_a_language_model_reads_each_english_sentence_once(made):
    texts = {name: rows(made["character-lm", ""] / f"{name}.tsv") for name in ("train", "valid", "test")}
    for every in texts.values():
        assert all(re.fullmatch(r"(I|You|Tom|The cat|My aunt) [a-z ]+[.!]", text) for (text,) in every)
        assert len({text for (text,) in every}) == len(every)


# -- stories -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A fifth of the stories."""
    folder = tmp_path_factory.mktemp("stories")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answering, "SIZES", (answering.SIZES[0] // 5, answering.SIZES[1]))
        answering.prepare({}, "", folder)
    return folder


def told_again(text: str) -> tuple[str, dict[str, list[str]], dict[str, str], dict[str, list[str]]]:
    """The question, the rooms of each person, the last word on each thing, and the things of each, from the words."""
    *events, question = re.split(r"(?<=\.) ", text)
    been, fate, things = {}, {}, {}
    for event in events:
        if found := re.fullmatch(r"(\w+) (?:went|walked|moved) to the (\w+)\.", event):
            been.setdefault(found[1], []).append(found[2])
            things.setdefault(found[1], [])
        elif found := re.fullmatch(r"(\w+) (?:took|picked up) the (\w+)\.", event):
            lies = fate.get(found[2], f"in {been[found[1]][-1]}")
            assert lies == f"in {been[found[1]][-1]}"  # it was here, or nobody knew of it
            fate[found[2]] = f"with {found[1]}"
            things[found[1]].append(found[2])
        elif found := re.fullmatch(r"(\w+) (?:left|put down) the (\w+)\.", event):
            fate[found[2]] = f"in {been[found[1]][-1]}"
            things[found[1]].remove(found[2])
        else:
            found = re.fullmatch(r"(\w+) gave the (\w+) to (\w+)\.", event)
            assert found
            assert been[found[1]][-1] == been[found[3]][-1]
            fate[found[2]] = f"with {found[3]}"
            things[found[1]].remove(found[2])
            things[found[3]].append(found[2])
    return question, been, fate, things


def answer_of(text: str) -> str:
    question, been, fate, things = told_again(text)
    words = question.rstrip("?").split()
    if words[:3] == ["Where", "is", "the"]:
        how, where = fate[words[3]].split()
        return where if how == "in" else been[where][-1]
    if words[:2] == ["Where", "is"]:
        return been[words[2]][-1]
    if words[0] == "Where":
        assert been[words[2]][-1] == words[-1]
        return been[words[2]][-2]
    if words[0] == "Who":
        how, whom = fate[words[-1]].split()
        return whom if how == "with" else "nobody"
    if words[0] == "What":
        return " and ".join(f"the {thing}" for thing in things[words[2]]) or "nothing"
    if words[0] == "Is":
        return "yes" if been[words[1]][-1] == words[-1] else "no"
    assert words[:2] == ["How", "many"]
    count = [rooms[-1] for rooms in been.values()].count(words[-1])
    return ["none", "one", "two", "three", "four", "five"][count]


@pytest.mark.parametrize("name", ["valid", "test", "combinations"])
def test_the_answer_to_a_question_is_what_reading_the_story_again_gives(told, name):
    for text, answer in rows(told / f"{name}.tsv"):
        assert answer_of(text) == answer, text


@pytest.mark.parametrize("name", ["test", "combinations"])
def test_every_kind_of_question_is_asked_and_each_line_has_its_kind(told, name):
    kinds = [kind for (kind,) in rows(told / f"{name}.groups")]
    begins = {"where-person": "Where is [A-Z]", "where-thing": "Where is the", "before": "Where was"}
    begins |= {"who": "Who", "what": "What", "whether": "Is", "how-many": "How many"}
    asked = [text.rsplit(". ", 1)[1] for text, _ in rows(told / f"{name}.tsv")]
    assert all(re.match(begins[kind], question) for kind, question in zip(kinds, asked, strict=True))
    assert all(count >= 50 for count in Counter(kinds).values())
    assert {*kinds} == {*begins}


def test_a_person_meets_some_room_in_the_test_of_combinations_alone(told):
    def met(name: str) -> list[set[tuple[str, str]]]:
        found = []
        for text, _ in rows(told / f"{name}.tsv"):
            question, been, _, _ = told_again(text)
            asked = re.findall(r"Is (\w+) in the (\w+)", question)
            found.append({(person, room) for person, every in been.items() for room in every} | {*asked})
        return found

    known = set().union(*met("train"))
    assert len(known) == 8 * 6 - 8
    assert not set().union(*met("test")) - known
    assert all(here - known for here in met("combinations"))


def test_no_story_of_a_test_is_trained_on(told):
    known = {text for text, _ in rows(told / "train.tsv")}
    for name in ("valid", "test", "combinations"):
        assert not known & {text for text, _ in rows(told / f"{name}.tsv")}


def test_the_baseline_of_questions_goes_by_their_first_word(tmp_path):
    train = [["A. Who is it?", "Ada"], ["A. Who was it?", "Ben"], ["B. Who has it?", "Ben"], ["A. Is it?", "no"]]
    write(tmp_path / "train.tsv", train)
    write(tmp_path / "test.tsv", [["C. D. Who now?", "x"], ["D. Is he?", "y"]])
    assert answering.baseline_outputs(tmp_path, "") == {"most frequent answer": ["Ben", "no"]}


@pytest.mark.parametrize("recipe", [answering, entailment])
def test_an_example_is_small_and_else_like_the_whole(recipe, tmp_path):
    recipe.prepare({"example": tmp_path}, "", tmp_path)
    assert len(rows(tmp_path / "train.tsv")) <= 100
    for name in ("test", "combinations"):
        assert len(rows(tmp_path / f"{name}.tsv")) == len(rows(tmp_path / f"{name}.groups")) <= 25
    (said,) = recipe.baseline_outputs(tmp_path, "").values()
    assert len(said) == len(rows(tmp_path / "test.tsv"))


def test_the_same_seed_tells_the_same_stories():
    first, again, other = (list(islice(stories.generate_items(random.Random(seed)), 5)) for seed in (1, 1, 2))
    assert first == again != other


# -- entailment --------------------------------------------------------------------------------------------------------


FORMS = list(product(logic.QUANTIFIERS, (False, True)))
TYPES = list(product((False, True), repeat=4))  # whether a thing is A, A', B, B'


def says(quantifier: str, members: list[bool]) -> bool:
    """A quantifier over the members of a kind: which of them do what is said."""
    return {"all": all(members), "some": any(members), "no": not any(members), "not all": not all(members)}[quantifier]


def test_labels_are_what_every_small_world_bears_out():
    # Each sentence needs one thing at most to be true or false, and two kinds need one member each: 4 things suffice.
    worlds = [world for count in (1, 2, 3, 4) for world in combinations(TYPES, count)]
    true = {
        (place, form): np.array([says(form[0], [t[2 + place] != form[1] for t in w if t[place]]) for w in worlds])
        for place in (0, 1)
        for form in FORMS
    }
    peopled = np.array([any(t[0] for t in w) and any(t[1] for t in w) for w in worlds])
    for relations in product((False, True), repeat=4):
        inside = [(0, 1), (1, 0), (2, 3), (3, 2)]
        held = [pair for pair, told in zip(inside, relations, strict=True) if told]
        possible = peopled & np.array([all(t[i] <= t[j] for t in w for i, j in held) for w in worlds])
        for first, second in product(FORMS, FORMS):
            then = true[1, second][possible & true[0, first]]
            expected = "entailment" if then.all() else "neutral" if then.any() else "contradiction"
            assert logic.decide_label(first, second, relations) == expected, (first, second, relations)


HAND = """
all dogs move > some old poodles move : entailment
some poodles sprint daily > some animals run : entailment
no people communicate > no small girls whisper : entailment
all boys do not speak > no boys shout : entailment
not all owls do not move > some birds move : entailment
no dogs move > some poodles run outdoors : contradiction
all artists speak > some singers do not communicate : contradiction
not all fish swim > no fish do not swim : contradiction
some dogs move > all dogs move : neutral
all poodles run > all dogs run : neutral
all dogs run > all dogs sprint : neutral
no fish swim daily > no fish swim : neutral
all owls move > all parrots move : neutral
"""


@pytest.mark.parametrize("line", HAND.strip().split("\n"))
def test_labels_are_what_people_would_say(line):
    text, label = line.split(" : ")
    assert logic.logical_label(*map(parsed, text.split(" > "))) == label


def parsed(text: str) -> logic.Sentence:
    found = re.fullmatch(r"(all|some|no|not all) (?:(old|small|clever) )?(\w+) (do not )?(\w+)(?: (\w+))?", text)
    quantifier, adjective, noun, negated, verb, adverb = found.groups()
    subject, predicate = logic.Phrase(noun, adjective or ""), logic.Phrase(verb, adverb or "")
    sentence = logic.Sentence(quantifier, subject, predicate, bool(negated))
    assert str(sentence) == text
    return sentence


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("entailment")
    entailment.prepare({}, "", folder)
    return folder


def test_each_label_is_a_third_of_the_training_pairs_and_no_test_pair_is_trained_on(followed):
    train = rows(followed / "train.tsv")
    assert {*Counter(label for _, label in train).values()} == {len(train) // 3}
    for name in ("valid", "test", "combinations"):
        assert not {text for text, _ in train} & {text for text, _ in rows(followed / f"{name}.tsv")}
        assert min(Counter(label for _, label in rows(followed / f"{name}.tsv")).values()) > 200


def test_a_noun_meets_some_verb_in_the_test_of_combinations_alone(followed):
    def met(name: str) -> list[set[tuple[str, str]]]:
        pairs = ([parsed(one) for one in text.split(" > ")] for text, _ in rows(followed / f"{name}.tsv"))
        return [{(one.subject.word, one.predicate.word) for one in pair} for pair in pairs]

    known = set().union(*met("train"))
    assert {noun for noun, _ in known} == {*logic.NOUNS}
    assert {verb for _, verb in known} == {*logic.VERBS}
    assert not set().union(*met("test")) - known
    assert all(here - known for here in met("combinations"))


def test_groups_are_the_quantifiers_of_both_sentences(followed):
    groups = [group for (group,) in rows(followed / "test.groups")]
    for group, (text, _) in zip(groups, rows(followed / "test.tsv"), strict=True):
        assert group == "-".join(parsed(one).quantifier.replace(" ", "_") for one in text.split(" > "))


# -- the real sets, where they are at hand -----------------------------------------------------------------------------

LINES = {
    ("translation", "menyo20k"): {"valid": 3397, "test": 6633},
    ("translation", "mafand"): {"train": 4790, "valid": 1484, "test": 1564},
    ("translation", "tatoeba-de"): {"train": 164_563, "valid": 1000, "test": 1000},
    ("translation", "tatoeba-fr"): {"train": 137_573, "valid": 1000, "test": 1000},
    ("translation", "tanaka"): {"valid": 500, "test": 500},
    ("headline", ""): {"valid": 1960, "test": 1906, "people": 1906},
    # Each dialogue's first utterance answers none.
    ("dialogue", ""): {"train": 87_171 - 11_118, "test": 7740 - 1000, "unseen": 5681},
    ("summarization", ""): {"train": 1992 - 3, "valid": 619, "test": 618},  # of train, three are in dev or test, too
    ("character-lm", ""): {"valid": 1000, "test": 1000},
    ("pretraining", "mafand"): {"train": 4790, "valid": 1484, "test": 1564},
}


QUICK = [("translation", "mafand")]


@pytest.mark.parametrize(
    ("name", "part"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.long) for case in LINES if case not in QUICK)]
)
def test_the_real_set_has_as_many_lines_as_its_page_says(data, tmp_path, name, part):
    opened = recipes.load_recipe(name)
    opened.recipe_module.prepare(opened.find_data_sets(data), part, tmp_path)
    found = {file.stem: len(rows(file)) for file in tmp_path.glob("*.tsv")}
    assert {key: found[key] for key in LINES[name, part]} == LINES[name, part]
    for test in opened.recipe.tests:
        assert len(rows(tmp_path / f"{test}.tsv")) > 400
    if name != "dialogue":
        tested = {row[0] for row in rows(tmp_path / f"{opened.recipe.tests[0]}.tsv")}
        assert not tested & {row[0] for row in rows(tmp_path / "train.tsv")}


def test_every_real_abstract_has_sentences_and_references(data):
    place = recipes.load_recipe("summarization").find_data_sets(data)["scitldr-a"]
    for split, count in (("train", 1992), ("dev", 619), ("test", 618)):
        found = [row[1:] for row in summarization.tables.read_rows(place / f"{split}.tsv", 3)]
        assert len(found) == count
        for abstract, *references in found:
            every = summarization.split_sentences(abstract)
            assert " ".join(every).split() == abstract.split()
            assert references
            assert all(references)
