"""What the gradient of an update is a mean over."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from dragoman.core.registry import Part
from dragoman.core.types import BOS, PAD, Batch
from dragoman.nn.blocks import TransformerStack
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.training.gradient import compute_gradient


def test_a_mean_over_sentences_is_that_over_tokens_times_their_number_in_a_sentence() -> None:
    plain = Part("rnn", {"dropout": 0.0})
    model = Seq2Seq(7, 7, width=4, encoder=plain, decoder=plain)
    source, target = torch.tensor([[4, 5, 2], [6, 2, PAD]]), torch.tensor([[BOS, 4, 2, PAD], [BOS, 6, 5, 2]])
    batch = Batch(source, torch.tensor([3, 2]), target, torch.tensor([3, 4]))  # 2 + 3 tokens
    gradients = {}
    for per in ("token", "sentence"):
        found = compute_gradient(
            model,
            [batch, batch.slice_rows(0, 1)],  # 7 tokens in 3 sentences
            model.loss,
            seed=1,
            step=1,
            device=torch.device("cpu"),
            precision="float32",
            max_area=None,
            loss_per=per,  # type: ignore[arg-type]
        )
        assert found.tokens == 7
        gradients[per] = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    for name, per_token in gradients["token"].items():
        assert_close(gradients["sentence"][name], per_token * 7 / 3)


def test_activation_checkpointing_keeps_less_and_gives_the_same_gradient() -> None:
    parts = Part("transformer", {"layers": 4, "heads": 2, "dropout": 0.2, "attention_dropout": 0.1})
    torch.manual_seed(1)
    model = Seq2Seq(9, 9, width=16, encoder=parts, decoder=parts)
    ids = torch.randint(4, 9, (4, 12))
    batch = Batch(ids, torch.full((4,), 12), ids, torch.full((4,), 12))
    kept, gradients = [], []
    for is_on in (False, True):
        for module in model.modules():
            if isinstance(module, TransformerStack):
                module.activation_checkpointing = is_on
        sizes: list[int] = []

        def pack(x: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(x.numel())
            return x

        model.zero_grad()
        torch.manual_seed(2)  # of the dropout
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            loss = model.loss(batch, 0.1)
        torch.autograd.backward(loss)
        kept.append(sum(sizes))
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert_close(gradients[1], gradients[0], rtol=0, atol=0)
    assert kept[1] < kept[0] / 4
