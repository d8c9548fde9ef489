"""Imports files into a run: one rank a file."""

from __future__ import annotations

import datetime
import gc
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compaction import manifest as manifests
from ..compaction.catalogue import write_catalogue
from ..format.record_kinds import FORMAT_VERSION
from .calls import calls_of, groups_of, numbered
from .clock_offsets import (
    BY_ORDER,
    Offset,
    Source,
    comparable_groups,
    of_no_group,
    rank_offsets,
    same_call_order,
    with_systematic_error,
)
from .import_limits import ImportRejected
from .join_exported import join_exported
from .parallel import read_files
from .rank_writer import Rank, RankWriter
from .spill import CollectiveCall, StructArray, Trace, release_pages
from .threads import map_threads
from .timestamps import MAX_NS
from .worker_slices import by_rank, take_steps
from .workers import NO_FIELDS, Fields, chosen_workers, merged_workers

if TYPE_CHECKING:
    from concurrent.futures import Executor

_RANK_IN_NAME = re.compile(r"rank[-_ .]?(\d{1,6})", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(.*?)(\d{1,6})(\D*)")
_MAX_RANKS = 1_000_000


def import_files(
    files: Sequence[Path],
    run: Path,
    ranks: Sequence[int] | None = None,
    fields: Fields = NO_FIELDS,
    workers: Executor | None = None,
) -> None:
    """Makes the run directory `run` of files, each of one rank, or of one file of several workers.

    `ranks` gives the rank of each file; else the file's contents or name do. `fields` says where
    the events of several workers hold rank and step. `workers` are processes that see the same
    folders and read the files. On failure, removes what was written and
    raises ImportRejected, or OSError where the run cannot be written.
    """
    if fields.rank is not None and (len(files) != 1 or ranks is not None):
        raise ImportRejected(
            f"--rank-from is for one file of several workers, found {len(files)} files"
            + (" with --ranks" if ranks is not None else "")
        )
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise ImportRejected(f"{run}: exists already, expected the name of a run to be made")
    if ranks is not None and len(ranks) != len(files):
        raise ImportRejected(
            f"{len(ranks)} ranks are given for {len(files)} files, expected one for each"
        )
    run.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{run.name}-", dir=run.parent))
    # Decoded events are many and free of cycles: collecting these would take a tenth of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        _import(files, making, ranks, fields, workers)
        os.chmod(making, 0o777 & ~_umask())
        if run.exists():
            run.rmdir()
        making.replace(run)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    finally:
        if collecting:
            gc.enable()


def _import(
    files: Sequence[Path],
    making: Path,
    given: Sequence[int] | None,
    fields: Fields,
    workers: Executor | None,
) -> None:
    with tempfile.TemporaryDirectory(prefix="rows-", dir=making) as folder:
        traces = read_files(files, Path(folder), workers)
        if any(trace.exported for trace in traces):
            asked = given is not None or fields != NO_FIELDS
            manifests.write_manifest(making, join_exported(traces, making, asked))
            return
        notes: list[str] = []
        groups: dict[str, Any] = {}
        ranks: list[Rank] = []
        if len(traces) == 1 and given is None:
            ranks, groups = _split(traces[0], fields, notes)
        if not ranks:
            ranks = _one_rank_each(traces, _ranks(files, traces, given, notes), fields)
        ranks.sort(key=lambda one: one.rank)
        placed = _aligned(ranks, notes)
        writer = RankWriter(making)
        processes = [
            {**process, "clock": _clock(placed[rank.rank])}
            for rank in ranks
            for process in writer.write(rank)
        ]
    if not processes:
        raise ImportRejected(f"{files[0]}: holds no events that have a time, expected a trace")
    notes += [note for trace in traces for note in _notes(trace)]
    world = max(*(_world(trace) for trace in traces), ranks[-1].rank + 1)
    manifest = {
        **_header(files, traces),
        "world_size": world,
        "complete": len(ranks) == world and all(t.closed and not t.truncated for t in traces),
        "exit_status": None,
        "notes": notes,
        "axis": {
            "clock_identity": placed[ranks[0].rank].clock,
            "wall_minus_monotonic_ns": _base(ranks[0].trace),
        },
        "processes": sorted(processes, key=lambda p: (p["rank"], p["start_ns"])),
        "groups": groups | _groups(traces, ranks, world),
        "files": writer.files,
    }
    manifests.write_manifest(making, manifest)
    write_catalogue(making, manifest)


def _header(files: Sequence[Path], traces: Sequence[Trace]) -> dict[str, Any]:
    """Returns what a manifest says of the files, before it speaks of ranks."""
    return {
        "format": FORMAT_VERSION,
        "id": uuid.uuid4().hex,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": [],
        "level": "timing",
        "options": {
            "imported": [_clean(path.name) for path in files],
            # A missing call may have been made before or after the window.
            "window": any(not _numbers_its_calls(t) or t.lost_calls for t in traces),
            "dump": all(trace.format == "flight_recorder" for trace in traces),
        },
    }


def _one_rank_each(traces: Sequence[Trace], numbers: Sequence[int], fields: Fields) -> list[Rank]:
    """Returns the ranks of traces that hold one each, by their `numbers`."""
    ranks = []
    for number, trace in zip(numbers, traces, strict=True):
        lanes = range(len(trace.lanes.lanes))
        if fields.step is not None:
            take_steps(trace, {number: list(lanes)}, fields.step)
        ranks.append(_rank(number, trace, lanes, trace.slices.rows()))
    called = [call.start for rank in ranks for call in rank.calls]
    for rank in ranks:
        if _numbers_its_calls(rank.trace) and not rank.calls:
            rank.seen_ns = min(called, default=None)
    return ranks


def _split(trace: Trace, fields: Fields, notes: list[str]) -> tuple[list[Rank], dict[str, Any]]:
    """Returns the ranks and groups of a trace that holds several; none of another one."""
    chosen = fields.rank is not None
    workers = chosen_workers(trace, fields) if chosen else merged_workers(trace)
    if workers is None:
        return [], {}
    lanes = workers.lanes
    said = ", ".join(f"{rank} is {_clean(words)}" for rank, words in workers.words.items())
    notes.append(f"the file holds {len(lanes)} workers, which became ranks: {said[:1000]}")
    groups = {
        _clean(name): {"ranks": ranks, "description": description}
        for name, (ranks, description) in workers.groups.items()
    }
    if chosen or fields.step is not None:
        take_steps(trace, lanes, fields.step)
    slices = by_rank(trace, lanes) if lanes else {}
    found = [_rank(n, trace, mine, slices[n]) for n, mine in sorted(lanes.items())]
    for rank in found[1:]:
        rank.has_counts = False
    return found, groups


def _rank(number: int, trace: Trace, lanes: Sequence[int], slices: StructArray) -> Rank:
    places = map_threads(trace, slices, lanes)
    release_pages(slices)
    rank = Rank.of(number, trace, places, slices)
    rank.closed = trace.closed
    mine = set(lanes)
    if trace.calls is not None:
        rank.calls = [call for call in trace.calls if call.lane in mine]
    else:
        named = [call for call in trace.named_calls if call.lane in mine]
        calls = [*calls_of(trace, number, rank.communication_kernels()), *named]
        rank.calls = numbered(sorted(calls, key=lambda call: call.start))
    return rank


def _aligned(ranks: Sequence[Rank], notes: list[str]) -> Mapping[int, Offset]:
    """Returns offsets of the ranks' clocks; calls that cannot be matched become one rank's own."""
    one_file = len({id(rank.trace) for rank in ranks}) == 1
    by_order = False
    if len(ranks) > 1 and not all(_numbers_its_calls(rank.trace) for rank in ranks):
        by_order = not one_file and _match_by_order(ranks, notes)
        same = comparable_groups({rank.rank: rank.calls for rank in ranks})
        loose = sorted({c.group for rank in ranks for c in rank.calls} - same)
        for rank in ranks:
            rank.calls = numbered([_own(call, rank.rank, same) for call in rank.calls])
        if loose:
            notes.append(
                f"the collectives of group {', '.join(loose[:5])} are not the same on all ranks in "
                "these files (of other steps, or only some of them): they are shown rank by rank "
                "and not compared"
            )
    calls = {rank.rank: rank.calls for rank in ranks}
    if one_file:  # one file has one clock
        return dict.fromkeys(calls, Offset(0, 0, True, "file"))
    sources = {rank.rank: Source(_base(rank.trace), rank.host) for rank in ranks}
    found = rank_offsets(sources, calls)
    if by_order:
        found = with_systematic_error(found, sources)
        notes.append(_said_of_order(found))
    return found


def _match_by_order(ranks: Sequence[Rank], notes: list[str]) -> bool:
    """Puts calls without a group into one where all files hold the same ones; returns True then."""
    calls = {rank.rank: rank.calls for rank in ranks}
    without = any(of_no_group(call, rank) for rank, own in calls.items() for call in own)
    if not without or any(groups_of(rank.trace) for rank in ranks):
        return False
    sizes = {_world(rank.trace) for rank in ranks}
    world = max(sizes)
    if len(sizes) > 1 or world < len(ranks) or not same_call_order(calls):
        notes.append(
            "the files name no process groups, and hold different collectives or world sizes: "
            "collectives are shown rank by rank and not compared"
        )
        return False
    for rank in ranks:
        rank.calls = numbered(
            [
                call._replace(group=BY_ORDER, group_size=world)
                if of_no_group(call, rank.rank)
                else call
                for call in rank.calls
            ]
        )
    return True


def _said_of_order(found: Mapping[int, Offset]) -> str:
    said = (
        "the files name no process groups: collectives are matched by order, the k-th call of one "
        "rank with the k-th of the others"
    )
    if not all(one.calibrated for one in found.values()):
        return f"{said}; too few of them end on all ranks to align the clocks"
    within = max(one.uncertainty_ns for one in found.values())
    return f"{said}; the clocks are aligned on their ends, to within {within / 1000:.3g} us"


def _numbers_its_calls(trace: Trace) -> bool:
    return trace.calls is not None


def _own(call: CollectiveCall, rank: int, same: set[str]) -> CollectiveCall:
    if call.group in same or call.group.endswith(f"of rank {rank}"):
        return call
    return call._replace(group=f"{call.group}, of rank {rank}", group_size=None)


def _clock(offset: Offset) -> Any:
    return {
        "offset_ns": offset.offset_ns,
        "drift_ppb": 0.0,
        "uncertainty_ns": offset.uncertainty_ns,
        "calibrated": offset.calibrated,
        "host": offset.clock,
    }


def _base(trace: Trace) -> int:
    """Returns the wall-clock time in ns that the file's times count from; 0: they are absolute."""
    base = trace.metadata.get("baseTimeNanoseconds", 0)
    return base if type(base) is int and abs(base) <= MAX_NS else 0


def _ranks(
    files: Sequence[Path], traces: Sequence[Trace], given: Sequence[int] | None, notes: list[str]
) -> list[int]:
    """Returns the rank of each file: as given, from its contents, from its name, or in order."""
    found = list(given) if given is not None else [_stated_rank(t) for t in traces]
    pairs = zip(files, found, strict=True)
    named = [_named(path) if number is None else number for path, number in pairs]
    if all(number is None for number in named):
        counted = _last_numbers(files, max(len(files), *map(_world, traces)))
        if len(files) > 1 and not counted:
            notes.append("the files do not name their ranks: they were numbered in the order given")
        return counted or list(range(len(files)))
    numbers: list[int] = []
    for path, number in zip(files, named, strict=True):
        if number is None or not 0 <= number < _MAX_RANKS:
            raise ImportRejected(
                f"{path}: does not name its rank; give the ranks of all files in their "
                "order, as in --ranks 0,1"
            )
        if number in numbers:
            first = files[numbers.index(number)]
            raise ImportRejected(
                f"{path}: is of rank {number}, and so is {first}; give the ranks of all files in "
                "their order, as in --ranks 0,1"
            )
        numbers.append(number)
    return numbers


def _stated_rank(trace: Trace) -> int | None:
    info = trace.metadata.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if type(rank) is int and 0 <= rank < _MAX_RANKS else None


def _named(path: Path) -> int | None:
    found = _RANK_IN_NAME.search(path.name)
    return int(found[1]) if found else None


def _last_numbers(files: Sequence[Path], world: int) -> list[int]:
    """Returns ranks by the last number in names that differ in it alone; empty for other names."""
    found = [one for path in files if (one := _LAST_NUMBER.fullmatch(path.name))]
    numbers = [int(one[2]) for one in found]
    alike = len({(one[1], one[3]) for one in found}) == 1 and max(numbers) < world
    return numbers if alike and len({*numbers}) == len(files) else []


def _world(trace: Trace) -> int:
    info = trace.metadata.get("distributedInfo")
    world = info.get("world_size") if isinstance(info, dict) else None
    return world if type(world) is int and 0 < world <= _MAX_RANKS else 1


def _groups(traces: Sequence[Trace], ranks: Sequence[Rank], world: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if any(call.group == BY_ORDER for rank in ranks for call in rank.calls):
        found[BY_ORDER] = {"ranks": list(range(world)), "description": BY_ORDER}
    for trace in traces:
        for name, group in groups_of(trace).items():
            entry = {"ranks": list(group.ranks), "description": _clean(group.description)}
            found.setdefault(_clean(name), entry)
    return found


def _notes(trace: Trace) -> list[str]:
    name, found = _clean(trace.path.name), []
    if trace.truncated:
        found.append(f"{name} ends early: everything before its end was imported")
    if trace.order_only:
        found.append(
            f"{name} holds no creation times: its calls are in their order, and lengths and "
            "distances on the timeline mean nothing"
        )
    dropped = {k: n for k, n in trace.counts.items() if k.startswith("dropped")}
    if dropped:
        said = ", ".join(f"{n:,} ({k[8:].replace('_', ' ')})" for k, n in dropped.items())
        found.append(f"events of {name} that could not be imported: {said}")
    unread = {k: n for k, n in trace.counts.items() if k.startswith("unread")}
    if unread:
        said = ", ".join(f"{n:,} {k[7:].replace('_', ' ')}" for k, n in unread.items())
        found.append(f"left out of {name}, beyond the limits of an import: {said}")
    return found


def _clean(text: str) -> str:
    return text[:200].encode("utf-8", "replace").decode()


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
