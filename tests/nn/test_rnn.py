"""The recurrent encoder and decoder against plain loops over torch's cells, with copied weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Capacity, Memory, Segments
from dragoman.nn.decoders import decoders
from dragoman.nn.encoders import encoders

D_IN, D_MEMORY, D, B, S, T, K = 6, 4, 5, 3, 5, 4, 2
LENGTHS = [5, 2, 1]
CELLS = pytest.mark.parametrize("cell", ["lstm", "gru"])


def near(a: Tensor, b: Tensor) -> None:
    assert_close(a, b, atol=1e-5, rtol=1e-4)


def noisy(module: Any) -> Any:
    for p in module.parameters():
        nn.init.normal_(p, std=0.5)
    return module.eval()


def decoder_with(d_memory: int = D_MEMORY, **options: Any) -> Any:
    return noisy(decoders.build(decoders.parse({"name": "rnn", "width": D, **options}), D_IN, d_memory))


def a_memory(d: int = D_MEMORY, **more: Any) -> Memory:
    return Memory(torch.randn(B, S, d), torch.tensor(LENGTHS), torch.randn(B, d), **more)


# -- encoder -------------------------------------------------------------------------------------------------------


@CELLS
@pytest.mark.parametrize("both", [False, True], ids=["forward", "both"])
@torch.no_grad()
def test_an_rnn_encoder_reads_each_sentence_as_if_alone(cell: str, both: bool) -> None:
    options = {"cell": cell, "layers": 2, "directions": "both" if both else "one", "width": 8}
    encoder: Any = noisy(encoders.build(Part("rnn", options), D_IN))
    kind: Any = {"lstm": nn.LSTM, "gru": nn.GRU}[cell]
    x = torch.randn(B, S, D_IN)
    memory = encoder(x, Segments(torch.tensor(LENGTHS)))
    for i, n in enumerate(LENGTHS):
        states = x[i : i + 1, :n]
        for number, layer in enumerate(encoder.stack.layers):
            theirs = kind(states.shape[-1], 8 // (1 + both), batch_first=True, bidirectional=both)
            theirs.load_state_dict(layer.rnn.state_dict())
            states, final = theirs(states)
            for ours, last in zip(memory.final, final if cell == "lstm" else (final,), strict=True):
                near(ours[number, i], last[:, 0].flatten())  # torch lists the two directions one after the other
        near(memory.states[i, :n], states[0])
        # The summary: the forward state at the last word, the backward one at the first.
        forward, backward = states[0, -1], states[0, 0]
        near(memory.summary[i], torch.cat([forward[:4], backward[4:]]) if both else forward)


@torch.no_grad()
def test_an_encoder_in_reverse_reads_the_last_word_first_and_keeps_each_state_at_its_word() -> None:
    options = {"directions": "one", "layers": 2, "width": 8}
    encoder: Any = noisy(encoders.build(Part("rnn", {**options, "reverse": True}), D_IN))
    forward: Any = encoders.build(Part("rnn", options), D_IN).eval()  # type: ignore[attr-defined]
    forward.load_state_dict(encoder.state_dict())
    x = torch.randn(B, S, D_IN)
    memory = encoder(x, Segments(torch.tensor(LENGTHS)))
    for i, n in enumerate(LENGTHS):
        turned = forward(x[i : i + 1, :n].flip(1), Segments(torch.tensor([n])))
        near(memory.states[i, :n], turned.states[0].flip(0))
        near(memory.summary[i], turned.summary[0])
        near(memory.summary[i], memory.states[i, 0])  # the first word was read last


def test_an_encoder_takes_empty_sources() -> None:
    encoder: Any = encoders.build(Part("rnn", {"width": 8}), D_IN)
    memory = encoder(torch.randn(2, 0, D_IN), Segments(torch.tensor([0, 0])))
    assert memory.states.shape == (2, 0, 8)
    assert not memory.summary.any()


# -- the decoder's equations ---------------------------------------------------------------------------------------


def cells_of(decoder: Any, cell: str) -> list[Any]:
    """A torch cell for every layer, with the decoder's weights."""
    kind: Any = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}[cell]
    cells = []
    for layer in decoder.stack.layers:
        weights = {name.removesuffix("_l0"): p for name, p in layer.rnn.state_dict().items()}
        one = kind(weights["weight_ih"].shape[1], decoder.d)
        one.load_state_dict(weights)
        cells.append(one)
    return cells


def attend(decoder: Any, s: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Additive attention of one query (D,) over the real states (n, D_memory) of one sentence."""
    score = decoder.attention.score
    e = torch.stack([score.v.weight[0] @ torch.tanh(score.W1.weight @ s + score.W2(h_j)) for h_j in h])
    a = e.exp() / e.exp().sum()
    c = sum((w * h_j for w, h_j in zip(a, h, strict=True)), torch.zeros(h.shape[1]))
    if decoder.gate is not None:  # Xu et al. 2015: β = σ(f(s))
        c = c / (1 + math.exp(-(decoder.gate.weight[0] @ s + decoder.gate.bias[0])))
    return c, a


def read_out(decoder: Any, readout: str, *parts: Tensor) -> Tensor:
    if readout == "none":
        return parts[0]
    r = decoder.readout.weight @ torch.cat(parts) + decoder.readout.bias
    if readout == "maxout":
        return torch.stack([max(r[2 * i], r[2 * i + 1]) for i in range(decoder.d)])
    return torch.tanh(r) if readout == "tanh" else r


def in_loops(
    decoder: Any, options: dict[str, Any], y: Tensor, h: Tensor, summary: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The equations of the module's header for one sentence: y (T, D_in), h (n, D_memory), c (D_memory,)."""
    cell, source, order = options["cell"], options.get("source", "attention"), options.get("order", "after")
    feeding, reads, readout = options.get("input_feeding"), options["reads"], options.get("readout", "tanh")
    cells, o, outputs, weights = cells_of(decoder, cell), torch.zeros(D), [], []
    begin = torch.tanh(decoder.bridge_proj(summary)).view(-1, len(cells), D)  # dense bridge: (tensors, L, D)
    states: list[Any] = [tuple(begin[:, i]) if cell == "lstm" else begin[0, i] for i in range(len(cells))]

    def output_of(layer: int) -> Tensor:
        return states[layer][0] if cell == "lstm" else states[layer]

    def advance(x: Tensor, everywhere: Tensor) -> Tensor:
        for i, one in enumerate(cells):
            states[i] = one(torch.cat([x, everywhere]), states[i])
            x = output_of(i)
        return x

    nothing = torch.zeros(0)
    for y_t in y:
        c = summary
        if source == "attention" and order != "after":
            c, a = attend(decoder, output_of(0 if order == "bottom" else -1), h)
            weights.append(a)
        if order == "bottom":
            s = advance(y_t, c)
        elif order == "before" or source == "context":
            s = advance(torch.cat([y_t, c]), nothing)
        else:
            s = advance(torch.cat([y_t, o]) if feeding else y_t, nothing)
        if source == "attention" and order == "after":
            c, a = attend(decoder, s, h)
            weights.append(a)
        o = read_out(decoder, readout, *[{"s": s, "c": c, "y": y_t}[letter] for letter in reads])
        outputs.append(o)
    return torch.stack(outputs), torch.stack(weights) if weights else None


FORMS: dict[str, tuple[dict[str, Any], str]] = {  # options → what the readout reads by default
    "bahdanau": ({"cell": "gru", "order": "before"}, "scy"),
    "bahdanau, maxout": ({"cell": "gru", "order": "before", "readout": "maxout"}, "scy"),
    "before, two layers": ({"cell": "lstm", "order": "before", "layers": 2, "reads": "sc"}, "sc"),
    "xu": ({"cell": "lstm", "order": "before", "gate": True, "readout": "linear"}, "scy"),
    "gated, after": ({"cell": "gru", "gate": True}, "sc"),
    "gated, bottom": ({"cell": "gru", "layers": 2, "order": "bottom", "gate": True}, "scy"),
    "luong": ({"cell": "lstm", "layers": 2}, "sc"),
    "luong, feeding": ({"cell": "lstm", "layers": 2, "input_feeding": True}, "sc"),
    "luong, reads all": ({"cell": "gru", "reads": "scy", "readout": "linear"}, "scy"),
    "gnmt": ({"cell": "lstm", "layers": 3, "order": "bottom", "readout": "none"}, "s"),
    "bottom": ({"cell": "gru", "layers": 2, "order": "bottom"}, "scy"),
    "cho": ({"cell": "gru", "source": "context", "reads": "scy", "readout": "maxout"}, "scy"),
    "context": ({"cell": "lstm", "layers": 2, "source": "context"}, "sc"),
    "sutskever": ({"cell": "lstm", "layers": 2, "source": "initial", "readout": "none"}, "s"),
    "initial": ({"cell": "gru", "source": "initial"}, "s"),
}


@pytest.mark.parametrize("name", FORMS)
@torch.no_grad()
def test_an_rnn_decoder_is_its_equations(name: str) -> None:
    options, reads = FORMS[name]
    decoder, memory, y = decoder_with(**options), a_memory(), torch.randn(B, T, D_IN)
    found = decoder(y, memory)
    for i, n in enumerate(LENGTHS):
        o, a = in_loops(decoder, {**options, "reads": reads}, y[i], memory.states[i, :n], memory.summary[i])
        near(found.o[i], o)
        if a is None:
            assert found.attention is None
        else:
            near(found.attention[i, :, :n], a)
            assert found.attention[i, :, n:].abs().sum() == 0


@torch.no_grad()
def test_attention_averages_the_values_of_a_memory_that_has_them() -> None:
    decoder, y = decoder_with(cell="gru"), torch.randn(B, T, D_IN)
    memory = a_memory(values=torch.randn(B, S, D_MEMORY))
    found = decoder(y, memory)
    s, _ = decoder.stack(y, tuple(z[:, 0].transpose(0, 1) for z in decoder.start(memory, Capacity(1, T)).s))
    near(found.o, torch.tanh(decoder.readout(torch.cat([s, found.attention @ memory.values], -1))))


# -- how the source gets in ----------------------------------------------------------------------------------------


@CELLS
@torch.no_grad()
def test_the_bridges_carry_what_they_say(cell: str) -> None:
    tensors = 2 if cell == "lstm" else 1
    final = tuple(torch.randn(2, B, D) for _ in range(tensors))
    memory = a_memory(final=final)
    for bridge in ("zero", "copy"):
        s = decoder_with(cell=cell, layers=2, bridge=bridge).start(memory, Capacity(3, T)).s
        assert len(s) == tensors
        for x, given in zip(s, final, strict=True):
            expected = torch.zeros(B, 2, D) if bridge == "zero" else given.transpose(0, 1)
            assert_close(x, expected[:, None].expand(B, 3, 2, D))


def test_a_state_that_cannot_be_copied_is_refused() -> None:
    good, thin, short = (torch.randn(*shape) for shape in ((1, B, D), (1, B, D + 1), (2, B, D)))
    decoder = decoder_with(bridge="copy")
    decoder.start(a_memory(final=(good, good)), Capacity(1, 1))
    for final in (None, (good,), (thin, thin), (short, short)):
        with pytest.raises(PartError, match="bridge 'copy' needs an RNN encoder"):
            decoder.start(a_memory(final=final), Capacity(1, 1))


@CELLS
@pytest.mark.parametrize("directions", ["both", "first", "one"])
def test_an_rnn_encoder_s_final_state_fits_the_copying_bridge(cell: str, directions: str) -> None:
    options = {"cell": cell, "layers": 2, "width": 8}
    encoder: Any = noisy(encoders.build(Part("rnn", {**options, "directions": directions}), D_IN))
    decoder: Any = noisy(decoders.build(Part("rnn", {**options, "bridge": "copy"}), D_IN, encoder.d))
    memory = encoder(torch.randn(B, S, D_IN), Segments(torch.tensor(LENGTHS)))
    top = decoder.start(memory, Capacity(1, T)).s[0][:, 0, -1]
    assert_close(top, memory.summary)


@CELLS
@pytest.mark.parametrize("size", [S, 0])
@torch.no_grad()
def test_a_prefix_and_the_target_are_one_sequence_for_one_rnn(cell: str, size: int) -> None:
    decoder = decoder_with(D_IN, cell=cell, source="prefix", readout="none")
    kind: Any = {"lstm": nn.LSTM, "gru": nn.GRU}[cell]
    theirs = kind(D_IN, D, batch_first=True)
    theirs.load_state_dict(decoder.stack.layers[0].rnn.state_dict())
    lengths = [size, 2, 0] if size else [0, 0, 0]
    memory = Memory(torch.randn(B, size, D_IN), torch.tensor(lengths), torch.randn(B, D_IN))
    y = torch.randn(B, T, D_IN)
    found = decoder(y, memory)
    assert found.attention is None
    assert found.extras["prefix"].shape == (B, size, D)
    for i, n in enumerate(lengths):
        expected, _ = theirs(torch.cat([memory.states[i, :n], y[i]])[None])
        near(found.extras["prefix"][i, :n], expected[0, :n])
        near(found.o[i], expected[0, n:])
    state = decoder.start(memory, Capacity(1, T))
    for t in range(T):
        output, state = decoder.step(y[:, t : t + 1], state)
        near(output.o, found.o[:, t : t + 1])


# -- looks that hang together --------------------------------------------------------------------------------------

LOOKS: list[dict[str, Any]] = [
    {"score": {"name": "coverage", "penalty": 1.0}},
    {"score": {"name": "location", "kernel": 3}, "order": "before", "cell": "gru"},
    {"normalizer": {"name": "local_m", "window": 1}},
    {"normalizer": {"name": "local_p", "window": 1}, "input_feeding": True},
    {"normalizer": "hard", "order": "bottom", "layers": 2},
]


@pytest.mark.parametrize("options", LOOKS, ids=str)
@torch.no_grad()
def test_step_by_step_equals_all_at_once_with_position_dependent_attention(options: dict[str, Any]) -> None:
    decoder, memory, y = decoder_with(**options), a_memory(), torch.randn(B, K, T, D_IN)
    whole = [decoder(y[:, k], memory) for k in range(K)]
    state = decoder.start(memory, Capacity(K, T))
    for t in range(T):
        output, state = decoder.step(y[:, :, t], state)
        for k in range(K):
            near(output.o[:, k], whole[k].o[:, t])
            near(output.attention[:, k], whole[k].attention[:, t])
            for name, term in whole[k].extras.items():
                assert term.shape == (B, T)
                near(output.extras[name][:, k], term[:, t])


@torch.no_grad()
def test_a_score_with_past_weights_sees_the_sum_of_the_weights_so_far() -> None:
    decoder, memory, y = decoder_with(score={"name": "coverage", "penalty": 1.0}), a_memory(), torch.randn(B, T, D_IN)
    found, score = decoder(y, memory), decoder.attention.score
    s, _ = decoder.stack(y, tuple(z[:, 0].transpose(0, 1) for z in decoder.start(memory, Capacity(1, T)).s))
    for i, n in enumerate(LENGTHS):
        covered = torch.zeros(n)
        for t in range(T):
            inner = [score.W1(s[i, t]) + score.W2(h) for h in memory.states[i, :n]]
            sums = torch.stack([x + score.w.weight[:, 0] * seen for x, seen in zip(inner, covered, strict=True)])
            a = (torch.tanh(sums) @ score.v.weight[0]).softmax(0)
            near(found.attention[i, t, :n], a)
            near(found.extras["penalty"][i, t], torch.minimum(a, covered).sum())
            covered = covered + a


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"order": "before", "cell": "gru"},
        {"score": {"name": "coverage", "penalty": 0.5}},
        {"normalizer": "entmax15"},
    ],
    ids=str,
)
@torch.no_grad()
def test_doubly_stochastic_loss_is_the_squared_deviation_from_total_weight_one(options: dict[str, Any]) -> None:
    plain = decoder_with(**options)
    torch.manual_seed(0)
    decoder = decoder_with(doubly_stochastic=0.7, **options)
    plain.load_state_dict(decoder.state_dict())
    memory, y = a_memory(), torch.randn(B, T, D_IN)
    found, without = decoder(y, memory), plain(y, memory)
    near(found.o, without.o)
    for i, n in enumerate(LENGTHS):
        for steps in range(1, T + 1):  # a target of so many tokens, the rest padding
            looks = found.attention[i, :steps, :n].sum(0).tolist()
            cost = 0.7 * sum((1 - look) ** 2 for look in looks)
            other = without.extras["penalty"][i, :steps].sum().item() if without.extras else 0.0
            assert found.extras["penalty"][i, :steps].sum().item() == pytest.approx(cost + other, rel=1e-4)


def test_even_attention_is_learned_from_the_doubly_stochastic_loss_alone() -> None:
    """S steps over S places can look at each of them once in all: the cost falls to nothing."""
    decoder, memory = decoder_with(order="before", doubly_stochastic=1.0, dropout=0.0).train(), a_memory()
    memory.lengths[:] = S
    y, costs = torch.randn(B, S, D_IN), []
    descent = torch.optim.Adam(decoder.parameters(), 0.02)
    for _ in range(60):
        cost = decoder(y, memory).extras["penalty"].sum()
        descent.zero_grad()
        cost.backward()
        descent.step()
        costs.append(cost.item())
    assert costs[-1] < 0.2 * costs[0]


def test_hard_attention_returns_the_log_probability_of_every_sample() -> None:
    decoder, memory = decoder_with(normalizer="hard", dropout=0.0).train(), a_memory()
    found = decoder(torch.randn(B, T, D_IN), memory)
    assert found.extras["choice"].shape == (B, T)
    assert (found.extras["choice"] <= 0).all()
    assert set(found.attention.unique().tolist()) <= {0.0, 1.0}
    assert torch.equal(found.attention.sum(-1), torch.ones(B, T))


EMPTY: list[dict[str, Any]] = [
    {},
    {"order": "before"},
    {"doubly_stochastic": 1.0},
    {"source": "context"},
    {"source": "prefix"},
]


@pytest.mark.parametrize("options", EMPTY, ids=str)
def test_a_target_may_be_empty(options: dict[str, Any]) -> None:
    found = decoder_with(D_IN, **options)(torch.randn(B, 0, D_IN), a_memory(D_IN))
    assert found.o.shape == (B, 0, D)
    assert found.attention is None or found.attention.shape == (B, 0, S)


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"order": "before", "input_feeding": True}, "input_feeding needs order 'after'"),
        ({"source": "context", "input_feeding": True}, "input_feeding needs source 'attention'"),
        ({"source": "prefix"}, "the same width, not 4 and 6; use encoder 'none'"),
        ({"source": "initial", "bridge": "zero"}, "bridge 'zero' the decoder never sees the source"),
        ({"source": "initial", "reads": "sc"}, "'initial' has none; use reads: s"),
        ({"reads": "s"}, "use reads 'sc'"),
        ({"order": "before", "readout": "none", "reads": "scy"}, "reads is 'scy'; use reads: s"),
        ({"score": "dot"}, "the same width, not 5 and 4"),
        ({"source": "context", "gate": True}, "gate needs source 'attention'"),
        ({"source": "initial", "doubly_stochastic": 1.0}, "doubly_stochastic needs source 'attention'"),
        ({"normalizer": "hard", "doubly_stochastic": 1.0}, "which sampled ones lack"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PartError, match=words):
        decoder_with(**options)
