"""Finds workers of one DataLoader that draw the same random numbers, or hand out the same samples.

- same_numbers: a generator had the same state in two workers or more as their first fetch began,
  and this fetch drew from it: a worker_init_fn seeds them alike, or the dataset's own generator was
  copied into each worker;
- same_samples: two workers or more made the same first and the same second batch of an
  IterableDataset, which differ from each other: each of them walks through all of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.names import LOADER_WORKER, WORKER_BATCH, WORKER_STATE
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.nothing_to_check import need_accesses
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_BATCHES = ("1", "2")


def workers(run: Run) -> list[Finding]:
    """Returns findings of kind `repeated_data`, at most one per cause and rank. Raises
    NotApplicable."""
    if not any(one.name.startswith(LOADER_WORKER) for one in run.threads):
        raise NotApplicable("the program has no DataLoader with num_workers")
    need_accesses(run)
    states = logged(run, None, prefix=WORKER_STATE)
    batches = logged(run, None, prefix=WORKER_BATCH)
    found = []
    for rank in run.ranks:
        found += list(_same_numbers(run, rank, states[states["rank"] == rank]))[:1]
        found += list(_same_samples(run, rank, batches[batches["rank"] == rank]))[:1]
    return found


def _same_numbers(run: Run, rank: int, states: pd.DataFrame) -> Iterator[Finding]:
    for name, own in states.groupby("name", sort=False, observed=True):
        alike = own.groupby("value")["thread"].nunique().max()
        if alike < 2:
            continue
        _, generator, where = str(name).split("/")
        said, cause = f"draw the same random numbers from {generator}", "same_numbers"
        why = (
            f"the worker_init_fn at {where} gives them the same state"
            if where and not generator.startswith("the dataset's")
            else "each has a copy of it with the same state"
        )
        title = (
            f"{units.count(int(alike))} workers of the DataLoader {said}: {why}, so each "
            "augmentation or random choice comes once per worker. Seed it in worker_init_fn from "
            "torch.initial_seed(), which differs by worker."
        )
        yield _finding(run, rank, title, cause, where or _loader(run, rank), own)


def _same_samples(run: Run, rank: int, batches: pd.DataFrame) -> Iterator[Finding]:
    own = batches.assign(
        iteration=[str(name).partition("/")[0] for name in batches["name"]],
        number=[str(name).partition("/")[2] for name in batches["name"]],
    )
    for _, rows in own.groupby("iteration", sort=False):
        made: dict[tuple[float, ...], list[str]] = defaultdict(list)
        for thread, mine in rows.groupby("thread", observed=True):
            by_number = dict(zip(mine["number"], mine["value"], strict=True))
            if set(by_number) == set(_BATCHES):
                made[tuple(by_number[one] for one in _BATCHES)].append(str(thread))
        for (first, second), threads in made.items():
            if len(threads) < 2 or first == second:
                continue
            title = (
                f"{units.count(len(threads))} workers of the DataLoader hand out the same samples: "
                "each walks through all of the IterableDataset. Let each worker take its share in "
                "__iter__: islice(samples, info.id, None, info.num_workers) with "
                "info = torch.utils.data.get_worker_info()."
            )
            yield _finding(run, rank, title, "same_samples", _loader(run, rank), rows)


def _loader(run: Run, rank: int) -> str | None:
    return phase_place(run, rank, schema.PhaseKind.data.name, None)


def _finding(
    run: Run, rank: int, title: str, cause: str, where: str | None, rows: pd.DataFrame
) -> Finding:
    first = rows.iloc[0]
    return finding_at(
        run,
        rank,
        first,
        kind="repeated_data",
        title=title,
        where=where,
        evidence={"cause": cause, "steps": 1},
    )
