"""Reads the current activity of threads from a journal, and decodes dumps of the watchdog.

Needs numpy, not Arrow: the watchdog uses it inside the recorded process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

from ..format.file_names import thread_id
from ..format.names import JOIN
from ..format.record_kinds import SyncKind
from ..journal.journal import QUIET_FILE, STALL_STACKS_FILE, STALLS_FILE, RecordKind
from .reader import (
    INVALID_JSON,
    JournalError,
    ProcessLog,
    ThreadLog,
    read_process,
    read_records,
    terminated_ns,
)

RECENT_SEGMENTS = 2
"""Last segments of a thread that are searched for its last op and open collectives."""

_MAX_DUMP_BYTES = 64 << 20
"""Largest file of dumps; a hang leaves about ten lines."""

_DAMAGED = (ValueError, TypeError, KeyError, AttributeError, OverflowError)
"""Exceptions of decoding JSON that is not a dump."""

_OWN = str(Path(__file__).parents[1]) + os.sep
_FRAME = re.compile(r'  File "(.*)", line ([0-9]{1,9}) in (.*)')
_MAIN = 0
_JOIN, _ACQUIRE = int(SyncKind.thread_join), int(SyncKind.lock_acquire)
_WAITS = {
    _JOIN: "the end of a thread",
    _ACQUIRE: "a lock",
    int(SyncKind.condition_wait): "a condition",
    int(SyncKind.event_wait): "an event",
    int(SyncKind.semaphore_acquire): "a semaphore",
    int(SyncKind.barrier_leave): "the others of a barrier",
    int(SyncKind.queue_get): "an item of a queue",
    int(SyncKind.queue_room): "room in a queue",
    int(SyncKind.queue_join): "the tasks of a queue",
    int(SyncKind.future_get): "the result of a future",
}


def activity(folder: Path) -> dict[int, dict[str, Any]]:
    """Returns the activity of each thread, by native id.

    Keys: `ordinal`; `last_op`; `waiting`, the cause of its wait in words; `collective`, the first
    incomplete one as "name TAB group TAB sequence" or None; `lock`, the number of the lock that it
    waits for, or None; `owner`, the ordinal of the thread that it joins, or None.
    """
    try:
        log = read_process(folder)
    except (JournalError, OSError):
        return {}
    complete: set[tuple[int, int, int]] = set()
    found: dict[int, dict[str, Any]] = {}
    calls: dict[int, list[Any]] = {}
    for thread in log.threads:
        found[thread.native_id], calls[thread.native_id] = _thread_activity(log, thread, complete)
    for native, mine in calls.items():
        for call in mine:
            # Completion of work on a device is not recorded.
            device = _text(log, call["signature"]).rpartition("\t")[2]
            if _call(call) not in complete and device == "cpu":
                group = _text(log, call["aux"]).partition("\t")[0]
                name, sequence = _text(log, call["name"]), int(call["sequence"])
                found[native]["collective"] = f"{name}\t{group}\t{sequence}"
                whole = f"{name} #{sequence} of group {group}"
                found[native]["waiting"] = name if name == JOIN else whole
                break  # the later ones wait for the first
    return found


def _thread_activity(
    log: ProcessLog, thread: ThreadLog, complete: set[tuple[int, int, int]]
) -> tuple[dict[str, Any], list[Any]]:
    """Returns a thread's activity and its recent collectives; adds completed ones to `complete`."""
    found: dict[str, Any] = {
        "ordinal": thread.ordinal,
        "last_op": "",
        "waiting": "",
        "collective": None,
        "lock": None,
        "owner": None,
    }
    calls: list[Any] = []
    for path in thread.segments[-RECENT_SEGMENTS:]:
        records = read_records(path)
        ops = records[records["kind"] == RecordKind.OP]
        if len(ops):
            found["last_op"] = _text(log, ops[ops["end"].argmax()]["name"])
        calls += list(records[records["kind"] == RecordKind.COLLECTIVE])
        complete |= {_call(end) for end in records[records["kind"] == RecordKind.COLLECTIVE_END]}
    for event in thread.open_events():
        if event["kind"] == RecordKind.OP:
            found["last_op"] = _text(log, event["name"])
        elif event["kind"] == RecordKind.COLLECTIVE:
            calls.append(event)
        elif event["kind"] == RecordKind.SYNC and int(event["scope"]) < len(SyncKind):
            kind, target = int(event["scope"]), int(event["extra"])
            found["waiting"] = _WAITS.get(kind, "")
            found["lock"] = target if kind == _ACQUIRE else None
            found["owner"] = target - 1 if kind == _JOIN else None  # the hook stores ordinal + 1
    return found, calls


def _text(log: ProcessLog, identity: Any) -> str:
    return log.texts[int(identity)] if int(identity) < len(log.texts) else ""


def dump_rows(log: ProcessLog, first_ordinal: int) -> list[dict[str, Any]]:
    """Returns the dumps of a process, a row per thread; `frames` is the text of the stack.

    A damaged dump is left out.
    """
    rows = []
    for number, dump in enumerate(_dumps(log)):
        with contextlib.suppress(*_DAMAGED):
            rows += _rows(log, dump, number, first_ordinal)
    return rows


def _rows(
    log: ProcessLog, dump: dict[str, Any], number: int, first_ordinal: int
) -> list[dict[str, Any]]:
    pid = int(log.process["pid"])

    def identity(ordinal: Any) -> str:
        return thread_id(pid, first_ordinal + _int64(ordinal))

    return [
        {
            "time_ns": _int64(dump["time_ns"]),
            "duration_ns": _int64(dump["duration_ns"]),
            "dump": number,
            "pid": pid,
            "thread": "" if thread.get("ordinal") is None else identity(thread["ordinal"]),
            "native_id": _int64(thread.get("native_id") or 0),
            "name": str(thread.get("name", "")),
            "reason": str(dump["reason"]),
            "cpu": None if thread.get("cpu") is None else float(thread["cpu"]),
            "frames": "\n".join("\t".join(map(str, f)) for f in thread["frames"]),
            "last_op": str(thread.get("last_op", "")),
            "waiting": str(thread.get("waiting", "")),
            "owner": None if thread.get("owner") is None else identity(thread["owner"]),
            "collective": None if not thread.get("collective") else str(thread["collective"]),
        }
        for thread in _threads(log.folder, dump)
    ]


def _int64(value: Any) -> int:
    """Returns a number of a file. Raises ValueError if it does not fit into 64 bits."""
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError
    return number


def _dumps(log: ProcessLog) -> list[dict[str, Any]]:
    """Returns the dumps by time. The quiet dump counts only if the process did not close."""
    folder, lines = log.folder, []
    for name in (STALLS_FILE,) if log.process.get("closed") else (STALLS_FILE, QUIET_FILE):
        # A death may cut off the last line.
        lines += _read_range(folder / name, 0, _MAX_DUMP_BYTES).split(b"\n")[:-1]
    found = []
    for line in lines:
        try:
            dump = json.loads(line)
        except INVALID_JSON:
            continue
        if isinstance(dump, dict) and {"time_ns", "duration_ns", "reason"} <= dump.keys():
            found.append(dump)
    if (terminated := terminated_ns(folder, log.process)) is not None:
        raw = [0, (folder / STALL_STACKS_FILE).stat().st_size]
        found.append({"time_ns": terminated, "duration_ns": 0, "reason": "signal", "raw": raw})
    return sorted(found, key=_instant)


def _instant(dump: dict[str, Any]) -> int:
    with contextlib.suppress(*_DAMAGED):
        return _int64(dump["time_ns"])
    return 0


def _threads(folder: Path, dump: dict[str, Any]) -> list[dict[str, Any]]:
    if "raw" not in dump:
        return list(dump.get("threads", ()))
    first, last = (_int64(at) for at in dump["raw"])
    raw = _read_range(folder / STALL_STACKS_FILE, first, last).decode("utf-8", "replace")
    return _with_activity(folder, [t for t in parse_stacks(raw) if not _is_ours(t)])


def _read_range(path: Path, first: int, last: int) -> bytes:
    """Returns the bytes [first, last) of a file, up to _MAX_DUMP_BYTES; empty if it is missing."""
    try:
        with path.open("rb") as file:
            file.seek(max(first, 0))
            return file.read(max(min(last - first, _MAX_DUMP_BYTES), 0))
    except OSError:
        return b""


def _is_ours(thread: dict[str, Any]) -> bool:
    """Returns True if a stack consists of the recorder's frames."""
    frames = thread["frames"]
    return bool(frames) and all(file.startswith(_OWN) for file, _, _ in frames)


def _with_activity(folder: Path, threads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds the main thread's activity: faulthandler lists it last, and prints no native ids."""
    main = next((a for a in activity(folder).values() if a["ordinal"] == _MAIN), None)
    if threads and main is not None:
        threads[-1] |= {"name": "main", **main}
    return threads


def parse_stacks(text: str) -> list[dict[str, Any]]:
    """Parses stacks as written by faulthandler, innermost frame first."""
    threads: list[dict[str, Any]] = []
    for line in text.splitlines():
        if line.startswith(("Thread 0x", "Current thread 0x", "Stack (most recent call first)")):
            threads.append({"name": line.partition(" (")[0], "frames": []})
        elif threads and (match := _FRAME.fullmatch(line)):
            threads[-1]["frames"].append([match[1], int(match[2]), match[3]])
    return threads


def _call(record: Any) -> tuple[int, int, int]:
    return int(record["name"]), int(record["aux"]), int(record["sequence"])
