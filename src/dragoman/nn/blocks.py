"""The Transformer block of encoder, decoder and language model, and the stack of blocks.

    pre-norm    x ← x + f(norm(x))          post-norm   x ← norm(x + f(x))

for each sub-layer f in turn: a token mixer (usually self-attention), cross-attention (if there is a memory), and
feed-forward. All positions at once (`forward`), or one more for each hypothesis (`step`), with the past in a cache.

B sentences, K hypotheses, T target and S source positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Memory
from dragoman.nn.attention import AttentionMask, MultiHeadAttention
from dragoman.nn.kernels.dropout import Dropout
from dragoman.nn.layers import FeedForward, NormLayer, linear, norms
from dragoman.nn.positions import HeadSpec, PositionScheme, positions
from dragoman.nn.token_mixers import BlockConfig, mixers

KeysValues = tuple[Tensor, Tensor]


@dataclass
class BlockState:
    """The state of the token mixer, and the projected keys and values of the memory, (B, 1, G, S, ·) each."""

    past: Any
    cross: KeysValues | None


class TransformerBlock(nn.Module):
    """A token mixer, cross-attention if d_memory is given, and feed-forward, each with a residual connection."""

    def __init__(self, d: int, d_memory: int | None, config: BlockConfig) -> None:
        super().__init__()
        self.is_pre_norm = config.norm_order == "pre"
        self.mixer: Any = mixers.build(config.mixer, d, config)
        self.mixer_norm = norms.build(config.norm, d)
        self.cross_attention = MultiHeadAttention(d, d_memory, config.heads) if d_memory is not None else None
        self.cross_norm = norms.build(config.norm, d) if d_memory is not None else None
        self.feedforward = FeedForward(d, config.feedforward, config.activation, config.dropout, config.heads.bias)
        self.feedforward_norm = norms.build(config.norm, d)
        self.dropout = Dropout(config.dropout)

    def sublayer(self, x: Tensor, norm: NormLayer, real: Tensor | None, f: Callable[[Tensor], Tensor]) -> Tensor:
        """x + f(norm(x)), or post-norm norm(x + f(x)), with dropout on f; real (B, T) is false at padding."""
        if self.is_pre_norm:
            return x + self.dropout(f(norm(x, real)))
        return norm(x + self.dropout(f(x)), real)

    def forward(
        self,
        x: Tensor,
        mask: AttentionMask,
        position: PositionScheme,
        memory: Memory | None = None,
        cross_mask: AttentionMask | None = None,
    ) -> Tensor:
        """x (B, T, D) → (B, T, D); `mask` is that of the mixer, `cross_mask` that of the attention to the memory."""
        x = self.sublayer(x, self.mixer_norm, mask.real, lambda x: self.mixer(x, mask, position))
        if self.cross_attention is not None and memory is not None and cross_mask is not None:
            keys_values = self.cross_attention.project_keys_values(memory.states, values=memory.values)
            x = self.attend_to_memory(x, keys_values, cross_mask)
        return self.sublayer(x, self.feedforward_norm, mask.real, self.feedforward)

    def attend_to_memory(self, x: Tensor, memory: KeysValues, mask: AttentionMask) -> Tensor:
        """Cross-attention with residual and norm: x (B, T, D) attends to keys and values (B, G, S, ·)."""
        assert self.cross_attention is not None
        assert self.cross_norm is not None
        attention, (k, v) = self.cross_attention, memory
        return self.sublayer(x, self.cross_norm, None, lambda x: attention(x, k, v, mask))

    def start(
        self,
        x: Tensor,
        lengths: Tensor,
        memory: Memory | None,
        hypotheses: int,
        capacity: int,
        position: PositionScheme,
    ) -> BlockState:
        """The mixer's state after a prefix x (B, S, D) of `lengths` positions, and the memory's keys and values."""
        before = self.mixer_norm(x) if self.is_pre_norm else x
        past, cross = self.mixer.start(before, lengths, hypotheses, capacity, position), None
        if self.cross_attention is not None and memory is not None:
            k, v = self.cross_attention.project_keys_values(memory.states, values=memory.values)
            cross = k[:, None], v[:, None]
        return BlockState(past, cross)

    def step(
        self, x: Tensor, state: BlockState, t: Tensor, position: PositionScheme, cross_mask: AttentionMask | None
    ) -> tuple[Tensor, BlockState]:
        """The block for one position of each hypothesis, x (B, K, D) at t (B, 1) → (B, K, D), and its next state."""
        past = state.past

        def mix(x: Tensor) -> Tensor:
            nonlocal past
            y: Tensor
            y, past = self.mixer.step(x, past, t, position)
            return y

        x = self.sublayer(x, self.mixer_norm, None, mix)
        if state.cross is not None and cross_mask is not None:
            # The hypotheses of a sentence are the queries of one call: they share the sentence's keys and values.
            x = self.attend_to_memory(x, (state.cross[0][:, 0], state.cross[1][:, 0]), cross_mask)
        return self.sublayer(x, self.feedforward_norm, None, self.feedforward), BlockState(past, state.cross)


class TransformerStack(nn.Module):
    """Input projection, positions and dropout, then the blocks, then a final norm (pre-norm only)."""

    def __init__(
        self,
        d_in: int,
        d: int,
        d_memory: int | None,
        layers: int,
        config: BlockConfig,
        position: Part,
        layer_drop: float,
        embedding_norm: bool,
        shared: bool,
    ) -> None:
        super().__init__()
        if config.causal and norms[config.norm.name].uses_batch_statistics:  # type: ignore[attr-defined]
            raise PartError(
                f"norm '{config.norm.name}' averages over positions in training, so a decoder would see the future; "
                "use 'layer' or 'rms'"
            )
        H, d_k, d_v = config.heads.heads, config.heads.key_width, config.heads.value_width
        has_heads = mixers[config.mixer.name].has_heads  # type: ignore[attr-defined]
        heads = HeadSpec(H, d_k or d // H, config.causal) if has_heads else None
        self.input_proj = linear(d_in, d) if d != d_in else nn.Identity()
        distinct = 1 if shared else layers
        schemes = distinct if positions[position.name].per_layer else 1  # type: ignore[attr-defined]
        self.positions = nn.ModuleList([positions.build(position, d, heads) for _ in range(schemes)])
        self.max_positions = self.position_scheme(0).max_positions
        if self.position_scheme(0).needs_weights and (d_k or d // H) != (d_v or d // H):
            raise PartError(
                f"'{position.name}' positions need keys and values of the same width, but keys are {d_k or d // H} and "
                f"values {d_v or d // H} wide; make key_width and value_width equal"
            )
        self.embedding_norm = norms.build(config.norm, d) if embedding_norm else None
        self.dropout, self.layer_drop = Dropout(config.dropout), layer_drop
        # Shared, the same block runs again and again (Dehghani et al. 2019, without their halting).
        blocks = [TransformerBlock(d, d_memory, config) for _ in range(distinct)]
        self.blocks = nn.ModuleList(blocks * (layers // distinct))
        self.norm = norms.build(config.norm, d) if config.norm_order == "pre" else None
        self.activation_checkpointing = False  # keep only each block's input, and compute the rest again when needed

    def position_scheme(self, layer: int) -> PositionScheme:
        """The position scheme of a layer; all layers share one unless the scheme has parameters per layer."""
        return self.positions[layer % len(self.positions)]  # type: ignore[return-value]

    def layers(self) -> Iterator[tuple[TransformerBlock, PositionScheme]]:
        """The blocks from bottom to top, each with its position scheme."""
        for i, block in enumerate(self.blocks):
            assert isinstance(block, TransformerBlock)
            yield block, self.position_scheme(i)

    def embed_inputs(self, x: Tensor, t: Tensor, real: Tensor | None) -> Tensor:
        """The first block's inputs (B, T, D): x (B, T, D_in) projected, with positions t, norm and dropout."""
        x = self.position_scheme(0)(self.input_proj(x), t)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x, real)
        return self.dropout(x)

    def forward(
        self,
        x: Tensor,
        mask: AttentionMask,
        memory: Memory | None = None,
        cross_mask: AttentionMask | None = None,
    ) -> Tensor:
        """Embed the inputs, run the blocks (less those that layer drop skips), norm: x (B, T, D_in) → (B, T, D)."""
        x = self.embed_inputs(x, mask.t, mask.real)
        for block, position in self.layers():
            if self.training and self.layer_drop > 0 and torch.rand(()) < self.layer_drop:
                continue  # this layer is dropped in this pass (Fan et al. 2020)
            if self.activation_checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, mask, position, memory, cross_mask, use_reentrant=False)
            else:
                x = block(x, mask, position, memory, cross_mask)
        return x if self.norm is None else self.norm(x, mask.real)

    def packing_blocker(self) -> str | None:
        """Why this stack cannot run over packed rows; None: it can."""
        if self.layer_drop > 0:
            return "layer_drop skips other layers at every step"
        for block, position in self.layers():
            if block.mixer_norm.uses_batch_statistics:
                return "a batch norm needs to know the padding"
            if not hasattr(block.mixer, "packing_blocker"):
                return f"{type(block.mixer).__name__} supports only padded rows"
            reason: str | None = block.mixer.packing_blocker(position)
            if reason is None and block.cross_attention is not None:
                reason = block.cross_attention.packing_blocker(None)
            if reason is not None:
                return reason
        return None

    def start(
        self, x: Tensor, mask: AttentionMask, lengths: Tensor, memory: Memory | None, hypotheses: int, capacity: int
    ) -> list[BlockState]:
        """The states of all blocks after a prefix x (B, S, D_in) of `lengths` real positions; S may be 0."""
        x, states = self.embed_inputs(x, mask.t, None), []
        for i, (block, position) in enumerate(self.layers()):
            states.append(block.start(x, lengths, memory, hypotheses, capacity, position))
            if x.shape[1] and i + 1 < len(self.blocks):
                x = block(x, mask, position)
        return states

    def step(
        self, x: Tensor, states: list[BlockState], t: Tensor, cross_mask: AttentionMask | None
    ) -> tuple[Tensor, list[BlockState]]:
        """All blocks for one position of each hypothesis, x (B, K, D_in) at t (B, 1) → (B, K, D), and new states."""
        x, new_states = self.embed_inputs(x, t, None), []
        for (block, position), state in zip(self.layers(), states, strict=True):
            x, new_state = block.step(x, state, t, position, cross_mask)
            new_states.append(new_state)
        return x if self.norm is None else self.norm(x, None), new_states
