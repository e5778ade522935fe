"""Greedy search by CTranslate2 on a CPU, with the weights of a Transformer converted in memory.

    model ─its weights under CTranslate2's names→ a temporary folder → Translator; the folder is then removed
    sources ─sorted by length, cut into batches→ translate, `workers` batches at a time → results in the input's order

Requests for which its results would differ from ours have a blocker, and other engines decode them:

    beam            it stops as soon as k hypotheses have finished, whatever active ones could still reach, and returns
                    no log p of single tokens. (The length that it divides by counts </s>, as ours does.)
    minimum length  it forbids </s> before the softmax, which renormalizes the rest; our log p are the model's own.
                    (Scoring its output once more made it slower than our own engine from 16 sentences on.)
    positions       only those that are added to the embeddings: its relative schemes do not cover both sides

It cannot forbid <pad> and <s> without renormalizing, so a sentence for which it generates one (a trained model never
does) is decoded again by the reference; so is a source without any token but </s>, for which it generates nothing.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.core.errors import MissingExtra
from dragoman.core.types import BOS, EOS, PAD, SPECIALS, Hypothesis
from dragoman.engines.cpu.transformer_step import encoder_blocker, transformer_blocker
from dragoman.engines.length_batches import CPU_BATCH_TOKENS, batch_by_length
from dragoman.engines.reference import constraints_blocker, decode_with_reference
from dragoman.nn.blocks import TransformerStack
from dragoman.nn.layers import LayerNorm, NormLayer, RMSNorm
from dragoman.nn.positions import acts_in_attention, is_additive
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import Search, SearchConstraints
from dragoman.search.greedy import Greedy

BATCH_SIZE = 64  # sentences in a batch
POLL_SECONDS = 0.0005  # between two checks whether a batch is done
MAX_POSITIONS = 1024  # positions that are written out for a scheme without a maximum
ACTIVATIONS = {F.relu: "RELU", F.gelu: "GELU", F.silu: "SWISH"}  # and a gelu with options is GELUTanh


class CTranslate2Engine:
    """Greedy search by CTranslate2."""

    name = "ctranslate2"

    def __init__(self, model: Seq2Seq, precision: str, workers: int = 1) -> None:
        """`workers`: batches that are decoded at the same time, by a thread each. No blocker may hold."""
        if machine_blocker() is not None:
            raise MissingExtra("ctranslate2", "ctranslate2", "decoding by CTranslate2")
        import ctranslate2

        self.model, self.token_names = model, token_names(model.frontend.table.num_embeddings)
        with tempfile.TemporaryDirectory() as folder:
            spec = build_spec(model)
            spec.validate()
            spec.optimize(quantization="int8" if precision == "int8" else None)
            spec.save(folder)
            self.translator = ctranslate2.Translator(
                folder, compute_type=precision, inter_threads=workers, intra_threads=1
            )

    def __call__(
        self, sources: Sequence[Sequence[int]], search: Search, limits: SearchConstraints
    ) -> list[list[Hypothesis]]:
        """One hypothesis for every source, in their order, by greedy search."""
        max_lengths = limits.max_lengths.tolist()
        outputs = [TokenCollector(max_length) for max_length in max_lengths]
        pending = []
        for rows in batch_by_length([*map(len, sources)], CPU_BATCH_TOKENS, BATCH_SIZE):
            pending += self.translator.translate_batch(
                [[self.token_names[i] for i in sources[row]] for row in rows],
                beam_size=1,
                max_input_length=0,
                max_decoding_length=max(max_lengths[row] for row in rows) + 1,  # to see whether </s> comes there
                min_decoding_length=0,
                return_scores=True,
                asynchronous=True,
                callback=token_callback([outputs[row] for row in rows]),
            )
        wait_for_results(pending, outputs)
        results: list[list[Hypothesis]] = []
        for row, output in enumerate(outputs):
            if output.tokens and not {PAD, BOS}.intersection(output.tokens):
                results.append([output.hypothesis()])
                continue
            only = SearchConstraints(limits.max_lengths[row : row + 1].cpu())
            with torch.inference_mode():
                results += decode_with_reference(self.model, [sources[row]], search, only)
        return results


class TokenCollector:
    """Collects the tokens of one sentence as they are generated."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.tokens: list[int] = []
        self.log_probs: list[float] = []

    def append(self, step: Any) -> bool:
        """Add a token and its log p; returns true once there is one more than the maximum length, to stop."""
        self.tokens.append(step.token_id)
        self.log_probs.append(step.log_prob)
        return len(self.tokens) > self.max_length

    def hypothesis(self) -> Hypothesis:
        """The tokens before </s>, or up to the maximum length, with their log p, score and finish reason."""
        has_eos = self.tokens[-1] == EOS
        n = len(self.tokens) - 1 if has_eos else self.max_length
        log_probs = self.log_probs[: n + has_eos]
        return Hypothesis(self.tokens[:n], log_probs, sum(log_probs), "eos" if has_eos else "length")


def wait_for_results(pending: Sequence[Any], outputs: Sequence[TokenCollector]) -> None:
    """Wait until all batches are done, open to signals, unlike CTranslate2's own waiting; an error stops them all."""
    try:
        for result in pending:
            while not result.done():
                time.sleep(POLL_SECONDS)
            result.result()  # raises what went wrong
    except BaseException:
        for output in outputs:
            output.max_length = -1  # stop at the next token
        raise


def token_callback(outputs: Sequence[TokenCollector]) -> Callable[[Any], bool]:
    """CTranslate2's callback for each generated token of a batch (batch_id, token_id, log_prob); true stops it."""
    return lambda step: outputs[step.batch_id].append(step)


# -- our weights under its names ---------------------------------------------------------------------------------------


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
    sizes = model.frontend.table.num_embeddings, model.embedding.table.num_embeddings
    source_names, target_names = vocabularies or (token_names(sizes[0]), token_names(sizes[1]))
    spec.register_source_vocabulary(source_names)
    spec.register_target_vocabulary(target_names)
    spec.config.layer_norm_epsilon = model.encoder.stack.blocks[0].mixer_norm.eps
    return spec


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


def set_norm(spec: Any, norm: NormLayer) -> None:
    """Copy gain and, of a layer norm, bias into a norm specification."""
    assert isinstance(norm, (LayerNorm, RMSNorm))
    spec.gamma = to_numpy(norm.weight)
    if isinstance(norm, LayerNorm):
        spec.beta = to_numpy(norm.bias)


def to_numpy(x: Tensor) -> np.ndarray:
    """A float32 copy of a weight: CTranslate2 quantizes in place."""
    return x.detach().float().cpu().numpy().copy()


def token_names(size: int) -> list[str]:
    """CTranslate2's name of each token id: the special tokens' own names, else the number."""
    return [*SPECIALS, *(str(i) for i in range(len(SPECIALS), size))]


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


def search_blocker(model: Seq2Seq, search: Search, constraints: SearchConstraints) -> str | None:
    """Why CTranslate2 does not decode a request as we do; None: it does."""
    if type(search) is not Greedy:
        return "it runs greedy search as we do, and no other"
    if (blocker := constraints_blocker(constraints)) is not None:
        return blocker
    if torch.as_tensor(constraints.min_lengths).any():
        return "a minimum length would renormalize its probabilities"
    positions = min(max_positions(model.encoder.stack), max_positions(model.decoder.stack))
    if len(constraints.max_lengths) and int(constraints.max_lengths.max()) >= positions:
        return f"it has {positions} positions, and outputs may be longer"
    return None


def machine_blocker() -> str | None:
    """Why this machine does not have CTranslate2; None: it has."""
    return None if importlib.util.find_spec("ctranslate2") is not None else "ctranslate2 is not installed"
