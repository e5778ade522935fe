"""Labels from an encoder alone, against plain loops over the real positions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, PAD, SPECIALS, Batch, Memory, Segments
from dragoman.data.batching import collate
from dragoman.data.objectives import TrainingRow
from dragoman.nn.heads import heads
from dragoman.nn.seq2seq import Seq2Seq

D, LENGTHS = 3, [4, 1, 2]


def a_memory() -> Memory:
    return Memory(torch.randn(3, 4, D), torch.tensor(LENGTHS), torch.randn(3, D))


def pooled(pool: str, memory: Memory, query: Tensor | None) -> tuple[list[list[float]], list[list[float]]]:
    """One vector for each row, and the weights of its real positions, in float64 loops."""
    vectors, weights = [], []
    for h, n, summary in zip(memory.states.tolist(), LENGTHS, memory.summary.tolist(), strict=True):
        a = [1.0 / n] * n
        if query is not None:
            e = [
                math.exp(sum(x * y for x, y in zip(h[j], query.tolist(), strict=True)) / math.sqrt(D)) for j in range(n)
            ]
            a = [x / sum(e) for x in e]
        mean = [sum(a[j] * h[j][i] for j in range(n)) for i in range(D)]
        vectors.append({"summary": summary, "first": h[0]}.get(pool, mean))
        weights.append(a)
    return vectors, weights


@pytest.mark.parametrize("pool", ["summary", "mean", "first", "attention"])
def test_a_classifier_pools_the_real_positions(pool: str) -> None:
    memory = a_memory()
    bare = heads.build(Part("classifier", {"pool": pool, "hidden": False}), D).eval()  # type: ignore[attr-defined]
    expected, weights = pooled(pool, memory, getattr(bare, "query", None))
    output = bare(memory)
    assert_close(output.o, torch.tensor(expected)[:, None])
    assert (output.attention is not None) == (pool == "attention")
    if output.attention is not None:
        for a, wanted in zip(output.attention[:, 0], weights, strict=True):
            assert_close(a, torch.tensor([*wanted, *[0.0] * (4 - len(wanted))]))
    hidden = heads.build(Part("classifier", {"pool": pool}), D).eval()  # type: ignore[attr-defined]
    expected, _ = pooled(pool, memory, getattr(hidden, "query", None))
    assert_close(hidden(memory).o[:, 0], torch.tanh(torch.tensor(expected) @ hidden.W.weight.T + hidden.W.bias))


def test_a_tagger_s_hidden_layer_is_bert_s() -> None:
    memory = a_memory()
    plain = heads.build(Part("tagger"), D).eval()  # type: ignore[attr-defined]
    assert torch.equal(plain(memory).o, memory.states)
    head = heads.build(Part("tagger", {"hidden": True}), D).eval()  # type: ignore[attr-defined]
    W = head.transform[0]
    x = memory.states @ W.weight.T + W.bias
    x = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    wanted = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)
    assert_close(head(memory).o, wanted)


def test_a_classifier_chooses_the_best_labels_and_never_a_special() -> None:
    log_p = torch.tensor([[[0.4, 0.3, 0.1, 0.1, 0.02, 0.05, 0.03]], [[0.1, 0.1, 0.1, 0.1, 0.3, 0.1, 0.2]]]).log()
    found = heads.build(Part("classifier"), D).predict_labels(log_p, torch.tensor([3, 2]), 2)
    assert [[h.tokens for h in best] for best in found] == [[[5], [6]], [[4], [6]]]
    assert found[0][0].score == pytest.approx(math.log(0.05))
    assert len(heads.build(Part("classifier"), D).predict_labels(log_p, torch.tensor([3, 2]), 99)[0]) == 7 - len(
        SPECIALS
    )


def test_a_tagger_labels_every_position_but_the_end() -> None:
    log_p = torch.full((2, 3, 6), 0.1)
    log_p[0, 0, 5] = log_p[0, 1, 4] = log_p[1, 0, 5] = 0.5
    log_p[..., PAD] = 0.9
    found = heads.build(Part("tagger"), D).predict_labels(log_p.log(), torch.tensor([3, 2]), 1)
    assert [[h.tokens for h in best] for best in found] == [[[5, 4]], [[5]]]
    assert found[0][0].total == pytest.approx(2 * math.log(0.5))
    assert len(found[1][0].log_probs) == 1


@pytest.mark.parametrize("head", ["classifier", "tagger"])
def test_a_model_with_a_head_gives_each_row_what_it_gives_it_alone(head: str) -> None:
    model = Seq2Seq(8, 9, width=4, encoder=Part("rnn"), decoder=None, head=Part(head), tie="none").eval()
    rows = [TrainingRow([4, 5, 6, EOS], [7], [7, 5, 8, PAD]), TrainingRow([6, EOS], [8], [4, PAD])]
    rows = [row._replace(token_labels=None) if head == "classifier" else row._replace(target=[]) for row in rows]
    batch = collate(rows, [0, 1])
    logits, gold, _ = model(batch)
    wanted = [[7], [8]] if head == "classifier" else [[7, 5, 8, PAD], [4, PAD, PAD, PAD]]
    assert gold.tolist() == wanted
    assert logits.shape == (*gold.shape, 9)
    assert batch.tokens == (2 if head == "classifier" else 4)
    alone = [model.loss(collate([row], [0])).item() for row in rows]
    assert model.loss(batch).item() == pytest.approx(sum(alone), rel=1e-5)


def test_a_tagger_without_token_labels_has_no_gold_labels() -> None:
    ids = torch.tensor([[4, EOS]])
    batch = Batch(ids, torch.tensor([2]), torch.tensor([[BOS]]), torch.tensor([1]))
    assert heads.build(Part("tagger"), D).gold_labels(batch).tolist() == [[PAD, PAD]]


def test_the_mean_over_segments_is_that_of_the_real_positions() -> None:
    x = torch.randn(3, 4, D)
    x[1] = math.nan  # nothing of a row without positions is looked at
    found = Segments(torch.tensor([3, 0, 1])).mean(x)
    assert_close(found, torch.stack([x[0, :3].mean(0), torch.zeros(D), x[2, 0]]))
