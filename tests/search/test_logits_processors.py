"""Rules against their meaning: what may come next is what a plain sentence about whole sequences says.

Every rule has a predicate on sequences, written with Python's own lists and strings. A sequence that has not ended is
fine if nothing is wrong with it so far; at every fine beginning the rule must allow exactly the tokens after which the
sequence is fine.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, PAD, UNK, Capacity
from dragoman.search import LogitsProcessor, SearchConstraints, output_forms, searches
from dragoman.search.force_phrases import ForcePhrasesProcessor, share_slots
from dragoman.search.logits_processors import (
    ForbidPhrasesProcessor,
    NoRepeatNgramProcessor,
    NoUnkProcessor,
    PrefixProcessor,
    RepetitionPenaltyProcessor,
)
from dragoman.search.output_forms import ChoicesProcessor, PatternProcessor

V = 6
WORDS = (UNK, 4, 5)  # what results are made of here
Tokens = tuple[int, ...]
Predicate = Callable[[Tokens], bool]  # of a beginning, or of a result with </s> as its last token

PIECES = [None, None, None, None, "a", "b"]


def holds(sequence: Tokens, phrase: list[int]) -> bool:
    """Whether a phrase stands somewhere, by way of strings."""
    return "".join(map(str, phrase)) in "".join(map(str, sequence))


def in_order(sequence: Tokens, phrases: list[list[int]]) -> bool:
    pattern = ".*".join("".join(map(str, phrase)) for phrase in phrases)
    return re.search(pattern, "".join(map(str, sequence))) is not None


def starts_like(sequence: Tokens, whole: list[int]) -> bool:
    return list(sequence) == whole[: len(sequence)]


def begins_with(sequence: Tokens, prefix: list[int]) -> bool:
    return starts_like(sequence[: len(prefix)], prefix) and (len(sequence) > len(prefix) or EOS not in sequence)


def no_gram_twice(sequence: Tokens, n: int) -> bool:
    grams = [sequence[i : i + n] for i in range(len(sequence) - n + 1)]
    return len(grams) == len(set(grams))


def ends_with_all(sequence: Tokens, phrases: list[list[int]]) -> bool:
    return EOS not in sequence or all(holds(sequence, phrase) for phrase in phrases)


def ends_in_order(sequence: Tokens, phrases: list[list[int]]) -> bool:
    return EOS not in sequence or in_order(sequence, phrases)


phrase = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3)
some = st.lists(phrase, min_size=1, max_size=3)
few = st.lists(phrase, max_size=3, unique_by=tuple)

# For two sentences: the rule, and what it means for each.
RULES: dict[str, st.SearchStrategy[tuple[LogitsProcessor, list[Predicate]]]] = {
    "prefix": st.tuples(st.just([]) | phrase, phrase).map(
        lambda given: (PrefixProcessor(given), [lambda y, p=p: begins_with(y, p) for p in given])
    ),
    "forbidden": st.tuples(few, some).map(
        lambda given: (
            ForbidPhrasesProcessor(given),
            [lambda y, ps=ps: not any(holds(y, p) for p in ps) for ps in given],
        )
    ),
    "no repeat": st.integers(1, 3).map(lambda n: (NoRepeatNgramProcessor(n), [lambda y: no_gram_twice(y, n)] * 2)),
    "no unknown": st.just((NoUnkProcessor(), [lambda y: UNK not in y] * 2)),
    "trie": st.tuples(st.lists(st.just([]) | phrase, min_size=1, max_size=4), some).map(
        lambda given: (
            ChoicesProcessor(given),
            [lambda y, s=s: any(starts_like(y, [*one, EOS]) for one in s) for s in given],
        )
    ),
    "required": st.tuples(few, few).map(
        lambda given: (ForcePhrasesProcessor(given), [lambda y, ps=ps: ends_with_all(y, ps) for ps in given])
    ),
    "required in order": st.tuples(few, some).map(
        lambda given: (
            ForcePhrasesProcessor(given, ordered=True),
            [lambda y, ps=ps: ends_in_order(y, ps) for ps in given],
        )
    ),
}


def random_log_p(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).log_softmax(-1)


def after(rule: LogitsProcessor, histories: list[list[Tokens]], rows: list[int], seed: int = 0) -> list[list[set[int]]]:
    """What a rule lets come after each history (sentences, hypotheses); the log p of that must be untouched."""
    t = len(histories[0][0])
    log_p = random_log_p(seed, len(histories), len(histories[0]), V)
    before = log_p.clone()
    history = torch.tensor(histories, dtype=torch.long).view(*log_p.shape[:2], t)
    changed = rule(log_p, history, torch.tensor(rows))
    assert torch.equal(log_p, before), "a rule changes a copy"
    may = changed > -math.inf
    assert torch.equal(changed[may], log_p[may])
    return [[{v for v in range(EOS, V) if hypothesis[v]} for hypothesis in sentence] for sentence in may.tolist()]


# -- every rule ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RULES)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_exactly_the_tokens_that_keep_a_beginning_fine_may_come_next(kind: str, data: st.DataObject) -> None:
    rule, fine = data.draw(RULES[kind])
    for row, predicate in enumerate(fine):
        for t in range(5):
            beginnings = [y for y in itertools.product(WORDS, repeat=t) if predicate(y)]
            if beginnings:
                right = [{v for v in (EOS, *WORDS) if predicate((*y, v))} for y in beginnings]
                assert after(rule, [beginnings], [row]) == [right]


@pytest.mark.parametrize("kind", RULES)
@given(data=st.data(), seed=st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_a_beam_wide_enough_finds_exactly_the_results_that_keep_to_a_rule(
    kind: str, data: st.DataObject, seed: int
) -> None:
    rule, fine = data.draw(RULES[kind])
    table = random_log_p(seed, 2, V, V)  # for each sentence, log p of a token after the one before

    def step(tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return table[state.squeeze(1)[:, None], tokens], state

    def start(capacity: Capacity) -> Tensor:
        return torch.arange(2)[:, None]  # which sentence each row is; shared by its hypotheses

    limits = SearchConstraints(torch.tensor([3, 2]), processors=[rule])
    found = searches.build(Part("beam", {"beam": 200, "length_rule": Part("none")}))(step, start, limits)
    for row, (predicate, max_lengths) in enumerate(zip(fine, (3, 2), strict=True)):
        right = [
            (sum(table[row, a, b].item() for a, b in itertools.pairwise((BOS, *y, EOS))), y)
            for n in range(max_lengths + 1)
            for y in itertools.product(WORDS, repeat=n)
            if predicate((*y, EOS)) and all(predicate(y[:i]) for i in range(n + 1))
        ]
        ended = [h for h in found[row] if h.finish_reason == "eos"]
        assert {tuple(h.tokens) for h in ended} == {y for _, y in right}
        assert [h.score for h in ended] == pytest.approx(sorted((total for total, _ in right), reverse=True))


def every_rule() -> Iterator[LogitsProcessor]:
    """For four sentences."""
    yield PrefixProcessor([[4], [], [5, 4, UNK], [4, 4]])
    yield ForbidPhrasesProcessor([[[4, 5], [5]], [], [[4]], [[5, 4, 5]]])
    yield ChoicesProcessor([[[4, 5]], [[]], [[5, 4], [5]], [[4, 4, 4]]])
    yield ForcePhrasesProcessor([[[4, 5]], [], [[4], [5]], [[5, 4, 5]]])
    yield ForcePhrasesProcessor([[[4, 5]], [], [[4], [5]], [[5, 4, 5]]], ordered=True)
    yield from (
        NoRepeatNgramProcessor(2),
        NoUnkProcessor(),
        RepetitionPenaltyProcessor(1.5),
        PatternProcessor("(ab)*a?", PIECES),
    )


@given(seed=st.integers(0, 2**32), t=st.integers(0, 4), stay=st.permutations(range(4)), n=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_what_else_is_in_the_batch_changes_nothing(seed: int, t: int, stay: list[int], n: int) -> None:
    log_p = random_log_p(seed, 4, 3, V)
    history = torch.randint(4, V, (4, 3, t), generator=torch.Generator().manual_seed(seed))
    rows = torch.tensor(stay[:n])
    for rule in every_rule():
        whole = rule(log_p, history, torch.arange(4))
        assert torch.equal(rule(log_p[rows], history[rows], rows), whole[rows])


@given(shared=some, row=st.integers(0, 3), t=st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_a_list_of_one_entry_holds_for_every_sentence(shared: list[list[int]], row: int, t: int) -> None:
    histories = [list(itertools.product(WORDS, repeat=t))]
    for kind in (ForbidPhrasesProcessor, ChoicesProcessor, ForcePhrasesProcessor):
        assert after(kind([shared]), histories, [row]) == after(kind([shared] * 4), histories, [row])
    assert after(PrefixProcessor(shared[:1]), histories, [row]) == after(
        PrefixProcessor(shared[:1] * 4), histories, [row]
    )


@given(seed=st.integers(0, 2**32), t=st.integers(0, 5), penalty=st.floats(1.0, 5.0))
@settings(max_examples=20, deadline=None)
def test_a_repetition_penalty_multiplies_log_p_of_what_was_said_once_however_often(
    seed: int, t: int, penalty: float
) -> None:
    log_p = random_log_p(seed, 2, 3, V)
    log_p[:, :, PAD] = -math.inf
    history = torch.randint(0, V, (2, 3, t), generator=torch.Generator().manual_seed(seed))
    changed = RepetitionPenaltyProcessor(penalty)(log_p, history, torch.arange(2))
    for b, k, v in itertools.product(range(2), range(3), range(V)):
        said = v in history[b, k].tolist()
        assert changed[b, k, v].item() == pytest.approx(log_p[b, k, v].item() * (penalty if said else 1.0))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: PrefixProcessor([[4, EOS]]),
        lambda: ForbidPhrasesProcessor([[[]]]),
        lambda: NoRepeatNgramProcessor(0),
        lambda: RepetitionPenaltyProcessor(0.9),
        lambda: ForcePhrasesProcessor([[[4], [EOS]]]),
        lambda: ChoicesProcessor([[]]),
        lambda: PatternProcessor("a(", PIECES),
        lambda: PatternProcessor("a+?a", PIECES),
        lambda: PatternProcessor("(a)(?=b)", PIECES),
        lambda: PatternProcessor(r"(a)\1", PIECES),
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused(wrong: Callable[[], Any]) -> None:
    with pytest.raises(PartError, match=r"give|leave|allowed are|no regular expression"):
        wrong()


# -- regular expressions -------------------------------------------------------------------------------------------

SURFACES = [None, None, None, None, "a", "b", "1", "ab", "1a", " b", None]
LONGEST = 4  # characters
PATTERNS = [
    "",
    "ab|ba",
    "(a|ab)(b|1a)?",
    "a*b+",
    "[ab]{2,3}1?",
    r"\d\w*",
    r"\w+(\s\w+)?",
    ".{0,2}",
    "(?:a|b)*1",
    "[^a]+a",
    "(ab)*a{0,1}",
    r"[+?]?1|\+?b",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_texts_that_can_be_said_are_exactly_those_that_match(pattern: str) -> None:
    rule = PatternProcessor(pattern, SURFACES)
    texts = ["".join(y) for n in range(LONGEST + 2) for y in itertools.product("ab1 ", repeat=n)]
    matching = {text for text in texts if re.fullmatch(pattern, text)}
    beginnings = {text[:n] for text in matching for n in range(len(text) + 1)}

    def walk(tokens: Tokens, text: str) -> Iterator[Tokens]:
        """Every result the rule lets be said, of at most LONGEST characters."""
        for token in after_pieces(rule, tokens):
            if token == EOS:
                yield tokens
            elif len(longer := text + (SURFACES[token] or "")) <= LONGEST:
                assert longer in beginnings, "what may come next must leave a way to a match"
                yield from walk((*tokens, token), longer)

    def splits(text: str) -> Iterator[Tokens]:
        """Every way to say a text in pieces."""
        if not text:
            yield ()
        for token, piece in enumerate(SURFACES):
            if piece and text.startswith(piece):
                yield from ((token, *rest) for rest in splits(text[len(piece) :]))

    said = list(walk((), ""))
    assert len(said) == len(set(said))
    assert set(said) == {tokens for text in matching if len(text) <= LONGEST for tokens in splits(text)}


def after_pieces(rule: PatternProcessor, tokens: Tokens) -> list[int]:
    log_p = torch.zeros(1, 1, len(SURFACES) + 1)  # one id more than there are pieces
    changed = rule(log_p, torch.tensor([[tokens]], dtype=torch.long).view(1, 1, -1), torch.tensor([0]))
    return (changed[0, 0] > -math.inf).nonzero()[:, 0].tolist()


def test_the_space_of_a_first_word_is_no_text_if_so_asked() -> None:
    pieces = [None, None, None, None, " b", "b", " "]
    history = torch.zeros(1, 1, 0, dtype=torch.long)
    for drop, right in ((True, {4, 5, 6}), (False, {5})):
        changed = PatternProcessor("b b", pieces, drop_space=drop)(torch.zeros(1, 1, 7), history, torch.tensor([0]))
        assert set((changed[0, 0] == 0).nonzero()[:, 0].tolist()) == right


def test_a_pattern_that_takes_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_forms, "MAX_SECONDS", 0.05)
    with pytest.raises(PartError, match="takes longer"):
        after_pieces(PatternProcessor("(a|a)*b", SURFACES), (4,) * 30 + (6,))


# -- required phrases ----------------------------------------------------------------------------------------------

short = st.lists(st.sampled_from((4, 5)), min_size=1, max_size=3)


def told(history: str, phrases: list[str], ordered: bool) -> tuple[int, list[str], str]:
    """By way of strings: tokens of met phrases, phrases that may come next, the part in which one may have begun."""
    if not ordered:
        missing = [p for p in phrases if len(re.findall(f"(?={p})", history)) < phrases.count(p)]
        met = sum(len(p) * min(len(re.findall(f"(?={p})", history)), phrases.count(p)) for p in set(phrases))
        return met, missing, history
    for m in range(len(phrases), -1, -1):
        if found := re.match("".join(f".*?{p}" for p in phrases[:m]), history):
            return sum(map(len, phrases[:m])), phrases[m : m + 1], history[found.end() :]
    raise AssertionError("no phrases always match")


@pytest.mark.parametrize("ordered", [False, True])
@given(phrases=st.lists(short, max_size=3), history=st.lists(st.sampled_from((4, 5, 3)), max_size=8))
@settings(max_examples=150, deadline=None)
def test_progress_counts_what_is_met_and_what_is_begun(
    ordered: bool, phrases: list[list[int]], history: list[int]
) -> None:
    rule = ForcePhrasesProcessor([phrases], ordered=ordered)
    written = ["".join(map(str, p)) for p in phrases]
    met, missing, tail = told("".join(map(str, history)), written, ordered)
    begun = [(n, p) for p in missing for n in range(len(p)) if tail.endswith(p[:n])]
    assert rule.count_met(history, 0) == met + max((n for n, _ in begun), default=0)
    assert rule.count_forced(0) == len("".join(written))
    assert set(rule.next_tokens(history, 0)) == {int(p[n]) for n, p in begun}
    assert len(set(rule.next_tokens(history, 0))) == len(rule.next_tokens(history, 0))
    for token in (3, 4, 5):  # whatever brings it further is wanted
        if rule.count_met([*history, token], 0) > rule.count_met(history, 0):
            assert token in rule.next_tokens(history, 0)
    [[may]] = after(rule, [[tuple(history)]], [0])
    assert (EOS in may) == (rule.count_met(history, 0) == rule.count_forced(0)) == (not missing)


@pytest.mark.parametrize(
    ("phrases", "ordered", "history", "progress", "wanted"),
    [
        ([[7, 8, 7], [8, 7, 9]], False, [], 0, [7, 8]),
        ([[7, 8, 7], [8, 7, 9]], False, [7, 8], 2, [7, 8]),  # 7 goes on with both
        ([[7, 8, 7], [8, 7, 9]], False, [7, 8, 7], 3 + 2, [9, 8]),  # the second has begun inside the first
        ([[7, 8, 7], [8, 7, 9]], False, [7, 8, 7, 9], 6, []),
        ([[7, 8, 7], [8, 7, 9]], True, [7, 8, 7], 3, [8]),  # in order it has not
        ([[7, 8, 7], [8, 7, 9]], True, [7, 8, 7, 9, 8, 7], 3 + 2, [9, 8]),
        ([[7, 8], [8]], True, [8, 7, 8], 2, [8]),  # the first 8 came too early
        ([[7, 7], [7, 7]], False, [7, 7], 2 + 1, [7]),  # given twice: at two places, which may overlap
        ([[7, 7], [7, 7]], False, [7, 7, 7], 4, []),
        ([[7, 7], [7, 7]], True, [7, 7, 7], 2 + 1, [7]),
        ([[7, 8, 9]], False, [7, 8, 5], 0, [7]),  # a phrase that is broken off counts for nothing
    ],
)
def test_progress_by_hand(
    phrases: list[list[int]], ordered: bool, history: list[int], progress: int, wanted: list[int]
) -> None:
    rule = ForcePhrasesProcessor([phrases], ordered=ordered)
    assert rule.count_met(history, 0) == progress
    assert rule.next_tokens(history, 0) == wanted


# -- share_slots -------------------------------------------------------------------------------------------------------


def test_places_are_shared_among_banks_by_hand() -> None:
    totals = [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0]
    progress = [0, 0, 0, 0, 1, 0, 2]
    assert share_slots(totals, progress, 2, 3) == [0, 4, 6, 1, 2, 3, 5]  # one of each
    assert share_slots(totals, progress, 2, 6) == [
        0,
        1,
        2,
        3,
        4,
        6,
        5,
    ]  # what share_slots 1 and 2 cannot fill goes to bank 0
    assert share_slots(totals, progress, 5, 2) == [
        4,
        6,
        0,
        1,
        2,
        3,
        5,
    ]  # fewer places than share_slots: the furthest first
    assert share_slots(totals[:5], [0, 0, 0, 1, 1], 2, 4) == [
        0,
        1,
        3,
        4,
        2,
    ]  # the place left over: to the furthest that can
    assert share_slots(totals[:5], [0, 0, 0, 1, 1], 1, 3) == [0, 3, 4, 1, 2]
    assert share_slots(totals, [0] * 7, 0, 2) == list(range(7))  # nothing is required
    assert share_slots([-math.inf, -1.0], [1, 0], 1, 2)[:1] == [1]  # what cannot be is no candidate


@given(
    candidates=st.lists(st.tuples(st.integers(-20, 0).map(float) | st.just(-math.inf), st.integers(0, 3)), max_size=12),
    size=st.integers(1, 8),
)
@settings(max_examples=150, deadline=None)
def test_each_bank_keeps_its_best_in_places_given_out_one_by_one(
    candidates: list[tuple[float, int]], size: int
) -> None:
    totals, progress = [total for total, _ in candidates], [met for _, met in candidates]
    real = [[total for total, met in candidates if met == bank and total > -math.inf] for bank in range(4)]
    places = [0, 0, 0, 0]
    while sum(places) < min(size, sum(map(len, real))):
        open_banks = [bank for bank in range(4) if places[bank] < len(real[bank])]
        below_share = [bank for bank in open_banks if places[bank] < max(1, size // 4)]
        places[max(below_share or open_banks)] += 1

    order = share_slots(totals, progress, 3, size)
    assert sorted(order) == list(range(len(candidates)))
    kept, rest = order[: sum(places)], order[sum(places) :]
    for bank in range(4):
        best = sorted(real[bank], reverse=True)[: places[bank]]
        assert [totals[c] for c in kept if progress[c] == bank] == best
    for part in (kept, rest):
        assert [totals[c] for c in part] == sorted((totals[c] for c in part), reverse=True)


def test_each_bank_of_forced_tokens_has_an_equal_share_of_the_slots() -> None:
    """Four slots for banks 0 and 1: the two best of each, though all of bank 0 are more probable."""
    totals, met = [-1.0, -2.0, -3.0, -10.0, -11.0, -12.0], [0, 0, 0, 1, 1, 1]
    assert share_slots(totals, met, most=1, slots=4) == [0, 1, 3, 4, 2, 5]
