"""Every hypothesis that a beam kept and dropped, as a tree, with the reference's path laid over it.

    <s> ─┬─ the ─┬─ cat … kept          a node is one token after a beginning: log p of it, log p of the whole
         │       └─ dog … dropped       beginning, that under the length rule, its fate and the reason
         └─ a … dropped

Where the output is not the reference, one of the two is to blame:

    search error   score(reference) > score(output): the model knew better, the search lost it on the way
    model error    score(reference) ≤ score(output): a search that finds more would not find the reference
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from dragoman.core.errors import UserError
from dragoman.core.registry import Part
from dragoman.core.types import EOS, Batch, Example
from dragoman.data.batching import collate
from dragoman.inference import attention
from dragoman.inference.ensemble import Fused
from dragoman.inference.length_limits import NOTHING, limits_for
from dragoman.inference.pipeline import Pipeline, Prediction
from dragoman.inspection.pair import line
from dragoman.search import searches
from dragoman.search.beam import Beam
from dragoman.search.scoring import covered

ROUNDING = 1e-5  # how far a mean log p step by step may be from one all at once

Node = dict[str, Any]


def tree(pipeline: Pipeline, source: str | Example, reference: str | None = None, *, beam: int = 5) -> dict[str, Any]:
    """What a beam of this size did with a source; with a reference, whether search or model missed it."""
    check(pipeline, reference)
    example = pipeline.reading.example(source)
    if not example.source.strip() and not pipeline.continues_text:
        raise UserError("the source is blank, so there is nothing to search for; give a text")
    part = pipeline.search_part(beam, beam + 1)  # never greedy search, which has no tree
    first = by_score(pipeline).predict([example], search=part, nbest=beam, trace=True)[0]
    found = [one for one in (first, *first.alternatives) if one.score > -math.inf]  # else the search got stuck
    nodes = [_plain(node) for node in first.trace or []]
    places = {(node["parent"], node["token_id"]): node for node in nodes}
    results = [_result(one, places) for one in found]
    if found:
        for node in path(places, _ids(found[0])):
            node["best"] = True
    told = None if reference is None else _reference(pipeline, example, reference, part, places)
    return {
        "view": "beam",
        "source_text": line(example),
        "beam": beam,
        "rule": part.options.get("length", Part("mean")).name,
        "nodes": nodes,
        "results": results,
        "reference": told,
        "verdict": None if told is None else verdict(told, results, _longest(pipeline, example)),
    }


def check(pipeline: Pipeline, reference: str | None) -> None:
    """Refuse models without a search, and references that cannot be scored as the search scores."""
    if pipeline.model.head is not None:
        raise UserError("this model answers with labels and does not search; a beam is of a model with a decoder")
    if reference is None:
        return
    if pipeline.continues_text:
        raise UserError("a language model goes on with a text, and no reference is right; leave the reference out")
    if isinstance(pipeline.model, Fused):
        raise UserError("a language model joins this search, so a reference's score is another; load the model alone")


def by_score(pipeline: Pipeline) -> Pipeline:
    """The pipeline with results as the search ranks them, whatever minimum Bayes risk would choose."""
    if pipeline.config.generation.mbr is None:
        return pipeline
    generation = pipeline.config.generation.model_copy(update={"mbr": None})
    return replace(pipeline, config=pipeline.config.model_copy(update={"generation": generation}), fast=False)


def path(places: Mapping[tuple[int, int], Node], ids: Sequence[int]) -> list[Node]:
    """The nodes along a sequence of tokens, as far as the tree has them."""
    found: list[Node] = []
    for id in ids:
        node = places.get((found[-1]["id"] if found else 0, id))
        if node is None:
            break
        found.append(node)
    return found


def _plain(node: Mapping[str, Any]) -> Node:
    where = {key: node[key] for key in ("id", "parent", "step")} | {"token": node["piece"], "token_id": node["token"]}
    what = {key: node[key] for key in ("log_prob", "total", "score", "fate", "reason")}
    return where | what | {"best": False, "reference": False}


def _ids(one: Prediction) -> list[int]:
    return [*one.ids, EOS] if one.finish_reason == "eos" else one.ids


def _result(one: Prediction, places: Mapping[tuple[int, int], Node]) -> dict[str, Any]:
    ids = _ids(one)
    nodes = path(places, ids)
    return {
        "text": one.text,
        "tokens": one.tokens,
        "score": one.score,
        "log_prob": one.log_prob,
        "finish_reason": one.finish_reason,
        "node": nodes[-1]["id"] if nodes and len(nodes) == len(ids) else None,
    }


def _longest(pipeline: Pipeline, example: Example) -> int:
    """The most tokens, without </s>, that a result for this source may have."""
    lengths = torch.tensor([len(pipeline.reading.given(example).source)])
    return int(limits_for(pipeline.reading, lengths, [0], [NOTHING], [example.source]).longest[0])


# -- the reference -----------------------------------------------------------------------------------------------------


def _reference(
    pipeline: Pipeline, example: Example, text: str, part: Part, places: Mapping[tuple[int, int], Node]
) -> dict[str, Any]:
    """The reference under the model and the search's rule, its nodes marked."""
    ids = pipeline.codec.encode_target(text, source=example.source)
    log_probs = pipeline.token_scores([replace(example, target=text)])[0]
    nodes = path(places, ids)
    for node in nodes:
        node["reference"] = True
    return {
        "text": text,
        "tokens": pipeline.codec.target_pieces(ids[:-1]),
        "log_probs": log_probs,
        "log_prob": sum(log_probs),
        "score": _score(pipeline, example, ids, sum(log_probs), part),
        "kept_until": sum(node["fate"] in ("kept", "finished") for node in nodes),
    }


@torch.inference_mode()
def _score(pipeline: Pipeline, example: Example, ids: list[int], log_prob: float, part: Part) -> float:
    """The score that the search would give the reference."""
    search: Any = searches.build(part)
    assert isinstance(search, Beam)
    batch = collate([pipeline.reading.given(example).row], [0]).to(pipeline.device)
    weight = pipeline.config.generation.ctc
    if weight:
        log_prob = (1 - weight) * log_prob + _heard(pipeline, batch, ids)
    score: float = search.rule(log_prob, len(ids))
    if search.looks:  # a coverage penalty, which needs to know where the model looks for the reference
        weights = next(attention.attend(pipeline.reading, batch, [ids[:-1]]))
        assert weights is not None  # or the search itself would have refused
        score += search.coverage * float(covered(torch.from_numpy(weights).double().sum(0)))
    return score


def _heard(pipeline: Pipeline, batch: Batch, ids: list[int]) -> float:
    """What the encoder alone adds to the score of a sequence, step by step, where it has a say in the search."""
    total = 0.0
    silent = torch.zeros(1, 1, len(pipeline.codec.target), device=pipeline.device)  # log p of a decoder without a say
    for rule in pipeline.begin(batch).heard:
        for t, id in enumerate(ids):
            history = torch.tensor([[ids[:t]]], dtype=torch.long, device=pipeline.device)
            total += float(rule(silent, history, torch.zeros(1, dtype=torch.long, device=pipeline.device))[0, 0, id])
    return total


def verdict(reference: Mapping[str, Any], results: Sequence[Mapping[str, Any]], longest: int) -> dict[str, str]:
    """Who is to blame where the output is not the reference."""
    if not results:
        return {
            "kind": "search error",
            "sentence": "The search found nothing, though the model can score the reference.",
        }
    output, tokens = results[0], len(reference["log_probs"])
    if output["text"] == reference["text"] or output["tokens"] == reference["tokens"]:
        return {"kind": "same", "sentence": "The output is the reference."}
    scores = f"the reference scores {reference['score']:.3f} and the output {output['score']:.3f}"
    if reference["score"] <= output["score"] + ROUNDING:
        found = "the model itself prefers its output to the reference, so a wider beam would not help"
        return {"kind": "model error", "sentence": f"Model error: {scores}; {found}."}
    if tokens - 1 > longest:
        lost = f"it has {tokens - 1} tokens, and results of this source may have {longest}"
    elif reference["kept_until"] == tokens:
        lost = "it was finished, and other hypotheses took its place"
    else:
        lost = f"its beginning left the beam at step {reference['kept_until'] + 1} of {tokens}"
    return {"kind": "search error", "sentence": f"Search error: {scores}; {lost}."}
