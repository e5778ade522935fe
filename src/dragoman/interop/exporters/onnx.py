"""encoder.onnx and decoder_step.onnx, for onnxruntime: any encoder and decoder whose steps can be traced.

    encoder        source (B, S), source_lengths (B,), target_positions (C,)  →  the state before the first token
    decoder_step   token (B, 1), state  →  log_p (B, 1, V), and as next_… what a step changes of the state

The state is that of our own decoders, its tensors named by their place in it. target_positions are 0 … C − 1 where C is
the most tokens of an output: caches have that size. All of B, S and C may differ from call to call.

What torch's exporter cannot trace is replaced on a copy of the model by an equal formulation: recurrent layers over
packed rows by ONNX's LSTM, GRU and RNN, which know the rows' lengths; the windows of a convolution by shifted slices;
buckets of t5 positions by comparisons; the fused attention kernel by its equation.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import logging
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dragoman.checkpoint.model_folder import LoadedModel
from dragoman.core import tree
from dragoman.core.errors import MissingExtra, UserError
from dragoman.core.types import BOS, EOS, Capacity
from dragoman.interop.exporters.contents import (
    MAX_POSITIONS,
    Exported,
    ExportOptions,
    ends_with_eos,
    tag_note,
    write_tokenizers,
)
from dragoman.nn.attention import MultiHeadAttention
from dragoman.nn.convolution import GatedConvolution
from dragoman.nn.positions import PositionScheme, T5Positions
from dragoman.nn.recurrent import HiddenState, ResetBeforeGRU, ResetBeforeGRUCell, RNNLayer, RNNStack
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.nn.token_mixers import KeyValueCache, SelfAttention

OPSET = 20
MAX_GRAPH_BYTES = 2**30  # of weights in the file of a graph, which cannot exceed 2 GiB
SIZES = (2, 5, 7), (3, 6, 9)  # (B, S, C) of two runs, whose shapes tell which dimensions vary
AXES = ("batch", "source", "target")


def export_onnx(loaded: LoadedModel, folder: Path, options: ExportOptions) -> Exported:
    """Write a model for onnxruntime."""
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "onnx", "exporting to ONNX")
    model = exportable_copy(loaded.model)
    limits = [model.max_source_positions, model.max_target_positions]
    positions = min([limit for limit in limits if limit is not None], default=MAX_POSITIONS)
    try:
        write_graphs(model, folder, min(positions, MAX_POSITIONS))
    except UserError as error:
        raise UserError(f"{loaded.path}: cannot be exported as onnx: {error}") from None
    except Exception as error:
        first = str(error).strip().split("\n")[0][:200]
        raise UserError(
            f"{loaded.path}: cannot be exported as onnx: torch's exporter cannot trace its "
            f"{type(loaded.model.encoder).__name__} and {type(loaded.model.decoder).__name__} ({first})"
        ) from error
    write_tokenizers(loaded.codec, folder)
    limited = any(limit is not None for limit in limits)
    limitations = [f"sources and outputs have at most {positions} tokens"] if limited else []
    limitations.append("the graphs read and write token ids; the tokenizers are in tokenization.json")
    last = len(loaded.codec.source) - 1
    end = "every source ends with `</s>`, whose id is 2" if ends_with_eos(loaded) else "sources have no `</s>`"
    ids = [last, EOS] if ends_with_eos(loaded) else [last]
    readme = README.format(ids=ids, tags=tag_note(loaded.codec), end=end, length=min(60, positions - 2))
    writers = "torch", "onnx", "onnxscript"
    return Exported("onnxruntime", readme, "ids", "onnx", limitations, positions, writers)


# -- the two graphs ----------------------------------------------------------------------------------------------------


class EncoderGraph(nn.Module):
    """source, lengths, target positions → the leaves of the decoder's state."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, source_lengths: Tensor, target_positions: Tensor) -> tuple[Tensor, ...]:
        memory = self.model.encode(source, source_lengths)
        state = self.model.start(memory, Capacity(1, target_positions.shape[0]))
        # A state may hold a tensor twice, or one of the inputs; a graph's outputs are distinct.
        return tuple(leaf.clone() for _, leaf in named_leaves(state))


class StepGraph(nn.Module):
    """token, state → log p and the leaves of the state that a step changes."""

    def __init__(self, model: Seq2Seq, state: Any, changed: list[str]) -> None:
        super().__init__()
        self.model, self.state, self.changed = model, state, changed

    def forward(self, token: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
        remaining = iter(leaves)
        state = tree.map(lambda _: next(remaining).clone(), self.state)  # a step may write into its state
        log_p, state = self.model.step(token, state)
        found = dict(named_leaves(state))
        return log_p, *(found[name] for name in self.changed)


@torch.inference_mode(False)
@torch.no_grad()
def write_graphs(model: Seq2Seq, folder: Path, longest: int) -> None:
    """Trace and write encoder.onnx and decoder_step.onnx."""
    runs = []
    for B, S, C in SIZES:
        S *= model.stride  # of a pyramid: so that its states' numbers differ, too
        if max(S, C) >= longest:
            raise UserError(f"models with fewer than {max(S, C) + 1} positions cannot be traced")
        source = torch.full((B, S), len(SPECIAL_IDS), dtype=torch.long)
        lengths = torch.tensor([S, *([S - 1] * (B - 1))])
        inputs = source, lengths, torch.arange(C)
        runs.append((inputs, model.start(model.encode(source, lengths), Capacity(1, C))))
    (inputs, state), (_, other) = runs
    shapes = [{name: leaf.shape for name, leaf in named_leaves(each)} for each in (state, other)]
    names = list(shapes[0])
    dynamic = {name: varying(shapes[0][name], shapes[1][name]) for name in names}
    changed = changed_leaves(model, state)

    batch, positions, capacity = (torch.export.Dim(name) for name in AXES)
    encoder_shapes = {
        "source": {0: batch, 1: positions},
        "source_lengths": {0: batch},
        "target_positions": {0: capacity},
    }
    export_graph(
        EncoderGraph(model), inputs, encoder_shapes, ["source", "source_lengths", "target_positions"], names,
        folder / "encoder.onnx",
    )  # fmt: skip
    leaves = [leaf for _, leaf in named_leaves(state)]
    token = torch.full((SIZES[0][0], 1), BOS)
    step_shapes = {
        "token": {0: torch.export.Dim.DYNAMIC},
        "leaves": [dict.fromkeys(dynamic[name], torch.export.Dim.DYNAMIC) for name in names],
    }
    export_graph(
        StepGraph(model, state, changed), (token, leaves), step_shapes, ["token", *names],
        ["log_p", *(f"next_{name}" for name in changed)], folder / "decoder_step.onnx",
    )  # fmt: skip


SPECIAL_IDS = range(4)


def export_graph(
    graph: nn.Module, inputs: tuple[Any, ...], shapes: Any, input_names: list[str], output_names: list[str], path: Path
) -> None:
    """Trace a module by torch's exporter and write it; weights too large for the file are in PATH.data beside it."""
    is_large = sum(x.nbytes for x in (*graph.parameters(), *graph.buffers())) > MAX_GRAPH_BYTES
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph.eval(),
            inputs,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=input_names,
            output_names=output_names,
            opset_version=OPSET,
            verbose=False,
        )
        assert program is not None
        program.save(path, external_data=is_large)


class quiet:
    """Silence what torch's exporter logs and prints."""

    def __enter__(self) -> None:
        self.level = logging.root.manager.disable
        logging.disable(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        logging.disable(self.level)


def named_leaves(state: Any, name: str = "state") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a state in the order of tree.map, named by their place in it, as in state_blocks_0_past_1."""
    if isinstance(state, Tensor):
        yield name, state
    elif dataclasses.is_dataclass(state):
        for field in dataclasses.fields(state):
            yield from named_leaves(getattr(state, field.name), f"{name}_{field.name}")
    elif isinstance(state, (list, tuple)):
        for i, item in enumerate(state):
            yield from named_leaves(item, f"{name}_{i}")
    elif isinstance(state, dict):
        for key, item in state.items():
            yield from named_leaves(item, f"{name}_{key}")
    elif hasattr(state, "reorder"):
        raise UserError(f"its decoder's state has a part of its own kind, {type(state).__name__}")


def varying(a: torch.Size, b: torch.Size) -> list[int]:
    """The dimensions in which two shapes differ."""
    return [i for i, (m, n) in enumerate(zip(a, b, strict=True)) if m != n]


def changed_leaves(model: Seq2Seq, state: Any) -> list[str]:
    """The leaves that a step replaces or writes into."""
    before = dict(named_leaves(state))
    copied = tree.map(lambda leaf: leaf.clone(), state)
    given = dict(named_leaves(copied))
    _, after = model.step(torch.full((SIZES[0][0], 1), BOS), copied)
    return [
        name for name, leaf in named_leaves(after) if leaf is not given[name] or not torch.equal(leaf, before[name])
    ]


# -- what torch's exporter cannot trace --------------------------------------------------------------------------------


def exportable_copy(model: Seq2Seq) -> Seq2Seq:
    """A copy of a model in which every part can be traced, and computes the same."""
    copied = copy.deepcopy(model).float().cpu().eval()
    for module in [*copied.modules()]:
        for name, child in [*module.named_children()]:
            if isinstance(child, nn.Linear) and parametrize.is_parametrized(child):
                module.add_module(name, plain_linear(child))
    for module in copied.modules():
        if isinstance(module, MultiHeadAttention):
            module.supports_fused_kernel = False
        elif isinstance(module, RNNStack):
            module.forward = types.MethodType(run_stack, module)  # type: ignore[method-assign]
        elif isinstance(module, GatedConvolution):
            module.forward = types.MethodType(convolve_windows, module)  # type: ignore[method-assign]
        elif isinstance(module, T5Positions):
            module.bucket_index = types.MethodType(compare_buckets, module)  # type: ignore[method-assign]
    if not copied.is_decoder_only:
        for module in copied.decoder.modules():
            if isinstance(module, SelfAttention):
                module.start = types.MethodType(start_empty, module)  # type: ignore[method-assign]
    for p in copied.parameters():
        p.requires_grad_(False)
    return copied


def plain_linear(layer: nn.Linear) -> nn.Linear:
    """A layer without weight norm. (Removing its parametrization would remove that of the layer it is a copy of.)"""
    plain = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
    plain.weight = nn.Parameter(layer.weight.detach().clone())
    if layer.bias is not None:
        plain.bias = nn.Parameter(layer.bias.detach().clone())
    return plain


def start_empty(
    self: SelfAttention, x: Tensor, lengths: Tensor, hypotheses: int, capacity: int, position: PositionScheme
) -> KeyValueCache:
    """SelfAttention.start without a prefix, whose projections of no positions onnxruntime refuses."""
    keys, values = (
        x.new_zeros(x.shape[0], hypotheses, self.key_heads, capacity, layer.out_features // self.key_heads)
        for layer in (self.Wk, self.Wv)
    )
    return keys, values


def convolve_windows(self: GatedConvolution, h: Tensor) -> Tensor:
    """GatedConvolution.forward with slices in place of unfold."""
    T = h.shape[-2] - (self.kernel - 1)
    windows = torch.stack([h.narrow(-2, i, T) for i in range(self.kernel)], -1).flatten(-2)  # (…, T, D·k)
    return nn.functional.glu(self.W(windows), -1)


def compare_buckets(self: T5Positions, distance: Tensor) -> Tensor:
    """T5Positions.bucket_index with comparisons in place of bucketize."""
    size = distance.abs() if self.later else (-distance).clamp(min=0)
    return (size[..., None] >= self.edges).sum(-1) + self.later * (distance > 0)


def run_stack(
    self: RNNStack,
    x: Tensor,
    state: HiddenState | None = None,
    lengths: Tensor | None = None,
    c: Tensor | None = None,
) -> tuple[Tensor, HiddenState]:
    """RNNStack.forward without a look at the lengths: rows of any length, but none that is empty."""
    if state is None:
        zeros = x.new_zeros(1, 1, self.d).expand(len(self.layers), x.shape[0], self.d)
        state = (zeros,) * self.states_per_layer
    final_states = []
    for i, layer in enumerate(self.layers):
        inputs = x if c is None else torch.cat([x, c], -1)
        initial = tuple(s[i] for s in state)
        if lengths is None:
            out, final = step_layer(layer, inputs, initial)
        else:
            out, final = run_layer(layer, inputs, initial, lengths)
        x = x + out if 0 < self.residual <= i + 1 else out
        final_states.append(final)
    return x, tuple(torch.stack(s) for s in zip(*final_states, strict=True))


def step_layer(layer: Any, x: Tensor, state: HiddenState) -> tuple[Tensor, HiddenState]:
    """One position of a layer that reads in one direction: x (B, 1, D_in)."""
    if isinstance(layer, RNNLayer):
        new = layer.step(x[:, 0], state)
        return new[0][:, None], new
    cell, h = layer.cells[0], state[0]
    rz_of_x, n_of_x = cell.W(x[:, 0]).split([2 * cell.d, cell.d], -1)
    r, z = torch.sigmoid(rz_of_x + cell.U(h)).chunk(2, -1)
    h = (1 - z) * torch.tanh(n_of_x + cell.Un(r * h)) + z * h
    return h[:, None], (h,)


def run_layer(layer: Any, x: Tensor, state: HiddenState, lengths: Tensor) -> tuple[Tensor, HiddenState]:
    """All positions of a layer by ONNX's recurrent operator: x (B, T, D_in), state (B, D) each."""
    weights, activations = onnx_weights(layer)
    operator = "GRU" if isinstance(layer, ResetBeforeGRU) else {"lstm": "LSTM", "gru": "GRU"}.get(layer.cell, "RNN")
    directions, (B, T) = layer.num_directions, x.shape[:2]
    width = state[0].shape[-1] // directions
    initial = [s.reshape(B, directions, width).transpose(0, 1) for s in state]
    attributes: dict[str, Any] = {
        "direction": "bidirectional" if directions == 2 else "forward",
        "hidden_size": width,
    }
    if operator == "GRU":
        attributes["linear_before_reset"] = int(isinstance(layer, RNNLayer))
    if activations:
        attributes["activations"] = activations * directions
    shapes = [(T, directions, B, width), *[(directions, B, width)] * len(state)]
    out, *final = torch.onnx.ops.symbolic_multi_out(
        operator,
        (x.transpose(0, 1), *weights, lengths.to(torch.int32), *initial),
        attributes,
        dtypes=[x.dtype] * len(shapes),
        shapes=shapes,
        version=OPSET,
    )
    y = out.permute(2, 0, 1, 3).flatten(2)  # (B, T, D)
    return y, tuple(s.transpose(0, 1).flatten(1) for s in final)


def onnx_weights(layer: Any) -> tuple[list[Tensor], list[str]]:
    """W, U and both biases of a layer in ONNX's order of gates, a row for each direction; and its activations."""
    rows: list[list[Tensor]] = []
    if isinstance(layer, ResetBeforeGRU):
        for cell in layer.cells:
            assert isinstance(cell, ResetBeforeGRUCell)
            U = torch.cat([cell.U.weight, cell.Un.weight])
            rows.append(
                [gates(x, "rzn", "zrn") for x in (cell.W.weight, U, cell.W.bias, torch.zeros_like(cell.W.bias))]
            )
    else:
        order = {"lstm": ("ifgo", "iofg"), "gru": ("rzn", "zrn")}.get(layer.cell, ("h", "h"))
        rows = [[gates(x, *order) for x in weights] for weights in layer.rnn.all_weights]
    W, U, bias, recurrent_bias = (torch.stack(x) for x in zip(*rows, strict=True))
    kinds = {"rnn_tanh": ["Tanh"], "rnn_relu": ["Relu"]}
    return [W, U, torch.cat([bias, recurrent_bias], 1)], kinds.get(getattr(layer, "cell", ""), [])


def gates(x: Tensor, ours: str, theirs: str) -> Tensor:
    """The blocks of a weight, one for each gate, in another order."""
    blocks = dict(zip(ours, x.detach().chunk(len(ours)), strict=True))
    return torch.cat([blocks[gate] for gate in theirs])


README = """# A sequence-to-sequence model for onnxruntime

Written by Dragoman. It needs `pip install onnxruntime numpy`, and is run in this folder. Greedy search:

```python
import numpy as np
import onnxruntime

encoder = onnxruntime.InferenceSession("encoder.onnx")
decoder = onnxruntime.InferenceSession("decoder_step.onnx")
PAD, BOS, EOS, LENGTH = 0, 1, 2, {length}
sources = [{ids}]  # token ids

lengths = np.array([len(ids) for ids in sources])
source = np.full((len(sources), lengths.max()), PAD, np.int64)
for row, ids in zip(source, sources):
    row[: len(ids)] = ids
inputs = dict(source=source, source_lengths=lengths, target_positions=np.arange(LENGTH))
names = [x.name for x in encoder.get_outputs()]
state = dict(zip(names, encoder.run(None, {{x.name: inputs[x.name] for x in encoder.get_inputs()}})))
token, outputs = np.full((len(sources), 1), BOS), []
for _ in range(LENGTH):
    feed = dict(state, token=token)
    log_p, *new = decoder.run(None, {{x.name: feed[x.name] for x in decoder.get_inputs()}})
    state.update((x.name.removeprefix("next_"), y) for x, y in zip(decoder.get_outputs()[1:], new))
    log_p[..., [PAD, BOS]] = -np.inf
    token = log_p.argmax(-1)
    outputs.append(token[:, 0])
    if (np.array(outputs) == EOS).any(0).all():
        break
print(np.stack(outputs, 1).tolist())
```
{tags}
How a text becomes ids is in `tokenization.json`; {end}. `export.json` says what was checked, and what differs from the
model that was exported.
"""
