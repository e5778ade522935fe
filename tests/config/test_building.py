"""What a config stands for is built without a trace; parts of a user's own are rehearsed, and say what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dragoman.config import load, rehearse
from dragoman.core.errors import ConfigError, DataError
from dragoman.core.types import Memory, Output, Segments
from dragoman.evaluation.metrics import metrics
from dragoman.nn.decoders import decoders
from dragoman.nn.decoders.transformer import TransformerDecoder
from dragoman.nn.encoders import encoders
from dragoman.nn.normalizers import Normalizer, normalizers
from dragoman.nn.scores import GeneralScore, scores
from dragoman.nn.token_mixers import SelfAttention, mixers
from dragoman.text.tokenizers import tokenizers
from dragoman.text.vocabulary import LookupTokenizer

from .conftest import TINY, written


def test_a_rehearsal_leaves_the_random_numbers_as_they_were(tmp_path: Path) -> None:
    config = load(written(tmp_path, TINY)).config
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert rehearse(config) == []
    assert torch.equal(torch.rand(3), expected)


# -- a user's own parts ------------------------------------------------------------------------------------------------


class OwnEncoder(nn.Module):
    """Returns what `wrong` says of it."""

    def __init__(self, d_in: int, *, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.W = wrong, nn.Linear(d_in + 1, d_in)
        if wrong != "no width":
            self.d = d_in
        if wrong == "constructor":
            len(d_in)  # type: ignore[arg-type]

    def forward(self, x: Tensor, segments: Segments) -> Any:
        h, lengths, summary = x, segments.lengths, segments.mean(x)
        if self.wrong == "matrix":
            h = self.W(x)
        if self.wrong == "raises":
            raise KeyError("width")
        if self.wrong == "attribute":
            h = self.nothing
        memory = Memory(h, lengths, summary)
        wrong: dict[str, Any] = {
            "width": Memory(h[..., :-1], lengths, summary),
            "rows": Memory(h[:1], lengths, summary),
            "dimensions": Memory(h[0], lengths, summary),
            "lengths": Memory(h, lengths[:, None], summary),
            "summary": Memory(h, lengths, summary[:, None]),
            "tensor": h,
            "list": Memory([h], lengths, summary),  # type: ignore[arg-type]
        }
        return wrong.get(self.wrong, memory)


class OwnDecoder(TransformerDecoder):
    def __init__(self, d_in: int, d_memory: int, *, wrong: str = "") -> None:
        super().__init__(d_in, d_memory, layers=1, heads=1)
        self.wrong = wrong

    def forward(self, y: Tensor, memory: Memory, *rest: Any) -> Output:
        output = super().forward(y, memory, *rest)
        return Output(output.o[:, :-1]) if self.wrong == "forward" else output

    def step(self, y: Tensor, state: Any) -> Any:
        if self.wrong == "raises":
            raise IndexError("too far")
        output, state = super().step(y, state)
        return (Output(output.o[:, 0]) if self.wrong == "step" else output), state


@pytest.fixture
def own_parts() -> Iterator[None]:
    encoders.names, decoders.names  # noqa: B018 - ours are found first
    encoders._parts["own"], decoders._parts["own"] = OwnEncoder, OwnDecoder
    yield
    del encoders._parts["own"], decoders._parts["own"]


@pytest.mark.usefixtures("own_parts")
@pytest.mark.parametrize(
    ("part", "wrong", "words"),
    [
        (
            "encoder",
            "width",
            r"test_building\.py: encoder 'own' returned states of \(2, 3, 7\); expected \(2, 3, 8\): its \.d says 8",
        ),
        ("encoder", "rows", r"returned states of \(1, 3, 8\); expected \(2, 3, 8\)"),
        ("encoder", "dimensions", r"returned states of \(3, 8\); expected \(2, any, 8\)"),
        ("encoder", "lengths", r"returned lengths of \(2, 1\); expected \(2,\)"),
        ("encoder", "summary", r"returned summary of \(2, 1, 8\); expected \(2, 8\)"),
        ("encoder", "tensor", r"encoder 'own' returned a Tensor; expected a Memory"),
        ("encoder", "list", r"encoder 'own' returned a list as states; expected a Tensor"),
        (
            "encoder",
            "matrix",
            r"test_building\.py: encoder 'own' failed in line \d+, given x \(2, 3, 8\): mat1 and mat2 shapes cannot be",
        ),
        ("encoder", "raises", r"encoder 'own' failed in line \d+, given x \(2, 3, 8\): KeyError: 'width'"),
        ("encoder", "attribute", r"encoder 'own' failed in line \d+.*AttributeError: .* has no attribute 'nothing'"),
        ("encoder", "no width", r"encoder 'own': AttributeError: 'OwnEncoder' object has no attribute 'd'"),
        ("encoder", "constructor", r"encoder 'own' failed in line \d+: TypeError: "),
        ("decoder", "forward", r"decoder 'own' returned o of \(2, 1, 8\); expected \(2, 2, 8\)"),
        ("decoder", "step", r"decoder 'own' returned o of a step of \(2, 8\); expected \(2, 1, 8\)"),
        ("decoder", "raises", r"decoder 'own' failed in line \d+, given y \(2, 1, 8\): IndexError: "),
    ],
)
def test_a_wrong_shape_in_a_part_of_ones_own_names_the_part_and_both_shapes(
    part: str, wrong: str, words: str, tmp_path: Path
) -> None:
    sizes = {"encoder": 8, "decoder": 8}
    text = f"data: {{train: a.tsv}}\nmodel:\n  width: {sizes[part]}\n"
    for name in ("encoder", "decoder"):
        text += f"  {name}: {{name: own, wrong: '{wrong if name == part else ''}'}}\n"
    with pytest.raises(ConfigError, match=words):
        load(written(tmp_path, text))


class OwnScore(GeneralScore):
    """A score in a Transformer or an RNN, wrong as `wrong` says."""

    def __init__(self, d_q: int, d_k: int, *, wrong: str = "") -> None:
        super().__init__(d_q, d_k)
        self.wrong = wrong

    def forward(self, q: Tensor, keys: Tensor, past_weights: Tensor | None = None) -> Any:
        if self.wrong == "raises":
            raise ValueError("I cannot")
        e = super().forward(q, keys)
        return {"keys": e[..., :-1], "dimensions": e[..., 0], "tuple": (e,), "none": None}.get(self.wrong, e)


class OwnNormalizer(Normalizer):
    def __init__(self, d_q: int, *, wrong: str = "") -> None:
        super().__init__(d_q)
        self.wrong = wrong

    def forward(self, e: Tensor, mask: Tensor | None, q: Tensor, t: Any = None, lengths: Any = None) -> Any:
        a, extras = super().forward(e, mask, q)
        return {"no extras": a, "queries": (a[..., :1, :0], {}), "text": ("a", {})}.get(self.wrong, (a, extras))


class OwnMixer(SelfAttention):
    """Without a contract that is checked: what fails after it is said to."""

    def forward(self, *given: Any, **named: Any) -> Any:
        return super().forward(*given, **named)[..., :-1]


class OwnTokenizer(LookupTokenizer):
    kind = "own"

    def __init__(self, *, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong

    def split(self, text: str) -> list[str]:
        return text.split()

    def learn_from_counts(self, counts: Any, extra_symbols: Any = ()) -> None:
        if self.wrong == "wants more":
            raise DataError("too little text")
        super().learn_from_counts(counts, extra_symbols)

    def encode(self, text: str) -> Any:
        ids = super().encode(text)
        wrong: dict[str, Any] = {"range": [*ids, 99], "special": [1, *ids], "floats": [1.0], "text": text}
        if self.wrong == "state" and self.vocabulary.tokens and not hasattr(self, "restored"):
            return ids[::-1]
        return wrong.get(self.wrong, ids)

    def restore(self, files: Any) -> None:
        super().restore(files)
        self.restored = True

    def decode(self, ids: Any) -> Any:
        if self.wrong == "raises":
            raise KeyError("b")
        return ids if self.wrong == "decodes" else super().decode(ids)

    def pieces(self, ids: Any) -> list[str]:
        return super().pieces(ids)[1:] if self.wrong == "pieces" else super().pieces(ids)


class OwnMetric:
    """The share of outputs of the right length."""

    label, higher_is_better, signature, unit, name, description = "own", True, None, "%", "Own", "Of mine."

    def __init__(self, *, wrong: str = "") -> None:
        self.wrong = wrong

    def statistics(self, hypotheses: Any, references: Any) -> Any:
        if self.wrong == "raises":
            return references[99]
        rows = [[len(h) == len(r[0]), 1.0] for h, r in zip(hypotheses, references, strict=True)]
        return {"rows": np.array(rows)[0], "items": np.array(rows)[:1]}.get(self.wrong, np.array(rows, float))

    def score(self, totals: Any) -> Any:
        return totals if self.wrong == "score" else totals[..., 0] / totals[..., 1]


OWN: dict[str, tuple[Any, Any, str]] = {  # kind: its registry, the part, and where it stands in a config
    "score": (scores, OwnScore, "model: {width: 8, decoder: {name: rnn, score: PART}}"),
    "score of a Transformer": (scores, OwnScore, "model: {width: 8, encoder: {name: transformer, score: PART}}"),
    "normalizer": (normalizers, OwnNormalizer, "model: {width: 8, decoder: {name: rnn, normalizer: PART}}"),
    "mixer": (mixers, OwnMixer, "model: {width: 8, encoder: {name: transformer, mixer: own}}"),
    "tokenizer": (tokenizers, OwnTokenizer, "tokenizer: {source: PART}"),
    "target tokenizer": (tokenizers, OwnTokenizer, "tokenizer: {source: words, target: PART}"),
    "metric": (metrics, OwnMetric, "training: {validate_metrics: [PART]}"),
}


@pytest.mark.parametrize(
    ("kind", "wrong", "words"),
    [
        (
            "score",
            "keys",
            r"score 'own' returned e of \(2, \d, 2\); expected \(2, \d, 3\): a score for each of \d quer",
        ),
        ("score", "dimensions", r"score 'own' returned e of \(2, \d\); expected \(2, \d, 3\)"),
        ("score", "tuple", "score 'own' returned a tuple as e; expected a Tensor"),
        ("score", "none", "score 'own' returned a NoneType as e; expected a Tensor"),
        (
            "score",
            "raises",
            r"score 'own' failed in line \d+, given q \(2, \d, 8\), keys \(2, 3, 8\): ValueError: I cannot",
        ),
        ("score of a Transformer", "keys", r"returned e of \(2, 8, 3, 2\); expected \(2, 8, 3, 3\)"),
        ("normalizer", "no extras", "normalizer 'own' returned a Tensor; expected weights and a dict of extras"),
        ("normalizer", "queries", r"returned weights of \(2, 1, 0\); expected \(2, \d, 3\): the shape of the scores"),
        ("normalizer", "text", "normalizer 'own' returned a str as weights; expected a Tensor"),
        ("mixer", "", r"mixer 'own' returned \(2, 3, 7\), and the model failed with it: The size of tensor"),
        ("tokenizer", "range", r"tokenizer 'own' encoded 'a bc a' as \[.*99\]; expected a list of ids from 3 to \d+"),
        ("tokenizer", "special", "expected a list of ids from 3"),
        ("tokenizer", "floats", "expected a list of ids from 3"),
        ("tokenizer", "text", "encoded 'a bc a' as 'a bc a'; expected a list of ids"),
        ("tokenizer", "state", "after it was restored"),
        ("tokenizer", "decodes", "to a list; expected a text"),
        ("tokenizer", "raises", r"tokenizer 'own' failed in line \d+: KeyError: 'b'"),
        ("tokenizer", "pieces", "returned 2 pieces for 3 ids; expected one for each"),
        ("target tokenizer", "pieces", "returned 2 pieces for 3 ids"),
        ("metric", "rows", r"metric 'own' returned statistics of \(2,\); expected \(2, any\): a row an item"),
        ("metric", "items", r"metric 'own' returned statistics of \(1, 2\); expected \(2, any\)"),
        ("metric", "score", r"metric 'own' returned scores of \(2,\) for one corpus; expected \(\)"),
        ("metric", "raises", r"metric 'own' failed in line \d+: IndexError: list index out of range"),
    ],
)
def test_what_is_wrong_in_another_part_of_ones_own_is_named(
    kind: str, wrong: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=rf"test_building\.py: .*{words}") as caught:
        load(own_config(kind, wrong, tmp_path, monkeypatch))
    assert str(caught.value).count("\n") == 1


@pytest.mark.parametrize("kind", [kind for kind in OWN if kind != "mixer"])
@pytest.mark.parametrize("right", ["", "wants more"])
def test_another_part_of_ones_own_that_is_right_is_accepted(
    kind: str, right: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(own_config(kind, right, tmp_path, monkeypatch))


def own_config(kind: str, wrong: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    registry, part, text = OWN[kind]
    registry.names  # noqa: B018 - ours are found first
    monkeypatch.setitem(registry._parts, "own", part)
    text = text.replace("PART", f"{{name: own, wrong: '{wrong}'}}")
    return written(folder, f"data: {{train: a.tsv, valid: v.tsv}}\n{text}\n")


@pytest.mark.usefixtures("own_parts")
def test_a_part_of_ones_own_that_is_right_is_accepted(tmp_path: Path) -> None:
    text = "data: {train: a.tsv}\nmodel: {width: 8, encoder: own, decoder: own}\n"
    assert rehearse(load(written(tmp_path, text)).config) == []
