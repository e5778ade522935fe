"""Each check on outputs written by hand, so that the truth is known; the inputs; and all of it on small models."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import frozen_tokenizers
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.core.errors import DataError, UserError
from dragoman.core.registry import Part
from dragoman.core.types import UNK, Example
from dragoman.inference.pipeline import Pipeline
from dragoman.inference.prediction import Prediction
from dragoman.inspection import probe_inputs
from dragoman.inspection.probe_inputs import MinimalPair, NeutralSource
from dragoman.inspection.views import probes
from dragoman.inspection.views.probes import Case, ProbeResult, run_probes
from dragoman.text import codec as codecs
from dragoman.text.tokenizers import tokenizers


def said(source: str, text: str, *, ended: str = "eos", attention: list[list[float]] | None = None) -> Prediction:
    """An output of whole words."""
    looked = None if attention is None else np.array(attention, dtype=np.float32)
    tokens = text.split()
    return Prediction(text, 0.0, 0.0, tokens, [], ended, [*source.split(), "</s>"], attention=looked)


def many(*pairs: tuple[str, str]) -> list[Case]:
    return [(Example(source), said(source, text)) for source, text in pairs]


def hit(check: ProbeResult) -> list[str]:
    return [found.source for found in check.hits]


# -- repetition --------------------------------------------------------------------------------------------------------


def repetition(cases: list[Case]) -> ProbeResult:
    return probes.find_hits("repetition", "outputs repeat themselves", cases, probes.describe_repetition)


def under_translation(cases: list[Case], usual: float) -> ProbeResult:
    return probes.find_hits("under-translation", "", cases, partial(probes.describe_omission, usual))


def over_translation(cases: list[Case], usual: float) -> ProbeResult:
    return probes.find_hits("over-translation", "", cases, partial(probes.describe_excess, usual))


def test_a_loop_is_three_times_in_a_row_and_more_than_in_the_source() -> None:
    cases = many(
        ("a b", "x x x"),
        ("b c", "x x"),
        ("c d", "so x y x y x y end"),
        ("d e", "x y x y x"),  # two and a half times
        ("no no no", "nein nein nein"),
        ("no no no ", "nein nein nein nein"),
        ("e f", "x y x z x"),
    )
    check = repetition(cases)
    assert hit(check) == ["a b", "c d", "no no no "]
    assert (check.name, check.of) == ("repetition", 7)
    assert check.hits[0].detail == "'x' 3 times in a row"


def plain_loop(tokens: list[str]) -> int:
    """Count from every place, for every length."""
    most = 1
    for n in range(1, len(tokens) + 1):
        for start in range(len(tokens)):
            unit, times = tokens[start : start + n], 1
            while len(unit) == n and tokens[start + times * n : start + (times + 1) * n] == unit:
                times += 1
            most = max(most, times)
    return most


@given(st.lists(st.sampled_from("ab"), max_size=14))
def test_the_longest_loop_is_that_of_a_plain_count(tokens: list[str]) -> None:
    times, looping = probes.find_loop(tokens)
    truth = plain_loop(tokens)
    assert times == (truth if truth >= 3 else 1)
    assert bool(looping) == (truth >= 3)
    if looping:
        assert "".join(looping * times) in "".join(tokens)


def test_an_output_of_few_different_tokens_repeats_itself_unless_its_source_does() -> None:
    various = "a b c d e f g h i"
    cases = many(
        (various, "x x y y x y y x x y"),  # 2 of 9 at the end, and the source with its </s> has 9 of 9
        (various + " j", "u v w x x y y z z u"),
        ("a a b a a b b a", "x x y y x y y x x"),
        ("a b c", "x x y"),  # too short to say
    )
    check = repetition(cases)
    assert hit(check) == [various]
    assert check.hits[0].detail == "2 different tokens among the last 10"


# -- degenerate sources ------------------------------------------------------------------------------------------------


def test_a_hallucination_is_far_too_long_or_endless_or_does_not_change_with_the_source() -> None:
    fluent = "it was the best of times"
    cases = many(
        ("ag ag ag", "one two three four five six seven eight nine ten eleven twelve thirteen"),  # 14 for 4
        ("ug ug ug", "one two three"),
        (". . . . .", fluent),
        ("! ! ! ! !", fluent + " "),
        ("ig ig ig ig", "this is one long answer"),
        ("og og og og", "and there is quite another"),
        ("- -", "oh no"),
        ("+ +", "oh no"),  # the same, but it says next to nothing
        ("¿ ¿ ¿ ¿ ¿", fluent),
        ("¡ ¡ ¡ ¡ ¡", fluent),
    )
    for _, output in cases[-2:]:
        output.source_tokens[:-1] = ["<unk>"] * 5  # which the model cannot tell apart
    check = probes.check_hallucination(cases, 1.0)
    assert hit(check) == ["ag ag ag", ". . . . .", "! ! ! ! !"]
    assert check.hits[0].detail.startswith("3.5 times")
    assert check.hits[1].detail == "nearly the same as for '! ! ! ! !'"
    assert hit(probes.check_hallucination(cases, 2.0)) == [". . . . .", "! ! ! ! !"]
    endless = [
        (Example("ag ag ag"), said("ag ag ag", "a b c d e", ended="length")),
        (Example("ug ug ug"), said("ug ug ug", "u v", ended="length")),
    ]
    assert hit(probes.check_hallucination(endless, 1.0)) == ["ag ag ag"]


# -- copying -----------------------------------------------------------------------------------------------------------


def test_copying_counts_unless_a_reference_copies_too() -> None:
    sources = [
        Example("the old bridge", "die alte Brücke"),
        Example("the old bridges", "die alten Brücken"),
        Example("Angela Merkel", "Angela Merkel"),
        Example("Berlin", "die Hauptstadt", references=("die Hauptstadt", "Berlin")),
        Example("no reference"),
        Example("a road", "eine Straße"),
    ]
    texts = ["The  old bridge", "the old bridge", "Angela Merkel", "Berlin", "no reference", "eine Straße"]
    check = probes.check_copying([(one, said(one.source, text)) for one, text in zip(sources, texts, strict=True)])
    assert hit(check) == ["the old bridge", "the old bridges", "no reference"]
    assert "in 2 more copying is right" in check.what
    assert [found.detail for found in check.hits] == ["100 % alike", "97 % alike", "100 % alike"]  # 2 · 14 / 29


# -- coverage ----------------------------------------------------------------------------------------------------------


def test_coverage_is_the_attention_of_each_source_token_without_tags_and_the_end() -> None:
    output = said("a b", "x y", attention=[[0.1, 0.2, 0.3, 0.4, 0.0], [0.0, 0.0, 0.5, 0.25, 0.25], [0, 0, 0, 0, 1]])
    output.source_tokens[:0] = ["<from:en>", "<to:de>"]
    assert output.source_tokens == ["<from:en>", "<to:de>", "a", "b", "</s>"]
    found = probes.coverage(output)
    assert found is not None
    assert [j for j, _ in found] == [2, 3]
    np.testing.assert_allclose([a for _, a in found], [0.8, 0.65], rtol=1e-6)
    assert probes.coverage(said("a b", "x y")) is None


def test_a_source_with_little_attention_on_more_than_half_is_under_translated() -> None:
    half = said("a b c d", "x", attention=[[0.5, 0.4, 0.02, 0.03, 0.05], [0.5, 0.4, 0.03, 0.02, 0.05]])
    more = said("a b c d", "y", attention=[[0.8, 0.04, 0.05, 0.04, 0.07], [0.8, 0.05, 0.04, 0.04, 0.07]])
    nothing = said("a b c d", "", attention=[[0.0, 0.0, 0.0, 0.0, 1.0]])
    check = under_translation([(Example("half"), half), (Example("more"), more), (Example("nothing"), nothing)], 1.0)
    assert hit(check) == ["more"]
    assert check.hits[0].detail == "3 of 4 source tokens got hardly any attention: b c d"


def test_a_source_token_with_the_attention_of_too_many_tokens_is_over_translated() -> None:
    once = [[0.1, 0.8, 0.1]] * 8  # the second token: 6.4
    cases = [(Example("a b"), said("a b", "x y x y x z x", attention=once))]
    check = over_translation(cases, 1.5)
    assert check.hits[0].detail == "'b' has the attention of 6.4 target tokens"
    assert not over_translation(cases, 1.7).hits  # 6.8 are allowed
    on_end = [(Example("a b"), said("a b", "x y x y x z x", attention=[[0.1, 0.1, 0.8]] * 8))]
    assert not over_translation(on_end, 1.0).hits


def test_without_attention_the_length_tells_under_and_over_translation() -> None:
    source = " ".join("abcdefghi")  # 10 tokens with </s>
    short, shorter, long, longer = (said(source, " ".join(["x", "y"] * 20)[: 2 * n - 1]) for n in (2, 1, 21, 22))
    assert [len(output.tokens) for output in (short, shorter, long, longer)] == [2, 1, 21, 22]
    cases = [(Example(str(len(output.tokens))), output) for output in (short, shorter, long, longer)]
    # With </s> 10 are usual: fewer than 10 / 2 − 2 = 3 are too few, more than 10 · 2 + 2 = 22 too many.
    assert hit(under_translation(cases, 1.0)) == ["1"]
    assert hit(over_translation(cases, 1.0)) == ["22"]
    assert hit(over_translation(cases, 2.0)) == []


# -- ends --------------------------------------------------------------------------------------------------------------


def test_outputs_without_end_and_without_words_are_counted() -> None:
    sources = [Example("a"), Example("b"), Example("c"), Example("  ")]
    outputs = [said("a", "x y", ended="length"), said("b", " "), said("c", "z"), said(" ", "", ended="blank")]
    cases = list(zip(sources, outputs, strict=True))
    assert hit(probes.find_hits("length", "", cases, probes.describe_length)) == ["a"]
    assert hit(probes.find_hits("empty", "", cases, probes.describe_empty)) == ["b"]


# -- minimal pairs and pronouns ----------------------------------------------------------------------------------------


def test_pairs_are_counted_where_outputs_are_equal_or_miss_what_was_expected() -> None:
    pairs = [
        MinimalPair("the cat", "the dog"),
        MinimalPair("one cat", "one dog"),
        MinimalPair("sister", "brother", "She", "he"),
        MinimalPair("aunt", "uncle", "she", "he"),
        MinimalPair("queen", "king", "", "he"),
    ]
    texts = ["die Katze", "die Katze", "eine Katze", "ein Hund"]
    texts += ["she sings.", "He sings.", "she sings", "she dances", "it sings", "the end"]
    check = probes.check_minimal_pairs(pairs, texts)
    assert [tuple(found) for found in check.hits] == [
        ("the cat", "die Katze", "the same output as for 'the dog'"),
        ("uncle", "she dances", "'he' is missing"),
        ("king", "the end", "'he' is missing"),
    ]
    assert check.of == 5


def test_a_word_stands_in_a_text_where_no_letter_goes_on() -> None:
    cases = {
        ("he", "she"): 0,
        ("he", "He said he would; then HE did."): 3,
        ("her", "hers, her"): 1,
        ("il", "s'il vient"): 1,
        ("他", "他是医生"): 1,
        ("er", "Straßer er"): 1,
        ("они", "Они и иони"): 1,
        ("aa", "aaa"): 0,
    }
    assert {case: probes.count_word(*case) for case in cases} == cases


def test_an_item_is_skewed_where_every_output_has_the_same_gendered_pronoun() -> None:
    said_of = [
        ("nurse", "She works. Her shift begins."),
        ("nurse", "I know her."),
        ("doctor", "He works."),
        ("doctor", "She works."),
        ("clerk", "They work."),
        ("clerk", "Their shift begins."),
        ("judge", "He says they work."),
        ("pilot", "He knows her."),
        ("baker", "He works."),
        ("baker", "Bread!"),
    ]
    items = [NeutralSource(f"source {i}", item) for i, (item, _) in enumerate(said_of)]
    outputs = [text for _, text in said_of]
    check = probes.check_neutral_sources(items, outputs, probe_inputs.parse_pronouns(probe_inputs.PRONOUNS))
    assert [found.detail for found in check.hits] == ["nurse: always 'she'", "judge: always 'he'"]
    assert check.of == 6
    assert check.table == {
        "columns": ["item", "he", "she", "they", "none"],
        "rows": [
            ["nurse", 0, 2, 0, 0],
            ["doctor", 1, 1, 0, 0],
            ["clerk", 0, 0, 2, 0],
            ["judge", 1, 0, 1, 0],
            ["pilot", 1, 1, 0, 0],
            ["baker", 1, 0, 0, 1],
        ],
    }
    other = probe_inputs.parse_pronouns("they/their, ~he/his")
    assert [found.detail for found in probes.check_neutral_sources(items, outputs, other).hits] == [
        "clerk: always 'they'",
        "judge: always 'they'",
    ]
    with pytest.raises(UserError, match="empty form"):
        probe_inputs.parse_pronouns("he,,she")


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_a_check_fails_above_its_limit_and_not_at_it() -> None:
    hits = [probes.Hit(str(i), "", "") for i in range(29)]
    value = ProbeResult("copying", "outputs are copies", 100, hits).as_json(0.29)
    assert (value["failed"], value["count"], value["of"]) == (False, 29, 100)
    assert value["sentence"] == "29 of 100 outputs are copies"
    assert [example["source"] for example in value["examples"]] == ["0", "1", "2", "3", "4"]
    assert ProbeResult("copying", "", 100, hits).as_json(0.28)["failed"]
    assert not ProbeResult("empty", "", 100, []).as_json(0.0)["failed"]
    assert ProbeResult("empty", "", 100, hits[:1]).as_json(0.0)["failed"]


def test_limits_are_checked_by_name_and_range() -> None:
    assert probes.check_limits({"empty": 0.5})["empty"] == 0.5
    assert probes.check_limits({"empty": 0.5})["length"] == probes.LIMITS["length"]
    with pytest.raises(UserError, match="did you mean 'copying'"):
        probes.check_limits({"copyin": 0.5})
    with pytest.raises(UserError, match="from 0 to 1"):
        probes.check_limits({"copying": 5.0})


# -- inputs ------------------------------------------------------------------------------------------------------------

LINES = ["the old bridge, the new road", "an older bridge", "naïve té", "a b c d e f g h i j k l m n o p q r s t u v"]


def codec_of(kind: str, lines: list[str] = LINES) -> codecs.Codec:
    if kind in frozen_tokenizers.KINDS:
        frozen = frozen_tokenizers.frozen_tokenizer(kind, lines)
        return codecs.Codec(frozen, frozen)
    part = Part(kind, {"size": 300} if kind in ("bpe", "unigram") else {})
    return learn_codec(part, part, True, "nfc", lines, [], [])


@pytest.mark.parametrize("kind", tokenizers.names)
def test_sources_are_made_of_known_pieces_and_are_the_same_for_the_same_vocabulary(kind: str) -> None:
    codec = codec_of(kind)
    sources = probe_inputs.sample_sources(codec, 40)
    assert sources == probe_inputs.sample_sources(codec_of(kind), 40)
    assert len(set(sources)) > 20
    assert all(source.strip() for source in sources)
    assert not any(UNK in codec.source.encode(source) for source in sources)
    lengths = {len(codec.source.encode(source)) for source in sources}
    assert min(lengths) >= 3
    other = codec_of(kind, [*LINES, "zebra zebra quiz 漢字"])
    assert (
        kind == "bytes" or probe_inputs.sample_sources(other, 40) != sources
    )  # bytes are the same whatever was learned


@pytest.mark.parametrize("kind", tokenizers.names)
def test_degenerate_sources_loop_are_punctuation_or_one_long_word(kind: str) -> None:
    codec = codec_of(kind)
    sources = probe_inputs.degenerate_sources(codec)
    assert sources == probe_inputs.degenerate_sources(codec_of(kind))
    assert len(sources) % 2 == 0
    loops = [
        source for source in sources if probes.find_loop(source.split() if " " in source else list(source))[0] >= 8
    ]
    bare = [source for source in sources if not any(c.isalnum() for c in source)]
    long = [source for source in sources if len(source) >= 40 and " " not in source and source not in loops]
    assert len(loops) >= 16
    assert len(bare) == 8
    assert len(long) == 8


def test_a_syllable_is_repeated_without_spaces_where_the_model_knows_none() -> None:
    assert probe_inputs.repeat_word(codec_of("characters").source, "ag") == " ".join(["ag"] * 20)
    assert probe_inputs.repeat_word(codec_of("characters", ["agx"]).source, "ag") == "ag" * 20


def test_a_vocabulary_of_word_parts_alone_still_gives_sources() -> None:
    part = Part("bpe", {"size": 11, "byte_fallback": False})
    codec = learn_codec(part, part, True, "nfc", ["xyz zyx"], [], [])
    assert all(source.strip() for source in probe_inputs.sample_sources(codec, 10))


def test_minimal_pairs_are_read_with_and_without_expectations(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv.gz"
    path.write_bytes(gzip.compress(b"a cat\ta dog\n\nthe cat\tthe dog\tKatze\t\n"))
    assert probe_inputs.read_minimal_pairs(path) == [
        MinimalPair("a cat", "a dog"),
        MinimalPair("the cat", "the dog", "Katze", ""),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a\tb\nonly one", r":2: found \['only one'\]; a pair is two .* tabs between them"),
        ("a\tb\tc", r":1: found \['a', 'b', 'c'\]"),
        ("a\t ", r":1: found \['a', ''\]"),
        ("a\ta", r":1: found \['a', 'a'\]; a pair is two different sources"),
        ("\n \n", "all lines are blank"),
    ],
)
def test_a_wrong_file_of_minimal_pairs_is_refused_with_its_line(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=found):
        probe_inputs.read_minimal_pairs(path)


def test_neutral_sources_come_one_by_one_or_from_templates_and_items(tmp_path: Path) -> None:
    listed, templates, items = tmp_path / "list.tsv", tmp_path / "templates.txt", tmp_path / "items.txt"
    listed.write_text("Dia jururawat\tnurse\nDia {}\tdoktor\n", encoding="utf-8")
    templates.write_text("Dia bekerja sebagai {}.\nDia {}\n", encoding="utf-8")
    items.write_text("jururawat\n\ndoktor\n", encoding="utf-8")
    assert probe_inputs.read_neutral_sources(listed) == [
        NeutralSource("Dia jururawat", "nurse"),
        NeutralSource("Dia doktor", "doktor"),
    ]
    assert probe_inputs.read_neutral_sources(templates, items) == [
        NeutralSource("Dia bekerja sebagai jururawat.", "jururawat"),
        NeutralSource("Dia bekerja sebagai doktor.", "doktor"),
        NeutralSource("Dia jururawat", "jururawat"),
        NeutralSource("Dia doktor", "doktor"),
    ]
    with pytest.raises(DataError, match=r"templates.txt:1: found \['Dia bekerja.*a tab between them, or templates"):
        probe_inputs.read_neutral_sources(templates)
    with pytest.raises(DataError, match=r"list.tsv:1: found no \{\}"):
        probe_inputs.read_neutral_sources(listed, items)


# -- on models ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["transformer", "rnn", "no_attention"])
def test_a_model_is_probed_and_the_counts_are_those_of_its_own_predictions(
    name: str, request: pytest.FixtureRequest
) -> None:
    pipeline: Pipeline = request.getfixturevalue(name)
    made = probe_inputs.sample_sources(pipeline.codec, 30)
    pairs, neutral = [("a b", "b a"), ("a a", "b b", "zzz", "")], [("a bee", "bee"), ("a b", "bee"), ("b", "b")]
    value = run_probes(pipeline, minimal_pairs=pairs, neutral=neutral, count=30, beam=2, pronouns="a,b,~c")
    assert json.loads(json.dumps(value, allow_nan=False)) == value
    assert value["view"] == "probes"
    checks = {check["name"]: check for check in value["checks"]}
    assert list(checks) == list(probes.LIMITS)
    outputs = pipeline.predict(made, beam=2)
    assert (checks["empty"]["of"], checks["babble"]["of"]) == (30, 32)
    assert checks["length"]["count"] == sum(output.finish_reason == "length" for output in outputs)
    assert checks["empty"]["count"] == sum(not output.text.strip() for output in outputs)
    assert checks["copying"]["count"] == sum(
        probes.is_similar(output.text, source) for output, source in zip(outputs, made, strict=True)
    )
    assert (checks["pairs"]["of"], checks["neutral"]["of"]) == (2, 2)
    first, second = pipeline.predict(["a b", "b a"], beam=2)
    assert checks["pairs"]["count"] == 1 + (first.text == second.text)
    assert [row[0] for row in checks["neutral"]["table"]["rows"]] == ["bee", "b"]
    assert run_probes(pipeline, minimal_pairs=pairs, neutral=neutral, count=30, beam=2, pronouns="a,b,~c") == value


def test_given_sources_and_references_replace_sampled_ones(rnn: Pipeline) -> None:
    texts = ["abc", " ", "dde", "hgf", "a b"]
    outputs = rnn.predict(texts, beam=1)
    examples = [Example(text, output.text) for text, output in zip(texts, outputs, strict=True)]
    checks = {check["name"]: check for check in run_probes(rnn, sources=examples, beam=1, count=4)["checks"]}
    assert checks["copying"]["of"] == 3  # the first four without the blank one
    assert "pairs" not in checks
    assert checks["length"]["count"] == sum(output.finish_reason == "length" for output in outputs[:4])
    ratios = sorted((len(o.tokens) + 1) / len(o.source_tokens) for o in outputs if o.finish_reason != "empty_source")
    cases = [(Example(text, one.text), one) for text, one in zip(texts, outputs, strict=True) if text.strip()]
    found = probes.median_length_ratio(rnn, cases)
    assert ratios[1] <= found <= ratios[2]
    with pytest.raises(UserError, match="all sources are blank"):
        run_probes(rnn, sources=["", " "])
    with pytest.raises(UserError, match="at least 1"):
        run_probes(rnn, count=0)
    with pytest.raises(UserError, match="two different sources"):
        run_probes(rnn, minimal_pairs=[("a", "a")])
    with pytest.raises(UserError, match="a source and the item"):
        run_probes(rnn, neutral=[("a",)])


def test_models_without_an_output_to_probe_are_refused(language_model: Pipeline, classifier: Pipeline) -> None:
    with pytest.raises(UserError, match="language model"):
        run_probes(language_model)
    with pytest.raises(UserError, match="labels"):
        run_probes(classifier)


def test_a_model_of_several_languages_needs_a_target_language() -> None:
    value = {
        "data": {"train": "nowhere.tsv"},
        "model": {"width": 16, "encoder": {"name": "rnn"}, "decoder": {"name": "rnn"}},
        "generation": {"max_length_extra": 3, "max_length_ratio": 1.0},
    }
    config = configs.validate(value, "a test")
    part = config.tokenizer.source
    codec = learn_codec(part, part, False, "nfc", ["abcd"], ["abcd"], ["<to:de>", "<to:fr>"])
    model = configs.build_model(config, len(codec.source), len(codec.target))
    pipeline = Pipeline(model, codec, config, torch.device("cpu"))
    with pytest.raises(UserError, match="de, fr; choose one"):
        run_probes(pipeline, count=3)
    assert run_probes(pipeline, count=3, target_lang="de")["checks"][0]["of"] == 3
    tagged = run_probes(pipeline, sources=[Example("abc", target_lang="fr")])  # so are the degenerate sources, then
    assert tagged == run_probes(pipeline, sources=["abc"], target_lang="fr")
