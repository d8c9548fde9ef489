"""Finds ranks that leave the training loop while others go on, and whether their data ended."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.links import at_place, step_bounds
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_TRAINING = {schema.PhaseKind.forward.name, schema.PhaseKind.backward.name}
_OPTIMIZER, _DATA = schema.PhaseKind.optimizer.name, schema.PhaseKind.data.name


@dataclass(frozen=True)
class Leaving:
    """Ranks that have left the training loop after a step that is not the last one of others."""

    ranks: tuple[int, ...]
    step: int  # the last one that they finished
    ran_out: bool  # a DataLoader had no more batches for them
    skipped: int | None  # the first step in which they called the model once more than others

    def words(self, run: Run) -> str:
        """Rank 1 ran out of data after step 9."""
        how = "ran out of data" if self.ran_out else "left the training loop"
        if self.skipped is not None:
            forward = schema.PhaseKind.forward.name
            bounds = step_bounds(run, self.ranks[0], self.skipped)
            at = at_place(phase_place(run, self.ranks[0], forward, bounds))
            how = (
                f"skipped an optimizer step that others took (in step {self.skipped} the model is "
                f"called once more{at}), so that its reductions met those of the next step of "
                f"others, {how}"
            )
        return f"{units.sentence(ranks_in(run, self.ranks))} {how} after step {self.step}"

    @property
    def advice(self) -> str:
        """What to do about it."""
        if self.skipped is not None:
            return (
                "Let all ranks skip a step, or none: all_reduce the condition, such as a loss that "
                "is not finite."
            )
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
    skipped = _skipped({rank: phases[rank] for rank in (*rest, *others)}, rest)
    return Leaving(rest, first, all(_ran_out(phases[rank]) for rank in rest), skipped)


def _skipped(phases: dict[int, pd.DataFrame], ranks: tuple[int, ...]) -> int | None:
    """The first step in which all of some ranks called the model once more than the others did."""
    calls = {
        rank: own.loc[own["kind"] == schema.PhaseKind.forward.name, "step"].value_counts()
        for rank, own in phases.items()
    }
    table = pd.DataFrame(calls).dropna().sort_index()
    others = table.drop(columns=list(ranks))
    more = (others.nunique(axis=1) == 1) & table[list(ranks)].eq(others.max(axis=1) + 1, 0).all(1)
    return int(table.index[more][0]) if 0 < 2 * more.sum() <= len(table) else None


def _phases(run: Run, rank: int) -> pd.DataFrame:
    rows = to_frame(run.events("phase", rank, columns=["start_ns", "kind", "step"]))
    return rows.assign(kind=rows["kind"].astype("str")).sort_values("start_ns", kind="stable")


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
