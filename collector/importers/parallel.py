"""Reads several files at once: by workers, or each in a process of its own.

Decoding holds Python's lock.
"""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from .formats import read_file
from .limits import ImportRejected
from .spill import Trace

MIN_BYTES = 4 << 20
"""Of all files, packed or not. Starting a process takes as long as reading 15 MB of JSON."""

_RESULT = "trace.pickle"


def read_files(paths: Sequence[Path], folder: Path, workers: Executor | None) -> list[Trace]:
    """Reads traces or dumps in order; their rows go to folders in `folder`.

    `workers` read a file each; without them, processes of this machine do. Raises ImportRejected
    for the first file that cannot be imported, OSError.
    """
    folders = [folder / str(position) for position in range(len(paths))]
    for own in folders:
        own.mkdir()
    if workers is not None:
        return _read_by_workers(paths, folders, workers)
    count = min(len(paths), processors())
    size = sum(path.stat().st_size for path in paths if path.is_file())
    if count < 2 or size < MIN_BYTES or not sys.executable:
        return [read_file(path, own) for path, own in zip(paths, folders, strict=True)]
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(_read_apart, paths, folders))


def _read_by_workers(
    paths: Sequence[Path], folders: Sequence[Path], workers: Executor
) -> list[Trace]:
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


def processors() -> int:
    """Returns the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read_apart(path: Path, folder: Path) -> Trace:
    command = [sys.executable, "-m", __name__, str(path), str(folder)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    result = folder / _RESULT
    if not result.is_file():
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise ImportRejected(
            f"{path}: could not be read: its process ended with status {done.returncode} "
            f"({said[0]}), expected a trace; if memory ran out, import fewer files at once"
        )
    found = pickle.loads(result.read_bytes())
    result.unlink()
    if isinstance(found, Exception):
        raise found
    assert isinstance(found, Trace)
    return found


def main() -> None:
    """Reads the file of the first argument; leaves the trace in the folder of the second."""
    gc.disable()
    path, folder = map(Path, sys.argv[1:])
    found: Trace | Exception
    try:
        found = read_file(path, folder)
    except (ImportRejected, OSError) as error:
        found = error
    unfinished = folder / f"{_RESULT}.part"
    unfinished.write_bytes(pickle.dumps(found, pickle.HIGHEST_PROTOCOL))
    unfinished.replace(folder / _RESULT)


if __name__ == "__main__":
    main()
