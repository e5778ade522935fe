"""Change inputs at random: bytes, numbers, words, and the values of a JSON text."""

from __future__ import annotations

import gzip
import json
import random
import re
import struct
import zlib
from collections.abc import Sequence
from typing import Any

NUMBERS = (b"0", b"-1", b"255", b"65536", b"2147483648", b"9223372036854775808", b"1e308", b"1e999", b"NaN", b"0.5")
VALUES = (
    None,
    True,
    0,
    -1,
    2**31,
    2**63,
    10**30,
    1e308,
    "",
    "a" * 300,
    "\x00",
    "\ud800",
    [],
    {},
    [[]],
    [None],
    {"": 0},
)
MAX_BYTES = 100_000


def mutate(rng: random.Random, data: bytes, others: Sequence[bytes], words: Sequence[str], suffix: str = "") -> bytes:
    """One input made of another by a few changes; with the suffix .gz, of its content mostly."""
    if suffix == ".gz" and rng.random() < 0.7:
        try:
            content = zlib.decompressobj(31).decompress(data, MAX_BYTES)
        except zlib.error:
            content = data
        return gzip.compress(mutate(rng, content, [], words), 1, mtime=0)
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        data = rng.choice(CHANGES)(rng, data, others, words)[:MAX_BYTES]
    return data


def change_bytes(rng: random.Random, data: bytes, others: Sequence[bytes], words: Sequence[str]) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(rng.choice([1, 1, 3, 10])):
        i = rng.randrange(len(changed))
        changed[i] = rng.choice([rng.randrange(256), changed[i] ^ 1 << rng.randrange(8), 0, 255])
    return bytes(changed)


def change_integer(rng: random.Random, data: bytes, others: Sequence[bytes], words: Sequence[str]) -> bytes:
    """Write an extreme number over two, four or eight bytes."""
    form = rng.choice(["<H", ">H", "<I", ">I", "<Q", ">Q"])
    i, size = rng.randrange(len(data) + 1), struct.calcsize(form)
    return data[:i] + struct.pack(form, rng.choice([0, 1, 2 ** (8 * size - 1), 2 ** (8 * size) - 1])) + data[i + size :]


def cut(rng: random.Random, data: bytes, others: Sequence[bytes], words: Sequence[str]) -> bytes:
    i, j = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return rng.choice([data[:i] + data[j:], data[:i]])


def repeat(rng: random.Random, data: bytes, others: Sequence[bytes], words: Sequence[str]) -> bytes:
    i, j = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[:j] + data[i:j] * rng.choice([1, 3, 100]) + data[j:]


def splice(rng: random.Random, data: bytes, others: Sequence[bytes], words: Sequence[str]) -> bytes:
    other = rng.choice(others) if others else data
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def insert_word(rng: random.Random, data: bytes, others: Sequence[bytes], words: Sequence[str]) -> bytes:
    i = rng.randrange(len(data) + 1)
    word = rng.choice(words).encode() if words else bytes([rng.randrange(256)])
    return data[:i] + word + data[i:]


def change_number(rng: random.Random, data: bytes, others: Sequence[bytes], words: Sequence[str]) -> bytes:
    """Replace a number that is written in digits."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data[:MAX_BYTES]))
    if not found:
        return data
    number = rng.choice(found)
    return data[: number.start()] + rng.choice(NUMBERS) + data[number.end() :]


def change_json(rng: random.Random, data: bytes, others: Sequence[bytes], words: Sequence[str]) -> bytes:
    """Replace, remove or double a value of a JSON text, or of one that follows a length (safetensors)."""
    start = 0 if data[:1] in b"{[" else data.find(b"{")
    try:
        value, end = json.JSONDecoder().raw_decode(data[max(start, 0) :].decode("latin-1"))
    except (ValueError, RecursionError):
        return data
    places: list[tuple[Any, Any]] = []
    remaining = [value]
    while remaining:
        item = remaining.pop()
        pairs = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
        places += [(item, key) for key, _ in pairs]
        remaining += [child for _, child in pairs]
    if places:
        parent, key = rng.choice(places)
        action = rng.randrange(4)
        if action == 0:
            del parent[key]
        elif action == 1 and isinstance(parent, dict) and words:
            parent[rng.choice(words)] = parent[key]
        elif action == 2:
            parent[key] = [parent[key]] * rng.choice([1, 2, 1000])
        else:
            parent[key] = rng.choice(VALUES)
    text = json.dumps(value).encode()
    head = struct.pack("<Q", len(text)) if start == 8 else data[: max(start, 0)]
    return head + text + data[max(start, 0) + end :]


CHANGES = (change_bytes, change_integer, cut, repeat, splice, insert_word, change_number, change_json, change_json)
