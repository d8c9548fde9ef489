"""Finds the collective calls of a trace.

torch writes a call as its operator (`c10d::allreduce_`), a description within it
(`record_param_comms`) and the backend's work (`nccl:all_reduce`, `gloo:all_reduce`), which may run
later on another thread. On GPUs a call ends with the kernels launched within it. A trace may hold
any of these slices.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import msgspec

from ..format.names import COLLECTIVE_NAMES, PAIRED, UNMOVED
from .events import CommunicationArgs, decode_communication
from .kineto import COMMUNICATION_DTYPES, ITEM_BYTES
from .spill import CollectiveCall, CollectiveSlice, Trace

_DESCRIBED = "record_param_comms"
_BACKEND_NAMES = {
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "all_to_allv": "all_to_all_single",
    "recvanysource": "recv",
}
_NOTHING = CommunicationArgs()
_DESCRIBING = ("wait", "init", "finalize")
"""Descriptions that do not belong to an operation."""


@dataclass(frozen=True)
class ProcessGroup:
    """A process group as a file describes it: global ranks by position, and torch's description."""

    ranks: tuple[int, ...]
    description: str


def calls_of(
    trace: Trace, rank: int, kernels: dict[int, list[tuple[int, int]]]
) -> list[CollectiveCall]:
    """Returns all calls by start, numbered within their group (sends and receives per peer).

    `kernels`: per lane and in order, (launch, end) in ns of each kernel of a collective.
    """
    groups = groups_of(trace)
    made, works = _gathered(trace)
    _join_works(made, works)
    calls = [_call(trace, parts, groups, rank) for parts in made]
    calls = [_with_kernels(call, kernels.get(call.lane, [])) for call in calls if call.name]
    return numbered(sorted(calls, key=lambda call: call.start))


def numbered(calls: list[CollectiveCall]) -> list[CollectiveCall]:
    """Returns the calls with their positions in their groups."""
    count: Counter[Any] = Counter()
    found = []
    for call in calls:
        paired = call.name in PAIRED
        key = (call.group, call.name, call.peer) if paired else call.group
        found.append(call._replace(sequence=count[key]))
        count[key] += 1
    return found


def groups_of(trace: Trace) -> dict[str, ProcessGroup]:
    """Returns the process groups that the file lists, by name."""
    info = trace.metadata.get("distributedInfo")
    listed = info.get("pg_config") if isinstance(info, dict) else None
    found: dict[str, ProcessGroup] = {}
    for one in listed if isinstance(listed, list) else []:
        if isinstance(one, dict) and isinstance(one.get("ranks"), list):
            name = str(one.get("pg_name", ""))[:200]
            ranks = tuple(r for r in one["ranks"] if type(r) is int and 0 <= r < 1_000_000)
            found[name] = ProcessGroup(ranks, str(one.get("pg_desc", ""))[:200])
    return found


@dataclass
class _Parts:
    """The slices of one call."""

    first: CollectiveSlice
    operator: CollectiveSlice | None = None
    described: CommunicationArgs | None = None
    work: CollectiveSlice | None = None


def _gathered(trace: Trace) -> tuple[list[_Parts], list[CollectiveSlice]]:
    """Returns the calls with the slices within them, and backend work outside of any call."""
    made: list[_Parts] = []
    works: list[CollectiveSlice] = []
    current: dict[int, _Parts] = {}
    for one in sorted(trace.collective_slices, key=lambda one: (one.start, -one.end)):
        parts = current.get(one.lane)
        inside = parts is not None and one.start < parts.first.end
        is_operator, is_described = one.name.startswith("c10d::"), one.name == _DESCRIBED
        if inside and parts is not None:
            if is_described:
                parts.described = parts.described or decode_communication(one.raw_args)
            elif not is_operator:
                parts.work = parts.work or one
            continue
        if not is_operator and not is_described:
            works.append(one)
            if one.name.startswith("nccl:"):  # on the thread that calls
                current[one.lane] = _Parts(one, work=one)
                made.append(current[one.lane])
                works.pop()
            continue
        parts = current[one.lane] = _Parts(one, operator=one if is_operator else None)
        if is_described:
            parts.described = decode_communication(one.raw_args)
        made.append(parts)
    return made, works


def _join_works(made: list[_Parts], works: list[CollectiveSlice]) -> None:
    """Assigns backend work to the first call of its name without any; the rest become calls."""
    waiting: defaultdict[str, list[_Parts]] = defaultdict(list)
    for parts in made:
        if parts.work is None and parts.operator is not None:
            waiting[_name(parts)].append(parts)
    heads: Counter[str] = Counter()
    for work in works:
        name = backend_name(work.name)
        queue, head = waiting[name], heads[name]
        if head < len(queue) and queue[head].first.start <= work.start:
            queue[head].work = work
            heads[name] += 1
        else:
            made.append(_Parts(work, work=work))


def _call(
    trace: Trace, parts: _Parts, groups: dict[str, ProcessGroup], rank: int
) -> CollectiveCall:
    args = parts.described or _NOTHING
    first, work = parts.first, parts.work
    name = _name(parts)
    group = args.group if args.group is not None else args.group_id
    if group is None:
        # With a single group the call can belong to no other.
        group = next(iter(groups)) if len(groups) == 1 else f"unknown, of rank {rank}"
    group = str(group)[:200]
    size = args.group_size or (len(groups[group].ranks) if group in groups else 0)
    source = next((t.signature for t in (work, parts.operator) if t and t.signature), 0)
    shapes, dtypes = trace.signatures[source]
    dtypes = COMMUNICATION_DTYPES.get(args.dtype, dtypes)
    if args.sent >= 0 and not shapes:
        shapes = f"[{args.sent}]"
    paired = name in PAIRED
    on_host = work is not None and not work.name.startswith("nccl:")
    return CollectiveCall(
        name=name if args.name not in _DESCRIBING else "",
        lane=first.lane,
        start=first.start,
        returned=first.end,
        complete=max(first.end, work.end) if work is not None and on_host else None,
        group=group,
        group_size=size if 0 < size < 1 << 31 else None,
        shapes=shapes,
        dtypes=dtypes,
        bytes=0 if name in UNMOVED else bytes_of(shapes, dtypes),
        peer=_peer(args, parts) if paired else None,
    )


def _name(parts: _Parts) -> str:
    if parts.operator is not None:
        short = parts.operator.name.rpartition("::")[2]
        return COLLECTIVE_NAMES.get(short, short.rstrip("_"))
    if parts.work is not None:
        return backend_name(parts.work.name)
    described = parts.described.name.lower() if parts.described else ""
    return _BACKEND_NAMES.get(described, described.rstrip("_"))


@lru_cache(maxsize=4096)
def backend_name(name: str) -> str:
    """Returns torch.distributed's name of a backend's work: all_reduce for `nccl:all_reduce`."""
    short = name.partition(":")[2].partition(" ")[0].lower()
    return _BACKEND_NAMES.get(short, short)


def _peer(args: CommunicationArgs, parts: _Parts) -> int | None:
    for label in (args.target, args.source):
        if type(label) is int and 0 <= label < 1_000_000:
            return label
    given = decode_communication(parts.first.raw_args).concrete
    text = str(given[2]) if len(given) > 2 else ""
    return int(text) if text.isdecimal() and len(text) < 7 else None


@lru_cache(maxsize=4096)
def bytes_of(shapes: str, dtypes: str) -> int:
    """Returns the bytes of tensors with shapes like `[4, 8] [8]`; 0: unknown."""
    item = ITEM_BYTES.get(dtypes.partition(" ")[0], 0)
    try:
        sizes = msgspec.json.decode(f"[{shapes.replace('] [', '], [')}]") if shapes else []
        total = item * sum(prod(one) for one in sizes)
    except (ValueError, TypeError, RecursionError):
        return 0
    return total if 0 <= total < 1 << 62 else 0


def _with_kernels(call: CollectiveCall, kernels: list[tuple[int, int]]) -> CollectiveCall:
    """Completes a call with the end of the last kernel launched within it."""
    returned = call.returned if call.returned is not None else call.start
    first, last = bisect_left(kernels, (call.start, 0)), bisect_left(kernels, (returned + 1, 0))
    ends = [end for _, end in kernels[first:last]]
    return call._replace(complete=max(ends)) if ends else call
