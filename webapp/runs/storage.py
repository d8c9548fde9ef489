"""Bytes of a bundle at any place: mapped from a file of this machine, or fetched from a store."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.fs

from lanescope.webapp.runs.errors import RunError

ADDRESS = re.compile(r"[a-z][a-z0-9]+://")
"""What begins like this names an object of a store, not a path."""


class Bytes(Protocol):
    """A file that does not change. Safe to use from several threads."""

    @property
    def size(self) -> int:
        """How many there are."""

    def at(self, offset: int, count: int) -> pa.Buffer:
        """Returns some of them. OSError where they cannot be had; fewer past the end."""

    def file(self, offset: int, count: int) -> pa.NativeFile:
        """Returns some of them as a file of their own."""


class LocalBytes:
    """A file of this machine, mapped: nothing is read before it is looked at, nothing twice."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.size = path.stat().st_size
        # An empty file cannot be mapped.
        with pa.memory_map(str(path), "r") if self.size else pa.BufferReader(b"") as file:
            self._all = file.read_buffer()

    def at(self, offset: int, count: int) -> pa.Buffer:
        """Returns a view of the mapped file."""
        return self._all.slice(min(offset, self.size), min(count, max(self.size - offset, 0)))

    def file(self, offset: int, count: int) -> pa.NativeFile:
        """Returns a view of the mapped file."""
        return pa.BufferReader(self.at(offset, count))


FETCHED_BYTES, BLOCKS = 1 << 20, 64
"""What is fetched at a time, and how many of them are kept: a Parquet file is read in many small
pieces, and each request takes as long as fetching a megabyte."""


class RemoteBytes:
    """An object of a store, fetched by blocks on demand; large reads by themselves."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self.size = int(file.size())
        self._block = lru_cache(maxsize=BLOCKS)(self._fetch)

    def at(self, offset: int, count: int) -> pa.Buffer:
        """Returns the bytes, fetched or still here."""
        end = min(offset + count, self.size)
        if end - offset > 4 * FETCHED_BYTES:
            return pa.py_buffer(self._file.read_at(end - offset, offset))
        pieces = []
        for number in range(offset // FETCHED_BYTES, -(-end // FETCHED_BYTES)):
            begins = number * FETCHED_BYTES
            low, high = max(offset, begins), min(end, begins + FETCHED_BYTES)
            pieces.append(self._block(number)[low - begins : high - begins])
        return pa.py_buffer(b"".join(pieces))

    def _fetch(self, number: int) -> bytes:
        begins = number * FETCHED_BYTES
        found: bytes = self._file.read_at(min(FETCHED_BYTES, self.size - begins), begins)
        return found

    def file(self, offset: int, count: int) -> pa.NativeFile:
        """Returns a window of the object."""
        return pa.PythonFile(_Window(self, offset, count), "r")


class _Window:
    """What pyarrow needs of a Python file, for a part of another one."""

    closed = False

    def __init__(self, all_of_it: RemoteBytes, offset: int, count: int) -> None:
        self._all, self._offset, self._count, self._at = all_of_it, offset, count, 0

    def read(self, count: int = -1) -> pa.Buffer:
        left = self._count - self._at
        count = left if count is None or count < 0 else min(count, left)
        found = self._all.at(self._offset + self._at, count)
        self._at += len(found)
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._count)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def store_of(address: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Returns the store and the path in it of an address such as s3://bucket/run.lanes.

    Credentials, region and endpoint are those that the store's own tools use. RunError where the
    address is not one.
    """
    try:
        store, path = pyarrow.fs.FileSystem.from_uri(address)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise RunError(
            f"{address}: cannot be opened ({_reason(error)}); expected a path, or the address of "
            "an object such as s3://bucket/run.lanes"
        ) from None
    return store, path


def opened_remotely(address: str) -> Bytes:
    """Returns the object at an address. Raises RunError without any."""
    store, path = store_of(address)
    try:
        return RemoteBytes(store.open_input_file(path))
    except FileNotFoundError:
        raise RunError(f"{address}: no such object; expected a bundle there") from None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise RunError(
            f"{address}: cannot be read ({_reason(error)}); expected a bundle, as written by "
            "`lanescope pack`"
        ) from None


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0]
