"""The lecture's merges by hand, learning against a plain recount, and splits against the tokenizers they explain."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.registry import Part
from dragoman.text.bpe_trace import (
    Merge,
    bracket_symbols,
    count_words,
    explain_split,
    initial_symbols,
    learn_merges,
    merge_pair,
    trace_split,
)
from dragoman.text.tokenizers import tokenizers

COUNTS = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
TEXT = "low lower newest widest"
CORPUS = ["low lower lowest newer wider new slower", "aaaa aaa aa a banana bananas", "naïve café 東京都 東京"] * 3


def mark_merges(text: str, merges: list[Merge]) -> str:
    return " ".join(bracket_symbols(trace_split(word, merges)[-1].symbols) for word in text.split())


def test_the_first_merges_of_the_lecture() -> None:
    found = learn_merges(COUNTS, merges=6)
    assert [(merge.pair, merge.times) for merge in found] == [
        (("e", "s"), 9),
        (("es", "t"), 9),
        (("est", "</w>"), 9),
        (("l", "o"), 7),
        (("lo", "w"), 7),
        (("n", "e"), 6),  # like (e, w) and (w, est</w>), but seen before them
    ]
    assert [merge.size for merge in found] == [13, 14, 15, 16, 17, 18]
    before = 5 * 4 + 2 * 6 + 6 * 7 + 3 * 7
    assert [merge.ratio for merge in found[:2]] == [before / (before - 9), before / (before - 18)]


def test_twelve_symbols_become_thirteen_with_es_and_the_text_shows_it() -> None:
    assert count_words([TEXT]) == dict.fromkeys(TEXT.split(), 1)
    symbols = initial_symbols(count_words([TEXT]))
    assert sorted(symbols) == sorted([*"lowernstid", " ", "</w>"])
    assert len(symbols) == 12
    (es,) = learn_merges(COUNTS, merges=1)
    assert (es.symbol, es.size) == ("es", 13)
    assert mark_merges(TEXT, [es]) == "low lower new<es>t wid<es>t"
    assert mark_merges(TEXT, learn_merges(COUNTS, merges=4)) == "<lo>w <lo>wer new<est</w>> wid<est</w>>"


def test_of_words_that_occur_once_each_the_pair_seen_first_merges() -> None:
    twice = {pair for pair, n in recount([[*word, "</w>"] for word in TEXT.split()], [1] * 4).items() if n == 2}
    assert twice == {("l", "o"), ("o", "w"), ("w", "e"), ("e", "s"), ("s", "t"), ("t", "</w>")}
    assert learn_merges(count_words([TEXT]), merges=1)[0].pair == ("l", "o")


def test_a_word_is_split_merge_by_merge() -> None:
    steps = trace_split("lowest", learn_merges(COUNTS, merges=5))
    assert [(step.number, step.pair, " ".join(step.symbols)) for step in steps] == [
        (0, None, "l o w e s t </w>"),
        (1, ("e", "s"), "l o w es t </w>"),
        (2, ("es", "t"), "l o w est </w>"),
        (3, ("est", "</w>"), "l o w est</w>"),
        (4, ("l", "o"), "lo w est</w>"),
        (5, ("lo", "w"), "low est</w>"),
    ]
    assert [step.number for step in trace_split("xs", learn_merges(COUNTS))] == [0]


def test_learning_stops_at_a_size_a_ratio_or_when_every_word_is_one_symbol() -> None:
    assert [merge.size for merge in learn_merges(COUNTS, size=15)] == [13, 14, 15]
    assert learn_merges(COUNTS, size=12) == []
    by_ratio = learn_merges(COUNTS, ratio=1.2)
    assert by_ratio[-2].ratio < 1.2 <= by_ratio[-1].ratio
    assert learn_merges(COUNTS, size=15, merges=2) == learn_merges(COUNTS, merges=2)
    everything = learn_merges(COUNTS)
    assert [trace_split(word, everything)[-1].symbols for word in COUNTS] == [[f"{word}</w>"] for word in COUNTS]
    assert learn_merges({}) == []


def recount(words: list[list[str]], times: list[int]) -> Counter[tuple[str, str]]:
    """Sennrich et al. 2016: all pairs of all words counted anew; a dict keeps the order in which they were seen."""
    found: Counter[tuple[str, str]] = Counter()
    for word, n in zip(words, times, strict=True):
        for pair in pairwise(word):
            found[pair] += n
    return found


@given(counts=st.dictionaries(st.text("abc", min_size=1, max_size=7), st.integers(1, 3), max_size=8))
def test_learning_equals_counting_all_pairs_anew_for_every_merge(counts: dict[str, int]) -> None:
    words = [[*word, "</w>"] for word in counts]
    times = list(counts.values())
    longest = sum(n * len(word) for word, n in zip(words, times, strict=True))
    symbols = {" ", "</w>", *"".join(counts)}
    expected = []
    while found := recount(words, times):
        pair = max(found, key=lambda pair: found[pair])  # the first of equals
        words = [merge_pair(word, pair) for word in words]
        symbols.add("".join(pair))
        length = sum(n * len(word) for word, n in zip(words, times, strict=True))
        expected.append(Merge(pair, found[pair], len(symbols), longest / length))
    assert learn_merges(counts) == expected


def test_pairs_that_overlap_join_from_left_to_right() -> None:
    assert merge_pair(list("aaaaa"), ("a", "a")) == ["aa", "aa", "a"]
    assert merge_pair(list("abab"), ("b", "a")) == ["a", "ba", "b"]


# -- tokenizers --------------------------------------------------------------------------------------------------------

BPE, UNIGRAM = (tokenizers.build(Part(kind, {"size": 330})) for kind in ("bpe", "unigram"))
for _tokenizer in (BPE, UNIGRAM):
    _tokenizer.learn(CORPUS)
WORDS = st.one_of(st.sampled_from(" ".join(CORPUS).split()), st.text("lowernabi 東京x", max_size=12))


@given(text=WORDS)
def test_the_merges_of_a_bpe_model_lead_step_by_step_to_its_pieces(text: str) -> None:
    found = explain_split(BPE, text)
    assert found.pieces == BPE.pieces(BPE.encode(text))
    assert found.steps is not None
    assert all(len(symbol) == 1 for symbol in found.steps[0].symbols)
    for before, after in pairwise(found.steps):
        assert after.pair is not None
        assert len(after.symbols) == len(before.symbols) - 1
        assert "".join(after.symbols) == "".join(before.symbols)
        assert "".join(after.pair) in after.symbols


def test_a_bpe_model_says_which_of_its_merges_were_used() -> None:
    learned = tokenizers.build(Part("bpe", {"size": 300}))
    learned.learn(["ab ab ab abc"])
    steps = explain_split(learned, "abc").steps
    assert steps is not None
    assert "".join(steps[-1].symbols) == "▁abc"
    assert [step.number for step in steps][:2] == [0, 1]
    assert steps[1].pair in (("a", "b"), ("▁", "a"))


@given(text=WORDS)
def test_a_unigram_model_shows_the_most_probable_split(text: str) -> None:
    found = explain_split(UNIGRAM, text)
    assert found.scores is not None
    assert len(found.scores) == len(found.pieces)
    if None in found.scores or not text:
        return  # bytes have no probability
    whole = "".join(found.pieces)
    best = [0.0] + [float("-inf")] * len(whole)
    for end in range(1, len(whole) + 1):
        for start in range(end):
            score = UNIGRAM.scores.get(whole[start:end])  # type: ignore[attr-defined]
            if score is not None:
                best[end] = max(best[end], best[start] + score)
    assert sum(filter(None, found.scores)) == pytest.approx(best[-1], abs=1e-4)


@pytest.mark.parametrize(("kind", "pieces"), [("characters", ["a", "␣", "b"]), ("words", ["▁a", "▁b"])])
def test_other_tokenizers_show_their_pieces(kind: str, pieces: list[str]) -> None:
    tokenizer = tokenizers.build(Part(kind))
    tokenizer.learn(["a b"])
    assert explain_split(tokenizer, "a b") == ("a b", pieces, None, None)
