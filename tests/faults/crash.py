"""A disk that loses power: the recorded calls of a run, replayed up to any point, with unflushed writes lost.

What is promised by POSIX: the bytes of a file after fsync of the file, its name after fsync of the folder. Before that,
bytes may be missing, cut or zero, and changes of a folder may be missing; those of one folder keep their order.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from .disk import Call

Bytes = Literal["kept", "dropped", "half", "zeros"]  # what becomes of bytes that were not flushed
Names = Literal["kept", "dropped", "cut"]  # … of changes of folders; cut: each folder keeps some first ones


@dataclass
class Node:
    """A file, or a folder with its changes: names, and their nodes or None where they are removed."""

    is_folder: bool
    data: bytearray = field(default_factory=bytearray)
    flushed: bytes = b""
    changes: list[Change] = field(default_factory=list)
    flushed_changes: int = 0
    names: dict[str, Node] = field(default_factory=dict)  # after all changes

    def change(self, change: Change) -> None:
        self.changes.append(change)
        apply_change(self.names, change)

    def names_after(self, count: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for change in self.changes[:count]:
            apply_change(found, change)
        return found


Change = list[tuple[str, Node | None]]  # in one atomic step


def apply_change(names: dict[str, Node], change: Change) -> None:
    for name, node in change:
        names.pop(name, None)
        if node is not None:
            names[name] = node


class Disk:
    """The disk of a machine that runs on from a recording and may lose its power after any call."""

    def __init__(self, root: Path) -> None:
        self.root_path, self.root = os.path.realpath(root), Node(True)

    def find(self, path: str) -> Node | None:
        node: Node | None = self.root
        for part in Path(os.path.relpath(path, self.root_path)).parts:
            node = None if node is None else node.names.get(part)
        return node

    def change(self, path: str, node: Node | None) -> None:
        folder, name = os.path.split(path)
        parent = self.find(folder)
        assert parent is not None, path
        parent.change([(name, node)])

    def apply(self, call: Call) -> None:
        node = self.find(call.path)
        if call.kind == "create":
            if node is None:
                self.change(call.path, Node(False))
            elif call.flags & os.O_TRUNC:
                node.data.clear()
        elif call.kind == "mkdir" and node is None:
            self.change(call.path, Node(True))
        elif call.kind == "write" and node is not None:
            node.data[len(node.data) :] = bytes(max(call.offset - len(node.data), 0))
            node.data[call.offset : call.offset + len(call.data)] = call.data
        elif call.kind == "truncate" and node is not None:
            del node.data[call.offset :]
        elif call.kind == "sync" and node is not None:
            node.flushed, node.flushed_changes = bytes(node.data), len(node.changes)
        elif call.kind == "remove" and node is not None:
            self.change(call.path, None)
        elif call.kind == "rename" and node is not None:
            (old_folder, old), (new_folder, new) = os.path.split(call.path), os.path.split(call.target)
            assert old_folder == new_folder, "a rename between folders is two changes, which this disk does not know"
            parent = self.find(old_folder)
            assert parent is not None
            parent.change([(old, None), (new, node)])

    def after_crash(self, bytes_: Bytes, names: Names, rng: random.Random) -> dict[str, bytes | None]:
        """The files (and folders: None) that are there after the power comes back, by relative path."""
        found: dict[str, bytes | None] = {}

        def visit(node: Node, path: str) -> None:
            if not node.is_folder:
                found[path] = surviving_bytes(node, bytes_)
                return
            if path:
                found[path] = None
            least, most = node.flushed_changes, len(node.changes)
            count = {"kept": most, "dropped": least, "cut": rng.randint(least, most)}[names]
            for name, child in sorted(node.names_after(count).items()):
                visit(child, f"{path}/{name}" if path else name)

        visit(self.root, "")
        return found


def surviving_bytes(node: Node, kind: Bytes) -> bytes:
    data = bytes(node.data)
    if kind == "kept" or data == node.flushed:
        return data
    if kind == "dropped":
        return node.flushed
    pairs = enumerate(zip(data, node.flushed, strict=False))
    same = next((i for i, (a, b) in pairs if a != b), min(len(data), len(node.flushed)))
    if kind == "half":
        return data[: same + (len(data) - same) // 2]
    return data[:same] + bytes(len(data) - same)


def write_state(state: dict[str, bytes | None], folder: Path) -> None:
    """Write the files of a state into a new folder."""
    folder.mkdir(parents=True)
    for path, data in state.items():
        if data is None:
            (folder / path).mkdir(parents=True, exist_ok=True)
        else:
            (folder / path).write_bytes(data)


Recording = list[Call]


def recorder(recording: Recording) -> Callable[[Call], None]:
    """A hook that keeps the calls which change something."""
    kept = ("create", "write", "truncate", "sync", "rename", "mkdir", "remove")
    return lambda call: recording.append(call) if call.kind in kept else None
