"""The training lines behind an answer: those whose training has pushed the model towards the answer's tokens.

    answer y ─nearest states with the same token (training_index.py)→ some hundred lines ─gradients→ shares of lines

A line is scored by the similarity of gradients at the output layer. At a position with state o and token y the gradient
of −log p(y) is e oᵀ with the error e = p − 1_y, and the inner product of two of them is ⟨e, e'⟩ ⟨o, o'⟩ (TracIn, Pruthi
et al. 2020). Two changes make it find planted errors (figures in docs/inspection.md). States are compared by a power of
their cosine, since all states of a decoder have a large part in common. Errors count by their root, since the error at
a line that is known by heart is almost 0, though it was large while the line was learned.

    s_tj = ⟨e_t, e_j⟩^½ cos(o_t, o_j)^10   if line token y_j is the answer's y_t, else 0
    ⟨e_t, e_j⟩ = (1 − p_t(y)) (1 − p_j(y)) + Σ_{v≠y} p_t(v) p_j(v)
    score of a line = Σ_t w_t max_j s_tj                 share = score / sum of the scores of all lines compared

The weights w are 1, or with a reference 1 where the answer departs from it and 0 elsewhere: what the answer got right
needs no explanation. No gradient is computed: two forward passes, of the answer and of the lines, have all it needs.

t answer positions, j positions of a line, T answer tokens, V vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

import torch
from torch import Tensor

from dragoman.core.types import PAD, Example
from dragoman.data.objectives import TrainingRow
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.teacher_forcing import batch_of_one, prepare_pair, source_line
from dragoman.inspection.training_index import TrainingIndex, batch_rows, build_index

STATE_POWER, ERROR_POWER = 10, 0.5
NEAREST_POSITIONS = 200  # that are looked up for each token of the answer
MAX_LINES = 400  # whose gradients are compared
MAX_LINE_TOKENS = 20_000  # of them together: the work of one answer is bounded


@dataclass(frozen=True)
class TrainingLine:
    """A training line that speaks for an answer."""

    file: str
    line: int
    source: str
    target: str
    share: float  # of the scores of all lines that were compared
    token_shares: list[float]  # of the line's score, for each token of the answer
    pieces: list[str]  # the target's tokens
    piece_shares: list[float]  # of the line's score, for each of them


@dataclass(frozen=True)
class Attribution:
    """An answer with the training lines behind it, the strongest first."""

    source: str
    output: str
    tokens: list[str]
    probabilities: list[float]  # of each token
    weights: list[float]  # of each token: with a reference, 0 where the answer agrees with it
    lines: list[TrainingLine]
    compared: int  # lines whose gradients were compared
    indexed: int  # lines in the index
    total: int  # lines that the model was trained on


def attribute(
    pipeline: Pipeline,
    source: str | Example,
    *,
    output: str | None = None,
    reference: str | None = None,
    top: int = 10,
    on_progress: Callable[[int, int], None] | None = None,
) -> Attribution:
    """Name the training lines behind the model's answer to a source, or behind another `output`.

    The first call indexes the training lines, which `on_progress` follows; the index is kept in the run folder.
    """
    index = build_index(pipeline, on_progress or (lambda done, total: None))
    return attribute_by_index(pipeline, index, source, output=output, reference=reference, top=top)


@torch.inference_mode()
def attribute_by_index(
    pipeline: Pipeline,
    index: TrainingIndex,
    source: str | Example,
    *,
    output: str | None = None,
    reference: str | None = None,
    top: int = 10,
) -> Attribution:
    """Name the training lines behind an answer, from an index that is there."""
    pair = prepare_pair(pipeline, source, output)
    row, first = pair.row, 0
    if pipeline.continues_text:  # the answer is the end of one text
        row, first = TrainingRow([], [*pair.model_input.source, *pair.target]), len(pair.model_input.source)
    log_p, o = forward_row(pipeline, row)
    log_p, o = log_p[first:], o[first:]
    token_log_p = log_p.gather(-1, torch.tensor(pair.target, device=log_p.device)[:, None])[:, 0]
    weights = [1.0] * len(pair.target)
    if reference is not None:
        expected = pipeline.codec.encode_target(replace(pair.example, target=reference))
        weights = weigh_differences(pair.target, expected)
    doubt = [w * (1.0 - p) ** ERROR_POWER for w, p in zip(weights, token_log_p.exp().tolist(), strict=True)]
    lines = find_candidates(index, pair.target, o, doubt)
    scored = _score_lines(pipeline, index, lines, pair.target, log_p, o, weights)
    total = sum(score for score, *_ in scored) or 1.0
    best = sorted(range(len(lines)), key=lambda i: -scored[i][0])[: max(top, 0)]
    return Attribution(
        source_line(pair.example),
        pair.target_text,
        pipeline.codec.target.pieces(pair.target),
        token_log_p.exp().tolist(),
        weights,
        [_describe_line(pipeline, index, lines[i], scored[i], total) for i in best],
        len(lines),
        index.line_count,
        index.total,
    )


def weigh_differences(answer: Sequence[int], reference: Sequence[int]) -> list[float]:
    """Return 1 for each token of the answer that departs from the reference, else 0; 1 for all if none does."""
    weights = [0.0] * len(answer)
    for tag, start, stop, _, _ in SequenceMatcher(None, answer, reference, autojunk=False).get_opcodes():
        if tag != "equal":
            for i in range(start, max(stop, start + 1)):  # where tokens are left out, the one written instead
                weights[min(i, len(answer) - 1)] = 1.0
    return weights if any(weights) else [1.0] * len(answer)


def find_candidates(index: TrainingIndex, answer: Sequence[int], o: Tensor, doubt: Sequence[float]) -> list[int]:
    """Return the lines with the states nearest to those of the answer, o (T, D), each token weighted by its doubt."""
    scores: defaultdict[int, float] = defaultdict(float)
    for token, state, weight in zip(answer, o, doubt, strict=True):
        nearest: dict[int, float] = {}
        for line, cosine in zip(*(x.tolist() for x in index.nearest(token, state, NEAREST_POSITIONS)), strict=True):
            nearest[line] = max(nearest.get(line, 0.0), cosine)
        for line, cosine in nearest.items():
            scores[line] += max(weight, 1e-6) * max(cosine, 0.0) ** STATE_POWER
    chosen: list[int] = []
    tokens = 0
    for line in sorted(scores, key=lambda line: -scores[line])[:MAX_LINES]:
        row = index.row(line)
        tokens += max(len(row.source), len(row.target))
        if tokens > MAX_LINE_TOKENS and chosen:
            break
        chosen.append(line)
    return chosen


def forward_row(pipeline: Pipeline, row: TrainingRow) -> tuple[Tensor, Tensor]:
    """Return log p (T, V) and the decoder's states (T, D) along a row."""
    result = pipeline.model.eval()(batch_of_one(pipeline, row))
    return torch.log_softmax(result.logits[0].float(), -1), result.output.o[0].float()


def _score_lines(
    pipeline: Pipeline,
    index: TrainingIndex,
    lines: Sequence[int],
    answer: Sequence[int],
    log_p: Tensor,
    o: Tensor,
    weights: Sequence[float],
) -> list[tuple[float, list[float], list[float]]]:
    """Return for each line its score, and the shares of the answer's tokens and of the line's tokens in it."""
    results: list[tuple[float, list[float], list[float]]] = [(0.0, [], [])] * len(lines)
    rows = [index.row(line) for line in lines]
    w = torch.tensor(weights, device=o.device)
    for indices, batch in batch_rows(rows, pipeline.device):
        result = pipeline.model.eval()(batch)
        line_log_p = torch.log_softmax(result.logits.float(), -1)
        s = w * token_similarity(answer, log_p, o, result.gold, line_log_p, result.output.o.float())  # (B, J, T)
        for i, each in zip(indices, s.cpu(), strict=True):
            by_token, by_piece = each.amax(0), each.amax(1)[: len(rows[i].target)]
            score = float(by_token.sum())
            shares = [x / max(float(x.sum()), 1e-30) for x in (by_token, by_piece)]
            results[i] = score, shares[0].tolist(), shares[1].tolist()
    return results


def token_similarity(
    answer: Sequence[int], log_p: Tensor, o: Tensor, gold: Tensor, line_log_p: Tensor, line_o: Tensor
) -> Tensor:
    """Return s (B, J, T) of line tokens gold (B, J) with log p (B, J, V) and states (B, J, D), and an answer's T."""
    y = torch.tensor(answer, device=o.device)
    # All tokens but the right ones: 1 − p(y) is their sum, which rounding would lose where p(y) is almost 1.
    others = log_p.exp().scatter(-1, y[:, None], 0.0)  # (T, V)
    line_others = line_log_p.exp().scatter(-1, gold[..., None], 0.0)  # (B, J, V)
    errors = line_others.sum(-1, keepdim=True) * others.sum(-1) + line_others @ others.T  # (B, J, T)
    cosines = torch.nn.functional.normalize(line_o, dim=-1) @ torch.nn.functional.normalize(o, dim=-1).T
    same = (gold[..., None] == y) & (gold != PAD)[..., None]
    return torch.where(same, errors**ERROR_POWER * cosines.clamp(min=0) ** STATE_POWER, 0.0)


def _describe_line(
    pipeline: Pipeline, index: TrainingIndex, line: int, scored: tuple[float, list[float], list[float]], total: float
) -> TrainingLine:
    example, row = index.example(line), index.row(line)
    score, token_shares, piece_shares = scored
    pieces = pipeline.codec.target.pieces([int(id) for id in row.target])
    source, target = source_line(example), example.target or ""
    return TrainingLine(example.file, example.line, source, target, score / total, token_shares, pieces, piece_shares)
