"""Reads manifest.json: is this a run, in a known format, and is the content plausible?

Everything in it is untrusted input. What passes here has the types that `schema.Manifest`
declares, integers that fit int64, finite floats, and file names that stay inside the run.
"""

from __future__ import annotations

import functools
import json
import typing
from typing import Any

from lanescope.collector.format import schema
from lanescope.webapp.runs.errors import RunError, shown
from lanescope.webapp.runs.files import Files
from lanescope.webapp.runs.typed_json import INT64_MAX, Mismatch, conform

MAX_WORLD_SIZE = 1_000_000
"""No job has more ranks; a larger number would only make the list of missing ranks explode."""

MAX_INSTANT_NS = 2**61
"""Of any clock, ns: 73 years before or after its zero."""

MAX_MANIFEST = 32 << 20
"""Bytes of a manifest: what it becomes in memory may be twenty times as much. A job of a thousand
ranks with eight threads each needs 12 MB."""


def read_manifest(files: Files) -> tuple[schema.Manifest, bytes]:
    """Returns the validated manifest of a run and the bytes it was read from.

    Raises RunError with one sentence for whatever is not a run this version can read. The format
    version is looked at before anything else, so that a newer run is named as such however
    different it is.
    """
    where = files.named(schema.MANIFEST)
    try:
        raw = files.read(schema.MANIFEST, MAX_MANIFEST)
    except OSError as error:
        raise RunError(
            f"{where}: cannot be read ({error.strerror}); restore it from a copy or record again"
        ) from None
    try:
        data = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RunError(
            f"{where}: byte {error.start} is not UTF-8; the file is damaged, "
            "restore it from a copy or record again"
        ) from None
    except (ValueError, RecursionError) as error:
        reason = str(error).split("\n")[0] if isinstance(error, ValueError) else "nested too deep"
        raise RunError(
            f"{where}: is not valid JSON ({reason}); the file is damaged, "
            "restore it from a copy or record again"
        ) from None
    if not isinstance(data, dict) or "format" not in data:
        raise RunError(
            f"{where}: holds {shown(data)} without a format version, expected the manifest of a "
            "LaneScope run; open the directory that `lanescope record -o` wrote"
        )
    _check_format(data["format"], where)
    try:
        conform(data, schema.Manifest, "")
        _check_sense(data)
    except Mismatch as wrong:
        raise RunError(
            f"{where}: {wrong}; the file is damaged or was not written by LaneScope"
        ) from None
    return typing.cast("schema.Manifest", data), raw


def check_process(process: object, world_size: int) -> None:
    """Raises RunError where a process's entry is not what the manifest may list."""
    try:
        conform(process, schema.Process, "process")
        _range(world_size, 1, MAX_WORLD_SIZE, "world_size")
        _check_process(typing.cast("schema.Process", process), world_size, "process")
    except Mismatch as wrong:
        raise RunError(str(wrong)) from None


def check_groups(groups: object) -> dict[str, schema.Group]:
    """Returns the process groups as they are. Raises RunError where they are not what they should
    be."""
    try:
        conform(groups, dict[str, schema.Group], "groups")
    except Mismatch as wrong:
        raise RunError(str(wrong)) from None
    return typing.cast("dict[str, schema.Group]", groups)


@functools.lru_cache(maxsize=1 << 15)  # each is asked for twice as a run is opened
def file_parts(path: str) -> tuple[int, str | None, str] | None:
    """Returns (rank, thread or None, table) of a path below the run; None for no such path."""
    named = schema.named_parts(path)
    known = schema.TABLES.get(named[2]) if named else None
    if named is None or known is None or known.per_thread != (named[1] is not None):
        return None
    return named


def _check_format(found: object, where: str) -> None:
    readable = schema.FORMAT_VERSION
    if type(found) is not int or found < 1:
        raise RunError(
            f"{where}: the format version is {shown(found)}, expected a number from 1 to "
            f"{readable}; the file is damaged or was not written by LaneScope"
        )
    if found > readable:
        raise RunError(
            f"{where}: the run has format {shown(found)}, this version reads up to {readable}; "
            "upgrade with `pip install --upgrade lanescope`"
        )


def _check_sense(manifest: dict[str, Any]) -> None:
    """Values that have the right type and still cannot be: ranks, sizes, drift, file names."""
    world = manifest["world_size"]
    _range(world, 1, MAX_WORLD_SIZE, "world_size")
    seen: set[tuple[int, int]] = set()
    for position, process in enumerate(manifest["processes"]):
        where = f"processes[{position}]"
        _check_process(process, world, where)
        identity = (process["rank"], process["pid"])
        if identity in seen:
            raise Mismatch(f"{where} lists process {identity[1]} of rank {identity[0]} twice")
        seen.add(identity)
    for path, file in manifest["files"].items():
        known = file_parts(path)
        if known is None:
            _check_path(path)
        elif known[0] >= world:
            raise Mismatch(
                f"files lists {shown(path)}, expected ranks 0-{world - 1} at world size {world}"
            )
        if file["bytes"] < 0 or file["rows"] < 0:
            _range(file["bytes"], 0, INT64_MAX, f"files[{shown(path)}].bytes")
            _range(file["rows"], 0, INT64_MAX, f"files[{shown(path)}].rows")
        elif known and known[1] is not None and schema.is_shared(known[1]):
            _check_shared(file, known[1].partition("-")[0], f"files[{shown(path)}]")


def _check_shared(file: schema.File, pid: str, where: str) -> None:
    """Whose rows a shared file holds: threads of its process, and no rows but theirs."""
    threads = file.get("threads", {})
    for thread, rows in threads.items():
        owner, _, ordinal = thread.partition("-")
        if owner != pid or not (ordinal.isascii() and ordinal.isdigit() and len(ordinal) <= 10):
            raise Mismatch(f"{where}.threads names {shown(thread)}, expected threads of {pid}")
        _range(rows, 0, INT64_MAX, f"{where}.threads[{shown(thread)}]")
    if sum(threads.values()) != file["rows"]:
        raise Mismatch(
            f"{where}.threads counts {shown(sum(threads.values()))} rows, expected {file['rows']}"
        )


def _check_process(process: schema.Process, world: int, where: str) -> None:
    _range(process["rank"], 0, world - 1, f"{where}.rank")
    _range(process["pid"], 0, 2**32, f"{where}.pid")
    # A clock that is off by more than a tenth is not a clock; a drift of -100 % or less would let
    # time run backwards.
    _range(process["clock"]["drift_ppb"], -1e8, 1e8, f"{where}.clock.drift_ppb")
    for name in ("start_ns", "end_ns"):
        _range(process[name], -MAX_INSTANT_NS, MAX_INSTANT_NS, f"{where}.{name}")
    offset = process["clock"]["offset_ns"]
    _range(offset, -MAX_INSTANT_NS, MAX_INSTANT_NS, f"{where}.clock.offset_ns")
    _range(process["clock"]["uncertainty_ns"], 0, INT64_MAX, f"{where}.clock.uncertainty_ns")


def _check_path(path: str) -> None:
    pieces = path.split("/")
    bad = any(piece in ("", ".", "..") for piece in pieces) or "\\" in path or "\0" in path
    if bad or ":" in pieces[0]:
        raise Mismatch(f"files lists {shown(path)}, expected paths that stay inside the run")


def _range(value: float, low: float, high: float, where: str) -> None:
    if not low <= value <= high:
        raise Mismatch(f"{where} is {shown(value)}, expected {low} to {high}")
