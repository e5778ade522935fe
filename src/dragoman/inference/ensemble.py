"""Several models as one, behind the interface that a Pipeline uses of a model.

    Ensemble        log p(y_t | y_<t, x) = log Σ_i w_i p_i(y_t | y_<t, x)              attention: a_t = Σ_i w_i a_it
    ShallowFusion   s(y_t | y_<t, x) = log p(y_t | y_<t, x) + λ log p_LM(y_t | y_<t)   in search alone

The members may be built of any parts. They must share the tokenizers, so that token v is the same to all, and the
objective, so that they read the same source. The memory of an ensemble is the tuple of its members' memories, and its
hidden vector o_t concatenates theirs, [o_1; …; o_n], which its output layer splits again.

B sentences, T target and S source positions, D widths, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.checkpoint import model_folder, model_paths
from dragoman.checkpoint.model_folder import LoadedModel
from dragoman.core.errors import ModelError, UserError
from dragoman.core.types import Batch, Capacity, Memory, Output
from dragoman.data.objectives import objectives
from dragoman.nn.losses import output_log_probs
from dragoman.nn.seq2seq import Seq2Seq, Seq2SeqOutput, TracedState
from dragoman.search.combination import States, average_steps, fuse_steps, log_mean, normalize_weights


class Ensemble(nn.Module):
    """Averages the probabilities of several models, token by token."""

    second_source = max_second_source_positions = None  # an ensemble reads one source

    def __init__(self, members: Sequence[Seq2Seq], weights: Sequence[float] | None = None) -> None:
        """Hold the models, and their weights normalized to sum to 1; equal by default."""
        super().__init__()
        self.members: Any = nn.ModuleList(members)
        self.stride, self.position_labels = self.members[0].stride, self.members[0].position_labels
        self.weights = normalize_weights(weights, len(members))

    # -- positions ---------------------------------------------------------------------------------------------------

    @property
    def is_decoder_only(self) -> bool:
        """Whether some member is decoder-only with limited positions, which source and target then share."""
        return any(member.is_decoder_only and member.max_target_positions is not None for member in self.members)

    @property
    def has_bidirectional_prefix(self) -> bool:
        """Whether some member reads the source as a prefix in both directions."""
        return any(member.has_bidirectional_prefix for member in self.members)

    @property
    def max_source_positions(self) -> int | None:
        """The smallest of the members' limits on source positions; None: unlimited."""
        return smallest_limit(member.max_source_positions for member in self.members)

    @property
    def max_target_positions(self) -> int | None:
        """The smallest of the members' limits on target positions; None: unlimited."""
        return smallest_limit(member.max_target_positions for member in self.members)

    # -- all at once -------------------------------------------------------------------------------------------------

    @property
    def head(self) -> EnsembleHead | None:
        """The members' heads as one head; None for models with a decoder."""
        return None if self.members[0].head is None else EnsembleHead(self)

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Memory, ...]:
        """Encode a source with each member; return their memories."""
        return tuple(member.encode(source, lengths) for member in self.members)

    def ctc_log_probs(self, memory: tuple[Memory, ...]) -> tuple[Tensor, Tensor]:
        """Return the log of the members' mean CTC probabilities, and lengths; UserError if their shapes differ."""
        outputs = [member.ctc_log_probs(h) for member, h in zip(self.members, memory, strict=True)]
        if len({log_p.shape for log_p, _ in outputs}) > 1:
            raise UserError(
                "these encoders have different positions, so their CTC scores cannot be averaged; use one model"
            )
        return log_mean([log_p for log_p, _ in outputs], self.weights), outputs[0][1]

    def decode(self, target: Tensor, memory: tuple[Memory, ...]) -> Output:
        """Decode given target tokens by teacher forcing: the members' hidden vectors concatenated."""
        return self.concatenate([member.decode(target, h) for member, h in zip(self.members, memory, strict=True)])

    def logits(self, o: Tensor) -> Tensor:
        """Split concatenated hidden vectors (B, T, ΣD) by member; return the averaged log p (B, T, V)."""
        parts = torch.split(o, [member.output.in_features for member in self.members], -1)
        return self.mean([member.logits(part) for member, part in zip(self.members, parts, strict=True)])

    def forward(self, batch: Batch) -> Seq2SeqOutput:
        """Run each member on a batch; return the averaged log p as logits, and the concatenated outputs."""
        outputs = [member(batch) for member in self.members]
        logits = self.mean([one.logits for one in outputs])
        return Seq2SeqOutput(logits, outputs[0].gold, self.concatenate([one.output for one in outputs]))

    def mean(self, logits: Sequence[Tensor]) -> Tensor:
        """Return the log of the weighted mean of the members' probabilities, from their logits."""
        return log_mean([output_log_probs(x) for x in logits], self.weights)

    def concatenate(self, outputs: Sequence[Output]) -> Output:
        """Concatenate the members' hidden vectors, and average their attention."""
        o = torch.cat([output.o for output in outputs], -1)  # (B, T, ΣD)
        return Output(o, self.mean_attention([output.attention for output in outputs]))

    def mean_attention(self, weights: Sequence[Tensor | None]) -> Tensor | None:
        """Return the weighted mean of the members' attention, (B, T, S); None if one lacks it or shapes differ."""
        known = [a for a in weights if a is not None]
        if len(known) < len(weights) or len({a.shape for a in known}) > 1:
            return None
        return torch.stack([w * a for w, a in zip(self.weights, known, strict=True)]).sum(0)

    # -- step by step ------------------------------------------------------------------------------------------------

    def start(
        self, memory: tuple[Memory, ...], capacity: Capacity, trace_attention: bool = False
    ) -> States | TracedState:
        """Return the state before the first token; `trace_attention` keeps the attention weights of each step in it."""
        states = tuple(
            member.start(h, capacity, trace_attention) for member, h in zip(self.members, memory, strict=True)
        )
        return TracedState(states, None) if trace_attention else states

    def step(self, tokens: Tensor, state: States | TracedState) -> tuple[Tensor, States | TracedState]:
        """Step with tokens (B, K): return the averaged log p (B, K, V) of the next token, and the state after them."""
        step = average_steps([member.step for member in self.members], self.weights)
        if not isinstance(state, TracedState):
            return step(tokens, state)
        log_p, inside = step(tokens, state.state)
        return log_p, TracedState(inside, self.mean_attention([member.attention for member in inside]))


class EnsembleHead:
    """The heads of an ensemble as one head, by the mean of their probabilities."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self.predict_labels = ensemble.members[0].head.predict_labels  # from averaged log p

    def __call__(self, memory: tuple[Memory, ...]) -> Output:
        """Apply each member's head to its memory; return the outputs concatenated."""
        members = self.ensemble.members
        return self.ensemble.concatenate([member.head(h) for member, h in zip(members, memory, strict=True)])


class ShallowFusion(nn.Module):
    """A model with a language model added to its search, with weight λ; targets are scored by the model alone."""

    OF_THE_MODEL = (
        *("has_bidirectional_prefix", "max_source_positions", "second_source", "max_second_source_positions"),
        *("stride", "position_labels"),
    )

    def __init__(self, model: Seq2Seq | Ensemble, language_model: Seq2Seq | Ensemble, weight: float) -> None:
        super().__init__()
        if not 0 <= weight < math.inf:
            raise UserError(f"the language model's weight is {weight}; it must be 0 or more")
        self.model: Any = model
        self.language_model: Any = language_model
        self.weight = weight
        self.head = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name) if name in self.OF_THE_MODEL else super().__getattr__(name)

    @property
    def is_decoder_only(self) -> bool:
        """Whether the model is decoder-only with limited positions, which source and target share."""
        return bool(self.model.is_decoder_only and self.model.max_target_positions is not None)

    @property
    def max_target_positions(self) -> int | None:
        """The smaller limit of both models on target positions; None: unlimited."""
        return smallest_limit([self.model.max_target_positions, self.language_model.max_target_positions])

    def encode(self, source: Tensor, lengths: Tensor, *second_source: Tensor) -> tuple[Any, Any]:
        """Encode one or two sources with the model, and an empty source with the language model."""
        nothing = lengths.new_zeros(len(lengths), 0)  # (B, 0)
        memory = self.model.encode(source, lengths, *second_source)
        return memory, self.language_model.encode(nothing, torch.zeros_like(lengths))

    def ctc_log_probs(self, memory: tuple[Any, Any]) -> Any:
        """Return the model's CTC log-probabilities and lengths, without the language model."""
        return self.model.ctc_log_probs(memory[0])

    def decode(self, target: Tensor, memory: tuple[Any, Any]) -> Any:
        """Decode given target tokens by teacher forcing with the model alone."""
        return self.model.decode(target, memory[0])

    def forward(self, batch: Batch) -> Any:
        """Run the model alone on a batch."""
        return self.model(batch)

    def start(self, memory: tuple[Any, Any], capacity: Capacity, trace_attention: bool = False) -> States | TracedState:
        """Return both models' states before the first token; `trace_attention` keeps the model's attention in them."""
        states = self.model.start(memory[0], capacity, trace_attention), self.language_model.start(memory[1], capacity)
        return TracedState(states, None) if trace_attention else states

    def step(self, tokens: Tensor, state: States | TracedState) -> tuple[Tensor, States | TracedState]:
        """Step with tokens (B, K): return log p + λ log p_LM (B, K, V) of the next token, and the state after them."""
        step = fuse_steps(self.model.step, self.language_model.step, self.weight)
        if not isinstance(state, TracedState):
            return step(tokens, state)
        s, inside = step(tokens, state.state)
        return s, TracedState(inside, inside[0].attention)


def smallest_limit(reaches: Iterable[int | None]) -> int | None:
    """Return the smallest of some limits, of which None is unlimited; None if all are."""
    return min((reach for reach in reaches if reach is not None), default=None)


# -- from model folders ------------------------------------------------------------------------------------------------


def load_models(path: str | Path) -> list[LoadedModel]:
    """Load the models that `a+b+c` names, and check that they can be averaged."""
    models = [model_folder.load(one) for one in model_paths.parse_model_paths(path)]
    if len(models) > 1:
        check_compatible(models)
    return models


def check_compatible(models: Sequence[LoadedModel]) -> None:
    """Raise ModelError for models that read two sources, or differ in tokenizers or objective."""
    first = models[0]
    if first.codec.second_source is not None:
        raise ModelError(f"{first.path} reads two sources, and an ensemble reads one; use the model alone")
    for other in models[1:]:
        if first.codec.fingerprint != other.codec.fingerprint:
            raise ModelError(
                f"{first.path} and {other.path} have different tokenizers, so their probabilities cannot be averaged; "
                f"train one of them with the other's (tokenizer.load: {first.path})"
            )
        one, two = (model.config.training.objective.name for model in (first, other))
        if one != two:
            raise ModelError(
                f"{first.path} was trained for the objective {one} and {other.path} for {two}; "
                "an ensemble needs models of one objective"
            )


def check_language_model(model: LoadedModel, other: LoadedModel) -> None:
    """Raise ModelError unless `other` is a language model over the target tokens of `model`, which generates text."""
    task, other_task = (objectives.build(m.config.training.objective) for m in (model, other))
    if not (other_task.continues_text and other_task.has_empty_source):
        raise ModelError(
            f"{other.path} was trained for the objective {other.config.training.objective.name}; "
            "shallow fusion needs a language model (objective lm)"
        )
    if model.model.head is not None or task.continues_text:
        raise ModelError(
            f"{model.path} does not generate a target from a source, so shallow fusion does not apply; "
            "to combine models of one kind, name them as MODEL+MODEL"
        )
    one, two = ((m.codec.normalization, m.codec.target.to_files()) for m in (model, other))
    if one != two:
        raise ModelError(
            f"{model.path} and {other.path} have different target vocabularies; "
            f"train the language model with the model's tokenizers (tokenizer.load: {model.path})"
        )


def combine(models: Sequence[LoadedModel], weights: Sequence[float] | None = None) -> Seq2Seq | Ensemble:
    """Return one model as it is, several as an ensemble."""
    return models[0].model if len(models) == 1 else Ensemble([model.model for model in models], weights)
