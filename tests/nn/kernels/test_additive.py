"""The additive score by sigmoids is the one by tanh, and so is its gradient."""

from __future__ import annotations

import torch

from dragoman.nn.kernels.additive import additive_score


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_the_score_is_v_times_the_tanh_of_each_sum():
    q, k, v = draw(2, 3, 5), draw(2, 4, 5), draw(5)
    e = additive_score(q, k, v)
    for b in range(2):
        for t in range(3):
            for s in range(4):
                torch.testing.assert_close(e[b, t, s], (v * torch.tanh(q[b, t] + k[b, s])).sum())


def test_the_gradient_is_that_of_small_differences():
    assert torch.autograd.gradcheck(additive_score, (draw(2, 3, 5), draw(2, 4, 5), draw(5)))
    assert torch.autograd.gradcheck(additive_score, (draw(2, 2, 3, 5), draw(1, 2, 4, 5), draw(5)))  # keys are shared


def test_float32_is_right_to_its_last_digits_also_where_tanh_is_flat_or_steep():
    q, k, v = torch.linspace(-20, 20, 400).view(1, -1, 1), torch.tensor([[[0.0]]]), torch.ones(1)
    found, exact = additive_score(q, k, v), torch.tanh(q.double() + k).transpose(-1, -2)[:, 0, :, None]
    torch.testing.assert_close(found.double(), exact, atol=2e-7, rtol=0.0)


def test_half_precision_keeps_to_tanh():
    q, k, v = (torch.full(shape, 0.001, dtype=torch.bfloat16) for shape in ((1, 1, 8), (1, 1, 8), (8,)))
    torch.testing.assert_close(additive_score(q, k, v), (torch.tanh(q + k) @ v)[..., None])
