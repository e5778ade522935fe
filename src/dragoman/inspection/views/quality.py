"""Quality of one or several models: scores, quality by source length and by rarity, and the worst examples.

    pairs ─assess→ assessments (assessment.py) ─quality_report→ {"view": "quality", …}

The rarity of a source is the count of its rarest token: in the training data where that can be read in a few seconds,
else in these sources; an unknown token counts as 0. Lengths and rarities are by the tokens of the first model, so that
a range holds the same pairs for every model. Sources that are no texts have no rarities, and images have no lengths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field
from rich.console import Console

from dragoman.core.errors import DataError, UserError, did_you_mean
from dragoman.core.json import replace_nonfinite
from dragoman.core.registry import Part
from dragoman.core.types import SPECIALS, UNK, Example
from dragoman.data.readers import read_pairs, spec_files
from dragoman.evaluation.by_length import LengthBucket, score_by_length
from dragoman.evaluation.metrics import metrics as metric_parts
from dragoman.inspection.views import BeamSize, RequestSize, ViewData, pass_cost, register_view

if TYPE_CHECKING:
    from dragoman.inference.pipeline import Pipeline
    from dragoman.inspection.assessment import Assessment

MAX_TRAINING_BYTES = 10_000_000  # to count tokens in: 2 to 4 seconds at a tokenizer's 3 to 6 MB/s
GZIP_RATIO = 4  # of unpacked to packed bytes, about

Buckets = dict[str, list[LengthBucket]]  # by model


def _print_quality(out: Console, data: ViewData) -> None:
    for model in data["models"]:
        for metric, score in model["scores"].items():
            value, low, high = ("–" if score[key] is None else f"{score[key]:.2f}" for key in ("value", "low", "high"))
            out.print(f"{model['name']}: {metric} {value} [{low}, {high}]", markup=False, soft_wrap=True)


def _quality_cost(size: RequestSize) -> int:
    metrics_cost = 200 + 2 * len(size.sources) + sum(size.targets) // 2  # resampled a thousand times
    return size.beam * sum(size.sources) + pass_cost(2 * size.positions) + metrics_cost


def _references_blocker(pipelines: Mapping[str, Pipeline]) -> str | None:
    if any(pipeline.continues_text for pipeline in pipelines.values()):
        return "a language model continues a text; quality compares outputs with references"
    return None


@register_view(
    "quality",
    inputs="pairs",
    cost=_quality_cost,
    print_view=_print_quality,
    blocker=_references_blocker,
    compares_models=True,
)
def measure_quality(
    pipelines: Mapping[str, Pipeline],
    pairs: Sequence[Example],
    *,
    metrics: Annotated[list[Annotated[Part, metric_parts]], Field(max_length=len(metric_parts.names))] = [],
    metric: Annotated[str, Field(min_length=1, max_length=1000)] | None = None,
    beam: BeamSize | None = None,
    worst: Annotated[int, Field(ge=0, le=100)] = 20,
) -> ViewData:
    """Scores with intervals of one model or several on some pairs, by length and by rarity, and the worst examples.

    `metric` is the one of the groups and the worst examples: by default the first of `metrics`, which are all.
    """
    from dragoman.inspection.assessment import assess

    if metric is not None and metric not in metric_parts.names:
        raise UserError(f"there is no metric '{metric}'{did_you_mean(metric, metric_parts.names)}")
    wanted = [*metrics, *([Part(metric)] if metric and metric not in {part.name for part in metrics} else [])]
    assessments = {name: assess(pipeline, pairs, wanted, beam=beam) for name, pipeline in pipelines.items()}
    return quality_report(assessments, metric, worst=worst)


def quality_report(
    assessments: Mapping[str, Assessment],
    metric: str | None = None,
    *,
    worst: int = 20,
    counts: Mapping[str, int] | None = None,
) -> ViewData:
    """Report on models assessed on the same pairs; `counts` are those of `count_training_tokens`."""
    first = next(iter(assessments.values()))
    metric = next(iter(first.scores)) if metric is None else metric
    report: ViewData = {
        "view": "quality",
        "metric": metric,
        "metrics": list(first.scores),
        "labels": {name: score.label for name, score in first.scores.items()},
        "higher_is_better": first.scores[metric].metric.higher_is_better,
        "models": [_model_scores(name, one) for name, one in assessments.items()],
        "length_unit": first.length_unit,
        "left_out": explain_omitted_groups(first),
        "by_length": _series_data(group_by_length(assessments, metric)),
        "by_rarity": _series_data(group_by_rarity(assessments, metric, counts)),
        "rarity_of": rarity_of(counts),
        "worst": [{"model": next(iter(assessments))} | example for example in worst_examples(first, metric, worst)],
    }
    return {key: replace_nonfinite(value) for key, value in report.items()}


def _model_scores(name: str, one: Assessment) -> ViewData:
    scores = {
        metric: {"value": score.value, "low": score.low, "high": score.high} for metric, score in one.scores.items()
    }
    return {"name": name, "n": len(one.examples), "perplexity": one.perplexity, "scores": scores}


def worst_examples(one: Assessment, metric: str, count: int) -> list[ViewData]:
    """Return the `count` examples with the worst sentence scores, worst first; ties in the order of the pairs."""
    score = one.scores[metric]
    each = np.asarray(score.metric.score(score.stats), dtype=np.float64)
    order = np.argsort(each if score.metric.higher_is_better else -each, kind="stable")[: max(count, 0)]
    return [
        {
            "index": int(i),
            "source": one.examples[i].source,
            "reference": one.examples[i].target,
            "output": one.predictions[i].text,
            "score": float(each[i]),
        }
        for i in order
    ]


# -- ranges of pairs ---------------------------------------------------------------------------------------------------


def explain_omitted_groups(assessment: Assessment) -> str:
    """Say which of the groups by length and rarity the kind of source rules out; '' if none."""
    from dragoman.inspection.length_units import TOKENS

    if not assessment.length_unit:
        return "Quality by length and by rarity is left out: the sources are no texts, and images all have one size."
    if assessment.length_unit != TOKENS:
        return "Quality by rarity is left out: the sources are no texts and have no tokens."
    return ""


def group_by_length(assessments: Mapping[str, Assessment], metric: str) -> Buckets:
    """Compute a metric of each model in ranges of the source length, counted in the first model's unit."""
    first = next(iter(assessments.values()))
    pieces = first.length_pieces if first.length_unit else []
    return _group_by_size(assessments, metric, dict(enumerate(map(len, pieces))))


def group_by_rarity(
    assessments: Mapping[str, Assessment], metric: str, counts: Mapping[str, int] | None = None
) -> Buckets:
    """Compute a metric of each model in ranges of how often the source's rarest token occurs in `counts`."""
    from dragoman.inspection.length_units import TOKENS

    first = next(iter(assessments.values()))
    pieces = first.length_pieces if first.length_unit == TOKENS else []
    known = Counter(token for tokens in pieces for token in tokens) if counts is None else counts
    rarities = {i: min(token_count(token, known) for token in tokens) for i, tokens in enumerate(pieces) if tokens}
    return _group_by_size(assessments, metric, rarities)


def _group_by_size(assessments: Mapping[str, Assessment], metric: str, sizes: Mapping[int, int]) -> Buckets:
    """Compute a metric of each model in ranges of similar sizes; `sizes` are by the index of the pair."""
    buckets: Buckets = {name: [] for name in assessments}
    for name, one in assessments.items() if sizes else ():
        score = one.scores[metric]
        buckets[name] = score_by_length(score.metric, score.stats[list(sizes)], list(sizes.values()))
    return buckets


def _series_data(buckets: Buckets) -> list[ViewData]:
    return [{"model": name, "points": [_point_data(bucket) for bucket in some]} for name, some in buckets.items()]


def _point_data(bucket: LengthBucket) -> ViewData:
    point = asdict(bucket)
    point["lower"], point["upper"] = point.pop("interval")
    return point


# -- rarity ------------------------------------------------------------------------------------------------------------


def rarity_of(counts: Mapping[str, int] | None) -> str:
    """Say where tokens were counted: `counts` are those of the training data, if there are any."""
    return "these sources" if counts is None else "training"


def token_count(token: str, counts: Mapping[str, int]) -> int:
    """Return the count of a token; <unk>, and the copy slots of unknown words, count as 0."""
    return 0 if token == SPECIALS[UNK] or token.startswith("<copy:") else counts.get(token, 0)


def count_training_tokens(pipeline: Pipeline) -> Counter[str] | None:
    """Count each source token in the training data; None if that is missing, unreadable, large, or no text."""
    from dragoman.inspection.length_units import strip_eos

    data, codec = pipeline.config.data, pipeline.codec
    if codec.modality is not None or codec.second_source is not None:
        return None
    try:
        if sum(_file_bytes(corpus.path) for corpus in data.train) > MAX_TRAINING_BYTES:
            return None
        pieces = codec.target.pieces if pipeline.continues_text else codec.source.pieces
        counts: Counter[str] = Counter()
        for corpus in data.train:
            for example in read_pairs(corpus.path, columns=pipeline.config.columns, on_error=data.on_error):
                counts.update(strip_eos(pieces(pipeline.input_processor.encode_source(example))))
        return counts
    except (OSError, DataError):
        return None


def _file_bytes(spec: str) -> int:
    """Estimate the unpacked bytes of a data spec's files; raise FileNotFoundError unless all are regular files."""
    paths = spec_files(spec)
    if not all(path.is_file() for path in paths):  # a pipe or a device may never end, and the config may be untrusted
        raise FileNotFoundError(spec)
    return sum(path.stat().st_size * (GZIP_RATIO if path.suffix == ".gz" else 1) for path in paths)
