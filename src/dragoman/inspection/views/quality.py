"""Quality of one or several models: scores, quality by source length and by rarity, and the worst examples.

    pairs ─assess→ assessments (assessment.py) ─quality_report→ {"view": "quality", …}

The rarity of a source is the count of its rarest token: in the training data where that can be read in a few seconds,
else in these sources. Unknown tokens count as 0. Lengths and rarities are by the tokens of the first model, so that a
range holds the same pairs for every model. Sources that are no texts have no rarities, and images have no lengths
(length_units.py): their ranges are empty, and a sentence says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from dragoman.core.errors import DataError, UserError, did_you_mean
from dragoman.core.json import replace_nonfinite
from dragoman.core.types import SPECIALS, UNK, Example
from dragoman.data.readers import read_pairs, spec_files
from dragoman.evaluation.by_length import LengthBucket, score_by_length
from dragoman.evaluation.metrics import metrics
from dragoman.inspection.views import BeamSize, ViewData, register_view

if TYPE_CHECKING:
    from rich.console import Console

    from dragoman.inference.pipeline import Pipeline
    from dragoman.inspection.assessment import Assessment, MetricScore

MAX_TRAINING_BYTES = 10_000_000  # to count tokens in: 2 to 4 seconds at a tokenizer's 3 to 6 MB/s
GZIP_RATIO = 4  # of unpacked to packed bytes, about

Buckets = dict[str, list[LengthBucket]]  # by model


def print_quality(out: Console, data: ViewData) -> None:
    """Print the scores of each model with their intervals."""
    for model in data["models"]:
        for metric, score in model["scores"].items():
            value, low, high = ("–" if score[key] is None else f"{score[key]:.2f}" for key in ("value", "low", "high"))
            out.print(f"{model['name']}: {metric} {value} [{low}, {high}]", markup=False, soft_wrap=True)


@register_view("quality", inputs="pairs", print_view=print_quality, compares_models=True)
def measure_quality(
    pipelines: Mapping[str, Pipeline],
    pairs: Sequence[Example],
    *,
    metric: Annotated[str, Field(min_length=1, max_length=1000)] | None = None,
    beam: BeamSize | None = None,
    worst: Annotated[int, Field(ge=0, le=100)] = 20,
) -> ViewData:
    """Scores with intervals of one model or several on some pairs, by length and by rarity, and the worst examples."""
    from dragoman.inspection.assessment import assess

    if metric is not None and metric not in metrics.names:
        raise UserError(f"there is no metric '{metric}'{did_you_mean(metric, metrics.names)}")
    names = [metric] if metric else []
    assessments = {name: assess(pipeline, pairs, names, beam=beam) for name, pipeline in pipelines.items()}
    return quality_report(assessments, metric, worst=worst)


def quality_report(
    assessments: Mapping[str, Assessment],
    metric: str | None = None,
    *,
    worst: int = 20,
    counts: Mapping[str, int] | None = None,
) -> ViewData:
    """Report on models assessed on the same pairs: scores, one metric by length and rarity, the worst examples.

    `counts` are of training tokens, as `count_training_tokens` returns them.
    """
    first = check_same_pairs(assessments)
    metric = next(iter(first.scores)) if metric is None else metric
    if metric not in first.scores:
        known = list(first.scores)
        raise UserError(f"metric is '{metric}'; it must be one of {', '.join(known)}{did_you_mean(metric, known)}")
    name = next(iter(assessments))
    return {
        "view": "quality",
        "metric": metric,
        "metrics": list(first.scores),
        "higher_is_better": first.scores[metric].metric.higher_is_better,
        "models": [_model_scores(name, one) for name, one in assessments.items()],
        "length_unit": first.length_unit,
        "left_out": omitted_ranges(first),
        "by_length": _series_data(group_by_length(assessments, metric)),
        "by_rarity": _series_data(group_by_rarity(assessments, metric, counts)),
        "rarity_of": "training" if counts is not None else "these sources",
        "worst": [{"model": name} | example for example in worst_examples(first, metric, worst)],
    }


def check_same_pairs(assessments: Mapping[str, Assessment]) -> Assessment:
    """Return the first assessment; raise UserError unless all are of the same pairs and metrics."""
    if not assessments:
        raise UserError("there is no model; assess at least one")
    first = next(iter(assessments.values()))
    for name, other in assessments.items():
        if other.examples != first.examples or other.scores.keys() != first.scores.keys():
            raise UserError(f"'{name}' was assessed on other pairs or metrics than the first model; use the same")
    return first


def _model_scores(name: str, one: Assessment) -> ViewData:
    """Return the name, pairs, perplexity and scores with intervals of one model as JSON."""
    scores = {
        metric: {
            "value": replace_nonfinite(score.value),
            "low": replace_nonfinite(score.low),
            "high": replace_nonfinite(score.high),
        }
        for metric, score in one.scores.items()
    }
    return {"name": name, "n": len(one.examples), "perplexity": replace_nonfinite(one.perplexity), "scores": scores}


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
            "score": replace_nonfinite(float(each[i])),
        }
        for i in order
    ]


# -- ranges of pairs ---------------------------------------------------------------------------------------------------


def omitted_ranges(first: Assessment) -> str:
    """Say in a sentence which of the groupings by length and rarity are left out and why; '' if none is."""
    from dragoman.inspection.length_units import TOKENS

    if not first.length_unit:
        return "Quality by length and by rarity is left out: the sources are no texts, and images all have one size."
    if first.length_unit != TOKENS:
        return "Quality by rarity is left out: the sources are no texts and have no tokens."
    return ""


def group_by_length(assessments: Mapping[str, Assessment], metric: str) -> Buckets:
    """Compute a metric of each model in ranges of the source length, counted in the first model's unit."""
    first = next(iter(assessments.values()))
    if not first.length_unit:
        return {name: [] for name in assessments}
    sizes = list(map(len, first.length_pieces))
    return {
        name: score_by_length(score.metric, score.stats, sizes) for name, score in _scores_by_model(assessments, metric)
    }


def group_by_rarity(
    assessments: Mapping[str, Assessment], metric: str, counts: Mapping[str, int] | None = None
) -> Buckets:
    """Compute a metric of each model in ranges of how often the source's rarest token occurs in `counts`."""
    from dragoman.inspection.length_units import TOKENS

    first = next(iter(assessments.values()))
    pieces = first.length_pieces if first.length_unit == TOKENS else []
    known = Counter(token for tokens in pieces for token in tokens) if counts is None else counts
    kept = [i for i, tokens in enumerate(pieces) if tokens]
    if not kept:
        return {name: [] for name in assessments}
    rarities = [min(token_count(token, known) for token in pieces[i]) for i in kept]
    return {
        name: score_by_length(score.metric, score.stats[kept], rarities)
        for name, score in _scores_by_model(assessments, metric)
    }


def _scores_by_model(assessments: Mapping[str, Assessment], metric: str) -> list[tuple[str, MetricScore]]:
    """Return each model's name with its score of a metric."""
    return [(name, one.scores[metric]) for name, one in assessments.items()]


def _series_data(buckets: Buckets) -> list[ViewData]:
    """Return the points of each model's ranges as JSON."""
    return [{"model": name, "points": [_point_data(bucket) for bucket in some]} for name, some in buckets.items()]


def _point_data(bucket: LengthBucket) -> ViewData:
    """Return one range as JSON: bounds, count, score and interval."""
    return {
        "low": int(bucket.low),
        "high": int(bucket.high),
        "count": bucket.count,
        "score": replace_nonfinite(float(bucket.score)),
        "lower": replace_nonfinite(float(bucket.interval[0])),
        "upper": replace_nonfinite(float(bucket.interval[1])),
    }


# -- rarity ------------------------------------------------------------------------------------------------------------


def token_count(token: str, counts: Mapping[str, int]) -> int:
    """Return the count of a token; <unk>, and the copy slots of unknown words, count as 0."""
    return 0 if token == SPECIALS[UNK] or token.startswith("<copy:") else counts.get(token, 0)


def count_training_tokens(pipeline: Pipeline) -> Counter[str] | None:
    """Count each source token in the training data that the config names; None if that is missing or large.

    None where the data is missing, unreadable or large, or where the sources are no texts.
    """
    from dragoman.inspection.length_units import strip_eos

    data, codec = pipeline.config.data, pipeline.codec
    if codec.modality is not None or codec.second_source is not None:
        return None
    try:
        if sum(_file_bytes(corpus.path) for corpus in data.train) > MAX_TRAINING_BYTES:
            return None
        pieces = codec.target_pieces if pipeline.continues_text else codec.source_pieces
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
