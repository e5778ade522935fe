"""Data-parallel training: each rank computes the gradient of its own batches, and all take the same step.

    g = Σ_r n_r g_r / Σ_r n_r        g_r: the gradient of rank r's batches, a mean over their n_r tokens (or sentences)

n_r g_r is a sum over tokens, so g does not depend on the number of ranks. Gradients are all-reduced in flat buckets
while the backward pass computes the next ones (gradient_buckets.py), and not by torch's DistributedDataParallel
(docs/architecture.md says why). Where that is not possible (a captured step has no hooks; a rank had to split a batch),
they are all-reduced after the backward pass.

    update         n_r → backward pass with gradient buckets → a few numbers (loss, tokens, signals) → optimizer step
    validation     every rank computes its share; the values are put together in the order of one rank
    rank 0         prepares, saves and logs; the others wait for its result, as long as it is alive
    heartbeat.py   every rank sends heartbeats; one that stops is named, and all end

Only this file and sharding.py import torch.distributed, and only with several ranks.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from dragoman.core.errors import RunError, TrainingDiverged, TrainingStopped, UserError
from dragoman.training.gradient import GradientResult
from dragoman.training.gradient_buckets import (
    OverlappedReduction,
    assign_gradients,
    flatten_gradients,
    split_buckets,
)
from dragoman.training.heartbeat import EXIT_SECONDS, RESTART_HINT, HeartbeatMonitor, format_ranks

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")
StopSignal = Callable[[], int | None]  # the number of the signal that asks for a stop, if one came


class RankGroup:
    """The collectives that a trainer uses; in one process, as here, each is the identity."""

    rank, world_size = 0, 1

    @property
    def is_rank0(self) -> bool:
        """Whether this process prepares, validates, saves and logs for all."""
        return self.rank == 0

    def local_device(self, device: torch.device) -> torch.device:
        """The device of this rank, where `device` is the one that the config selects."""
        return device

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors with those of rank 0."""

    def overlap_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """From now on, all-reduce the gradients of these parameters during the last backward pass of an update."""

    def start_update(self, weight: int) -> int:
        """Announce what the gradient of this rank will count in an update; returns the sum over all ranks."""
        return weight

    @property
    def overlap(self) -> OverlappedReduction | None:
        """The reduction to arm before the last backward pass of an update, if gradients overlap with it."""
        return None

    def reduce_gradient(
        self, result: GradientResult, weight: int, parameters: Sequence[nn.Parameter]
    ) -> GradientResult:
        """Average the gradients of all ranks, weighted by `weight`, and sum their losses and tokens."""
        return result

    @contextmanager
    def explain_failures(self) -> Iterator[None]:
        """Turn a failure of the connection inside the block into an error that names the lost rank."""
        yield

    def synchronize_signals(self, own_signal: StopSignal) -> StopSignal:
        """Turn the stop signal of this process into one that is the same on all ranks."""
        return own_signal

    def broadcast_from_rank0(self, compute: Callable[[], T]) -> T:
        """Compute a value on rank 0 alone and return it, as JSON can hold it, on all ranks."""
        return compute()

    def all_gather(self, value: T) -> list[T]:
        """A small value of every rank, in their order."""
        return [value]

    def gather_when_ready(self, value: T) -> list[T]:
        """A value of every rank, as JSON can hold it, in their order; a rank may take any time to have it."""
        return [value]


def rank_and_world_size() -> tuple[int, int]:
    """This process's rank and the number of ranks, from the environment variables that torchrun sets."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count <= 1:
        return 0, 1
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UserError(f"WORLD_SIZE is {count}, but {' and '.join(missing)} is not set; start the ranks with torchrun")
    return int(os.environ["RANK"]), count


@contextmanager
def join_ranks(device: torch.device, timeout: float) -> Iterator[RankGroup]:
    """Connect to the other ranks, if there are any, for as long as the training lasts."""
    rank, world_size = rank_and_world_size()
    if world_size == 1:
        yield RankGroup()
        return
    ranks = DistributedRanks(rank, world_size, device, timeout)
    try:
        yield ranks
    except BaseException as error:
        ranks.leave(error)
        raise
    ranks.leave(None)


# -- several ranks -----------------------------------------------------------------------------------------------------


class DistributedRanks(RankGroup):
    """This rank of several; all ranks call its methods (but `synchronize_signals`) in the same order."""

    def __init__(self, rank: int, world_size: int, device: torch.device, timeout: float) -> None:
        import torch.distributed

        self.rank, self.world_size, self.dist = rank, world_size, torch.distributed
        dist: Any = torch.distributed  # parts of its interface are untyped
        self._device = select_rank_device(device)
        self._broadcasts = self._gathers = self._signal = 0
        self._overlap: OverlappedReduction | None = None
        self._own_signal: StopSignal = lambda: None
        limit = timedelta(seconds=timeout)
        try:
            store = next(dist.rendezvous("env://", timeout=limit))[0]
        except RuntimeError as error:
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise RunError(
                f"rank {rank}: not all {world_size} ranks connected to {address} within {timeout} s: {error}"
            ) from None
        try:
            name = rendezvous(store, rank, world_size, timeout)
            monitor_store = store.clone()  # the monitor's own: a connection serves one call at a time
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise RunError(f"rank {rank}: the connection broke while the ranks met: {reason}. {RESTART_HINT}") from None
        self.store: Store = dist.PrefixStore(name, store)
        self.monitor = HeartbeatMonitor(dist.PrefixStore(name, monitor_store), rank, world_size, timeout)
        self.monitor.start()
        # CPU tensors go through gloo even where gradients go through NCCL: no GPU has to wait for them.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        with self.monitor.connecting(), self._collective():
            group = dist.PrefixStore("group", self.store)
            dist.init_process_group(backend, store=group, rank=rank, world_size=world_size, timeout=limit)

    def local_device(self, device: torch.device) -> torch.device:
        return self._device

    @contextmanager
    def explain_failures(self) -> Iterator[None]:
        with self._explain_failures(is_connection_error):
            yield

    @contextmanager
    def _explain_failures(self, is_failure: Callable[[RuntimeError], bool] = lambda error: True) -> Iterator[None]:
        """As explain_failures, for a block that does nothing but communicate: every error is one of the connection."""
        started = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            if not is_failure(error):
                raise
            raise self.monitor.explain_failure(str(error), time.monotonic() - started) from None

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """Wrap a call that waits for all ranks: count it, to see which rank did not join, and explain its failure."""
        self.monitor.collectives += 1
        with self._explain_failures():
            yield

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors with those of rank 0: equal seeds need not give equal weights on different machines."""
        for x in tensors:
            with self._collective():
                self.dist.broadcast(x, 0)

    def overlap_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        self._overlap = OverlappedReduction(parameters, self._start_all_reduce)

    @property
    def overlap(self) -> OverlappedReduction | None:
        return self._overlap

    def start_update(self, weight: int) -> int:
        total = sum(row[0] for row in self._all_gather_numbers([weight]))
        if self._overlap is not None:
            self._overlap.start(weight / total)
        return int(total)

    def _start_all_reduce(self, flat: Tensor) -> Any:
        with self._collective():
            return self.dist.all_reduce(flat, async_op=True)

    def reduce_gradient(
        self, result: GradientResult, weight: int, parameters: Sequence[nn.Parameter]
    ) -> GradientResult:
        """RankGroup.reduce_gradient, with one exchange of numbers: loss, tokens, smallest batch limit, stop signal.

        If any loss or gradient is not finite, the sum is not, so all ranks skip the same updates. Sums that were made
        during the backward pass count only if no rank had to repeat its own.
        """
        absent = [p.grad is None for p in parameters]
        max_area = math.inf if result.max_area is None else result.max_area
        overlap = self._overlap
        if overlap is not None:
            with self._explain_failures():
                overlap.finish()
        needs_reduction = overlap is None or not overlap.is_valid
        row = [float(result.loss), result.tokens, weight, max_area, self._own_signal() or 0, sum(absent)]
        columns = zip(*self._all_gather_numbers([*row, needs_reduction]), strict=True)
        losses, tokens, weights, max_areas, signals, missing, invalid = columns
        self._signal = max(self._signal, int(max(signals)))
        if any(missing):  # a parameter without a gradient on any rank must get none, not zeros
            absent = self._all_true(absent)
        present = [p for p, is_absent in zip(parameters, absent, strict=True) if not is_absent]
        if overlap is not None and not any(invalid):
            overlap.assign(set(present))
        else:
            self._all_reduce_gradients(present, weight / sum(weights))
        if overlap is not None:
            overlap.end()
        smallest = min(max_areas)
        return GradientResult(sum(losses), int(sum(tokens)), None if math.isinf(smallest) else int(smallest))

    def _all_gather_numbers(self, row: Sequence[float]) -> list[list[float]]:
        rows = torch.empty(self.world_size, len(row), dtype=torch.float64)
        with self._collective():
            self.dist.all_gather(list(rows.unbind()), torch.tensor(row, dtype=torch.float64))
        values: list[list[float]] = rows.tolist()
        return values

    def _all_true(self, flags: Sequence[bool]) -> list[bool]:
        every = torch.tensor(flags, dtype=torch.uint8)
        with self._collective():
            self.dist.all_reduce(every, self.dist.ReduceOp.MIN)
        return every.bool().tolist()

    def _all_reduce_gradients(self, parameters: Sequence[nn.Parameter], share: float) -> None:
        """Replace every gradient by Σ_r share_r g_r."""
        for bucket in split_buckets(parameters):
            flat = flatten_gradients(bucket, share)
            with self._collective():
                self.dist.all_reduce(flat)
            assign_gradients(bucket, flat, set(bucket))

    def synchronize_signals(self, own_signal: StopSignal) -> StopSignal:
        # `reduce_gradient` exchanges it with every update.
        self._own_signal = own_signal
        return lambda: self._signal or None

    def all_gather(self, value: T) -> list[T]:
        values = [value] * self.world_size
        with self._collective():
            self.dist.all_gather_object(values, value)
        return values

    def broadcast_from_rank0(self, compute: Callable[[], T]) -> T:
        # It may take any time: the others wait as long as rank 0 sends heartbeats, and not inside a collective.
        self._broadcasts += 1
        key = f"broadcast/{self._broadcasts}"
        if self.is_rank0:
            value = compute()
            with self._explain_failures():
                self.store.set(key, json.dumps(value))
            return value
        received: T = json.loads(self._wait_for_key(key))
        return received

    def gather_when_ready(self, value: T) -> list[T]:
        self._gathers += 1
        name = f"gather/{self._gathers}"
        with self._explain_failures():
            self.store.set(f"{name}/{self.rank}", json.dumps(value))
        values = [json.loads(self._wait_for_key(f"{name}/{rank}")) for rank in range(self.world_size)]
        if self._gathers > 1:  # all ranks have set this value, so they have read the one before
            with self._explain_failures():
                self.store.delete_key(f"gather/{self._gathers - 1}/{self.rank}")
        return values

    def _wait_for_key(self, key: str) -> bytes:
        """The value of a key of the store, as soon as it is there; raises if a rank is lost."""
        pause = 0.001
        while True:
            with self._explain_failures():
                if self.store.check([key]):
                    return self.store.get(key)
            self.monitor.raise_failure()
            time.sleep(pause)
            pause = min(0.1, 1.2 * pause)

    def leave(self, error: BaseException | None) -> None:
        """Announce a failure of this rank, or else destroy the process group; rank 0 waits a while for the others.

        A stop and a divergence end all ranks in the same way. Rank 0's process may hold the store.
        """
        is_common = error is None or isinstance(error, TrainingStopped | TrainingDiverged)
        knows_failure = self.monitor.failure_raised
        message = str(error) if knows_failure else f"rank {self.rank} ended: {describe_error(error)}"
        if not knows_failure:
            self.monitor.stopped.set()
        with suppress(RuntimeError):  # the store may be gone
            if not is_common:
                self.monitor.announce_failure(message)
            self.store.add("ended", 1)
            deadline = time.monotonic() + EXIT_SECONDS / 2
            while self.is_rank0 and self.store.add("ended", 0) < self.world_size and time.monotonic() < deadline:
                time.sleep(0.02)
        if is_common:
            self.dist.destroy_process_group()


def rendezvous(store: Store, rank: int, world_size: int, timeout: float) -> str:
    """Wait until all ranks are there; returns the prefix under which they store their keys.

    torchrun's store outlives the ranks: after a restart it still holds the keys of the ranks before, and no count of
    restarts is sure to be the same on all machines. So rank 0 draws a new prefix, the others answer with a token, and
    rank 0 publishes all tokens. A rank that does not find its own token has read an old prefix, and tries again.
    """
    token, deadline = secrets.token_hex(8), time.monotonic() + timeout
    if rank == 0:
        store.set("name", token)
        keys = [f"{token}/{other}" for other in range(1, world_size)]
        while absent := [other for other, key in enumerate(keys, 1) if not store.check([key])]:
            if time.monotonic() > deadline:
                raise RunError(
                    f"{format_ranks(absent)} did not connect within {timeout} s (training.rank_timeout). {RESTART_HINT}"
                )
            time.sleep(0.02)
        store.set(f"{token}/all", b" ".join(store.multi_get(keys)).decode())
        return token
    while time.monotonic() < deadline:
        if store.check(["name"]):
            name = store.get("name").decode()
            store.set(f"{name}/{rank}", token)
            if store.check([f"{name}/all"]) and token in store.get(f"{name}/all").decode().split():
                return name
        time.sleep(0.02)
    raise RunError(f"rank {rank} waited {timeout} s (training.rank_timeout) until rank 0 saw all ranks")


def select_rank_device(device: torch.device) -> torch.device:
    """The GPU of this rank, set as the current one (Triton kernels run there); or the CPU for all ranks."""
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise UserError(f"runtime.device is {device.type}; several ranks can train on cuda or cpu")
    local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= count:
        raise UserError(
            f"local rank {local} needs a GPU of its own, but there are {count}; start {count} processes on this machine"
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def is_connection_error(error: RuntimeError) -> bool:
    """Whether an error is one of the connection between ranks; gloo's are plain RuntimeErrors."""
    from torch.distributed import DistError

    return isinstance(error, DistError) or any(name in str(error) for name in ("gloo", "Gloo", "NCCL"))


def describe_error(error: BaseException | None) -> str:
    """The message of an error, with its type if it is not a UserError."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
