"""Which column is the source and which the target: as it is written, and as it is proposed for a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import DataError, UserError
from dragoman.data.columns import ROLES, Columns, parse_columns_option
from dragoman.data.lines import ReadReport
from dragoman.data.readers import read_pairs
from dragoman.data.readers.columns import fit_columns, propose_columns

WORDS = ["Hund", "Katze", "schön", "a", "gehen", "Bücher", "rot", "Öl", "Zeitung", "ja"]
PHONES = ["h ʊ n t", "k a t s ə", "ʃ øː n", "a", "ɡ eː ə n", "b yː ç ɐ", "ʁ oː t", "øː l", "ts aɪ t ʊ ŋ", "j aː"]
IPA = ["ˈhʊnt", "ˈkatsə", "ʃøːn", "a", "ˈɡeːən", "ˈbyːçɐ", "ʁoːt", "øːl", "ˈtsaɪtʊŋ", "jaː"]
GLOSSES = ["dog", "cat", "beautiful", "oh", "to go", "books", "red", "oil", "newspaper", "yes"]
FORMS = ["Hunde", "Katzen", "schöner", "as", "ging", "Büchern", "roter", "Öle", "Zeitungen", "jas"]
FEATURES = [
    "N;NOM(PL)",
    "N;ACC(PL)",
    "ADJ;CMPR",
    "N;GEN(SG)",
    "V;PST;3;SG",
    "N;DAT(PL)",
    "ADJ;CMPR",
    "N;NOM(PL)",
    "N;NOM(PL)",
    "N;PL",
]
UD = ["Case=Nom|Number=Plur", "Case=Acc|Number=Plur"] * 5
CODES = ["deu"] * 5 + ["hun"] * 5
COUNTS = ["3", "1", "12", "7", "1", "1", "2", "5", "1", "9"]
IDS = [str(1000 + i) for i in range(10)]
ENGLISH = [f"the {a} one sees {b} again today" for a, b in zip(GLOSSES, reversed(GLOSSES), strict=True)]
GERMAN = [f"der {a} sieht heute wieder {b}" for a, b in zip(WORDS, reversed(WORDS), strict=True)]
NATIVE = ["अंकन", "अंगकोर", "अंगिरा", "अकबर", "अक्षर", "आम", "आग", "आज", "इमली", "ईद"]
ROMAN = ["ankan", "angkor", "angira", "akbar", "akshar", "aam", "aag", "aaj", "imli", "eed"]
EWE = ["ɖevi", "ŋɔŋlɔ", "ʋu", "ɛlɛ", "ƒe", "ɣe", "dɔ", "ɖo", "ŋku", "ɔ̃"]  # letters, though IPA has them too

S, T, L, IGNORED = "source", "target", "target_lang", "-"
SHAPES = [
    # name of the case, file, columns of cells, header, expected columns
    ("a header", "a.tsv", [WORDS, IPA, GLOSSES], "word ipa gloss", {S: "word", T: "ipa"}),
    ("ipa first, by name", "a.tsv", [IPA, WORDS], "ipa word", {S: "word", T: "ipa"}),
    ("capital letters", "a.csv", [WORDS, IPA, GLOSSES], "Word IPA Gloss", {S: "Word", T: "IPA"}),
    ("no header", "a.tsv", [WORDS, IPA], "", [S, T]),
    ("no header, phones first", "a.tsv", [PHONES, WORDS], "", [T, S]),
    ("no header, transcription first", "a.tsv", [IPA, WORDS], "", [T, S]),
    ("no header, glosses", "a.tsv", [WORDS, PHONES, GLOSSES], "", [S, T, IGNORED]),
    ("lemma features form", "a.tsv", [WORDS, FEATURES, FORMS], "", [S, S, T]),
    ("lemma form features", "a.tsv", [WORDS, FORMS, FEATURES], "", [S, T, S]),
    ("features of UD", "a.tsv", [WORDS, FORMS, UD], "", [S, T, S]),
    (
        "lemma form features, by name",
        "a.tsv",
        [WORDS, FORMS, FEATURES],
        "lemma form features",
        {S: ["lemma", "features"], T: "form"},
    ),
    (
        "lemma features form, by name",
        "a.csv",
        [WORDS, FEATURES, FORMS],
        "lemma features form",
        {S: ["lemma", "features"], T: "form"},
    ),
    ("a column of languages", "a.tsv", [CODES, WORDS, PHONES], "", [L, S, T]),
    (
        "languages, by name",
        "a.tsv",
        [CODES, WORDS, PHONES],
        "lang word phones",
        {L: "lang", S: "word", T: "phones"},
    ),
    ("one language only", "a.tsv", [["deu"] * 10, WORDS, PHONES], "", [IGNORED, S, T]),
    ("two languages", "a.tsv", [["en"] * 10, ["de"] * 10, ENGLISH, GERMAN], "", ["source_lang", L, S, T]),
    ("native romanized count", "a.tsv", [NATIVE, ROMAN, COUNTS], "", [S, T, IGNORED]),
    (
        "native romanized count, by name",
        "a.tsv",
        [NATIVE, ROMAN, COUNTS],
        "native romanized count",
        {S: "native", T: "romanized"},
    ),
    ("texts", "a.txt", [ENGLISH], "", [S]),
    ("names of languages", "a.csv", [ENGLISH, GERMAN], "English German", {S: "English", T: "German"}),
    ("codes of languages", "a.tsv", [ENGLISH, GERMAN], "en de", {S: "en", T: "de"}),
    ("sentences", "a.tsv", [ENGLISH, GERMAN], "", [S, T]),
    ("our own names", "a.tsv", [WORDS, IPA], "source target", {S: "source", T: "target"}),
    ("our own names, reversed", "a.tsv", [IPA, WORDS], "target source", {S: "source", T: "target"}),
    ("ids first", "a.tsv", [IDS, WORDS, IPA], "", [IGNORED, S, T]),
    ("ids first, by name", "a.csv", [IDS, WORDS, IPA], "id word pronunciation", {S: "word", T: "pronunciation"}),
    ("an index without a name", "a.csv", [IDS, WORDS, IPA], "_ word ipa", {S: "word", T: "ipa"}),
    ("a header above numbers", "a.tsv", [WORDS, FORMS, COUNTS], "szó alak db", {S: "szó", T: "alak"}),
    ("numbers to words", "a.tsv", [COUNTS, WORDS], "", [S, T]),
    ("words to numbers", "a.tsv", [WORDS, COUNTS], "", [S, T]),
    ("tags of a sentence", "a.tsv", [ENGLISH, GERMAN], "sentence tags", {S: "sentence", T: "tags"}),
    ("a word and its meaning", "a.csv", [WORDS, GLOSSES], "word meaning", {S: "word", T: "meaning"}),
    ("text and label", "a.csv", [IDS, ENGLISH, GLOSSES], "id text label", {S: "text", T: "label"}),
    ("an orthography with IPA's letters", "a.tsv", [EWE, GLOSSES], "", [S, T]),
    ("lists of references", "a.tsv", [ENGLISH, GERMAN, ENGLISH, ENGLISH], "", [S, T, IGNORED, IGNORED]),
    ("a pair of words that are names", "a.tsv", [["text", *WORDS], ["Tekst", *GLOSSES]], "", [S, T]),
    ("two prepositions, codes of languages", "a.tsv", [["es", *WORDS], ["it", *GLOSSES]], "", [S, T]),
    ("capitals", "a.tsv", [["NATO", "EU", "UN", "WHO"], ["N A T O", "E U", "U N", "W H O"]], "", [S, T]),
    ("question and answer", "a.csv", [ENGLISH, GERMAN], "question answer", {S: "question", T: "answer"}),
    ("a lexicon", "a.csv", [WORDS, GLOSSES, IPA], "lemma gloss transcription", {S: "lemma", T: "transcription"}),
    ("transcriptions on both sides", "a.tsv", [IPA, [f"{word}ː" for word in IPA]], "", [S, T]),
    ("symbols on both sides", "a.tsv", [["k a t", "h ʊ n t", "m aʊ s"], ["c a t", "d o g", "m i c e"]], "", [S, T]),
]


def write(folder: Path, name: str, columns: list[list[str]], header: str = "") -> str:
    delimiter = ";" if name.endswith(".csv") else "\t"
    names = [name.strip("_") for name in header.split()]
    rows = [*([names] if header else []), *zip(*columns, strict=True)]
    if delimiter == ";":
        rows = [[f'"{cell}"' if ";" in cell else cell for cell in row] for row in rows]
    path = folder / name
    path.write_text("".join(delimiter.join(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("name", "columns", "header", "expected"), [s[1:] for s in SHAPES], ids=[s[0] for s in SHAPES])
def test_columns_are_proposed_by_name_and_by_content(
    tmp_path: Path, name: str, columns: list[list[str]], header: str, expected: object
) -> None:
    path = write(tmp_path, name, columns, header)
    proposal = propose_columns(path)
    assert proposal.columns == expected, proposal.sentence
    assert proposal.has_header == bool(header)
    assert "say --columns to change" in proposal.sentence
    if header:
        assert ", ".join(name.strip("_") or "''" for name in header.split()) in proposal.sentence
    read = list(read_pairs(path, columns=proposal.columns))  # what is proposed can be read
    assert len(read) == len(columns[0])
    assert all(example.source.strip() for example in read)


def test_the_sentence_says_what_is_taken_and_where_only_the_order_decided(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", [WORDS, IPA, GLOSSES], "word ipa gloss")
    assert propose_columns(path).sentence == "columns: word, ipa, gloss; taking word → ipa (say --columns to change)"
    path = write(tmp_path, "a.tsv", [WORDS, FEATURES, FORMS])
    assert "without a header row; taking column 1 + column 2 → column 3 (" in propose_columns(path).sentence
    path = write(tmp_path, "a.tsv", [ENGLISH, GERMAN, ENGLISH])
    uncertain = propose_columns(path)
    assert not uncertain.is_certain
    assert "the first that may be" in uncertain.sentence


def test_a_language_further_down_than_the_sample_counts(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", [["deu"] * 400 + ["hun"] * 10, WORDS * 41, PHONES * 41])
    assert propose_columns(path).columns == [L, S, T]


def test_lines_with_further_references_have_as_many_columns_as_nearly_all(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(
        "".join(
            f"{w}\t{p}\t{p}\n" if i == 3 else f"{w}\t{p}\n" for i, (w, p) in enumerate(zip(WORDS, IPA, strict=True))
        )
    )
    assert propose_columns(str(path)).columns == [S, T]


def test_keys_of_json_lines_are_names(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"ipa": i, "n": 3, "word": w}) + "\n" for w, i in zip(WORDS, IPA, strict=True)))
    assert propose_columns(str(path)).columns == {S: "word", T: "ipa"}
    path.write_text("".join(json.dumps({"source": w, "target": [i]}) + "\n" for w, i in zip(WORDS, IPA, strict=True)))
    assert propose_columns(str(path)).columns == [S, T]
    path.write_text("".join(json.dumps({"text": w}) + "\n" for w in WORDS))
    assert propose_columns(str(path)).columns == [S]
    side = write(tmp_path, "a.de", [WORDS])
    assert propose_columns(f"{side},{side}").columns == [S, T]


def test_an_empty_file_and_names_that_are_not_unique_are_answered_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("")
    assert propose_columns(str(tmp_path / "a.tsv")).columns == [S]
    path = write(tmp_path, "a.csv", [WORDS, IPA, IPA], "word ipa ipa")
    with pytest.raises(DataError, match="2 columns are called 'ipa'"):
        propose_columns(path)
    with pytest.raises(DataError, match="there is no such file"):
        propose_columns(str(tmp_path / "none.csv"))


@given(st.lists(st.lists(st.text(max_size=6), min_size=1, max_size=4), max_size=12))
def test_whatever_is_in_a_file_is_answered(tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]) -> None:
    path = tmp_path_factory.mktemp("rows") / "a.csv"
    path.write_bytes("\n".join(",".join(row) for row in rows).encode("utf-8", "replace"))
    try:
        proposal = propose_columns(str(path))
    except DataError:
        return
    columns = Columns.parse(proposal.columns)
    assert "source" in columns
    assert len(proposal.names) >= len([role for role in columns.roles if role != "-"]) or not proposal.names


@pytest.mark.parametrize(
    ("trained", "columns", "header", "fits"),
    [
        ([S, T], [WORDS, IPA], "", True),
        ([S, T], [ENGLISH, GERMAN, ENGLISH], "", True),  # a further reference
        ([S, T], [NATIVE, ROMAN, COUNTS], "", False),  # a count is no reference
        ([S, T], [CODES, WORDS, PHONES], "", False),
        ([S, T], [WORDS, IPA], "word ipa", False),
        ([S, T], [WORDS, IPA], "source target", True),
        ({S: "word", T: "ipa"}, [IPA, WORDS, GLOSSES], "ipa word gloss", True),
        ({S: "word", T: "ipa"}, [WORDS, IPA], "", False),
        ({S: "word", T: "ipa"}, [WORDS, IPA], "lemma ipa", False),
        ([S, S, T], [WORDS, FEATURES, FORMS], "", True),
    ],
)
def test_a_model_s_columns_fit_a_file_or_others_are_proposed(
    tmp_path: Path, trained: object, columns: list[list[str]], header: str, fits: bool
) -> None:
    path = write(tmp_path, "a.tsv", columns, header)
    assert (fit_columns(path, trained) is None) is fits  # type: ignore[arg-type]


# -- as they are written -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("source,target,-", [S, T, IGNORED]),
        ("source, source ,target", [S, S, T]),
        ("word,ipa", {S: "word", T: "ipa"}),
        ("word", {S: "word"}),
        ("source=word,target=ipa", {S: "word", T: "ipa"}),
        ("target=form,source=lemma,source=features", {T: "form", S: ["lemma", "features"]}),
    ],
)
def test_the_option_says_roles_or_names(text: str, value: object) -> None:
    columns = parse_columns_option(text)
    assert columns.value == value
    assert Columns.parse(columns.value) == columns  # as a config has it


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("source,,target", "between two commas"),
        ("source,traget", "did you mean 'target'"),
        ("word,ipa,gloss", r"source=word,target=ipa"),
        ("source=word,ipa", "'ipa' names no column"),
        ("sorce=word,target=ipa", "did you mean 'source'"),
        ("-,-", "neither 'source' nor 'target'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse_columns_option(text)


def test_several_sources_are_joined_and_blank_cells_leave_no_gap(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("gehen\tV;PST\tging\nHund\t\tHunde\n")
    found = [(e.source, e.target) for e in read_pairs(path, columns=[S, S, T])]
    assert found == [("gehen V;PST", "ging"), ("Hund", "Hunde")]
    path.write_text("form\tlemma\tfeatures\nging\tgehen\tV;PST\n")
    found = [(e.source, e.target) for e in read_pairs(path, columns={S: ["features", "lemma"], T: "form"})]
    assert found == [("V;PST gehen", "ging")]  # in the order of the mapping


def test_a_missing_name_is_one_sentence_with_the_names_that_are_there(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", [WORDS, IPA], "word ipa")
    with pytest.raises(
        DataError, match=r"a\.tsv:1: there is no column 'wrod'; did you mean 'word'\? \(there is word, ipa"
    ):
        list(read_pairs(path, columns={S: "wrod", T: "ipa"}))


@pytest.mark.parametrize("header", [["source", "target"], ["word", "ipa"], ["Lemma", "Form"]])
def test_a_header_is_never_a_pair(tmp_path: Path, header: list[str]) -> None:
    path = write(tmp_path, "a.tsv", [WORDS, IPA], " ".join(header))
    report = ReadReport()
    found = [(e.source, e.line) for e in read_pairs(path, report=report)]
    assert found == [(word, line) for line, word in enumerate(WORDS, 2)]
    (notice,) = report.notices()
    assert ", ".join(header) in notice


def test_a_header_that_contradicts_the_columns_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", [IPA, WORDS], "target source")
    with pytest.raises(DataError, match="the header names the columns target, source"):
        list(read_pairs(path))


@given(st.lists(st.sampled_from(ROLES), min_size=1, max_size=6))
def test_columns_survive_a_config(roles: list[str]) -> None:
    try:
        columns = Columns.parse(roles)
    except UserError:
        assert not {"source", "target"} & set(roles) or any(
            roles.count(role) > 1 for role in ("second_source", "source_lang", "target_lang")
        )
        return
    assert columns.value == roles
