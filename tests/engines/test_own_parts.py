"""A user's own parts on the fast paths: what a path does not compute, it leaves to the model's own modules."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.core.registry import Part, Registry
from dragoman.core.types import EOS
from dragoman.data.batching import collate
from dragoman.engines.cpu import ctranslate2, transformer_step
from dragoman.engines.cpu import engine as cpu
from dragoman.engines.cuda import encode, step
from dragoman.engines.length_batches import padded
from dragoman.engines.training import fused_transformer
from dragoman.engines.training.packing import pack, tensors, with_tensors
from dragoman.nn.attention import Places, record_attention
from dragoman.nn.layers import LayerNorm, norms
from dragoman.nn.positions import Learned, Nowhere, Rotary, Sinusoidal, positions
from dragoman.nn.scores import scores
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.nn.token_mixers import SelfAttention, mixers
from dragoman.search import Limits, searches

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
V = 40


def waves(x: Tensor, t: Tensor) -> Tensor:
    """x (…, T, d), by turns longer and shorter from place to place."""
    return x * (1.5 + torch.cos(3.0 * t.float()))[..., None]


class Scheme(Nowhere):
    def __init__(self, d: int, inside: Any) -> None:
        super().__init__()


class Rotates(Scheme):
    def turn(self, x: Tensor, t: Tensor) -> Tensor:
        return waves(x, t[..., None, :])


class AddsAndRotates(Sinusoidal):
    def turn(self, x: Tensor, t: Tensor) -> Tensor:
        return waves(x, t[..., None, :])


class RotatesOtherwise(Rotary):
    def turn(self, x: Tensor, t: Tensor) -> Tensor:
        return super().turn(x, 2 * t)


class Biases(Scheme):
    def bias(self, q: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        return torch.cos(3.0 * s[..., None, None, :].float()) + t[..., None, :, None] * 0.0


class AddsToValues(Scheme):
    def mix(self, a: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        return waves(a.amax(-1, keepdim=True), t[..., None, :])


class Stretches(Scheme):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return waves(x, t)


class AddsAndStretches(Sinusoidal):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return waves(super().forward(x, t), t)


class StretchesLearned(Learned):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return waves(super().forward(x, t), t)


class OfItsOwn(nn.Module):
    """Has what the fast paths ask of a scheme, and nothing of ours."""

    length = None
    each_layer = biases = sees_weights = False

    def __init__(self, d: int, inside: Any) -> None:
        super().__init__()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return x

    def turn(self, x: Tensor, t: Tensor) -> Tensor:
        return waves(x, t[..., None, :])

    def bias(self, q: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        return None

    def mix(self, a: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        return None


INSIDE = [Rotates, AddsAndRotates, RotatesOtherwise, Biases, AddsToValues, OfItsOwn]
BEFORE = [Stretches, AddsAndStretches, StretchesLearned]


def model_with(**options: Any) -> Seq2Seq:
    side = Part("transformer", {"layers": 2, "heads": 2, "feedforward": 24, "dropout": 0.0, **options})
    built = Seq2Seq(V, V, width=16, encoder=side, decoder=side).eval()
    with torch.no_grad():
        for weight in built.parameters():
            weight.mul_(1.5)
        built.output.bias[EOS] += 2.0
    return built


def own(monkeypatch: pytest.MonkeyPatch, registry: Registry[Any], part: Any) -> Part:
    """A part that is registered for one test."""
    monkeypatch.setitem(registry._parts, "own", part)
    return Part("own")


@pytest.mark.parametrize("scheme", INSIDE)
def test_a_scheme_of_ones_own_inside_attention_does_not_train_without_it(
    scheme: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not fused_transformer.serves(model_with(position=own(monkeypatch, positions, scheme)))


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
    if model.packs() is not None:
        assert scheme in (Biases, AddsToValues)
        return
    packed = pack(batch, 16)
    packed = with_tensors(
        packed, [x.to(DEVICE) for x in tensors(packed)], (packed.sources.longest, packed.targets.longest)
    )
    expected = model.loss(batch.to(DEVICE), 0.1)
    assert_close(model.packed_loss(packed, 0.1), expected)
    if fused_transformer.serves(model):
        pytest.importorskip("triton")
        assert_close(fused_transformer.Fused(model, torch.float32)(packed, 0.1), expected)


@torch.inference_mode()
@pytest.mark.parametrize("search", ["greedy", "beam"])
@pytest.mark.parametrize("scheme", INSIDE + BEFORE)
def test_a_scheme_of_ones_own_decodes_as_on_the_reference_path(
    scheme: Any, search: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_with(position=own(monkeypatch, positions, scheme))
    sources = [[*torch.randint(4, V, (n,)).tolist(), EOS] for n in (1, 3, 5, 8)]
    limits, searching = Limits(torch.full((len(sources),), 8)), searches.build(Part(search))
    memory = model.encode(*padded(sources))
    expected = searching(model.step, lambda room: model.start(memory, room), limits)
    engine = cpu.open(model, "float32")
    if engine is not None:
        found = engine(sources, searching, limits)
        assert [h[0].tokens for h in found] == [h[0].tokens for h in expected]
        assert [h[0].score for h in found] == pytest.approx([h[0].score for h in expected], abs=1e-4)


@pytest.mark.parametrize("scheme", INSIDE + BEFORE)
def test_engines_with_kernels_of_their_own_leave_out_schemes_they_do_not_know(
    scheme: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_with(position=own(monkeypatch, positions, scheme))
    assert not ctranslate2.fits(model)
    assert not step.fits(model)
    assert not encode.reads(model)


def test_the_schemes_that_these_paths_compute_are_still_theirs() -> None:
    for name in ("sinusoidal", "learned", "none"):
        model = model_with(position=Part(name))
        assert fused_transformer.serves(model)
        assert transformer_step.fits(model)
        assert ctranslate2.fits(model)
        assert step.fits(model)
        assert encode.reads(model)
    assert all(
        transformer_step.fits(model_with(position=Part(name))) for name in ("rotary", "alibi", "t5", "shaw", "xl")
    )


class HalfAttention(SelfAttention):
    def forward(self, x: Tensor, places: Places, position: Any) -> Tensor:  # type: ignore[override]
        return super().forward(x, places, position) / 2


class HalfNorm(LayerNorm):
    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        return super().forward(x, real) / 2


@pytest.mark.parametrize(("option", "registry", "part"), [("mixer", mixers, HalfAttention), ("norm", norms, HalfNorm)])
def test_a_mixer_or_norm_that_extends_ours_is_not_taken_for_it(
    option: str, registry: Registry[Any], part: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_with(**{option: own(monkeypatch, registry, part)})
    assert not fused_transformer.serves(model)
    assert not ctranslate2.fits(model)
    assert not step.fits(model)
    assert not encode.reads(model)


class Doubtful(nn.Module):
    """e = −|q·k| / 2, with a number that our dot scores have, too."""

    remembers, scale = False, 0.5

    def __init__(self, d_q: int, d_k: int) -> None:
        super().__init__()

    def prepare(self, k: Tensor) -> Tensor:
        return k

    def forward(self, q: Tensor, keys: Tensor, memo: Tensor | None = None) -> Tensor:
        return -(q @ keys.transpose(-1, -2)).abs() * self.scale


def test_a_score_of_ones_own_is_computed_on_every_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_with(score=own(monkeypatch, scores, Doubtful))
    assert model.packs() is not None
    assert not fused_transformer.serves(model)
    assert not transformer_step.fits(model)
    assert not ctranslate2.fits(model)
    assert not step.fits(model)
    batch = collate([([5, 6, 7], [8, 9] * 3), ([13], [14])], [0, 1])
    unwatched = model.loss(batch, 0.0)
    with record_attention():  # where every score is evaluated
        assert_close(unwatched, model.loss(batch, 0.0))
