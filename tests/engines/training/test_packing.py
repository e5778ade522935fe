"""Rows laid end to end: the same loss and the same gradients as with padding, and which models can do it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import PAD
from dragoman.data.batching import collate
from dragoman.data.objectives import TrainingRow
from dragoman.engines.training.packing import PackedShape, can_hold, pack, packed_shape
from dragoman.nn.seq2seq import Seq2Seq

ids = st.lists(st.integers(4, 19), min_size=1, max_size=40)
pairs = st.lists(st.tuples(ids, ids), min_size=1, max_size=6)


def transformer(**options):
    shared = {"layers": 2, "heads": 2, "dropout": 0.0, **options}
    parts = {"encoder": Part("transformer", shared), "decoder": Part("transformer", shared)}
    return Seq2Seq(20, 20, width=16, **parts).double()


@settings(deadline=None, max_examples=60)
@given(pairs, st.sampled_from([1, 8, 64]), st.tuples(*[st.sampled_from([0, 64, 128])] * 2, st.integers(0, 8)))
def test_packing_keeps_every_token_at_its_place_and_fills_up_with_padding(rows, multiple, more):
    batch = collate(rows, list(range(len(rows))))
    own = packed_shape(batch, multiple)
    larger = PackedShape(*(size + extra for size, extra in zip(own, more, strict=True)))
    assert can_hold(own, batch, own)
    packed = pack(batch, into=larger) if can_hold(larger, batch, own) else pack(batch, multiple)
    for side, flat, wanted in (
        (packed.sources, packed.source, [source for source, _ in rows]),
        (packed.targets, packed.gold, [target for _, target in rows]),
    ):
        pieces = flat[0].split(side.starts.diff().tolist())
        assert [piece.tolist() for piece in pieces[: len(rows)]] == wanted
        assert all((piece == PAD).all() for piece in pieces[len(rows) :])
        assert flat.shape[1] % multiple == 0
        assert flat.shape[1] == side.starts[-1] == side.lengths.sum()
        assert side.positions[0].tolist() == [i for n in side.lengths.tolist() for i in range(n)]
        assert side.max_length >= side.lengths.max()
    assert len(packed.sources.lengths) == len(packed.targets.lengths)


@pytest.mark.parametrize("multiple", [1, 64])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm_order": "post", "position": Part("learned")},
        {"position": Part("rotary"), "key_heads": 1, "norm": Part("rms")},
        {"position": Part("none"), "bias": False, "activation": "swiglu", "embedding_norm": True},
    ],
)
def test_the_packed_loss_and_its_gradients_are_the_padded_ones(options, multiple):
    torch.manual_seed(0)
    model = transformer(**options)
    assert model.packing_blocker() is None
    rows = [([4] * 3, [5, 6, 7, 8]), ([9, 10, 11, 12, 13], [14]), ([15], [16, 17])]
    batch = collate(rows, [0, 1, 2])
    weights = list(model.parameters())
    padded, packed = model.loss(batch, 0.1), model.packed_loss(pack(batch, multiple), 0.1)
    torch.testing.assert_close(packed, padded)
    found = zip(torch.autograd.grad(packed, weights), torch.autograd.grad(padded, weights), strict=True)
    for mine, theirs in found:
        torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=1e-7)


def test_packing_refuses_token_labels():
    with pytest.raises(PartError, match="must set has_token_labels = True"):
        pack(collate([TrainingRow([4, 5], [6], [7, PAD])], [0]))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"attention_dropout": 0.1}, "weights"),
        ({"position": Part("alibi")}, "scores"),
        ({"layer_drop": 0.2}, "layer_drop"),
        ({"normalizer": Part("sparsemax")}, "softmax"),
        ({"norm": Part("batch")}, "batch norm"),
    ],
)
def test_a_model_that_needs_padding_says_why(options, why):
    decoder = {key: value for key, value in options.items() if key != "norm"}
    model = Seq2Seq(20, 20, width=16, encoder=Part("transformer", options), decoder=Part("transformer", decoder))
    assert why in model.packing_blocker()
    assert Seq2Seq(20, 20, width=16, encoder=Part("rnn")).packing_blocker() is not None
