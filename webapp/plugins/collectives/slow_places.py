"""Finds the place of the program at which a rank spends more time than the others.

Over a stretch of the run, per place of the program and round:

    excess(place) = time of the rank at the place - mean over the other ranks

Time at a place is the self time of the operators that it called, and the time in which nothing was
recorded on the thread, from one operator to the next: of that the two places around it are known,
and samples of the line in between. The largest excess is the answer, where it explains half of the
delay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.loop_names import SAMPLED_LINE
from lanescope.webapp.analysis.collective_calls import calls
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import own_frames, place_of, short_place
from lanescope.webapp.runs.intervals import Intervals
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array

MIN_GAP_NS = 1_000_000
"""Less between two operators is Python's own time, which all ranks have alike."""

EXPLAINS = 0.5
"""Share of the delay that a place must account for."""

_MIN_SAMPLES = 3
"""Samples of one line, and half of all, show that a thread is there between two operators."""

_COLUMNS = ["name", "start_ns", "duration_ns", "self_ns", "module", "stack"]


@dataclass(frozen=True)
class SlowPlace:
    """What takes a rank longer than the others."""

    words: str
    advice: str
    where: str | None  # file.py:12
    excess_ns: int  # per round


def slow_place(
    run: Run, rank: int, window: tuple[int, int], rounds: int, delay_ns: float
) -> SlowPlace | None:
    """Returns the place that explains a delay of `delay_ns` per round; None where no place does.

    `window` [t0, t1) in ns from the start of the run holds `rounds` of them.
    """
    thread = _driving(run, rank)
    mine = times_by_place(run, rank, thread, window)
    others = [
        times_by_place(run, other, _driving(run, other), window)
        for other in run.ranks
        if other != rank
    ]
    if not others:
        return None

    def excess(key: Any) -> float:
        return (mine[key] - sum(one.get(key, 0) for one in others) / len(others)) / rounds

    key = max((key for key in mine if key != _DATA), key=excess, default=None)
    if key is None or excess(key) < EXPLAINS * delay_ns:
        return None
    before, after = key
    line = line_between(run, rank, thread, window, key)
    gap = f"at {line}" if line else f"between {before} and {after}"
    if before == after and line is None:
        words, advice = f"at {before}", "compare the amount of work there between the ranks"
    elif _DATA in mine and excess(_DATA) >= excess(key) / 2:
        words = f"waiting for data {gap}"
        advice = "give its DataLoader more workers, or check the storage that it reads"
    else:
        words = f"{gap}, where no operator runs"
        advice = "look there for a sleep, input or output, or data preparation"
    where = line or (None if before.startswith(_UNPLACED) else before)
    return SlowPlace(words, advice, where, int(excess(key)))


_DATA = ("", "")  # loading data, wherever
_UNPLACED = "operator "


_Place = tuple[str, str]


def times_by_place(
    run: Run, rank: int, thread: str, window: tuple[int, int]
) -> Mapping[_Place, int]:
    """Returns the ns that a thread spends per place, as (place, place), and in gaps, as the places
    around; data loading is ("", "")."""
    return _by_place(run, rank, thread, window)[0]


def line_between(
    run: Run, rank: int, thread: str, window: tuple[int, int], around: _Place
) -> str | None:
    """Returns file.py:12 at which most samples found a thread in the gaps of `times_by_place`
    between two places; None where there are too few, or operators take more of the time."""
    times, gaps = _by_place(run, rank, thread, window)
    starts, ends = np.array(gaps.get(around, []), np.int64).reshape(-1, 2).T
    if (ends - starts).sum() < times[around] / 2:
        return None
    return sampled_line(run, rank, thread, Intervals(starts, ends))


def sampled_line(run: Run, rank: int, thread: str, spans: Intervals) -> str | None:
    """Returns file.py:12 at which most samples found a thread within some spans, ns from the start
    of the run; None where there are too few."""
    if not len(spans):
        return None
    instants, lines = _samples(run, rank, thread)
    at = np.searchsorted(spans.start, instants, "right") - 1
    lines = lines[(at >= 0) & (instants < spans.end[at])].value_counts()
    most = lines.max() if len(lines) else 0
    if most < max(_MIN_SAMPLES, lines.sum() / 2) or lines.idxmax() == "?":
        return None
    return short_place(str(lines.idxmax()))


@lru_cache(maxsize=64)  # a step has many gaps
def _samples(run: Run, rank: int, thread: str) -> tuple[Int64Array, pd.Series]:
    """Returns when a thread was seen, ns from the start of the run, and at which line."""
    rows = logged(run, rank, prefix=SAMPLED_LINE)
    rows = rows[rows["thread"] == thread]
    seconds_before = rows["value"].to_numpy()
    instants = rows["time_ns"].to_numpy() - (seconds_before * 1e9).astype(np.int64)
    return instants, rows["name"].astype("str")


@lru_cache(maxsize=16)
def _by_place(
    run: Run, rank: int, thread: str, window: tuple[int, int]
) -> tuple[Mapping[_Place, int], Mapping[_Place, list[tuple[int, int]]]]:
    """Returns `times_by_place`, and the gaps [start, end) in ns, in order."""
    rows = run.events("op", rank, thread, _COLUMNS, window=window)
    found: dict[_Place, int] = defaultdict(int)
    between: dict[_Place, list[tuple[int, int]]] = defaultdict(list)
    rows = rows.set_column(5, "stack", rows["stack"].fill_null(-1))
    placed = pc.greater_equal(rows["stack"], 0)
    if pc.any(placed).as_py():  # a scope has none, and nothing to add to what runs in it
        rows = rows.filter(placed)
    if not rows.num_rows:
        return found, between
    code, sites = _sites(rows)
    own = np.bincount(code, rows["self_ns"].fill_null(0).to_numpy(), len(sites))
    for site, time in zip(sites, own.tolist(), strict=True):
        found[lines_around(run, rank, site, site)] += int(time)
    starts = rows["start_ns"].to_numpy()
    ends = pc.add(rows["start_ns"], rows["duration_ns"]).fill_null(window[1]).to_numpy()
    last = np.maximum.accumulate(ends)
    latest = np.maximum.accumulate(np.where(ends == last, np.arange(len(ends)), 0))
    gaps = starts[1:] - last[:-1]
    for i in np.flatnonzero(gaps >= MIN_GAP_NS).tolist():
        around = lines_around(run, rank, sites[code[latest[i]]], sites[code[i + 1]])
        found[around] += int(gaps[i])
        between[around].append((int(last[i]), int(starts[i + 1])))
    phases = run.events("phase", rank, thread, ["kind", "duration_ns"], window=window)
    loads = pc.equal(phases["kind"].cast(pa.string()), schema.PhaseKind.data.name)
    found[_DATA] = int(pc.sum(phases.filter(loads)["duration_ns"]).as_py() or 0)
    return found, between


_Site = tuple[int, str, str]  # stack, operator, module


def _sites(rows: pa.Table) -> tuple[Int64Array, list[_Site]]:
    """The position of each row's site, and the sites."""
    codes, words = rows["stack"].to_numpy(), []
    for column in ("name", "module"):
        coded = rows[column].unify_dictionaries().combine_chunks()
        words.append([*coded.dictionary.to_pylist(), ""])
        known = len(words[-1])
        codes = codes * known + coded.indices.fill_null(known - 1).to_numpy()
    sites, code = np.unique(codes, return_inverse=True)
    names, modules = words
    at, module = np.divmod(sites, len(modules))
    stack, name = np.divmod(at, len(names))
    texts = zip(stack.tolist(), name.tolist(), module.tolist(), strict=True)
    return code, [(of, names[one], modules[two]) for of, one, two in texts]


def lines_around(run: Run, rank: int, before: _Site, after: _Site) -> _Place:
    """Returns file.py:12 of both: of the innermost function that both were called from, where each
    has a stack; else the operator and its module."""
    first, second = (own_frames(run, rank, site[0]) for site in (before, after))
    found: tuple[Any, Any] | None = None
    for one, other in zip(reversed(first), reversed(second), strict=False):
        if (one["file"], one["function"]) != (other["file"], other["function"]):
            break
        found = one, other
        if one["line"] != other["line"]:
            break
    if found is None:
        return _label(before), _label(after)
    return place_of(found[0]), place_of(found[1])


def _label(site: _Site) -> str:
    _, name, module = site
    return f"{_UNPLACED}{name}" + (f" in {module}" if module else "")


@lru_cache(maxsize=256)
def _driving(run: Run, rank: int) -> str:
    frame = calls(run)
    return str(frame.loc[frame["rank"] == rank, "thread"].mode().iloc[0])
