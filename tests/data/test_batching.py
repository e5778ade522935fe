"""Every line as often as its weight says, batches within their budget, and the same stream from any cursor."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.codec_learning import learn_codec

from dragoman.config.schema import Corpus
from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, PAD, Batch, Example
from dragoman.data.batching import BatchStream, Cursor, collate, epoch_order, plan_batches, validation_batches
from dragoman.data.objectives import Objective, TrainingRow, objectives
from dragoman.data.store import builder
from dragoman.data.store.store import TokenStore
from dragoman.text.codec import Codec

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "one", "dog", "ran", "to", "another", "mat"]
START = Cursor()


def corpus(count: int, first: int = 1) -> list[Example]:
    """Pairs of 1 to 7 words and their reverse; each line number belongs to one pair."""
    examples = []
    for line in range(first, first + count):
        words = list(itertools.islice(itertools.cycle(WORDS), line, line + 1 + line * line % 7))
        examples.append(Example(" ".join(words), " ".join(words[::-1][: 1 + line % 9]), line=line))
    return examples


def learned(name: str, **options: object) -> Codec:
    lines = [example.source for example in corpus(50)]
    return learn_codec(Part(name, options), Part(name, options), True, "nfc", lines, lines, [])


PLAIN = learned("characters")
SAMPLING = learned("bpe", size=40, dropout=0.5, byte_fallback=False)


def stored(folder: Path, count: int, codec: Codec, first: int = 1, limit: int = 100) -> TokenStore:
    examples = corpus(count, first)
    return builder.build_store(
        examples, codec, folder, max_source=limit, max_target=limit, keep_text=codec.is_stochastic
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> tuple[TokenStore, TokenStore]:
    """Two corpora: lines 1 to 50, and lines 1001 to 1020."""
    folder = tmp_path_factory.mktemp("plain")
    return stored(folder / "a", 50, PLAIN), stored(folder / "b", 20, PLAIN, 1001)


@pytest.fixture(scope="module")
def sampling(tmp_path_factory) -> TokenStore:
    return stored(tmp_path_factory.mktemp("sampling") / "a", 50, SAMPLING)


def same(one: Batch, other: Batch) -> bool:
    tensors = ("source", "source_lengths", "target", "target_lengths")
    return one.lines == other.lines and all(torch.equal(getattr(one, name), getattr(other, name)) for name in tensors)


def epoch_of(batches: BatchStream, epoch: int) -> list[Batch]:
    stream = batches.batches_from(Cursor(epoch, 0))
    return [batch for batch, _ in itertools.takewhile(lambda item: item[1].epoch == epoch, stream)]


def lines_of(batches: list[Batch]) -> list[int]:
    return [line for batch in batches for line in batch.lines]


# -- collate -----------------------------------------------------------------------------------------------------------


def test_collate_pads_both_sides_and_begins_targets():
    batch = collate([([5, 6, EOS], [7, EOS]), ([8, EOS], [9, 4, 5, EOS])], [10, 20])
    assert batch.source.tolist() == [[5, 6, EOS], [8, EOS, PAD]]
    assert batch.target.tolist() == [[BOS, 7, EOS, PAD, PAD], [BOS, 9, 4, 5, EOS]]
    assert batch.source_lengths.tolist() == [3, 2]
    assert batch.target_lengths.tolist() == [3, 5]
    assert batch.lines == [10, 20]
    assert batch.tokens == 6
    assert {x.dtype for x in (batch.source, batch.target, batch.source_lengths, batch.target_lengths)} == {torch.int64}


def test_collate_takes_small_integers_beyond_the_signed_range():
    batch = collate([(np.array([65535, EOS], "<u2"), np.array([40000, EOS], "<u2"))], [1])
    assert batch.source.tolist() == [[65535, EOS]]
    assert batch.target.tolist() == [[BOS, 40000, EOS]]


# -- the order of an epoch ---------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 700), min_size=1, max_size=3),
    data=st.data(),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 1000),
    block=st.sampled_from([1, 7, 300, 1 << 20]),
)
def test_an_epoch_holds_each_line_as_often_as_its_weight_says(sizes, data, seed, epoch, block):
    weight = st.one_of(st.integers(1, 3).map(float), st.floats(0.01, 3.5))
    weights = [data.draw(weight) for _ in sizes]
    items = [tuple(item) for part in epoch_order(sizes, weights, seed, epoch, block=block) for item in part.tolist()]
    seen = Counter(items)
    for number, (size, times) in enumerate(zip(sizes, weights, strict=True)):
        counts = [seen.pop((number, row), 0) for row in range(size)]
        assert all(count in (int(np.floor(times)), int(np.ceil(times))) for count in counts)
        assert abs(sum(counts) - times * size) < 1 + 1e-6
    assert not seen  # nothing else came


@given(seed=st.integers(0, 2**32), epoch=st.integers(0, 50), block=st.integers(256, 2000))
@settings(deadline=None, max_examples=8)
def test_no_block_exceeds_its_size_and_few_are_smaller(seed, epoch, block):
    blocks = list(epoch_order([3000, 500], [1, 2.5], seed, epoch, block=block))
    assert max(map(len, blocks)) <= block
    assert min(map(len, blocks[:-1]), default=block) >= block - 2 * (block // 256)


def test_a_half_is_another_half_in_each_epoch_and_all_lines_have_their_turn():
    halves = [set(np.concatenate(list(epoch_order([200], [0.5], 1, epoch)))[:, 1].tolist()) for epoch in range(30)]
    assert all(len(half) == 100 for half in halves)
    assert len({frozenset(half) for half in halves}) == 30
    assert set.union(*halves) == set(range(200))


def test_a_corpus_of_one_line_is_seen_in_its_share_of_the_epochs():
    seen = sum(len(block) for epoch in range(400) for block in epoch_order([1], [0.25], 1, epoch))
    assert 60 < seen < 140  # 100 expected, standard deviation 9


def test_blocks_mix_corpora_and_do_not_follow_the_file():
    first = next(iter(epoch_order([50_000, 50_000], [1, 1], 1, 0, block=10_000)))
    assert 3000 < (first[:, 0] == 0).sum() < 7000
    assert np.ptp(first[:, 1]) > 40_000  # from all over the corpus
    assert (np.diff(first[:, 1]) == 1).mean() < 0.01


# -- from lengths to batches -------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=200),
    tokens=st.integers(1, 400),
    sentences=st.one_of(st.none(), st.integers(1, 20)),
    seed=st.integers(0, 2**32),
)
def test_batches_hold_every_row_once_and_keep_their_budget(lengths, tokens, sentences, seed):
    source, target = np.array(lengths).T
    rng = np.random.default_rng(seed)
    batches = plan_batches(source, target, tokens=tokens, sentences=sentences, rng=rng)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) == 1 or len(rows) * max(source[rows].max(), target[rows].max()) <= tokens
        assert len(rows) <= (sentences or len(rows))


@pytest.mark.parametrize(
    ("length", "tokens", "sentences", "full"), [(10, 100, None, 10), (7, 100, None, 14), (10, 100, 4, 4)]
)
def test_batches_are_filled_as_far_as_the_budget_allows(length, tokens, sentences, full):
    lengths, rng = np.full(1000, length), np.random.default_rng(1)
    sizes = [len(rows) for rows in plan_batches(lengths, lengths, tokens=tokens, sentences=sentences, rng=rng)]
    assert sorted(sizes)[1:] == [full] * (len(sizes) - 1)


def test_rows_of_a_batch_are_alike_in_length_and_batches_come_in_no_order_of_length():
    rng = np.random.default_rng(1)
    source, target = rng.integers(1, 100, (2, 20_000))
    batches = plan_batches(source, target, tokens=2000, sentences=None, rng=rng)
    longest = np.maximum(source, target)
    assert sum(len(rows) * longest[rows].max() for rows in batches) < 1.03 * longest.sum()
    means = np.array([longest[rows].mean() for rows in batches])
    assert abs(np.corrcoef(means[1:], means[:-1])[0, 1]) < 0.2


def test_equal_lengths_are_batched_differently_each_time():
    lengths = np.full(100, 5)

    def groups(seed: int) -> set[frozenset[int]]:
        rng = np.random.default_rng(seed)
        return {frozenset(rows.tolist()) for rows in plan_batches(lengths, lengths, tokens=50, sentences=None, rng=rng)}

    assert groups(1) == groups(1)
    assert not groups(1) & groups(2)


# -- the stream --------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=8)
@given(
    weights=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    tokens=st.integers(10, 300),
    seed=st.integers(0, 2**32),
    block=st.sampled_from([1, 16, 1 << 20]),
)
def test_the_stream_shows_every_line_weight_times_per_epoch_within_the_budget(plain, weights, tokens, seed, block):
    batches = BatchStream(list(zip(plain, weights, strict=True)), PLAIN, tokens=tokens, seed=seed, block=block)
    texts = {example.line: example for example in corpus(50) + corpus(20, 1001)}
    for epoch in (0, 1):
        got = epoch_of(batches, epoch)
        assert len(got) == batches.count_batches(epoch)
        assert Counter(lines_of(got)) == {line: weights[line > 1000] for line in texts}
        for batch in got:
            assert batch.area <= tokens or len(batch) == 1
            for row, line in enumerate(batch.lines):
                ids = batch.source[row, : batch.source_lengths[row]].tolist()
                assert ids == PLAIN.encode_source(texts[line])
                ids = batch.target[row, : batch.target_lengths[row]].tolist()
                assert ids == [BOS, *PLAIN.encode_target(texts[line])]


@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 2**32), block=st.sampled_from([16, 1 << 20]), weight=st.sampled_from([1, 0.5, 2]))
def test_from_any_cursor_the_rest_of_the_stream_is_the_same(plain, sampling, seed, block, weight):
    for stores, codec in ((plain, PLAIN), ([sampling], SAMPLING)):
        corpora = [(part, weight) for part in stores]
        batches = BatchStream(corpora, codec, tokens=150, sentences=8, seed=seed, block=block)
        length = sum(batches.count_batches(epoch) for epoch in (0, 1)) + 3
        whole = list(itertools.islice(batches.batches_from(START), length))
        assert whole[-1][1].epoch == 2
        for done in {0, 1, length // 3, batches.count_batches(0) - 1, batches.count_batches(0), length - 5}:
            again = BatchStream(corpora, codec, tokens=150, sentences=8, seed=seed, block=block)
            cursor = whole[done - 1][1] if done else START
            rest = list(itertools.islice(again.batches_from(cursor), length - done))
            assert [after for _, after in rest] == [after for _, after in whole[done:]]
            assert all(same(one, other) for (one, _), (other, _) in zip(rest, whole[done:], strict=True))


def test_epochs_and_seeds_differ_in_their_order(plain):
    orders = {
        tuple(lines_of(epoch_of(BatchStream([(plain[0], 1)], PLAIN, tokens=100, seed=seed), epoch)))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


def test_ranks_take_turns_in_one_stream_and_share_its_cursor(plain):
    def stream(rank: int, ranks: int, cursor: Cursor = START) -> list[tuple[Batch, Cursor]]:
        batches = BatchStream([(plain[0], 1)], PLAIN, tokens=60, seed=3, rank=rank, ranks=ranks)
        return list(itertools.islice(batches.batches_from(cursor), 60 // ranks))

    alone, (first, second, third) = stream(0, 1), [stream(rank, 3) for rank in range(3)]
    assert alone[-1][1].epoch > 0
    dealt = [batch for turn in zip(first, second, third, strict=True) for batch, _ in turn]
    assert all(same(one, other) for one, (other, _) in zip(dealt, alone, strict=True))
    assert [after for _, after in first] == [after for _, after in third] == [after for _, after in alone[2::3]]
    assert same(stream(1, 3, second[4][1])[0][0], second[5][0])


# -- sampled subwords --------------------------------------------------------------------------------------------------


def rows_of(batches: list[Batch]) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    return {
        line: (
            tuple(batch.source[i, : batch.source_lengths[i]].tolist()),
            tuple(batch.target[i].tolist()[1:][: int(batch.target_lengths[i]) - 1]),
        )
        for batch in batches
        for i, line in enumerate(batch.lines)
    }


def test_a_sampled_split_depends_on_seed_epoch_and_line_but_never_on_the_batch(sampling):
    def split(epoch: int, seed: int = 1, tokens: int = 200, ranks: int = 1) -> dict:
        streams = [
            BatchStream([(sampling, 1)], SAMPLING, tokens=tokens, seed=seed, rank=rank, ranks=ranks)
            for rank in range(ranks)
        ]
        return rows_of([batch for batches in streams for batch in epoch_of(batches, epoch)])

    assert split(0) == split(0, tokens=60)
    one, other = split(0), split(0, ranks=2)
    assert all(one[line] == other[line] for line in other)
    assert split(0) != split(1)
    assert split(0) != split(0, seed=2)


def test_a_sampled_split_is_what_the_codec_draws_from_seed_epoch_corpus_and_row(sampling):
    drawn = rows_of(epoch_of(BatchStream([(sampling, 1)], SAMPLING, tokens=200, seed=5), 2))
    for row, example in enumerate(corpus(50)):
        rng = np.random.default_rng(np.random.SeedSequence((5, 2, 0, row)))
        expected = tuple(SAMPLING.encode_source(example, rng)), tuple(SAMPLING.encode_target(example, rng))
        assert drawn[example.line] == expected
        assert SAMPLING.decode(drawn[example.line][1]) == example.target


def test_a_sampled_split_beyond_the_limit_gives_way_to_the_plain_one(tmp_path):
    limit = 12
    part = stored(tmp_path / "short", 50, SAMPLING, limit=limit)
    plain = {int(part.lines[i]): tuple(part.sources[i].tolist()) for i in range(len(part))}
    for epoch in range(5):
        drawn = rows_of(epoch_of(BatchStream([(part, 1)], SAMPLING, tokens=200, seed=1), epoch))
        assert all(len(source) <= limit and len(target) <= limit for source, target in drawn.values())
        assert any(source != plain[line] for line, (source, _) in drawn.items())


@pytest.mark.parametrize(
    ("name", "options"),
    [("denoising", {"infill": 0.0}), ("span_corruption", {"share": 0.5, "span": 1.0, "sentinels": 30}), ("masked", {})],
)
@pytest.mark.parametrize(("max_source", "max_target"), [(20, 200), (200, 20)])
def test_a_sampled_text_never_makes_a_row_beyond_the_limits(name, options, max_source, max_target, tmp_path):
    """A text stands on both sides, and a row may be longer than it: what the store leaves out is not drawn either."""
    objective = objectives.build(Part(name, options))
    lines = [example.source for example in corpus(50)]
    part = Part("bpe", {"size": 75, "dropout": 0.5, "byte_fallback": False})
    codec = learn_codec(part, part, True, "nfc", lines, lines, objective.extra_symbols)
    objective.bind_codec(codec)
    limits = {"max_source": max_source, "max_target": max_target}
    store = builder.build_store(corpus(50), codec, tmp_path / "a", **limits, keep_text=True, objective=objective)
    batches = BatchStream([(store, 1)], codec, tokens=400, seed=1, objective=objective)
    drawn = [batch for epoch in range(3) for batch in epoch_of(batches, epoch)]
    assert max(batch.source.shape[1] for batch in drawn) <= max_source
    assert max(batch.target.shape[1] for batch in drawn) <= max_target + 1  # <s> comes before it
    unsampled = {int(store.lines[row]): store.targets[row].tolist() for row in range(len(store))}
    if name == "denoising":
        assert any(list(target) != unsampled[line] for line, (_, target) in rows_of(drawn).items())


def test_sampling_needs_texts(tmp_path):
    part = builder.build_store(corpus(5), SAMPLING, tmp_path / "a", max_source=100, max_target=100, keep_text=False)
    with pytest.raises(ValueError, match="without texts"):
        next(BatchStream([(part, 1)], SAMPLING, tokens=100, seed=1).batches_from(START))


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_must_be_a_positive_number(weight):
    with pytest.raises(ValidationError, match="weight"):
        Corpus(path="a.tsv", weight=weight)


# -- validation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 50, 1000])
def test_validation_sees_every_row_once_unsampled_and_short_ones_first(sampling, tokens):
    batches = list(validation_batches(sampling, tokens))
    rows = rows_of(batches)
    assert sorted(lines_of(batches)) == list(range(50))
    for row, example in enumerate(corpus(50)):
        expected = tuple(SAMPLING.encode_source(example)), tuple(SAMPLING.encode_target(example))
        assert rows[row] == expected
    assert all(batch.area <= tokens or len(batch) == 1 for batch in batches)
    sides = [
        (int(s), int(t)) for batch in batches for s, t in zip(batch.source_lengths, batch.target_lengths, strict=True)
    ]
    longest = [max(pair) for pair in sides]
    assert longest == sorted(longest)


# -- objectives --------------------------------------------------------------------------------------------------------

NOISY = learn_codec(
    Part("words"),
    Part("words"),
    True,
    "nfc",
    [e.source for e in corpus(50)],
    [e.source for e in corpus(50)],
    ["<mask>"],
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> tuple[TokenStore, Objective]:
    objective = objectives.build(Part("masked", {"share": 0.4}))
    objective.bind_codec(NOISY)
    folder = tmp_path_factory.mktemp("texts") / "a"
    limits = {"max_source": 100, "max_target": 100}
    return builder.build_store(corpus(50), NOISY, folder, **limits, keep_text=False, objective=objective), objective


def test_token_labels_are_padded_like_the_source_and_sliced_with_the_rows():
    rows = [TrainingRow([7, 8, 9], [], [PAD, 5, PAD]), TrainingRow([7], [4]), TrainingRow([], [4, 2])]
    batch = collate(rows, [0, 1, 2])
    assert batch.token_labels.tolist() == [[PAD, 5, PAD], [PAD] * 3, [PAD] * 3]
    assert batch.tokens == 1 + 1 + 2
    assert batch.slice_rows(1, 3).token_labels.tolist() == [[PAD], [PAD]]
    assert batch.slice_rows(0, 2).to("cpu").token_labels.tolist() == [[PAD, 5, PAD], [PAD] * 3]
    assert collate([([7, 8], [4])], [0]).token_labels is None


def test_noise_is_the_same_from_any_cursor_and_another_in_each_epoch(texts):
    built, objective = texts
    batches = BatchStream([(built, 1.0)], NOISY, tokens=60, seed=3, objective=objective)
    first = epoch_of(batches, 0)
    assert all(batch.area <= 60 for batch in first)
    again = [batch for batch, _ in itertools.islice(batches.batches_from(Cursor(0, 2)), len(first) - 2)]
    for one, other in zip(first[2:], again, strict=True):
        assert same(one, other)
        assert torch.equal(one.token_labels, other.token_labels)

    def noise(batches: list[Batch]) -> dict[int, tuple[list[int], list[int]]]:
        return {
            line: (batch.source[i].tolist(), batch.token_labels[i].tolist())
            for batch in batches
            for i, line in enumerate(batch.lines)
        }

    now, later = noise(first), noise(epoch_of(batches, 1))
    assert now.keys() == later.keys()
    assert now != later


def test_what_is_hidden_is_what_was_stored(texts):
    built, objective = texts
    for batch in validation_batches(built, 60, objective):
        for i, row in enumerate(batch.lines):
            stored = built.targets[row].tolist()
            n = int(batch.source_lengths[i])
            shown, token_labels = batch.source[i, :n].tolist(), batch.token_labels[i, :n].tolist()
            assert [mark or id for id, mark in zip(shown, token_labels, strict=True)] == stored
            assert batch.target[i].tolist() == [BOS]
    one, other = ([batch.token_labels.tolist() for batch in validation_batches(built, 60, objective)] for _ in range(2))
    assert one == other  # a validation set is the same one each time
