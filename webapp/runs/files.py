"""Where the files of a run are: a folder or a bundle, on this machine or in an object store.

Everything above asks for a file by its path below the run and never joins paths itself, so that it
cannot distinguish the two.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.fs

from lanescope.collector.format import schema
from lanescope.webapp.runs.bundle import open_bundle
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.storage import (
    ADDRESS,
    LocalBytes,
    RemoteBytes,
    opened_remotely,
    store_of,
)

_EXPECTED = "expected a run directory, as written by `lanescope record -o`"
_OR_BUNDLE = f"{_EXPECTED}, or a bundle, as written by `lanescope pack`"


class Files(Protocol):
    """The files of one run. Safe to use from several threads; equal where they are the same."""

    def __hash__(self) -> int: ...

    @property
    def where(self) -> str:
        """The run's path or address, as it was given."""

    @property
    def place(self) -> str:
        """The same in full."""

    @property
    def folder(self) -> Path | None:
        """The run's directory; None for a bundle."""

    def named(self, name: str) -> str:
        """Returns what a sentence calls a file of the run."""

    def size(self, name: str) -> int:
        """Returns bytes of a file. FileNotFoundError, or another OSError."""

    def stamp(self, name: str) -> tuple[int, int | None]:
        """Returns bytes of a file, and when it was last modified, ns; None: not known. OSError."""

    def open(self, name: str) -> pa.NativeFile:
        """Returns a file, for reading at any place of it. Raises OSError."""

    def read(self, name: str, most: int) -> bytes:
        """Returns all of a file. OSError; RunError where it is longer than `most` bytes."""


@dataclass(frozen=True)
class Folder:
    """A run directory."""

    root: Path

    @property
    def where(self) -> str:
        """As it was given."""
        return str(self.root)

    @property
    def place(self) -> str:
        """The absolute path."""
        return str(self.root.resolve())

    @property
    def folder(self) -> Path | None:
        """The directory."""
        return self.root

    def named(self, name: str) -> str:
        """Returns its path."""
        return str(self.root / name)

    def size(self, name: str) -> int:
        """Asks the file system."""
        return (self.root / name).stat().st_size

    def stamp(self, name: str) -> tuple[int, int | None]:
        """Asks the file system."""
        found = os.stat(f"{self.root}/{name}")  # of thousands: pathlib takes four times as long
        return found.st_size, found.st_mtime_ns

    def open(self, name: str) -> pa.NativeFile:
        """Returns the file."""
        return pa.OSFile(self._file(name), "rb")

    def read(self, name: str, most: int) -> bytes:
        """Returns all of it."""
        path = self._file(name)
        with open(path, "rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise RunError(f"{path}: has more than {most} bytes, expected at most that")
        return data

    def _file(self, name: str) -> str:
        """Returns the path of a regular file. Raises OSError for others: a pipe would block."""
        path = f"{self.root}/{name}"
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        return path


OPEN_FILES = 256
"""Files of a store that are kept open with the blocks that were read of them."""


@dataclass(frozen=True)
class RemoteFolder:
    """A run directory in an object store. Journals of a run that was not finished stay unread."""

    where: str  # its address, without a slash at the end
    store: pa.fs.FileSystem = field(compare=False, repr=False)
    root: str = field(compare=False)  # path within the store

    @property
    def place(self) -> str:
        """The address."""
        return self.where

    @property
    def folder(self) -> Path | None:
        """None: there is no directory on this machine."""
        return None

    def named(self, name: str) -> str:
        """Returns its address."""
        return f"{self.where}/{name}"

    def size(self, name: str) -> int:
        """Returns the size that the store states."""
        return self._opened(name).size

    def stamp(self, name: str) -> tuple[int, int | None]:
        """Returns the size alone: stores differ in the time that a copy keeps."""
        return self.size(name), None

    def open(self, name: str) -> pa.NativeFile:
        """Returns the file, fetched by blocks."""
        found = self._opened(name)
        return found.file(0, found.size)

    def read(self, name: str, most: int) -> bytes:
        """Returns all of it."""
        found = self._opened(name)
        if found.size > most:
            raise RunError(f"{self.named(name)}: has more than {most} bytes, expected at most that")
        whole: bytes = found.at(0, found.size).to_pybytes()
        return whole

    @cached_property
    def _opened(self) -> Callable[[str], RemoteBytes]:
        """Opens a file, or finds it among those that were opened last, with what was fetched."""

        def opened(name: str) -> RemoteBytes:
            return RemoteBytes(self.store.open_input_file(f"{self.root}/{name}"))

        return lru_cache(maxsize=OPEN_FILES)(opened)


def _remote(address: str) -> Files:
    """The bundle, or else the run directory, at an address. Raises RunError without any."""
    try:
        return open_bundle(opened_remotely(address), address, address)
    except RunError as error:
        store, path = store_of(address)
        folder = RemoteFolder(address.rstrip("/"), store, path.rstrip("/"))
        try:
            folder.size(schema.MANIFEST)
        except (OSError, ValueError, pa.ArrowException):
            raise error from None
        return folder


def files_of(path: str | os.PathLike[str]) -> Files:
    """Returns the files of the run at a path or address. Raises RunError, with one sentence,
    without any.

    A bundle is opened in place: only its list of members is read.
    """
    text = os.fspath(path)
    if ADDRESS.match(text):
        return _remote(text)
    root = Path(path)
    try:
        if root.is_file():
            return open_bundle(LocalBytes(root), str(root), str(root.resolve()))
        if not root.exists():
            raise RunError(f"{root}: no such directory; {_EXPECTED}")
        if not root.is_dir():
            raise RunError(f"{root}: is neither a directory nor a file; {_OR_BUNDLE}")
        if not (root / schema.MANIFEST).exists():
            if next(root.iterdir(), None) is None:
                raise RunError(f"{root}: the directory is empty; {_EXPECTED}")
            inside = sorted(root.glob(f"*/{schema.MANIFEST}")) or sorted(
                root.glob(f"*/*/{schema.MANIFEST}")
            )
            if inside:
                raise RunError(
                    f"{root}: is a folder of runs; expected one of them, such as {inside[0].parent}"
                )
            raise RunError(f"{root}: holds no {schema.MANIFEST}, so it is not a run; {_OR_BUNDLE}")
    except OSError as error:
        name = error.filename or root
        raise RunError(f"{name}: cannot be read ({error.strerror}); {_OR_BUNDLE}") from None
    return Folder(root)
