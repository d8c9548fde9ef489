"""Finds threads that draw from torch's default random generator in no fixed order.

The numbers that each gets then depend on which thread comes first. That matters where the program
wants the same numbers in each run: it has set the seed, and trains. Programs without a seed of
their own have other numbers in each run anyway. Counted are threads that draw at one line and
hand on what they make, as the workers of a pool that augments samples, or that set the seed: other
threads that each train a model, or draw for different purposes, are seldom meant to repeat
themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.loop_names import THREAD_SEED
from lanescope.collector.format.names import SETTINGS
from lanescope.webapp.analysis.access_site import MemoryAccess, draws_of_generators
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import frame_texts, own_place
from lanescope.webapp.plugins.races.races import Race, processes_of
from lanescope.webapp.plugins.races.vector_clocks import Order, order_of
from lanescope.webapp.runs.run import Run

_DRAWS = (
    "aten::normal_",
    "aten::uniform_",
    "aten::bernoulli_",
    "aten::native_dropout",
    "aten::random_",
    "aten::randperm",
    "aten::multinomial",
    "aten::exponential_",
)
"""What draws, from the default generator where it got no other one."""

_FIRST_VALUES = ("aten::normal_", "aten::uniform_")
"""What gives parameters their first values, where no operator of torch.randn() and the like calls
it: layers that a thread makes are often loaded afterwards."""

_HANDS_ON = (schema.SyncKind.queue_put.name, schema.SyncKind.future_set.name)

_UNSEEDED = 67280421310721.0
"""torch's seed in a process that sets none."""

DEFAULT_GENERATOR = "torch's default random generator"
"""What such races are on."""


def default_draws(run: Run) -> list[Race]:
    """Returns races of draws at one line, one for each two threads, where ranks set a seed."""
    return [race for rank in run.ranks for race in _of_rank(run, rank)]


@per_rank
def _of_rank(run: Run, rank: int) -> list[Race]:
    if not _seeded(run, rank):
        return []
    python = {t.thread for t in run.threads_of(rank) if t.kind != "native"}
    seeding = set(logged(run, rank, THREAD_SEED)["thread"])
    found = []
    for process in processes_of(run, rank):
        threads = [t for t in process if t in python and (t in seeding or _hands_on(run, rank, t))]
        draws = {t: rows for t in threads if len(rows := draws_of_thread(run, rank, t))}
        if len(draws) > 1:
            order = order_of(run, rank, process, [*draws])
            found += [_race(run, rank, pair) for pair in _pairs(order, draws)]
    return found


def _pairs(order: Order, draws: dict[str, pd.DataFrame]) -> Iterator[list[tuple[str, Any]]]:
    """Draws at one line that nothing orders, the first of each two threads and line."""
    for (a, one), (b, other) in combinations(enumerate(order.threads), 2):
        for line in sorted({*draws[one]["line"]} & {*draws[other]["line"]} - {""}):
            sides = [draws[t][draws[t]["line"] == line] for t in (one, other)]
            ours, theirs = (side["start_ns"].to_numpy(np.int64) for side in sides)
            pair = order.unordered(a, ours, b, theirs)
            if pair is not None:
                yield [(one, sides[0].iloc[pair[0]]), (other, sides[1].iloc[pair[1]])]


def _hands_on(run: Run, rank: int, thread: str) -> bool:
    """Whether a thread runs no backward, and hands results to others by a queue or a future."""
    phases = run.events("phase", rank, thread, ["kind"])["kind"].cast(pa.string())
    events = run.events("sync", rank, thread, ["kind"])["kind"].cast(pa.string())
    trains = pc.any(pc.equal(phases, schema.PhaseKind.backward.name)).as_py()
    return not trains and bool(pc.any(pc.is_in(events, pa.array(_HANDS_ON))).as_py())


def _seeded(run: Run, rank: int) -> bool:
    """Whether the program has set torch's seed before the first step of an optimizer."""
    seeds = logged(run, rank, prefix=SETTINGS)
    seeds = seeds.loc[seeds["name"] == "seed", "value"]
    return bool(len(seeds)) and not (seeds == _UNSEEDED).any()


def draws_of_thread(run: Run, rank: int, thread: str) -> pd.DataFrame:
    """Returns operators of a thread that draw from the default generator, but for first values of
    parameters: name, start_ns, depth, line and others, by start."""
    columns = ["name", "start_ns", "duration_ns", "depth", "stack", "step", "phase"]
    rows = run.events("op", rank, thread, columns)
    rows = rows.filter(pc.is_in(rows["name"].cast(pa.string()), pa.array(_DRAWS)))
    if not len(rows):
        return pd.DataFrame(columns=[*columns, "line"])
    frame = to_frame(rows).sort_values("start_ns", kind="stable")
    first = (frame["depth"] == 0) & frame["name"].isin(_FIRST_VALUES)
    others = frame["start_ns"].isin(draws_of_generators(run, rank, thread))
    frame = frame[~others & ~first].reset_index(drop=True)
    lines = {one: own_place(run, rank, int(one)) for one in frame["stack"].dropna().unique()}
    return frame.assign(line=[lines.get(one) or "" for one in frame["stack"]])


def _race(run: Run, rank: int, pair: list[tuple[str, Any]]) -> Race:
    first, second = sorted((_touch(run, rank, *one) for one in pair), key=lambda t: t.start_ns)
    return Race(
        rank=rank,
        first=first,
        second=second,
        threads=tuple(thread for thread, _ in pair),
        low=0,
        high=1,
        overlapped=second.start_ns < first.end_ns,
        pairs=1,
        tensors=(DEFAULT_GENERATOR,),
    )


def _touch(run: Run, rank: int, thread: str, row: Any) -> MemoryAccess:
    known = not pd.isna(row.stack)
    return MemoryAccess(
        thread=thread,
        op=row["name"],
        module="",
        phase=row.phase,
        start_ns=int(row.start_ns),
        end_ns=int(row.start_ns + row.duration_ns),
        write=True,
        step=int(row.step),
        stack=tuple(frame_texts(run, rank).get(int(row.stack), ())) if known else (),
    )
