"""Several models as one, behind the surface that a Pipeline uses of a model.

    Ensemble   log p(y_t | y_<t, x) = log Σ_i w_i p_i(y_t | y_<t, x)              attention: a_t = Σ_i w_i a_it
    Fused      s(y_t | y_<t, x) = log p(y_t | y_<t, x) + λ log p_LM(y_t | y_<t)   in search; all else is the model's

The members may be built of any parts; what they must share are the tokenizers, so that token v is the same to all, and
the objective, so that they read the same source. A memory of an ensemble is the tuple of its members' memories, and its
hidden vector o_t is theirs side by side, [o_1; …; o_n], which its output layer takes apart again.

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
from dragoman.checkpoint.model_folder import Model
from dragoman.core.errors import ModelError, UserError
from dragoman.core.types import Batch, Capacity, Hypothesis, Memory, Output
from dragoman.data.objectives import objectives
from dragoman.nn.seq2seq import Looking, Predicted, Seq2Seq
from dragoman.search.members import States, average, fuse, log_mean, shares


class Ensemble(nn.Module):
    """The mean of several models' probabilities, token by token."""

    def __init__(self, members: Sequence[Seq2Seq], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        self.members: Any = nn.ModuleList(members)
        self.weights = shares(weights, len(members))

    # -- what its positions allow ------------------------------------------------------------------------------------

    @property
    def is_decoder_only(self) -> bool:
        """Whether source and target share the positions of some member, and these end."""
        return any(member.is_decoder_only and member.longest_target is not None for member in self.members)

    @property
    def has_bidirectional_prefix(self) -> bool:
        return any(member.has_bidirectional_prefix for member in self.members)

    @property
    def max_source_positions(self) -> int | None:
        return smallest(member.max_source_positions for member in self.members)

    @property
    def longest_target(self) -> int | None:
        return smallest(member.longest_target for member in self.members)

    # -- all at once -------------------------------------------------------------------------------------------------

    @property
    def head(self) -> Heads | None:
        return None if self.members[0].head is None else Heads(self)

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Memory, ...]:
        return tuple(member.encode(source, lengths) for member in self.members)

    @property
    def stride(self) -> int:
        return int(self.members[0].stride)

    def labels(self, length: int) -> list[str]:
        found: list[str] = self.members[0].labels(length)
        return found

    def ctc_log_probs(self, memory: tuple[Memory, ...]) -> tuple[Tensor, Tensor]:
        """The mean of what the members' encoders hear, if they hear at the same positions."""
        found = [member.ctc_log_probs(h) for member, h in zip(self.members, memory, strict=True)]
        if len({log_p.shape for log_p, _ in found}) > 1:
            raise UserError("these models hear at different positions, so they cannot be averaged; use one of them")
        return log_mean([log_p for log_p, _ in found], self.weights), found[0][1]

    def decode(self, target: Tensor, memory: tuple[Memory, ...]) -> Output:
        return self.beside([member.decode(target, h) for member, h in zip(self.members, memory, strict=True)])

    def logits(self, o: Tensor) -> Tensor:
        """o (B, T, ΣD) → log p (B, T, V)."""
        parts = torch.split(o, [member.output.in_features for member in self.members], -1)
        return self.mean([member.logits(part) for member, part in zip(self.members, parts, strict=True)])

    def forward(self, batch: Batch) -> Predicted:
        found = [member(batch) for member in self.members]
        return Predicted(self.mean([f.logits for f in found]), found[0].gold, self.beside([f.output for f in found]))

    def mean(self, logits: Sequence[Tensor]) -> Tensor:
        return log_mean([torch.log_softmax(x.float(), -1) for x in logits], self.weights)

    def beside(self, outputs: Sequence[Output]) -> Output:
        """The members' hidden vectors side by side, and where they looked."""
        o = torch.cat([output.o for output in outputs], -1)  # (B, T, ΣD)
        return Output(o, self.mean_look([output.attention for output in outputs]))

    def mean_look(self, looks: Sequence[Tensor | None]) -> Tensor | None:
        """The mean of where the members looked, (B, T, S), if all of them can say, and of the same positions."""
        known = [a for a in looks if a is not None]
        if len(known) < len(looks) or len({a.shape for a in known}) > 1:
            return None
        return torch.stack([w * a for w, a in zip(self.weights, known, strict=True)]).sum(0)

    # -- step by step ------------------------------------------------------------------------------------------------

    def start(self, memory: tuple[Memory, ...], capacity: Capacity, looks: bool = False) -> States | Looking:
        states = tuple(member.start(h, capacity, looks) for member, h in zip(self.members, memory, strict=True))
        return Looking(states, None) if looks else states

    def step(self, tokens: Tensor, state: States | Looking) -> tuple[Tensor, States | Looking]:
        """tokens (B, K) → log p (B, K, V) of what comes next, and the state after them."""
        step = average([member.step for member in self.members], self.weights)
        if not isinstance(state, Looking):
            return step(tokens, state)
        log_p, inside = step(tokens, state.inside)
        return log_p, Looking(inside, self.mean_look([member.attention for member in inside]))


class Heads:
    """The heads of an ensemble as one: labels are chosen by the mean of their probabilities."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble

    def __call__(self, memory: tuple[Memory, ...]) -> Output:
        members = self.ensemble.members
        return self.ensemble.beside([member.head(h) for member, h in zip(members, memory, strict=True)])

    def choose(self, log_p: Tensor, lengths: Tensor, count: int) -> list[list[Hypothesis]]:
        found: list[list[Hypothesis]] = self.ensemble.members[0].head.choose(log_p, lengths, count)
        return found


class Fused(nn.Module):
    """A model whose search a language model joins, with weight λ; what is asked of given targets the model answers."""

    def __init__(self, model: Seq2Seq | Ensemble, language_model: Seq2Seq | Ensemble, weight: float) -> None:
        super().__init__()
        if not 0 <= weight < math.inf:
            raise UserError(f"the language model's weight is {weight}; it must be 0 or more")
        self.model: Any = model
        self.language_model: Any = language_model
        self.weight = weight
        self.head = None

    @property
    def is_decoder_only(self) -> bool:
        return bool(self.model.is_decoder_only and self.model.longest_target is not None)

    @property
    def has_bidirectional_prefix(self) -> bool:
        return bool(self.model.has_bidirectional_prefix)

    @property
    def max_source_positions(self) -> int | None:
        return smallest([self.model.max_source_positions])

    @property
    def longest_target(self) -> int | None:
        return smallest([self.model.longest_target, self.language_model.longest_target])

    # -- all at once -------------------------------------------------------------------------------------------------

    def encode(self, source: Tensor, lengths: Tensor, *second: Tensor) -> tuple[Any, Any]:
        """The source, or both, for the model; to the language model, whatever they are, nothing came before <s>."""
        nothing = lengths.new_zeros(len(lengths), 0)  # (B, 0)
        memory = self.model.encode(source, lengths, *second)
        return memory, self.language_model.encode(nothing, torch.zeros_like(lengths))

    @property
    def second_source(self) -> Any:
        return getattr(self.model, "second_source", None)

    @property
    def max_second_source_positions(self) -> int | None:
        reach: int | None = self.model.max_second_source_positions
        return reach

    @property
    def stride(self) -> int:
        return int(self.model.stride)

    def labels(self, length: int) -> list[str]:
        found: list[str] = self.model.labels(length)
        return found

    def ctc_log_probs(self, memory: tuple[Any, Any]) -> tuple[Tensor, Tensor]:
        log_p, lengths = self.model.ctc_log_probs(memory[0])
        return log_p, lengths

    def decode(self, target: Tensor, memory: tuple[Any, Any]) -> Output:
        output: Output = self.model.decode(target, memory[0])
        return output

    def forward(self, batch: Batch) -> Predicted:
        found: Predicted = self.model(batch)
        return found

    # -- step by step ------------------------------------------------------------------------------------------------

    def start(self, memory: tuple[Any, Any], capacity: Capacity, looks: bool = False) -> States | Looking:
        states = self.model.start(memory[0], capacity, looks), self.language_model.start(memory[1], capacity)
        return Looking(states, None) if looks else states

    def step(self, tokens: Tensor, state: States | Looking) -> tuple[Tensor, States | Looking]:
        """tokens (B, K) → s (B, K, V), what each next token adds to the score, and the state after them."""
        step = fuse(self.model.step, self.language_model.step, self.weight)
        if not isinstance(state, Looking):
            return step(tokens, state)
        s, inside = step(tokens, state.inside)
        return s, Looking(inside, inside[0].attention)


def smallest(reaches: Iterable[int | None]) -> int | None:
    """None is without end."""
    return min((reach for reach in reaches if reach is not None), default=None)


# -- from model folders ------------------------------------------------------------------------------------------------


def open_models(path: str | Path) -> list[Model]:
    """The models that `a+b+c` names, able to work together."""
    models = [model_folder.load(one) for one in model_paths.paths(path)]
    if len(models) > 1:
        check_compatible(models)
    return models


def check_compatible(models: Sequence[Model]) -> None:
    """Token v must be the same to all members, and all must have learned the same kind of task."""
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


def check_language_model(model: Model, other: Model) -> None:
    """What joins a search must be a language model over the same target tokens as the model that is searched."""
    task, joining = (objectives.build(m.config.training.objective) for m in (model, other))
    if not (joining.continues_text and joining.empty_source):
        raise ModelError(
            f"{other.path} was trained for the objective {other.config.training.objective.name}; "
            "fusion needs a language model (objective lm)"
        )
    if model.model.head is not None or task.continues_text:
        raise ModelError(
            f"{model.path} does not write a target for a source, so no language model can join it; "
            "to combine models of one kind, name them as MODEL+MODEL"
        )
    one, two = ((m.codec.normalization, m.codec.target.state()) for m in (model, other))
    if one != two:
        raise ModelError(
            f"{model.path} and {other.path} have different target vocabularies; "
            f"train the language model with the model's tokenizers (tokenizer.load: {model.path})"
        )


def as_one(models: Sequence[Model], weights: Sequence[float] | None = None) -> Seq2Seq | Ensemble:
    """One model is itself; several are an ensemble."""
    return models[0].model if len(models) == 1 else Ensemble([model.model for model in models], weights)
