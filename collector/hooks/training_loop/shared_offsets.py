"""Records files that a dataset holds open and that the workers of its DataLoader share.

A worker is forked with the open files of its parent, and all of them move one offset: one seeks
while another reads. The parent sees it, which leaves the file to its workers: its own offset moves.
Files that each worker opens for itself, and reads at a given place (pread, mmap), do not move it.
"""

from __future__ import annotations

import io
import os
import weakref
from collections.abc import Iterator
from typing import Any

from ...format.loader_names import SHARED_OFFSET
from ...recorder.recorder import Recorder
from ..stacks import code_place

_FILES = (io.FileIO, io.BufferedReader, io.BufferedRandom, io.TextIOWrapper)
_WITHIN = ("fp", "fileobj")
"""Attributes by which an archive of zipfile or tarfile holds its file."""

_MAX_LOOKS = 100
"""Batches of an iteration after which it is not looked at again."""

_MAX_DEPTH = 3
"""Datasets within datasets."""


class SharedOffsets:
    """Writes a value named SHARED_OFFSET where a file's offset has moved between two batches."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._offsets: weakref.WeakKeyDictionary[Any, dict[str, tuple[int, int]]]
        self._offsets = weakref.WeakKeyDictionary()
        self._moves: dict[str, int] = {}
        self._looks = 0

    def begins(self, iterator: Any) -> None:
        """Notes the offsets of the dataset's files as an iteration begins."""
        self._looks = 0
        if getattr(iterator, "_num_workers", 0) > 1:
            self._offsets[iterator] = dict(_offsets(getattr(iterator, "_dataset", None)))

    def loaded(self, iterator: Any) -> None:
        """Compares them after a batch."""
        before = self._offsets.get(iterator)
        if not before or self._looks >= _MAX_LOOKS:
            return
        self._looks += 1
        with self._recorder.contain_errors():
            for name, now in _offsets(iterator._dataset):
                file, offset = before.get(name, now)
                before[name] = now
                if (file, offset) != now and file == now[0]:
                    self._moves[name] = self._moves.get(name, 0) + 1
                    self._recorder.value(f"{SHARED_OFFSET}{name}", float(self._moves[name]))


def _offsets(dataset: Any, depth: int = 0) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yields "Rows/file/rows.py:12", the class, attribute and line of `__getitem__`, with the
    number of the file and its offset."""
    place = code_place(getattr(getattr(type(dataset), "__getitem__", None), "__code__", None))
    for name, one in list(getattr(dataset, "__dict__", {}).items()):
        if name in ("dataset", "datasets") and depth < _MAX_DEPTH:
            for each in one if isinstance(one, list | tuple) else (one,):
                yield from _offsets(each, depth + 1)
        for file in (one, *(getattr(one, "__dict__", {}).get(within) for within in _WITHIN)):
            if isinstance(file, _FILES) and not file.closed and file.seekable():
                number = file.fileno()
                said = f"{type(dataset).__name__}/{name}/{place}"
                yield said, (number, os.lseek(number, 0, os.SEEK_CUR))
