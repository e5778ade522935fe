"""CTranslate2 as an engine: the same Transformer, converted in memory, for greedy search on a CPU.

    model ─its weights under CTranslate2's names→ a temporary folder → Translator; the folder is removed again
    sources ─sorted by length, cut into batches→ translate, `workers` batches at a time → results in the order given

What it would do otherwise than ours is refused, and the other paths serve it:

    beam          it stops as soon as k hypotheses have finished, whatever the living ones might still reach, and
                  says no log p of single tokens. (The length it divides by counts </s>, as ours does)
    shortest > 0  it forbids </s> before the softmax, so that the rest is renormalized; ours are the model's own log p.
                  (Its logits come after that, too. Scoring what it said once more is exact, but made it slower than
                  ours from 16 sentences on: 340 sentences/s against 490 in int8 for 4 + 4 layers of 128, 64 at a time)
    positions     only those added to the vectors: its relative schemes are not for both an encoder and a decoder

<pad> and <s> may not be results. It cannot forbid them without renormalizing, so a sentence for which it says one is
given to the plain path (a trained model never says them).
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
from dragoman.engines.length_batches import ON_CPU, batches, padded
from dragoman.nn.decoders.transformer import TransformerDecoder
from dragoman.nn.encoders.transformer import TransformerEncoder
from dragoman.nn.frontends.tokens import Tokens
from dragoman.nn.layers import LayerNorm, RMSNorm
from dragoman.nn.positions import acts_inside, only_adds
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.nn.token_mixers import SelfAttention
from dragoman.search import Limits, Search
from dragoman.search.greedy import Greedy

BATCH = 64  # sentences at a time
POLL = 0.0005  # seconds between two looks whether all is said
REACH = 1024  # places that positions without an end are written out for
ACTIVATIONS = {F.relu: "RELU", F.gelu: "GELU", F.silu: "SWISH"}  # and a gelu with options is GELUTanh


class CT2Engine:
    """Greedy search by CTranslate2."""

    def __init__(self, model: Seq2Seq, precision: str, workers: int = 1) -> None:
        import ctranslate2

        self.model, self.words = model, words(model.frontend.table.num_embeddings)
        self.reach = min(reach(model.encoder.stack), reach(model.decoder.stack))
        with tempfile.TemporaryDirectory() as folder:
            spec = converted(model)
            spec.validate()
            spec.optimize(quantization="int8" if precision == "int8" else None)
            spec.save(folder)
            self.translator = ctranslate2.Translator(
                folder, compute_type=precision, inter_threads=workers, intra_threads=1
            )

    def serves(self, search: Search, limits: Limits) -> bool:
        """Greedy search without rules, as far as the positions were written out."""
        plain = type(search) is Greedy and not limits.rules and limits.traces is None and limits.tell is None
        return plain and not torch.as_tensor(limits.shortest).any() and int(limits.longest.max()) < self.reach

    def __call__(self, sources: Sequence[Sequence[int]], search: Search, limits: Limits) -> list[list[Hypothesis]]:
        longest = limits.longest.tolist()
        every = [Said(limit) for limit in longest]
        waiting = []
        for rows in batches([*map(len, sources)], ON_CPU, BATCH):
            waiting += self.translator.translate_batch(
                [[self.words[i] for i in sources[row]] for row in rows],
                beam_size=1,
                max_input_length=0,
                max_decoding_length=max(longest[row] for row in rows) + 1,  # to see whether it would end there
                min_decoding_length=0,
                return_scores=True,
                asynchronous=True,
                callback=listener([every[row] for row in rows]),
            )
        wait(waiting, every)
        return [
            self.again(source, search, limit) if said.forbidden else [said.hypothesis()]
            for said, source, limit in zip(every, sources, longest, strict=True)
        ]

    @torch.inference_mode()
    def again(self, source: Sequence[int], search: Search, limit: int) -> list[Hypothesis]:
        """One sentence on the plain path."""
        memory = self.model.encode(*padded([source]))
        limits = Limits(torch.tensor([limit]))
        return search(self.model.step, lambda capacity: self.model.start(memory, capacity), limits)[0]


class Said:
    """What was said of one sentence, token by token."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.tokens: list[int] = []
        self.log_probs: list[float] = []

    def hear(self, step: Any) -> bool:
        """Note a token; True: that is enough."""
        self.tokens.append(step.token_id)
        self.log_probs.append(step.log_prob)
        return len(self.tokens) > self.limit

    @property
    def forbidden(self) -> bool:
        return PAD in self.tokens or BOS in self.tokens

    def hypothesis(self) -> Hypothesis:
        ended = self.tokens[-1] == EOS
        n = len(self.tokens) - 1 if ended else self.limit
        kept = self.log_probs[: n + ended]
        return Hypothesis(self.tokens[:n], kept, sum(kept), "eos" if ended else "length")


def wait(results: Sequence[Any], every: Sequence[Said]) -> None:
    """Until all is said. A signal is let in, as CTranslate2's own waiting would not; what it raises stops them all."""
    try:
        for result in results:
            while not result.done():
                time.sleep(POLL)
            result.result()  # raises what went wrong
    except BaseException:
        for said in every:
            said.limit = -1  # enough, at the next token
        raise


def listener(every: Sequence[Said]) -> Callable[[Any], bool]:
    """Hand what is said of the sentences of a batch to each."""
    return lambda step: every[step.batch_id].hear(step)


# -- our weights under its names ---------------------------------------------------------------------------------------


def converted(model: Seq2Seq) -> Any:
    """CTranslate2's description of the model; tokens are called by their numbers."""
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

    encoder = TransformerEncoderSpec(**shape(model.encoder.stack))
    decoder = TransformerDecoderSpec(**shape(model.decoder.stack))
    spec = TransformerSpec(encoder, decoder)
    for part, stack, table in (
        (encoder, model.encoder.stack, model.frontend),
        (decoder, model.decoder.stack, model.embedding),
    ):
        fill(part, stack)
        part.scale_embeddings = table.factor != 1.0
        (part.embeddings[0] if part is encoder else part.embeddings).weight = numbers(table.table.weight)
    put(decoder.projection, model.output)
    spec.register_source_vocabulary(words(model.frontend.table.num_embeddings))
    spec.register_target_vocabulary(words(model.embedding.table.num_embeddings))
    spec.config.layer_norm_epsilon = model.encoder.stack.blocks[0].mixer_norm.eps
    return spec


def shape(stack: Any) -> dict[str, Any]:
    """The options of one side."""
    from ctranslate2.specs.common_spec import Activation

    block = stack.blocks[0]
    return {
        "num_layers": len(stack.blocks),
        "num_heads": block.mixer.heads,
        "pre_norm": block.pre,
        "activation": Activation[ACTIVATIONS.get(block.feedforward.f, "GELUTanh")],
        "ffn_glu": block.feedforward.W3 is not None,
        "rms_norm": isinstance(block.mixer_norm, RMSNorm),
        "layernorm_embedding": stack.embedding_norm is not None,
    }


def fill(part: Any, stack: Any) -> None:
    """The blocks of one side, and what stands around them."""
    d = stack.blocks[0].mixer.Wo.out_features
    t = torch.arange(reach(stack))[None]
    part.position_encodings.encodings = numbers(stack.inside(0)(torch.zeros(1, t.shape[1], d), t)[0])
    for layer, block in zip(part.layer, stack.blocks, strict=True):
        put(layer.self_attention.linear[0], block.mixer.Wq, block.mixer.Wk, block.mixer.Wv)
        put(layer.self_attention.linear[1], block.mixer.Wo)
        put_norm(layer.self_attention.layer_norm, block.mixer_norm)
        cross = block.cross_attention
        if cross is not None:
            put(layer.attention.linear[0], cross.Wq)
            put(layer.attention.linear[1], cross.Wk, cross.Wv)
            put(layer.attention.linear[2], cross.Wo)
            put_norm(layer.attention.layer_norm, block.cross_norm)
        put(layer.ffn.linear_0, block.feedforward.W1)
        put(layer.ffn.linear_1, block.feedforward.W2)
        if block.feedforward.W3 is not None:
            put(layer.ffn.linear_0_noact, block.feedforward.W3)
        put_norm(layer.ffn.layer_norm, block.feedforward_norm)
    if stack.norm is not None:
        put_norm(part.layer_norm, stack.norm)
    if stack.embedding_norm is not None:
        put_norm(part.layernorm_embedding, stack.embedding_norm)


def put(spec: Any, *linears: nn.Linear) -> None:
    """Projections of the same vectors, side by side."""
    spec.weight = np.concatenate([numbers(linear.weight) for linear in linears])
    if linears[0].bias is not None:
        spec.bias = np.concatenate([numbers(linear.bias) for linear in linears])


def put_norm(spec: Any, norm: Any) -> None:
    spec.gamma = numbers(norm.weight)
    if isinstance(norm, LayerNorm):
        spec.beta = numbers(norm.bias)


def numbers(x: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    return x.detach().float().cpu().numpy().copy()  # CTranslate2 quantizes in place


def words(size: int) -> list[str]:
    return [*SPECIALS, *(str(i) for i in range(len(SPECIALS), size))]


# -- which models ------------------------------------------------------------------------------------------------------


def reach(stack: Any) -> int:
    """The places there are positions for."""
    return int(stack.length or REACH)


def fits(model: Any) -> bool:
    """Whether CTranslate2 computes this model as we do."""
    return (
        isinstance(model, Seq2Seq)
        and isinstance(model.frontend, Tokens)
        and type(model.encoder) is TransformerEncoder
        and type(model.decoder) is TransformerDecoder
        and model.decoder.source == "attention"
        and model.pointer is None
        and all(side_fits(side.stack) for side in (model.encoder, model.decoder))
        and len({norm.eps for norm in model.modules() if isinstance(norm, (LayerNorm, RMSNorm))}) == 1
    )


def side_fits(stack: Any) -> bool:
    block = stack.blocks[0]
    known = only_adds(stack.inside(0)) and not acts_inside(stack.inside(0))
    normed = type(block.mixer_norm) in (LayerNorm, RMSNorm)
    if not known or not normed or type(block.mixer) is not SelfAttention or not isinstance(stack.inward, nn.Identity):
        return False
    return all(
        a.fused
        and a.key_heads == a.heads
        and a.Wq.out_features == a.Wv.out_features == a.Wo.out_features
        and a.scale == (a.Wq.out_features // a.heads) ** -0.5
        for a in (block.mixer, block.cross_attention)
        if a is not None
    )


def open(model: Any, precision: str, workers: int = 1) -> CT2Engine | None:
    """The engine for a model; None where CTranslate2 does not compute it as we do."""
    if precision not in ("float32", "int8") or not fits(model):
        return None
    if not installed():
        raise MissingExtra("ctranslate2", "ctranslate2", "decoding by CTranslate2")
    return CT2Engine(model, precision, workers)


def installed() -> bool:
    return importlib.util.find_spec("ctranslate2") is not None
