"""Dropout, residual, norm and activation in one pass, against the same in torch's own steps."""

import math

import pytest
import torch
from torch.nn import functional as F

N, D = 13, 24
SEED = torch.tensor([123_456_789_012_345])


def draws(*shapes, device):
    return [torch.randn(*shape, device=device).requires_grad_() for shape in shapes]


def assert_same_gradients(found, wanted, leaves):
    weights = [torch.randn_like(x) for x in found]
    mine, theirs = torch.autograd.grad(found, leaves, weights), torch.autograd.grad(wanted, leaves, weights)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("centered", [True, False])
def test_adding_and_norming_at_once_is_adding_then_norming(device, centered, p):
    from dragoman.nn.kernels.fused_triton import AddNorm

    x, f, b, g, c = draws((N, D), (N, D), (D,), (D,), (D,), device=device)
    offset = c if centered else None
    total, y = AddNorm.apply(x, f, b, g, offset, 1e-5, centered, p, SEED.to(device), 3, torch.float32)
    kept = (total != x) if p else torch.ones_like(x)
    plain = x + (f + b) * kept / (1 - p)
    norm = F.layer_norm(plain, (D,), g, c, 1e-5) if centered else F.rms_norm(plain, (D,), g, 1e-5)
    torch.testing.assert_close(total, plain)
    torch.testing.assert_close(y, norm, atol=1e-5, rtol=1e-5)
    assert_same_gradients([total, y], [plain, norm], [x, f, b, g] + [c] * centered)


def test_after_a_sub_layer_the_norm_is_the_residual(device):
    from dragoman.nn.kernels.fused_triton import AddNorm

    x, f, b, g, c = draws((N, D), (N, D), (D,), (D,), (D,), device=device)
    wide, y = AddNorm.apply(x, f, b, g, c, 1e-5, True, 0.0, SEED.to(device), 3, torch.float32, True)
    norm = F.layer_norm(x + f + b, (D,), g, c, 1e-5)
    torch.testing.assert_close(wide, norm, atol=1e-5, rtol=1e-5)
    assert_same_gradients([wide, y], [norm, norm], [x, f, b, g, c])


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(("name", "plain"), [("relu", F.relu), ("gelu", F.gelu), ("swish", F.silu)])
def test_activation_and_dropout_at_once_are_one_after_the_other(device, name, plain, p):
    from dragoman.nn.kernels.fused_triton import Activate

    z, b = draws((N, 40), (40,), device=device)
    h = Activate.apply(z, b, name, p, SEED.to(device), 1)
    wanted = plain(z + b)
    kept = (h != 0) | (wanted == 0) if p else torch.ones_like(h)
    torch.testing.assert_close(h, wanted * kept / (1 - p), atol=1e-5, rtol=1e-5)
    assert_same_gradients([h], [wanted * kept / (1 - p)], [z, b])


def test_dropout_drops_its_share_evenly_and_anew_for_every_seed_and_site(device):
    from dragoman.nn.kernels.fused_triton import AddNorm

    def kept(seed, site, p=0.1):
        x, ones = torch.zeros(256, 64, device=device), torch.ones(256, 64, device=device)
        number = torch.tensor([seed], device=device)
        return AddNorm.apply(x, ones, None, ones[0], None, 1e-5, True, p, number, site, torch.float32)[0] > 0

    first = kept(1, 1)
    spread = math.sqrt(0.09 / first.numel())
    assert abs(first.float().mean() - 0.9) < 5 * spread
    assert (first == kept(1, 1)).all()
    for other in (kept(2, 1), kept(1, 2), kept(1 << 40, 1)):
        both = (~first & ~other).float().mean()  # as often as two independent draws drop the same place
        assert abs(both - 0.01) < 5 * math.sqrt(0.01 * 0.99 / first.numel())


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_embedding_adding_positions_and_dropping_at_once_is_one_after_the_other(device, p):
    from dragoman.nn.kernels.fused_triton import Embed

    (table,) = draws((20, D), device=device)
    positions = torch.randn(9, D, device=device)
    ids, places = torch.tensor([5, 6, 5, 0, 19], device=device), torch.tensor([0, 1, 2, 0, 8], device=device)
    x = Embed.apply(table, ids, places, positions, 2.5, p, SEED.to(device), 4)
    plain = F.embedding(ids, table, padding_idx=0) * 2.5 + positions[places]
    kept = (x != 0) if p else torch.ones_like(x)
    torch.testing.assert_close(x, plain * kept / (1 - p))
    assert_same_gradients([x], [plain * kept / (1 - p)], [table])


def test_rows_are_summed(device):
    from dragoman.nn.kernels.fused_triton import sum_rows

    x = torch.randn(37, 50, device=device)
    torch.testing.assert_close(sum_rows(x), x.sum(0), atol=1e-5, rtol=1e-5)
