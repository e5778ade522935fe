"""Training on many ranks: each takes batches of its own, and all take the same step.

    g = Σ_r n_r g_r / Σ_r n_r        g_r: the gradient of rank r's batches, a mean over their n_r tokens (or sentences)

n_r g_r is a sum over tokens, so g is the mean over the tokens of all ranks and does not depend on how many ranks share
them. The gradients are added after the backward passes, in flat buckets, and not by torch's DistributedDataParallel:
a rank may split a batch that did not fit into memory, have no batch at all at the end of the epochs, leave a parameter
unused, or replay its backward pass as a CUDA graph, and none of these may change what the other ranks are waiting for.
What is given up is adding while the backward pass still runs: 260 MB for a Transformer-base, once an update.

    update     exchange of a few numbers (loss, tokens, signals) → buckets added → the same optimizer step everywhere
    rank 0     prepares, validates, saves, logs; the others wait for its word, as long as it lives
    watch.py   every rank gives signs of life: one that gives none is named, and all end

r rank, n_r what its gradient is a mean over. The only file that imports torch.distributed, and only where there are
ranks: alone, nothing of it runs.
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
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from dragoman.core.errors import Diverged, RunError, Stopped, UserError
from dragoman.training.gradient import Update
from dragoman.training.heartbeat import AGAIN, LINGER, Watch, named

BUCKET = 1 << 23  # numbers added at once: 32 MB of float32, large enough for the network, small beside the model

T = TypeVar("T")


class Ranks(Protocol):
    """What a trainer asks of the other ranks."""

    number: int  # of this rank
    count: int

    @property
    def first(self) -> bool: ...
    def device(self, device: torch.device) -> torch.device: ...
    def spread(self, tensors: Sequence[Tensor]) -> None: ...
    def merge(self, found: Update, weight: int, parameters: Sequence[nn.Parameter]) -> Update: ...
    def listen(self, asked: Callable[[], int | None]) -> Callable[[], int | None]: ...
    def from_first(self, make: Callable[[], T]) -> T: ...
    def share(self, value: T) -> list[T]: ...


class Alone:
    """One rank, which has nobody to ask."""

    number, count, first = 0, 1, True

    def device(self, device: torch.device) -> torch.device:
        return device

    def spread(self, tensors: Sequence[Tensor]) -> None:
        pass

    def merge(self, found: Update, weight: int, parameters: Sequence[nn.Parameter]) -> Update:
        return found

    def listen(self, asked: Callable[[], int | None]) -> Callable[[], int | None]:
        return asked

    def from_first(self, make: Callable[[], T]) -> T:
        return make()

    def share(self, value: T) -> list[T]:
        return [value]


def position() -> tuple[int, int]:
    """This process's rank and how many there are, as torchrun says in the environment."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count <= 1:
        return 0, 1
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UserError(f"WORLD_SIZE is {count}, but {' and '.join(missing)} is not set; start the ranks with torchrun")
    return int(os.environ["RANK"]), count


@contextmanager
def joined(device: torch.device, timeout: float) -> Iterator[Ranks]:
    """Meet the other ranks, if there are any, for as long as a training lasts."""
    number, count = position()
    if count == 1:
        yield Alone()
        return
    ranks = Together(number, count, device, timeout)
    try:
        yield ranks
    except BaseException as error:
        ranks.leave(error)
        raise
    ranks.leave(None)


# -- all together ------------------------------------------------------------------------------------------------------


class Together:
    """This rank among others: every method but `listen` is called by all ranks in the same order."""

    def __init__(self, number: int, count: int, device: torch.device, timeout: float) -> None:
        import torch.distributed

        self.number, self.count, self.dist = number, count, torch.distributed
        dist: Any = torch.distributed  # not all of what it offers is typed
        self._place = own_device(device)
        self._told = self._signal = 0
        self._asked: Callable[[], int | None] = lambda: None
        limit = timedelta(seconds=timeout)
        try:
            store = next(dist.rendezvous("env://", timeout=limit))[0]
        except RuntimeError as error:
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise RunError(f"rank {number}: not all {count} ranks met at {where} within {timeout} s: {error}") from None
        name = meet(store, number, count, timeout)
        self.store = dist.PrefixStore(name, store)
        # The watch has a connection of its own: one call at a time goes through each.
        self.watch = Watch(dist.PrefixStore(name, store.clone()), number, count, timeout)
        self.watch.start()
        # Numbers of the host go through gloo also where gradients go through NCCL: no GPU has to wait for them.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        with self._exchange():
            group = dist.PrefixStore("group", self.store)
            dist.init_process_group(backend, store=group, rank=number, world_size=count, timeout=limit)

    @property
    def first(self) -> bool:
        return self.number == 0

    def device(self, device: torch.device) -> torch.device:
        return self._place

    @contextmanager
    def _blaming(self) -> Iterator[None]:
        """What breaks in here was broken by one of the ranks, which is named."""
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            raise self.watch.blame(str(error), time.monotonic() - began) from None

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """Around everything that waits for all ranks; they are counted, so that one that does not come is known."""
        self.watch.turn += 1
        with self._blaming():
            yield

    # -- tensors ---------------------------------------------------------------------------------------------------

    def spread(self, tensors: Sequence[Tensor]) -> None:
        """Rank 0's values for everyone: the same seed need not give the same weights on another kind of machine."""
        for x in tensors:
            with self._exchange():
                self.dist.broadcast(x, 0)

    def merge(self, found: Update, weight: int, parameters: Sequence[nn.Parameter]) -> Update:
        """What all ranks found together, and their gradient in every one of them.

        One that is not finite anywhere is not finite in the sum, so all ranks skip the same updates. The smallest
        limit counts for all, as it is saved for all; so does a signal that asked any rank to stop.
        """
        absent = [p.grad is None for p in parameters]
        limit = math.inf if found.limit is None else found.limit
        row = [float(found.loss), found.tokens, weight, limit, self._asked() or 0, sum(absent)]
        losses, tokens, weights, limits, signals, missing = zip(*self._gather(row), strict=True)
        self._signal = max(self._signal, int(max(signals)))
        if any(missing):
            absent = self._on_all(absent)
        self._add([p for p, gone in zip(parameters, absent, strict=True) if not gone], weight / sum(weights))
        least = min(limits)
        return Update(sum(losses), int(sum(tokens)), None if math.isinf(least) else int(least))

    def _gather(self, row: Sequence[float]) -> list[list[float]]:
        """The numbers of every rank."""
        rows = torch.empty(self.count, len(row), dtype=torch.float64)
        with self._exchange():
            self.dist.all_gather(list(rows.unbind()), torch.tensor(row, dtype=torch.float64))
        values: list[list[float]] = rows.tolist()
        return values

    def _on_all(self, flags: Sequence[bool]) -> list[bool]:
        """Which flags are up on all ranks: an optimizer leaves alone what has no gradient, and zero would be one."""
        every = torch.tensor(flags, dtype=torch.uint8)
        with self._exchange():
            self.dist.all_reduce(every, self.dist.ReduceOp.MIN)
        return every.bool().tolist()

    def _add(self, parameters: Sequence[nn.Parameter], share: float) -> None:
        """Every gradient becomes Σ_r share_r g_r; a rank that has none adds nothing."""
        for bucket in buckets(parameters):
            flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
            flat *= share
            with self._exchange():
                self.dist.all_reduce(flat)
            for p, g in zip(bucket, torch.split(flat, [p.numel() for p in bucket]), strict=True):
                if p.grad is None:
                    p.grad = torch.empty_like(p)
                p.grad.copy_(g.view_as(p))  # where it lies: a captured backward pass writes there again

    # -- words -----------------------------------------------------------------------------------------------------

    def listen(self, asked: Callable[[], int | None]) -> Callable[[], int | None]:
        """The signal that asked any rank to stop, the same on all: they told each other in the last update."""
        self._asked = asked
        return lambda: self._signal or None

    def share(self, value: T) -> list[T]:
        """A small value of every rank."""
        values: list[Any] = [None] * self.count
        with self._exchange():
            self.dist.all_gather_object(values, value)
        return values

    def from_first(self, make: Callable[[], T]) -> T:
        """Let rank 0 do something and tell the others what came of it (as JSON), however long it takes.

        No exchange is open meanwhile, so no timeout counts but that of rank 0's signs of life.
        """
        self._told += 1
        key = f"told/{self._told}"
        if self.first:
            value = make()
            with self._blaming():
                self.store.set(key, json.dumps(value))
            return value
        pause = 0.001
        while True:
            with self._blaming():
                if self.store.check([key]):
                    return json.loads(self.store.get(key))  # type: ignore[no-any-return]
            self.watch.check()
            time.sleep(pause)
            pause = min(0.1, 1.2 * pause)

    def leave(self, error: BaseException | None) -> None:
        """Say why before going, so that nobody waits; rank 0 goes last, for it may be its process that holds the store.

        A stop and a divergence are every rank's.
        """
        clean = error is None or isinstance(error, Stopped | Diverged)
        lost = self.watch.blamed
        said = str(error) if lost else f"rank {self.number} ended: {reason(error)}"
        if not lost:
            self.watch.over.set()
        with suppress(RuntimeError):  # a store that has gone needs no goodbye
            if not clean:
                self.watch.say_goodbye(said)
            self.store.add("ended", 1)
            end = time.monotonic() + LINGER / 2
            while self.first and self.store.add("ended", 0) < self.count and time.monotonic() < end:
                time.sleep(0.02)
        if clean:
            self.dist.destroy_process_group()


def meet(store: Any, number: int, count: int, timeout: float) -> str:
    """Wait until all ranks are there; the name under which this start of theirs keeps its words in the store.

    torchrun's store outlives the ranks: after a restart it still holds the words of those before, and no count of
    restarts is sure to be the same on all machines. So rank 0 draws a name, the others answer to it, and rank 0 repeats
    the answers: one that does not find its own among them has read an old name, and looks again.
    """
    mine, end = secrets.token_hex(8), time.monotonic() + timeout
    if number == 0:
        store.set("name", mine)
        keys = [f"{mine}/{rank}" for rank in range(1, count)]
        while absent := [rank for rank, key in enumerate(keys, 1) if not store.check([key])]:
            if time.monotonic() > end:
                raise RunError(f"{named(absent)} did not come within {timeout} s (training.rank_timeout). {AGAIN}")
            time.sleep(0.02)
        store.set(f"{mine}/all", b" ".join(store.multi_get(keys)))
        return mine
    while time.monotonic() < end:
        if store.check(["name"]):
            name = store.get("name").decode()
            store.set(f"{name}/{number}", mine)
            if store.check([f"{name}/all"]) and mine in store.get(f"{name}/all").decode().split():
                return str(name)
        time.sleep(0.02)
    raise RunError(f"rank {number} waited {timeout} s (training.rank_timeout) for rank 0 to say that all are there")


def own_device(device: torch.device) -> torch.device:
    """The GPU of this rank, made the current one (Triton's kernels run there); or the CPU for all."""
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise UserError(f"runtime.device is {device.type}; several ranks train on cuda or cpu")
    local, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= there:
        raise UserError(f"rank {local} of this machine needs a GPU of its own, but there are {there}; start {there}")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters in their order, so many at a time as fit into a bucket and are of one type."""
    bucket: list[nn.Parameter] = []
    size = 0
    for p in parameters:
        if bucket and (size + p.numel() > BUCKET or p.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(p)
        size += p.numel()
    if bucket:
        yield bucket


def reason(error: BaseException | None) -> str:
    """An error in a few words, for others to repeat."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
