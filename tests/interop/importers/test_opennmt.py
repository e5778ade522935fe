"""OpenNMT-py's checkpoints: answers of OpenNMT-py itself, and its equations, written here once more, for other options.

fixtures/make_opennmt.py made the checkpoint of these tests with OpenNMT-py 3.5.1, and its answers.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import dragoman
from dragoman import GenerationOptions, Part
from dragoman.checkpoint import model_folder
from dragoman.checkpoint.streaming import LazyTensor
from dragoman.core.errors import UserError
from dragoman.interop.importers import ImportOptions, import_model, opennmt

FIXTURE = Path(__file__).parent / "fixtures" / "opennmt"
TRUST = ImportOptions(trust_pickle=True)
D, INNER, HEADS = 8, 12, 2
TOKENS = ["<unk>", "<blank>", "<s>", "</s>", "a", "b", "c", "d"]


def test_greedy_outputs_are_those_of_opennmt(tmp_path: Path) -> None:
    report = import_model(f"opennmt:{FIXTURE / 'model.pt'}", tmp_path / "model", TRUST)
    assert report.program == "OpenNMT-py transformer"
    model = dragoman.load(tmp_path / "model", "cpu")
    sources = (FIXTURE / "input.txt").read_text(encoding="utf-8").splitlines()
    options = GenerationOptions(search=Part("greedy"), max_new_tokens=64)
    outputs = [output.text for output in model.predict(sources, options)]
    assert outputs == (FIXTURE / "greedy.txt").read_text(encoding="utf-8").splitlines()


# -- its equations, in plain torch -------------------------------------------------------------------------------------


def norm(x: Tensor, weights: dict[str, Tensor], name: str, eps: float) -> Tensor:
    if f"{name}.bias" in weights:
        return F.layer_norm(x, (D,), weights[f"{name}.weight"], weights[f"{name}.bias"], eps)
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weights[f"{name}.weight"]


def affine(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def attend(q: Tensor, memory: Tensor, weights: dict[str, Tensor], name: str, causal: bool) -> Tensor:
    """Each head by itself: q (T, D), memory (S, D)."""
    queries, keys, values = (
        affine(x, weights, f"{name}.linear_{kind}") for x, kind in ((q, "query"), (memory, "keys"), (memory, "values"))
    )
    heads = []
    for h in range(HEADS):
        of = slice(h * D // HEADS, (h + 1) * D // HEADS)
        scores = queries[:, of] @ keys[:, of].T / math.sqrt(D // HEADS)
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
        heads.append(scores.softmax(-1) @ values[:, of])
    return affine(torch.cat(heads, -1), weights, f"{name}.final_linear")


def feed(x: Tensor, weights: dict[str, Tensor], name: str, options: dict[str, Any]) -> Tensor:
    activations: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "gated-gelu": F.gelu,
    }  # fmt: skip
    y = norm(x, weights, f"{name}.layer_norm", options["norm_eps"])
    h = activations[options["pos_ffn_activation_fn"]](affine(y, weights, f"{name}.w_1"))
    if f"{name}.w_3.weight" in weights:
        h = h * affine(y, weights, f"{name}.w_3")
    return x + affine(h, weights, f"{name}.w_2")


def embed(ids: list[int], weights: dict[str, Tensor], side: str, kind: str) -> Tensor:
    x = weights[f"{side}.embeddings.make_embedding.emb_luts.0.weight"][ids] * math.sqrt(D)
    for t in range(len(ids)):
        for i in range(D // 2):
            if kind == "SinusoidalInterleaved":
                angle, at = t / 10000 ** (2 * i / D), (2 * i, 2 * i + 1)
            else:
                angle, at = t / 10000 ** (i / (D / 2 - 1)), (i, D // 2 + i)
            x[t, at[0]] += math.sin(angle)
            x[t, at[1]] += math.cos(angle)
    return x


def their_log_probs(
    weights: dict[str, Tensor], options: dict[str, Any], source: list[int], target: list[int]
) -> Tensor:
    """log p of what follows each token of a target, (T, V)."""
    eps, kind = options["norm_eps"], options["position_encoding_type"]
    h = embed(source, weights, "encoder", kind)
    for i in range(options["enc_layers"]):
        layer = f"encoder.transformer.{i}"
        y = norm(h, weights, f"{layer}.layer_norm", eps)
        h = feed(h + attend(y, y, weights, f"{layer}.self_attn", False), weights, f"{layer}.feed_forward", options)
    memory = norm(h, weights, "encoder.layer_norm", eps)
    x = embed(target, weights, "decoder", kind)
    for i in range(options["dec_layers"]):
        layer = f"decoder.transformer_layers.{i}"
        y = norm(x, weights, f"{layer}.layer_norm_1", eps)
        x = x + attend(y, y, weights, f"{layer}.self_attn", True)
        y = norm(x, weights, f"{layer}.layer_norm_2", eps)
        x = feed(
            x + attend(y, memory, weights, f"{layer}.context_attn", False), weights, f"{layer}.feed_forward", options
        )
    x = norm(x, weights, "decoder.layer_norm", eps)
    return torch.log_softmax(affine(x, weights, "generator"), -1)


# -- checkpoints of random weights -------------------------------------------------------------------------------------


def random_checkpoint(**changes: Any) -> dict[str, Any]:
    """A checkpoint as OpenNMT-py's ModelSaver writes it."""
    options = {
        "encoder_type": "transformer", "decoder_type": "transformer", "model_task": "seq2seq", "heads": HEADS,
        "position_encoding": True, "position_encoding_type": "SinusoidalInterleaved", "enc_layers": 1, "dec_layers": 2,
        "transformer_ff": INNER, "pos_ffn_activation_fn": "relu", "layer_norm": "standard", "norm_eps": 1e-6,
        "tgt_word_vec_size": D, "add_qkvbias": False, "add_ffnbias": True, "dropout": [0.1], "attention_dropout": [0.1],
        "share_embeddings": False, "share_decoder_embeddings": False, **changes,
    }  # fmt: skip
    weights: dict[str, Tensor] = {}

    def linear(name: str, d_out: int, d_in: int, bias: bool) -> None:
        weights[f"{name}.weight"] = torch.randn(d_out, d_in) / math.sqrt(d_in) * 1.5
        if bias:
            weights[f"{name}.bias"] = torch.randn(d_out)

    def add_norm(name: str) -> None:
        weights[f"{name}.weight"] = torch.rand(D) + 0.5
        if options["layer_norm"] == "standard":
            weights[f"{name}.bias"] = torch.randn(D)

    for side, stack, norms, attentions in (
        ("encoder", "transformer", ["layer_norm"], ["self_attn"]),
        ("decoder", "transformer_layers", ["layer_norm_1", "layer_norm_2"], ["self_attn", "context_attn"]),
    ):
        weights[f"{side}.embeddings.make_embedding.emb_luts.0.weight"] = torch.randn(len(TOKENS), D)
        weights[f"{side}.embeddings.make_embedding.pe.pe"] = torch.zeros(9, 1, D)
        add_norm(f"{side}.layer_norm")
        for i in range(options["enc_layers" if side == "encoder" else "dec_layers"]):
            layer = f"{side}.{stack}.{i}"
            for name in norms:
                add_norm(f"{layer}.{name}")
            for name in attentions:
                for kind in ("linear_query", "linear_keys", "linear_values", "final_linear"):
                    linear(f"{layer}.{name}.{kind}", D, D, options["add_qkvbias"])
            linear(f"{layer}.feed_forward.w_1", INNER, D, options["add_ffnbias"])
            linear(f"{layer}.feed_forward.w_2", D, INNER, options["add_ffnbias"])
            if options["pos_ffn_activation_fn"] in ("silu", "gated-gelu"):
                linear(f"{layer}.feed_forward.w_3", INNER, D, options["add_ffnbias"])
            add_norm(f"{layer}.feed_forward.layer_norm")
    generator: dict[str, Tensor] = {}
    linear("generator", len(TOKENS), D, True)
    if options["share_embeddings"]:
        weights["decoder.embeddings.make_embedding.emb_luts.0.weight"] = weights[
            "encoder.embeddings.make_embedding.emb_luts.0.weight"
        ]
    if options["share_decoder_embeddings"]:
        weights["generator.weight"] = weights["decoder.embeddings.make_embedding.emb_luts.0.weight"]
    for kind in ("weight", "bias"):
        generator[kind] = weights.pop(f"generator.{kind}")
    vocabulary = {"src": TOKENS, "tgt": TOKENS, "data_task": "seq2seq", "decoder_start_token": "<s>"}
    return {
        "model": weights,
        "generator": generator,
        "vocab": vocabulary,
        "opt": argparse.Namespace(**options),
        "optim": {},
    }


@pytest.fixture
def without_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read checkpoints of this file here: a process for each would take two seconds."""

    def read(paths: list[Path], trust_pickle: bool, **_: Any) -> Any:
        loaded = torch.load(paths[0], weights_only=False)
        nested = {**{f"model/{k}": x for k, x in loaded["model"].items()},
                  **{f"generator/{k}": x for k, x in loaded["generator"].items()}}  # fmt: skip
        values = {"vocab": loaded["vocab"], "opt": vars(loaded["opt"])}
        return {name: LazyTensor.of(x) for name, x in nested.items()}, values

    monkeypatch.setattr(opennmt, "read_pickles", read)


VARIANTS: dict[str, dict[str, Any]] = {
    "as usual": {},
    "gated, rms, no biases": {"pos_ffn_activation_fn": "silu", "layer_norm": "rms", "add_ffnbias": False},
    "gated gelu, all biases": {"pos_ffn_activation_fn": "gated-gelu", "add_qkvbias": True, "norm_eps": 1e-5},
    "sines before cosines": {"position_encoding_type": "SinusoidalConcat", "pos_ffn_activation_fn": "gelu"},
    "all tables one": {"share_embeddings": True, "share_decoder_embeddings": True},
    "target and output one": {"share_decoder_embeddings": True},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_probabilities_are_those_of_the_equations(name: str, tmp_path: Path, without_process: None) -> None:
    checkpoint = random_checkpoint(**VARIANTS[name])
    torch.save(checkpoint, tmp_path / "model.pt")
    import_model(f"opennmt:{tmp_path / 'model.pt'}", tmp_path / "model", TRUST)
    loaded = model_folder.load(tmp_path / "model")
    source, target = ["a", "d", "c"], ["b", "b", "a", "d"]
    ours = [1, *loaded.codec.target.encode(" ".join(target))]
    with torch.inference_mode():
        ids = loaded.codec.source.encode(" ".join(source))
        memory = loaded.model.encode(torch.tensor([ids]), torch.tensor([len(ids)]))
        log_p = torch.log_softmax(loaded.model.logits(loaded.model.decode(torch.tensor([ours]), memory).o), -1)[0]
    weights = {**checkpoint["model"], **{f"generator.{k}": x for k, x in checkpoint["generator"].items()}}
    of = TOKENS.index
    options = vars(checkpoint["opt"])
    expected = their_log_probs(weights, options, [of(x) for x in source], [of(x) for x in ["<s>", *target]])
    order = [of(x) for x in ("<blank>", "<s>", "</s>", "<unk>", "a", "b", "c", "d")]
    torch.testing.assert_close(log_p, expected[:, order], atol=1e-4, rtol=1e-4)


# -- refusals ----------------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "an RNN": (lambda c: setattr(c["opt"], "encoder_type", "rnn"), "encoder_type is 'rnn'"),
    "a copy": (lambda c: setattr(c["opt"], "copy_attn", True), "copy_attn is True"),
    "relative": (lambda c: setattr(c["opt"], "max_relative_positions", -1), "max_relative_positions is -1"),
    "an activation": (lambda c: setattr(c["opt"], "pos_ffn_activation_fn", "mish"), "pos_ffn_activation_fn is 'mish'"),
    "lora": (lambda c: setattr(c["opt"], "lora_layers", ["w_1"]), "lora_layers"),
    "more layers": (lambda c: setattr(c["opt"], "enc_layers", 3), "has no weight 'encoder.transformer.1"),
    "fewer layers": (lambda c: setattr(c["opt"], "dec_layers", 1), "which no option explains"),
    "no layers": (lambda c: setattr(c["opt"], "dec_layers", None), "must have a positive number"),
    "odd heads": (lambda c: setattr(c["opt"], "heads", 3), "heads"),
    "no width": (lambda c: setattr(c["opt"], "tgt_word_vec_size", None), "width"),
    "a vocabulary of numbers": (lambda c: c["vocab"].update(src=[1, 2]), "is no list of tokens"),
    "fewer tokens": (lambda c: c["vocab"].update(src=TOKENS[:-1]), "do not fit its vocabularies"),
    "no start": (lambda c: c["vocab"].update(decoder_start_token="<go>"), "has no <go>"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_imported_is_refused_in_one_sentence(name: str, tmp_path: Path, without_process: None) -> None:
    change, reason = BAD[name]
    checkpoint = random_checkpoint()
    checkpoint["vocab"] = dict(checkpoint["vocab"])
    change(checkpoint)
    torch.save(checkpoint, tmp_path / "model.pt")
    with pytest.raises(UserError) as error:
        import_model(f"opennmt:{tmp_path / 'model.pt'}", tmp_path / "out", TRUST)
    assert reason in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_a_checkpoint_needs_trust(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--trust-pickle"):
        import_model(f"opennmt:{FIXTURE / 'model.pt'}", tmp_path / "out")


@pytest.mark.long
def test_a_pickle_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    with pytest.raises(UserError, match="is it a checkpoint of OpenNMT-py 3"):
        import_model(f"opennmt:{tmp_path / 'model.pt'}", tmp_path / "out", TRUST)
