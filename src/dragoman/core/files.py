"""Write files and folders atomically: under a temporary name, flushed to the disk, then renamed.

A process killed at any moment leaves the old file or the new one, and at most a `.tmp-…` beside it.
The permissions follow the user's umask, so that others can read a model.

    open_atomic   files of our own folders: a link or a device under the name is replaced, never written through
    open_output   files that a user names: links are followed, mode and owner are kept, a device stays a device
    open_plain    files of folders that may be a stranger's: no link, no device, no pipe, and of limited size
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import logging
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Literal

from dragoman.core.errors import RunError

logger = logging.getLogger("dragoman")

TEMPORARY_PREFIX = ".tmp-"
DISK_BLOCK = 4096  # bytes: a file occupies whole blocks
# Errors that say nothing about a file's content.
READ_FAILURES = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM, errno.ESTALE}


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically, flushed to the disk; RunError explains a failure."""
    with open_atomic(path, len(data)) as file:
        file.write(data)


def write_shared(path: Path, data: bytes) -> None:
    """Write a file, as write_file does, in a folder that processes of several machines write into."""
    with open_atomic(path, len(data), token=secrets.token_hex(8)) as file:  # their numbers may be the same
        file.write(data)


@contextmanager
def open_atomic(
    path: Path, size: int = 0, like: os.stat_result | None = None, token: str | None = None
) -> Iterator[IO[bytes]]:
    """Open a file to write piece by piece; it appears under its name when the block ends without an error.

    With `like` it gets the mode and the owner of the file with that status. The temporary name ends with the `token`,
    by default the number of this process.
    """
    temporary = _temporary_path(path, token)
    with explain_write_errors(path, size):
        try:
            with _open_flushed(temporary, like) as file:
                yield file
            temporary.replace(path)
            flush_to_disk(path.parent)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def write_output(path: Path, data: bytes) -> None:
    """Write a file that a user named, as open_output does; folders on its way are created."""
    make_folder(path.parent)
    with open_output(path) as file:
        file.write(data)


@contextmanager
def open_output(path: Path, inputs: Iterable[str | Path] = ()) -> Iterator[IO[bytes]]:
    """Open a file that a user named: a plain one appears when it is complete, with the mode and owner it had before.

    A link is followed. A pipe, a terminal or the standard output is written to directly; other things that are no plain
    file raise RunError, and so does one of the `inputs`, under whichever name. What killed processes left in the folder
    under temporary names is kept as NAME.partial-N.
    """
    target, status = _find_output(path)
    if status is not None:
        _check_output(path, status, inputs)
        stream = _find_standard_stream(status)
        if stream is not None or not stat.S_ISREG(status.st_mode):
            with explain_write_errors(path, 0):
                handle = os.open(path, os.O_WRONLY) if stream is None else os.dup(stream)
            with explain_write_errors(path, 0), open(handle, "wb") as file:
                yield file
            return
    _clean_up_after_killed(target.parent)
    with open_atomic(target, like=status) as file:
        yield file


def check_output(path: Path, inputs: Iterable[str | Path] = ()) -> bool:
    """Raise RunError early for what open_output would refuse; returns whether it is, or will be, a plain file."""
    target, status = _find_output(path)
    if status is None:
        if not os.access(target.parent, os.W_OK):
            reason = "its folder is write-protected" if target.parent.is_dir() else "there is no such folder"
            raise RunError(f"{path}: cannot be written: {reason}; choose another folder, or change its permissions")
        return True
    _check_output(path, status, inputs)
    return stat.S_ISREG(status.st_mode) and _find_standard_stream(status) is None


def _find_output(path: Path) -> tuple[Path, os.stat_result | None]:
    """Where an output leads, and the status of what is there; None if nothing is."""
    with explain_write_errors(path, 0):
        target = Path(os.path.realpath(path))
        try:  # /dev/stdout may lead to a pipe without a name
            return target, target.stat() if target.exists() else path.stat()
        except FileNotFoundError:
            return target, None


@contextmanager
def open_journal(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that keeps results while an output is made that is whole only at its end, and is then removed.

    If the process is killed, the next command that writes into the folder keeps it as NAME.jsonl.partial-N.
    """
    temporary = _temporary_path(path.with_name(f"{path.name}.jsonl"))
    with explain_write_errors(path, 0):
        try:
            with _open_flushed(temporary) as file:
                yield file
        finally:
            with suppress(OSError):
                temporary.unlink()


def open_scratch(folder: Path) -> IO[bytes]:
    """Open a file without a name, which vanishes with the process."""
    return TemporaryFile(dir=folder)


def _check_output(path: Path, status: os.stat_result, inputs: Iterable[str | Path]) -> None:
    """Raise RunError if what exists at an output path is an input, a folder, a disk or a socket, or is protected."""
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFBLK: "a disk", stat.S_IFSOCK: "a socket"}
    if (kind := kinds.get(stat.S_IFMT(status.st_mode))) is not None:
        raise RunError(f"{path}: cannot be written: it is {kind}; name a file")
    if not os.access(path, os.W_OK):
        raise RunError(f"{path}: cannot be written: it is write-protected; choose another file")
    for file in inputs if stat.S_ISREG(status.st_mode) else ():
        with suppress(OSError):
            if os.path.samestat(status, os.stat(file)):
                raise RunError(f"{path}: is also an input, {file}, which would be lost; choose another output")


def _find_standard_stream(status: os.stat_result) -> int | None:
    """The standard output or error of this process if that is the file with this status (/dev/stdout); else None."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, in memory, or none
            if os.path.samestat(status, os.fstat(stream.fileno())):
                stream.flush()  # what was printed comes first
                return stream.fileno()
    return None


def set_aside(path: Path, label: str, name: Path | None = None) -> Path:
    """Rename a file to NAME.LABEL-N, N being the first free number; NAME is its own unless given. Returns the path."""
    name = name or path
    numbered = (name.with_name(f"{name.name}.{label}-{n}") for n in itertools.count(1))
    target = next(candidate for candidate in numbered if not os.path.lexists(candidate))
    path.rename(target)
    return target


def read_file(path: Path, limit: int) -> bytes:
    """Read a file that a user names, of any kind; OSError if it has more than `limit` bytes."""
    with path.open("rb") as file:
        return _read_limited(file, limit)


def read_plain(path: Path, limit: int) -> bytes:
    """Read a plain file; OSError, without waiting, if it is none or has more than `limit` bytes, else RunError."""
    with explain_read_errors(path), open_plain(path) as file:
        return _read_limited(file, limit)


@contextmanager
def explain_read_errors(path: Path) -> Iterator[None]:
    """Raise RunError for a file that may be whole but cannot be read now: it must not pass for a damaged one."""
    try:
        yield
    except OSError as error:
        if error.errno not in READ_FAILURES:
            raise
        remedy = "check the disk, the permissions and the limit of open files, then run the same command again"
        raise RunError(f"{path}: cannot be read: {error.strerror}; {remedy}") from None


def open_plain(path: Path, mode: Literal["rb", "ab", "a+b"] = "rb") -> IO[bytes]:
    """Open a plain file; OSError, without waiting, for anything else, also for a link to a plain file."""

    not_plain = OSError(errno.EINVAL, "it is not a plain file but a link, a folder, a device or a pipe", str(path))

    def open_without_following(name: str, flags: int) -> int:
        try:
            handle = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except OSError as error:
            raise not_plain if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR) else error from None
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
        raise not_plain

    return open(path, mode, opener=open_without_following)


def _read_limited(file: IO[bytes], limit: int) -> bytes:
    size = os.fstat(file.fileno()).st_size
    data = b"" if size > limit else file.read(limit + 1)  # what is no plain file has no size
    if max(size, len(data)) > limit:
        found = f"it has {size:,} bytes, " if size > limit else "it has "
        raise OSError(errno.EFBIG, f"{found}more than the {limit:,} that are allowed", file.name)
    return data


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files atomically; `folder` must not exist. RunError explains a failure."""
    size = sum(-(-len(data) // DISK_BLOCK) * DISK_BLOCK for data in files.values())
    with new_folder(folder, size) as temporary:
        for name, data in files.items():
            with _open_flushed(temporary / name) as file:
                file.write(data)


@contextmanager
def new_folder(folder: Path, size: int = 0) -> Iterator[Path]:
    """A folder to write into, which appears under its name when the block ends without an error; it must not exist.

    Files that others write into it must be flushed by the caller (flush_to_disk).
    """
    temporary = _temporary_path(folder)
    with explain_write_errors(folder, size):
        try:
            temporary.mkdir(parents=True)
            yield temporary
            flush_to_disk(temporary)
            temporary.rename(folder)
            flush_to_disk(folder.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def remove_folder(folder: Path) -> None:
    """Rename a folder, then remove it: it is never half removed under its own name."""
    temporary = _temporary_path(folder)
    folder.rename(temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def remove_temporary(folder: Path) -> list[str]:
    """Remove temporary files and folders that a killed process left; returns their names."""
    leftovers = sorted(folder.glob(f"{TEMPORARY_PREFIX}*")) if folder.is_dir() else []
    for path in leftovers:
        is_folder = path.is_dir() and not path.is_symlink()
        shutil.rmtree(path, ignore_errors=True) if is_folder else path.unlink(missing_ok=True)
    return [path.name for path in leftovers]


def _clean_up_after_killed(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder; what has content is kept as NAME.partial-N."""
    for path in folder.glob(f"{TEMPORARY_PREFIX}*-*"):
        name, _, pid = path.name.rpartition("-")
        # In another container the same number may be another process: only the lock is certain.
        if not pid.isdecimal() or (int(pid) != os.getpid() and _is_running(int(pid))):
            continue
        with suppress(OSError), open_plain(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer lives
            if path.stat().st_size == 0:
                path.unlink()
                continue
            kept = set_aside(path, "partial", path.with_name(name.removeprefix(TEMPORARY_PREFIX)))
            logger.warning(f"an earlier command was killed; what it had written is in {kept}, maybe cut at its end")


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, unless it exists, flushed to the disk; RunError explains a failure."""
    with explain_write_errors(folder, 0):
        created = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for path in created:
            flush_to_disk(path.parent)


@contextmanager
def explain_write_errors(path: Path, size: int) -> Iterator[None]:
    """Turn an OSError of writing into a RunError with path, reason and remedy; `size` is the bytes needed, if known."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            needed = f"{size:,} bytes are needed, " if size else ""
            raise RunError(
                f"{path}: the disk is full: {needed}{_free_bytes(path):,} bytes are free. "
                "Files saved before are unchanged; free some space and run the same command again"
            ) from None
        reason, hint = error.strerror or str(error), "choose another folder, or change its permissions"
        raise RunError(f"{path}: cannot be written: {reason}; {hint}") from None


def _free_bytes(path: Path) -> int:
    """The free bytes on the disk of a path, which need not exist yet."""
    return shutil.disk_usage(next(place for place in (path, *path.parents) if place.exists())).free


def _temporary_path(path: Path, token: str | None = None) -> Path:
    return path.with_name(f"{TEMPORARY_PREFIX}{path.name}-{token or os.getpid()}")


@contextmanager
def _open_flushed(path: Path, like: os.stat_result | None = None) -> Iterator[IO[bytes]]:
    """Open a new file to write, `like` another; it is locked while it is open, and flushed to the disk at the end."""

    def create(name: str, flags: int) -> int:
        return os.open(name, flags, 0o666 if like is None else 0o600)  # what was private is never open to others

    with suppress(FileNotFoundError):  # left by a killed process that had our number
        path.unlink()
    with open(path, "xb", opener=create) as file:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if like is not None:
            if (like.st_uid, like.st_gid) != (os.geteuid(), os.fstat(file.fileno()).st_gid):
                os.fchown(file.fileno(), like.st_uid, like.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
        yield file
        file.flush()
        os.fsync(file.fileno())


def flush_to_disk(path: Path) -> None:
    """Flush a folder, or a file that was written before, as far as its file system can; nothing if it is missing."""
    with suppress(OSError):  # some file systems cannot flush a folder; a rename in it is still atomic
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
