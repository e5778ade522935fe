"""Sentences as points of a plane: what the encoder makes of each, one vector, seen from its two widest sides.

    H = U Σ Vᵀ  (H: the summaries less their mean)        (x, y) = H [v_1 v_2]        explained_k = σ_k² / Σ_j σ_j²

An axis may point either way; here its largest component is positive. Neighbors are by the cosine of the whole
summaries, not by what is left of them in the picture. t-SNE and UMAP are there where their library is.

N texts, D width of a summary.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dragoman.core.errors import UserError, nearest
from dragoman.core.types import Example
from dragoman.data.batching import collate
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.pair import line
from dragoman.nn.seq2seq import Seq2Seq

Array = npt.NDArray[np.float64]

FEWEST = {"pca": 2, "tsne": 8, "umap": 8}  # texts, by method; the libraries stumble over less than a handful
ROWS = 64  # texts that are encoded together, and rows of cosines that are computed together


def space(
    pipeline: Pipeline, texts: Sequence[str | Example], *, method: str = "pca", neighbors: int = 5
) -> dict[str, Any]:
    """A point for each text, and the texts nearest to it."""
    if method not in FEWEST:
        raise UserError(f"method is '{method}'; it must be one of {', '.join(FEWEST)}{nearest(method, FEWEST)}")
    if neighbors < 0:
        raise UserError(f"neighbors is {neighbors}; it must be 0 or more")
    examples = [pipeline.reading.example(text) for text in texts]
    if len(examples) < FEWEST[method]:
        raise UserError(f"there are {len(examples)} texts; a map by '{method}' needs at least {FEWEST[method]}")
    h = summaries(pipeline, examples)
    explained: list[float] | None = None
    if method == "pca":
        places, explained = principal(h)
    else:
        places = tsne(h) if method == "tsne" else umap(h)
    near = closest(h, neighbors)
    points = [
        {"text": line(example), "x": float(x), "y": float(y), "near": others}
        for example, (x, y), others in zip(examples, places, near, strict=True)
    ]
    return {"view": "space", "method": method, "explained": explained, "points": points}


@torch.inference_mode()
def summaries(pipeline: Pipeline, examples: Sequence[Example]) -> Array:
    """The encoder's one vector for each text, (N, D)."""
    check(pipeline, examples)
    pipeline.model.eval()
    rows = [pipeline.reading.given(example).row for example in examples]
    found = []
    for first in range(0, len(rows), ROWS):
        some = rows[first : first + ROWS]
        batch = collate(some, list(range(len(some)))).to(pipeline.device)
        memory = pipeline.model.encode(*batch.given)
        found.append(memory.summary.cpu().double().numpy())
    return np.concatenate(found)


def check(pipeline: Pipeline, examples: Sequence[Example]) -> None:
    """Refuse what has no summary."""
    if not isinstance(pipeline.model, Seq2Seq):
        raise UserError("several models have several summaries of a text; look at one of them alone")
    if pipeline.continues_text or pipeline.config.model.encoder.name == "none":  # type: ignore[attr-defined]
        raise UserError("this model has no encoder, so no text has a summary; look at a model with an encoder")
    for number, example in enumerate(examples, 1):
        if not example.source.strip():
            raise UserError(f"text {number} is blank, and nothing has no place on a map; leave it out")


# -- two of many dimensions --------------------------------------------------------------------------------------------


def principal(h: Array) -> tuple[Array, list[float] | None]:
    """(N, 2) and the share of the variance along each axis; None where all texts lie in one point."""
    centered = h - h.mean(0)
    _, sigma, axes = np.linalg.svd(centered, full_matrices=False)  # (K,), (K, D)
    axes = axes[:2] * np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])[:2, None]
    places = np.zeros((len(h), 2))
    places[:, : len(axes)] = centered @ axes.T
    total = float((sigma**2).sum())
    # Equal texts differ by rounding: one part in 10¹² of their size is no variance.
    if total <= 1e-24 * float((h**2).sum()):
        return np.zeros((len(h), 2)), None
    shares = [float(s**2) / total for s in sigma[:2]]
    return places, [*shares, 0.0][:2]


def tsne(h: Array) -> Array:
    """t-SNE (van der Maaten and Hinton 2008): near points stay near; distances between groups mean nothing."""
    found = imported("sklearn.manifold", "scikit-learn", "tsne")
    perplexity = min(30.0, (len(h) - 1) / 3)
    made = found.TSNE(2, perplexity=perplexity, init="pca" if h.shape[1] > 1 else "random", random_state=0)
    return np.asarray(made.fit_transform(h), dtype=np.float64)


def umap(h: Array) -> Array:
    """UMAP (McInnes et al. 2018), on cosine distances."""
    found = imported("umap", "umap-learn", "umap")
    made = found.UMAP(n_neighbors=min(15, len(h) - 1), n_components=2, metric="cosine", random_state=0)
    return np.asarray(made.fit_transform(h), dtype=np.float64)


def imported(module: str, package: str, method: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(
            f"method '{method}' needs the package '{package}'. Install it with: pip install {package}; "
            "'pca' needs nothing"
        ) from None


# -- who is near whom --------------------------------------------------------------------------------------------------


def closest(h: Array, count: int) -> list[list[int]]:
    """For each row of (N, D) the others, nearest first by cosine; of equally near ones the earlier is first."""
    lengths = np.linalg.norm(h, axis=1, keepdims=True)
    unit = h / np.where(lengths > 0, lengths, 1.0)
    found = []
    for first in range(0, len(h), ROWS):
        cosines = unit[first : first + ROWS] @ unit.T  # (ROWS, N)
        for i, row in enumerate(cosines, first):
            row[i] = -np.inf  # a text is no neighbor of itself
            found.append(np.argsort(-row, kind="stable")[: min(count, len(h) - 1)].tolist())
    return found
