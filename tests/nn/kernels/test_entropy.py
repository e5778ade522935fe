"""The output layer and the loss in one, against torch's linear and cross entropy."""

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from dragoman.core.types import PAD
from dragoman.nn.kernels import entropy
from dragoman.nn.kernels.entropy import linear_cross_entropy


def truth(o, W, b, gold, smoothing):
    return cross_entropy(linear(o, W, b), gold, ignore_index=PAD, label_smoothing=smoothing, reduction="sum")


def numbers(N=23, D=6, V=40, biased=True):
    generator = torch.Generator().manual_seed(N)
    o, W, b = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((N, D), (V, D), (V,)))
    gold = torch.randint(0, V, (N,), generator=generator)
    gold[::5] = PAD
    return o.requires_grad_(), W.requires_grad_(), b.requires_grad_() if biased else None, gold


@pytest.mark.parametrize("held", [1, 7, 1000])  # rows of logits held at a time
@pytest.mark.parametrize(("smoothing", "biased"), [(0.0, True), (0.1, True), (0.1, False)])
def test_loss_and_gradients_are_torchs_however_few_logits_are_held(monkeypatch, held, smoothing, biased):
    o, W, b, gold = numbers(biased=biased)
    monkeypatch.setattr(entropy, "LOGIT_BYTES_CPU", held * 40 * 8)
    found, wanted = linear_cross_entropy(o, W, b, gold, smoothing), truth(o, W, b, gold, smoothing)
    torch.testing.assert_close(found, wanted)
    leaves = [x for x in (o, W, b) if x is not None]
    for mine, theirs in zip(
        torch.autograd.grad(found / 3, leaves), torch.autograd.grad(wanted / 3, leaves), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_the_loss_of_nothing_is_zero():
    o, W, b, gold = numbers(N=4)
    assert linear_cross_entropy(o[:0], W, b, gold[:0], 0.1) == 0
    assert linear_cross_entropy(o, W, b, torch.full_like(gold, PAD), 0.1) == 0


def test_the_kernel_reads_gold_tokens_that_do_not_lie_side_by_side(device):
    from dragoman.nn.kernels import entropy_triton

    targets = torch.tensor([[1, 5, 2], [1, 9, 2], [1, 11, 2]], device=device)
    z = torch.randn(3, 16, generator=torch.Generator().manual_seed(0)).to(device)
    wanted = cross_entropy(z, targets[:, 1], reduction="none")
    torch.testing.assert_close(entropy_triton.overwrite_with_gradient(z, targets[:, 1:2].flatten(), 0.0), wanted)


@pytest.mark.parametrize("V", [40, 1000, 70_000])  # the last is more than a program holds at once
def test_the_kernel_turns_logits_into_torchs_loss_and_gradient(device, V):
    from dragoman.nn.kernels import entropy_triton

    z = (3 * torch.randn(5, V, generator=torch.Generator().manual_seed(V))).to(device)
    gold = torch.tensor([1, V - 1, PAD, 7, 7], device=device)
    leaf = z.clone().requires_grad_()
    losses = cross_entropy(leaf, gold, ignore_index=PAD, label_smoothing=0.1, reduction="none")
    (wanted,) = torch.autograd.grad(losses.sum(), leaf)
    torch.testing.assert_close(
        entropy_triton.overwrite_with_gradient(z, gold, 0.1), losses.detach(), atol=1e-4, rtol=1e-5
    )
    torch.testing.assert_close(z, wanted, atol=1e-6, rtol=1e-4)
