"""CTranslate2 with our weights finds what our own searches find."""

from __future__ import annotations

import random
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.core.registry import Part
from dragoman.core.types import EOS, Hypothesis
from dragoman.engines.cpu.converted_model import ConvertedSearch
from dragoman.engines.cpu.ctranslate2 import CTranslate2Engine, convert_search, model_blocker, search_blocker
from dragoman.engines.length_batches import pad_ids
from dragoman.engines.reference import decode_with_reference
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import Search, SearchConstraints, searches

V = 90
GREEDY = searches.build(Part("greedy"))
OPTIONS: dict[str, dict[str, Any]] = {
    "pre": {},
    "post": {"norm_order": "post", "embedding_norm": True, "activation": "gelu"},
    "halves": {"position": Part("sinusoidal", {"layout": "halves"}), "activation": "gelu_tanh"},
    "learned": {"position": Part("learned", {"length": 40}), "activation": "swiglu", "bias": False},
    "rms": {"norm": Part("rms"), "activation": "geglu", "position": Part("none")},
}
BEAMS: dict[str, dict[str, Any]] = {
    "as it is": {"beam": 5},
    "patient": {"beam": 4, "patience": 2.0},
    "of two": {"beam": 2, "patience": 1.5, "length_rule": Part("none")},
    "power": {"beam": 3, "patience": 1.5, "length_rule": Part("power", {"alpha": 0.6})},
}


def early_beam(**options: Any) -> Search:
    return searches.build(Part("beam", {"early_stopping": True, **options}))


def open_engine(model: Seq2Seq, precision: str) -> CTranslate2Engine:
    return CTranslate2Engine(model, precision, partial(decode_with_reference, model))


def search_by_reference(
    model: Seq2Seq, sources: list[list[int]], search: Search, limits: Any
) -> list[list[Hypothesis]]:
    with torch.inference_mode():
        memory = model.encode(*pad_ids(sources))
        return search(model.step, lambda capacity: model.start(memory, capacity), limits)


def model(**options: Any) -> Seq2Seq:
    side = Part("transformer", {"layers": 2, "heads": 4, "feedforward": 48, **options})
    built = Seq2Seq(V, V, width=32, encoder=side, decoder=side).eval()
    with torch.no_grad():
        for weight in built.parameters():
            weight.mul_(1.5)
        built.output.bias[EOS] += 4.0
    return built


def some_sources(count: int) -> list[list[int]]:
    return [[*(random.randrange(3, V) for _ in range(random.randrange(1, 12))), EOS] for _ in range(count)]


def greedy_by_reference(model: Seq2Seq, sources: list[list[int]], limits: SearchConstraints) -> list[Hypothesis]:
    return [nbest[0] for nbest in search_by_reference(model, sources, GREEDY, limits)]


@pytest.mark.parametrize("name", OPTIONS)
def test_greedy_results_and_the_log_p_of_their_tokens_are_ours(name: str) -> None:
    built, sources = model(**OPTIONS[name]), some_sources(80)
    limits = SearchConstraints(torch.tensor([2 if i % 3 else len(source) + 4 for i, source in enumerate(sources)]))
    engine = open_engine(built, "float32")
    assert search_blocker(built, GREEDY, limits) is None
    expected = greedy_by_reference(built, sources, limits)
    found = [one for (one,) in engine.add_token_log_probs(sources, engine(sources, GREEDY, limits))]
    same = [
        (a, b)
        for a, b in zip(found, expected, strict=True)
        if (a.tokens, a.finish_reason) == (b.tokens, b.finish_reason)
    ]
    assert len(same) >= 79  # a tie within rounding aside
    for a, b in same:
        assert a.log_probs == pytest.approx(b.log_probs, abs=1e-4)
        assert a.score == pytest.approx(b.score, abs=1e-3)
        assert a.total == pytest.approx(sum(a.log_probs), abs=1e-4)


@pytest.mark.parametrize("name", BEAMS)
@pytest.mark.parametrize("options", ["pre", "post"])
def test_the_n_best_lists_of_a_beam_are_ours(name: str, options: str) -> None:
    """Also of sentences that are cut, and where smoothing has left <pad> and <s> much of the probability."""
    built, sources, search = model(**OPTIONS[options]), some_sources(60), early_beam(**BEAMS[name])
    with torch.no_grad():
        built.output.bias[:2] += 5.0
    limits = SearchConstraints(torch.tensor([3 if i % 4 == 0 else len(ids) + 9 for i, ids in enumerate(sources)]))
    engine = open_engine(built, "float32")
    assert search_blocker(built, search, limits) is None
    found = engine.add_token_log_probs(sources, engine(sources, search, limits))
    others = 0
    for ours, theirs in zip(found, search_by_reference(built, sources, search, limits), strict=True):
        if [(one.tokens, one.finish_reason) for one in ours] != [(one.tokens, one.finish_reason) for one in theirs]:
            others += 1  # a tie within rounding
            continue
        for a, b in zip(ours, theirs, strict=True):
            assert a.score == pytest.approx(b.score, abs=1e-4)
            assert a.total == pytest.approx(b.total, abs=1e-3)
            assert a.log_probs == pytest.approx(b.log_probs, abs=1e-4)
    assert others <= 1


def test_log_p_itself_as_the_score_ends_no_search_sooner() -> None:
    """CTranslate2 stops at the first finished hypothesis that leads where its length penalty is 0."""
    built, sources = model(), some_sources(60)
    with torch.no_grad():
        built.output.bias[EOS] += 2.0  # so that many hypotheses end
    search, limits = early_beam(beam=5, length_rule=Part("none")), SearchConstraints(torch.full((60,), 40))
    found = open_engine(built, "float32")(sources, search, limits)
    expected = search_by_reference(built, sources, search, limits)
    same = [
        [a.tokens for a in ours] == [b.tokens for b in theirs] for ours, theirs in zip(found, expected, strict=True)
    ]
    assert sum(same) >= 59  # a tie within rounding aside


@pytest.mark.parametrize("search", [GREEDY, early_beam(beam=3)], ids=["greedy", "beam"])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_batches_that_may_take_little_time_give_the_same_results(search: Search, precision: str) -> None:
    sources, engine = some_sources(40), open_engine(model(), precision)
    limits = SearchConstraints(torch.full((40,), 12))
    expected = engine(sources, search, limits)
    engine.converted.max_batch_seconds = 1e-4
    for found, whole in zip(engine(sources, search, limits), expected, strict=True):
        assert [one.tokens for one in found] == [one.tokens for one in whole]
        assert [one.score for one in found] == pytest.approx([one.score for one in whole], abs=1e-4)


@pytest.mark.parametrize("search", [GREEDY, early_beam(beam=3)], ids=["greedy", "beam"])
def test_in_int8_a_result_is_the_same_to_the_last_bit_alone_and_in_any_batch(search: Search) -> None:
    """float32 moves by its last bits with the padding; rounding to 8 bits could make that a whole step."""
    sources, engine = some_sources(60), open_engine(model(), "int8")

    def decode(rows: list[int]) -> list[list[Hypothesis] | None]:
        """Without what is left to others, which decode in float32."""
        some, converted_search = [sources[row] for row in rows], convert_search(search)
        assert isinstance(converted_search, ConvertedSearch)
        found = engine.converted.decode(some, [40] * len(rows), converted_search)
        with_log_probs = engine.add_token_log_probs(some, [nbest or [] for nbest in found])
        return [None if nbest is None else each for nbest, each in zip(found, with_log_probs, strict=True)]

    together = decode(list(range(60)))
    assert sum(nbest is not None for nbest in together) > 10
    order = random.sample(range(60), 60)
    for rows in ([order[i : i + 7] for i in range(0, 60, 7)], [[row] for row in order]):
        for some in rows:
            assert decode(some) == [together[row] for row in some]


def test_a_source_beyond_the_positions_that_were_written_out_is_decoded_by_the_reference() -> None:
    built = model(position=Part("learned", {"length": 40}))
    sources, limits = [[5] * 39 + [EOS], [6, EOS], [7, EOS]], SearchConstraints(torch.tensor([6, 6, 30]))
    engine = open_engine(built, "float32")
    engine.converted.positions = 20
    found = [hypotheses[0].tokens for hypotheses in engine(sources, GREEDY, limits)]
    assert found == [h.tokens for h in greedy_by_reference(built, sources, limits)]


def test_padding_and_the_beginning_are_never_generated() -> None:
    built, sources = model(), some_sources(10)
    with torch.no_grad():
        built.output.bias[:2] += 9.0
    limits = SearchConstraints(torch.full((10,), 6))
    engine = open_engine(built, "float32")
    found = [hypotheses[0].tokens for hypotheses in engine(sources, GREEDY, limits)]
    assert found == [h.tokens for h in greedy_by_reference(built, sources, limits)]


def test_a_source_of_nothing_but_its_end_is_decoded() -> None:
    built, sources, limits = model(), [[5, EOS], [EOS], [6, 7, EOS]], SearchConstraints(torch.full((3,), 4))
    found = [hypotheses[0].tokens for hypotheses in open_engine(built, "float32")(sources, GREEDY, limits)]
    assert found == [h.tokens for h in greedy_by_reference(built, sources, limits)]


def test_int8_says_nearly_the_same_and_leaves_the_model_as_it_was() -> None:
    built, sources = model(), some_sources(30)
    before = {name: weight.clone() for name, weight in built.state_dict().items()}
    limits = SearchConstraints(torch.full((30,), 1))
    engine = open_engine(built, "int8")
    assert all(weight.equal(before[name]) for name, weight in built.state_dict().items())
    pairs = list(zip(engine(sources, GREEDY, limits), greedy_by_reference(built, sources, limits), strict=True))
    apart = [abs(a[0].total - b.total) for a, b in pairs if a[0].tokens == b.tokens]
    assert len(apart) >= 20
    assert sum(apart) / len(apart) < 0.1


def test_torch_keeps_its_number_of_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        open_engine(model(), "float32")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_nothing_is_left_behind_by_a_conversion(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    open_engine(model(), "int8")
    assert not list(tmp_path.iterdir())


def test_what_it_would_do_otherwise_is_refused() -> None:
    built, longest = model(), torch.tensor([5])

    def serves(search: Search, limits: SearchConstraints) -> bool:
        return search_blocker(built, search, limits) is None

    assert serves(GREEDY, SearchConstraints(longest))
    assert serves(early_beam(), SearchConstraints(longest))
    for options in (
        {"early_stopping": False},
        {"early_stopping": "never"},
        {"finished_policy": "shrink"},
        {"coverage_penalty": 0.2},
        {"length_rule": Part("gnmt")},
        {"length_rule": Part("power", {"alpha": -0.5})},
        {"beam": 1},
        {"beam": V},
    ):
        assert not serves(early_beam(**options), SearchConstraints(longest)), options
    assert not serves(searches.build(Part("diverse")), SearchConstraints(longest))
    assert not serves(GREEDY, SearchConstraints(longest, 1))
    assert not serves(GREEDY, SearchConstraints(longest, processors=[lambda log_p, history, rows: log_p]))


@pytest.mark.parametrize(
    "options",
    [{"position": Part("rotary")}, {"key_heads": 2}, {"value_width": 12}, {"mixer": Part("ssru")}],
    ids=["rotary", "shared keys", "widths", "ssru"],
)
def test_a_model_it_would_compute_otherwise_is_refused(options: dict[str, Any]) -> None:
    side = Part("transformer", {"layers": 1, "heads": 4, **options})
    encoder = Part("transformer", {"layers": 1, "heads": 4})
    assert model_blocker(Seq2Seq(V, V, width=32, encoder=encoder, decoder=side), "int8") is not None
