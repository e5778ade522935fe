"""Attention weights of a model's outputs, from one teacher-forced pass with attention recorded.

    α_t  (T, S)  the weights of the source's states for each token y_t, </s> included
    y_t = <unk>  →  x_j,  j = argmax_j α_tj          the source word that replaces it (`replace_unk`)

Replacing <unk> is how translation with word vocabularies handled rare words (Luong et al. 2015, Addressing the rare
word problem; Jean et al. 2015), before subwords, and without a pointer that learns to copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dragoman.core.errors import UserError
from dragoman.core.types import EOS, UNK, Batch
from dragoman.data.batching import collate
from dragoman.engines.length_batches import batch_by_length
from dragoman.inference.inputs import InputProcessor, ModelInput
from dragoman.nn.attention import record_attention

Weights = np.ndarray | None  # (T, S); None: no attention to the source


@torch.inference_mode()
def attention_to_source(inputs: InputProcessor, batch: Batch, targets: Sequence[Sequence[int]]) -> list[Weights]:
    """Return the decoder's attention to the source, (T + 1, S), for each target and </s>; None if it has none."""
    forced = collate([([], [*target, EOS]) for target in targets], list(range(len(targets)))).to(batch.target.device)
    with record_attention():
        memory = inputs.model.encode(*batch.encoder_inputs)
        output = inputs.model.decode(forced.target[:, :-1], memory)
    return _split_rows(inputs, batch, output.attention, [len(target) + 1 for target in targets])


@torch.inference_mode()
def pooling_attention(inputs: InputProcessor, batch: Batch) -> list[Weights]:
    """Return the attention of a classification or tagging head to each source of a batch; None if it has none."""
    output = inputs.model.head(inputs.model.encode(*batch.encoder_inputs))
    return _split_rows(inputs, batch, output.attention, [None] * len(batch))


def _split_rows(
    inputs: InputProcessor, batch: Batch, attention: Tensor | None, lengths: Sequence[int | None]
) -> list[Weights]:
    """Split the weights of a batch, (B, T, S), by row, without padding; all T rows where no length is given."""
    if attention is None:
        return [None] * len(batch)
    weights = attention.float().cpu().numpy()
    sizes = zip(lengths, inputs.count_states(batch), strict=True)
    return [weights[i, :length, :states] for i, (length, states) in enumerate(sizes)]


def check_replace_unk(inputs: InputProcessor) -> None:
    """Raise UserError if the model's attention does not point at source words, as `replace_unk` needs."""
    is_text = inputs.codec.modality is None and not inputs.objective.continues_text
    if not is_text or inputs.model.head is not None or inputs.model.stride != 1:
        raise UserError(
            "replace_unk replaces <unk> by words of the source, so it needs a model that attends to the words of a "
            "text; set it to false"
        )


def most_attended_words(
    inputs: InputProcessor,
    sources: Sequence[ModelInput],
    texts: Sequence[str],
    targets: Sequence[Sequence[int]],
    max_tokens: int,
    device: torch.device,
) -> list[list[str]]:
    """Return for each target the most attended source word of each <unk>; "" if there is no word."""
    words_of: list[list[str]] = [[] for _ in targets]
    lengths = [max(len(source.longer_source), len(target)) for source, target in zip(sources, targets, strict=True)]
    for rows in batch_by_length(lengths, max_tokens):
        batch = collate([sources[i].row for i in rows], list(range(len(rows)))).to(device)
        for i, weights in zip(rows, attention_to_source(inputs, batch, [targets[i] for i in rows]), strict=True):
            if weights is None:
                raise UserError("replace_unk needs a decoder that attends to the source; set it to false")
            words = inputs.codec.source_words(sources[i].source, texts[i])
            is_word = np.array([bool(word) for word in words])
            words_of[i] = [
                words[int(np.where(is_word, row[: len(words)], -1.0).argmax())]
                for row, token in zip(weights, targets[i], strict=False)
                if token == UNK
            ]
    return words_of
