"""Finds ranks that leave the training loop while others go on, and whether their data ended."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.names import LOADER_END
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.links import at_place, step_bounds
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import own_frames, own_place, phase_place, place_of
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_FORWARD = schema.PhaseKind.forward.name
_TRAINING = {_FORWARD, schema.PhaseKind.backward.name}
_OPTIMIZER, _DATA = schema.PhaseKind.optimizer.name, schema.PhaseKind.data.name

SKIP_TOGETHER = (
    "Let all ranks skip a step, or none: all_reduce the condition, such as a loss that is not "
    "finite or a sample that cannot be read."
)


@dataclass(frozen=True)
class Skipped:
    """What ranks did once more than others before one of their steps: they had skipped a step."""

    step: int  # the first of them
    again: str
    where: str | None  # file.py:12


@dataclass(frozen=True)
class Leaving:
    """Ranks that have left the training loop after a step that is not the last one of others."""

    ranks: tuple[int, ...]
    step: int  # the last one that they finished
    ran_out: bool  # a DataLoader had no more batches for them
    skipped: Skipped | None

    def words(self, run: Run) -> str:
        """Rank 1 ran out of data after step 9."""
        how = "ran out of data" if self.ran_out else "began no other step"
        if self.skipped is not None:
            how = (
                f"skipped an optimizer step that others took (in step {self.skipped.step} "
                f"{self.skipped.again} once more{at_place(self.skipped.where)}), so that its "
                f"reductions met those of the next step of others, {how}"
            )
        return f"{units.sentence(ranks_in(run, self.ranks))} {how} after step {self.step}"

    @property
    def advice(self) -> str:
        """What to do about it."""
        if self.skipped is not None:
            return SKIP_TOGETHER
        if self.ran_out:
            return (
                "Give all ranks the same number of batches (drop_last, DistributedSampler), or "
                "train within model.join()."
            )
        return (
            "Let all ranks train for the same number of steps, or decide together when to stop. If "
            "the call belongs to a checkpoint or an evaluation, make it on all ranks."
        )


@lru_cache(maxsize=4)
def left_training(run: Run) -> Leaving | None:
    """Returns the ranks that left first, of one step; None where no rank goes on without
    another."""
    phases = {rank: _phases(run, rank) for rank in run.ranks}
    last = {rank: _last_step(own) for rank, own in phases.items()}
    finished = {rank: step for rank, step in last.items() if step is not None}
    if len(finished) < 2:
        return None
    first = min(finished.values())
    gone = tuple(rank for rank, step in finished.items() if step == first)
    # Another rank is in the next step, while these do not begin it.
    goes_on = any(
        finished[rank] > first or _trains_after(phases[rank], first)
        for rank in finished
        if rank not in gone
    )
    rest = tuple(rank for rank in gone if not _trains_after(phases[rank], first))
    if not rest:
        return None
    goes_on = goes_on or any(rank not in rest for rank in gone)
    if not goes_on:
        return None
    others = [rank for rank in finished if rank not in rest]
    skipped = _skipped(run, {rank: phases[rank] for rank in (*rest, *others)}, rest)
    return Leaving(rest, first, all(_ran_out(phases[rank]) for rank in rest), skipped)


def last_place(run: Run, rank: int, step: int) -> str | None:
    """Returns file.py:12 of the last line of the training loop that a rank ran: an operator behind
    its last step was called from there, or the step itself."""
    bounds = step_bounds(run, rank, step)
    place = bounds and phase_place(run, rank, _OPTIMIZER, bounds)
    if not bounds or not place:
        return None
    since = (bounds[0], run.duration_ns + 1)
    ops = to_frame(run.events("op", rank, columns=["start_ns", "step", "stack"], window=since))
    ops = ops.dropna().sort_values("start_ns")
    of_step = [own_frames(run, rank, int(stack)) for stack in ops["stack"].unique()]
    stepped = next((own for own in of_step if own and place_of(own[0]) == place), [])
    loop = {(frame["file"], frame["function"]) for frame in stepped}
    for stack in ops.loc[ops["step"] > step, "stack"].tail(1):
        frames = own_frames(run, rank, int(stack))
        inside = [frame for frame in frames if (frame["file"], frame["function"]) in loop]
        return place_of(inside[0]) if inside else place
    return place


def _skipped(run: Run, phases: dict[int, pd.DataFrame], ranks: tuple[int, ...]) -> Skipped | None:
    """`Leaving.skipped` of some ranks."""
    for kind, again in ((_FORWARD, "the model is called"), (_DATA, "a batch is fetched")):
        counts = {
            rank: own.loc[own["kind"] == kind, "step"].value_counts()
            for rank, own in phases.items()
        }
        if kind == _DATA:  # the end of an iteration was asked for as well
            ends = {rank: logged(run, rank, LOADER_END)["step"] for rank in counts}
            counts = {
                rank: own.sub(ends[rank].value_counts(), fill_value=0)
                for rank, own in counts.items()
            }
        step = _once_more(pd.DataFrame(counts), ranks)
        if step is not None:
            bounds = step_bounds(run, ranks[0], step)
            return Skipped(step, again, phase_place(run, ranks[0], kind, bounds))
    return _line_again(run, phases, ranks)


def _once_more(counts: pd.DataFrame, ranks: tuple[int, ...]) -> int | None:
    """The first step in which some ranks do once more what all others do as often. `counts`: how
    often they do it, by step and rank."""
    table = counts.dropna().sort_index()
    others, own = table.drop(columns=list(ranks)), table[list(ranks)]
    most = others.max(axis=1)
    once_more = own.eq(most + 1, 0).all(axis=1) | own.eq(2 * most, 0).all(axis=1)
    more = (others.nunique(axis=1) == 1) & once_more
    return int(table.index[more][0]) if 0 < 2 * more.sum() <= len(table) else None


def _line_again(
    run: Run, phases: dict[int, pd.DataFrame], ranks: tuple[int, ...]
) -> Skipped | None:
    """The last line before a skipped step, where nothing else shows it: the operators of that line
    ran once more."""
    if not all(run.counts_of(rank)["op"] for rank in phases):
        return None
    counts, last = {}, {}
    for rank, own in phases.items():
        table = _ops_by_line(run, rank, {*own["thread"]})
        counts[rank] = table["start_ns_count"]
        last[rank] = table["start_ns_min"]
    lines = pd.DataFrame(counts).dropna()
    # The line of a loop over batches does more where only these ranks begin another epoch.
    ended = [logged(run, rank, LOADER_END)["step"] for rank in ranks]
    lines = lines[~lines.index.get_level_values("step").isin(pd.concat(ended))]
    steps = {line: _once_more(own.droplevel("line"), ranks) for line, own in lines.groupby("line")}
    again = [(step, last[ranks[0]][line, step], line) for line, step in steps.items() if step]
    if not again:
        return None
    first = min(step for step, _, _ in again)
    _, _, where = max(one for one in again if one[0] == first)
    return Skipped(first, "the same operators run", str(where))


def _ops_by_line(run: Run, rank: int, threads: set[str]) -> pd.DataFrame:
    """Returns how many operators each line of the program called in each step, and when the first
    of them began: columns start_ns_count and start_ns_min."""
    columns = ["start_ns", "step", "depth", "stack", "thread"]
    tables = []
    for rows in run.pieces("op", rank, columns=columns):
        called = rows.filter(pc.and_(pc.equal(rows["depth"], 0), pc.is_valid(rows["stack"])))
        keys = called.group_by(["step", "stack", "thread"])
        tables.append(to_frame(keys.aggregate([("start_ns", "count"), ("start_ns", "min")])))
    table = pd.concat(tables)
    table = table[table["thread"].isin(threads)]
    places = {stack: own_place(run, rank, int(stack)) for stack in table["stack"].unique()}
    table["line"] = table["stack"].map(places)
    return table.groupby(["line", "step"]).agg({"start_ns_count": "sum", "start_ns_min": "min"})


def _phases(run: Run, rank: int) -> pd.DataFrame:
    """Of the threads that step an optimizer, in order."""
    columns = ["start_ns", "kind", "step", "thread"]
    rows = to_frame(run.events("phase", rank, columns=columns))
    rows["kind"] = rows["kind"].astype("str")
    threads = rows.loc[rows["kind"] == _OPTIMIZER, "thread"]
    return rows[rows["thread"].isin(threads)].sort_values("start_ns", kind="stable")


def _last_step(phases: pd.DataFrame) -> int | None:
    steps = phases.loc[phases["kind"] == _OPTIMIZER, "step"]
    return None if steps.empty else int(steps.max())


def _trains_after(phases: pd.DataFrame, step: int) -> bool:
    return bool((phases["kind"].isin(_TRAINING) & (phases["step"] > step)).any())


def _ran_out(phases: pd.DataFrame) -> bool:
    """Whether the first batch that was asked for after the last step was not there: neither a model
    was called with it, nor was it the batch of a loop that goes on."""
    kinds = phases["kind"].to_numpy()
    stepped = np.flatnonzero(kinds == _OPTIMIZER)
    later = kinds[stepped[-1] + 1 :]
    return bool(len(later)) and later[0] == _DATA and (len(later) == 1 or later[1] == _DATA)
