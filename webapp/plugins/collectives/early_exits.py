"""Finds ranks that leave the training loop while others go on, and whether their data ended."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.names import LOADER_END
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.links import at_place, step_bounds
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import phase_place
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
class Leaving:
    """Ranks that have left the training loop after a step that is not the last one of others."""

    ranks: tuple[int, ...]
    step: int  # the last one that they finished
    ran_out: bool  # a DataLoader had no more batches for them
    skipped: tuple[str, int] | None
    """Forward or data, and the first step in which they called the model, or fetched a batch, once
    more than others."""

    def words(self, run: Run) -> str:
        """Rank 1 ran out of data after step 9."""
        how = "ran out of data" if self.ran_out else "left the training loop"
        if self.skipped is not None:
            kind, step = self.skipped
            at = at_place(
                phase_place(run, self.ranks[0], kind, step_bounds(run, self.ranks[0], step))
            )
            more = "the model is called" if kind == _FORWARD else "a batch is fetched"
            how = (
                f"skipped an optimizer step that others took (in step {step} {more} once "
                f"more{at}), so that its reductions met those of the next step of others, {how}"
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


def _skipped(
    run: Run, phases: dict[int, pd.DataFrame], ranks: tuple[int, ...]
) -> tuple[str, int] | None:
    """`Leaving.skipped` of some ranks."""
    for kind in (_FORWARD, _DATA):
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
        table = pd.DataFrame(counts).dropna().sort_index()
        others = table.drop(columns=list(ranks))
        one_more = table[list(ranks)].eq(others.max(axis=1) + 1, 0).all(axis=1)
        more = (others.nunique(axis=1) == 1) & one_more
        if 0 < 2 * more.sum() <= len(table):
            return kind, int(table.index[more][0])
    return None


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
