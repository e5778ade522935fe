"""A Transformer's greedy and beam search on a CPU by CTranslate2, with the weights converted in memory.

    model ─its weights under CTranslate2's names→ files → ConvertedModel; the folder they were in is removed at once
    sources → ConvertedModel (converted_model.py says how it is called) → n-best lists

Requests that it would answer otherwise have a blocker, and other engines decode them:

    early_stopping  it stops once so many hypotheses have finished, whatever active ones could still reach
    length rule     log p / n^α
    minimum length  it forbids </s> before the softmax, which renormalizes the rest; our log p are the model's own
    positions       only those that are added to the embeddings: its relative schemes do not cover both sides

It leaves to another function a sentence of whose results one is longer than it may be, an empty source, and what is
longer than the positions that are written out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.core.types import BOS, PAD, Hypothesis
from dragoman.engines.cpu.converted_model import ConvertedModel, ConvertedSearch, token_names
from dragoman.engines.cpu.transformer_step import encoder_blocker, transformer_blocker
from dragoman.engines.reference import constraints_blocker
from dragoman.nn.blocks import TransformerStack
from dragoman.nn.layers import LayerNorm, NormLayer, RMSNorm
from dragoman.nn.positions import acts_in_attention, is_additive
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import Search, SearchConstraints
from dragoman.search.beam import Beam
from dragoman.search.greedy import Greedy
from dragoman.search.scoring import LengthRule, MeanLengthRule, NoLengthRule, PowerLengthRule

MAX_POSITIONS = 1024  # positions that are written out for a scheme without a maximum
FORBIDDEN = -6e4  # a bias that leaves a token no probability, within the range of float16
# Sources, search and constraints, of which only lengths count → n-best lists.
Decode = Callable[[Sequence[Sequence[int]], Search, SearchConstraints], Sequence[list[Hypothesis]]]
ACTIVATIONS = {F.relu: "RELU", F.gelu: "GELU", F.silu: "SWISH"}  # and a gelu with options is GELUTanh


class CTranslate2Engine:
    """Greedy and beam search by CTranslate2; another function decodes the sentences that it does not serve."""

    name = "ctranslate2"

    def __init__(
        self,
        model: Seq2Seq,
        precision: str,
        decode_rest: Decode,
        workers: int = 1,
        files: dict[str, bytes] | None = None,
    ) -> None:
        """`decode_rest` decodes the sentences that CTranslate2 does not. No blocker may hold.

        `workers`: batches that are decoded at the same time, by a thread each. `files`: what `convert_model` made of
        the model, if it was called before.
        """
        self.decode_rest = decode_rest
        sizes = model.frontend.table.num_embeddings, model.embedding.table.num_embeddings
        files = files or convert_model(model, precision)
        threads = torch.get_num_threads()
        self.converted = ConvertedModel("", precision, sizes, position_limit(model), workers, files)
        torch.set_num_threads(threads)  # CTranslate2 sets its own number for all of OpenMP

    def __call__(
        self, sources: Sequence[Sequence[int]], search: Search, limits: SearchConstraints
    ) -> list[list[Hypothesis]]:
        """The n-best list of every source, in their order; hypotheses have log p of the whole, not of tokens."""
        converted_search = convert_search(search)
        assert isinstance(converted_search, ConvertedSearch), converted_search
        results = self.converted.decode(sources, limits.max_lengths.tolist(), converted_search)
        rest = [row for row, nbest in enumerate(results) if nbest is None]
        if rest:
            constraints = limits.select_lengths(rest, limits.max_lengths.device)
            again = self.decode_rest([sources[row] for row in rest], search, constraints)
            for row, nbest in zip(rest, again, strict=True):
                results[row] = nbest
        return [nbest or [] for nbest in results]

    def add_token_log_probs(
        self, sources: Sequence[Sequence[int]], nbest_lists: Sequence[Sequence[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """The same hypotheses with log p of their tokens, from one pass over each."""
        missing = [(i, j) for i, nbest in enumerate(nbest_lists) for j, one in enumerate(nbest) if not one.log_probs]
        scores = self.converted.score([(sources[i], nbest_lists[i][j].tokens) for i, j in missing])
        results = [list(nbest) for nbest in nbest_lists]
        for (i, j), log_probs in zip(missing, scores, strict=True):
            one = results[i][j]
            results[i][j] = replace(one, log_probs=log_probs[: len(one.tokens) + (one.finish_reason == "eos")])
        return results


# -- our weights under its names ---------------------------------------------------------------------------------------


def convert_model(model: Seq2Seq, precision: str) -> dict[str, bytes]:
    """The files of a model in CTranslate2's format, by name."""
    with tempfile.TemporaryDirectory() as folder:
        save_spec(build_spec(model), folder, precision)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def build_spec(model: Seq2Seq, vocabularies: tuple[list[str], list[str]] | None = None) -> Any:
    """The model with all its weights as CTranslate2's specification.

    `vocabularies` are the names of the source's and the target's tokens; without them tokens are named by their ids.
    """
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

    encoder = TransformerEncoderSpec(**stack_options(model.encoder.stack))
    decoder = TransformerDecoderSpec(**stack_options(model.decoder.stack))
    spec = TransformerSpec(encoder, decoder)
    for side, stack, embedding in (
        (encoder, model.encoder.stack, model.frontend),
        (decoder, model.decoder.stack, model.embedding),
    ):
        fill_stack(side, stack)
        side.scale_embeddings = embedding.factor != 1.0
        (side.embeddings[0] if side is encoder else side.embeddings).weight = to_numpy(embedding.table.weight)
    set_linear(decoder.projection, model.output)
    decoder.projection.bias = forbid_specials(model.output.bias, model.output.out_features)
    sizes = model.frontend.table.num_embeddings, model.embedding.table.num_embeddings
    source_names, target_names = vocabularies or (token_names(sizes[0]), token_names(sizes[1]))
    spec.register_source_vocabulary(source_names)
    spec.register_target_vocabulary(target_names)
    spec.config.layer_norm_epsilon = model.encoder.stack.blocks[0].mixer_norm.eps
    return spec


def save_spec(spec: Any, folder: str, precision: str) -> None:
    """Write a specification as CTranslate2's model, its weights rounded to the precision."""
    spec.validate()
    spec.optimize(quantization=None if precision == "float32" else precision)
    spec.save(folder)


def stack_options(stack: TransformerStack) -> dict[str, Any]:
    """The options of CTranslate2's encoder or decoder specification."""
    from ctranslate2.specs.common_spec import Activation

    block, _ = next(stack.layers())
    return {
        "num_layers": len(stack.blocks),
        "num_heads": block.mixer.heads,
        "pre_norm": block.is_pre_norm,
        "activation": Activation[ACTIVATIONS.get(block.feedforward.f, "GELUTanh")],
        "ffn_glu": block.feedforward.W3 is not None,
        "rms_norm": isinstance(block.mixer_norm, RMSNorm),
        "layernorm_embedding": stack.embedding_norm is not None,
    }


def fill_stack(side: Any, stack: TransformerStack) -> None:
    """Copy the position table and the weights of a stack into CTranslate2's encoder or decoder specification."""
    block, position = next(stack.layers())
    t = torch.arange(max_positions(stack))[None]
    side.position_encodings.encodings = to_numpy(
        position(torch.zeros(1, t.shape[1], block.mixer.Wo.out_features), t)[0]
    )
    for layer, (block, _) in zip(side.layer, stack.layers(), strict=True):
        set_linear(layer.self_attention.linear[0], block.mixer.Wq, block.mixer.Wk, block.mixer.Wv)
        set_linear(layer.self_attention.linear[1], block.mixer.Wo)
        set_norm(layer.self_attention.layer_norm, block.mixer_norm)
        cross = block.cross_attention
        if cross is not None and block.cross_norm is not None:
            set_linear(layer.attention.linear[0], cross.Wq)
            set_linear(layer.attention.linear[1], cross.Wk, cross.Wv)
            set_linear(layer.attention.linear[2], cross.Wo)
            set_norm(layer.attention.layer_norm, block.cross_norm)
        set_linear(layer.ffn.linear_0, block.feedforward.W1)
        set_linear(layer.ffn.linear_1, block.feedforward.W2)
        if block.feedforward.W3 is not None:
            set_linear(layer.ffn.linear_0_noact, block.feedforward.W3)
        set_norm(layer.ffn.layer_norm, block.feedforward_norm)
    if stack.norm is not None:
        set_norm(side.layer_norm, stack.norm)
    if stack.embedding_norm is not None:
        set_norm(side.layernorm_embedding, stack.embedding_norm)


def set_linear(spec: Any, *linears: nn.Linear) -> None:
    """Copy projections of the same vector, concatenated, into one linear specification, biases included."""
    spec.weight = np.concatenate([to_numpy(linear.weight) for linear in linears])
    if linears[0].bias is not None:
        spec.bias = np.concatenate([to_numpy(linear.bias) for linear in linears])


def forbid_specials(bias: Tensor | None, size: int) -> np.ndarray:
    """The output bias, zeros without one, with the tokens lowered that are never generated."""
    lowered = np.zeros(size, np.float32) if bias is None else to_numpy(bias)
    lowered[[PAD, BOS]] = FORBIDDEN
    return lowered


def set_norm(spec: Any, norm: NormLayer) -> None:
    """Copy gain and, of a layer norm, bias into a norm specification."""
    assert isinstance(norm, (LayerNorm, RMSNorm))
    spec.gamma = to_numpy(norm.weight)
    if isinstance(norm, LayerNorm):
        spec.beta = to_numpy(norm.bias)


def to_numpy(x: Tensor) -> np.ndarray:
    """A float32 copy of a weight: CTranslate2 quantizes in place."""
    return x.detach().float().cpu().numpy().copy()


# -- which models and requests -----------------------------------------------------------------------------------------


def max_positions(stack: TransformerStack) -> int:
    """How many positions of a stack are written out: its own maximum, else 1024."""
    return int(stack.max_positions or MAX_POSITIONS)


def model_blocker(model: Seq2Seq, precision: str) -> str | None:
    """Why CTranslate2 does not compute a model as we do; None: it does."""
    if precision not in ("float32", "int8"):
        return f"it computes in float32 or int8, not in {precision}"
    if (blocker := transformer_blocker(model) or encoder_blocker(model)) is not None:
        return blocker
    if len({norm.eps for norm in model.modules() if isinstance(norm, (LayerNorm, RMSNorm))}) != 1:
        return "its norms have one eps, and the model's have several"
    return _stack_blocker(model.encoder.stack) or _stack_blocker(model.decoder.stack)


def _stack_blocker(stack: TransformerStack) -> str | None:
    block, position = next(stack.layers())
    if not is_additive(position) or acts_in_attention(position):
        return f"its positions are added to the embeddings, unlike {type(position).__name__}"
    if type(block.mixer_norm) not in (LayerNorm, RMSNorm):
        return f"it computes layer and RMS norms, not {type(block.mixer_norm).__name__}"
    if not isinstance(stack.input_proj, nn.Identity):
        return "it has no projection between embedding and first layer (width)"
    for a in (block.mixer, block.cross_attention):
        if a is not None and not (
            a.key_heads == a.heads
            and a.Wq.out_features == a.Wv.out_features == a.Wo.out_features
            and a.scale == (a.Wq.out_features // a.heads) ** -0.5
        ):
            return "its attention is scaled dot product with as many key heads as heads, all of one width"
    return None


def position_limit(model: Seq2Seq) -> int:
    """The longest source and output that a converted model decodes."""
    return min(max_positions(model.encoder.stack), max_positions(model.decoder.stack))


def search_blocker(model: Seq2Seq, search: Search, constraints: SearchConstraints) -> str | None:
    """Why CTranslate2 does not decode a request as we do; None: it does."""
    converted = convert_search(search)
    blocker = converted if isinstance(converted, str) else constraints_blocker(constraints)
    if blocker is not None:
        return blocker
    if 2 * search.num_hypotheses > model.output.out_features:
        return "its beam ranks twice as many tokens as it keeps hypotheses, and the vocabulary is smaller"
    if torch.as_tensor(constraints.min_lengths).any():
        return "a minimum length would renormalize its probabilities"
    return None


def convert_search(search: Search) -> ConvertedSearch | str:
    """The search as CTranslate2 computes it, or why it computes another."""
    if type(search) is Greedy:
        return ConvertedSearch()
    if type(search) is not Beam:
        return f"it runs greedy and beam search, not {type(search).__name__}"
    if search.finished_policy == "shrink":
        return "its beam keeps its size (finished_policy: collect)"
    if search.early_stopping is not True:
        return "its beam stops once so many hypotheses have finished (early_stopping: true)"
    if search.needs_attention:
        return "its coverage penalty is another one"
    penalty = length_penalty(search.length_rule)
    if penalty is None:
        return "its length rules are none, mean and power"
    if search.num_hypotheses == 1:
        return "a beam of 1 is greedy search to it"
    return ConvertedSearch(search.num_hypotheses, penalty, search.max_finished / search.num_hypotheses)


def length_penalty(rule: LengthRule) -> float | None:
    """α of a length rule log p / n^α; None: it is another rule."""
    if type(rule) is NoLengthRule:
        return 0.0
    if type(rule) is MeanLengthRule:
        return 1.0
    if type(rule) is PowerLengthRule and not rule.uncounted and rule.alpha >= 0:
        return rule.alpha
    return None
