"""A model that says words or points at them: p(w) in plain loops, and the two ends of its gate."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from dragoman.core import tree
from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, Batch, Capacity
from dragoman.data.batching import collate
from dragoman.nn.losses import output_log_probs
from dragoman.nn.seq2seq import Seq2Seq

V = 9
DECODERS = {
    "rnn": Part("rnn", {"source": "initial"}),
    "transformer": Part("transformer", {"layers": 1, "heads": 2}),
}


def a_model(decoder: str = "transformer", score: str = "general") -> Seq2Seq:
    encoder = Part("rnn", {"width": 6})
    return Seq2Seq(V, V, width=4, encoder=encoder, decoder=DECODERS[decoder], pointer=Part(score)).eval()


def a_batch() -> Batch:
    return collate([([4, 5, 4, 8, EOS], [5, EOS]), ([6, EOS], [7, 6, 6, EOS])], [0, 1])


@torch.no_grad()
def in_loops(model: Seq2Seq, batch: Batch) -> list[list[list[float]]]:
    """p(w) = g softmax(logits)_w + (1 − g) Σ_{j: x_j = w} a_j, from the decoder's own o."""
    assert model.pointer is not None
    memory = model.encode(batch.source, batch.source_lengths)
    y = model.embedding(batch.target[:, :-1])
    o = model.decoder(y, memory).o
    W, gate = model.pointer.attention.score.W.weight, model.pointer.gate  # type: ignore[union-attr]
    result = []
    for b, n in enumerate(batch.source_lengths.tolist()):
        result.append([])
        h = memory.states[b, :n]
        for t in range(o.shape[1]):
            e = [float(o[b, t] @ W @ h[j]) for j in range(n)]
            a = [math.exp(x) / sum(math.exp(z) for z in e) for x in e]
            c = sum(a[j] * h[j] for j in range(n))
            g = float(torch.sigmoid(gate.weight[0] @ torch.cat([o[b, t], c, y[b, t]]) + gate.bias[0]))  # type: ignore[list-item]
            p = [g * x for x in model.logits(o[b, t]).softmax(-1).tolist()]
            for j in range(n):
                p[int(batch.source[b, j])] += (1 - g) * a[j]
            result[-1].append(p)
    return result


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_probability_of_a_word_is_that_of_saying_it_and_of_pointing_at_it(decoder: str) -> None:
    model, batch = a_model(decoder), a_batch()
    p = model(batch).logits.exp()
    assert_close(p.sum(-1), torch.ones(2, 4))
    assert_close(p, torch.tensor(in_loops(model, batch)))


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_pointer_s_steps_equal_its_pass_for_every_hypothesis_in_any_order(decoder: str) -> None:
    model, batch = a_model(decoder), a_batch()
    inputs = torch.tensor([[[BOS, 4, 5], [BOS, 6, 7]], [[BOS, 6, 8], [BOS, 4, 4]]])  # two hypotheses of two sentences
    state = model.start(model.encode(batch.source, batch.source_lengths), Capacity(2, 3))
    found = []
    for t in range(3):
        log_p, state = model.step(inputs[:, :, t], state)
        found.append(log_p)
        if t == 1:  # what has been read goes along when hypotheses change places
            state, inputs = tree.reorder(state, torch.tensor([[1, 0], [0, 1]])), inputs.clone()
            inputs[0] = inputs[0].flip(0)
            found = [torch.stack([log_p[0].flip(0), log_p[1]]) for log_p in found]
    for k in range(2):
        forced = Batch(
            batch.source,
            batch.source_lengths,
            torch.cat([inputs[:, k], torch.full((2, 1), EOS)], 1),
            torch.tensor([4, 4]),
        )
        assert_close(torch.stack(found, 2)[:, k], output_log_probs(model(forced).logits))


def test_the_gate_decides_between_saying_and_copying() -> None:
    model, batch = a_model(), a_batch()
    assert model.pointer is not None
    with torch.no_grad():
        model.pointer.gate.weight.zero_()
        model.pointer.gate.bias.fill_(60.0)
        memory = model.encode(batch.source, batch.source_lengths)
        said = model.logits(model.decode(batch.target[:, :-1], memory).o).softmax(-1)
        assert_close(model(batch).logits.exp(), said)
        model.pointer.gate.bias.fill_(-60.0)
        p = model(batch).logits.exp()
    assert_close(p[0][:, [EOS, 4, 5, 8]].sum(-1), torch.ones(4))  # nothing but words of the source
    assert p[0][:, [3, 6, 7]].max() < 1e-6
    assert_close(p[1][:, [EOS, 6]].sum(-1), torch.ones(4))
    a = model.decode(batch.target[:, :-1], memory).attention
    assert a is not None
    assert_close(p[0][:, 4], a[0, :, 0] + a[0, :, 2])  # a word that stands twice is pointed at twice
    assert model.loss(batch).isfinite()  # though the second target has a word that cannot be copied


def test_a_score_that_needs_past_weights_and_two_vocabularies_are_refused() -> None:
    with pytest.raises(PartError, match="use 'general'"):
        a_model(score="coverage")
    with pytest.raises(PartError, match="joint vocabulary"):
        Seq2Seq(V, V + 1, width=4, encoder=Part("rnn"), decoder=Part("rnn"), pointer=Part("general"))
