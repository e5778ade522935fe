"""The engine of a CPU against the reference path: the same model, the same search, step by step as search/ has it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from dragoman.core import processes
from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, Capacity, Hypothesis
from dragoman.engines.cpu.engine import CPUEngine, model_blocker
from dragoman.engines.cpu.transformer_step import CPUTransformer
from dragoman.engines.length_batches import batch_by_length, pad_ids
from dragoman.nn.losses import output_log_probs
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import Search, SearchConstraints, searches

V = 90
SIZE = {"layers": 2, "heads": 4, "feedforward": 48}
SEARCHES = {
    "greedy": Part("greedy"),
    "beam": Part("beam", {"beam": 4}),
    "exact": Part("beam", {"beam": 3, "early_stopping": "never", "length_rule": Part("gnmt", {"alpha": 1.0})}),
    "shrink": Part("beam", {"beam": 4, "finished_policy": "shrink"}),
    "early": Part("beam", {"beam": 4, "early_stopping": True, "patience": 1.5}),
    "diverse": Part("diverse", {"beam": 4, "num_beam_groups": 2}),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "post": {"norm_order": "post", "embedding_norm": True},
    "learned": {"position": Part("learned", {"length": 40})},
    "shared": {"shared": True},
    "rotary": {"position": Part("rotary"), "key_heads": 2},
    "alibi": {"position": Part("alibi"), "activation": "swiglu"},
    "t5": {"position": Part("t5"), "norm": Part("rms"), "bias": False},
    "shaw": {"position": Part("shaw"), "key_width": 6, "value_width": 10, "activation": "gelu"},
    "xl": {"position": Part("xl", {"distance": 5}), "shared": True},
}


def model(encoder: str = "transformer", **options: Any) -> Seq2Seq:
    """A model with weights at random, large enough that its results differ, and quick to end."""
    side = Part("transformer", {**SIZE, **options})
    first = side if encoder == "transformer" else Part(encoder)
    built = Seq2Seq(V, V, width=32, encoder=first, decoder=side).eval()
    with torch.no_grad():
        for weight in built.parameters():
            weight.mul_(1.5)
        built.output.bias[EOS] += 4.0
    return built


def some_sources(count: int) -> list[list[int]]:
    return [[*(random.randrange(4, V) for _ in range(random.randrange(1, 12))), EOS] for _ in range(count)]


def some_limits(sources: list[list[int]]) -> SearchConstraints:
    longest = torch.tensor([2 if i % 3 else len(source) + 4 for i, source in enumerate(sources)])  # some are cut off
    return SearchConstraints(longest, longest // 4, list(range(len(sources))))


@torch.inference_mode()
def decode_with_reference(
    model: Seq2Seq, sources: list[list[int]], part: Part, limits: SearchConstraints
) -> list[list[Hypothesis]]:
    memory = model.encode(*pad_ids(sources))
    return searches.build(part)(model.step, lambda capacity: model.start(memory, capacity), limits)


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    """The same n-best lists; one sentence may have come to beginnings a rounding apart, and gone the other way."""
    others = 0
    for ours, theirs in zip(found, expected, strict=True):
        if [(h.tokens, h.finish_reason) for h in ours] != [(h.tokens, h.finish_reason) for h in theirs]:
            others += 1
            continue
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)
        for a, b in zip(ours, theirs, strict=True):
            assert a.log_probs == pytest.approx(b.log_probs, abs=1e-4)
    assert others <= 1


@pytest.mark.parametrize("name", SEARCHES)
def test_every_search_finds_what_it_finds_on_the_reference_path(name: str) -> None:
    sources, built = some_sources(40), model()
    limits, part = some_limits(sources), SEARCHES[name]
    engine = CPUEngine(built, "float32")
    search = searches.build(part)
    assert engine.serves(search, limits)
    assert_same(
        with_token_log_probs(engine, sources, search, limits), decode_with_reference(built, sources, part, limits)
    )


@pytest.mark.parametrize("size", [V - 1, V, 2 * V])
def test_a_beam_may_be_as_wide_as_the_vocabulary_and_wider(size: int) -> None:
    sources, built, part = some_sources(6), model(), Part("beam", {"beam": size})
    limits, engine = some_limits(sources), CPUEngine(built, "float32")
    found = engine(sources, searches.build(part), limits)
    for ours, theirs in zip(found, decode_with_reference(built, sources, part, limits), strict=True):
        assert ours[0].tokens == theirs[0].tokens
        assert ours[0].score == pytest.approx(theirs[0].score, abs=1e-4)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("part", [Part("greedy"), Part("beam", {"beam": 3})], ids=["greedy", "beam"])
def test_every_option_of_a_transformer_is_computed_as_the_model_computes_it(name: str, part: Part) -> None:
    sources, built = some_sources(12), model(**OPTIONS[name])
    limits, engine = some_limits(sources), CPUEngine(built, "float32")
    assert_same(
        with_token_log_probs(engine, sources, searches.build(part), limits),
        decode_with_reference(built, sources, part, limits),
    )


def test_a_transformer_decodes_what_another_encoder_encoded() -> None:
    sources, built, part = some_sources(10), model("rnn"), Part("beam", {"beam": 3})
    limits, engine = some_limits(sources), CPUEngine(built, "float32")
    assert_same(
        with_token_log_probs(engine, sources, searches.build(part), limits),
        decode_with_reference(built, sources, part, limits),
    )


@torch.inference_mode()
def test_hypotheses_that_change_places_see_their_own_past_and_no_other() -> None:
    """Random descents, with sentences that leave on the way, against teacher forcing on each whole history."""
    built, k = model(position=Part("alibi")), 4
    step = CPUTransformer(built)
    source, lengths = pad_ids(some_sources(5))
    rows, cache = torch.arange(5), step.start(step.encode(source, lengths), Capacity(k, 30))
    histories = torch.full((5, k, 1), BOS)
    for t in range(14):
        log_p, cache = step.step(histories[:, :, -1], cache)
        memory = built.encode(source[rows].repeat_interleave(k, 0), lengths[rows].repeat_interleave(k, 0))
        expected = output_log_probs(built.logits(built.decode(histories.flatten(0, 1), memory).o[:, -1]))
        assert_close(log_p.flatten(0, 1), expected, atol=1e-4, rtol=1e-4)
        parents = torch.randint(k, (len(rows), k))
        if t in (4, 9):
            staying = torch.randperm(len(rows))[:-1]
            rows, histories, parents, cache = rows[staying], histories[staying], parents[staying], cache.select(staying)
        cache = cache.reorder(parents)
        histories = torch.cat([histories.gather(1, parents[..., None].expand_as(histories)),
                               torch.randint(4, V, (len(rows), k, 1))], -1)  # fmt: skip
    assert cache.n < 14 * k  # nodes that nobody sees were written over


def with_token_log_probs(
    engine: CPUEngine, sources: list[list[int]], search: Search, limits: SearchConstraints
) -> list[list[Hypothesis]]:
    nbest_lists = engine.add_token_log_probs(sources, engine(sources, search, limits))
    return [list(nbest) for nbest in nbest_lists]


def test_results_do_not_depend_on_what_else_is_asked() -> None:
    sources, built = some_sources(9), model()
    limits, engine, search = some_limits(sources), CPUEngine(built, "float32"), searches.build(SEARCHES["beam"])
    alone = [
        engine([source], search, SearchConstraints(limits.max_lengths[i : i + 1], limits.min_lengths[i : i + 1]))[0]
        for i, source in enumerate(sources)
    ]
    assert_same(engine(sources, search, limits), alone)


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("shortest", [0, 2])
@pytest.mark.parametrize("part", [Part("greedy"), SEARCHES["early"]], ids=["greedy", "beam"])
def test_results_do_not_depend_on_how_many_are_asked_for(part: Part, precision: str, shortest: int) -> None:
    """CTranslate2 decodes these (but with a minimum length), also in int8, whose rounding is by row."""
    sources, built = some_sources(20), model()
    longest, search, engine = torch.full((20,), 9), searches.build(part), CPUEngine(built, precision)
    limits = SearchConstraints(longest, shortest)
    assert engine.uses_ctranslate2(search, limits) == (shortest == 0)
    alone = [
        with_token_log_probs(engine, [source], search, SearchConstraints(longest[:1], shortest))[0]
        for source in sources
    ]
    assert_same(with_token_log_probs(engine, sources, search, limits), alone)
    if precision == "float32" or shortest:
        assert_same(alone, decode_with_reference(built, sources, part, limits))


@pytest.mark.skipif(not processes.can_fork(), reason="no forks here")
def test_a_fork_of_a_process_that_has_searched_can_search_too() -> None:
    sources, engine, search = some_sources(6), CPUEngine(model(), "int8"), searches.build(Part("greedy"))

    def answer(count: int) -> list[list[int]]:
        found = engine(sources[:count], search, SearchConstraints(torch.full((count,), 5)))
        return [hypotheses[0].tokens for hypotheses in found]

    here = [answer(count) for count in (2, 6)]
    assert list(processes.map_in_order(answer, [2, 6], 2)) == here


def test_what_is_drawn_depends_on_the_number_of_a_sentence_alone() -> None:
    sources, built, part = some_sources(70), model(), Part("sample", {"num_samples": 2, "seed": 5})
    limits, engine = some_limits(sources), CPUEngine(built, "float32")
    found, expected = engine(sources, searches.build(part), limits), decode_with_reference(built, sources, part, limits)
    same = [a[0].tokens == b[0].tokens for a, b in zip(found, expected, strict=True)]
    assert sum(same) >= 68  # a draw may fall a rounding to the other side


def test_batches_hold_every_source_once_and_no_more_than_asked() -> None:
    sources = some_sources(50)
    lengths = [len(source) for source in sources]
    cut = list(batch_by_length(lengths, 10_000, 8))
    assert sorted(i for rows in cut for i in rows) == list(range(50))
    assert max(len(rows) for rows in cut) == 8
    for rows in (few := list(batch_by_length(lengths, 30))):
        assert len(rows) == 1 or len(rows) * max(lengths[i] for i in rows) <= 30
    assert sorted(i for rows in few for i in rows) == list(range(50))
    assert [len(sources[i]) for rows in cut for i in rows] == sorted(map(len, sources), reverse=True)


def test_what_the_step_cannot_say_is_left_to_the_reference_path() -> None:
    engine = CPUEngine(model(), "float32")
    longest = torch.tensor([5])
    assert not engine.serves(searches.build(Part("beam", {"coverage_penalty": 0.2})), SearchConstraints(longest))
    assert not engine.serves(
        searches.build(Part("greedy")), SearchConstraints(longest, processors=[lambda log_p, history, rows: log_p])
    )
    assert not engine.serves(searches.build(Part("beam")), SearchConstraints(longest, traces={}))
    for decoder in (Part("rnn"), Part("transformer", {**SIZE, "mixer": Part("ssru")})):
        other = Seq2Seq(V, V, width=32, decoder=decoder, encoder=Part("transformer", SIZE))
        assert model_blocker(other, torch.device("cpu"), "float32") is not None
