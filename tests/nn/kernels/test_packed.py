"""Attention over rows laid end to end, against torch's own attention on each row by itself."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from dragoman.nn.kernels import packed
from dragoman.nn.kernels.packed import packed_attention

lengths = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70)), min_size=1, max_size=4)


def starts(sizes):
    return torch.tensor([0, *sizes]).cumsum(0).to(torch.int32)


def alone(q, k, v, causal, scale):
    """One row (n, H, D) as torch attends to it."""
    if not len(k):
        return q.new_zeros(len(q), q.shape[1], v.shape[2])
    one = (x.transpose(0, 1)[None] for x in (q, k, v))
    return scaled_dot_product_attention(*one, is_causal=causal, scale=scale, enable_gqa=True)[0].transpose(0, 1)


def row_by_row(q, k, v, q_sizes, k_sizes, causal, scale):
    rows = zip(q.split(q_sizes), k.split(k_sizes), v.split(k_sizes), strict=True)
    return torch.cat([alone(*row, causal, scale) for row in rows])


def inputs(q_sizes, k_sizes, H, G, dtype=torch.float64):
    generator = torch.Generator().manual_seed(sum(q_sizes) + 100 * sum(k_sizes))
    shapes = (sum(q_sizes), H, 16), (sum(k_sizes), G, 16), (sum(k_sizes), G, 32)
    return [torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


@settings(deadline=None, max_examples=25)
@given(lengths, st.booleans(), st.sampled_from([(2, 2), (4, 2), (2, 1)]))
def test_every_row_is_attended_to_as_if_it_were_alone(sizes, causal, heads):
    q_sizes, k_sizes = [n for n, _ in sizes], [n if causal else m for n, m in sizes]
    q, k, v = inputs(q_sizes, k_sizes, *heads)
    c = packed_attention(q, k, v, starts(q_sizes), starts(k_sizes), 70, causal, 0.3)
    torch.testing.assert_close(c, row_by_row(q, k, v, q_sizes, k_sizes, causal, 0.3))


@pytest.mark.parametrize(
    ("q_sizes", "k_sizes", "heads", "causal"),
    [
        ([3, 14, 1], [3, 14, 1], (2, 2), True),  # one tile each
        ([3, 40, 1], [3, 40, 1], (4, 2), True),  # several tiles, shared keys
        ([3, 0, 20, 33], [5, 2, 0, 70], (2, 2), False),  # empty rows on either side
        ([70, 3], [20, 3], (2, 1), False),
    ],
)
def test_the_kernel_gives_what_torch_gives_and_the_same_gradients(device, q_sizes, k_sizes, heads, causal):
    from dragoman.nn.kernels import packed_triton

    q, k, v = (x.detach().float().to(device).requires_grad_() for x in inputs(q_sizes, k_sizes, *heads))
    places = starts(q_sizes).to(device), starts(k_sizes).to(device)
    longest = max(q_sizes + k_sizes)
    truth = row_by_row(q, k, v, q_sizes, k_sizes, causal, 0.25)
    c, lse = packed_triton.forward(q, k, v, *places, longest, causal, 0.25)
    torch.testing.assert_close(c, truth, atol=1e-5, rtol=1e-5)
    dc = torch.randn_like(c)
    found = packed_triton.backward(dc, q, k, v, c, lse, *places, longest, causal, 0.25)
    for mine, theirs in zip(found, torch.autograd.grad(truth, (q, k, v), dc), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def test_the_fake_operators_have_the_shapes_of_the_real_ones(device):
    """What torch.compile plans with, for rows of which one has no keys."""
    q, k, v = (x.detach().float().to(device) for x in inputs([3, 4], [5, 0], 4, 2))
    rest = starts([3, 4]).to(device), starts([5, 0]).to(device), 5, False, 0.3
    torch.library.opcheck(packed._attend, (q, k, v, *rest), test_utils=("test_schema", "test_faketensor"))
    c, lse = packed._attend(q, k, v, *rest)
    given = torch.randn_like(c), q, k, v, c, lse
    torch.library.opcheck(packed._attend_backward, (*given, *rest), test_utils=("test_schema", "test_faketensor"))
