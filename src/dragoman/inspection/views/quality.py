"""How good models are and where: scores, quality by source length and by rarity, the worst examples; as plain data.

    assessments (quality.py) ─report→ {"view": "quality", …}

The rarity of a source is the count of its rarest token: in the training data where that can be read in a few seconds,
else in these sources. What a vocabulary does not hold counts as 0. Lengths and rarities are by the tokens of the first
model, so that a range holds the same pairs for every model. Sources that are no texts have no rarities, and images no
lengths (sources.py): their ranges are empty, and a sentence says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from dragoman.core.errors import DataError, UserError, nearest
from dragoman.core.json import finite
from dragoman.core.types import SPECIALS, UNK
from dragoman.data.readers import files_of, read_pairs
from dragoman.evaluation.by_length import Bucket, by_length
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.assessment import Assessment, Score
from dragoman.inspection.length_units import TOKENS, words

READABLE = 10_000_000  # bytes of training data: 2 to 4 seconds at the 3 to 6 MB/s that tokenizers were measured at
SWELLS = 4  # a .gz file is about so many times as long when it is unpacked

Buckets = dict[str, list[Bucket]]  # by model


def report(
    assessments: Mapping[str, Assessment],
    metric: str | None = None,
    *,
    worst: int = 20,
    counts: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Several models on the same pairs, by one metric (the first, where none is named) where one must decide.

    `counts` are of training tokens, as `training_counts` reads them.
    """
    first = checked(assessments)
    metric = next(iter(first.scores)) if metric is None else metric
    if metric not in first.scores:
        known = list(first.scores)
        raise UserError(f"metric is '{metric}'; it must be one of {', '.join(known)}{nearest(metric, known)}")
    name = next(iter(assessments))
    return {
        "view": "quality",
        "metric": metric,
        "metrics": list(first.scores),
        "higher_is_better": first.scores[metric].metric.higher_is_better,
        "models": [scores_of(name, one) for name, one in assessments.items()],
        "length_of": first.unit,
        "left_out": left_out(first),
        "by_length": as_lines(grouped_by_length(assessments, metric)),
        "by_rarity": as_lines(grouped_by_rarity(assessments, metric, counts)),
        "rarity_of": "training" if counts is not None else "these sources",
        "worst": [{"model": name} | example for example in worst_of(first, metric, worst)],
    }


def checked(assessments: Mapping[str, Assessment]) -> Assessment:
    """The first of them, if all are of the same pairs."""
    if not assessments:
        raise UserError("there is no model to report on; assess at least one")
    first = next(iter(assessments.values()))
    for name, other in assessments.items():
        if other.examples != first.examples or other.scores.keys() != first.scores.keys():
            raise UserError(f"'{name}' was assessed on other pairs or metrics than the first model; use the same")
    return first


def scores_of(name: str, one: Assessment) -> dict[str, Any]:
    scores = {
        metric: {"value": finite(score.value), "low": finite(score.low), "high": finite(score.high)}
        for metric, score in one.scores.items()
    }
    return {"name": name, "n": len(one.examples), "perplexity": finite(one.perplexity), "scores": scores}


def worst_of(one: Assessment, metric: str, count: int) -> list[dict[str, Any]]:
    """The examples with the worst scores of their own, worst first; of equal ones the earlier is first."""
    score = one.scores[metric]
    each = np.asarray(score.metric.score(score.stats), dtype=np.float64)
    order = np.argsort(each if score.metric.higher_is_better else -each, kind="stable")[: max(count, 0)]
    return [
        {
            "index": int(i),
            "source": one.examples[i].source,
            "reference": one.examples[i].target,
            "output": one.predictions[i].text,
            "score": finite(float(each[i])),
        }
        for i in order
    ]


# -- ranges of pairs ---------------------------------------------------------------------------------------------------


def left_out(first: Assessment) -> str:
    """Which ranges there are none of, and why, as a sentence; '' where there are all."""
    if not first.unit:
        why = "the sources are no texts and have no length to go by (images are all of one size)"
        return f"Quality by length and by rarity is left out: {why}."
    if first.unit != TOKENS:
        return "Quality by rarity is left out: the sources are no texts and have no tokens."
    return ""


def grouped_by_length(assessments: Mapping[str, Assessment], metric: str) -> Buckets:
    """A metric by the length of the source in the first model's unit."""
    first = next(iter(assessments.values()))
    if not first.unit:
        return {name: [] for name in assessments}
    sizes = list(map(len, first.pieces))
    return {name: by_length(score.metric, score.stats, sizes) for name, score in named(assessments, metric)}


def grouped_by_rarity(
    assessments: Mapping[str, Assessment], metric: str, counts: Mapping[str, int] | None = None
) -> Buckets:
    """A metric by the count of the source's rarest token; blank sources have none and are left out."""
    first = next(iter(assessments.values()))
    every = first.pieces if first.unit == TOKENS else []
    known = Counter(token for tokens in every for token in tokens) if counts is None else counts
    kept = [i for i, tokens in enumerate(every) if tokens]
    if not kept:
        return {name: [] for name in assessments}
    rarities = [min(frequency(token, known) for token in every[i]) for i in kept]
    return {name: by_length(score.metric, score.stats[kept], rarities) for name, score in named(assessments, metric)}


def named(assessments: Mapping[str, Assessment], metric: str) -> list[tuple[str, Score]]:
    return [(name, one.scores[metric]) for name, one in assessments.items()]


def as_lines(buckets: Buckets) -> list[dict[str, Any]]:
    """A line of points for each model."""
    return [{"model": name, "points": [as_point(bucket) for bucket in some]} for name, some in buckets.items()]


def as_point(bucket: Bucket) -> dict[str, Any]:
    return {
        "low": int(bucket.low),
        "high": int(bucket.high),
        "count": bucket.count,
        "score": finite(float(bucket.score)),
        "lower": finite(float(bucket.interval[0])),
        "upper": finite(float(bucket.interval[1])),
    }


# -- rarity ------------------------------------------------------------------------------------------------------------


def frequency(token: str, counts: Mapping[str, int]) -> int:
    """How often a token was seen; <unk>, and the numbers that unknown words go by, stand for what never was."""
    return 0 if token == SPECIALS[UNK] or token.startswith("<copy:") else counts.get(token, 0)


def training_counts(pipeline: Pipeline) -> Counter[str] | None:
    """How often each source token is in the training data; None where that is gone, changed beyond reading, or large,
    or where the sources are no texts.

    The files are looked for where the config names them, from the working directory as in training.
    """
    data, codec = pipeline.config.data, pipeline.codec
    if codec.modality is not None or codec.second_source is not None:  # whose states are not all tokens
        return None
    try:
        if sum(size(corpus.path) for corpus in data.train) > READABLE:
            return None
        pieces = codec.target_pieces if pipeline.continues_text else codec.source_pieces
        counts: Counter[str] = Counter()
        for corpus in data.train:
            for example in read_pairs(corpus.path, columns=pipeline.config.columns, on_error=data.on_error):
                counts.update(words(pieces(pipeline.reading.encode(example))))
        return counts
    except (OSError, DataError):
        return None


def size(path: str) -> int:
    """The bytes there are to read behind a path."""
    found = files_of(path)
    if not all(file.is_file() for file in found):  # a pipe or a device may never end, and the path may be a stranger's
        raise FileNotFoundError(path)
    return sum(file.stat().st_size * (SWELLS if file.suffix == ".gz" else 1) for file in found)
