"""Reads flight-recorder dumps of torch.distributed: the last collectives of a rank, numbered.

A dump is JSON or a pickle of the same dict. Because calls are numbered per process group, the call
that a rank did not make can be named even where the buffer has lost earlier ones.

A pickle is a program that may call any class or function. The reader here knows the instructions
that build numbers, texts, lists, tuples and dicts, and rejects a pickle with any other. It does not
use the pickle module, which lets a file allocate any amount of memory.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from ..format.names import UNMOVED
from .base import Importer
from .calls import backend_name, bytes_of, groups_of
from .decompress import Blocks
from .events import decode_events
from .import_limits import MAX_DUMP_ENTRIES, MAX_DUMP_VALUES, ImportRejected
from .json_stream import Document, Member, Metadata
from .kineto import COMMUNICATION_DTYPES
from .plain_pickle import MAX_PICKLE_BYTES, plain_pickle
from .spill import CollectiveCall, Trace
from .timestamps import MAX_NS

_PAIR = re.compile(r"\w+:(send|recv) ?(?:(\d{1,6}) ?(?:->|<-) ?(\d{1,6}))?")
_NUMBER = re.compile(r"-?[0-9]{1,19}")
ORDER_NS = 1000
"""Distance of calls whose dump holds no creation times: their order, drawn as instants."""

_MAX_FRAMES = 100
_MAX_SHAPES = 64


_PICKLE = b"\x80"
"""First byte of a pickle of protocol 2 and later."""

_MEMBERS = frozenset({"entries", "pg_config", "pg_status"})


class FlightRecorderDump(Importer):
    """Reads a dump of torch's flight recorder, pickled or as JSON."""

    name = "flight_recorder"

    def sniff(self, first_block: bytes) -> bool:
        """Returns True for a pickle, and for a JSON object that does not begin like a trace."""
        document = first_block.lstrip().startswith(b"{") and b'"traceEvents"' not in first_block
        return document or first_block.startswith(_PICKLE)

    def read(self, path: Path, folder: Path) -> Trace | None:
        """Returns the calls of a dump; None for a JSON document without entries, or a trace."""
        trace, blocks = Trace.create(path, folder, self.name), iter(Blocks(path))
        first = next(blocks, b"")
        if first.startswith(_PICKLE):
            data = bytearray(first)
            while len(data) <= MAX_PICKLE_BYTES and (block := next(blocks, b"")):
                data += block
            take_dump(trace, plain_pickle(path, bytes(data)))
            return trace
        document = Document(path, chain([first], blocks), decode_events)
        metadata = Metadata(_MEMBERS, trace.counts)
        for part in document.parts():
            if not isinstance(part, Member):
                return None
            metadata.add(part)
        if document.found_events or "entries" not in metadata:
            return None
        take_dump(trace, metadata)
        return trace


def take_dump(trace: Trace, dump: Any) -> None:
    """Adds the calls of a dump to an empty trace. Raises ImportRejected."""
    entries = dump.get("entries") if isinstance(dump, dict) else None
    if not isinstance(entries, list):
        raise ImportRejected(f"{trace.path}: holds no entries, expected a flight-recorder dump")
    trace.closed = False
    if len(entries) > MAX_DUMP_ENTRIES:
        raise ImportRejected(
            f"{trace.path}: holds {len(entries):,} entries, expected a flight-recorder dump of at "
            f"most {MAX_DUMP_ENTRIES:,}"
        )
    reader = _BoundedReader(trace.counts)
    groups = _groups(dump, entries, reader)
    listed = [
        {"pg_name": name, "pg_desc": description, "ranks": ranks}
        for name, (ranks, description) in groups.items()
    ]
    world = 1 + max((rank for ranks, _ in groups.values() for rank in ranks), default=0)
    trace.metadata = {"distributedInfo": {"pg_config": listed, "world_size": world}}
    sizes = {name: len(group.ranks) for name, group in groups_of(trace).items()}
    counts = trace.counts
    counts["read_events"] += len(entries)
    first = min(
        (_integer(e.get("record_id"), 0) for e in entries if isinstance(e, dict)), default=0
    )
    paired: Counter[Any] = Counter()
    calls: list[CollectiveCall] = []
    trace.order_only = bool(entries) and not any(
        isinstance(e, dict) and _integer(e.get("time_created_ns"), 0) > 0 for e in entries
    )
    for position, entry, ended in _unbatched(entries, counts, overwritten=first > 0):
        at = (position + 1) * ORDER_NS if trace.order_only else None
        call = _call(trace, entry, ended, sizes, reader, at) if isinstance(entry, dict) else None
        if call is None:
            counts["dropped_malformed"] += 1
            continue
        if call.peer is not None:
            key = call.group, call.name, call.peer
            # Where the first ones are lost, the k-th send need not be the partner's k-th receive.
            peer = None if first else call.peer
            call = call._replace(sequence=paired[key], peer=peer)
            paired[key] += 1
        calls.append(call)
    counts["imported_calls"] += len(calls)
    if not calls:  # a rank that made no call may be the one that others wait for
        trace.lanes["flight recorder", "0", False]
    if _forgotten(dump, calls, first):
        counts["unread_groups_whose_calls_were_overwritten"] += 1
        trace.lost_calls = True
    trace.calls = sorted(calls, key=lambda call: call.start)


def _unbatched(
    entries: list[Any], counts: Counter[str], *, overwritten: bool
) -> Iterator[tuple[int, Any, Any]]:
    """Yields of each call its position, its entry and the entry that has its state.

    Calls of a batch share a number, and its last entry, "coalesced", has their state: their own
    stays "scheduled". A batch of collectives is one call; sends and receives are calls each.
    `overwritten`: the buffer has lost entries, maybe the first ones of a batch.
    """
    numbers = [_number(entry) for entry in entries]
    batches: defaultdict[Any, list[int]] = defaultdict(list)
    for position, number in enumerate(numbers):
        batches[number].append(position)
    for position, (number, entry) in enumerate(zip(numbers, entries, strict=True)):
        batch = batches[number]
        first, last = batch[0], entries[batch[-1]]
        if number is None or not _ends_batch(last) or (len(batch) == 1 and not number.paired):
            yield position, entry, entry
        elif number.paired and position != batch[-1]:
            yield position, entry, last
        elif number.paired or position != first:
            counts["imported_parts_of_batches"] += 1
        elif overwritten and first == 0:
            counts["unread_batches_whose_begin_was_overwritten"] += 1
            counts["imported_parts_of_batches"] += 1
        else:
            yield position, entry | _tensors([entries[one] for one in batch]), last


class _Number(NamedTuple):
    """Place of a call among those of its group."""

    group: str
    paired: bool  # between two ranks, which are numbered apart
    number: int


def _number(entry: Any) -> _Number | None:
    """Returns the number of an entry; None without one."""
    if not isinstance(entry, dict):
        return None
    paired = entry.get("is_p2p") is True or bool(_PAIR.match(_text(entry.get("profiling_name"))))
    number = _integer(entry.get("p2p_seq_id" if paired else "collective_seq_id"), 0)
    return _Number(_group_name(entry), paired, number) if number > 0 else None


def _ends_batch(entry: dict[str, Any]) -> bool:
    return _text(entry.get("profiling_name")).endswith("coalesced")


def _tensors(batch: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns sizes and dtypes of the tensors of all calls of a batch."""
    found = {}
    for name in ("input_sizes", "input_dtypes"):
        lists = (one for entry in batch if isinstance(one := entry.get(name), list))
        found[name] = list(islice(chain.from_iterable(lists), _MAX_SHAPES))
    return found


class _BoundedReader:
    """Reads lists of a dump until MAX_DUMP_VALUES is spent; keeps each stack once."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._left = MAX_DUMP_VALUES
        self._stacks: dict[str, str] = {}

    def spend(self, count: int, what: str) -> bool:
        """Returns False once the budget is spent, and counts the skipped values."""
        if count > self._left:
            self._counts[f"unread_{what}"] += 1
            return False
        self._left -= count
        return True

    def frames(self, value: Any) -> str:
        """Returns the text of a stack, a line `file\\tline\\tfunction` per frame."""
        some = value[:_MAX_FRAMES] if isinstance(value, list) else []
        text = _frames(some) if self.spend(len(some), "stacks") else ""
        return self._stacks.setdefault(text, text)

    def shapes(self, value: Any) -> str:
        """Returns the shapes of tensors: `[4, 8] [8]`."""
        lists = value[:_MAX_SHAPES] if isinstance(value, list) else []
        some = [one[:_MAX_SHAPES] if isinstance(one, (list, tuple)) else () for one in lists]
        if not self.spend(sum(map(len, some)), "shapes"):
            return ""
        return " ".join(f"[{', '.join(str(_integer(n, 0)) for n in one)}]" for one in some)

    def ranks(self, value: Any) -> list[int]:
        """Returns the ranks of a group, which may be JSON within a text."""
        if type(value) is str and len(value) < 10 << 20 and self.spend(len(value) // 2, "groups"):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                return []
        if not isinstance(value, (list, tuple)) or not self.spend(len(value), "groups"):
            return []
        return [one for one in value if type(one) is int and 0 <= one < 1_000_000]


def _call(
    trace: Trace,
    entry: dict[str, Any],
    ended: dict[str, Any],
    sizes: dict[str, int],
    reader: _BoundedReader,
    place: int | None,
) -> CollectiveCall | None:
    """Returns the call of an entry; None without a name or time.

    `ended` is the entry that has its state. `place` is used as the time.
    """
    start = _integer(entry.get("time_created_ns"), 0) if place is None else place
    label = _text(entry.get("profiling_name"))
    if not 0 < start < MAX_NS or not label:
        return None
    pair = _PAIR.match(label)
    name = pair[1] if pair else backend_name(label)
    group = _group_name(entry)
    text = reader.shapes(entry.get("input_sizes"))
    kinds = entry.get("input_dtypes")
    kinds = kinds if isinstance(kinds, list) else []
    dtypes = " ".join(
        COMMUNICATION_DTYPES.get(_text(one), _text(one)) for one in kinds[:_MAX_SHAPES]
    )
    done = ended.get("state") == "completed"  # one that is only "retired" has timed out
    complete = _integer(ended.get("time_discovered_completed_ns"), 0)
    complete = complete if done and place is None and start <= complete < MAX_NS else 0
    thread = _text(entry.get("thread_id")) or "0"
    lane = trace.lanes["flight recorder", thread, False]
    trace.lanes.lanes[lane].name = _text(entry.get("thread_name")) or f"thread {thread}"
    numbered = _integer(entry.get("collective_seq_id", entry.get("seq_id")), 0)
    return CollectiveCall(
        name=name,
        lane=lane,
        start=start,
        returned=start if done else None,
        complete=complete or None,
        group=group,
        group_size=sizes.get(group) or None,
        shapes=text,
        dtypes=dtypes,
        bytes=0 if name in UNMOVED else bytes_of(text, dtypes),
        peer=int(pair[3]) if pair and pair[3] else None,
        sequence=max(0, numbered - 1) if numbered < 1 << 62 else 0,
        frames=reader.frames(entry.get("frames")),
    )


def _groups(
    dump: dict[str, Any], entries: list[Any], reader: _BoundedReader
) -> dict[str, tuple[list[int], str]]:
    """Returns ranks and description of each process group, by name."""
    found: dict[str, tuple[list[int], str]] = {}
    config = dump.get("pg_config")
    for key, one in config.items() if isinstance(config, dict) else ():
        if isinstance(one, dict):
            name = _text(one.get("name")) or _text(key)
            found[name] = reader.ranks(one.get("ranks")), _text(one.get("desc"))
    named = {_group_name(e): e for e in entries if isinstance(e, dict)}
    if len(found) == 1 == len(named) and "" in found:  # Gloo does not name its group here
        ((ranks, description),) = found.values()
        ((name, entry),) = named.items()
        pair = entry.get("process_group")
        own = _text(pair[1]) if isinstance(pair, (list, tuple)) and len(pair) > 1 else ""
        return {name: (ranks, description or own)}
    return found


def _group_name(entry: dict[str, Any]) -> str:
    pair = entry.get("process_group")
    if isinstance(pair, (list, tuple)) and pair and type(pair[0]) is str:
        return _text(pair[0])
    return str(_integer(entry.get("pg_id"), 0))


def _forgotten(dump: dict[str, Any], calls: list[CollectiveCall], first: int) -> bool:
    """Returns True if the buffer has lost all calls of a group."""
    status = dump.get("pg_status")
    if not first or not isinstance(status, dict):
        return bool(first)
    made = sum(
        _integer(one.get("last_enqueued_collective"), -1) > 0
        for one in status.values()
        if isinstance(one, dict)
    )
    return made > len({call.group for call in calls})


def _frames(stack: list[Any]) -> str:
    lines = []
    for one in stack:
        if isinstance(one, dict):
            file, function = _text(one.get("filename")), _text(one.get("name"))
            line = _integer(one.get("line"), 0)
            line = line if 0 <= line < 1 << 31 else 0
            lines.append(f"{_flat(file)}\t{line}\t{_flat(function)}")
    return "\n".join(lines)


def _flat(text: str) -> str:
    return text.replace("\t", " ").replace("\n", " ")


def _text(value: Any) -> str:
    return value[:200].encode("utf-8", "replace").decode() if type(value) is str else ""


def _integer(value: Any, default: int) -> int:
    """Returns an integer, which JSON dumps may hold as text."""
    if type(value) is str and _NUMBER.fullmatch(value):
        value = int(value)
    return value if type(value) is int and abs(value) < 1 << 63 else default
