"""Two sources: their states stand without a gap, and no part of a model can tell padding or batch-mates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import BOS, PAD, Batch, Capacity, Memory, Segments
from dragoman.nn.attention import record_attention
from dragoman.nn.losses import output_log_probs
from dragoman.nn.multi_source import SecondSource, SecondSourceConfig
from dragoman.nn.seq2seq import Seq2Seq

D = 8
TINY = {"layers": 1, "heads": 2, "feedforward": 16, "dropout": 0.0}
DECODERS = [
    Part("rnn", {"cell": "gru", "dropout": 0.0}),
    Part("transformer", TINY),
    Part("conv", {"layers": 2, "dropout": 0.0}),
]


def second(**options: Any) -> SecondSourceConfig:
    return SecondSourceConfig.model_validate({"encoder": {"name": "identity", "dropout": 0.0}} | options)


def model(decoder: Part | None = DECODERS[0], **options: Any) -> Seq2Seq:
    """Two sources of ids, of 11 and 13 different ones."""
    given: dict[str, Any] = {
        "encoder": Part("rnn", {"cell": "gru", "dropout": 0.0}),
        "second_source": second(),
        "tie": "none",
    }
    return Seq2Seq(11, 9, 13, width=D, decoder=decoder, **(given | options)).eval()


def batch() -> Batch:
    """Three rows whose two sources have lengths that have nothing to do with each other."""
    ids, lengths, targets = torch.randint(4, 9, (3, 5)), torch.tensor([2, 5, 3]), torch.randint(4, 9, (3, 4))
    targets[:, 0] = BOS
    found = Batch(ids, lengths, targets, torch.tensor([4, 4, 4]))
    found.second_source, found.second_source_lengths = torch.randint(4, 9, (3, 6)), torch.tensor([6, 1, 3])
    for side, length in ((found.source, lengths), (found.second_source, found.second_source_lengths)):
        side[torch.arange(side.shape[1]) >= length[:, None]] = PAD
    return found


def test_the_states_of_both_sources_are_concatenated_and_the_summary_is_of_both() -> None:
    source = SecondSource(13, D, D, second())
    given = batch()
    first = Memory(torch.randn(3, 5, D), given.source_lengths, torch.randn(3, D))
    found = source(first, *given.encoder_inputs[2:])
    cells = source.frontend(given.second_source)
    for row, (n, m) in enumerate(zip([2, 5, 3], [6, 1, 3], strict=True)):
        expected = [*first.states[row, :n], *cells[row, :m]]
        assert_close(found.states[row, : n + m], torch.stack(expected))
        both = torch.cat([first.summary[row], cells[row, :m].mean(0)])
        assert_close(found.summary[row], source.W.weight @ both + source.W.bias)
    assert found.lengths.tolist() == [8, 6, 6]
    assert found.second_source_start.tolist() == [2, 5, 3]


def test_a_second_encoder_of_another_width_is_brought_to_the_first_ones() -> None:
    source = SecondSource(13, D, D, second(encoder={"name": "rnn", "width": 12, "dropout": 0.0})).eval()
    given = batch()
    first = Memory(torch.randn(3, 5, D), given.source_lengths, torch.randn(3, D))
    found = source(first, *given.encoder_inputs[2:])
    h = source.encoder(
        *source.frontend.embed_source(given.second_source[:1], Segments(given.second_source_lengths[:1]))
    ).states
    assert_close(found.states[0, 2:8], h[0] @ source.A.weight.T + source.A.bias)


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda part: part.name)
def test_a_batch_equals_its_rows_and_padding_changes_nothing(decoder: Part) -> None:
    whole, given = model(decoder), batch()
    together = whole.token_log_probs(given)
    for row in range(3):
        alone = given.slice_rows(row, row + 1)
        assert alone.second_source is not None
        assert alone.second_source.shape[1] == int(given.second_source_lengths[row])
        assert_close(whole.token_log_probs(alone)[0], together[row], atol=1e-5, rtol=0.0)
    more = batch_with_more_padding(given)
    assert_close(whole.token_log_probs(more), together, atol=1e-5, rtol=0.0)


def batch_with_more_padding(given: Batch) -> Batch:
    pad = torch.nn.functional.pad
    found = Batch(pad(given.source, (0, 2)), given.source_lengths, given.target, given.target_lengths)
    found.second_source, found.second_source_lengths = pad(given.second_source, (0, 3)), given.second_source_lengths
    return found


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda part: part.name)
def test_step_by_step_equals_all_at_once(decoder: Part) -> None:
    whole, given = model(decoder), batch()
    with torch.no_grad():
        memory = whole.encode(*given.encoder_inputs)
        expected = output_log_probs(whole.logits(whole.decode(given.target[:, :-1], memory).o))
        state = whole.start(memory, Capacity(1, 4))
        for t in range(3):
            log_p, state = whole.step(given.target[:, t : t + 1], state)
            assert_close(log_p[:, 0], expected[:, t], atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda part: part.name)
def test_both_sources_are_attended_to_and_matter(decoder: Part) -> None:
    whole, given = model(decoder), batch()
    with record_attention(), torch.no_grad():
        output = whole.decode(given.target[:, :-1], whole.encode(*given.encoder_inputs))
    assert output.attention is not None
    assert output.attention.shape[-1] == 11
    for row, n in enumerate([8, 6, 6]):
        assert_close(output.attention[row, :, :n].sum(-1), torch.ones(3), atol=1e-5, rtol=0.0)
    before = whole.token_log_probs(given)
    assert given.second_source is not None
    given.second_source[0, 0] = 4 if given.second_source[0, 0] != 4 else 5
    after = whole.token_log_probs(given)
    assert (before[0] - after[0]).abs().max() > 1e-6
    assert_close(before[1:], after[1:])


def test_the_gradient_reaches_the_parts_of_both_sources() -> None:
    whole = model().train()
    whole.loss(batch()).backward()
    for name in ("frontend.table.weight", "second_source.frontend.table.weight", "second_source.W.weight"):
        grad = whole.get_parameter(name).grad
        assert grad is not None, name
        assert grad.abs().sum() > 0, name


def test_a_classifier_answers_from_both() -> None:
    whole, given = model(None, head=Part("classifier", {"dropout": 0.0})), batch()
    given.target, given.target_lengths = given.target[:, :2], torch.tensor([2, 2, 2])
    together = whole.token_log_probs(given)
    alone = torch.cat([whole.token_log_probs(given.slice_rows(row, row + 1)) for row in range(3)])
    assert_close(alone, together, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"pointer": Part("general")}, "copies from one source"), ({"ctc": True}, "states of one source")],
)
def test_what_needs_one_source_says_so(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PartError, match=says):
        Seq2Seq(
            9, 9, 13, width=D, encoder=Part("rnn"), decoder=DECODERS[0], second_source=second(), tie="none", **options
        )


def test_packed_rows_are_refused() -> None:
    assert (
        model(Part("transformer", TINY), encoder=Part("transformer", TINY)).packing_blocker()
        == "two sources need padded rows"
    )
