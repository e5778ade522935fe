"""The CUDA engine against the reference path.

Without a GPU everything but the recording runs on the CPU: slots, refilling, compacting, and the step of every
family of decoders; a Transformer's own step runs in Triton's interpreter.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

from torch import Tensor, nn

from dragoman.core import tree
from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, Capacity, Hypothesis, Memory, Output
from dragoman.engines.base import open_engine
from dragoman.engines.cuda import engine as cuda_engine
from dragoman.engines.cuda.encode import CUDASourceEncoder, EncodeBatch
from dragoman.engines.cuda.engine import CUDAEngine, model_blocker
from dragoman.engines.cuda.graphs import GraphRecorder
from dragoman.engines.cuda.slot_search import build_slot_search
from dragoman.engines.cuda.step import TransformerStep, TransformerWeights, transformer_step_blocker
from dragoman.engines.reference import decode_with_reference
from dragoman.nn.losses import output_log_probs
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import SearchConstraints, searches
from dragoman.search.logits_processors import NoUnkProcessor

from . import plain_kernels

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.backends.cudnn.allow_tf32 = False  # as select_device has it
V = 19
SMALL = {"layers": 1, "heads": 2}


def transformer(**options: Any) -> Part:
    return Part("transformer", SMALL | options)


def built(decoder: Part, **options: Any) -> Seq2Seq:
    """A small model that is sure enough of itself for ties to be rare, and that ends now and then."""
    encoder = Part("rnn") if decoder.name == "rnn" else Part("transformer", {"layers": 1, "heads": 2})
    model = Seq2Seq(V, V, width=16, encoder=encoder, decoder=decoder, **options).to(DEVICE).eval()
    with torch.no_grad():
        model.output.weight.mul_(3.0)
        model.output.bias[EOS] = 1.0
    return model


def search_kernels() -> Any:
    """Those of the GPU, where there is one: Triton's interpreter is slow, and some tests are about it."""
    if DEVICE.type == "cpu":
        return plain_kernels
    from dragoman.engines.cuda.kernels import search

    return search


def sentences(n: int) -> tuple[list[list[int]], SearchConstraints]:
    sources = [[*torch.randint(4, V, (int(m),)).tolist(), EOS] for m in torch.randint(0, 9, (n,))]
    return sources, SearchConstraints(torch.tensor([len(s) + 3 for s in sources]), torch.randint(0, 3, (n,)))


def assert_same(want: Sequence[Sequence[Hypothesis]], got: Sequence[Sequence[Hypothesis]]) -> None:
    for wanted, found in zip(want, got, strict=True):
        assert [(h.tokens, h.finish_reason) for h in found] == [(h.tokens, h.finish_reason) for h in wanted]
        for a, b in zip(wanted, found, strict=True):
            assert b.log_probs == pytest.approx(a.log_probs, abs=1e-4)
            assert b.score == pytest.approx(a.score, abs=1e-4)


FAMILIES = {
    "transformer": transformer(),
    "shaw": transformer(position=Part("shaw")),
    "xl": transformer(position=Part("xl", {"distance": 5})),
    "sparsemax": transformer(normalizer=Part("sparsemax")),
    "ssru": transformer(mixer=Part("ssru")),
    "average": transformer(mixer=Part("average")),
    "parameter free": transformer(mixer=Part("parameter_free")),
    "lstm, attention after": Part("rnn"),
    "gru, attention before": Part("rnn", {"cell": "gru", "order": "before", "layers": 2}),
    "rnn, context": Part("rnn", {"source": "context"}),
    "rnn, coverage": Part("rnn", {"score": Part("coverage")}),
    "conv": Part("conv", {"layers": 2}),
    "attention": Part("attention"),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_more_sentences_than_slots_get_the_results_of_the_reference_path(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if DEVICE.type == "cpu":  # a Transformer's own step is for Triton
        monkeypatch.setattr(cuda_engine, "transformer_step_blocker", lambda model: "there is no GPU")
    model, (sources, limits) = built(FAMILIES[name]), sentences(9)
    for search in (searches.build(Part("greedy")), searches.build(Part("beam", {"beam": 3}))):
        engine = CUDAEngine(model, torch.float32, search_kernels(), max_rows=4 * search.num_hypotheses)
        want = decode_with_reference(model, sources, search, limits)
        assert_same(want, engine(sources, search, limits))
        assert_same(want, engine(sources, search, limits))  # on decode graphs that exist, and have been used
        assert not engine.failed


@pytest.mark.parametrize("search", [Part("greedy"), Part("beam", {"beam": 2})], ids=["greedy", "beam"])
def test_steps_in_which_no_sentence_can_end_change_nothing(search: Part) -> None:
    """Nothing is polled before the shortest output can be done; then some end at once and others continue."""
    model, (sources, _) = built(FAMILIES["ssru"]), sentences(7)
    limits = SearchConstraints(torch.tensor([9, 12, 6, 7, 12, 11, 9]), torch.tensor([5, 9, 6, 7, 5, 11, 7]))
    engine = CUDAEngine(model, torch.float32, search_kernels(), max_rows=4 * searches.build(search).num_hypotheses)
    got = engine(sources, searches.build(search), limits)
    assert_same(decode_with_reference(model, sources, searches.build(search), limits), got)


def test_a_length_limit_of_nothing_and_one_sentence_alone_are_served() -> None:
    model, search = built(FAMILIES["ssru"]), searches.build(Part("beam", {"beam": 2}))
    engine = CUDAEngine(model, torch.float32, search_kernels())
    limits = SearchConstraints(torch.tensor([0]), 0)
    assert_same(decode_with_reference(model, [[5, 6, EOS]], search, limits), engine([[5, 6, EOS]], search, limits))
    assert engine([], search, SearchConstraints(torch.zeros(0, dtype=torch.long), 0)) == []


# -- a Transformer's own encoder and step ------------------------------------------------------------------------------

READERS = {
    "pre, two layers": transformer(layers=2, heads=1),
    "post, rms, swiglu": transformer(
        norm_order="post", norm=Part("rms"), activation="swiglu", position=Part("learned")
    ),
}


@torch.inference_mode()
@pytest.mark.parametrize("style", READERS)
def test_sources_end_to_end_become_the_keys_and_values_of_the_models_own_encoder(style: str) -> None:
    pytest.importorskip("triton")
    model = Seq2Seq(V, V, width=32, encoder=READERS[style], decoder=transformer(layers=2)).to(DEVICE).eval()
    encoding, lengths = CUDASourceEncoder(model, model, torch.float32, GraphRecorder(DEVICE)), [3, 0, 5]
    assert encoding.stack is not None
    source = torch.randint(4, V, (3, 5), device=DEVICE)
    ids = np.concatenate([source[i, :n].cpu().numpy() for i, n in enumerate(lengths)])
    memory = model.encode(source, torch.tensor(lengths, device=DEVICE))
    for slots in ([2, 0, 4], [1, 3, 0]):  # the second time as recorded, on a GPU
        keys, values, at = encoding(EncodeBatch(ids, np.array(lengths), np.array(slots)), 6)
        for i, layer in enumerate(model.decoder.stack.blocks):
            attention = layer.cross_attention
            for found, W in ((keys, attention.Wk), (values, attention.Wv)):
                laid = found.new_zeros(5 * 6, W.out_features)
                real = at >= 0
                laid[at[real].long()] = found[real, i * W.out_features : (i + 1) * W.out_features]
                want = torch.zeros(5, 6, W.out_features, device=DEVICE)
                for row, (slot, n) in enumerate(zip(slots, lengths, strict=True)):
                    want[slot, :n] = W(memory.states)[row, :n]
                torch.testing.assert_close(laid.view_as(want), want, atol=2e-5, rtol=1e-5)


STYLES = {
    "pre, two layers": transformer(layers=2),
    "post, rms, swiglu": transformer(norm_order="post", norm=Part("rms"), activation="swiglu", position=Part("none")),
    "rotary, shared keys": transformer(position=Part("rotary"), key_heads=1),
    "rotary in halves, gelu": transformer(position=Part("rotary", {"layout": "halves"}), activation="gelu"),
    "t5, odd widths": transformer(position=Part("t5"), width=20, key_width=6, value_width=3, score=Part("dot")),
    "alibi, no biases": transformer(position=Part("alibi"), bias=False, embedding_norm=True),
}


@torch.inference_mode()
@pytest.mark.parametrize("style", STYLES)
def test_a_step_in_place_gives_the_logits_of_the_models_own_step(style: str) -> None:
    """Two sentences of two hypotheses that change places; the second sentence enters a step later."""
    kernels = pytest.importorskip("dragoman.engines.cuda.kernels.search")
    part = STYLES[style]
    model = built(part, tie="none" if "width" in part.options else "output")
    assert transformer_step_blocker(model) is None
    weights = TransformerWeights(model, torch.float32)
    step = TransformerStep(CUDASourceEncoder(model, model, torch.float32, GraphRecorder(DEVICE)), weights, 2, 2, 8, 32)
    search = searches.build(Part("beam", {"beam": 2}))
    slot_search: Any = build_slot_search(search, 2, 32, V, DEVICE, kernels)
    assert step.ancestry is not None
    states: list[Any] = [None, None]
    for now in range(3):
        for b in (0, 1):
            if now == b:
                source = torch.randint(4, V, (1, 4 + b), device=DEVICE)
                slot, lengths = torch.tensor([b], device=DEVICE), torch.tensor([4 + b], device=DEVICE)
                step.admit(EncodeBatch(source[0].cpu().numpy(), lengths.cpu().numpy(), np.array([b])), slot, lengths)
                slot_search.reset(slot, torch.full((2, 1), 9, device=DEVICE))
                states[b] = model.start(model.encode(source, lengths), Capacity(2, 32))
        tokens, parents = torch.randint(4, V, (2, 2), device=DEVICE), torch.randint(0, 2, (2, 2), device=DEVICE)
        slot_search.token[:2] = tokens.int()
        logits = step(slot_search, 2)[:, :V].view(2, 2, V)
        for b in range(min(now, 1) + 1):
            want, states[b] = model.step(tokens[b : b + 1], states[b])
            torch.testing.assert_close(output_log_probs(logits[b : b + 1]), want, atol=2e-5, rtol=1e-5)
            states[b] = tree.reorder(states[b], parents[b : b + 1])
            t = int(slot_search.t[b])
            step.ancestry[b] = step.ancestry[b][parents[b]]  # as `beam_step` does
            step.ancestry[b, :, t] = parents[b].to(torch.int16)
            slot_search.t[b] += 1


def test_a_transformer_goes_through_all_its_kernels_to_the_results_of_the_reference_path() -> None:
    kernels = pytest.importorskip("dragoman.engines.cuda.kernels.search")
    model = built(transformer(position=Part("learned")))
    for search in (searches.build(Part("greedy")), searches.build(Part("beam", {"beam": 2}))):
        sources, limits = [[5, EOS], [6, 7, EOS], [8, EOS]], SearchConstraints(torch.tensor([1, 1, 2]), 1)
        engine = CUDAEngine(model, torch.float32, kernels, max_rows=2 * search.num_hypotheses)
        assert engine.weights is not None
        assert_same(decode_with_reference(model, sources, search, limits), engine(sources, search, limits))
        assert not engine.failed


# -- what is not served ------------------------------------------------------------------------------------------------


def test_rules_and_traces_are_left_to_the_reference_path() -> None:
    engine, search = CUDAEngine(built(Part("rnn")), torch.float32, search_kernels()), searches.build(Part("beam"))
    assert engine.serves(search, SearchConstraints(torch.tensor([5])))
    assert not engine.serves(search, SearchConstraints(torch.tensor([5]), processors=[NoUnkProcessor()]))
    assert not engine.serves(search, SearchConstraints(torch.tensor([5]), traces={}))


def test_there_is_no_engine_for_a_model_that_is_not_on_a_gpu_or_of_another_kind() -> None:
    gpu, model = torch.device("cuda"), built(Part("rnn"))
    assert model_blocker(model, gpu, "float32") is None
    assert model_blocker(model, torch.device("cpu"), "float32") == "it runs on a GPU, and the device is cpu"
    assert model_blocker(model, gpu, "int8") == "it computes in float32 or bfloat16, not in int8"
    assert open_engine(nn.Linear(2, 2), gpu, "float32") is None
    copies = Seq2Seq(V, V, width=16, encoder=Part("rnn"), decoder=Part("rnn"), pointer=Part("additive"))
    assert "copies words" in (model_blocker(copies, gpu, "float32") or "")


@dataclass
class Growing:
    y: Tensor  # (B, K, t, D)


class Remembers(nn.Module):
    """o = the mean of all inputs so far, in a state that is longer at every step."""

    d = 16

    def start(self, memory: Memory, capacity: Capacity) -> Growing:
        h = memory.summary[:, None, None]
        return Growing(h.expand(-1, capacity.hypotheses, -1, -1))

    def step(self, y: Tensor, state: Growing) -> tuple[Output, Growing]:
        longer = torch.cat([state.y, y[:, :, None]], 2)
        return Output(longer.mean(2)), Growing(longer)


def test_a_state_that_grows_falls_back_to_the_reference_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model, (sources, limits) = built(Part("rnn")), sentences(5)
    model.decoder = Remembers()
    engine, search = CUDAEngine(model, torch.float32, search_kernels()), searches.build(Part("greedy"))
    with caplog.at_level(logging.WARNING, "dragoman"):
        got = engine(sources, search, limits)
    assert_same(decode_with_reference(model, sources, search, limits), got)
    assert len(caplog.records) == 1
    assert not engine.serves(search, limits)


# -- on a GPU ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("name", FAMILIES)
def test_recorded_steps_give_the_results_of_the_reference_path(name: str) -> None:
    model, (sources, limits) = built(FAMILIES[name]), sentences(40)
    engine = open_engine(model, DEVICE, "float32")
    assert isinstance(engine, CUDAEngine)
    for search in (searches.build(Part("greedy")), searches.build(Part("beam", {"beam": 3}))):
        assert_same(decode_with_reference(model, sources, search, limits), engine(sources, search, limits))
        assert not engine.failed


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_bfloat16_stays_near_float32() -> None:
    model, (sources, limits) = built(FAMILIES["transformer"]), sentences(40)
    engine, search = open_engine(model, DEVICE, "bfloat16"), searches.build(Part("greedy"))
    assert isinstance(engine, CUDAEngine)
    want, got = decode_with_reference(model, sources, search, limits), engine(sources, search, limits)
    first = [
        (w[0].log_probs[0], g[0].log_probs[0]) for w, g in zip(want, got, strict=True) if w[0].tokens == g[0].tokens
    ]
    assert len(first) > 10
    assert all(b == pytest.approx(a, abs=0.2) for a, b in first)
    assert BOS not in {token for best in got for token in best[0].tokens}


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_graphs_are_recorded_when_all_earlier_ones_are_gone() -> None:
    graphs, x = GraphRecorder(DEVICE), torch.zeros(4, device=DEVICE)
    for _ in range(3):
        add = graphs.record(lambda: x.add_(torch.ones(4, device=DEVICE)))  # which runs once before it is recorded
        add()
        del add
    assert x.tolist() == [6.0] * 4
