"""Search: from a step function to output sequences. A search sees `step(tokens, state) → log p, state` alone.

    build_search(GenerationOptions(beam=5))(step, start, constraints)   → an n-best list of Hypothesis for each sentence

The folder is the registry: one file per search. A search takes its options from the fields of GenerationOptions that
its constructor names; options that only it has stand beside its name, `search: {name: mine, width: 3}`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from pydantic import ValidationError
from torch import Tensor

from dragoman.core.errors import UserError, did_you_mean
from dragoman.core.generation import GenerationOptions, fields_of
from dragoman.core.registry import Part, Registry
from dragoman.core.types import Capacity, Hypothesis, Step

Start = Callable[[Capacity], Any]  # hypotheses and tokens to allocate for → the decoder's state before the first token
Trace = list[dict[str, Any]]  # what a beam kept and dropped, see tracing.py
OnToken = Callable[[Tensor, Tensor], None]  # called with (rows, tokens)


class LogitsProcessor(Protocol):
    """Changes log p (B, K, V) before a search chooses: −∞ forbids a token.

    It depends on nothing but `history` (B, K, t), the tokens of each hypothesis without <s>, and `rows` (B,), the index
    of each row's sentence in the request.
    """

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor: ...


@dataclass
class SearchConstraints:
    """Bounds and processors for the sentences of one search; lengths count tokens without </s>."""

    max_lengths: Tensor  # (B,)
    min_lengths: Tensor | int = 0  # (B,), or one for all
    input_indices: Sequence[int] = ()  # positions in the whole input; they alone seed the sampling of each sentence
    processors: Sequence[LogitsProcessor] = ()
    traces: dict[int, Trace] | None = None  # by sentence; a search that supports it fills them in
    on_token: OnToken | None = None  # greedy search calls it; not for </s>

    @cached_property
    def limit_steps(self) -> set[int]:
        """The steps at which some sentence is at its maximum length, known to the host."""
        return set(self.max_lengths.tolist())

    def select_lengths(self, rows: list[int], device: torch.device) -> SearchConstraints:
        """Return the length bounds and input indices of some sentences, on a device."""
        at, max_lengths = torch.tensor(rows, device=self.max_lengths.device), self.max_lengths
        min_lengths = torch.as_tensor(self.min_lengths, device=at.device).expand(len(max_lengths))
        indices = [self.input_indices[row] for row in rows] if self.input_indices else []
        return SearchConstraints(max_lengths[at].to(device), min_lengths[at].to(device), indices)


class Search(Protocol):
    """Finds the best sequences: a list of hypotheses for each sentence, best first."""

    num_hypotheses: int  # active hypotheses of each sentence, for which `start` allocates the decoder's state
    is_sampling: bool  # whether outputs are drawn in proportion to their probability
    supports_trace: bool  # whether it fills `constraints.traces`
    supports_force_phrases: bool  # whether it explores forced phrases, rather than waiting until they are likely
    needs_attention: bool  # whether the decoder's state must carry the attention weights of each step

    def __call__(self, step: Step, start: Start, constraints: SearchConstraints) -> list[list[Hypothesis]]: ...


searches: Registry[Search] = Registry("search", __name__)


def build_search(options: GenerationOptions) -> Search:
    """Build the search that the options name, from those options that its constructor takes."""
    return searches.build(search_part(options))


def search_part(options: GenerationOptions) -> Part:
    """Resolve the search with every option of its constructor; options that do not fit raise UserError."""
    name, explicit = options.search.name, options.explicit
    check_search_name(name)
    taken = searches.schema(name).model_fields
    if unused := [field for field in fields_of("search") if field in explicit and not uses_field(name, field)]:
        raise UserError(unused_message(unused[0], name))
    shared = {field: getattr(options, field) for field in fields_of("search") if field in taken}
    if "length_rule" in taken and options.length_penalty is not None:
        shared["length_rule"] = with_length_penalty(options)
    try:
        return searches.parse({"name": name, **shared, **options.search.options})
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            option, names = str(first["loc"][0]), ", ".join(taken)
            raise UserError(
                f"search {name}: {option} is not an option{did_you_mean(option, taken)} (there is {names})"
            ) from None
        where = ".".join(str(part) for part in first["loc"] if "parse()" not in str(part))
        found = "" if first["type"] == "part" else f", found {first['input']!r}"
        raise UserError(
            f"search {name}: {where}: {first['msg'].replace('Input should be', 'must be')}{found}"
        ) from None


def check_search_name(name: str) -> None:
    """Raise UserError if no search has this name."""
    if name not in searches.names:
        raise UserError(f"search: {searches.unknown_name_message(name)}")


def uses_field(search: str, field: str) -> bool:
    """Whether a search takes a field of GenerationOptions; `search` and `ctc_weight` count as taken by all."""
    if field in ("search", "ctc_weight"):
        return True
    taken = searches.schema(search).model_fields
    return ("length_rule" if field == "length_penalty" else field) in taken


def unused_message(field: str, search: str) -> str:
    """Return a sentence that this search does not take a field, and which searches do."""
    takers = [name for name in searches.names if uses_field(name, field)]
    remedy = f"set search to {' or '.join(takers)}" if takers else "no search takes it"
    return f"{field} is not an option of the search '{search}': {remedy}"


def with_length_penalty(options: GenerationOptions) -> Part:
    """Return the length rule with `length_penalty` as its exponent; `none` and `mean` become `power`."""
    rule = options.length_rule
    if "length_rule" in options.explicit:
        check_has_exponent(rule)
    name = "power" if rule.name in ("none", "mean") else rule.name
    return Part(name, {**rule.options, "alpha": options.length_penalty})


def check_has_exponent(rule: Part) -> None:
    """Raise UserError for a length rule without an exponent, which cannot take `length_penalty`."""
    if rule.name in ("none", "mean"):
        raise UserError(f"length_penalty: the length rule {rule.name} has no exponent; power and gnmt have one")


def apply_overrides(base: GenerationOptions, overrides: GenerationOptions | None) -> GenerationOptions:
    """Return a model's own options, overridden by those set in a request; unused ones raise UserError.

    `beam` alone asks for a beam search: beam=1 for greedy search, a larger one for the search of the model where that
    has a beam, else for beam search. A request that changes the search drops the model's own options of the old one.
    """
    if overrides is None:
        return base
    merged, requested = base.merge(overrides), set(overrides.model_fields_set)
    check_search_name(merged.search.name)
    if "length_rule" in requested and "length_penalty" not in requested:
        merged = merged.model_copy(update={"length_penalty": None})  # the exponent of the old rule
    elif "length_rule" in requested and overrides.length_penalty is not None:
        check_has_exponent(overrides.length_rule)
    if "beam" in requested and "search" not in requested:
        if overrides.beam == 1 and merged.nbest == 1:
            merged = merged.model_copy(update={"search": Part("greedy")})
            requested.discard("beam")
        elif not uses_field(base.search.name, "beam"):
            merged = merged.model_copy(update={"search": Part("beam")})
    kept = {
        field: getattr(merged, field)
        for field in merged.model_fields_set | {"search"}
        if field not in fields_of("search") or uses_field(merged.search.name, field)
    }
    if unused := sorted(requested & set(fields_of("search")) - set(kept)):
        raise UserError(unused_message(unused[0], merged.search.name))
    return GenerationOptions.model_construct(**kept)
