"""A user's own parts and the engines: what an engine does not compute, it leaves to the model's own modules."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.core import tree
from dragoman.core.registry import Part, Registry
from dragoman.core.types import EOS
from dragoman.data.batching import collate
from dragoman.engines.cpu import ctranslate2
from dragoman.engines.cpu.engine import CPUEngine
from dragoman.engines.cpu.transformer_step import transformer_blocker
from dragoman.engines.cuda.encode import packed_encoder_blocker
from dragoman.engines.cuda.step import transformer_step_blocker
from dragoman.engines.length_batches import pad_ids
from dragoman.engines.training.fused_transformer import FusedTransformer, fused_transformer_blocker
from dragoman.engines.training.packing import pack
from dragoman.nn.attention import AttentionMask, record_attention
from dragoman.nn.layers import LayerNorm, norms
from dragoman.nn.positions import LearnedPositions, NoPositions, RotaryPositions, SinusoidalPositions, positions
from dragoman.nn.scores import scores
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.nn.token_mixers import SelfAttention, mixers
from dragoman.search import SearchConstraints, searches

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CPU = torch.device("cpu")
V = 40


def waves(x: Tensor, t: Tensor) -> Tensor:
    """x (…, T, d), by turns longer and shorter from place to place."""
    return x * (1.5 + torch.cos(3.0 * t.float()))[..., None]


class Scheme(NoPositions):
    """A scheme with nothing of its own."""


class Rotates(Scheme):
    def rotate(self, x: Tensor, t: Tensor) -> Tensor:
        return waves(x, t[..., None, :])


class AddsAndRotates(SinusoidalPositions):
    def rotate(self, x: Tensor, t: Tensor) -> Tensor:
        return waves(x, t[..., None, :])


class RotatesOtherwise(RotaryPositions):
    def rotate(self, x: Tensor, t: Tensor) -> Tensor:
        return super().rotate(x, 2 * t)


class Biases(Scheme):
    def score_bias(self, q: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        return torch.cos(3.0 * s[..., None, None, :].float()) + t[..., None, :, None] * 0.0


class AddsToValues(Scheme):
    def value_bias(self, a: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        return waves(a.amax(-1, keepdim=True), t[..., None, :])


class Stretches(Scheme):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return waves(x, t)


class AddsAndStretches(SinusoidalPositions):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return waves(super().forward(x, t), t)


class StretchesLearned(LearnedPositions):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return waves(super().forward(x, t), t)


class OfItsOwn(nn.Module):
    """Has what the fast paths ask of a scheme, and nothing of ours."""

    max_positions = None
    per_layer = has_score_bias = needs_weights = False

    def __init__(self, d: int, heads: Any) -> None:
        super().__init__()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return x

    def rotate(self, x: Tensor, t: Tensor) -> Tensor:
        return waves(x, t[..., None, :])

    def score_bias(self, q: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        return None

    def value_bias(self, a: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        return None


IN_ATTENTION = [Rotates, AddsAndRotates, RotatesOtherwise, Biases, AddsToValues, OfItsOwn]
BEFORE = [Stretches, AddsAndStretches, StretchesLearned]


def model_with(**options: Any) -> Seq2Seq:
    side = Part("transformer", {"layers": 2, "heads": 2, "feedforward": 24, "dropout": 0.0, **options})
    built = Seq2Seq(V, V, width=32, encoder=side, decoder=side).eval()
    with torch.no_grad():
        for weight in built.parameters():
            weight.mul_(1.5)
        built.output.bias[EOS] += 2.0
    return built


def own(monkeypatch: pytest.MonkeyPatch, registry: Registry[Any], part: Any) -> Part:
    """A part that is registered for one test."""
    monkeypatch.setitem(registry._parts, "own", part)
    return Part("own")


@pytest.mark.parametrize("scheme", IN_ATTENTION)
def test_a_scheme_of_ones_own_inside_attention_does_not_train_without_it(
    scheme: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fused_transformer_blocker(model_with(position=own(monkeypatch, positions, scheme))) is not None


def test_what_a_scheme_of_ones_own_adds_to_values_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_with(position=own(monkeypatch, positions, AddsToValues))
    batch = collate([([5, 6, 7], [8, 9] * 3), ([13], [14])], [0, 1])
    unwatched = model.loss(batch, 0.0)
    with record_attention():  # where weights are formed
        assert_close(unwatched, model.loss(batch, 0.0))


@pytest.mark.parametrize("scheme", [Rotates, AddsAndRotates, Biases, AddsToValues, OfItsOwn, *BEFORE])
def test_packed_rows_have_the_loss_of_padded_ones_under_a_scheme_of_ones_own(
    scheme: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the model's own modules where they can be packed, and in fused kernels where those serve."""
    model = model_with(position=own(monkeypatch, positions, scheme)).to(DEVICE)
    batch = collate([([5, 6, 7], [8, 9] * 3), ([10] * 9, [11, 12]), ([13], [14])], [0, 1, 2])
    if model.packing_blocker() is not None:
        assert scheme in (Biases, AddsToValues)
        return
    packed = tree.map(lambda x: x.to(DEVICE), pack(batch, 16))
    expected = model.loss(batch.to(DEVICE), 0.1)
    assert_close(model.packed_loss(packed, 0.1), expected)
    if fused_transformer_blocker(model) is None:
        pytest.importorskip("triton")
        assert_close(FusedTransformer(model, torch.float32)(packed, 0.1), expected)


@torch.inference_mode()
@pytest.mark.parametrize("search", ["greedy", "beam"])
@pytest.mark.parametrize("scheme", IN_ATTENTION + BEFORE)
def test_a_scheme_of_ones_own_decodes_as_on_the_reference_path(
    scheme: Any, search: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_with(position=own(monkeypatch, positions, scheme))
    sources = [[*torch.randint(4, V, (n,)).tolist(), EOS] for n in (1, 3, 5, 8)]
    limits, searching = SearchConstraints(torch.full((len(sources),), 8)), searches.build(Part(search))
    memory = model.encode(*pad_ids(sources))
    expected = searching(model.step, lambda capacity: model.start(memory, capacity), limits)
    if transformer_blocker(model) is None:
        engine = CPUEngine(model, "float32")
        found = engine(sources, searching, limits)
        assert [h[0].tokens for h in found] == [h[0].tokens for h in expected]
        assert [h[0].score for h in found] == pytest.approx([h[0].score for h in expected], abs=1e-4)


@pytest.mark.parametrize("scheme", IN_ATTENTION + BEFORE)
def test_engines_with_kernels_of_their_own_leave_out_schemes_they_do_not_know(
    scheme: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_with(position=own(monkeypatch, positions, scheme))
    assert ctranslate2.model_blocker(model, "float32") is not None
    assert transformer_step_blocker(model) is not None
    assert packed_encoder_blocker(model, CPU) is not None


def test_the_schemes_that_these_paths_compute_are_still_theirs() -> None:
    for name in ("sinusoidal", "learned", "none"):
        model = model_with(position=Part(name))
        assert fused_transformer_blocker(model) is None
        assert transformer_blocker(model) is None
        assert ctranslate2.model_blocker(model, "float32") is None
        assert transformer_step_blocker(model) is None
        assert packed_encoder_blocker(model, CPU) is None
    assert all(
        transformer_blocker(model_with(position=Part(name))) is None for name in ("rotary", "alibi", "t5", "shaw", "xl")
    )


class HalfAttention(SelfAttention):
    def forward(self, x: Tensor, mask: AttentionMask, position: Any) -> Tensor:  # type: ignore[override]
        return super().forward(x, mask, position) / 2


class HalfNorm(LayerNorm):
    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        return super().forward(x, real) / 2


@pytest.mark.parametrize(("option", "registry", "part"), [("mixer", mixers, HalfAttention), ("norm", norms, HalfNorm)])
def test_a_mixer_or_norm_that_extends_ours_is_not_taken_for_it(
    option: str, registry: Registry[Any], part: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_with(**{option: own(monkeypatch, registry, part)})
    assert fused_transformer_blocker(model) is not None
    assert ctranslate2.model_blocker(model, "float32") is not None
    assert transformer_step_blocker(model) is not None
    assert packed_encoder_blocker(model, CPU) is not None


class Doubtful(nn.Module):
    """e = −|q·k| / 2, with a number that our dot scores have, too."""

    uses_past_weights, scale = False, 0.5

    def __init__(self, d_q: int, d_k: int) -> None:
        super().__init__()

    def prepare_keys(self, k: Tensor) -> Tensor:
        return k

    def forward(self, q: Tensor, keys: Tensor, past_weights: Tensor | None = None) -> Tensor:
        return -(q @ keys.transpose(-1, -2)).abs() * self.scale


def test_a_score_of_ones_own_is_computed_on_every_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_with(score=own(monkeypatch, scores, Doubtful))
    assert model.packing_blocker() is not None
    assert fused_transformer_blocker(model) is not None
    assert transformer_blocker(model) is not None
    assert ctranslate2.model_blocker(model, "float32") is not None
    assert transformer_step_blocker(model) is not None
    batch = collate([([5, 6, 7], [8, 9] * 3), ([13], [14])], [0, 1])
    unwatched = model.loss(batch, 0.0)
    with record_attention():  # where every score is evaluated
        assert_close(unwatched, model.loss(batch, 0.0))
