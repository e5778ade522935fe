"""Rows from pairs and texts: nothing is lost, shares come out, lengths are bounds, chance comes from outside."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec_learning import learn_codec

from dragoman.core.errors import ModelError, PartError
from dragoman.core.registry import Part
from dragoman.core.types import EOS, PAD, UNK, Example
from dragoman.data.objectives import Objective, objectives, round_randomly, sample_segments
from dragoman.text.codec import Codec

SENTINELS = [f"<extra_{i}>" for i in range(100)]
TAG, MASK, FIRST = 4, 5, 106  # <to:de>, <mask>, and after the sentinels the first token
WORDS = [*(f"w{i}" for i in range(40)), "end.", "what?"]


def learned(extra: list[str]) -> Codec:
    return learn_codec(Part("symbols"), Part("symbols"), True, "nfc", WORDS, [], extra)


CODEC = learned(["<to:de>", "<mask>", *SENTINELS])
SIZE = len(CODEC.target)


def objective(name: str, **options: Any) -> Objective:
    found = objectives.build(objectives.parse({"name": name, **options}))
    found.bind_codec(CODEC)
    return found


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


SEEDS = st.integers(0, 2**32)
TOKENS = st.integers(FIRST, SIZE - 1)
TEXTS = st.lists(st.one_of(TOKENS, TOKENS, TOKENS, st.sampled_from([UNK, TAG])), min_size=1, max_size=60)
SHARES = st.sampled_from([0.0, 0.1, 0.5, 0.9])
LONG = [FIRST + i % (SIZE - FIRST) for i in range(4000)]

TEXT_OBJECTIVES = st.one_of(
    st.sampled_from([("lm", {}), ("prefix", {}), ("unilm", {}), ("unilm", {"both_ways": 0.0, "left_to_right": 0.0})]),
    st.builds(lambda s, m: ("masked", {"share": s, "mask": m}), SHARES, SHARES),
    st.builds(
        lambda s, w, n: ("span_corruption", {"share": s, "span": w, "sentinels": n}),
        SHARES,
        st.floats(1, 10),
        st.integers(2, 100),
    ),
    st.builds(
        lambda i, w, d, p, r: (
            "denoising",
            {"infill": i, "mask": round(1 - i, 1) / 2, "span": w, "delete": d, "permute": p, "rotate": r},
        ),
        SHARES,
        st.floats(1, 10),
        SHARES,
        st.booleans(),
        st.booleans(),
    ),
)


# -- promises of all ---------------------------------------------------------------------------------------------------


@given(kind=TEXT_OBJECTIVES, text=TEXTS, seed=SEEDS)
def test_a_row_of_a_text_is_whole_within_its_bounds_and_a_function_of_the_generator(
    kind: tuple[str, dict[str, Any]], text: list[int], seed: int
) -> None:
    made = objective(kind[0], **kind[1])
    stored = np.array([*text, EOS], np.uint16)
    row = made([], stored, rng(seed))
    most_source, most_target = made.max_lengths(np.array([0]), np.array([len(stored)]))
    assert len(row.source) <= most_source[0]
    assert len(row.target) <= most_target[0]
    assert row.token_labels is None or len(row.token_labels) == len(row.source)
    assert all(type(id) is int for ids in (row.source, row.target, row.token_labels or []) for id in ids)
    assert row == pickle.loads(pickle.dumps(made))([], [*text, EOS], rng(seed))
    assert stored.tolist() == [*text, EOS]


@given(kind=TEXT_OBJECTIVES, text=TEXTS, seed=SEEDS)
def test_rows_of_a_text_have_only_what_their_objective_says(
    kind: tuple[str, dict[str, Any]], text: list[int], seed: int
) -> None:
    made = objective(kind[0], **kind[1])
    row = made([], [*text, EOS], rng(seed))
    assert made.has_token_labels or row.token_labels is None
    assert made.head is None or not row.target
    assert not (made.has_empty_source and row.source)
    if made.supports_packing:
        assert row.source
        assert row.target


@given(kind=TEXT_OBJECTIVES, text=TEXTS, seed=SEEDS)
def test_symbols_of_a_text_are_never_lost_masked_or_made_up(
    kind: tuple[str, dict[str, Any]], text: list[int], seed: int
) -> None:
    row = objective(kind[0], **kind[1])([], [*text, EOS], rng(seed))
    expected = Counter(id for id in text if id < FIRST)
    shown = (
        row.source
        if row.token_labels is not None or kind[0] in ("denoising", "span_corruption")
        else row.source + row.target
    )
    assert Counter(id for id in shown if id in (UNK, TAG)) == expected
    assert not {UNK, TAG} & set(row.token_labels or [])


@pytest.mark.parametrize("name", objectives.names)
def test_texts_without_a_token_are_either_fine_or_refused_with_a_reason(name: str) -> None:
    made = objective(name)
    if made.is_paired:
        return
    for text in ([EOS], [UNK, EOS]):
        row = made([], text, rng(0))
        assert made.blocker([], text) is not None or row.target
        assert EOS not in row.source[:-1] + row.target[:-1]
    assert made.blocker([], [FIRST, EOS]) is None


def test_only_objectives_that_put_one_text_on_both_sides_need_a_joint_vocabulary() -> None:
    joint = {name for name in objectives.names if objective(name).needs_joint_vocabulary}
    assert joint == {"masked", "denoising", "span_corruption", "prefix", "unilm"}
    assert objective("pairs", source_loss=True).needs_joint_vocabulary


def test_only_rows_of_a_source_and_a_target_lie_end_to_end() -> None:
    assert {name for name in objectives.names if objective(name).supports_packing} == {
        "pairs",
        "denoising",
        "span_corruption",
    }
    assert not objective("pairs", source_loss=True).supports_packing


@pytest.mark.parametrize("name", ["masked", "denoising", "span_corruption", "unilm"])
def test_tokenizers_learned_without_its_symbols_are_refused_by_name(name: str) -> None:
    made = objectives.build(Part(name))
    with pytest.raises(ModelError, match=f"without the symbol {made.extra_symbols[0]}"):
        made.bind_codec(learned([]))


def test_options_that_exceed_the_whole_are_refused() -> None:
    with pytest.raises(PartError, match="must not exceed 1"):
        objective("masked", mask=0.8, random=0.3)
    with pytest.raises(PartError, match="must not exceed 1"):
        objective("denoising", mask=0.8, infill=0.3)
    with pytest.raises(PartError, match="all 0"):
        objective("unilm", left_to_right=0.0, both_ways=0.0, prefix=0.0)


# -- pairs -------------------------------------------------------------------------------------------------------------


def test_a_pair_stays_as_it_is_and_source_loss_asks_for_the_next_source_token() -> None:
    source, target = [7, 8, 9, EOS], [5, EOS]
    row = objective("pairs")(np.array(source), np.array(target), rng(0))
    assert (row.source.tolist(), row.target.tolist(), row.token_labels) == (source, target, None)
    marked = objective("pairs", source_loss=True)(source, target, rng(0))
    assert marked[:3] == (source, target, [8, 9, EOS, PAD])


def test_a_label_is_one_token_without_the_end() -> None:
    labels = objective("labels")
    assert labels([7, EOS], [9, EOS], rng(0))[:3] == ([7, EOS], [9], None)
    assert labels.blocker([7, EOS], [9, EOS]) is None
    assert labels.blocker([7, EOS], [9, 9, EOS]) == "target is not one label"
    assert labels.blocker([7, EOS], [EOS]) == "target is not one label"
    assert [x.tolist() for x in labels.max_lengths(np.array([2, 5]), np.array([2, 2]))] == [[2, 5], [1, 1]]


def test_tags_stand_at_their_tokens_and_nothing_at_language_tags_and_the_end() -> None:
    tags = objective("tags")
    source = [TAG, FIRST, UNK, FIRST + 1, EOS]
    row = tags(source, [11, 12, 13, EOS], rng(0))
    assert row[:3] == (source, [], [PAD, 11, 12, 13, PAD])
    assert tags.blocker(source, [11, 12, 13, EOS]) is None
    assert tags.blocker(source, [11, 12, EOS]) == "tags and tokens differ in number"
    assert tags.blocker(source, [11, 12, 13, 14, EOS]) == "tags and tokens differ in number"


# -- texts -------------------------------------------------------------------------------------------------------------


@given(text=TEXTS, seed=SEEDS, share=SHARES)
def test_token_labels_restore_a_masked_text(text: list[int], seed: int, share: float) -> None:
    row = objective("masked", share=share)([], [*text, EOS], rng(seed))
    assert row.token_labels is not None
    assert [label or id for label, id in zip(row.token_labels, row.source, strict=True)] == [*text, EOS]
    assert any(row.token_labels) == any(id >= FIRST for id in text)
    assert row.target == []


def test_masked_tokens_come_in_their_shares() -> None:
    row = objective("masked", share=0.3, mask=0.3, random=0.6)([], [*LONG, EOS], rng(1))
    assert row.token_labels is not None
    chosen = [(id, label) for id, label in zip(row.source, row.token_labels, strict=True) if label]
    assert len(chosen) == pytest.approx(0.3 * len(LONG), abs=1)
    shares = Counter("mask" if id == MASK else "kept" if id == mark else "random" for id, mark in chosen)
    assert shares["mask"] / len(chosen) == pytest.approx(0.3, abs=0.06)
    assert shares["kept"] / len(chosen) == pytest.approx(0.1 + 0.6 / (SIZE - FIRST), abs=0.05)
    assert {id for id, mark in chosen if id not in (MASK, mark)} == {*range(FIRST, SIZE)}


def restored(source: list[int], target: list[int], sentinels: list[int]) -> list[int]:
    """What T5's pair says: at each sentinel of the source stands what follows it in the target."""
    spans: dict[int, list[int]] = {}
    for id in target[:-1]:
        if id in sentinels:
            spans[id] = []
            last = id
        else:
            spans[last].append(id)
    assert spans.pop(last) == []  # the closing sentinel
    assert [id for id in source if id in sentinels] == list(spans) == sentinels[: len(spans)]
    return [token for id in source for token in spans.get(id, [id])]


@given(text=TEXTS, seed=SEEDS, share=SHARES, span=st.floats(1, 10), sentinels=st.integers(2, 100))
def test_source_and_target_of_span_corruption_restore_the_text(
    text: list[int], seed: int, share: float, span: float, sentinels: int
) -> None:
    made = objective("span_corruption", share=share, span=span, sentinels=sentinels)
    row = made([], [*text, EOS], rng(seed))
    assert (row.source[-1], row.target[-1], row.token_labels) == (EOS, EOS, None)
    assert restored(row.source, row.target, list(range(MASK + 1, FIRST))) == [*text, EOS]
    tokens = sum(id >= FIRST for id in text)
    assert (len(row.target) > 2) == (tokens > 0)


def test_span_corruption_of_a_text_of_four_tokens_has_one_span_at_its_end() -> None:
    a, b, c, d = range(FIRST, FIRST + 4)
    made = objective("span_corruption", share=0.5)
    x, y, z = MASK + 1, MASK + 2, EOS
    for seed in range(5):
        assert made([], [a, b, c, d, EOS], rng(seed))[:3] == ([a, b, x, z], [x, c, d, y, z], None)
    assert made([], [a, EOS], rng(0))[:3] == ([x, z], [x, a, y, z], None)
    assert objective("span_corruption", share=0.9)([], [a, b, EOS], rng(0))[:3] == ([a, x, z], [x, b, y, z], None)


def test_span_corruption_cuts_its_share_in_spans_of_their_mean_length_and_all_splits_alike() -> None:
    row = objective("span_corruption", share=0.1)([], [*LONG[:600], EOS], rng(2))
    sentinels = sum(MASK < id < FIRST for id in row.target)
    assert (len(row.target) - sentinels - 1, sentinels - 1) == (60, 20)
    draw = rng(3)
    found = Counter(tuple(sample_segments(5, 3, draw).tolist()) for _ in range(1200))
    assert set(found) == {(1, 1, 3), (1, 3, 1), (3, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)}
    assert min(found.values()) > 130


def test_spans_beyond_the_sentinels_are_joined_and_the_share_stays() -> None:
    row = objective("span_corruption", share=0.5, span=1.0, sentinels=10)([], [*LONG[:600], EOS], rng(2))
    assert sum(MASK < id < FIRST for id in row.target) == 10
    assert sum(id >= FIRST for id in row.target) == 300


@given(text=TEXTS, seed=SEEDS, permute=st.booleans(), rotate=st.booleans())
def test_permuting_and_rotating_lose_nothing(text: list[int], seed: int, permute: bool, rotate: bool) -> None:
    row = objective("denoising", infill=0.0, permute=permute, rotate=rotate)([], [*text, EOS], rng(seed))
    assert row.target == [*text, EOS]
    assert row.source[-1] == EOS
    assert Counter(row.source) == Counter(row.target)
    if not permute:
        assert row.source[:-1] in ([text[i:] + text[:i] for i in range(len(text))] if rotate else [text])


def test_sentences_are_shuffled_whole() -> None:
    text = CODEC.encode_target(Example("", "w1 w2 end. w3 what? end. w4 w5 w6"))
    made = objective("denoising", infill=0.0, permute=True)
    found = {CODEC.decode(made([], text, rng(seed)).source) for seed in range(100)}
    a, b, c = "w1 w2 end.", "w3 what? end.", "w4 w5 w6"
    assert found == {f"{x} {y} {z}" for x, y, z in [(a, b, c), (a, c, b), (b, a, c), (b, c, a), (c, a, b), (c, b, a)]}


def test_deleting_and_masking_keep_the_order_and_come_in_their_shares() -> None:
    text = LONG[:40]
    each = [
        objective("denoising", infill=0.0, delete=0.25, mask=0.1)([], [*text, EOS], rng(seed)) for seed in range(200)
    ]
    assert {len(row.source) for row in each} == {31}
    assert np.mean([row.source.count(MASK) for row in each]) == pytest.approx(3, abs=0.2)
    for row in each:
        left = [id for id in row.source if id != MASK]
        assert left == [*sorted(left[:-1]), EOS]
    assert len({tuple(row.source) for row in each}) > 190


def test_infilling_hides_its_share_of_tokens_in_spans_of_poisson_lengths() -> None:
    lengths: Counter[int] = Counter()
    hidden = 0
    text = list(range(FIRST, SIZE))
    for seed in range(400):
        source = objective("denoising", infill=0.3, span=2.0)([], [*text, EOS], rng(seed)).source
        hidden += len(text) - sum(id >= FIRST for id in source)
        assert len(source) <= len(text) + 1
        for i, id in enumerate(source):  # spans with a token on both sides show how long they are
            if id == MASK and 0 < i < len(source) - 2 and MASK not in (source[i - 1], source[i + 1]):
                lengths[source[i + 1] - source[i - 1] - 1] += 1
    assert hidden / 400 / len(text) == pytest.approx(0.3, abs=0.005)
    # Poisson(2): 0.135, 0.271, 0.271, 0.180 of lengths 0 to 3; the last span of a text is cut: short ones gain a bit.
    for length, share in enumerate([0.135, 0.271, 0.271, 0.180]):
        assert lengths[length] / lengths.total() == pytest.approx(share, abs=0.08)


@given(text=TEXTS, seed=SEEDS)
def test_a_prefix_and_its_rest_are_the_text_and_neither_is_empty(text: list[int], seed: int) -> None:
    row = objective("prefix")([], [*text, EOS], rng(seed))
    assert row.source + row.target == [*text, EOS]
    assert row.target != [EOS]
    assert bool(row.source) == (len(text) > 1)


def test_unilm_takes_its_tasks_by_their_weights() -> None:
    text = [*LONG[:20], EOS]
    made = objective("unilm", left_to_right=1.0, both_ways=2.0, prefix=1.0)
    draw = rng(5)
    rows = [made([], text, draw) for _ in range(1000)]
    kinds = Counter("masked" if row.token_labels else "prefix" if row.source else "lm" for row in rows)
    assert kinds["masked"] == pytest.approx(500, abs=80)
    assert kinds["lm"] == pytest.approx(250, abs=70)
    assert all(row.source + row.target == text for row in rows if not row.token_labels)


def test_a_share_of_a_few_is_right_on_average() -> None:
    draw = rng(6)
    found = Counter(round_randomly(0.15, 3, draw) for _ in range(2000))
    assert set(found) == {0, 1}
    assert found[1] / 2000 == pytest.approx(0.45, abs=0.06)
