"""Pairs of random letters, for benchmarks and tests: any number of them, from a seed.

copy  c a b → c a b          reverse  c a b → b a c          sort  c a b → a b c
"""

from __future__ import annotations

import random
import string

from dragoman.data.samples import synthetic
from dragoman.data.samples.synthetic import Pair, SplitName

TASKS = {"copy": list, "reverse": reversed, "sort": sorted}


def generate_pairs(
    task: str, count: int, seed: int, *, split: SplitName = "train", symbols: int = 8, max_length: int = 20
) -> list[Pair]:
    """`count` pairs of 1 to `max_length` letters from the first `symbols` of the alphabet."""

    def make_pair(rng: random.Random) -> Pair:
        letters = [rng.choice(string.ascii_lowercase[:symbols]) for _ in range(rng.randint(1, max_length))]
        return " ".join(letters), " ".join(TASKS[task](letters))

    return synthetic.generate_pairs(make_pair, count, seed, split=split)
