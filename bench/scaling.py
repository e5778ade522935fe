"""A model of training on many GPUs: bytes per update over the speed of the link, against the step of one GPU.

    python -m bench.scaling [--parameters 60522496] [--tokens 65536] [--tokens-per-second 1570000] …

    all-reduce (ring)   2 (n − 1)/n · 4 P bytes through each link
    sharded             3 (n − 1)/n · 4 P bytes: weights are gathered twice, gradients summed once
    without overlap     t = step + bytes / speed
    with overlap        t = max(step, step/3 + bytes / speed)            the forward pass is about a third of a step
    efficiency          step / t                                         speed-up = n · efficiency

P parameters, gradients and weights in float32. The batch of each GPU stays the same when there are more (weak scaling).
The figures are computed, not measured. Left out: latency, stragglers, the exchange of a few numbers, validation.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

BYTES = 4  # of a gradient or weight
FORWARD = 1 / 3  # of a step


@dataclass(frozen=True)
class Cluster:
    """Machines of some GPUs; speeds in bytes a second, of one GPU's link and of all network cards of a machine."""

    gpus_per_machine: int
    inside: float
    between: float
    reached: float  # share of the nominal speed that collectives reach

    def speed(self, gpus: int) -> float:
        """The speed of the slowest link of a ring through so many GPUs."""
        nominal = self.inside if gpus <= self.gpus_per_machine else min(self.inside, self.between)
        return self.reached * nominal


def moved_bytes(parameters: int, gpus: int, *, is_sharded: bool = False) -> float:
    """The bytes that each link of a ring carries in one update."""
    return (3 if is_sharded else 2) * (gpus - 1) / gpus * BYTES * parameters


def efficiency(step: float, transfer: float, *, overlaps: bool) -> float:
    """The share of a step's time that is computation, for a step and a transfer in seconds."""
    return step / (max(step, FORWARD * step + transfer) if overlaps else step + transfer)


def table(parameters: int, step: float, cluster: Cluster, counts: list[int]) -> Iterator[str]:
    """The lines of a table in Markdown."""
    yield "| GPUs | MB per update | transfer | all-reduce after | overlapped | sharded, overlapped |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for n in counts:
        whole, sharded = (moved_bytes(parameters, n, is_sharded=kind) for kind in (False, True))
        seconds, sharded_seconds = whole / cluster.speed(n), sharded / cluster.speed(n)
        ways = [(seconds, False), (seconds, True), (sharded_seconds, True)]
        shares = [efficiency(step, transfer, overlaps=overlaps) for transfer, overlaps in ways]
        cells = [f"{n}", f"{whole / 1e6:.0f}", f"{1e3 * seconds:.1f} ms", *(f"{share:.0%}" for share in shares)]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table for the inputs of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--parameters", type=int, default=60_522_496, help="default: transformer-base, vocabulary 32,000, tied")
    add("--tokens", type=int, default=65_536, help="source and target tokens in the batch of one GPU")
    add("--tokens-per-second", type=float, default=1.57e6, help="measured on one GPU")
    add("--gpus-per-machine", type=int, default=8)
    add("--inside", type=float, default=450.0, help="GB/s of one GPU's link inside a machine (NVLink 4: 450)")
    add("--between", type=float, default=400.0, help="GB/s of a machine's network cards together (8 × 400 Gbit/s: 400)")
    add("--reached", type=float, default=0.8, help="share of these speeds that collectives reach")
    add("--gpus", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    options = parser.parse_args()
    step = options.tokens / options.tokens_per_second
    cluster = Cluster(options.gpus_per_machine, 1e9 * options.inside, 1e9 * options.between, options.reached)
    print(
        f"a step of one GPU: {1e3 * step:.1f} ms\n", *table(options.parameters, step, cluster, options.gpus), sep="\n"
    )


if __name__ == "__main__":
    main()
