"""Named arrays that grow while an index is built, in memory or in files that are mapped afterwards.

On disk an index is a folder of .npy files and a JSON file. It is written under a temporary name and
renamed, so a reader sees a whole one or none. Whatever is wrong with a stored one (missing, cut
short, of another version, not JSON) makes it "not there": it is only ever a copy of what the run
says, so building it again is the remedy.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]

CATALOGUE_FILE = "catalogue.json"
_MAKING = ".making-"
KEEP_SECONDS = 30 * 86400
"""A stored index that was not opened for this long is removed when another one is written."""

_WILL_NEED: Any = getattr(mmap, "MADV_WILLNEED", None)  # not every system has it


def cache_folder() -> Path:
    """Returns where the user's programs keep what they can make again; `lanescope` within it."""
    if os.environ.get("XDG_CACHE_HOME"):
        base = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "lanescope"


class Ahead:
    """Has the system fetch the parts of a mapped array that are about to be read.

    Just these, and all at once: a page that is missed when it is looked at is fetched with up to
    some megabytes around it, which takes a hundred times as long, before the next is looked at.
    """

    def __init__(self, array: npt.NDArray[Any]) -> None:
        mapped: Any = array.base
        file: Any = mapped.base if isinstance(mapped, np.memmap) else None
        self._file = file if isinstance(file, mmap.mmap) and _WILL_NEED is not None else None
        self._begin = 0 if self._file is None else mapped.offset % mmap.ALLOCATIONGRANULARITY
        self._size = array.itemsize

    def expect(self, low: int, high: int) -> None:
        """Items low up to high will be read."""
        if self._file is not None and low < high:
            page = (self._begin + low * self._size) // mmap.PAGESIZE * mmap.PAGESIZE
            self._file.madvise(_WILL_NEED, page, self._begin + high * self._size - page)


class MemoryStore:
    """Arrays that are put together in memory."""

    def __init__(self, dtypes: Mapping[str, str]) -> None:
        self._dtypes = dict(dtypes)
        self._parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in dtypes}

    def append(self, name: str, values: npt.ArrayLike) -> None:
        """Adds values at the end of an array."""
        self._parts[name].append(np.asarray(values, self._dtypes[name]))

    def finish(self, catalogue: Mapping[str, Any]) -> Arrays:
        """Returns the arrays. The caller keeps the catalogue."""
        arrays: Arrays = {}
        for name, dtype in self._dtypes.items():
            parts = self._parts.pop(name)
            arrays[name] = np.concatenate(parts) if parts else np.empty(0, dtype)
        return arrays

    def abandon(self) -> None:
        """Does nothing: there is nothing to clean up."""


class FolderStore:
    """Arrays that are written to .npy files as they grow, then mapped."""

    def __init__(self, folder: Path, dtypes: Mapping[str, str]) -> None:
        """Begins a folder that becomes `folder` when finished. OSError where that cannot be."""
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._making = Path(tempfile.mkdtemp(prefix=_MAKING, dir=folder.parent))
        self._dtypes = dict(dtypes)
        self._sizes = dict.fromkeys(dtypes, 0)
        self._open = contextlib.ExitStack()
        self._files: dict[str, BinaryIO] = {}
        for name in dtypes:
            path = self._making / f"{name}.npy"
            self._files[name] = self._open.enter_context(path.open("wb"))
            self._write_header(name)

    def append(self, name: str, values: npt.ArrayLike) -> None:
        """Adds values at the end of an array."""
        part = np.ascontiguousarray(values, self._dtypes[name])
        self._sizes[name] += len(part)
        self._files[name].write(part.data)

    def finish(self, catalogue: Mapping[str, Any]) -> Arrays:
        """Puts the folder in its place and maps its arrays."""
        for name, file in self._files.items():
            file.seek(0)
            self._write_header(name)
        self._open.close()
        text = json.dumps({**catalogue, "sizes": self._sizes})
        (self._making / CATALOGUE_FILE).write_text(text, encoding="utf-8")
        _forget_old(self._folder.parent)
        try:
            self._making.rename(self._folder)
        except OSError:
            # Another process was first, or its files are damaged. Either way this one is
            # whole; processes that mapped the other's files keep them until the end.
            shutil.rmtree(self._folder, ignore_errors=True)
            self._making.rename(self._folder)
        return _mapped(self._folder, self._dtypes, self._sizes)

    def abandon(self) -> None:
        """Removes what was written so far."""
        with contextlib.suppress(OSError):  # a full disk is why one gives up
            self._open.close()
        shutil.rmtree(self._making, ignore_errors=True)

    def _write_header(self, name: str) -> None:
        # numpy leaves room in the header for the first axis to grow, so it can be written again.
        header = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(self._dtypes[name])),
            "fortran_order": False,
            "shape": (self._sizes[name],),
        }
        np.lib.format.write_array_header_1_0(self._files[name], header)


ArrayStore = MemoryStore | FolderStore


def load_arrays(folder: Path, dtypes: Mapping[str, str]) -> tuple[Arrays, dict[str, Any]] | None:
    """Returns the arrays and the catalogue of a stored index; None where there is no whole one."""
    try:
        catalogue = json.loads((folder / CATALOGUE_FILE).read_text(encoding="utf-8"))
        arrays = _mapped(folder, dtypes, catalogue["sizes"])
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None
    with contextlib.suppress(OSError):
        os.utime(folder / CATALOGUE_FILE)  # when it was last used
    return arrays, catalogue


def _mapped(folder: Path, dtypes: Mapping[str, str], sizes: Mapping[str, int]) -> Arrays:
    arrays: Arrays = {}
    for name, dtype in dtypes.items():
        mapped = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        if mapped.dtype != np.dtype(dtype) or mapped.shape != (sizes[name],):
            raise ValueError(f"{name}: {mapped.dtype}{mapped.shape}, not {dtype}({sizes[name]},)")
        # The plain view of the same memory: the subclass makes every small slice slower.
        arrays[name] = mapped.view(np.ndarray)
    return arrays


def _forget_old(parent: Path) -> None:
    """Removes stored indexes not used for long, and what processes that died left half made."""
    oldest = time.time() - KEEP_SECONDS
    for folder in parent.iterdir():
        used = folder if folder.name.startswith(_MAKING) else folder / CATALOGUE_FILE
        with contextlib.suppress(OSError):
            if used.stat().st_mtime < oldest:
                shutil.rmtree(folder)
