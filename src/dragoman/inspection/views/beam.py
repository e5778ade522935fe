"""The search tree of a beam: every hypothesis that it kept or dropped, with the path of the reference marked.

    <s> ─┬─ the ─┬─ cat … kept          a node is one token after a prefix: its log p, log p of the whole prefix, the
         │       └─ dog … dropped       score under the length rule, its fate and the reason
         └─ a … dropped

Where the output is not the reference, either the search or the model made the error:

    search error   score(reference) > score(output): the model prefers the reference, and the search lost it
    model error    score(reference) ≤ score(output): a wider search would not return the reference
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

from dragoman.core.errors import UserError
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import Part
from dragoman.core.types import EOS, Batch, Example
from dragoman.data.lines import format_count
from dragoman.inspection.blockers import decoder_blocker
from dragoman.inspection.render.terminal_tree import render_beam
from dragoman.inspection.views import BeamSize, RequestSize, ViewData, pass_cost, register_view

if TYPE_CHECKING:
    from dragoman.inference.pipeline import Pipeline
    from dragoman.inference.prediction import Prediction

TOLERANCE = 1e-5  # between a mean log p computed step by step and one computed at once

Node = ViewData
Tree = Mapping[tuple[int, int], Node]  # (id of the parent, token) → node


def _print_beam(out: Console, data: ViewData) -> None:
    out.print(render_beam(data, width=out.width), end="")


def _beam_cost(size: RequestSize) -> int:
    return 3 * size.beam * sum(size.sources) + 2 * pass_cost(size.positions)  # every node is described in Python


@register_view("beam", inputs="pair", cost=_beam_cost, print_view=_print_beam, blocker=decoder_blocker)
def trace_beam(pipeline: Pipeline, source: str | Example, target: str | None = None, *, beam: BeamSize = 5) -> ViewData:
    """Every hypothesis that a beam search kept and dropped; with a target, whether search or model missed it."""
    from dragoman.inference.ensemble import ShallowFusion
    from dragoman.inspection.teacher_forcing import read_example, source_line
    from dragoman.search import search_part

    if target is not None and pipeline.continues_text:
        raise UserError("a language model continues a text and has no reference; leave the target out")
    if target is not None and isinstance(pipeline.model, ShallowFusion):
        raise UserError("shallow fusion scores a reference differently; load the model without the language model")
    example = read_example(pipeline, source)
    overrides = GenerationOptions(search=Part("beam"), mbr=None)
    best = pipeline.predict([example], overrides, beam=beam, nbest=beam, trace=True)[0]
    part = search_part(pipeline.resolve_options(overrides, beam=beam, nbest=beam))
    predictions = [one for one in (best, *best.alternatives) if one.score > -math.inf]  # else no token was valid
    nodes = [_node_data(node) for node in best.trace or []]
    tree = {(node["parent"], node["token_id"]): node for node in nodes}
    results = [_result_data(one, tree) for one in predictions]
    if predictions:
        for node in find_path(tree, _ids_with_eos(predictions[0])):
            node["best"] = True
    reference = None if target is None else _score_reference(pipeline, example, target, part, tree)
    return {
        "source_text": source_line(example),
        "beam": beam,
        "rule": part.options["length_rule"].name,
        "nodes": nodes,
        "results": results,
        "reference": reference,
        "verdict": None if reference is None else judge(reference, results, _max_new_tokens(pipeline, example)),
    }


def find_path(tree: Tree, ids: Sequence[int]) -> list[Node]:
    """Return the nodes along a sequence of tokens, as far as the tree has them."""
    path: list[Node] = []
    for id in ids:
        node = tree.get((path[-1]["id"] if path else 0, id))
        if node is None:
            break
        path.append(node)
    return path


def _node_data(node: ViewData) -> Node:
    own = {key: value for key, value in node.items() if key != "piece"}
    return own | {"token": node["piece"], "token_id": node["token"], "best": False, "reference": False}


def _ids_with_eos(one: Prediction) -> list[int]:
    return [*one.ids, EOS] if one.finish_reason == "eos" else one.ids


def _result_data(one: Prediction, tree: Tree) -> ViewData:
    """Return a prediction as a result of the view, with the id of its last node in the tree, if all are there."""
    ids = _ids_with_eos(one)
    nodes = find_path(tree, ids)
    return {
        "text": one.text,
        "tokens": one.tokens,
        "score": one.score,
        "log_prob": one.log_prob,
        "finish_reason": one.finish_reason,
        "node": nodes[-1]["id"] if nodes and len(nodes) == len(ids) else None,
    }


def _max_new_tokens(pipeline: Pipeline, example: Example) -> int:
    import torch

    from dragoman.inference.constraints import length_bounds

    lengths = torch.tensor([len(pipeline.input_processor.encode_input(example).source)])
    max_lengths, _ = length_bounds(pipeline.input_processor, lengths, [pipeline.config.generation], [example])
    return int(max_lengths[0])


# -- the reference -----------------------------------------------------------------------------------------------------


def _score_reference(pipeline: Pipeline, example: Example, text: str, part: Part, tree: Tree) -> ViewData:
    ids = pipeline.codec.encode_target(replace(example, target=text))
    log_probs = pipeline.token_scores([replace(example, target=text)])[0]
    nodes = find_path(tree, ids)
    for node in nodes:
        node["reference"] = True
    return {
        "text": text,
        "tokens": pipeline.codec.target.pieces(ids[:-1]),
        "log_probs": log_probs,
        "log_prob": sum(log_probs),
        "score": _search_score(pipeline, example, ids, sum(log_probs), part),
        "kept_until": sum(node["fate"] in ("kept", "finished") for node in nodes),
    }


def _search_score(pipeline: Pipeline, example: Example, ids: list[int], log_prob: float, part: Part) -> float:
    """Return the score that the search would give the reference: length rule, CTC and coverage included."""
    import torch

    from dragoman.inference import attention
    from dragoman.inspection.teacher_forcing import batch_of_one
    from dragoman.search import searches
    from dragoman.search.beam import Beam
    from dragoman.search.scoring import log_coverage

    search = searches.build(part)
    assert isinstance(search, Beam)
    batch = batch_of_one(pipeline, pipeline.input_processor.encode_input(example).row)
    weight = pipeline.config.generation.ctc_weight
    with torch.inference_mode():
        if weight:
            log_prob = (1 - weight) * log_prob + _ctc_score(pipeline, batch, ids)
        score: float = search.length_rule(log_prob, len(ids))
        if search.needs_attention:  # a coverage penalty needs the attention of the reference
            [weights] = attention.attention_to_source(pipeline.input_processor, batch, [ids[:-1]])
            assert weights is not None  # otherwise the search itself raises an error
            score += search.coverage_penalty * float(log_coverage(torch.from_numpy(weights).double().sum(0)))
    return score


def _ctc_score(pipeline: Pipeline, batch: Batch, ids: list[int]) -> float:
    """Return what the CTC output adds to the score of the token ids, summed over the steps."""
    import torch

    total = 0.0
    zeros = torch.zeros(1, 1, len(pipeline.codec.target), device=pipeline.device)  # in place of the decoder's log p
    for rule in pipeline.start_decoding(batch).ctc_processors:
        for t, id in enumerate(ids):
            history = torch.tensor([[ids[:t]]], dtype=torch.long, device=pipeline.device)
            total += float(rule(zeros, history, torch.zeros(1, dtype=torch.long, device=pipeline.device))[0, 0, id])
    return total


def judge(reference: ViewData, results: Sequence[ViewData], max_new_tokens: int) -> dict[str, str]:
    """Return kind and sentence of the verdict: same output, search error or model error."""
    if not results:
        sentence = "The search returned nothing, and the model can score the reference."
        return {"kind": "search error", "sentence": sentence}
    output, tokens = results[0], len(reference["log_probs"])
    if output["text"] == reference["text"] or output["tokens"] == reference["tokens"]:
        return {"kind": "same", "sentence": "The output is the reference."}
    scores = f"the reference scores {reference['score']:.3f} and the output {output['score']:.3f}"
    if reference["score"] <= output["score"] + TOLERANCE:
        reason = "the model prefers its output to the reference, so a wider beam would not help"
        return {"kind": "model error", "sentence": f"Model error: {scores}; {reason}."}
    if tokens - 1 > max_new_tokens:
        reason = f"it has {format_count(tokens - 1, 'token')}, and results of this source may have {max_new_tokens}"
    elif reference["kept_until"] == tokens:
        reason = "it was finished, and other hypotheses replaced it"
    else:
        reason = f"its prefix left the beam at step {reference['kept_until'] + 1} of {tokens}"
    return {"kind": "search error", "sentence": f"Search error: {scores}; {reason}."}
