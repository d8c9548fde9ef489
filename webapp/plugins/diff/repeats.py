"""Does the same command compute the same every time? What `lanescope repeat` recorded.

    gradient fluctuation = max over ranks, steps and parameters of
                           the standard deviation, over the runs, of the gradient's norm

A repetition is a folder with `repeat.json` and the runs in `threads-<n>/run-<k>/`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.findings import Finding, NotRecorded
from lanescope.webapp.analysis.parameter_history import gradients
from lanescope.webapp.plugins.diff.diff import compare
from lanescope.webapp.plugins.diff.values.first_difference import draws
from lanescope.webapp.plugins.diff.verdict_words import difference_address
from lanescope.webapp.runs import units
from lanescope.webapp.runs.errors import RunError, shown
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.runs.typed_json import conform, json_number

FILE = "repeat.json"
_LIMIT = 1e-5
"""Norms of float32 gradients may fluctuate by this much."""

_KEYS = ["rank", "step", "parameter", "optimizer"]


@dataclass(frozen=True)
class Repeats:
    """Runs of one command with one number of threads."""

    threads: int
    fluctuation: float | None  # None: no gradient was recorded
    identical: bool  # all runs did the same, bit for bit
    first: dict[str, Any] | None  # the earliest difference from run 0, as `diff --json` prints it

    def to_json(self) -> dict[str, Any]:
        """Returns an entry of `by_threads` of `repeat --json`."""
        return {
            "threads": self.threads,
            "gradient_fluctuation": json_number(self.fluctuation),
            "bitwise_identical": self.identical,
            "first": self.first,
        }


def repeats(runs: Sequence[Run], threads: int) -> Repeats:
    """Compares runs of one command with each other."""
    table = fluctuation(runs)
    differences = []
    identical = True
    for number, run in enumerate(runs[1:], 1):
        result = compare(runs[0], run)
        alone = result.only_in_base + result.only_in_run
        identical &= result.verdict == "identical" and not alone
        if result.first is not None:
            differences.append({**result.first, "run_number": number})
    first = min(differences, key=lambda one: (one["step"], one["run_number"]), default=None)
    spread = float(table["std"].max()) if len(table) else None
    return Repeats(threads, spread, identical, first)


def fluctuation(runs: Sequence[Run]) -> pd.DataFrame:
    """Returns one row per rank, step, parameter and optimizer that has a gradient in every run.

    mean and std (of the population) of the gradient's norm over the runs, which are equally many;
    std is infinite where a norm is NaN or infinite in some runs and not the same in all.
    """
    frames = []
    for number, run in enumerate(runs):
        frame = gradients(run)[[*_KEYS, "norm", "missing"]]
        frame = frame[~frame["missing"]].drop(columns="missing")
        frames.append(frame.assign(run=number).drop_duplicates(_KEYS))
    if not frames:
        return pd.DataFrame(columns=[*_KEYS, "mean", "std"])
    norms = pd.concat(frames).pivot_table(index=_KEYS, columns="run", values="norm", dropna=False)
    seen = pd.concat(frames).groupby(_KEYS).size()
    norms = norms.loc[seen.index[seen == len(runs)]]
    values = norms.to_numpy(np.float64)
    with np.errstate(invalid="ignore"):
        std = values.std(axis=1)
    odd = ~np.isfinite(values)
    same = (values == values[:, :1]) | (np.isnan(values) & np.isnan(values[:, :1]))
    # Of equal numbers the mean may be rounded, and the spread not be 0.
    std = np.where(same.all(axis=1), 0.0, np.where(odd.any(axis=1), np.inf, std))
    return norms.index.to_frame(index=False).assign(mean=values.mean(axis=1), std=std)


def gradient_fluctuation(run: Run) -> float | None:
    """Returns the metric, of the repetition that the run is part of; None where it is part of
    none."""
    entry = _entry(run)
    value = entry["gradient_fluctuation"] if entry else None
    return math.inf if isinstance(value, str) else value


def nondeterminism(run: Run) -> list[Finding]:
    """Returns findings of kind `nondeterminism`. NotApplicable for a run that was not repeated."""
    entry = _entry(run)
    if entry is None:
        raise NotRecorded("record with lanescope repeat -n 10 -- COMMAND")
    if entry["bitwise_identical"]:
        return []
    spread, first = gradient_fluctuation(run), entry["first"] or {}
    what = first.get("parameter") or first.get("op") or "the number of operators"
    where = f" at {first['where']}" if first.get("where") else ""
    at = f" first in step {first['step']}, {what}{where}" if first else f" in {what}"
    size = "" if spread is None else f"; norms of gradients fluctuate by {units.number(spread)}"
    rank = first.get("rank")
    # Thread and instant of the difference are of one of the runs.
    here = any(t.thread == first.get("thread") for t in run.threads)
    known = here and "parameter" not in first
    return [
        Finding(
            kind="nondeterminism",
            severity="error" if spread is not None and spread > _LIMIT else "warning",
            title=f"Repeated runs with {units.counted(entry['threads'], 'thread')} differ,"
            f"{at}{size}. {_advice(first.get('op'))}",
            rank=rank,
            step=first.get("step"),
            where=first.get("where"),
            evidence=dict(entry),
            link=difference_address(run, first) if known else "/compare",
        )
    ]


def _advice(op: str | None) -> str:
    if op and draws(op):
        return (
            "It draws random numbers: call torch.manual_seed() before the first draw, seed each "
            "torch.Generator, and give a DataLoader a generator."
        )
    return "Look for data races, or call torch.use_deterministic_algorithms(True)."


class _Entry(TypedDict):
    threads: int
    gradient_fluctuation: float | str | None
    bitwise_identical: bool
    first: dict[str, Any] | None


class _File(TypedDict):
    by_threads: list[_Entry]


_MAX_BYTES = 32 << 20
"""Of a repetition's file: a few hundred for each number of threads."""


@dataclass(frozen=True)
class Repetition:
    """What `lanescope repeat` left in a folder."""

    folder: Path
    entries: tuple[dict[str, Any], ...]  # as `Repeats.to_json` makes them, by number of threads

    def places(self, threads: int) -> list[Path]:
        """Returns the runs with a number of threads that are there, in the order of recording."""
        return sorted(self.folder.glob(f"threads-{threads}/run-*"))

    def pair(self) -> tuple[str, str | None]:
        """Returns the run to open and its baseline: a pair that differs, else the first run alone.

        RunError where the runs are gone.
        """
        kept = [(one, self.places(one["threads"])) for one in self.entries]
        for one, places in kept:
            number = (one["first"] or {}).get("run_number", 1)
            if not one["bitwise_identical"] and number in range(1, len(places)):
                return str(places[number]), str(places[0])
        for _, places in kept:
            if places:
                return str(places[0]), None
        raise RunError(f"{self.folder}: its runs are gone, only {FILE} is left; repeat the command")

    def spread(self, threads: int) -> tuple[int, pd.DataFrame]:
        """Returns how many runs with so many threads there are, and `fluctuation` of them.

        RunError where one cannot be read any more.
        """
        runs = [open_run(place) for place in self.places(threads)]
        return len(runs), fluctuation(runs)


def repetition_in(folder: Path) -> Repetition | None:
    """Returns the repetition of a folder; None if it has none. RunError for another file."""
    file = folder / FILE
    if not os.path.isfile(file):  # False also for a name that cannot be one
        return None
    try:
        with file.open("rb") as opened:
            whole = json.loads(opened.read(_MAX_BYTES).decode())
        conform(whole, _File, "")
    except (ValueError, RecursionError, OSError) as error:
        raise RunError(f"{file}: not the file of a repetition: {shown(str(error))}") from None
    names = _Entry.__required_keys__
    entries = tuple({name: entry[name] for name in names} for entry in whole["by_threads"])
    return Repetition(folder, entries)


def repetition_of(run: Run) -> Repetition | None:
    """Returns the repetition that the run is part of."""
    folder = run.path.parent
    number = folder.name.removeprefix("threads-")
    return repetition_in(folder.parent) if number != folder.name and number.isdecimal() else None


def _entry(run: Run) -> dict[str, Any] | None:
    """The entry of the repetition's file that is about the run."""
    known = repetition_of(run)
    number = run.path.parent.name.removeprefix("threads-")
    return next((e for e in known.entries if e["threads"] == int(number)), None) if known else None
