"""The Transformer block that encoder, decoder and language model share, and the stack of them.

    pre    x ← x + f(norm(x))          post   x ← norm(x + f(x))

for f in turn: a mixer (self-attention, mostly), cross-attention (where there is a memory to look at), feed-forward. All
positions at once (`forward`), or one position more for each hypothesis (`step`), with the past kept in a cache.

B sentences, K hypotheses, T target and S source positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Memory
from dragoman.nn.attention import Heads, MultiHead, Places
from dragoman.nn.kernels.dropout import Dropout
from dragoman.nn.layers import Activation, FeedForward, linear, norms
from dragoman.nn.positions import Inside, positions
from dragoman.nn.token_mixers import Mixing, mixers

KeysValues = tuple[Tensor, Tensor]


class Style(NamedTuple):
    """The options that every block of a stack has in common."""

    heads: Heads
    feedforward: int
    activation: Activation
    norm: Part
    norm_order: Literal["pre", "post"]
    dropout: float
    mixer: Part
    causal: bool


@dataclass
class BlockState:
    """What the mixer keeps of the past, and the projected memory, (B, 1, G, S, ·) each."""

    past: Any
    cross: KeysValues | None


class Block(nn.Module):
    """A mixer, cross-attention if d_memory is given, feed-forward; a residual around each."""

    def __init__(self, d: int, d_memory: int | None, style: Style) -> None:
        super().__init__()
        self.pre = style.norm_order == "pre"
        self.mixer: Any = mixers.build(
            style.mixer, d, Mixing(style.heads, style.feedforward, style.dropout, style.causal)
        )
        self.mixer_norm = norms.build(style.norm, d)
        self.cross_attention = MultiHead(d, d_memory, style.heads) if d_memory is not None else None
        self.cross_norm = norms.build(style.norm, d) if d_memory is not None else None
        self.feedforward = FeedForward(d, style.feedforward, style.activation, style.dropout, style.heads.bias)
        self.feedforward_norm = norms.build(style.norm, d)
        self.dropout = Dropout(style.dropout)

    def residual(self, x: Tensor, norm: Any, real: Tensor | None, f: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre:
            return x + self.dropout(f(norm(x, real)))  # type: ignore[no-any-return]
        return norm(x + self.dropout(f(x)), real)  # type: ignore[no-any-return]

    def forward(
        self, x: Tensor, places: Places, position: Any, memory: Memory | None = None, across: Places | None = None
    ) -> Tensor:
        """x (B, T, D) with its places, and the memory with the places of a look across."""
        x = self.residual(x, self.mixer_norm, places.real, lambda x: self.mixer(x, places, position))
        if self.cross_attention is not None and memory is not None and across is not None:
            x = self.cross(x, self.cross_attention.keys_values(memory.states, values=memory.values), across)
        return self.residual(x, self.feedforward_norm, places.real, self.feedforward)

    def cross(self, x: Tensor, memory: KeysValues, across: Places) -> Tensor:
        assert self.cross_attention is not None
        attention, (k, v) = self.cross_attention, memory
        return self.residual(x, self.cross_norm, None, lambda x: attention(x, k, v, across))

    def start(
        self, x: Tensor, lengths: Tensor, memory: Memory | None, hypotheses: int, capacity: int, position: Any
    ) -> BlockState:
        """The past of the block, x (B, S, D) with `lengths` real, and the memory, projected once per sentence."""
        before = self.mixer_norm(x) if self.pre else x
        past, cross = self.mixer.start(before, lengths, hypotheses, capacity, position), None
        if self.cross_attention is not None and memory is not None:
            k, v = self.cross_attention.keys_values(memory.states, values=memory.values)
            cross = k[:, None], v[:, None]
        return BlockState(past, cross)

    def step(
        self, x: Tensor, state: BlockState, t: Tensor, position: Any, across: Places | None
    ) -> tuple[Tensor, BlockState]:
        """One position for each hypothesis, x (B, K, D) at t (B, 1)."""
        past = state.past

        def mix(x: Tensor) -> Tensor:
            nonlocal past
            y, past = self.mixer.step(x, past, t, position)
            return y  # type: ignore[no-any-return]

        x = self.residual(x, self.mixer_norm, None, mix)
        if state.cross is not None and across is not None:
            # The hypotheses of a sentence are the queries of one call: they share the sentence's keys and values.
            x = self.cross(x, (state.cross[0][:, 0], state.cross[1][:, 0]), across)
        return self.residual(x, self.feedforward_norm, None, self.feedforward), BlockState(past, state.cross)


class Stack(nn.Module):
    """Blocks with what stands around them: the way in, positions, dropout, norms at the beginning and the end."""

    def __init__(
        self,
        d_in: int,
        d: int,
        d_memory: int | None,
        layers: int,
        style: Style,
        position: Part,
        layer_drop: float,
        embedding_norm: bool,
        shared: bool,
    ) -> None:
        super().__init__()
        if style.causal and norms[style.norm.name].mixes:  # type: ignore[attr-defined]
            raise PartError(
                f"norm '{style.norm.name}' mixes positions in training, so a decoder would see the future; "
                "use 'layer' or 'rms'"
            )
        H, d_k, d_v = style.heads.heads, style.heads.key_width, style.heads.value_width
        heads = mixers[style.mixer.name].has_heads  # type: ignore[attr-defined]
        inside = Inside(H, d_k or d // H, style.causal) if heads else None
        self.inward = linear(d_in, d) if d != d_in else nn.Identity()
        different = 1 if shared else layers
        own = different if positions[position.name].each_layer else 1  # type: ignore[attr-defined]
        self.positions = nn.ModuleList([positions.build(position, d, inside) for _ in range(own)])  # type: ignore[misc]
        if self.inside(0).sees_weights and (d_k or d // H) != (d_v or d // H):
            raise PartError(
                f"'{position.name}' positions add vectors of one width to keys and to values, but keys are "
                f"{d_k or d // H} and values {d_v or d // H} wide; make key_width and value_width equal"
            )
        self.embedding_norm = norms.build(style.norm, d) if embedding_norm else None
        self.dropout, self.layer_drop = Dropout(style.dropout), layer_drop
        # Shared, it is one block again and again (Dehghani et al. 2019, without their halting).
        blocks = [Block(d, d_memory, style) for _ in range(different)]
        self.blocks = nn.ModuleList(blocks * (layers // different))
        self.norm = norms.build(style.norm, d) if style.norm_order == "pre" else None

    def inside(self, layer: int) -> Any:
        """The position scheme that acts inside the attention of a layer."""
        return self.positions[layer % len(self.positions)]

    @property
    def length(self) -> int | None:
        """The longest sequence its positions allow."""
        return self.inside(0).length  # type: ignore[no-any-return]

    def embed(self, x: Tensor, t: Tensor, real: Tensor | None) -> Tensor:
        x = self.inside(0)(self.inward(x), t)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x, real)
        return self.dropout(x)  # type: ignore[no-any-return]

    def forward(self, x: Tensor, places: Places, memory: Memory | None = None, across: Places | None = None) -> Tensor:
        x = self.embed(x, places.t, places.real)
        for i, block in enumerate(self.blocks):
            if not self.drops():
                x = block(x, places, self.inside(i), memory, across)
        return x if self.norm is None else self.norm(x, places.real)

    def packs(self) -> str | None:
        """Why rows that lie end to end cannot run through it; None: they can."""
        if self.layer_drop > 0:
            return "layer_drop chooses other layers at every step"
        for i, module in enumerate(self.blocks):
            block: Any = module
            if block.mixer_norm.mixes:
                return "a batch norm needs to know the padding"
            why = block.mixer.packs(self.inside(i))
            if why is None and block.cross_attention is not None:
                why = block.cross_attention.packs(None)
            if why is not None:
                return why  # type: ignore[no-any-return]
        return None

    def drops(self) -> bool:
        """Whether to leave out a layer of this pass (Fan et al. 2020)."""
        return self.training and self.layer_drop > 0 and bool(torch.rand(()) < self.layer_drop)

    def start(
        self, x: Tensor, places: Places, lengths: Tensor, memory: Memory | None, hypotheses: int, capacity: int
    ) -> list[BlockState]:
        """The states of all blocks after a beginning x (B, S, D_in) of which `lengths` are real; S may be 0."""
        x, states = self.embed(x, places.t, None), []
        for i, module in enumerate(self.blocks):
            block: Any = module
            states.append(block.start(x, lengths, memory, hypotheses, capacity, self.inside(i)))
            if x.shape[1] and i + 1 < len(self.blocks):
                x = block(x, places, self.inside(i))
        return states

    def step(
        self, x: Tensor, states: list[BlockState], t: Tensor, across: Places | None
    ) -> tuple[Tensor, list[BlockState]]:
        """x (B, K, D_in) at t (B, 1)."""
        x, after = self.embed(x, t, None), []
        for i, (block, state) in enumerate(zip(self.blocks, states, strict=True)):
            x, state = block.step(x, state, t, self.inside(i), across)  # type: ignore[operator]
            after.append(state)
        return x if self.norm is None else self.norm(x, None), after
