"""Where a model looked when it said something, from one watched pass over what it said.

    α_t  (T, S)  the weights of the source's states for each token y_t, </s> included
    y_t = <unk>  →  x_j,  j = argmax_j α_tj          the word that a result may have in its place

The second is how translations with word vocabularies named what they had no word for (Luong et al. 2015, Addressing the
rare word problem; Jean et al. 2015), before subwords, and without a pointer that learns to copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from dragoman.core.errors import UserError
from dragoman.core.types import EOS, UNK, Batch
from dragoman.data.batching import collate
from dragoman.engines.length_batches import batches
from dragoman.inference.inputs import Given, Reading
from dragoman.nn.attention import record_attention

Weights = np.ndarray | None  # (T, S); None: nothing looks


@torch.inference_mode()
def attend(reading: Reading, batch: Batch, targets: Sequence[Sequence[int]]) -> Iterator[Weights]:
    """Where the decoder looked for each token of given targets, and for </s>."""
    forced = collate([([], [*target, EOS]) for target in targets], list(range(len(targets)))).to(batch.target.device)
    with record_attention():
        memory = reading.model.encode(*batch.given)
        output = reading.model.decode(forced.target[:, :-1], memory)
    if output.attention is None:
        yield from (None for _ in targets)
        return
    weights = output.attention.float().cpu().numpy()
    for i, (target, length) in enumerate(zip(targets, reading.states(batch), strict=True)):
        yield weights[i, : len(target) + 1, :length]


@torch.inference_mode()
def pooled(reading: Reading, batch: Batch) -> list[Weights]:
    """What a head looked at."""
    output = reading.model.head(reading.model.encode(*batch.given))
    if output.attention is None:
        return [None] * len(batch)
    weights = output.attention.float().cpu().numpy()
    return [weights[i, :, :n] for i, n in enumerate(reading.states(batch))]


# -- in place of <unk> -------------------------------------------------------------------------------------------------


def check_replaces(reading: Reading) -> None:
    """Refuse to look for words of the source where no state stands for one."""
    text = reading.codec.modality is None and not reading.objective.continues_text
    if not text or reading.model.head is not None or reading.model.stride != 1:
        raise UserError(
            "generation.replace_unknown puts words of the source in place of <unk>, so it needs a model that looks at "
            "the words of a text; set it to false"
        )


def pointed(
    reading: Reading,
    sources: Sequence[Given],
    texts: Sequence[str],
    targets: Sequence[Sequence[int]],
    tokens: int,
    device: torch.device,
) -> list[list[str]]:
    """For each <unk> of each target the word of its source that was looked at most; "" where there is none."""
    found: list[list[str]] = [[] for _ in targets]
    for rows in batches([max(len(sources[i].longer), len(targets[i])) for i in range(len(targets))], tokens):
        batch = collate([sources[i].row for i in rows], list(range(len(rows)))).to(device)
        for i, weights in zip(rows, attend(reading, batch, [targets[i] for i in rows]), strict=True):
            if weights is None:
                raise UserError("generation.replace_unknown asks where the model looked, and it has no attention")
            words = reading.codec.words(sources[i].source, texts[i])
            real = np.array([bool(word) for word in words])
            found[i] = [
                words[int(np.where(real, row[: len(words)], -1.0).argmax())]
                for row, token in zip(weights, targets[i], strict=False)
                if token == UNK
            ]
    return found
