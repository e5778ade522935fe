"""The attention weights of every head in one teacher-forced pass, and passes with some heads ablated.

    source, target ─one recorded, teacher-forced pass→ a (T, S) of every head
    ablate(h)      the same pass with c_h = 0, the context of head h

A head is named kind.layer.number: cross.1.2 attends from target to source, encoder.1.2 from source to source,
decoder.1.2 from target to earlier target tokens, second_source.1.2 within a second source. In a decoder-only model one
head does all three, and each of its names ablates it; its decoder map has S + T columns, since the target also attends
to the source.

T target tokens with </s>, S source tokens with </s>, or states of another source, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dragoman.core.errors import UserError
from dragoman.core.types import UNK
from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.teacher_forcing import ForcedPair, run_teacher_forced
from dragoman.nn.attention import Attention, AttentionOutput, MultiHeadAttention, RecordedAttention, record_attention
from dragoman.nn.losses import output_log_probs, token_log_probs
from dragoman.nn.seq2seq import Seq2Seq, Seq2SeqOutput
from dragoman.nn.token_mixers import ParameterFreeAttention
from dragoman.text.tokenizers import Tokenizer
from dragoman.text.vocabulary import SPACE_MARKER

DIGITS = 4  # of a weight: 6 × 8 heads of 60 × 60 are 4 MB of JSON with these and 11 MB with all of them
KINDS = ("cross", "decoder", "second_source", "encoder")  # where not all fit into a view, the last go first
SIDES = ("encoder", "second_source", "decoder")
WORD_TOKENIZERS = ("words", "symbols")  # tokenizers whose tokens are words already

# -- heads -------------------------------------------------------------------------------------------------------------


class AttentionHead(NamedTuple):
    """One head of an attention module; numbers count from 0, and from 1 in names."""

    module: nn.Module
    number: int


class LayerAttention(NamedTuple):
    """The weights (H, rows, columns) of all heads of one layer."""

    kind: str
    layer: int
    module: nn.Module
    weights: Tensor

    def head_name(self, number: int) -> str:
        return f"{self.kind}.{self.layer}.{number + 1}"


def collect_layers(model: Seq2Seq, recorded: RecordedAttention, S: int) -> list[LayerAttention]:
    """Sort the recorded weights of a pair with S source states by kind (cross, encoder …) and number the layers."""
    by_kind: dict[str, list[tuple[nn.Module, Tensor]]] = {kind: [] for kind in ("cross", *SIDES)}
    for name, module in model.named_modules():
        side = name.split(".")[0]
        if module not in recorded or side not in SIDES:  # a pointer's weights are part of the soft alignment
            continue
        calls = [a if a.dim() == 4 else a[:, None] for a in recorded[module]]  # (1, H, T, S); an RNN calls in each step
        # A shared layer runs several times and has a map for each; ablating its heads ablates all of them.
        for a in calls if isinstance(module, MultiHeadAttention) else [torch.cat(calls, 2)]:
            for kind, weights in _split_kinds(model, side, name, module, a[0], S).items():
                by_kind[kind].append((module, weights))
    return [LayerAttention(kind, i, *layer) for kind, layers in by_kind.items() for i, layer in enumerate(layers, 1)]


def _split_kinds(model: Seq2Seq, side: str, name: str, module: nn.Module, a: Tensor, S: int) -> dict[str, Tensor]:
    """Split an attention's weights (H, rows, columns) by kind: only a decoder-only model's have several."""
    kind = _kind(side, name, module)
    if kind == "decoder" and model.is_decoder_only:  # the rows are x_1 … x_S y_1 … y_T
        return {"cross": a[:, S:, :S], "encoder": a[:, :S, :S], "decoder": a[:, S:]}
    return {kind: a}


def _kind(side: str, name: str, module: nn.Module) -> str:
    """Return the kind of an attention module: "cross" for the decoder's attention to the source, else its side."""
    is_cross = isinstance(module, Attention) or name.endswith("cross_attention")
    return "cross" if side == "decoder" and is_cross else side


def _attention_modules(model: Seq2Seq) -> Iterator[tuple[str, nn.Module]]:
    """Yield every attention module with its kind; a shared module comes once for each use."""
    for name, module in model.named_modules(remove_duplicate=False):
        side = name.split(".")[0]
        if side in SIDES and isinstance(module, MultiHeadAttention | Attention | ParameterFreeAttention):
            yield _kind(side, name, module), module


def count_weights(pipeline: Pipeline, pair: ForcedPair) -> dict[str, int]:
    """Count the weights of each kind that a recorded pass over a pair will have."""
    model, T, S = pipeline.model, len(pair.target), len(pair.pieces)
    first = first_source_length(pipeline, pair)
    separate = {"cross": T * S, "encoder": first**2, "second_source": (S - first) ** 2, "decoder": T**2}
    decoder_only = {"cross": T * S, "encoder": S**2, "decoder": T * (S + T)}
    counts = dict.fromkeys(KINDS, 0)
    for kind, module in _attention_modules(model):
        sizes = decoder_only if kind == "decoder" and model.is_decoder_only else {kind: separate[kind]}
        for part, size in sizes.items():
            counts[part] += getattr(module, "heads", 1) * size
    return counts


def count_heads(model: Seq2Seq) -> int:
    """Count the attention heads of all layers of a model."""
    return sum(getattr(module, "heads", 1) for _, module in _attention_modules(model))


def first_source_length(pipeline: Pipeline, pair: ForcedPair) -> int:
    """Return how many of a pair's source states belong to the first of two sources."""
    if pair.model_input.second_source is None:
        return len(pair.pieces)
    return len(pipeline.input_processor.source_labels(pair.model_input._replace(second_source=None)))


def name_heads(layers: Sequence[LayerAttention]) -> dict[str, AttentionHead]:
    """Return every head of the layers by its name."""
    return {
        layer.head_name(i): AttentionHead(layer.module, i) for layer in layers for i in range(layer.weights.shape[0])
    }


def find_heads(heads: dict[str, AttentionHead], names: Sequence[str]) -> list[AttentionHead]:
    """Return the named heads without duplicates; an unknown name raises UserError."""
    for name in names:
        if name not in heads:
            known = f"{next(iter(heads))} … {list(heads)[-1]}" if heads else "none"
            raise UserError(f"there is no head '{name}' in this model; there are {known} (kind.layer.number)")
    return list(dict.fromkeys(heads[name] for name in names))


# -- passes ------------------------------------------------------------------------------------------------------------


def run_recorded(
    pipeline: Pipeline, pair: ForcedPair, kinds: Collection[str]
) -> tuple[Seq2SeqOutput, list[LayerAttention]]:
    """Run a teacher-forced pass; return its output and the weights by layer, only shapes for kinds not in `kinds`."""
    modules = list(_attention_modules(pipeline.model))
    needed = {module for kind, module in modules if kind in kinds or (kinds and pipeline.model.is_decoder_only)}
    with record_attention(shape_only={module for _, module in modules} - needed) as recorded:
        output = run_teacher_forced(pipeline, pair)
    layers = collect_layers(pipeline.model, recorded, len(pair.pieces))
    if not layers and output.output.attention is None:
        raise UserError("this model has no attention weights; use --view steps or --view beam")
    return output, layers


def target_log_probs(output: Seq2SeqOutput) -> list[float]:
    """Return log p of each target token of a batch of one."""
    log_probs: list[float] = token_log_probs(output_log_probs(output.logits), output.gold)[0].tolist()
    return log_probs


@contextmanager
def ablate_heads(heads: Sequence[AttentionHead]) -> Iterator[None]:
    """Set the contexts of these heads to zero inside the `with` block."""
    with ExitStack() as hooks:
        for module, number in heads:
            if isinstance(module, MultiHeadAttention):
                handle = module.Wo.register_forward_pre_hook(_zero_head(number, module.heads))
            else:
                handle = module.register_forward_hook(_zero_context)
            hooks.callback(handle.remove)
        yield


def _zero_head(number: int, count: int) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor]]:
    """Build a hook that sets head `number` of `count` in W_O's input, (…, T, H · D), to zero."""

    def hook(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        contexts = args[0].clone().view(*args[0].shape[:-1], count, -1)
        contexts[..., number, :] = 0.0
        return (contexts.flatten(-2),)

    return hook


def _zero_context(_: nn.Module, __: object, result: AttentionOutput | Tensor) -> AttentionOutput | Tensor:
    if isinstance(result, AttentionOutput):
        return result._replace(c=torch.zeros_like(result.c))
    return torch.zeros_like(result)


def entropy(a: Tensor) -> Tensor:
    """Return −Σ a log a of each row, in nats."""
    nats: Tensor = torch.special.entr(a.double()).sum(-1)
    return nats


def round_weights(a: Tensor) -> list[list[float]]:
    """Return weights (rows, columns) as lists, rounded to DIGITS."""
    return [row.tolist() for row in a.double().cpu().numpy().round(DIGITS)]  # row by row: a server can cancel it


# -- words -------------------------------------------------------------------------------------------------------------


def merge_words(pipeline: Pipeline, pair: ForcedPair, soft: Tensor) -> dict[str, list[str] | list[list[float]]] | None:
    """Merge weights (T, S) to words: summed over source, averaged over target pieces; None if all are words already."""
    codec, options = pipeline.codec, pipeline.config.tokenizer
    has_pieces = codec.modality is None and codec.second_source is None and pipeline.model.stride == 1
    is_word = [part.name in WORD_TOKENIZERS for part in (options.source, options.target or options.source)]
    if is_word[1] and (is_word[0] or not has_pieces):
        return None
    columns = [(j, j + 1) for j in range(len(pair.pieces))]
    source = pair.pieces
    if has_pieces:
        ids = pair.model_input.source
        columns = word_spans(codec.source, ids, is_word[0])
        source = [spell_word(codec.source, ids[start:end]) for start, end in columns]
    rows = word_spans(codec.target, pair.target, is_word[1])
    a = torch.stack([soft[:, start:end].sum(1) for start, end in columns], 1)  # (T, words)
    a = torch.stack([a[start:end].mean(0) for start, end in rows])
    target = [spell_word(codec.target, pair.target[start:end]) for start, end in rows]
    return {"source": source, "target": target, "soft": round_weights(a)}


def word_spans(tokenizer: Tokenizer, ids: Sequence[int], tokens_are_words: bool) -> list[tuple[int, int]]:
    """Return (start, end) of each word, which starts at a space marker; special tokens but <unk> are words, too."""
    separate = [tokens_are_words or is_symbol(tokenizer, id) for id in ids]
    spaces = [piece.startswith((SPACE_MARKER, "␣")) for piece in tokenizer.pieces(ids)]
    starts = [i for i in range(len(ids)) if i == 0 or spaces[i] or separate[i] or separate[i - 1]]
    return list(zip(starts, [*starts[1:], len(ids)], strict=True))


def is_symbol(tokenizer: Tokenizer, id: int) -> bool:
    """Whether an id is a special token or a tag; <unk> is not one."""
    return tokenizer.vocabulary.is_symbol(id) and id != UNK


def spell_word(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of a word's ids; the piece itself for a special token, ␣ for nothing."""
    return tokenizer.pieces(ids)[0] if is_symbol(tokenizer, ids[0]) else tokenizer.decode(ids).strip() or "␣"
