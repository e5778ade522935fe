"""The promises that every registered frontend, encoder and decoder keeps, alone and in every pair, in evaluation mode.

A part added later is tested with its defaults; the options in FRONTENDS, ENCODERS and DECODERS extend that to a
covering set.

B sentences, K hypotheses, S source and T target positions.
"""

from __future__ import annotations

import inspect
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, product
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.core import tree
from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, PAD, Batch, Capacity, Memory, Segments
from dragoman.nn.attention import record_attention
from dragoman.nn.decoders import decoders
from dragoman.nn.encoders import encoders
from dragoman.nn.frontends import frontends
from dragoman.nn.layers import norms
from dragoman.nn.losses import output_log_probs
from dragoman.nn.normalizers import normalizers
from dragoman.nn.positions import positions
from dragoman.nn.scores import scores
from dragoman.nn.seq2seq import Seq2Seq

D_IN, D_MEMORY = 16, 12  # widths that differ, so that one is not taken for the other
B, K, S, T = 3, 3, 6, 5
LENGTHS = [6, 3, 1]

PREFIXES = ("prefix", "full_prefix")

# -- which options are tried together --------------------------------------------------------------------------------
#
# Of every part all pairs of values of its options are covered, in as few option sets as a greedy search finds; those in
# which every value stands twice are tried always, the rest in `make test-long`. Values that a part refuses together are
# named as rules: functions of those options that say whether they go together.

Space = dict[str, list[Any]]
Rules = list[Callable[..., bool]]


def covering(space: Space, rules: Rules) -> list[dict[str, Any]]:
    """Option sets in which every pair of values stands together once, where the rules allow it."""
    random, names = Random(0), list(space)
    checks = [(tuple(inspect.signature(rule).parameters), rule) for rule in rules]

    def fits(row: dict[str, Any]) -> bool:
        return all(rule(*map(row.get, keys)) for keys, rule in checks if all(key in row for key in keys))

    def filled(row: dict[str, Any]) -> dict[str, Any] | None:
        for name in random.sample(names, len(names)):
            if name not in row:
                values = random.sample(space[name], len(space[name]))
                value = next((value for value in values if fits(row | {name: value})), None)
                if value is None and None not in values:
                    return None
                row = row | {name: value}
        return row if fits(row) else None

    def pairs(row: dict[str, Any]) -> set[tuple[str, str, str, str]]:
        return {(a, repr(row[a]), b, repr(row[b])) for a, b in combinations(names, 2)}

    missing = [
        {a: x, b: y} for a, b in combinations(names, 2) for x, y in product(space[a], space[b]) if fits({a: x, b: y})
    ]
    seen: set[tuple[str, str, str, str]] = set()
    rows: list[dict[str, Any]] = []
    for pair in missing:
        (a, x), (b, y) = pair.items()
        if (a, repr(x), b, repr(y)) in seen:
            continue
        tries = [row for row in (filled(dict(pair)) for _ in range(20)) if row is not None]
        if tries:
            rows.append(max(tries, key=lambda row: len(pairs(row) - seen)))
            seen |= pairs(rows[-1])
    return rows


SCORES: list[Any] = ["dot", "scaled_dot", "general", {"name": "concat", "width": 5}, {"name": "additive", "width": 7}]
REMEMBERING: list[Any] = [{"name": "location", "filters": 3, "kernel": 3}, "coverage"]
LOCAL: list[Any] = [{"name": "local_m", "window": 1}, {"name": "local_p", "window": 2}]
NORMALIZERS: list[Any] = ["softmax", "sparsemax", "entmax15", *LOCAL]
OUTSIDE: list[Any] = [
    "none",
    "sinusoidal",
    {"name": "sinusoidal", "layout": "halves"},
    {"name": "learned", "length": 24},
]
INSIDE: list[Any] = [{"name": "shaw", "distance": 2, "values": True}, {"name": "shaw", "distance": 3}]
INSIDE += [{"name": "t5", "buckets": 8, "distance": 6}, "rotary", {"name": "rotary", "layout": "halves"}, "alibi"]
INSIDE += [{"name": "xl", "distance": 4}]

TRANSFORMER: Space = {
    "layers": [2],
    "heads": [2],
    "feedforward": [20],
    "width": [None, 24],
    "key_heads": [None, 1],
    "key_width": [None, 6],
    "value_width": [None, 5],
    "activation": ["relu", "gelu", "gelu_tanh", "swish", "swiglu", "geglu"],
    "position": [*OUTSIDE, *INSIDE],
    "norm": ["layer", "rms"],
    "norm_order": ["pre", "post"],
    "embedding_norm": [False, True],
    "bias": [True, False],
    "layer_drop": [0.0, 0.5],
    "attention_dropout": [0.0, 0.5],
    "score": SCORES,
    "normalizer": NORMALIZERS,
}
TOGETHER: Rules = [
    lambda position, key_width, value_width: position != INSIDE[0] or key_width == value_width is None,
    lambda position, mixer: position in OUTSIDE or mixer == "attention",
]
FRONTENDS: dict[str, tuple[Space, Rules]] = {
    "tokens": ({"scale": [True, False]}, []),
    "image": ({"pixels": [32], "channels": [4], "stages": [[1, 1]], "grid": ["resnet", "patches"]}, []),
    "audio": ({"bins": [7, 12], "subsampling": ["conv", "stack"], "channels": [3], "stack": [1, 3]}, []),
    "whisper": ({"bins": [5], "seconds": [1]}, []),
    "features": (
        {"numbers": [5], "deltas": [0, 1], "subsampling": ["conv", "stack"], "channels": [3], "stack": [2]},
        [],
    ),
}
ENCODERS: dict[str, tuple[Space, Rules]] = {
    "rnn": (
        {
            "cell": ["rnn_tanh", "rnn_relu", "gru", "lstm"],
            "reset": ["after", "before"],
            "layers": [1, 3],
            "width": [None, 10],
            "directions": ["both", "first", "one"],
            "residual": [0, 2],
            "reverse": [False, True],
            "dropout": [0.0, 0.5],
        },
        [lambda reset, cell: reset == "after" or cell == "gru", lambda residual, layers: residual <= layers],
    ),
    "transformer": (
        TRANSFORMER | {"norm": ["layer", "rms", "batch"], "mixer": ["attention", "parameter_free"]},
        TOGETHER,
    ),
    "conv": (
        {"layers": [1, 3], "width": [None, 10], "kernel": [1, 3, 5], "position": OUTSIDE, "weight_norm": [False, True]},
        [],
    ),
    "pyramid": ({"cell": ["rnn_relu", "gru", "lstm"], "layers": [1, 2], "width": [None, 10]}, []),
    "identity": ({"position": OUTSIDE, "dropout": [0.0, 0.5]}, []),
    "none": ({}, []),
}
DECODERS: dict[str, tuple[Space, Rules]] = {
    "rnn": (
        {
            "source": ["attention", "context", "initial", "prefix"],
            "cell": ["rnn_tanh", "rnn_relu", "gru", "lstm"],
            "reset": ["after", "before"],
            "layers": [1, 2],
            "width": [None, D_MEMORY],
            "residual": [0, 2],
            "order": ["after", "before", "bottom"],
            "input_feeding": [False, True],
            "score": [*SCORES, *REMEMBERING],
            "normalizer": [*NORMALIZERS, "hard"],
            "gate": [False, True],
            "doubly_stochastic": [0.0, 1.0],
            "bridge": ["dense", "copy", "zero"],
            "reads": [None, "s", "sc", "scy"],
            "readout": ["tanh", "maxout", "linear", "none"],
        },
        [
            lambda reset, cell: reset == "after" or cell == "gru",
            lambda residual, layers: residual <= layers,
            lambda score, width: score not in ("dot", "scaled_dot") or width == D_MEMORY,
            lambda input_feeding, source: not input_feeding or source == "attention",
            lambda input_feeding, order: not input_feeding or order == "after",
            lambda reads, source: reads in (None, "s") or source in ("attention", "context"),
            lambda reads, source, order: reads != "s" or source != "attention" or order != "after",
            lambda readout, reads: readout != "none" or reads in (None, "s"),
            lambda readout, source, order: readout != "none" or source != "attention" or order != "after",
            lambda bridge, source: bridge != "zero" or source != "initial",
            # What `a_memory` has to copy; a context that may be read needs no more than its place.
            lambda bridge, layers, cell, width: bridge != "copy" or (layers, cell, width) == (2, "lstm", None),
            # Where nothing is attended to, how it would be does not matter.
            lambda source, score: source == "attention" or score == SCORES[-1],
            lambda source, normalizer: source == "attention" or normalizer == "softmax",
            lambda source, order: source == "attention" or order == "after",
            lambda source, gate: source == "attention" or not gate,
            lambda source, doubly_stochastic: source == "attention" or not doubly_stochastic,
            lambda normalizer, doubly_stochastic: normalizer != "hard" or not doubly_stochastic,
        ],
    ),
    "transformer": (
        TRANSFORMER
        | {
            "source": ["attention", *PREFIXES],
            "mixer": ["attention", "parameter_free", "average", "ssru", {"name": "average", "feedforward": False}],
        },
        [*TOGETHER, lambda source, mixer: source != "full_prefix" or mixer in ("attention", "parameter_free")],
    ),
    "conv": (
        {
            "source": ["attention", "prefix"],
            "layers": [2, 3],
            "width": [None, 10],
            "kernel": [3, 4],
            "score": SCORES,
            "normalizer": NORMALIZERS,
            "position": OUTSIDE,
            "weight_norm": [False, True],
        },
        [
            lambda source, score: source == "attention" or score == "dot",
            lambda source, normalizer: source == "attention" or normalizer == "softmax",
        ],
    ),
    "attention": (
        {
            "position": OUTSIDE,
            "past": [True, False],
            "score": ["general", *SCORES[3:]],  # the widths differ here
            "normalizer": [*NORMALIZERS, "hard"],
        },
        [],
    ),
}


def is_new(options: dict[str, Any], seen: Counter[tuple[str, str]]) -> bool:
    """Whether an option set has a value that fewer than two sets before it have; it is counted then."""
    values = {(name, repr(value)) for name, value in options.items()}
    new = not options or any(seen[value] < 2 for value in values)
    seen.update(values if new else ())
    return new


def cases(registry: Any, spaces: dict[str, tuple[Space, Rules]]) -> list[Any]:
    """Every value of every option in two sets; those that only complete the pairs of values are long tests."""
    params = []
    for name in registry.names:
        seen: Counter[tuple[str, str]] = Counter()
        for i, options in enumerate([{}, *covering(*spaces.get(name, ({}, [])))]):
            marks = () if is_new(options, seen) else pytest.mark.long
            params.append(pytest.param(registry.parse({"name": name, **options}), id=f"{name}-{i}", marks=marks))
    return params


EVERY_FRONTEND = pytest.mark.parametrize("part", cases(frontends, FRONTENDS))
EVERY_ENCODER = pytest.mark.parametrize("part", cases(encoders, ENCODERS))
DECODER_CASES = cases(decoders, DECODERS)
EVERY_DECODER = pytest.mark.parametrize("part", DECODER_CASES)


def name_of(part: Part, option: str) -> str:
    value = part.options.get(option)
    return str(value.name if isinstance(value, Part) else value)


def is_decoder_only(part: Part) -> bool:
    """Whether a decoder reads the source as the beginning of its own sequence."""
    return name_of(part, "source") in PREFIXES


def looks_everywhere(part: Part) -> bool:
    """Whether every state of the source has some weight in what a decoder says."""
    return name_of(part, "source") in ("attention", *PREFIXES) and name_of(part, "normalizer") == "softmax"


def sees_a_set(part: Part) -> bool:
    """Whether the order of the source's states cannot matter to a decoder."""
    ordered = name_of(part, "normalizer").startswith("local") or name_of(part, "score") == "location"
    # From a state of zeros a dot finds all keys alike, and the first of them is the one looked at.
    tied = name_of(part, "normalizer") == "hard" and part.options.get("bridge") == "zero"
    return not ordered and not tied and not is_decoder_only(part)


def settled(module: Any) -> Any:
    """In evaluation mode, with every weight moved a little: what begins as 0 or 1 must not hide a mistake."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return module.eval()


def encoder_of(part: Part) -> Any:
    return settled(encoders.build(part, D_IN))


def decoder_of(part: Part) -> Any:
    return settled(decoders.build(part, D_IN, d_memory(part)))


def d_memory(part: Part) -> int:
    return D_IN if is_decoder_only(part) else D_MEMORY


@pytest.fixture(autouse=True)
def in_double_precision() -> Iterator[None]:
    """Rounding must not hide a mistake, nor look like one: an unscaled dot over six layers enlarges it greatly."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a.double(), b.double(), atol=1e-6, rtol=1e-5)  # a model's log p are float32


def a_source() -> tuple[Tensor, Tensor]:
    return torch.randn(B, S, D_IN), torch.tensor(LENGTHS)


def a_memory(part: Part) -> Memory:
    """What an encoder might have said; `final` fits a decoder with two LSTM layers of width D_IN."""
    final, d = (torch.randn(2, B, D_IN), torch.randn(2, B, D_IN)), d_memory(part)
    return Memory(torch.randn(B, S, d), torch.tensor(LENGTHS), torch.randn(B, d), final)


def rows_of(memory: Memory, rows: list[int], size: int | None = None) -> Memory:
    """Some sentences of a memory, with the padding they do not need cut off."""
    lengths = memory.lengths[rows]
    final = None if memory.final is None else tuple(x[:, rows] for x in memory.final)
    states = memory.states[rows, : size or int(lengths.max())]
    return Memory(states, lengths, memory.summary[rows], final)


def padded(x: Tensor, more: int) -> Tensor:
    """More positions, full of noise."""
    return torch.cat([x, 10 * torch.randn(x.shape[0], more, x.shape[2])], 1)


def same_memory(a: Memory, b: Memory) -> None:
    close(a.summary, b.summary)
    assert (a.final is None) == (b.final is None)
    for x, y in zip(a.final or (), b.final or (), strict=True):
        close(x, y)
    for x, y, n in zip(a.states, b.states, a.lengths.tolist(), strict=True):
        close(x[:n], y[:n])


def loads_equal(part: nn.Module, other: nn.Module) -> None:
    """The weights of one, loaded into the other, are all there is to it."""
    other.load_state_dict({name: x.clone() for name, x in part.state_dict().items()}, strict=True)


# -- frontends -----------------------------------------------------------------------------------------------------

FIXED = ("image", "whisper")  # whose sources are all of one size


def reader_of(part: Part) -> Any:
    kind: Any = frontends[part.name]
    return kind.build_modality(part.options, ())


def frontend_of(part: Part) -> Any:
    reader = reader_of(part)
    return settled(frontends.build(part, SIZE if reader is None else reader.width, D_IN))


def a_raw_source(part: Part, more: int = 0) -> tuple[Tensor, Tensor]:
    """Ids or numbers with noise in the padding, `more` positions of it than needed."""
    reader, lengths = reader_of(part), torch.tensor(LENGTHS)
    if reader is None:
        return torch.randint(4, SIZE, (B, S + more)), lengths
    blank = torch.from_numpy(reader.blank())  # one of the smallest size: the others have multiples of that
    lengths = torch.full((B,), len(blank)) if part.name in FIXED else lengths * len(blank)
    shape = (B, int(lengths.max()) + more * (part.name not in FIXED), reader.width)
    noise = torch.randint(0, 256, shape) if blank.dtype == torch.uint8 else torch.randn(shape)
    return noise.to(blank.dtype), lengths


@EVERY_FRONTEND
def test_padding_changes_nothing_for_a_frontend(part: Part) -> None:
    frontend, (source, lengths) = frontend_of(part), a_raw_source(part)
    expected, segments = frontend.embed_source(source, Segments(lengths))
    wider, _ = a_raw_source(part, more=4)
    real = Segments(lengths).mask(source.shape[1])
    wider[:, : source.shape[1]][real] = source[real]
    found, others = frontend.embed_source(wider, Segments(lengths))
    assert torch.equal(segments.lengths, others.lengths)
    for x, y, n in zip(expected, found, segments.lengths.tolist(), strict=True):
        close(x[:n], y[:n])


@EVERY_FRONTEND
def test_a_batch_equals_its_rows_for_a_frontend(part: Part) -> None:
    frontend, (source, lengths) = frontend_of(part), a_raw_source(part)
    together, segments = frontend.embed_source(source, Segments(lengths))
    assert together.shape == (B, int(segments.lengths.max()), frontend.d)
    for i, n in enumerate(lengths.tolist()):
        alone, own = frontend.embed_source(source[i : i + 1, :n], Segments(lengths[i : i + 1]))
        assert own.lengths.tolist() == [alone.shape[1]] == segments.lengths[i : i + 1].tolist()
        close(alone[0], together[i, : alone.shape[1]])


@EVERY_FRONTEND
def test_a_saved_frontend_loads_equal(part: Part) -> None:
    frontend, (source, lengths) = frontend_of(part), a_raw_source(part)
    other = frontend_of(part)
    loads_equal(frontend, other)
    assert torch.equal(
        frontend.embed_source(source, Segments(lengths))[0], other.embed_source(source, Segments(lengths))[0]
    )


@pytest.mark.parametrize("part", [case for case in cases(frontends, FRONTENDS) if reader_of(case.values[0])])
def test_a_frontend_names_every_vector_it_makes(part: Part) -> None:
    frontend, (source, lengths) = frontend_of(part), a_raw_source(part)
    _, segments = frontend.embed_source(source, Segments(lengths))
    for n, made in zip(lengths.tolist(), segments.lengths.tolist(), strict=True):
        assert len(set(frontend.position_labels(n))) == made


# -- encoders ------------------------------------------------------------------------------------------------------


@EVERY_ENCODER
def test_padding_changes_nothing_for_an_encoder(part: Part) -> None:
    encoder, (x, lengths) = encoder_of(part), a_source()
    expected = encoder(x, Segments(lengths))
    noise = x.clone()
    noise[~Segments(lengths).mask(S)] = 10 * torch.randn(D_IN)
    same_memory(expected, encoder(noise, Segments(lengths)))
    same_memory(expected, encoder(padded(noise, 4), Segments(lengths)))


@EVERY_ENCODER
def test_a_batch_equals_its_rows_for_an_encoder(part: Part) -> None:
    encoder, (x, lengths) = encoder_of(part), a_source()
    together = encoder(x, Segments(lengths))
    for i, n in enumerate(LENGTHS):
        alone = encoder(x[i : i + 1, :n], Segments(lengths[i : i + 1]))
        same_memory(alone, rows_of(together, [i]))


@EVERY_ENCODER
def test_an_encoder_has_the_width_it_says_and_reads_all_of_the_source(part: Part) -> None:
    encoder, (x, lengths) = encoder_of(part), a_source()
    x.requires_grad_()
    memory = encoder(x, Segments(lengths))
    stride = getattr(encoder, "stride", 1)
    assert memory.states.shape == (B, math.ceil(S / stride), encoder.d)
    assert memory.summary.shape == (B, encoder.d)
    assert memory.lengths.tolist() == [math.ceil(n / stride) for n in LENGTHS]
    (memory.summary.sin().sum() + memory.states[0].sin().sum()).backward()
    assert x.grad is not None
    assert (x.grad[0].abs().amax(-1) > 0).sum() >= x.shape[1] - 1  # a relu may be dead at one position
    assert torch.isfinite(x.grad).all()


@EVERY_ENCODER
def test_a_saved_encoder_loads_equal(part: Part) -> None:
    encoder, (x, lengths) = encoder_of(part), a_source()
    other = encoder_of(part)
    loads_equal(encoder, other)
    assert torch.equal(encoder(x, Segments(lengths)).states, other(x, Segments(lengths)).states)


@EVERY_ENCODER
def test_recording_attention_changes_nothing_for_an_encoder(part: Part) -> None:
    encoder, (x, lengths) = encoder_of(part), a_source()
    expected = encoder(x, Segments(lengths))
    with record_attention():
        same_memory(expected, encoder(x, Segments(lengths)))


def narrow(part: Part) -> bool:
    """Whether a decoder's looks at its own past leave some of it out."""
    return part.name == "transformer" and name_of(part, "normalizer") != "softmax"


def decoder_forgets(part: Part) -> bool:
    """Whether part of the source is out of a decoder's sight: in one sequence, kernels reach only so far."""
    return part.name == "conv" and is_decoder_only(part)


# -- decoders ------------------------------------------------------------------------------------------------------


@EVERY_DECODER
def test_padding_changes_nothing_for_a_decoder(part: Part) -> None:
    decoder, memory, y = decoder_of(part), a_memory(part), torch.randn(B, T, D_IN)
    expected = decoder(y, memory).o
    noise = memory.states.clone()
    noise[~memory.mask] = 10 * torch.randn(d_memory(part))
    close(expected, decoder(y, replace(memory, states=padded(noise, 4))).o)
    close(expected, decoder(padded(y, 3), memory).o[:, :T])


@EVERY_DECODER
def test_a_batch_equals_its_rows_for_a_decoder(part: Part) -> None:
    decoder, memory, y = decoder_of(part), a_memory(part), torch.randn(B, T, D_IN)
    together = decoder(y, memory).o
    assert together.shape == (B, T, decoder.d)
    for i in range(B):
        close(together[i : i + 1], decoder(y[i : i + 1], rows_of(memory, [i])).o)


@EVERY_DECODER
def test_step_by_step_equals_all_at_once(part: Part) -> None:
    """For one hypothesis and for more, with just enough room and with too much."""
    decoder, memory, y = decoder_of(part), a_memory(part), torch.randn(B, K, T, D_IN)
    at_once = torch.stack([decoder(y[:, k], memory).o for k in range(K)], 1)  # (B, K, T, D)
    for hypotheses, room in product((1, K), (T, T + 3)):
        state = decoder.start(memory, Capacity(hypotheses, room))
        for t in range(T):
            output, state = decoder.step(y[:, :hypotheses, t], state)
            close(output.o, at_once[:, :hypotheses, t])


@EVERY_DECODER
def test_a_decoder_does_not_see_the_future(part: Part) -> None:
    decoder, memory, y = decoder_of(part), a_memory(part), torch.randn(B, T, D_IN)
    expected = decoder(y, memory).o
    for t in range(1, T):
        changed = torch.cat([y[:, :t], 10 * torch.randn(B, T - t, D_IN)], 1)
        found = decoder(changed, memory).o
        close(found[:, :t], expected[:, :t])
        assert (found[:, t] - expected[:, t]).abs().max() > 1e-3  # but it sees the present


@EVERY_DECODER
def test_a_decoder_sees_the_past_and_the_source(part: Part) -> None:
    decoder, memory, y = decoder_of(part), a_memory(part), torch.randn(B, T, D_IN)
    for x in (y, memory.states, memory.summary):
        x.requires_grad_()
    for _ in range(4 if part.options.get("cell") == "rnn_relu" else 1):  # all units of such a cell may happen to be off
        o = decoder(y, memory).o
        (o[:, 0].sin().sum() + o[:, -1].sin().sum()).backward()
        decoder = decoder_of(part)
    assert y.grad is not None
    if part.options.get("past", True) and not narrow(part):  # B7's decoder may be told to know its last input only
        assert y.grad.abs().amax(-1).min() > 0
    states, real = memory.states.grad, memory.mask
    if name_of(part, "source") in ("context", "initial"):  # which know the source as one vector
        assert memory.summary.grad is not None or part.options["bridge"] == "copy"
        return
    assert states is not None
    seen = states[real].abs().amax(-1)
    assert (seen.min() if looks_everywhere(part) and not decoder_forgets(part) else seen.max()) > 0
    assert states[~real].abs().sum() == 0


@EVERY_DECODER
def test_every_tensor_of_a_state_leads_with_sentence_and_hypothesis(part: Part) -> None:
    decoder, memory = decoder_of(part), a_memory(part)
    state = decoder.start(memory, Capacity(K, T))
    shapes: list[torch.Size] = []
    for _ in range(3):
        tree.map(lambda x: shapes.append(x.shape) or x, state)
        _, state = decoder.step(torch.randn(B, K, D_IN), state)
    assert shapes
    assert all(shape[0] == B and shape[1] in (1, K) for shape in shapes)


@EVERY_DECODER
def test_sentences_can_be_selected_between_steps(part: Part) -> None:
    """Selecting rows, then stepping, is stepping, then selecting; and both are what forward says of those rows."""
    decoder, memory, y = decoder_of(part), a_memory(part), torch.randn(B, K, T, D_IN)
    at_once = torch.stack([decoder(y[:, k], memory).o for k in range(K)], 1)
    begun = decoder.start(memory, Capacity(K, T))
    for t in range(2):
        _, begun = decoder.step(y[:, :, t], begun)
    for rows in ([0, 1, 2], [2, 0], [1], [1, 1, 0, 2]):
        state = tree.map(torch.clone, begun)
        selected = tree.select(state, torch.tensor(rows))
        for t in range(2, T):
            output, selected = decoder.step(y[rows][:, :, t], selected)
            later, state = decoder.step(y[:, :, t], state)
            close(output.o, at_once[rows][:, :, t])
            close(output.o, later.o[rows])


@EVERY_DECODER
def test_hypotheses_can_be_reordered_between_steps(part: Part) -> None:
    """Reordering, then stepping, is stepping, then reordering; and both are what forward says of the new beginnings."""
    decoder, memory = decoder_of(part), a_memory(part)
    y, sentences = torch.randn(B, K, T, D_IN), torch.arange(B)[:, None]
    state = decoder.start(memory, Capacity(K, T))
    parents = torch.tensor([[1, 1, 0], [2, 0, 1], [0, 0, 0]])
    for t in range(3):
        output, state = decoder.step(y[:, :, t], state)
    twin = tree.map(torch.clone, state)
    state = tree.reorder(state, parents)
    history = y[sentences, parents]  # what each hypothesis has read so far, and one more token of its own
    for t in range(3, T):
        output, state = decoder.step(history[:, :, t], state)
    truth = torch.stack([decoder(history[:, k], memory).o[:, -1] for k in range(K)], 1)
    close(output.o, truth)
    for t in range(3, T):
        output, twin = decoder.step(y[:, :, t], twin)
    close(output.o[sentences, parents], truth)


@EVERY_DECODER
def test_a_saved_decoder_loads_equal(part: Part) -> None:
    decoder, memory, y = decoder_of(part), a_memory(part), torch.randn(B, T, D_IN)
    other = decoder_of(part)
    loads_equal(decoder, other)
    assert torch.equal(decoder(y, memory).o, other(y, memory).o)


@EVERY_DECODER
def test_recording_attention_changes_nothing_and_weights_sum_to_one(part: Part) -> None:
    decoder, memory, y = decoder_of(part), a_memory(part), torch.randn(B, T, D_IN)
    expected = decoder(y, memory)
    with record_attention():
        found = decoder(y, memory)
    close(found.o, expected.o)
    for a in (expected.attention, found.attention):
        if a is not None:
            assert a.shape == (B, T, S)
            assert (a >= 0).all()
            if name_of(part, "normalizer") == "local_p":  # which Luong's Gaussian takes some of
                assert (a.sum(-1) <= 1 + 1e-5).all()
            else:
                close(a.sum(-1), torch.ones(B, T))
            assert a.masked_select(~memory.mask[:, None].expand_as(a)).abs().sum() == 0


@pytest.mark.parametrize("part", [case for case in DECODER_CASES if sees_a_set(case.values[0])])
def test_the_source_is_a_set_to_an_attention_decoder(part: Part) -> None:
    """SPEC C7: permuting the memory's states with their mask changes no output."""
    decoder, memory, y = decoder_of(part), a_memory(part), torch.randn(B, T, D_IN)
    expected = decoder(y, memory).o
    states = memory.states.clone()
    for i, n in enumerate(LENGTHS):
        states[i, :n] = states[i, torch.randperm(n)]
    close(decoder(y, replace(memory, states=states)).o, expected)


# -- every pair as a model -----------------------------------------------------------------------------------------

SIZE = 9
SMALL = {"transformer": {"layers": 2, "heads": 2, "feedforward": 20}, "conv": {"layers": 2}}
WHOLE = [
    *((encoder, decoder, {}) for encoder in encoders.names for decoder in decoders.names),
    *(("none", decoder, {"source": "prefix"}) for decoder in ("rnn", "transformer", "conv")),
    ("none", "transformer", {"source": "full_prefix"}),
]
PAIRS = pytest.mark.parametrize(
    ("encoder", "decoder"),
    [
        pytest.param(
            encoders.parse({"name": e, **SMALL.get(e, {})}),
            decoders.parse({"name": d, **SMALL.get(d, {}), **options}),
            id="-".join([e, d, *options.values()]),
        )
        for e, d, options in WHOLE
    ],
)


def model_of(encoder: Part, decoder: Part) -> Seq2Seq:
    return settled(Seq2Seq(SIZE, SIZE + 2, width=D_IN, encoder=encoder, decoder=decoder))  # type: ignore[no-any-return]


def a_batch() -> Batch:
    source, target = torch.randint(4, SIZE, (B, S)), torch.randint(4, SIZE + 2, (B, T + 1))
    source_lengths, target_lengths = torch.tensor(LENGTHS), torch.tensor([4, T + 1, 2])
    target[:, 0] = BOS
    for i in range(B):
        source[i, source_lengths[i] :], target[i, target_lengths[i] :] = PAD, PAD
        target[i, target_lengths[i] - 1] = EOS
    return Batch(source, source_lengths, target, target_lengths, list(range(B)))


@PAIRS
@torch.no_grad()
def test_a_model_keeps_the_promises_of_its_parts(encoder: Part, decoder: Part) -> None:
    model, batch = model_of(encoder, decoder), a_batch()
    together = model.token_log_probs(batch)  # (B, T)
    assert together.dtype == torch.float64

    # padding changes nothing, a batch equals its rows
    zeros = torch.zeros(B, 3, dtype=torch.long)
    wide = replace(batch, source=torch.cat([batch.source, zeros], 1), target=torch.cat([batch.target, zeros], 1))
    close(model.token_log_probs(wide)[:, :T], together)
    for i in range(B):
        alone = model.token_log_probs(batch.slice_rows(i, i + 1))
        close(alone, together[i : i + 1, : alone.shape[1]])
        assert together[i, alone.shape[1] :].abs().sum() == 0

    # step by step equals all at once, for different hypotheses of each sentence
    memory = model.encode(batch.source, batch.source_lengths)
    tokens = torch.randint(3, SIZE + 2, (B, K, T))
    tokens[:, :, 0] = BOS
    at_once = torch.stack([output_log_probs(model.logits(model.decode(tokens[:, k], memory).o)) for k in range(K)], 1)
    state = model.start(memory, Capacity(K, T))
    for t in range(T):
        log_p, state = model.step(tokens[:, :, t], state)
        close(log_p, at_once[:, :, t])
        close(log_p.exp().sum(-1), torch.ones(B, K))

    # no sight of the future
    changed = tokens.clone()
    changed[:, :, 3:] = torch.randint(3, SIZE + 2, (B, K, T - 3))
    again = output_log_probs(model.logits(model.decode(changed[:, 0], memory).o))
    close(again[:, :3], at_once[:, 0, :3])

    # a saved model loads equal
    other = model_of(encoder, decoder)
    loads_equal(model, other)
    assert torch.equal(other.token_log_probs(batch), together)


@PAIRS
def test_every_weight_takes_part_in_the_loss(encoder: Part, decoder: Part) -> None:
    model = model_of(encoder, decoder)
    model.loss(a_batch()).backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()]
    assert not idle


# -- every option is shown -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown() -> dict[str, set[str]]:
    """What `dragoman list` prints: `part` under `kind` → its options."""
    command = [sys.executable, "-m", "dragoman", "list"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    found: dict[str, set[str]] = {}
    kind = part = ""
    for line in text.splitlines():
        if match := re.fullmatch(r"([a-z_]+)", line):
            kind = match[1]
        elif match := re.match(r"([^\s:]+): ", line):
            part = f"{kind} {match[1]}"
            found[part] = set()
        elif match := re.match(r"    ([a-z_0-9]+) [=(]", line):
            found[part].add(match[1])
    return found


@pytest.mark.parametrize(
    ("kind", "registry"),
    [
        ("frontends", frontends),
        ("encoders", encoders),
        ("decoders", decoders),
        ("scores", scores),
        ("normalizers", normalizers),
        ("positions", positions),
        ("norms", norms),
    ],
)
def test_every_option_of_every_part_is_listed(shown: dict[str, set[str]], kind: str, registry: Any) -> None:
    assert registry.names
    for name in registry.names:
        parameters = inspect.signature(registry[name]).parameters.values()
        options = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        if registry[name].__init__ is not nn.Module.__init__:
            assert not [p for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD], f"{name} swallows options"
        assert shown[f"{kind} {name}"] == options == set(registry.schema(name).model_fields)
        assert registry.summary(name)
