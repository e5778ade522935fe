"""After its beginning a search sees what a model says that was fed token by token."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from dragoman import config as configs
from dragoman.core.types import BOS, EOS, Capacity
from dragoman.data.batching import collate
from dragoman.inference.decode_start import start_decoding
from dragoman.nn.seq2seq import Seq2Seq

V = 12
TEXTS = [[5, 6, 7, 8], [9], [], [10, 5]]
CTC = ["model.encoder={name: rnn, cell: gru}", "model.decoder=rnn", "model.ctc=true", "training.ctc_weight=0.3"]


@cache
def built(*sets: str) -> Seq2Seq:
    first = ["data.train=nowhere.tsv", "model.width=16", "tokenizer.joint=true", "model.tie=all"]
    config = configs.load(None, "transformer-tiny", [*first, *sets]).config
    return configs.build_model(config, V, V).double().eval()  # whose rounding is far below any mistake


def language_model(decoder: str, source: str = "prefix") -> Seq2Seq:
    kind = "lm" if source == "prefix" else "unilm"
    heads = ", heads: 2" if decoder == "transformer" else ""
    part = f"model.decoder={{name: {decoder}, source: {source}{heads}}}"
    return built("model.encoder=none", part, f"training.objective={kind}")


def fed(model: Seq2Seq, source: list[int], tokens: list[int]) -> Tensor:
    """log p (V,) after the last of some tokens that are fed one by one."""
    memory = model.encode(torch.tensor([source], dtype=torch.long), torch.tensor([len(source)]))
    state = model.start(memory, Capacity(1, len(tokens) + 1))
    for token in tokens:
        log_p, state = model.step(torch.tensor([[token]]), state)
    return log_p[0, 0]


@pytest.mark.parametrize("decoder", ["rnn", "transformer", "conv"])
@torch.inference_mode()
def test_a_language_model_goes_on_after_texts_of_any_length(decoder: str) -> None:
    model = language_model(decoder)
    step, start, processors = start_decoding(
        model, collate([(text, [EOS]) for text in TEXTS], list(range(4))), True, 0.0
    )
    assert processors == []
    state = start(Capacity(1, 8))
    said: list[int] = []
    for token in (BOS, 7, 11):  # what a search begins with, and what it chose
        log_p, state = step(torch.full((4, 1), token), state)
        said += [token] if token != BOS else []
        expected = torch.stack([fed(model, [], [BOS, *text, *said]) for text in TEXTS])
        torch.testing.assert_close(log_p[:, 0], expected, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_a_prefix_seen_in_both_directions_is_a_source_and_the_text_begins_after_it() -> None:
    model = language_model("transformer", "full_prefix")
    texts = TEXTS[:2]
    step, start, _ = start_decoding(model, collate([(text, [EOS]) for text in texts], [0, 1]), True, 0.0)
    log_p, _ = step(torch.full((2, 1), BOS), start(Capacity(1, 8)))
    expected = torch.stack([fed(model, text, [BOS]) for text in texts])
    torch.testing.assert_close(log_p[:, 0], expected, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_a_source_is_encoded_and_its_encoder_has_a_say_where_it_is_given_one() -> None:
    model = built(*CTC)
    sources = [[5, 6, 7, EOS], [8, EOS]]
    batch = collate([(source, [EOS]) for source in sources], [0, 1])
    step, start, processors = start_decoding(model, batch, False, 0.0)
    log_p, _ = step(torch.full((2, 1), BOS), start(Capacity(1, 3)))
    expected = torch.stack([fed(model, source, [BOS]) for source in sources])
    torch.testing.assert_close(log_p[:, 0], expected, atol=1e-5, rtol=1e-5)
    assert processors == []
    (rule,) = start_decoding(
        model, batch, False, 1.0
    ).ctc_processors  # the encoder alone: whatever the decoder says, it is the same
    empty, rows = torch.zeros(2, 1, 0, dtype=torch.long), torch.arange(2)
    one, other = (rule(x, empty, rows) for x in (torch.zeros(2, 1, V), torch.randn(2, 1, V).log_softmax(-1)))
    torch.testing.assert_close(one, other)
