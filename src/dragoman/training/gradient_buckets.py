"""Gradients in flat buckets, each all-reduced as soon as the backward pass has filled it.

    backward pass    … ∂W_3 ∂W_2 │ ∂W_1 ∂W_0 …          a bucket is copied, scaled and sent when its last gradient is
    network                      └ Σ_r share_r g_r …    there, and the next ones are computed meanwhile

torch's DistributedDataParallel does the same; it averages with equal weights, and its buckets follow the first backward
pass. Here the buckets follow the order of the parameters from the last to the first, so they are the same on every rank
and in every process of a run. They are sent in this order, whichever is full first. `p.grad` stays this rank's own
gradient until the sums are taken over: an update that turns out to be invalid is reduced again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

BUCKET_SIZE = 1 << 23  # numbers reduced at once: 32 MB of float32, large for the network, small beside the model


class Work(Protocol):
    """A collective under way."""

    def wait(self) -> object: ...


AllReduce = Callable[[Tensor], Work]  # starts to sum a tensor over the ranks, in place


def split_buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters in order, grouped into buckets of one dtype and at most BUCKET_SIZE numbers."""
    bucket: list[nn.Parameter] = []
    size = 0
    for p in parameters:
        if bucket and (size + p.numel() > BUCKET_SIZE or p.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(p)
        size += p.numel()
    if bucket:
        yield bucket


def flatten_gradients(bucket: Sequence[nn.Parameter], share: float) -> Tensor:
    """The gradients of a bucket in one tensor, times `share`; a parameter without a gradient adds zeros."""
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
    return flat.mul_(share)


def assign_gradients(bucket: Sequence[nn.Parameter], flat: Tensor, present: set[nn.Parameter]) -> None:
    """Overwrite the gradients of a bucket with those in `flat`, of the parameters in `present` alone."""
    for p, g in zip(bucket, torch.split(flat, [p.numel() for p in bucket]), strict=True):
        if p not in present:
            continue
        if p.grad is None:
            p.grad = torch.empty_like(p)
        p.grad.copy_(g.view_as(p))  # in place: a captured backward pass writes to the same memory again


class OverlappedReduction:
    """The buckets of one model, from the start of each update to its end.

    start → (backward passes) → arm → the last backward pass → finish → assign, or a reduction afterwards
    """

    def __init__(self, parameters: Sequence[nn.Parameter], all_reduce: AllReduce) -> None:
        self.buckets = list(split_buckets(list(reversed(parameters))))
        self.bucket_of = {p: number for number, bucket in enumerate(self.buckets) for p in bucket}
        self.all_reduce = all_reduce
        self.is_armed = False
        for p in parameters:
            p.register_post_accumulate_grad_hook(self._count)  # type: ignore[no-untyped-call]

    def start(self, share: float) -> None:
        """Begin an update in which this rank's gradient counts `share`."""
        self.share, self.is_armed, self.is_valid = share, False, True
        self.missing = [len(bucket) for bucket in self.buckets]
        self.sent: list[tuple[Tensor, Work]] = []

    def arm(self) -> None:
        """Send buckets from now on: the next backward pass is the last of this rank's update."""
        self.is_armed = self.is_valid

    def invalidate(self) -> None:
        """Send no more until `finish`: the backward pass failed, and what was sent is no part of the next attempt."""
        self.is_armed = self.is_valid = False

    def _count(self, p: nn.Parameter) -> None:
        if not self.is_armed:
            return
        self.missing[self.bucket_of[p]] -= 1
        while len(self.sent) < len(self.buckets) and self.missing[len(self.sent)] == 0:
            self._send_next()

    def _send_next(self) -> None:
        flat = flatten_gradients(self.buckets[len(self.sent)], self.share)
        self.sent.append((flat, self.all_reduce(flat)))

    def finish(self) -> None:
        """Send the buckets that are left (some parameters may have no gradient), and wait for all."""
        self.is_armed = False
        while len(self.sent) < len(self.buckets):
            self._send_next()
        for _, work in self.sent:
            work.wait()

    def assign(self, present: set[nn.Parameter]) -> None:
        """Replace the gradients of the parameters in `present` by the sums."""
        for bucket, (flat, _) in zip(self.buckets, self.sent, strict=True):
            assign_gradients(bucket, flat, present)

    def end(self) -> None:
        """Free the buckets."""
        self.sent = []
