"""The few best of many logits, against a stable sort of their log softmax."""

from __future__ import annotations

import torch


def test_the_best_of_a_vocabulary_of_several_parts_are_the_best_of_its_log_softmax(device: torch.device) -> None:
    from dragoman.engines.cuda.kernels.ranking import top_tokens

    k, V, rows = 2, 9001, 4  # three parts of 4,096, the last one short
    z = torch.randn(rows, V + 7, device=device) * 3
    z[:, V:] = 99.0  # padding of a matrix product, never to be looked at
    z[1, [4095, 4096, 8192]] = torch.tensor([50.0, 51.0, 52.0], device=device)  # neighbors across two edges
    z[2, 2] = 60.0  # </s>, too early in the second sentence
    z[3, [1, 97, 98]] = torch.tensor([70.0, 40.0, 40.0], device=device)  # <s>, and two of one group that are equal
    t, min_length = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([3, 1], [0, 2]))
    done = torch.zeros_like(t)
    values = torch.zeros(rows, 4, device=device)
    tokens = torch.zeros(rows, 4, dtype=torch.int32, device=device)
    top_tokens(z, V, t, min_length, done, k, values, tokens)
    allowed = z[:, :V].clone()
    allowed[:, :2] = -torch.inf  # <pad> and <s> have no probability
    log_p = allowed.log_softmax(-1)
    log_p[2:, 2] = -torch.inf
    want, indices = log_p.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(tokens[:, : k + 1].long(), indices[:, : k + 1])
    torch.testing.assert_close(values[:, : k + 1], want[:, : k + 1])
