"""What is asked of results holds for every search and each source by itself, and costs no better result that fits.

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

from dragoman import config as configs
from dragoman.core.errors import UserError
from dragoman.core.registry import Part
from dragoman.core.types import EOS, UNK
from dragoman.inference.constraints import Constraints
from dragoman.inference.pipeline import Pipeline, Prediction
from dragoman.text import codec as codecs

SOURCES = ["ab", "c", "bca", "aacb"]
LONGEST = 4
EVERY = Part("exhaustive", {"size": 2000, "length": Part("none")})
WIDE = Part("beam", {"size": 400, "length": Part("none"), "stop": "exact"})


@cache
def tiny(*, tokenizer: str = "characters", texts: tuple[str, ...] = ("abc",), spread: float = 1.0) -> Pipeline:
    """A model with random weights whose results are short; what it says is spread over everything there is."""
    value: Any = {
        "data": {"train": "nowhere.tsv"},
        "tokenizer": {"joint": False, "source": tokenizer},
        "model": {"width": 8, "tie": "none", "encoder": "rnn", "decoder": "rnn"},
        "generation": {"ratio": 1.0, "extra": LONGEST, "unknown": False},
    }
    config = configs.validate(value, "a test")
    codec = codecs.learn(config.tokenizer.source, config.tokenizer.source, False, "nfc", texts, texts, [])
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
    longest = Constraints(longest=LONGEST)
    found = results(tiny().predict([source], search=EVERY, nbest=2000, constraints=longest)[0])
    assert len([one for one in found if one.finish_reason == "eos"]) == sum(3**n for n in range(LONGEST + 1))
    return found


Asked = tuple[Constraints, Callable[[str], bool]]
ASKED: dict[str, Asked] = {
    "prefix": (Constraints(prefix="ca", longest=LONGEST), lambda text: text.startswith("ca")),
    "forbid": (Constraints(forbid=("a", "cb"), longest=LONGEST), lambda text: "a" not in text and "cb" not in text),
    "require": (Constraints(require=("ac", "b"), longest=LONGEST), lambda text: "ac" in text and "b" in text),
    "ordered": (
        Constraints(require=("b", "ac"), ordered=True, longest=LONGEST),
        lambda text: re.search("b.*ac", text) is not None,
    ),
    "choices": (Constraints(choices=("abc", "cc", "b"), longest=LONGEST), lambda text: text in {"abc", "cc", "b"}),
    "pattern": (
        Constraints(pattern="(ab|c[bc])+b?", longest=LONGEST),
        lambda text: re.fullmatch("(ab|c[bc])+b?", text) is not None,
    ),
    "lengths": (Constraints(shortest=2, longest=3), lambda text: 2 <= len(text) <= 3),
    "several": (
        Constraints(prefix="b", require=("c",), forbid=("bc",), pattern="[ab]*c+[ab]*", longest=LONGEST),
        lambda text: re.fullmatch("b(?!c)[ab]*c+[ab]*", text) is not None and "bc" not in text,
    ),
}


@pytest.mark.parametrize("search", [EVERY, WIDE], ids=["exhaustive", "beam"])
@pytest.mark.parametrize("name", ASKED)
def test_the_best_result_under_constraints_is_the_best_of_all_results_that_keep_to_them(
    name: str, search: Part
) -> None:
    asked, holds = ASKED[name]
    for source, found in zip(SOURCES, tiny().predict(SOURCES, search=search, constraints=asked), strict=True):
        expected = next(one for one in every_result(source) if one.finish_reason == "eos" and holds(one.text))
        assert found.text == expected.text
        assert found.log_prob == pytest.approx(expected.log_prob, abs=1e-5)  # nothing is renormalized


@pytest.mark.parametrize(
    "search",
    [Part("greedy"), Part("beam"), Part("sample", {"size": 4}), Part("diverse")],
    ids=lambda part: part.name,
)
@pytest.mark.parametrize("name", ASKED)
def test_every_search_keeps_to_what_is_asked(name: str, search: Part) -> None:
    asked, holds = ASKED[name]
    if asked.require and search.name in ("greedy", "sample"):
        with pytest.raises(UserError, match=f"required phrases need a beam, and the search is '{search.name}'"):
            tiny().predict(SOURCES, search=search, constraints=asked)
        return
    nbest = 1 if search.name == "greedy" else 4
    found = [one for p in tiny().predict(SOURCES, search=search, nbest=nbest, constraints=asked) for one in results(p)]
    ended = [one for one in found if one.finish_reason == "eos"]
    assert len(ended) >= len(found) / 4  # what is cut at the longest length may not be whole
    assert all(holds(one.text) for one in ended)


def test_no_run_of_tokens_comes_twice_where_that_is_asked_and_unknown_tokens_only_where_they_may() -> None:
    p = tiny(spread=3.0)
    long = Constraints(shortest=8, longest=8)
    for source, plain, other in zip(
        SOURCES,
        p.predict(SOURCES, constraints=long),
        p.with_generation(no_repeat=2).predict(SOURCES, constraints=long),
        strict=True,
    ):
        pairs = [*zip(other.tokens, other.tokens[1:], strict=False)]
        assert len(pairs) == len({*pairs}) == 7, source
        assert plain.log_prob > other.log_prob  # it said something twice by itself
    draws = Part("sample", {"size": 40, "temperature": 3.0})
    for allowed in (True, False):
        (found,) = p.with_generation(unknown=allowed).predict(["ab"], search=draws, nbest=40)
        assert any(UNK in one.ids for one in results(found)) == allowed


# -- by source ---------------------------------------------------------------------------------------------------------


def alone(asked: Sequence[Constraints], search: Part) -> list[Prediction]:
    pairs = zip(SOURCES, asked, strict=True)
    return [tiny().predict([source], search=search, constraints=wish)[0] for source, wish in pairs]


@pytest.mark.parametrize("search", [Part("greedy"), Part("beam")], ids=lambda part: part.name)
def test_each_source_has_constraints_of_its_own_and_its_batch_changes_nothing(search: Part) -> None:
    asked = [
        Constraints(prefix="cc", forbid=("ca", "b")),
        Constraints(choices=("ab", "ba"), longest=3),
        Constraints(pattern="a+b?"),
        Constraints(pattern="(ca)+", choices=("ca", "cab", "caca"), shortest=3),
    ]
    together = tiny().predict(SOURCES, search=search, constraints=asked)
    for one, other in zip(together, alone(asked, search), strict=True):
        assert (one.text, one.finish_reason) == (other.text, other.finish_reason)
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)
    assert together[0].text.startswith("cc")
    assert together[1].text in {"ab", "ba"}
    assert set(together[2].text) <= {"a", "b"}
    assert together[3].text == "caca"


def test_phrases_are_required_of_each_source_by_itself() -> None:
    asked = [Constraints(require=("cc",)), Constraints(), Constraints(require=("ba", "ab")), Constraints(prefix="b")]
    together = tiny().predict(SOURCES, constraints=asked)
    assert [one.text for one in together] == [one.text for one in alone(asked, Part("beam"))]
    assert "cc" in together[0].text
    assert "ba" in together[2].text
    assert "ab" in together[2].text
    phrases = max((("c", "ab"), ("ab", "c")), key=lambda pair: tiny().score([("bca", pair[0] + pair[1])]))
    mixed = [Constraints(require=phrases[::-1], ordered=ordered, longest=3) for ordered in (True, False)]
    one, other = tiny().predict(["bca", "bca"], search=WIDE, constraints=mixed)
    assert (one.text, other.text) == ("".join(phrases[::-1]), "".join(phrases))  # ordered for the first alone


def test_what_is_asked_has_room_whatever_the_source_is() -> None:
    longer = "abc" * 10
    for wish in (Constraints(choices=(longer,)), Constraints(prefix=longer), Constraints(require=(longer,))):
        (found,) = tiny().predict(["a"], constraints=wish)
        assert longer in found.text
    (cut,) = tiny().predict(["a"], constraints=Constraints(prefix=longer, longest=7))  # who asks for both gets less
    assert (cut.text, cut.finish_reason) == (longer[:7], "length")


# -- words, and what cannot be ----------------------------------------------------------------------------------------


def test_a_pattern_is_of_the_text_and_not_of_its_pieces() -> None:
    words = tiny(tokenizer="words", texts=("red dogs see", "a cat", "dogs"))
    search = Part("beam", {"size": 8})
    for pattern in (
        "(red|see) (dogs ?)+",
        "cat",
        "[a-d]+( [a-d]+)*",
    ):  # without the space that a first piece begins with
        (found,) = words.predict(["red cat"], search=search, constraints=Constraints(pattern=pattern, longest=4))
        assert re.fullmatch(pattern, found.text)
        assert found.finish_reason == "eos"
    spaces = tiny(texts=("a b",))
    for pattern, wanted in ((" a", " a"), ("a", "a")):  # where a space is a letter like any other
        (found,) = spaces.predict(["a"], search=search, constraints=Constraints(pattern=pattern))
        assert found.text == wanted


def test_where_nothing_keeps_to_what_is_asked_the_result_is_empty_and_says_so() -> None:
    fits, stuck = tiny().predict(["ab", "ab"], constraints=[Constraints(), Constraints(pattern="x+")])
    assert fits.finish_reason != "no_valid_token"
    assert (stuck.text, stuck.tokens, stuck.finish_reason, stuck.score) == ("", [], "no_valid_token", -math.inf)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (lambda: Constraints(require="ab"), "require is a list of texts"),  # type: ignore[arg-type]
        (lambda: Constraints(forbid="ab"), "forbid is a list"),  # type: ignore[arg-type]
        (lambda: Constraints(shortest=-1), "shortest length is -1; it must be 0 or more"),
        (lambda: Constraints(longest=0), "longest length is 0; it must be at least 1"),
        (lambda: Constraints(shortest=5, longest=4), "longest length is 4; it must be at least the shortest, 5"),
        (lambda: Constraints(prefix="ax"), "'ax' holds something that the model's vocabulary lacks"),
        (lambda: Constraints(choices=("ab", "x")), "'x' holds"),
        (lambda: Constraints(require=("",)), "required phrase is empty"),
        (lambda: Constraints(forbid=("",)), "forbidden phrase is empty"),
        (lambda: Constraints(pattern="(a"), r"'\(a' is no regular expression"),
        (lambda: Constraints(pattern="a+?b"), "'a\\+\\?b' has"),
        (lambda: [Constraints(), Constraints()], "1 sources and 2 sets"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(asked: Callable[[], Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        tiny().predict(["ab"], constraints=asked())


def test_what_the_vocabulary_lacks_may_be_forbidden() -> None:
    p, draws = tiny(spread=3.0).with_generation(unknown=True), Part("sample", {"size": 40, "temperature": 3.0})
    asked = (None, Constraints(forbid=("x", "axb")))
    plain, other = (p.predict(["ab"], search=draws, nbest=40, constraints=wish)[0] for wish in asked)
    assert [one.ids for one in results(plain)] == [one.ids for one in results(other)]
    assert any(UNK in one.ids for one in results(other))  # <unk> stands for many words, not for the forbidden one


def test_a_stream_with_too_few_constraints_says_so_and_loses_no_source_in_silence() -> None:
    asked = [Constraints(prefix="c")] * (len(SOURCES) - 1)
    with pytest.raises(UserError, match="more sources than sets of constraints"):
        list(tiny().stream(iter(SOURCES), constraints=asked))
    with pytest.raises(UserError, match="sets of constraints"):
        tiny().predict(SOURCES, constraints=asked)


@pytest.mark.parametrize("search", ["greedy", "sample", "diverse", "exhaustive"])
def test_a_trace_is_refused_where_the_search_keeps_none(search: str) -> None:
    with pytest.raises(UserError, match=f"a trace is of a beam, and the search is '{search}'"):
        tiny().predict(SOURCES, search=Part(search), trace=True)
