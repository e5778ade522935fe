"""The fused Transformer, against the model's own modules."""

import os

import pytest
import torch

from dragoman.core.registry import Part
from dragoman.data.batching import collate
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.runtime.fused import Fused, serves
from dragoman.runtime.packing import pack

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
        {"norm": Part("rms"), "activation": "gelu", "key_heads": 1, "bias": False},
        {"position": Part("learned"), "activation": "swish", "norm_order": "post"},
    ],
)
def test_fused_loss_and_gradients_are_the_modules(options):
    pytest.importorskip("triton")
    torch.manual_seed(0)
    model = model_with(**options)
    assert serves(model)
    rows = [([5, 6, 7], [8, 9] * 16), ([10] * 9, [11, 12]), ([13], [14])]
    batch = collate(rows, [0, 1, 2])
    packed = pack(batch, 64)
    if DEVICE == "cuda":
        from dragoman.runtime.packing import tensors, with_tensors

        longest = packed.sources.longest, packed.targets.longest
        packed = with_tensors(packed, [x.to(DEVICE) for x in tensors(packed)], longest)
    weights = list(model.parameters())
    plain, fused = model.loss(batch.to(DEVICE), 0.1).sum, Fused(model, torch.float32)(packed, 0.1)
    torch.testing.assert_close(fused, plain)
    for mine, theirs in zip(torch.autograd.grad(fused, weights), torch.autograd.grad(plain, weights), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("options", [{"activation": "swiglu"}, {"position": Part("rotary")}, {"dropout": 0.1}])
def test_only_models_of_its_equations_are_fused(options):
    assert serves(model_with(**options)) == (options == {"dropout": 0.1})
