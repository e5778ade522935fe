"""The recurrent encoder and decoder against plain loops over torch's cells, with copied weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.core.errors import PartError
from dragoman.core.interfaces import Capacity, Memory, Segments
from dragoman.core.registry import Part
from dragoman.nn.decoders import decoders
from dragoman.nn.encoders import encoders

D_IN, D_MEMORY, D, B, S, T = 6, 4, 5, 3, 5, 4
LENGTHS = [5, 2, 1]
CELLS = pytest.mark.parametrize("cell", ["lstm", "gru"])


def noisy(module: Any) -> Any:
    for p in module.parameters():
        nn.init.normal_(p, std=0.5)
    return module.eval()


# -- encoder -------------------------------------------------------------------------------------------------------


@CELLS
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("both", [False, True], ids=["forward", "both"])
def test_an_rnn_encoder_reads_each_sentence_as_if_alone(cell: str, layers: int, both: bool) -> None:
    options = {"cell": cell, "layers": layers, "bidirectional": both, "width": 8}
    encoder: Any = noisy(encoders.build(Part("rnn", options), D_IN))
    kind: Any = {"lstm": nn.LSTM, "gru": nn.GRU}[cell]
    theirs = kind(D_IN, 8 // (1 + both), layers, batch_first=True, bidirectional=both)
    theirs.load_state_dict(encoder.rnn.state_dict())
    x = torch.randn(B, S, D_IN)
    memory = encoder(x, Segments(torch.tensor(LENGTHS)))
    for i, n in enumerate(LENGTHS):
        states, final = theirs(x[i : i + 1, :n])
        assert_close(memory.states[i, :n], states[0], atol=1e-5, rtol=1e-5)
        for ours, last in zip(memory.final, final if cell == "lstm" else (final,), strict=True):
            expected = last[:, 0].view(layers, 8)  # torch lists the two directions of a layer one after the other
            assert_close(ours[:, i], expected, atol=1e-5, rtol=1e-5)
        # The summary: the forward state at the last word, the backward one at the first.
        forward, backward = states[0, -1], states[0, 0]
        expected = torch.cat([forward[:4], backward[4:]]) if both else forward
        assert_close(memory.summary[i], expected, atol=1e-5, rtol=1e-5)


def test_a_bidirectional_encoder_refuses_an_odd_width() -> None:
    with pytest.raises(PartError, match="even width, not 5"):
        encoders.build(Part("rnn", {"width": 5}), D_IN)


# -- decoder -------------------------------------------------------------------------------------------------------


def cells_of(decoder: Any, cell: str) -> list[Any]:
    """A torch cell for every layer, with the decoder's weights."""
    kind: Any = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}[cell]
    cells = []
    for layer in range(decoder.layers):
        weights = [
            getattr(decoder.rnn, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]
        one = kind(weights[0].shape[1], decoder.d)
        with torch.no_grad():
            for mine, given in zip((one.weight_ih, one.weight_hh, one.bias_ih, one.bias_hh), weights, strict=True):
                mine.copy_(given)
        cells.append(one)
    return cells


def attend(decoder: Any, s: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Additive attention of one query (D,) over the real states (n, D_memory) of one sentence."""
    score = decoder.attention.score
    e = torch.stack([score.v.weight[0] @ torch.tanh(score.W1.weight @ s + score.W2(h_j)) for h_j in h])
    a = e.exp() / e.exp().sum()
    return sum((w * h_j for w, h_j in zip(a, h, strict=True)), torch.zeros(h.shape[1])), a


def in_loops(decoder: Any, cell: str, y: Tensor, h: Tensor, states: list[Any]) -> tuple[Tensor, Tensor]:
    """The equations of the module's header for one sentence: y (T, D_in), h (n, D_memory), s_0 of every layer."""
    cells, o, outputs, weights = cells_of(decoder, cell), torch.zeros(decoder.d), [], []

    def advance(x: Tensor) -> Tensor:
        for i, one in enumerate(cells):
            states[i] = one(x, states[i])
            x = states[i][0] if cell == "lstm" else states[i]
        return x

    for y_t in y:
        if decoder.order == "before":
            top = states[-1][0] if cell == "lstm" else states[-1]
            c, a = attend(decoder, top, h)
            s = advance(torch.cat([y_t, c]))
            o = torch.tanh(decoder.readout(torch.cat([s, c, y_t])))
        else:
            s = advance(torch.cat([y_t, o]) if decoder.feeding else y_t)
            c, a = attend(decoder, s, h)
            o = torch.tanh(decoder.readout(torch.cat([s, c])))
        outputs.append(o)
        weights.append(a)
    return torch.stack(outputs), torch.stack(weights)


@CELLS
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("order", "feeding"), [("before", False), ("after", False), ("after", True)], ids=["before", "after", "feeding"]
)
@torch.no_grad()
def test_an_rnn_decoder_is_its_equations(cell: str, layers: int, order: str, feeding: bool) -> None:
    options = {"cell": cell, "layers": layers, "order": order, "input_feeding": feeding, "width": D}
    decoder: Any = noisy(decoders.build(Part("rnn", options), D_IN, D_MEMORY))
    memory = Memory(torch.randn(B, S, D_MEMORY), torch.tensor(LENGTHS), torch.randn(B, D_MEMORY))
    y = torch.randn(B, T, D_IN)
    found = decoder(y, memory)
    for i, n in enumerate(LENGTHS):
        begin = torch.tanh(decoder.over(memory.summary[i])).view(-1, layers, D)  # dense bridge: (tensors, L, D)
        states = [tuple(begin[:, layer]) if cell == "lstm" else begin[0, layer] for layer in range(layers)]
        o, a = in_loops(decoder, cell, y[i], memory.states[i, :n], states)
        assert_close(found.o[i], o, atol=1e-5, rtol=1e-4)
        assert_close(found.attention[i, :, :n], a, atol=1e-5, rtol=1e-4)
        assert found.attention[i, :, n:].abs().sum() == 0


@CELLS
@torch.no_grad()
def test_the_bridges_carry_what_they_say(cell: str) -> None:
    tensors = 2 if cell == "lstm" else 1
    final = tuple(torch.randn(2, B, D) for _ in range(tensors))
    memory = Memory(torch.randn(B, S, D_MEMORY), torch.tensor(LENGTHS), torch.randn(B, D_MEMORY), final)
    common = {"cell": cell, "layers": 2, "width": D}
    for bridge in ("zero", "copy"):
        decoder: Any = noisy(decoders.build(Part("rnn", {**common, "bridge": bridge}), D_IN, D_MEMORY))
        s = decoder.start(memory, Capacity(3, T)).s
        assert len(s) == tensors
        for x, given in zip(s, final, strict=True):
            expected = torch.zeros(B, 2, D) if bridge == "zero" else given.transpose(0, 1)
            assert_close(x, expected[:, None].expand(B, 3, 2, D))


def test_a_state_that_cannot_be_copied_is_refused() -> None:
    states, lengths, summary = torch.randn(B, S, D_MEMORY), torch.tensor(LENGTHS), torch.randn(B, D_MEMORY)
    good, thin, short = (torch.randn(*shape) for shape in ((1, B, D), (1, B, D + 1), (2, B, D)))
    decoder: Any = decoders.build(Part("rnn", {"bridge": "copy", "width": D}), D_IN, D_MEMORY)
    decoder.start(Memory(states, lengths, summary, (good, good)), Capacity(1, 1))
    for final in (None, (good,), (thin, thin), (short, short)):
        with pytest.raises(PartError, match="bridge 'copy' needs an RNN encoder"):
            decoder.start(Memory(states, lengths, summary, final), Capacity(1, 1))


def test_an_rnn_encoder_s_final_state_fits_the_copying_bridge() -> None:
    for cell in ("lstm", "gru"):
        encoder: Any = noisy(encoders.build(Part("rnn", {"cell": cell, "layers": 2, "width": 8}), D_IN))
        decoder: Any = noisy(
            decoders.build(Part("rnn", {"cell": cell, "layers": 2, "width": 8, "bridge": "copy"}), D_IN, encoder.d)
        )
        memory = encoder(torch.randn(B, S, D_IN), Segments(torch.tensor(LENGTHS)))
        top = decoder.start(memory, Capacity(1, T)).s[0][:, 0, -1]
        assert_close(top, memory.summary)


def test_input_feeding_before_the_cell_is_refused() -> None:
    with pytest.raises(PartError, match="input feeding belongs to attention after the cell"):
        decoders.build(Part("rnn", {"order": "before", "input_feeding": True}), D_IN, D_MEMORY)


def test_a_dot_score_with_two_widths_is_refused() -> None:
    with pytest.raises(PartError, match="one width, not 6 and 4"):
        decoders.build(Part("rnn", {"score": Part("dot")}), D_IN, D_MEMORY)
