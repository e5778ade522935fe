"""The fused Transformer, against the model's own modules."""

import os

import pytest
import torch

from dragoman.core import tree
from dragoman.core.registry import Part
from dragoman.core.types import PAD
from dragoman.data.batching import collate
from dragoman.engines.training.fused_transformer import FusedTransformer, fused_transformer_blocker
from dragoman.engines.training.packing import pack
from dragoman.nn.seq2seq import Seq2Seq

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def model_with(**options):
    shared = {"layers": 2, "heads": 2, "dropout": 0.0, **options}
    parts = {"encoder": Part("transformer", shared), "decoder": Part("transformer", shared)}
    return Seq2Seq(50, 50, width=32, **parts).to(DEVICE)


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param(
            {"norm": Part("rms"), "activation": "gelu", "key_heads": 1, "bias": False}, marks=pytest.mark.long
        ),
        pytest.param(
            {"position": Part("learned"), "activation": "swish", "norm_order": "post"}, marks=pytest.mark.long
        ),
    ],
)
def test_fused_loss_and_gradients_are_the_modules(options):
    pytest.importorskip("triton")
    torch.manual_seed(0)
    model = model_with(**options)
    assert fused_transformer_blocker(model) is None
    batch, packed = a_batch([([5, 6, 7], [8, 9] * 16), ([10] * 9, [11, 12]), ([13], [14])], 64)
    weights = list(model.parameters())
    plain, fused = model.loss(batch.to(DEVICE), 0.1), FusedTransformer(model, torch.float32)(packed, 0.1)
    torch.testing.assert_close(fused, plain)
    for mine, theirs in zip(torch.autograd.grad(fused, weights), torch.autograd.grad(plain, weights), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-3)


def test_two_passes_drop_different_things_and_pay_for_disagreeing():
    """The loss of two passes by hand: the mean of both, and half of ρ times Σ ½ (KL(p‖q) + KL(q‖p))."""
    pytest.importorskip("triton")
    torch.manual_seed(0)
    model, rho = model_with(dropout=0.3, layers=1).train(), 2.0
    _, packed = a_batch([([5, 6, 7], [8, 9, 10]), ([11], [12])], 8)
    fused = FusedTransformer(model, torch.float32)
    found = fused(packed, 0.0, rho)
    fused.site = 0
    gold = packed.gold[0]
    log_p, log_q = (model.logits(fused._hidden(packed)).log_softmax(-1)[gold != PAD] for _ in range(2))
    kept = gold[gold != PAD]
    said = sum(-x[range(len(kept)), kept].sum() / 2 for x in (log_p, log_q))
    kl = (log_p.exp() * (log_p - log_q)).sum() + (log_q.exp() * (log_q - log_p)).sum()
    assert kl > 0.1
    torch.testing.assert_close(found, said + rho / 2 * kl / 2)
    assert not torch.allclose(log_p, log_q)


def a_batch(rows, multiple):
    """Pairs, padded and packed."""
    batch = collate(rows, list(range(len(rows))))
    packed = pack(batch, multiple)
    return batch, tree.map(lambda x: x.to(DEVICE), packed)


@pytest.mark.parametrize("options", [{"activation": "swiglu"}, {"position": Part("rotary")}, {"dropout": 0.1}])
def test_only_models_of_its_equations_are_fused(options):
    assert (fused_transformer_blocker(model_with(**options)) is None) == (options == {"dropout": 0.1})
