"""A map of sources: the encoder's summary vector of each, projected to two dimensions.

    H = U Σ Vᵀ  (H: the summaries less their mean)        (x, y) = H [v_1 v_2]        explained_k = σ_k² / Σ_j σ_j²

The sign of an axis is arbitrary; here its largest component is positive. Neighbors are by the cosine of the whole
summaries, not of their projections. t-SNE and UMAP are available where their library is installed.

N texts, D width of a summary.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from rich.console import Console

from dragoman.core.errors import UserError, did_you_mean
from dragoman.core.types import Example
from dragoman.inspection.blockers import single_model_blocker
from dragoman.inspection.views import RequestSize, ViewData, pass_cost, register_view

if TYPE_CHECKING:
    from dragoman.inference.pipeline import Pipeline

Array = npt.NDArray[np.float64]

MIN_TEXTS = {"pca": 2, "tsne": 8, "umap": 8}  # by method; the libraries fail with fewer
BATCH_TOKENS = 4096  # that are encoded together, padding included
BATCH_SIZE = 64  # rows of cosines that are computed together


def _encoder_blocker(pipeline: Pipeline) -> str | None:
    reason = single_model_blocker(pipeline)
    if reason is None and (pipeline.continues_text or pipeline.config.model.encoder.name == "none"):
        return "this model has no encoder and thus no summary of a text; use a model with an encoder"
    return reason


def _print_points(out: Console, data: ViewData) -> None:
    for point in data["points"]:
        neighbors = "; ".join(data["points"][i]["text"] for i in point["neighbors"])
        out.print(f"({point['x']:.2f}, {point['y']:.2f})  {point['text']}   neighbors: {neighbors}", markup=False)


def _projection_cost(size: RequestSize) -> int:
    per_text = 1 if size.options["method"] == "pca" else 20  # t-SNE and UMAP take some ms for each
    return pass_cost(sum(size.sources)) + per_text * len(size.sources)


@register_view(
    "embedding_space", inputs="sources", cost=_projection_cost, print_view=_print_points, blocker=_encoder_blocker
)
def project_embeddings(
    pipeline: Pipeline,
    sources: Sequence[str | Example],
    *,
    method: Literal["pca", "tsne", "umap"] = "pca",
    neighbors: Annotated[int, Field(ge=0, le=50)] = 5,
) -> ViewData:
    """A map of sources by their encoder summaries, with the nearest neighbors of each."""
    from dragoman.inspection.teacher_forcing import source_line

    if method not in MIN_TEXTS:
        raise UserError(
            f"method is '{method}'; it must be one of {', '.join(MIN_TEXTS)}{did_you_mean(method, MIN_TEXTS)}"
        )
    if neighbors < 0:
        raise UserError(f"neighbors is {neighbors}; it must be 0 or more")
    examples = [pipeline.input_processor.to_example(source) for source in sources]
    if len(examples) < MIN_TEXTS[method]:
        raise UserError(f"there are {len(examples)} texts; a map by '{method}' needs at least {MIN_TEXTS[method]}")
    h = encode_summaries(pipeline, examples)
    explained: list[float] | None = None
    if method == "pca":
        xy, explained = project_pca(h)
    else:
        xy = project_by_library(h, method)
    points = [
        {"text": source_line(example), "x": float(x), "y": float(y), "neighbors": nearest}
        for example, (x, y), nearest in zip(examples, xy, nearest_neighbors(h, neighbors), strict=True)
    ]
    return {"method": method, "explained_variance": explained, "points": points}


def encode_summaries(pipeline: Pipeline, examples: Sequence[Example]) -> Array:
    """Encode each example to its summary vector, (N, D); a blank one raises UserError."""
    import torch

    from dragoman.data.batching import collate
    from dragoman.engines.length_batches import batch_by_length

    for number, example in enumerate(examples, 1):
        if not example.source.strip():
            raise UserError(f"text {number} is blank; leave it out")
    pipeline.model.eval()
    rows = [pipeline.input_processor.encode_input(example).row for example in examples]
    summaries: dict[int, Array] = {}
    for indices in batch_by_length([len(row.source) for row in rows], BATCH_TOKENS):
        batch = collate([rows[i] for i in indices], indices).to(pipeline.device)
        with torch.inference_mode():
            memory = pipeline.model.encode(*batch.encoder_inputs)
        summaries.update(zip(indices, memory.summary.cpu().double().numpy(), strict=True))
    return np.stack([summaries[i] for i in range(len(rows))])


# -- projections -------------------------------------------------------------------------------------------------------


def project_pca(h: Array) -> tuple[Array, list[float] | None]:
    """Project (N, D) to two principal components: (N, 2), and each axis' fraction of the variance (None if it is 0)."""
    centered = h - h.mean(0)
    _, sigma, axes = np.linalg.svd(centered, full_matrices=False)  # (K,), (K, D)
    axes = axes[:2] * np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])[:2, None]
    xy = np.zeros((len(h), 2))
    xy[:, : len(axes)] = centered @ axes.T
    total = float((sigma**2).sum())
    # Equal texts differ by rounding errors: one part in 10¹² of their size is no variance.
    if total <= 1e-24 * float((h**2).sum()):
        return np.zeros((len(h), 2)), None
    fractions = [float(s**2) / total for s in sigma[:2]]
    return xy, [*fractions, 0.0][:2]


def project_by_library(h: Array, method: str) -> Array:
    """Project (N, D) to (N, 2) by t-SNE (van der Maaten and Hinton 2008) or UMAP (McInnes et al. 2018)."""
    package = {"tsne": "scikit-learn", "umap": "umap-learn"}[method]
    try:
        library = importlib.import_module("sklearn.manifold" if method == "tsne" else "umap")
    except ImportError:
        raise UserError(
            f"method '{method}' needs the package '{package}'. Install it with: pip install {package}; "
            "'pca' needs nothing"
        ) from None
    if method == "tsne":
        init = "pca" if h.shape[1] > 1 else "random"
        projection = library.TSNE(2, perplexity=min(30.0, (len(h) - 1) / 3), init=init, random_state=0)
    else:
        projection = library.UMAP(n_neighbors=min(15, len(h) - 1), n_components=2, metric="cosine", random_state=0)
    return np.asarray(projection.fit_transform(h), dtype=np.float64)


# -- neighbors ---------------------------------------------------------------------------------------------------------


def nearest_neighbors(h: Array, count: int) -> list[list[int]]:
    """Return for each row of (N, D) the indices of its `count` nearest other rows by cosine, nearest first."""
    lengths = np.linalg.norm(h, axis=1, keepdims=True)
    unit = h / np.where(lengths > 0, lengths, 1.0)
    neighbors = []
    for first in range(0, len(h), BATCH_SIZE):
        cosines = unit[first : first + BATCH_SIZE] @ unit.T  # (BATCH_SIZE, N)
        for i, row in enumerate(cosines, first):
            row[i] = -np.inf  # a text is no neighbor of itself
            neighbors.append(np.argsort(-row, kind="stable")[: min(count, len(h) - 1)].tolist())
    return neighbors
