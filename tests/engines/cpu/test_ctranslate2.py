"""CTranslate2 with our weights says what our own greedy search says."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.core.errors import MissingExtra
from dragoman.core.registry import Part
from dragoman.core.types import EOS, Hypothesis
from dragoman.engines.cpu.ctranslate2 import CTranslate2Engine, model_blocker, search_blocker
from dragoman.engines.length_batches import pad_ids
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


@torch.inference_mode()
def decode_with_reference(model: Seq2Seq, sources: list[list[int]], limits: SearchConstraints) -> list[Hypothesis]:
    memory = model.encode(*pad_ids(sources))
    return [found[0] for found in GREEDY(model.step, lambda capacity: model.start(memory, capacity), limits)]


@pytest.mark.parametrize("name", OPTIONS)
def test_greedy_results_and_the_log_p_of_their_tokens_are_ours(name: str) -> None:
    pytest.importorskip("ctranslate2")
    built, sources = model(**OPTIONS[name]), some_sources(80)
    limits = SearchConstraints(torch.tensor([2 if i % 3 else len(source) + 4 for i, source in enumerate(sources)]))
    engine = CTranslate2Engine(built, "float32")
    assert search_blocker(built, GREEDY, limits) is None
    expected = decode_with_reference(built, sources, limits)
    found = [hypotheses[0] for hypotheses in engine(sources, GREEDY, limits)]
    same = [
        (a, b)
        for a, b in zip(found, expected, strict=True)
        if (a.tokens, a.finish_reason) == (b.tokens, b.finish_reason)
    ]
    assert len(same) >= 79  # a tie within rounding aside
    for a, b in same:
        assert a.log_probs == pytest.approx(b.log_probs, abs=1e-4)
        assert a.score == pytest.approx(b.score, abs=1e-3)


def test_a_result_with_padding_or_a_beginning_in_it_is_asked_for_again() -> None:
    pytest.importorskip("ctranslate2")
    built, sources = model(), some_sources(10)
    with torch.no_grad():
        built.output.bias[:2] += 9.0
    limits = SearchConstraints(torch.full((10,), 6))
    engine = CTranslate2Engine(built, "float32")
    found = [hypotheses[0].tokens for hypotheses in engine(sources, GREEDY, limits)]
    assert found == [h.tokens for h in decode_with_reference(built, sources, limits)]


def test_a_source_of_nothing_but_its_end_is_decoded() -> None:
    pytest.importorskip("ctranslate2")
    built, sources, limits = model(), [[5, EOS], [EOS], [6, 7, EOS]], SearchConstraints(torch.full((3,), 4))
    found = [hypotheses[0].tokens for hypotheses in CTranslate2Engine(built, "float32")(sources, GREEDY, limits)]
    assert found == [h.tokens for h in decode_with_reference(built, sources, limits)]


def test_int8_says_nearly_the_same_and_leaves_the_model_as_it_was() -> None:
    pytest.importorskip("ctranslate2")
    built, sources = model(), some_sources(30)
    before = {name: weight.clone() for name, weight in built.state_dict().items()}
    limits = SearchConstraints(torch.full((30,), 1))
    engine = CTranslate2Engine(built, "int8")
    assert all(weight.equal(before[name]) for name, weight in built.state_dict().items())
    pairs = list(zip(engine(sources, GREEDY, limits), decode_with_reference(built, sources, limits), strict=True))
    apart = [abs(a[0].log_probs[0] - b.log_probs[0]) for a, b in pairs if a[0].tokens == b.tokens]
    assert len(apart) >= 20
    assert sum(apart) / len(apart) < 0.1


def test_nothing_is_left_behind_by_a_conversion(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    CTranslate2Engine(model(), "int8")
    assert not list(tmp_path.iterdir())


def test_what_it_would_do_otherwise_is_refused() -> None:
    built, longest = model(position=Part("learned", {"length": 40})), torch.tensor([5])

    def serves(search: Search, limits: SearchConstraints) -> bool:
        return search_blocker(built, search, limits) is None

    assert serves(GREEDY, SearchConstraints(longest))
    assert not serves(searches.build(Part("beam")), SearchConstraints(longest))
    assert not serves(GREEDY, SearchConstraints(longest, 1))
    assert not serves(GREEDY, SearchConstraints(torch.tensor([40])))
    assert not serves(GREEDY, SearchConstraints(longest, processors=[lambda log_p, history, rows: log_p]))


def test_the_length_that_its_beam_divides_by_counts_the_end() -> None:
    pytest.importorskip("ctranslate2")
    engine = CTranslate2Engine(model(), "float32")
    ended = 0
    for source in some_sources(40):
        words = [[engine.token_names[i] for i in source]]
        sums, means = (
            engine.translator.translate_batch(
                words, beam_size=4, num_hypotheses=4, max_decoding_length=50, return_scores=True, length_penalty=penalty
            )[0]
            for penalty in (0, 1)
        )
        found = {tuple(tokens): score for tokens, score in zip(sums.hypotheses, sums.scores, strict=True)}
        for tokens, mean in zip(map(tuple, means.hypotheses), means.scores, strict=True):
            if tokens in found and len(tokens) < 50:  # one that was not cut
                ended += 1
                assert mean == pytest.approx(found[tokens] / (len(tokens) + 1), rel=1e-4)
    assert ended


@pytest.mark.parametrize(
    "options",
    [{"position": Part("rotary")}, {"key_heads": 2}, {"value_width": 12}, {"mixer": Part("ssru")}],
    ids=["rotary", "shared keys", "widths", "ssru"],
)
def test_a_model_it_would_compute_otherwise_is_refused(options: dict[str, Any]) -> None:
    side = Part("transformer", {"layers": 1, "heads": 4, **options})
    encoder = Part("transformer", {"layers": 1, "heads": 4})
    assert model_blocker(Seq2Seq(V, V, width=32, encoder=encoder, decoder=side), "int8") is not None


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(MissingExtra, match=r"pip install 'dragoman\[ctranslate2\]'"):
        CTranslate2Engine(model(), "int8")
