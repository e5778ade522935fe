"""A folder that Hugging Face's transformers loads, in the class that computes what the model computes.

    class                             norm_order   positions                embedding_norm   norm
    MarianMTModel                     post         sinusoidal               false            layer
    BartForConditionalGeneration      post         learned, sinusoidal, none   true          layer
    PegasusForConditionalGeneration   pre          sinusoidal, learned, none   false         layer
    MBartForConditionalGeneration     pre          learned, sinusoidal, none   true          layer
    T5ForConditionalGeneration        pre          t5                       false            rms, no biases

Marian and Pegasus lay sinusoids out as two halves. Where ours are interleaved, all that reads or writes the width D of
a stack is permuted, which changes nothing but the order of sums. Other tables are written out as weights.

transformers is not needed to write the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.checkpoint.model_folder import LoadedModel
from dragoman.core.errors import UserError
from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, PAD, SPECIALS, UNK
from dragoman.engines.cpu.transformer_step import encoder_blocker, transformer_blocker
from dragoman.interop.exporters.contents import (
    MAX_POSITIONS,
    TOLERANCES,
    Exported,
    ExportOptions,
    check_source_template,
    is_sentencepiece,
    normalization_code,
    renaming_limitation,
    rounding_limitation,
    tag_note,
    unique_names,
    write_json,
    write_tokenizers,
)
from dragoman.nn.blocks import TransformerBlock, TransformerStack
from dragoman.nn.layers import LayerNorm, RMSNorm
from dragoman.nn.positions import (
    LearnedPositions,
    NoPositions,
    SinusoidalPositions,
    T5Positions,
    acts_in_attention,
    is_additive,
)
from dragoman.text.codec import Codec

Weights = dict[str, Tensor]
BART_EPS = 1e-5  # of the layer norms of Marian, BART, Pegasus and mBART, which have no option for it
BART_OFFSET = 2  # rows of the position tables of BART and mBART before position 0
GENERATED = 256  # tokens, by default; transformers' own default is 20
MODEL_TYPES = {
    "MarianMTModel": "marian",
    "BartForConditionalGeneration": "bart",
    "PegasusForConditionalGeneration": "pegasus",
    "MBartForConditionalGeneration": "mbart",
    "T5ForConditionalGeneration": "t5",
}


class Unfit(Exception):
    """Why no class of transformers computes a model, with the option in question."""


def export_hf(loaded: LoadedModel, folder: Path, options: ExportOptions) -> Exported:
    """Write a model for transformers."""
    codec = loaded.codec
    if not check_source_template(loaded, "hf"):
        raise UserError(
            f"{loaded.path}: cannot be exported as hf: its source template lacks {SPECIALS[EOS]} at the end"
        )
    if options.quantization == "int8":
        raise UserError("--quantization int8 is for ct2 and argos; for hf use float32 or float16")
    try:
        name, config, weights, positions = convert(loaded)
    except Unfit as reason:
        raise UserError(f"{loaded.path}: cannot be exported as hf: {reason}") from None
    limitations = [] if positions is None else [f"sources and outputs have at most {positions} tokens"]
    positions = positions or MAX_POSITIONS
    if name == "PegasusForConditionalGeneration" and type(loaded.model.encoder.stack.positions[0]) is LearnedPositions:
        limitations.append("further training in transformers does not change the learned positions")
    if options.quantization == "float16":
        weights = {key: x.half() if x.is_floating_point() else x for key, x in weights.items()}
    half = options.quantization == "float16"
    config |= {
        "architectures": [name],
        "model_type": MODEL_TYPES[name],
        "is_encoder_decoder": True,
        "dtype": "float16" if half else "float32",
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
    }
    write_json(folder / "config.json", config)
    generation = {
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "suppress_tokens": [PAD, BOS],
        "num_beams": 1,
        "max_new_tokens": min(GENERATED, positions - 1),
    }
    write_json(folder / "generation_config.json", generation)
    path = folder / "model.safetensors"
    safetensors.torch.save_file({key: x.contiguous() for key, x in weights.items()}, path, {"format": "pt"})
    path.chmod((folder / "config.json").stat().st_mode & 0o777)  # safetensors writes 0600
    write_tokenizers(codec, folder)
    text = write_marian_tokenizer(codec, folder, positions)
    if text:
        limitations.append(
            "the tokenizer reads a text such as </s> as that special token, and >>de<< as a language; ours, as letters"
        )
    else:
        limitations.append(f"the tokenizer '{codec.source.kind}' is only described in tokenization.json: give ids")
    limitations += [*(renaming_limitation(codec) if text else []), *rounding_limitation(options.quantization)]
    readme = README_TEXT if text else README_IDS
    readme = readme.format(
        name=name, normalized=normalization_code(codec), tags=tag_note(codec), ids=[len(codec.source) - 1, EOS]
    )
    tolerance = TOLERANCES[options.quantization]
    return Exported(
        "transformers", readme, "text" if text else "ids", "hf", limitations, positions, tolerance=tolerance
    )


# -- which class -------------------------------------------------------------------------------------------------------


def convert(loaded: LoadedModel) -> tuple[str, dict[str, Any], Weights, int | None]:
    """The class, its config, the weights under its names, and its number of positions (None: no limit)."""
    model = loaded.model
    if (blocker := transformer_blocker(model) or encoder_blocker(model)) is not None:
        raise Unfit(f"transformers has no class for it: {blocker}")
    encoder, decoder = model.encoder.stack, model.decoder.stack
    for side, stack in (("encoder", encoder), ("decoder", decoder)):
        if not isinstance(stack.input_proj, nn.Identity):
            raise Unfit(f"model.{side}.width differs from model.width, and transformers' classes have one width")
        for block, _ in stack.layers():
            check_attention(side, block)
    for option, value in OPTIONS.items():
        ours = value(encoder), value(decoder)
        if ours[0] != ours[1]:
            raise Unfit(f"encoder and decoder differ in {option} ({ours[0]} and {ours[1]}), and there it is one")
    block = encoder.blocks[0]
    assert isinstance(block, TransformerBlock)
    if isinstance(encoder.position_scheme(0), T5Positions):
        return convert_t5(loaded)
    return convert_bart(loaded)


def activation_name(stack: TransformerStack) -> str:
    """Hugging Face's name of an activation."""
    block = stack.blocks[0]
    assert isinstance(block, TransformerBlock)
    f = block.feedforward.f
    names: dict[Any, str] = {F.relu: "relu", F.gelu: "gelu", F.silu: "silu"}
    return names.get(f, "gelu_new")  # a gelu with options is the tanh one


def is_gated(stack: TransformerStack) -> bool:
    block = stack.blocks[0]
    assert isinstance(block, TransformerBlock)
    return block.feedforward.W3 is not None


OPTIONS: dict[str, Callable[[Any], Any]] = {  # of a stack
    "norm": lambda stack: type(stack.blocks[0].mixer_norm).__name__,
    "norm_order": lambda stack: "pre" if stack.blocks[0].is_pre_norm else "post",
    "embedding_norm": lambda stack: stack.embedding_norm is not None,
    "activation": lambda stack: ("gated " if is_gated(stack) else "") + activation_name(stack),
    "position": lambda stack: type(stack.position_scheme(0)).__name__,
}


def check_attention(side: str, block: TransformerBlock) -> None:
    for a in (block.mixer, block.cross_attention):
        if a is None:
            continue
        if a.key_heads != a.heads:
            raise Unfit(f"model.{side}.key_heads: transformers' classes have as many key heads as heads")
        if a.Wq.out_features != a.Wv.out_features:
            raise Unfit(f"model.{side}.key_width and value_width differ, and transformers' classes have one width")
        if not a.supports_fused_kernel or a.scale is None:
            raise Unfit(f"model.{side}.score and normalizer: transformers' classes have dot products and softmax")


def norm_eps(model: nn.Module) -> set[float]:
    return {float(norm.eps or 0.0) for norm in model.modules() if isinstance(norm, (LayerNorm, RMSNorm))}


# -- Marian, BART, Pegasus and mBART, whose layers have the same names -------------------------------------------------


def convert_bart(loaded: LoadedModel) -> tuple[str, dict[str, Any], Weights, int | None]:
    """The weights of a Transformer with layer norms and positions that are added to the embeddings."""
    model = loaded.model
    encoder, decoder = model.encoder.stack, model.decoder.stack
    stacks = {"encoder": encoder, "decoder": decoder}
    block = encoder.blocks[0]
    for side, stack in stacks.items():
        position = stack.position_scheme(0)
        if not is_additive(position) or acts_in_attention(position):
            raise Unfit(f"model.{side}.position: transformers' classes have sinusoidal, learned or t5 positions")
        for each, _ in stack.layers():
            if each.mixer.Wq.out_features != each.mixer.Wo.out_features:
                raise Unfit(f"model.{side}.key_width: it must be the width divided by the heads there")
            for a in (each.mixer, each.cross_attention):
                if a is not None and a.scale == 1.0:
                    raise Unfit(f"model.{side}.score: it must be scaled_dot")
    if not isinstance(block.mixer_norm, LayerNorm):
        raise Unfit("model.encoder.norm: with positions that are added, transformers' classes have norm: layer")
    if is_gated(encoder):
        raise Unfit("model.encoder.activation: without t5 positions, transformers' classes have no gated activation")
    if norm_eps(model) != {BART_EPS}:
        raise Unfit(f"model.encoder.norm.eps: it is {BART_EPS} there")
    sinusoidal = isinstance(encoder.position_scheme(0), SinusoidalPositions)
    is_pre, has_embedding_norm = block.is_pre_norm, encoder.embedding_norm is not None
    name = {
        (False, False): "MarianMTModel",
        (False, True): "BartForConditionalGeneration",
        (True, False): "PegasusForConditionalGeneration",
        (True, True): "MBartForConditionalGeneration",
    }[is_pre, has_embedding_norm]
    if name == "MarianMTModel" and not sinusoidal:
        raise Unfit("model.encoder.position: with norm_order: post and no embedding_norm it is sinusoidal there")
    source_size, target_size = len(loaded.codec.source), len(loaded.codec.target)
    if name != "MarianMTModel" and source_size != target_size:
        raise Unfit(f"tokenizer.joint: false, and {name} has one vocabulary for both sides")
    limits = [stack.max_positions for stack in stacks.values() if stack.max_positions is not None]
    positions = min(limits, default=MAX_POSITIONS)

    orders = {
        side: (width_order(stack) if sinusoidal and not has_embedding_norm else None) for side, stack in stacks.items()
    }
    weights: Weights = {}
    for side, stack in stacks.items():
        order, prefix = orders[side], f"model.{side}"
        for i, (each, _) in enumerate(stack.layers()):
            weights |= bart_block(f"{prefix}.layers.{i}", each, order, orders["encoder"])
        if stack.norm is not None:
            weights |= norm_weights(f"{prefix}.layer_norm", stack.norm, order)
        if stack.embedding_norm is not None:
            weights |= norm_weights(f"{prefix}.layernorm_embedding", stack.embedding_norm, order)
        table = position_table(stack, positions)
        if has_embedding_norm:
            table = F.pad(table, (0, 0, BART_OFFSET, 0))
        weights[f"{prefix}.embed_positions.weight"] = pick(table, order, 1)
    tables, tied, scale = embedding_tables(loaded, orders)
    if not tied and name != "MarianMTModel":  # the others have a shared table even if they do not read it
        tables["shared.weight"] = tables["decoder.embed_tokens.weight"].clone()
    weights |= {f"model.{key}": x for key, x in tables.items() if key != "lm_head.weight"}
    weights |= {key: x for key, x in tables.items() if key == "lm_head.weight"}
    bias = model.output.bias
    weights["final_logits_bias"] = (torch.zeros(target_size) if bias is None else bias.detach().clone())[None]
    config: dict[str, Any] = {
        "vocab_size": source_size,
        "d_model": model.encoder.d,
        "max_position_embeddings": positions,
        "activation_function": activation_name(encoder),
        "scale_embedding": scale,
        "tie_word_embeddings": tied,
    }
    for side, stack in stacks.items():
        each = stack.blocks[0]
        config |= {
            f"{side}_layers": len(stack.blocks),
            f"{side}_attention_heads": each.mixer.heads,
            f"{side}_ffn_dim": each.feedforward.W1.out_features,
        }
    if name == "MarianMTModel":
        config |= {"decoder_vocab_size": target_size, "share_encoder_decoder_embeddings": tied}
        if tied:
            config["vocab_size"] = target_size
    return name, config, weights, positions


def width_order(stack: TransformerStack) -> Tensor | None:
    """The order of the width in which interleaved sinusoids are two halves; None where they are already."""
    position = stack.position_scheme(0)
    assert isinstance(position, SinusoidalPositions)
    if position.layout == "halves":
        return None
    return torch.cat(
        [torch.arange(0, 2 * len(position.frequencies), 2), torch.arange(1, 2 * len(position.frequencies), 2)]
    )


def pick(x: Tensor, order: Tensor | None, dim: int) -> Tensor:
    """A copy of a weight with its width in another order."""
    x = x.detach()
    return x.clone() if order is None else x.index_select(dim, order)


def position_table(stack: TransformerStack, positions: int) -> Tensor:
    """What a scheme adds at each position, (positions, D)."""
    block = stack.blocks[0]
    assert isinstance(block, TransformerBlock)
    scheme = stack.position_scheme(0)
    width = block.mixer.Wo.out_features
    if isinstance(scheme, NoPositions):
        return torch.zeros(positions, width)
    with torch.no_grad():
        table: Tensor = scheme(torch.zeros(1, positions, width), torch.arange(positions)[None])[0]
    return table


def linear_weights(name: str, layer: nn.Linear, reads: Tensor | None, writes: Tensor | None) -> Weights:
    """A projection with the widths that it reads and writes in another order; a missing bias is zeros."""
    bias = torch.zeros(layer.out_features) if layer.bias is None else layer.bias
    return {f"{name}.weight": pick(pick(layer.weight, reads, 1), writes, 0), f"{name}.bias": pick(bias, writes, 0)}


def norm_weights(name: str, norm: Any, order: Tensor | None) -> Weights:
    return {f"{name}.weight": pick(norm.weight, order, 0), f"{name}.bias": pick(norm.bias, order, 0)}


def bart_block(name: str, block: TransformerBlock, order: Tensor | None, memory_order: Tensor | None) -> Weights:
    """A block under the names that Marian, BART, Pegasus and mBART share."""
    weights: Weights = {}
    parts = [("self_attn", block.mixer, order, block.mixer_norm)]
    if block.cross_attention is not None:
        parts.append(("encoder_attn", block.cross_attention, memory_order, block.cross_norm))
    for part, a, reads, norm in parts:
        weights |= linear_weights(f"{name}.{part}.q_proj", a.Wq, order, None)
        weights |= linear_weights(f"{name}.{part}.k_proj", a.Wk, reads, None)
        weights |= linear_weights(f"{name}.{part}.v_proj", a.Wv, reads, None)
        weights |= linear_weights(f"{name}.{part}.out_proj", a.Wo, None, order)
        weights |= norm_weights(f"{name}.{part}_layer_norm", norm, order)
    weights |= linear_weights(f"{name}.fc1", block.feedforward.W1, order, None)
    weights |= linear_weights(f"{name}.fc2", block.feedforward.W2, None, order)
    return weights | norm_weights(f"{name}.final_layer_norm", block.feedforward_norm, order)


def embedding_tables(loaded: LoadedModel, orders: dict[str, Tensor | None]) -> tuple[Weights, bool, bool]:
    """The embeddings and the output layer, whether they are one table, and whether √D scales it.

    Where they are not one, each is written out, with its factor in it.
    """
    model = loaded.model
    source, target, output = model.frontend.table.weight, model.embedding.table.weight, model.output.weight
    factors = model.frontend.factor, model.embedding.factor
    same_order = (orders["encoder"] is None) == (orders["decoder"] is None)
    if source is target is output and factors[0] == factors[1] and same_order:
        return {"shared.weight": pick(source, orders["encoder"], 1)}, True, factors[0] != 1.0
    tables = {
        "encoder.embed_tokens.weight": pick(source * factors[0], orders["encoder"], 1),
        "decoder.embed_tokens.weight": pick(target * factors[1], orders["decoder"], 1),
        "lm_head.weight": pick(output, orders["decoder"], 1),
    }
    return tables, False, False


# -- T5 ----------------------------------------------------------------------------------------------------------------


def convert_t5(loaded: LoadedModel) -> tuple[str, dict[str, Any], Weights, int | None]:
    """The weights of a pre-norm Transformer with RMS norms, t5 positions and no biases."""
    model = loaded.model
    encoder, decoder = model.encoder.stack, model.decoder.stack
    first = encoder.blocks[0]
    if not isinstance(first.mixer_norm, RMSNorm):
        raise Unfit("model.encoder.norm: with t5 positions it is rms there")
    if not first.is_pre_norm or encoder.embedding_norm is not None:
        raise Unfit("model.encoder.norm_order: with t5 positions it is pre there, without embedding_norm")
    blocks = [block for stack in (encoder, decoder) for block, _ in stack.layers()]
    if any(layer.bias is not None for block in blocks for layer in block.modules() if isinstance(layer, nn.Linear)):
        raise Unfit("model.encoder.bias: with t5 positions it is false there")
    if model.output.bias is not None and bool(model.output.bias.any()):
        raise Unfit("model.output_bias: T5 has none; train with output_bias: false")
    if len(loaded.codec.source) != len(loaded.codec.target):
        raise Unfit("tokenizer.joint: false, and T5 has one vocabulary for both sides")
    if len(norm_eps(model)) != 1:
        raise Unfit("model.encoder.norm.eps: it is the same everywhere there")
    sizes = {(block.mixer.heads, block.mixer.Wq.out_features, block.feedforward.W1.out_features) for block in blocks}
    if len(sizes) != 1:
        raise Unfit("encoder and decoder differ in heads, key_width or feedforward, and in T5 they do not")
    schemes = [encoder.position_scheme(0), decoder.position_scheme(0)]
    buckets = {scheme.table.num_embeddings for scheme in schemes if isinstance(scheme, T5Positions)}
    distances = {side: loaded_distance(loaded, side) for side in ("encoder", "decoder")}
    if len(buckets) != 1 or len(set(distances.values())) != 1:
        raise Unfit("encoder and decoder differ in position.buckets or position.distance, and in T5 they do not")
    weights: Weights = {}
    for side, stack in (("encoder", encoder), ("decoder", decoder)):
        for i, (block, _) in enumerate(stack.layers()):
            weights |= t5_block(f"{side}.block.{i}.layer", block)
        scheme = stack.position_scheme(0)
        assert isinstance(scheme, T5Positions)
        assert stack.norm is not None
        weights[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (
            scheme.table.weight.detach().clone()
        )
        weights[f"{side}.final_layer_norm.weight"] = stack.norm.weight.detach().clone()
    source, target, output = model.frontend.table.weight, model.embedding.table.weight, model.output.weight
    factors, d = (model.frontend.factor, model.embedding.factor), model.encoder.d
    # T5 reads its table as it is, and divides the logits of a tied one by √D: its table is ours · √D.
    tied = source is target is output and factors[0] == factors[1] != 1.0
    if tied:
        weights["shared.weight"] = source.detach() * factors[0]
    else:
        weights["shared.weight"] = target.detach() * factors[1]
        weights["encoder.embed_tokens.weight"] = source.detach() * factors[0]
        weights["decoder.embed_tokens.weight"] = target.detach() * factors[1]
        weights["lm_head.weight"] = output.detach().clone()
    gate = "gated-" if is_gated(encoder) else ""
    activation = activation_name(encoder)
    if gate and activation == "gelu":
        activation = "gelu_python"  # 'gated-gelu' would be the tanh one
    config = {
        "vocab_size": len(loaded.codec.source),
        "d_model": d,
        "d_kv": first.mixer.Wq.out_features // first.mixer.heads,
        "d_ff": first.feedforward.W1.out_features,
        "num_layers": len(encoder.blocks),
        "num_decoder_layers": len(decoder.blocks),
        "num_heads": first.mixer.heads,
        "relative_attention_num_buckets": buckets.pop(),
        "relative_attention_max_distance": distances["encoder"],
        "layer_norm_epsilon": norm_eps(model).pop(),
        "feed_forward_proj": f"{gate}{activation}",
        "tie_word_embeddings": tied,
    }
    return "T5ForConditionalGeneration", config, weights, None


def loaded_distance(loaded: LoadedModel, side: str) -> int:
    """The option position.distance of encoder or decoder."""
    part: Part = getattr(loaded.config.model, side)
    return int(part.options["position"].options["distance"])


def t5_block(name: str, block: TransformerBlock) -> Weights:
    weights: Weights = {}
    parts = [("0.SelfAttention", block.mixer, "0.layer_norm", block.mixer_norm)]
    if block.cross_attention is not None:
        parts.append(("1.EncDecAttention", block.cross_attention, "1.layer_norm", block.cross_norm))
    for part, a, norm_name, norm in parts:
        weights[f"{name}.{part}.q.weight"] = a.Wq.weight.detach() * a.scale  # T5 does not divide scores by √d
        for theirs, ours in (("k", a.Wk), ("v", a.Wv), ("o", a.Wo)):
            weights[f"{name}.{part}.{theirs}.weight"] = ours.weight.detach().clone()
        weights[f"{name}.{norm_name}.weight"] = norm.weight.detach().clone()
    last, feed = len(parts), block.feedforward
    weights[f"{name}.{last}.DenseReluDense.{'wi' if feed.W3 is None else 'wi_0'}.weight"] = (
        feed.W1.weight.detach().clone()
    )
    if feed.W3 is not None:
        weights[f"{name}.{last}.DenseReluDense.wi_1.weight"] = feed.W3.weight.detach().clone()
    weights[f"{name}.{last}.DenseReluDense.wo.weight"] = feed.W2.weight.detach().clone()
    norm_weight = block.feedforward_norm.weight
    assert isinstance(norm_weight, Tensor)
    weights[f"{name}.{last}.layer_norm.weight"] = norm_weight.detach().clone()
    return weights


# -- the tokenizer -----------------------------------------------------------------------------------------------------


def write_marian_tokenizer(codec: Codec, folder: Path, positions: int) -> bool:
    """Write the files of MarianTokenizer, whichever class the model has; false if ours are no sentencepiece models."""
    if not is_sentencepiece(codec):
        return False
    names = unique_names(codec.source.vocabulary)
    write_json(folder / "vocab.json", {name: id for id, name in enumerate(names)})
    if not codec.is_joint:
        target_names = unique_names(codec.target.vocabulary)
        write_json(folder / "target_vocab.json", {name: id for id, name in enumerate(target_names)})
    tags = codec.source.vocabulary.extra_symbols
    symbols = [(PAD, SPECIALS[PAD]), (EOS, SPECIALS[EOS]), (UNK, SPECIALS[UNK]), *added_symbols(codec, tags)]
    config: dict[str, Any] = {
        "tokenizer_class": "MarianTokenizer",
        "pad_token": SPECIALS[PAD],
        "eos_token": SPECIALS[EOS],
        "unk_token": SPECIALS[UNK],
        "model_max_length": positions,
        "separate_vocabs": not codec.is_joint,
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": tags,
        "added_tokens_decoder": {
            str(id): {
                "content": symbol,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "single_word": False,
                "special": True,
            }
            for id, symbol in symbols
        },
    }
    write_json(folder / "tokenizer_config.json", config)
    return True


def added_symbols(codec: Codec, tags: list[str]) -> Iterator[tuple[int, str]]:
    for tag in tags:
        id = codec.source.vocabulary.symbol_id(tag)
        assert id is not None
        yield id, tag


README_TEXT = """# A model for Hugging Face transformers ({name})

Written by Dragoman. It needs `pip install transformers torch sentencepiece`, and is run in this folder:

```python
import unicodedata

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForSeq2SeqLM.from_pretrained(".")
text = input()
inputs = tokenizer({normalized}, return_tensors="pt")
outputs = model.generate(**inputs, num_beams=4)
print(tokenizer.batch_decode(outputs, skip_special_tokens=True)[0])
```
{tags}
The tokenizer is MarianTokenizer, whichever class the model has. `export.json` says what was checked, and what differs
from the model that was exported.
"""

README_IDS = """# A model for Hugging Face transformers ({name})

Written by Dragoman. It needs `pip install transformers torch`, and is run in this folder:

```python
import torch
from transformers import AutoModelForSeq2SeqLM

model = AutoModelForSeq2SeqLM.from_pretrained(".")
outputs = model.generate(torch.tensor([{ids}]), num_beams=4)
print(outputs[0].tolist())
```
{tags}
How a text becomes ids is in `tokenization.json`: every source ends with `</s>`, whose id is 2. `export.json` says what
was checked, and what differs from the model that was exported.
"""
