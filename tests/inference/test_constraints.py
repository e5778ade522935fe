"""Constraints hold for every search and each source by itself, and cost no better output that fits.

The truth is a list of every result there is, with what the model says of each, and a plain question asked of its text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.core.errors import UserError
from dragoman.core.generation import GenerationOptions, fields_of
from dragoman.core.registry import Part
from dragoman.core.types import EOS, UNK
from dragoman.inference.pipeline import Pipeline
from dragoman.inference.prediction import Prediction
from dragoman.search import uses_field

SOURCES = ["ab", "c", "bca", "aacb"]
LONGEST = 4
EVERY = GenerationOptions(search=Part("exhaustive"), beam=2000, length_rule=Part("none"))
WIDE = GenerationOptions(search=Part("beam"), beam=400, length_rule=Part("none"), early_stopping="never")
GREEDY, BEAM, SAMPLE, DIVERSE = (
    GenerationOptions(search=search)
    for search in (Part("greedy"), Part("beam"), Part("sample", {"num_samples": 4}), Part("diverse"))
)
SAMPLES = GenerationOptions(search=Part("sample"), num_samples=40, temperature=3.0, nbest=40)


@cache
def tiny(*, tokenizer: str = "characters", texts: tuple[str, ...] = ("abc",), spread: float = 1.0) -> Pipeline:
    """A model with random weights whose results are short; what it says is spread over everything there is."""
    value: Any = {
        "data": {"train": "nowhere.tsv"},
        "tokenizer": {"joint": False, "source": tokenizer},
        "model": {"width": 8, "tie": "none", "encoder": "rnn", "decoder": "rnn"},
        "generation": {"max_length_ratio": 1.0, "max_length_extra": LONGEST, "allow_unk": False},
    }
    config = configs.validate(value, "a test")
    codec = learn_codec(config.tokenizer.source, config.tokenizer.source, False, "nfc", texts, texts, [])
    torch.manual_seed(5)
    model = configs.build_model(config, len(codec.source), len(codec.target))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(spread)
        model.output.bias[EOS] += 0.5
    return Pipeline(model, codec, config, torch.device("cpu"))


def results(prediction: Prediction) -> list[Prediction]:
    return [prediction, *prediction.alternatives]


@cache
def every_result(source: str) -> list[Prediction]:
    """All texts of up to LONGEST letters, best first."""
    options = EVERY.merge(GenerationOptions(max_new_tokens=LONGEST))
    found = results(tiny().predict([source], options, nbest=2000)[0])
    assert len([one for one in found if one.finish_reason == "eos"]) == sum(3**n for n in range(LONGEST + 1))
    return found


CONSTRAINTS: dict[str, tuple[GenerationOptions, Callable[[str], bool]]] = {
    "prefix": (GenerationOptions(prefix="ca", max_new_tokens=LONGEST), lambda text: text.startswith("ca")),
    "forbid": (
        GenerationOptions(forbid_phrases=("a", "cb"), max_new_tokens=LONGEST),
        lambda text: "a" not in text and "cb" not in text,
    ),
    "require": (
        GenerationOptions(force_phrases=("ac", "b"), max_new_tokens=LONGEST),
        lambda text: "ac" in text and "b" in text,
    ),
    "ordered": (
        GenerationOptions(force_phrases=("b", "ac"), force_phrases_ordered=True, max_new_tokens=LONGEST),
        lambda text: re.search("b.*ac", text) is not None,
    ),
    "choices": (
        GenerationOptions(choices=("abc", "cc", "b"), max_new_tokens=LONGEST),
        lambda text: text in {"abc", "cc", "b"},
    ),
    "pattern": (
        GenerationOptions(pattern="(ab|c[bc])+b?", max_new_tokens=LONGEST),
        lambda text: re.fullmatch("(ab|c[bc])+b?", text) is not None,
    ),
    "lengths": (GenerationOptions(min_new_tokens=2, max_new_tokens=3), lambda text: 2 <= len(text) <= 3),
    "several": (
        GenerationOptions(
            prefix="b", force_phrases=("c",), forbid_phrases=("bc",), pattern="[ab]*c+[ab]*", max_new_tokens=LONGEST
        ),
        lambda text: re.fullmatch("b(?!c)[ab]*c+[ab]*", text) is not None and "bc" not in text,
    ),
}


@pytest.mark.parametrize("search", [EVERY, WIDE], ids=["exhaustive", "beam"])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_the_best_result_under_constraints_is_the_best_of_all_results_that_keep_to_them(
    name: str, search: GenerationOptions
) -> None:
    asked, holds = CONSTRAINTS[name]
    for source, found in zip(SOURCES, tiny().predict(SOURCES, search.merge(asked)), strict=True):
        expected = next(one for one in every_result(source) if one.finish_reason == "eos" and holds(one.text))
        assert found.text == expected.text
        assert found.log_prob == pytest.approx(expected.log_prob, abs=1e-5)  # nothing is renormalized


@pytest.mark.parametrize(
    "search",
    [GREEDY, BEAM, SAMPLE, DIVERSE],
    ids=lambda options: options.search.name,
)
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_every_search_obeys_constraints(name: str, search: GenerationOptions) -> None:
    asked, holds = CONSTRAINTS[name]
    kind = search.search.name
    if asked.force_phrases and kind in ("greedy", "sample"):
        with pytest.raises(UserError, match=f"force_phrases needs a beam search, and the search is '{kind}'"):
            tiny().predict(SOURCES, search.merge(asked))
        return
    nbest = 1 if kind == "greedy" else 4
    found = [one for p in tiny().predict(SOURCES, search.merge(asked), nbest=nbest) for one in results(p)]
    ended = [one for one in found if one.finish_reason == "eos"]
    assert len(ended) >= len(found) / 4  # what is cut at the longest length may not be whole
    assert all(holds(one.text) for one in ended)


def test_no_run_of_tokens_comes_twice_where_that_is_asked_and_unknown_tokens_only_where_they_may() -> None:
    p = tiny(spread=3.0)
    long = GenerationOptions(min_new_tokens=8, max_new_tokens=8)
    no_repeat = long.merge(GenerationOptions(no_repeat_ngram_size=2))
    for source, plain, other in zip(SOURCES, p.predict(SOURCES, long), p.predict(SOURCES, no_repeat), strict=True):
        pairs = [*zip(other.tokens, other.tokens[1:], strict=False)]
        assert len(pairs) == len({*pairs}) == 7, source
        assert plain.log_prob > other.log_prob  # it said something twice by itself
    for allowed in (True, False):
        (found,) = p.predict(["ab"], SAMPLES.merge(GenerationOptions(allow_unk=allowed)))
        assert any(UNK in one.ids for one in results(found)) == allowed


# -- by source ---------------------------------------------------------------------------------------------------------


def alone(options: Sequence[GenerationOptions]) -> list[Prediction]:
    return [tiny().predict([source], own)[0] for source, own in zip(SOURCES, options, strict=True)]


@pytest.mark.parametrize("search", [GREEDY, BEAM], ids=lambda options: options.search.name)
def test_each_source_has_constraints_of_its_own_and_its_batch_changes_nothing(search: GenerationOptions) -> None:
    asked = [
        GenerationOptions(prefix="cc", forbid_phrases=("ca", "b")),
        GenerationOptions(choices=("ab", "ba"), max_new_tokens=3),
        GenerationOptions(pattern="a+b?"),
        GenerationOptions(pattern="(ca)+", choices=("ca", "cab", "caca"), min_new_tokens=3),
    ]
    options = [search.merge(own) for own in asked]
    together = tiny().predict(SOURCES, options)
    for one, other in zip(together, alone(options), strict=True):
        assert (one.text, one.finish_reason) == (other.text, other.finish_reason)
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)
    assert together[0].text.startswith("cc")
    assert together[1].text in {"ab", "ba"}
    assert set(together[2].text) <= {"a", "b"}
    assert together[3].text == "caca"


def test_phrases_are_forced_for_each_source_by_itself() -> None:
    asked = [
        GenerationOptions(force_phrases=("cc",)),
        GenerationOptions(),
        GenerationOptions(force_phrases=("ba", "ab")),
        GenerationOptions(prefix="b"),
    ]
    together = tiny().predict(SOURCES, asked)
    assert [one.text for one in together] == [one.text for one in alone(asked)]
    assert "cc" in together[0].text
    assert "ba" in together[2].text
    assert "ab" in together[2].text
    phrases = max((("c", "ab"), ("ab", "c")), key=lambda pair: tiny().score([("bca", pair[0] + pair[1])]))
    forced = GenerationOptions(force_phrases=phrases[::-1], max_new_tokens=3)
    mixed = [WIDE.merge(forced).merge(GenerationOptions(force_phrases_ordered=ordered)) for ordered in (True, False)]
    one, other = tiny().predict(["bca", "bca"], mixed)
    assert (one.text, other.text) == ("".join(phrases[::-1]), "".join(phrases))  # ordered for the first alone


def test_an_output_has_room_for_its_constraints_however_short_the_source_is() -> None:
    longer = "abc" * 10
    for options in (
        GenerationOptions(choices=(longer,)),
        GenerationOptions(prefix=longer),
        GenerationOptions(force_phrases=(longer,)),
    ):
        (found,) = tiny().predict(["a"], options)
        assert longer in found.text
    (cut,) = tiny().predict(["a"], GenerationOptions(prefix=longer, max_new_tokens=7))  # a limit that is set holds
    assert (cut.text, cut.finish_reason) == (longer[:7], "length")


def test_options_differ_between_sources_in_lengths_and_constraints_and_not_in_the_search() -> None:
    values: dict[str, Any] = {
        "max_new_tokens": 2,
        "min_new_tokens": 3,
        "max_length_ratio": 0.5,
        "max_length_extra": 1,
        "min_length_ratio": 1.0,
        "prefix": "ca",
        "force_phrases": ("cc",),
        "forbid_phrases": ("a", "b"),
        "choices": ("ab", "ba"),
        "pattern": "[ab]+",
        "no_repeat_ngram_size": 1,
        "repetition_penalty": 5.0,
        "allow_unk": True,
    }
    assert {*values, "force_phrases_ordered"} == set(fields_of("length", "constraint"))
    options = [GenerationOptions(), *(GenerationOptions(**{name: value}) for name, value in values.items())]
    together = tiny().predict(["bca"] * len(options), options, beam=4, nbest=2)
    for found, own in zip(together, options, strict=True):
        (expected,) = tiny().predict(["bca"], own, beam=4, nbest=2)
        assert [one.text for one in results(found)] == [one.text for one in results(expected)]
    assert len({found.text for found in together}) > 5
    for name in [*fields_of("output"), *(name for name in fields_of("search") if uses_field("beam", name))]:
        changed: dict[str, Any] = {"search": Part("greedy"), "mbr": Part("chrf"), "length_rule": Part("none")}
        value = changed.get(
            name, {"finished_policy": "shrink", "early_stopping": "never", "patience": 1.5}.get(name, 0.5)
        )
        value = 3 if name in ("beam", "nbest") else True if name == "replace_unk" else value
        with pytest.raises(UserError, match=f"{name} differs between sources; only lengths and constraints may differ"):
            tiny().predict(["a", "b"], [GenerationOptions(), GenerationOptions(**{name: value})])


# -- words, and what cannot be ----------------------------------------------------------------------------------------


def test_a_pattern_is_of_the_text_and_not_of_its_pieces() -> None:
    words = tiny(tokenizer="words", texts=("red dogs see", "a cat", "dogs"))
    for pattern in (
        "(red|see) (dogs ?)+",
        "cat",
        "[a-d]+( [a-d]+)*",
    ):  # without the space that a first piece begins with
        (found,) = words.predict(["red cat"], GenerationOptions(beam=8, pattern=pattern, max_new_tokens=4))
        assert re.fullmatch(pattern, found.text)
        assert found.finish_reason == "eos"
    spaces = tiny(texts=("a b",))
    for pattern, wanted in ((" a", " a"), ("a", "a")):  # where a space is a letter like any other
        (found,) = spaces.predict(["a"], GenerationOptions(beam=8, pattern=pattern))
        assert found.text == wanted


def test_where_no_output_obeys_the_constraints_the_result_is_empty_and_says_so() -> None:
    fits, stuck = tiny().predict(["ab", "ab"], [GenerationOptions(), GenerationOptions(pattern="x+")])
    assert fits.finish_reason != "no_valid_token"
    assert (stuck.text, stuck.tokens, stuck.finish_reason, stuck.score) == ("", [], "no_valid_token", -math.inf)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"force_phrases": "ab"},
            "force_phrases\n  Input should be a valid tuple",
        ),  # whose letters would be the phrases
        ({"forbid_phrases": "ab"}, "forbid_phrases\n  Input should be a valid tuple"),
        ({"choices": "ab"}, "choices\n  Input should be a valid tuple"),
        ({"min_new_tokens": -1}, "min_new_tokens\n  Input should be greater than or equal to 0"),
        ({"max_new_tokens": 0}, "max_new_tokens\n  Input should be greater than 0"),
        ({"force_phrases": ("",)}, "force_phrases.0\n  String should have at least 1 character"),
        ({"forbid_phrases": ("",)}, "forbid_phrases.0\n  String should have at least 1 character"),
        ({"repetition_penalty": 0.5}, "repetition_penalty\n  Input should be greater than or equal to 1"),
        ({"require": ("a",)}, "require\n  Extra inputs are not permitted"),
    ],
)
def test_options_of_a_wrong_type_are_refused_with_their_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        GenerationOptions(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            GenerationOptions(min_new_tokens=5, max_new_tokens=4),
            "max_new_tokens is 4; it must be at least min_new_tokens, 5",
        ),
        (GenerationOptions(prefix="ax"), "'ax' is not covered by the model's vocabulary"),
        (GenerationOptions(choices=("ab", "x")), "'x' is not covered"),
        (GenerationOptions(pattern="(a"), r"'\(a' is no regular expression"),
        (GenerationOptions(pattern="a+?b"), "'a\\+\\?b' has"),
        ([GenerationOptions(), GenerationOptions()], "there are 1 sources and 2 options"),
    ],
)
def test_constraints_that_cannot_be_met_are_refused_in_a_sentence(
    options: GenerationOptions | list[GenerationOptions], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        tiny().predict(["ab"], options)


def test_what_the_vocabulary_lacks_may_be_forbidden() -> None:
    p, samples = tiny(spread=3.0), SAMPLES.merge(GenerationOptions(allow_unk=True))
    forbidding = samples.merge(GenerationOptions(forbid_phrases=("x", "axb")))
    plain, other = (p.predict(["ab"], options)[0] for options in (samples, forbidding))
    assert [one.ids for one in results(plain)] == [one.ids for one in results(other)]
    assert any(UNK in one.ids for one in results(other))  # <unk> stands for many words, not for the forbidden one


def test_a_stream_with_too_few_options_says_so_and_loses_no_source_in_silence() -> None:
    options = [GenerationOptions(prefix="c")] * (len(SOURCES) - 1)
    with pytest.raises(UserError, match="4 sources and 3 options"):
        list(tiny().stream(iter(SOURCES), options))
    with pytest.raises(UserError, match="4 sources and 3 options"):
        tiny().predict(SOURCES, options)


@pytest.mark.parametrize("search", ["greedy", "sample", "diverse", "exhaustive"])
def test_a_trace_is_refused_where_the_search_keeps_none(search: str) -> None:
    with pytest.raises(UserError, match=f"trace needs a beam search, and the search is '{search}'"):
        tiny().predict(SOURCES, GenerationOptions(search=Part(search)), trace=True)
