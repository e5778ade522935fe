"""The ledger of a job: a folder that says what the job is, and holds the results of the shards that are done.

    job.json               the command, the model, the options and the input that decide the results; its own SHA-256
    shard-000123.result    a line of JSON (number, lines, bytes, SHA-256, the job's SHA-256), then the results
    failed-000123.json     a shard that was set aside: its lines, and why
    claims                 no content; a worker locks the byte of the shard that it computes; not at a URL
    .tmp-*                 what is being written

A result appears under its name when it is whole. So whoever finds it need not ask who wrote it or when: processes of
many machines may work in one folder, and no clock and no process number decides anything. A claim only saves work:
where locks do not work, two workers may compute the same shard, which gives the same bytes. A dead worker's lock is
gone with it. There is no database: a folder can be copied, listed and deleted by everyone.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.remote import StoredFile
from dragoman.jobs.shards import InputFile, count_shards
from dragoman.jobs.storage import LocalFolder, open_storage

KIND, FORMAT = "dragoman shards", 1
JOB = "job.json"
CLAIMS = "claims"
RESULT = re.compile(r"shard-(\d{6,})\.result")
FAILURE = re.compile(r"failed-(\d{6,})\.json")
ALL_SHARDS = 1 << 40  # the byte of `claims` that is locked by who needs the folder alone
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL}  # of file systems without locks


@dataclass(frozen=True)
class Job:
    """All that decides the results, and into how many shards the inputs are cut."""

    command: str
    options: dict[str, Any]  # by the name of the command-line option, without its dashes
    inputs: tuple[InputFile, ...]
    lines: int
    shard_size: int

    @property
    def shards(self) -> int:
        """The number of shards."""
        return count_shards(self.lines, self.shard_size)

    def lines_of(self, number: int) -> range:
        """The indices of the inputs of a shard, from 0."""
        return range(number * self.shard_size, min((number + 1) * self.shard_size, self.lines))

    def serialize(self) -> bytes:
        """The content of job.json."""
        value = {
            "kind": KIND,
            "format": FORMAT,
            "command": self.command,
            "options": self.options,
            "inputs": [file.as_json() for file in self.inputs],
            "lines": self.lines,
            "shard_lines": self.shard_size,
        }
        return (json.dumps(value | {"sha256": _digest(value)}, indent=1) + "\n").encode()


@dataclass(frozen=True)
class Failure:
    """A shard that was set aside: the numbers of its first and last line, and why."""

    number: int
    first_line: int
    last_line: int
    error: str

    def __str__(self) -> str:
        return f"shard {self.number} (lines {self.first_line:,} to {self.last_line:,}): {self.error}"

    def as_json(self) -> dict[str, Any]:
        """The failure for --json and its file."""
        return {
            "shard": self.number,
            "first_line": self.first_line,
            "last_line": self.last_line,
            "error": self.error,
        }


@dataclass(frozen=True)
class ShardResult:
    """The results of a shard, and counts that are added up over all shards."""

    data: bytes
    counts: dict[str, int]


class JobMismatch(UserError):
    """A folder is that of another job."""

    def __init__(self, folder: str | Path, differences: str) -> None:
        self.differences = differences
        super().__init__(f"{folder}: belongs to another job: {differences}. Give the same as before, or another folder")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class Ledger:
    """A ledger's folder, a path or a URL, opened."""

    def __init__(self, folder: str | Path, job: Job) -> None:
        self.folder, self.job = folder, job
        self._storage = open_storage(folder)
        self.digest = hashlib.sha256(job.serialize()).hexdigest()
        self._claims: tuple[int, int] | None = None  # process and file handle

    @property
    def is_remote(self) -> bool:
        """Whether the folder is at a URL."""
        return not isinstance(self._storage, LocalFolder)

    # -- open ----------------------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, folder: str | Path) -> Ledger:
        """Open the ledger in a folder; UserError if there is none, or if job.json was changed."""
        path = f"{folder}/{JOB}"
        try:
            data = open_storage(folder).read(JOB)
        except FileNotFoundError:
            raise UserError(f"{folder}: holds no shards: there is no {JOB}") from None
        try:
            value = json.loads(data)
            if value.pop("sha256") != _digest(value) or value["kind"] != KIND:
                raise ValueError
            if value["format"] != FORMAT:
                raise UserError(f"{path}: has format {value['format']}; this version reads format {FORMAT}")
            inputs = tuple(InputFile(one["name"], one["bytes"], one["sha256"]) for one in value["inputs"])
            job = Job(value["command"], value["options"], inputs, value["lines"], value["shard_lines"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UserError(
                f"{path}: was changed or damaged; the results beside it are whole, but nothing says what they are of: "
                "copy the file back, or give another folder"
            ) from None
        return cls(folder, job)

    @classmethod
    def open(
        cls, folder: str | Path, command: str, options: Mapping[str, Any], inputs: Iterable[InputFile], shard_size: int
    ) -> Ledger | None:
        """Open the ledger of a job if there is one; UserError if the folder is that of another job."""
        names = open_storage(folder).names()
        if JOB not in names:
            if any(map(RESULT.fullmatch, names)):
                raise UserError(f"{folder}: has results, but no {JOB}; copy it back, or give another folder")
            return None
        ledger = cls.read(folder)
        ledger.check_same(command, options, list(inputs), shard_size)
        return ledger

    @classmethod
    def create(cls, folder: str | Path, job: Job) -> Ledger:
        """Begin a ledger; the folder and those on its way are made."""
        ledger = cls(folder, job)
        ledger._storage.make()
        ledger._storage.write(JOB, job.serialize())  # others that begin it now write the same
        return ledger

    def check_same(self, command: str, options: Mapping[str, Any], inputs: list[InputFile], shard_size: int) -> None:
        """Raise UserError, which says what differs, if the folder is that of another job."""
        differences = []
        if command != self.job.command:
            differences.append(f"it is of dragoman {self.job.command}, not of dragoman {command}")
        for name in {**self.job.options, **options} if not differences else ():
            before, now = self.job.options.get(name), json.loads(json.dumps(options.get(name)))
            if before != now:
                differences.append(f"{name} was {_show(before)} and is {_show(now)}")
        if [one.sha256 for one in inputs] != [one.sha256 for one in self.job.inputs]:
            differences.append(_describe_input_change(list(self.job.inputs), inputs))
        if shard_size != self.job.shard_size:
            differences.append(f"its shards have {self.job.shard_size:,} lines, not {shard_size:,}")
        if differences:
            raise JobMismatch(self.folder, "; ".join(differences))

    # -- results -------------------------------------------------------------------------------------------------------

    def done(self) -> set[int]:
        """The numbers of the shards that are done."""
        return self._numbers(RESULT)

    def is_done(self, number: int) -> bool:
        """Whether a shard is done."""
        return self._storage.exists(result_name(number))

    def write_result(self, number: int, data: bytes, counts: Mapping[str, int]) -> None:
        """Write the results of a shard, aside and then under their name."""
        header = {
            "shard": number,
            "lines": len(self.job.lines_of(number)),
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "job": self.digest,
            "counts": dict(counts),
        }
        self._storage.write(result_name(number), json.dumps(header).encode() + b"\n" + data)

    def read_result(self, number: int) -> ShardResult:
        """Read and check the results of a shard; UserError if they were changed, or are of another job."""
        path = f"{self.folder}/{result_name(number)}"
        remedy = "delete it, and run the same command again: it computes this shard alone"
        try:
            head, _, data = self._storage.read(result_name(number)).partition(b"\n")
            header = json.loads(head)
            if header["shard"] != number or header["bytes"] != len(data) or not isinstance(header["counts"], dict):
                raise ValueError
            if header["sha256"] != hashlib.sha256(data).hexdigest():
                raise ValueError
            job = header["job"]
        except FileNotFoundError:
            raise UserError(f"{path}: is gone; run the same command again") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f"{path}: was changed or damaged (its checksum differs); {remedy}") from None
        if job != self.digest:
            raise UserError(f"{path}: belongs to another job; {remedy}")
        return ShardResult(data, header["counts"])

    # -- failures ------------------------------------------------------------------------------------------------------

    def set_aside(self, number: int, error: str) -> Failure:
        """Record that a shard cannot be computed."""
        lines = self.job.lines_of(number)
        failure = Failure(number, lines.start + 1, lines.stop, error)
        self._storage.write(failure_name(number), (json.dumps(failure.as_json()) + "\n").encode())
        return failure

    def failures(self) -> list[Failure]:
        """The shards that are set aside, in order."""
        found = []
        for number in sorted(self._numbers(FAILURE) - self.done()):
            lines = self.job.lines_of(number)
            error = "the reason cannot be read"
            with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                error = str(json.loads(self._storage.read(failure_name(number)))["error"])
            found.append(Failure(number, lines.start + 1, lines.stop, error))
        return found

    def clear_failures(self) -> int:
        """Let the shards that are set aside be computed again; returns their number."""
        failures = self.failures()
        for failure in failures:
            self._storage.remove(failure_name(failure.number))
        return len(failures)

    def _numbers(self, pattern: re.Pattern[str]) -> set[int]:
        return {int(match[1]) for name in self._storage.names() if (match := pattern.fullmatch(name))}

    def results(self) -> list[tuple[int, StoredFile]]:
        """The number and the file of each result."""
        found = ((RESULT.fullmatch(file.name), file) for file in self._storage.files())
        return [(int(match[1]), file) for match, file in found if match]

    # -- claims --------------------------------------------------------------------------------------------------------

    @contextmanager
    def claim(self, number: int) -> Iterator[bool]:
        """Lock a shard for this process inside the block; yields False if another process has it."""
        handle = self._claims_file()
        if handle is None or not _lock(handle, number):
            yield handle is None
            return
        try:
            yield True
        finally:
            fcntl.lockf(handle, fcntl.LOCK_UN, 1, number)

    def claim_all(self) -> bool:
        """Say that this process needs the folder alone, as long as it lives; False if another has said so."""
        handle = self._claims_file()
        return handle is None or _lock(handle, ALL_SHARDS)

    def _claims_file(self) -> int | None:
        """The handle of `claims`, one for each process: to close any would unlock all. None: no locks here."""
        if not isinstance(self._storage, LocalFolder):
            return None
        if self._claims is None or self._claims[0] != os.getpid():
            try:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._claims = os.getpid(), os.open(self._storage.path / CLAIMS, flags, 0o666)
            except OSError:
                return None
        return self._claims[1]

    # -- end -----------------------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Remove the folder; job.json goes last, so that one that is half removed is still that of its job."""
        for name in self._storage.names() - {JOB}:
            self._storage.remove(name)
        self._storage.remove(JOB)
        if isinstance(self._storage, LocalFolder):
            with files.explain_write_errors(self._storage.path, 0):
                self._storage.path.rmdir()


def result_name(number: int) -> str:
    """The file of a shard's results."""
    return f"shard-{number:06}.result"


def failure_name(number: int) -> str:
    """The file that says why a shard was set aside."""
    return f"failed-{number:06}.json"


def _lock(handle: int, byte: int) -> bool:
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except OSError as error:
        return error.errno in NO_LOCKS
    return True


def _show(value: Any) -> str:
    text = "not set" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _describe_input_change(before: list[InputFile], now: list[InputFile]) -> str:
    for one, other in zip(before, now, strict=False):
        if one.sha256 != other.sha256:
            grown = " (it has grown)" if other.size > one.size else ""
            sizes = f"had {one.size:,} bytes and has {other.size:,}{grown}" if one.size != other.size else "has changed"
            return f"the input {other.name} {sizes}"
    return f"it has {len(before)} input files, not {len(now)}"
