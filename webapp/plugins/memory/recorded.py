"""Storages from recorded accesses.

Operators state which storages they allocate, read and write; when one is freed is not recorded. It
is in use at least until its last access, and freed at the latest when a storage is allocated that
has bytes of its memory. The optimizer keeps parameters, gradients and state until it returns. So
the bytes in use are a lower bound of those that are allocated, and what has not been freed for
certain is an upper bound.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping

import numpy as np

from lanescope.collector.format.steps import Steps
from lanescope.webapp.analysis.access_site import storage_names
from lanescope.webapp.plugins.memory.storages import (
    PHASES,
    Storages,
    allocation_sites,
    phase_at,
    phase_spans,
    storage_categories,
)
from lanescope.webapp.plugins.races.access_table import (
    AccessColumns,
    generations,
    outermost_accesses,
)
from lanescope.webapp.plugins.races.races import CAST
from lanescope.webapp.plugins.time.breakdown import training_thread
from lanescope.webapp.runs.intervals import Intervals, enclosing
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray, Int64Array, Window

_HELD = ("parameters", "gradients", "optimizer_state")

_COLUMNS = ["start_ns", "duration_ns", "depth", "storage", "offset", "bytes", "write", "birth"]


def recorded_storages(run: Run, rank: int, window: Window) -> Storages | None:
    """Returns the storages that the rank's own process used in a window; None: none were recorded.

    A storage that was made before the window is counted from its first access in it.
    """
    rows, threads = _accesses(run, rank, window)
    if rows is None:
        return None
    keys = np.stack([rows["storage"], generations(rows)])
    found, which = np.unique(keys, axis=1, return_inverse=True)
    which = which.ravel()
    count = found.shape[1]
    order = np.argsort(rows["start_ns"], kind="stable")
    first, last = np.empty(count, np.int64), np.empty(count, np.int64)
    last[which[order]] = order
    first[which[order[::-1]]] = order[::-1]  # of several the one that is written at the end counts
    size, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.maximum.at(size, which, rows["offset"] + rows["bytes"])
    np.maximum.at(end, which, rows["start_ns"] + rows["duration_ns"])
    born_ns = rows["start_ns"][first]
    freed = np.maximum(_freed(found[0], size, born_ns, window[1]), end)
    made = np.isin(np.arange(count), which[rows["birth"].astype(bool)])
    names = _names(run, rank, found, end - born_ns)
    spans = phase_spans(run, rank)
    born = np.where(made, phase_at(spans, born_ns), "")
    kinds = _categories(run.steps(rank), spans, rows, which, names != "", born)
    sites = _sites(run, rank, threads, rows, first, window)
    said = sites.pop("device")
    # An operator is said to run on the device of its input, which may be another than its result's.
    moved = made & (sites["op"] == CAST)
    later = order[~np.isin(order, first)]
    second = first.copy()
    second[which[later[::-1]]] = later[::-1]
    unknown = moved | np.array([":" not in one and one != "cpu" for one in said], bool)
    for accesses in (second, last):
        said[unknown] = _sites(run, rank, threads, rows, accesses[unknown], window)["device"]
        unknown &= said == ""
    said[said == ""] = "cpu"
    for texts in sites.values():
        texts[~made] = ""
    if "optimizer" in spans:
        closing = spans["optimizer"]
        within = enclosing(closing.start, closing.end, end - 1)
        held = np.isin(kinds, _HELD) & (within >= 0)
        end[held] = np.maximum(end[held], closing.end[within[held]])
        freed = np.maximum(freed, end)
    return Storages(
        rank,
        window,
        size,
        born_ns,
        end,
        freed,
        device=said,
        name=names,
        category=kinds,
        **sites,
    )


def _sites(
    run: Run,
    rank: int,
    threads: list[str],
    rows: AccessColumns,
    chosen: Int64Array,
    window: Window,
) -> dict[str, np.ndarray]:
    """Returns `allocation_sites` of some accesses, by their place in `rows`."""
    found = {
        key: np.full(len(chosen), "", dtype=object) for key in ("op", "module", "where", "device")
    }
    of_thread, instants = rows["thread"][chosen], rows["start_ns"][chosen]
    for number, thread in enumerate(threads):
        own = np.flatnonzero(of_thread == number)
        if not len(own):
            continue
        for key, texts in allocation_sites(run, rank, thread, instants[own], window).items():
            found[key][own] = texts
    return found


def _categories(
    steps: Steps,
    spans: Mapping[str, Intervals],
    rows: AccessColumns,
    which: Int64Array,
    named: BoolArray,
    born: np.ndarray,
) -> np.ndarray:
    """Returns the category of each storage. `which`: the storage of each access in `rows`."""
    count = len(named)

    def touched(accesses: BoolArray) -> BoolArray:
        found = np.zeros(count, bool)
        found[which[accesses]] = True
        return found

    phase = phase_at(spans, rows["start_ns"])
    step = np.searchsorted(steps.end_ns, rows["start_ns"], side="right")

    def again(accesses: BoolArray) -> BoolArray:
        """Storages with such accesses at two steps."""
        lowest, highest = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
        np.minimum.at(lowest, which[accesses], step[accesses])
        np.maximum.at(highest, which[accesses], step[accesses])
        return highest > lowest

    used = {name: touched(phase == name) for name in PHASES}
    written = (phase == "backward") & rows["write"].astype(bool)
    reduced = (born == "") & touched(written) | again(written)
    return storage_categories(named, born, used, again(phase == "optimizer"), reduced)


def _accesses(run: Run, rank: int, window: Window) -> tuple[AccessColumns | None, list[str]]:
    """Returns accesses of the rank's own process, and its threads, by number in column thread."""
    pid = training_thread(run, rank).pid
    threads = [one.thread for one in run.threads_of(rank) if one.pid == pid]
    parts = []
    for number, thread in enumerate(threads):
        table = run.events("access", rank, thread, _COLUMNS, window)
        if len(table):
            columns = outermost_accesses({name: table[name].to_numpy() for name in _COLUMNS})
            columns["thread"] = np.full(len(columns["start_ns"]), number)
            parts.append(columns)
    if not parts:
        return None, threads
    return {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}, threads


def _names(run: Run, rank: int, found: Int64Array, spans: Int64Array) -> np.ndarray:
    """Returns the name of the parameter or buffer in each storage (address and generation); of
    several storages at the address, it is in the one that was used for the longest time."""
    names = np.full(found.shape[1], "", dtype=object)
    known = storage_names(run, rank)
    longest: dict[int, int] = {}
    for i in np.flatnonzero(np.isin(found[0], list(known))).tolist():
        address = int(found[0, i])
        if address not in longest or spans[i] > spans[longest[address]]:
            longest[address] = i
    for address, i in longest.items():
        names[i] = known[address]
    return names


def _freed(address: Int64Array, size: Int64Array, born: Int64Array, until: int) -> Int64Array:
    """Returns when another storage was allocated that has bytes of each one's memory; `until` if
    none was."""
    freed = np.full(len(address), until, np.int64)
    begins: list[int] = []  # of the storages whose memory has not been used again, sorted
    owners: list[int] = []
    for i in np.argsort(born, kind="stable").tolist():
        begin, length = int(address[i]), max(int(size[i]), 1)
        low = bisect.bisect_left(begins, begin)
        if low and begins[low - 1] + int(size[owners[low - 1]]) > begin:
            low -= 1
        high = bisect.bisect_left(begins, begin + length)
        for other in owners[low:high]:
            freed[other] = born[i]
        begins[low:high], owners[low:high] = [begin], [i]
    return freed
