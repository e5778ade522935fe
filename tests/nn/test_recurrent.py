"""Stacks of recurrent layers against torch's own, with copied weights, and against plain loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.core.errors import PartError
from dragoman.nn.recurrent import RNNStack, reverse_sequences

D_IN, D, B, T = 3, 4, 4, 5
LENGTHS = [5, 2, 1, 3]
TORCH: dict[str, Any] = {
    "rnn_tanh": lambda *a, **k: nn.RNN(*a, nonlinearity="tanh", **k),
    "rnn_relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
    "gru": nn.GRU,
    "lstm": nn.LSTM,
}
CELLS = pytest.mark.parametrize("cell", list(TORCH))


def near(a: Tensor, b: Tensor) -> None:
    assert_close(a, b, atol=1e-5, rtol=1e-5)


def noisy(stack: RNNStack) -> RNNStack:
    for p in stack.parameters():
        nn.init.normal_(p, std=0.5)
    return stack.eval()


def theirs(stack: RNNStack, cell: str, both: bool) -> Any:
    """One torch module with the weights of all layers of a stack."""
    module = TORCH[cell](D_IN, D // (1 + both), len(stack.layers), batch_first=True, bidirectional=both)
    weights = {
        name.replace("l0", f"l{i}"): p
        for i, layer in enumerate(stack.layers)
        for name, p in layer.rnn.named_parameters()
    }
    module.load_state_dict(weights)
    return module


def state_of(given: Any, both: bool) -> list[Tensor]:
    """torch's state, (L · directions, 1, D / directions), as ours for one row: (L, D)."""
    tensors = given if isinstance(given, tuple) else (given,)
    return [torch.cat(list(x[:, 0].view(-1, 1 + both, D // (1 + both)).unbind(1)), -1) for x in tensors]


@CELLS
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("both", [False, True], ids=["one", "both"])
@torch.no_grad()
def test_a_stack_is_torch_s_own_read_row_by_row_without_padding(cell: Any, layers: int, both: bool) -> None:
    stack = noisy(RNNStack(D_IN, D, layers, cell, directions="both" if both else "one"))
    reference, x = theirs(stack, cell, both), torch.randn(B, T, D_IN)
    out, state = stack(x, lengths=torch.tensor(LENGTHS))
    for i, n in enumerate(LENGTHS):
        expected, end = reference(x[i : i + 1, :n])
        near(out[i, :n], expected[0])
        for ours, last in zip(state, state_of(end, both), strict=True):
            near(ours[:, i], last)


@CELLS
@torch.no_grad()
def test_a_stack_continues_from_a_state_step_by_step(cell: Any) -> None:
    stack, x = noisy(RNNStack(D_IN, D, 2, cell)), torch.randn(B, T, D_IN)
    whole, end = stack(x)
    state, parts = None, []
    for t in range(T):
        out, state = stack(x[:, t : t + 1], state)
        parts.append(out)
    near(torch.cat(parts, 1), whole)
    for a, b in zip(state or (), end, strict=True):
        near(a, b)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@torch.no_grad()
def test_only_the_bottom_layer_reads_backwards_where_directions_is_first(cell: Any) -> None:
    stack, x = noisy(RNNStack(D_IN, D, 2, cell, directions="first")), torch.randn(1, T, D_IN)
    bottom = TORCH[cell](D_IN, D // 2, batch_first=True, bidirectional=True)
    top = TORCH[cell](D, D, batch_first=True)
    bottom.load_state_dict(stack.layers[0].rnn.state_dict())  # type: ignore[union-attr]
    top.load_state_dict(stack.layers[1].rnn.state_dict())  # type: ignore[union-attr]
    near(stack(x)[0], top(bottom(x)[0])[0])


# -- the papers' GRU -----------------------------------------------------------------------------------------------


def papers_gru(cell: Any, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """One row (n, D_in) from h (D,), with the weights of r, z and n apart."""
    d = h.shape[0]
    Wr, Wz, Wn = cell.W.weight.split(d)
    br, bz, bn = cell.W.bias.split(d)
    Ur, Uz = cell.U.weight.split(d)
    outputs = []
    for x_t in x:
        r = 1 / (1 + torch.exp(-(Wr @ x_t + br + Ur @ h)))
        z = 1 / (1 + torch.exp(-(Wz @ x_t + bz + Uz @ h)))
        h = (1 - z) * torch.tanh(Wn @ x_t + bn + cell.Un.weight @ (r * h)) + z * h
        outputs.append(h)
    return torch.stack(outputs), h


@torch.no_grad()
def test_a_gru_that_resets_before_is_the_papers_equation_in_both_directions() -> None:
    stack, x = noisy(RNNStack(D_IN, D, 1, "gru", "before", "both")), torch.randn(B, T, D_IN)
    begin = torch.randn(1, B, D)
    out, (end,) = stack(x, (begin,), torch.tensor(LENGTHS))
    there, back = stack.layers[0].cells  # type: ignore[union-attr, misc]
    for i, n in enumerate(LENGTHS):
        forth, last = papers_gru(there, x[i, :n], begin[0, i, : D // 2])
        opposite, first = papers_gru(back, x[i, :n].flip(0), begin[0, i, D // 2 :])
        near(out[i, :n], torch.cat([forth, opposite.flip(0)], -1))
        near(end[0, i], torch.cat([last, first]))


@torch.no_grad()
def test_the_two_resets_agree_where_nothing_is_reset_and_differ_elsewhere() -> None:
    before, after = noisy(RNNStack(D_IN, D, 1, "gru", "before")), RNNStack(D_IN, D, 1, "gru").eval()
    ours, torch_s, x = before.layers[0].cells[0], after.layers[0].rnn, torch.randn(B, T, D_IN)  # type: ignore
    torch_s.weight_ih_l0.copy_(ours.W.weight)
    torch_s.weight_hh_l0.copy_(torch.cat([ours.U.weight, ours.Un.weight]))
    torch_s.bias_ih_l0.copy_(ours.W.bias)
    torch_s.bias_hh_l0.zero_()
    assert (before(x)[0] - after(x)[0]).abs().max() > 1e-3
    for bias in (ours.W.bias, torch_s.bias_ih_l0):
        bias[:D] = 100.0  # r = 1
    near(before(x)[0], after(x)[0])


# -- what is around the layers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [1, 2, 3])
@torch.no_grad()
def test_a_residual_adds_the_input_of_every_layer_from_the_one_it_names(first: int) -> None:
    stack, x = noisy(RNNStack(D, D, 3, "lstm", residual=first)), torch.randn(B, T, D)
    expected = x
    for number, layer in enumerate(stack.layers, 1):
        out, _ = layer.rnn(expected)  # type: ignore[operator, union-attr]
        expected = expected + out if number >= first else out
    near(stack(x)[0], expected)


@torch.no_grad()
def test_a_context_is_read_by_every_layer() -> None:
    stack, x, c = noisy(RNNStack(D_IN, D, 2, "gru", d_context=2)), torch.randn(B, T, D_IN), torch.randn(B, T, 2)
    lower, _ = stack.layers[0].rnn(torch.cat([x, c], -1))  # type: ignore[operator, union-attr]
    upper, _ = stack.layers[1].rnn(torch.cat([lower, c], -1))  # type: ignore[operator, union-attr]
    near(stack(x, c=c)[0], upper)


def test_dropout_falls_between_layers_only() -> None:
    x = torch.randn(B, T, D_IN)
    one, two = RNNStack(D_IN, D, 1, "gru", dropout=0.9).train(), RNNStack(D_IN, D, 2, "gru", dropout=0.9).train()
    assert torch.equal(one(x)[0], one(x)[0])
    assert not torch.equal(two(x)[0], two(x)[0])
    assert (two(x)[0] != 0).all()


@pytest.mark.parametrize(("cell", "reset"), [("lstm", "after"), ("gru", "after"), ("gru", "before")])
@pytest.mark.parametrize("lengths", [[0, 2, 0, 5], [0, 0, 0, 0]], ids=["some", "all"])
def test_rows_without_positions_keep_their_state(cell: Any, reset: Any, lengths: list[int]) -> None:
    stack, x = noisy(RNNStack(D_IN, D, 2, cell, reset)), torch.randn(B, T, D_IN)
    begin = tuple(torch.randn(2, B, D) for _ in range(stack.states_per_layer))
    out, end = stack(x, begin, torch.tensor(lengths))
    assert out.shape == (B, T, D)
    for i, n in enumerate(lengths):
        row = tuple(s[:, i : i + 1] for s in begin)
        expected, last = stack(x[i : i + 1, :n], row)
        assert expected.shape == (1, n, D)
        near(out[i, :n], expected[0])
        for a, b in zip(end, last if n else row, strict=True):
            near(a[:, i], b[:, 0])


@pytest.mark.parametrize(("cell", "reset"), [("lstm", "after"), ("gru", "before")])
def test_padding_is_never_read_not_even_by_the_gradient(cell: Any, reset: Any) -> None:
    stack = noisy(RNNStack(D_IN, D, 2, cell, reset, "both"))
    x = torch.randn(B, T, D_IN, requires_grad=True)
    out, end = stack(x, lengths=torch.tensor(LENGTHS))
    (sum(s.sin().sum() for s in end) + out.sin().sum()).backward()
    assert x.grad is not None
    for row, n in zip(x.grad, LENGTHS, strict=True):
        assert row[:n].abs().amax(-1).min() > 0
        assert row[n:].abs().sum() == 0


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_backwards_turns_what_is_real_and_is_its_own_inverse(lengths: list[int]) -> None:
    x = torch.arange(len(lengths) * 4.0).view(-1, 4, 1)
    turned = reverse_sequences(x, torch.tensor(lengths))
    for row, given_row, n in zip(turned, x, lengths, strict=True):
        assert row[:, 0].tolist() == given_row[:n, 0].tolist()[::-1] + given_row[n:, 0].tolist()
    assert torch.equal(reverse_sequences(turned, torch.tensor(lengths)), x)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cell": "lstm", "reset": "before"}, "needs cell 'gru', not 'lstm'"),
        ({"cell": "gru", "residual": 3}, "above the last of 2 layers"),
        ({"cell": "gru", "residual": 1}, "use residual 2"),
        ({"cell": "gru", "directions": "first", "d": 5}, "even width, not 5"),
    ],
)
def test_what_cannot_be_stacked_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PartError, match=words):
        RNNStack(D_IN, **{"d": D, "layers": 2, **options})
