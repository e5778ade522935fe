"""What is asked of a pipeline: a model's own generation options, overridden by those set, checked against the model.

config's generation: ─resolve_options→ GenerationOptions ─build_request→ GenerationRequest with its search
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.core.errors import UserError
from dragoman.core.generation import GenerationOptions, fields_of
from dragoman.evaluation.metrics import Metric
from dragoman.inference import attention as attention_maps
from dragoman.inference.constraints import OnToken
from dragoman.inference.inputs import InputProcessor
from dragoman.inference.reranking import build_mbr_metric
from dragoman.search import Search, apply_overrides, build_search

# What a search holds of each hypothesis: log p of the vocabulary in four tensors, tokens and log p of 256 positions.
MAX_SEARCH_BYTES, BYTES_PER_TOKEN, BYTES_PER_HYPOTHESIS = 2**31, 16, 2**14


@dataclass(frozen=True)
class GenerationRequest:
    """Options for all sources, and what to return besides the outputs."""

    options: GenerationOptions
    search: Search
    mbr_metric: Metric | None = None  # ranks the outputs by minimum Bayes risk
    attention: bool = False
    trace: bool = False
    on_token: OnToken | None = None
    token_log_probs: bool = True  # log p of each token, which some engines compute in a pass of its own


def resolve_options(
    own: GenerationOptions, options: GenerationOptions | None, beam: int | None, nbest: int | None
) -> GenerationOptions:
    """Return a model's own options, overridden by those set; `beam` and `nbest` override both."""
    given = {name: value for name, value in {"beam": beam, "nbest": nbest}.items() if value is not None}
    for name, value in given.items():
        if type(value) is not int or value < 1:
            raise UserError(f"{name} is {value!r}; it must be at least 1, a whole number")
    given_options: object = options  # a caller may give anything
    if not isinstance(given_options, GenerationOptions | None):
        found = type(given_options).__name__
        raise UserError(f"options must be GenerationOptions, one for all sources or a list of them; found {found}")
    overrides = (options or GenerationOptions()).merge(GenerationOptions.model_validate(given))
    for problem in overrides.problems():
        raise UserError(problem)
    return apply_overrides(own, overrides)


def build_request(
    inputs: InputProcessor,
    options: GenerationOptions,
    attention: bool = False,
    trace: bool = False,
    on_token: OnToken | None = None,
    token_log_probs: bool = True,
) -> GenerationRequest:
    """Build the search of resolved options; raise UserError if this model or its search cannot serve them."""
    search, has_head = build_search(options), inputs.model.head is not None
    name = options.search.name
    if trace and not search.supports_trace:
        raise UserError(f"trace needs a beam search, and the search is '{name}'; set search to beam")
    metric = None if options.mbr is None else build_mbr_metric(options.mbr)
    if options.replace_unk:
        attention_maps.check_replace_unk(inputs)
    if options.force_phrases and not search.supports_force_phrases:
        raise UserError(f"force_phrases needs a beam search, and the search is '{name}'; set search to beam")
    if options.nbest > search.num_hypotheses and not has_head:
        needs = "as many num_samples" if search.is_sampling else f"a beam of at least {options.nbest}"
        raise UserError(f"nbest {options.nbest} needs {needs}, not {search.num_hypotheses}")
    check_search_memory(search.num_hypotheses, len(inputs.codec.target))
    return GenerationRequest(options, search, None if has_head else metric, attention, trace, on_token, token_log_probs)


def check_differences(options: Sequence[GenerationOptions], request: GenerationRequest) -> None:
    """Raise UserError if the options of the sources differ from the request's in more than lengths and constraints."""
    for one in options:
        for name in fields_of("search", "output"):
            if getattr(one, name) != getattr(request.options, name):
                raise UserError(f"{name} differs between sources; only lengths and constraints may differ")
        if one.force_phrases and not request.search.supports_force_phrases:
            raise UserError(f"force_phrases needs a beam search, and the search is '{one.search.name}'")


def check_search_memory(hypotheses: int, vocabulary: int) -> None:
    """Raise UserError if a search of so many hypotheses needs more than MAX_SEARCH_BYTES for one source."""
    each = vocabulary * BYTES_PER_TOKEN + BYTES_PER_HYPOTHESIS
    if hypotheses * each > MAX_SEARCH_BYTES:
        raise UserError(
            f"{hypotheses:,} hypotheses need about {hypotheses * each / 1e9:,.1f} GB of memory for each source; with "
            f"this vocabulary there may be {MAX_SEARCH_BYTES // each:,}: lower beam, or num_samples"
        )
