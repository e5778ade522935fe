"""The map of sentences, against an example worked out by hand, variances, and cosines in plain loops."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.core.errors import UserError
from dragoman.core.types import Example
from dragoman.inference import ensemble
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.views.embedding_space import MIN_TEXTS, nearest_neighbors, project_embeddings, project_pca

TEXTS = ["ab", "ba", "abcd", "dcba", "aaaa", "d", "cd" * 5]


def build(encoder: Any = "rnn", **changes: Any) -> Pipeline:
    value: dict[str, Any] = {
        "data": {"train": "nowhere.tsv"},
        "model": {"width": 16, "encoder": encoder, "decoder": {"name": "rnn"}},
    }
    config = configs.validate(value | changes, "a test")
    part = config.tokenizer.source
    codec = learn_codec(part, part, config.tokenizer.joint, "nfc", ["abcd"], ["abcd"], [])
    model = configs.build_model(config, len(codec.source), len(codec.target))
    return Pipeline(model, codec, config, torch.device("cpu"))


def test_four_points_worked_out_by_hand() -> None:
    """Less their mean (1, 5, 2): ±3 along the first axis, ±1 along the last, nothing along the second."""
    h = np.array([[4.0, 5, 2], [-2, 5, 2], [1, 5, 3], [1, 5, 1]])
    places, explained = project_pca(h)
    assert np.allclose(places, [[3, 0], [-3, 0], [0, 1], [0, -1]])
    assert explained is not None
    assert np.allclose(explained, [18 / 20, 2 / 20])


def test_an_axis_points_the_way_of_its_largest_component() -> None:
    h = np.array([[0.0, 0], [3, -4]])  # the axis is ±(0.6, −0.8), and −0.8 is made positive
    places, explained = project_pca(h)
    assert np.allclose(places, [[2.5, 0], [-2.5, 0]])
    assert explained == pytest.approx([1.0, 0.0])
    flipped, _ = project_pca(-h)
    assert np.allclose(flipped, [[-2.5, 0], [2.5, 0]])


def test_the_axes_have_the_largest_variances_there_are() -> None:
    h = np.random.default_rng().normal(size=(40, 6)) * [1, 5, 2, 0.5, 3, 1] + 7
    places, explained = project_pca(h)
    variances = np.linalg.eigvalsh(np.cov(h.T))[::-1]
    assert explained is not None
    assert np.allclose(places.var(0, ddof=1), variances[:2])
    assert np.allclose(explained, variances[:2] / variances.sum())
    assert np.allclose(places.mean(0), 0)
    assert abs(np.corrcoef(places.T)[0, 1]) < 1e-9


def test_texts_of_one_summary_lie_in_one_point() -> None:
    places, explained = project_pca(np.full((3, 4), 1 / 3))
    assert np.array_equal(places, np.zeros((3, 2)))
    assert explained is None


def test_a_summary_of_one_number_has_one_axis() -> None:
    places, explained = project_pca(np.array([[1.0], [3.0]]))
    assert np.allclose(places, [[-1, 0], [1, 0]])
    assert explained == [1.0, 0.0]


def test_neighbors_are_by_cosine_in_plain_loops() -> None:
    h = np.random.default_rng().normal(size=(150, 5))
    h[3] = 0.0  # which is like nothing
    found = nearest_neighbors(h, 4)
    for i, row in enumerate(found):
        cosines = []
        for other in h:
            size = math.sqrt(sum(x * x for x in h[i])) * math.sqrt(sum(x * x for x in other))
            dot = sum(x * y for x, y in zip(h[i], other, strict=True))
            cosines.append(dot / size if size else 0.0)
        best = sorted((j for j in range(len(h)) if j != i), key=lambda j: -round(cosines[j], 12))
        assert row == best[:4]


@pytest.mark.parametrize("encoder", ["rnn", "transformer"])
def test_the_map_is_of_the_encoders_summaries_each_text_by_itself(encoder: str) -> None:
    """Encoded one at a time here, in batches there; more texts than a batch holds."""
    made = build({"name": encoder, "layers": 1})
    texts = [TEXTS[i % 7] + "abcd"[i % 4] * (i // 7) for i in range(70)]
    found = json.loads(json.dumps(project_embeddings(made, texts, neighbors=3), allow_nan=False))
    made.model.eval()
    rows = []
    for text in texts:
        ids = torch.tensor([made.input_processor.encode_source(Example(text))])
        with torch.no_grad():
            rows.append(made.model.encode(ids, torch.tensor([ids.shape[1]])).summary[0].double().numpy())
    h = np.stack(rows)
    assert (found["view"], found["method"]) == ("embedding_space", "pca")
    assert [point["text"] for point in found["points"]] == texts
    u, sigma, _ = np.linalg.svd(h - h.mean(0))
    for axis, name in enumerate("xy"):
        mine = np.array([point[name] for point in found["points"]])
        theirs = u[:, axis] * sigma[axis]
        assert np.allclose(mine, theirs, atol=1e-4) or np.allclose(mine, -theirs, atol=1e-4)
    unit = h / np.linalg.norm(h, axis=1, keepdims=True)
    cosines = unit @ unit.T - 2 * np.eye(len(h))
    for i, point in enumerate(found["points"]):
        assert len(point["neighbors"]) == 3
        best = np.sort(cosines[i])[::-1][:3]
        assert np.allclose(cosines[i][point["neighbors"]], best, atol=1e-5)


def test_a_text_that_is_too_long_is_cut_and_has_its_place() -> None:
    encoder = {"name": "transformer", "layers": 1, "position": {"name": "learned", "length": 6}}
    made = build(encoder, data={"train": "nowhere.tsv", "max_source": 6})
    found = project_embeddings(made, ["abcdabcdabcd", "abcda", "d"])
    assert found["points"][0]["x"] == pytest.approx(found["points"][1]["x"])
    assert found["points"][0]["neighbors"][0] == 1


def test_what_cannot_be_mapped_is_refused_with_a_sentence() -> None:
    made = build()
    for texts, method, words in (
        (["a"], "pca", "at least 2"),
        (["a", " ", "b"], "pca", "text 2 is blank"),
        (["a", "b"], "pcb", "did you mean 'pca'"),
        (TEXTS, "tsne", "at least 8"),
    ):
        with pytest.raises(UserError, match=words):
            project_embeddings(made, texts, method=method)
    with pytest.raises(UserError, match="neighbors is -1"):
        project_embeddings(made, ["a", "b"], neighbors=-1)
    assert [point["neighbors"] for point in project_embeddings(made, ["a", "b"], neighbors=9)["points"]] == [[1], [0]]


def test_models_without_one_encoder_are_refused() -> None:
    made = build()
    several = Pipeline(ensemble.Ensemble([made.model, made.model]), made.codec, made.config, made.device)
    with pytest.raises(UserError, match="several models"):
        project_embeddings(several, ["a", "b"])
    decoder = {"name": "transformer", "layers": 1, "heads": 2, "source": "prefix"}
    model = {"width": 16, "tie": "all", "encoder": "none", "decoder": decoder}
    for objective in ("lm", "pairs"):
        one = build(tokenizer={"joint": True}, model=model, training={"objective": objective})
        with pytest.raises(UserError, match="no encoder"):
            project_embeddings(one, ["a", "b"])


@pytest.mark.parametrize(("method", "module"), [("tsne", "sklearn.manifold"), ("umap", "umap")])
def test_a_missing_library_is_named_with_the_way_to_install_it(
    method: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(UserError, match=r"pip install (scikit|umap)-learn"):
        project_embeddings(build(), [*TEXTS, "c"], method=method)


@pytest.mark.parametrize("method", [method for method in MIN_TEXTS if method != "pca"])
def test_other_methods_give_a_point_for_each_text_where_their_library_is(method: str) -> None:
    pytest.importorskip({"tsne": "sklearn", "umap": "umap"}[method])
    found = project_embeddings(build(), [*TEXTS, *(text + "c" for text in TEXTS)], method=method)
    assert found["explained_variance"] is None
    assert all(math.isfinite(point["x"]) and math.isfinite(point["y"]) for point in found["points"])
