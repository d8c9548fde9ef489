"""Reads manifest.json: is this a run, of which format, and may what it says be believed?

Everything in it is untrusted input. What passes here has the types that `schema.Manifest`
declares, integers that fit int64, finite floats, and file names that stay inside the run.
"""

from __future__ import annotations

import json
import math
import re
import types
import typing
from typing import Any, Union

from lanescope.collector import schema
from lanescope.webapp.errors import RunError, shown
from lanescope.webapp.files import Files

MAX_WORLD_SIZE = 1_000_000
"""No job has more ranks; a larger number would only make the list of missing ranks explode."""

MAX_MANIFEST = 32 << 20
"""Bytes of a manifest: what it becomes in memory may be twenty times as much. A job of a thousand
ranks with eight threads each needs 12 MB."""

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# Paths below the run, as `schema` lays them out: a rank's tables and its threads' tables.
_RANK_FILE = re.compile(r"rank=([0-9]{5,7})/([a-z]+)(?:-[0-9]{5,})?\.parquet")
_THREAD_FILE = re.compile(
    r"rank=([0-9]{5,7})/thread=([0-9]{1,10}-[0-9]{1,10})/([a-z]+)-[0-9]{5,}\.parquet"
)


def read_manifest(files: Files) -> tuple[schema.Manifest, bytes]:
    """The validated manifest of a run and the bytes it was read from.

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
        _conform(data, schema.Manifest, "")
        _check_sense(data)
    except _Wrong as wrong:
        raise RunError(
            f"{where}: {wrong}; the file is damaged or was not written by LaneScope"
        ) from None
    return typing.cast("schema.Manifest", data), raw


def check_process(process: object, world_size: int) -> None:
    """Raises RunError where a process's entry is not what the manifest may list."""
    try:
        _conform(process, schema.Process, "process")
        _range(world_size, 1, MAX_WORLD_SIZE, "world_size")
        _check_process(typing.cast("schema.Process", process), world_size, "process")
    except _Wrong as wrong:
        raise RunError(str(wrong)) from None


def check_groups(groups: object) -> dict[str, schema.Group]:
    """The process groups as they are. Raises RunError where they are not what they should be."""
    try:
        _conform(groups, dict[str, schema.Group], "groups")
    except _Wrong as wrong:
        raise RunError(str(wrong)) from None
    return typing.cast("dict[str, schema.Group]", groups)


def file_parts(path: str) -> tuple[int, str | None, str] | None:
    """(rank, thread or None, table) of a path below the run; None for no path of this format."""
    if match := _THREAD_FILE.fullmatch(path):
        rank, thread, table = match.groups()
    elif match := _RANK_FILE.fullmatch(path):
        (rank, table), thread = match.groups(), None
    else:
        return None
    known = schema.TABLES.get(table)
    if known is None or known.per_thread != (thread is not None):
        return None
    return int(rank), thread, table


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


class _Wrong(Exception):
    """What is wrong with a manifest, without the name of the file."""


def _conform(value: object, hint: Any, where: str) -> None:
    """Checks `value` against a type of the schema: TypedDict, list, dict, union or plain type."""
    if typing.is_typeddict(hint):
        _expect(isinstance(value, dict), value, where, "an object")
        assert isinstance(value, dict)
        for key, inner in typing.get_type_hints(hint).items():
            if key not in value:
                raise _Wrong(f"{where or 'the manifest'} has no {key!r}")
            _conform(value[key], inner, f"{where}.{key}" if where else key)
        return
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is dict:
        _expect(isinstance(value, dict), value, where, "an object")
        assert isinstance(value, dict)
        for key, item in value.items():
            _conform(item, arguments[1], f"{where}[{shown(key)}]")
    elif origin is list:
        _expect(isinstance(value, list), value, where, "a list")
        assert isinstance(value, list)
        for position, item in enumerate(value):
            _conform(item, arguments[0], f"{where}[{position}]")
    elif origin in (Union, types.UnionType):
        if not any(_fits(value, one, where) for one in arguments):
            raise _Wrong(f"{where} is {shown(value)}, expected one of {_names(arguments)}")
    else:
        _plain(value, hint, where)


def _plain(value: object, hint: Any, where: str) -> None:
    if hint is float:
        # JSON of Python admits NaN and Infinity; a time computed from them is no time. An integer
        # too large for a float would overflow later.
        good = type(value) is float and math.isfinite(value)
        good = good or (type(value) is int and abs(value) <= INT64_MAX)
        _expect(good, value, where, "a finite number")
    elif hint is int:
        good = type(value) is int and INT64_MIN <= value <= INT64_MAX
        _expect(good, value, where, "a whole number of 64 bits")
    else:
        words = {bool: "true or false", str: "a text", type(None): "null"}
        _expect(type(value) is hint, value, where, words[hint])
        if isinstance(value, str) and any(0xD800 <= ord(c) <= 0xDFFF for c in value):
            # JSON can escape half a surrogate pair, which no output could encode.
            raise _Wrong(f"{where} holds text that is not valid Unicode")


def _fits(value: object, hint: Any, where: str) -> bool:
    try:
        _conform(value, hint, where)
    except _Wrong:
        return False
    return True


def _names(hints: tuple[Any, ...]) -> str:
    return ", ".join(
        getattr(hint, "__name__", str(hint)).replace("NoneType", "null") for hint in hints
    )


def _expect(good: bool, value: object, where: str, expected: str) -> None:
    if not good:
        raise _Wrong(f"{where or 'the whole'} is {shown(value)}, expected {expected}")


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
            raise _Wrong(f"{where} lists process {identity[1]} of rank {identity[0]} twice")
        seen.add(identity)
    for path, file in manifest["files"].items():
        _check_path(path)
        _range(file["bytes"], 0, INT64_MAX, f"files[{shown(path)}].bytes")
        _range(file["rows"], 0, INT64_MAX, f"files[{shown(path)}].rows")
        known = file_parts(path)
        if known is not None and known[0] >= world:
            raise _Wrong(
                f"files lists {shown(path)}, expected ranks 0-{world - 1} at world size {world}"
            )


def _check_process(process: schema.Process, world: int, where: str) -> None:
    _range(process["rank"], 0, world - 1, f"{where}.rank")
    _range(process["pid"], 0, 2**32, f"{where}.pid")
    # A clock that is off by more than a tenth is not a clock; a drift of -100 % or less would let
    # time run backwards.
    _range(process["clock"]["drift_ppb"], -1e8, 1e8, f"{where}.clock.drift_ppb")
    _range(process["clock"]["offset_ns"], -(2**62), 2**62, f"{where}.clock.offset_ns")
    _range(process["clock"]["uncertainty_ns"], 0, INT64_MAX, f"{where}.clock.uncertainty_ns")


def _check_path(path: str) -> None:
    pieces = path.split("/")
    bad = any(piece in ("", ".", "..") for piece in pieces) or "\\" in path or "\0" in path
    if bad or ":" in pieces[0]:
        raise _Wrong(f"files lists {shown(path)}, expected paths that stay inside the run")


def _range(value: float, low: float, high: float, where: str) -> None:
    if not low <= value <= high:
        raise _Wrong(f"{where} is {shown(value)}, expected {low} to {high}")
