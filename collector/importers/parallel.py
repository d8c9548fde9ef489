"""Reads several files, or parts of one, at once, by workers: decoding holds Python's lock."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .chrome_trace.segments import read_in_segments
from .formats import read_file
from .import_limits import ImportRejected
from .spill import Trace

if TYPE_CHECKING:
    from concurrent.futures import Executor


def read_files(paths: Sequence[Path], folder: Path, workers: Executor | None) -> list[Trace]:
    """Reads traces or dumps in order; their rows go to folders in `folder`.

    `workers` read a file each, or parts of a single one; without them, one file is read after the
    other. Raises
    ImportRejected for the first file that cannot be imported, OSError.
    """
    folders = [folder / str(position) for position in range(len(paths))]
    for own in folders:
        own.mkdir()
    if workers is not None and len(paths) == 1:
        whole = read_in_segments(paths[0].absolute(), folders[0], workers)
        if whole is not None:
            whole.path = paths[0]
            return [whole]
    if workers is None:
        return [read_file(path, own) for path, own in zip(paths, folders, strict=True)]
    places = [path.absolute() for path in paths]
    futures = [
        workers.submit(_read, str(place), str(own.absolute()))
        for place, own in zip(places, folders, strict=True)
    ]
    traces = []
    for path, place, future in zip(paths, places, futures, strict=True):
        try:
            trace = future.result()
        except ImportRejected as error:
            raise ImportRejected(str(error).replace(str(place), str(path))) from None
        trace.path = path
        traces.append(trace)
    return traces


def _read(path: str, folder: str) -> Trace:
    """Reads a file without collecting garbage: see `import_files`."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return read_file(Path(path), Path(folder))
    finally:
        if collecting:
            gc.enable()
