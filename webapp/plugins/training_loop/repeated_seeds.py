"""Finds random numbers that are the same in each step or epoch: a seed is set within the loop.

At every sampled step torch's generators have the same state as the model is called, though dropout
draws from them in between. Or a DataLoader that shuffles begins each epoch with the same samples,
and the same parameters are trained in all of them. Or a dataset sets one seed for each sample that
is trained on, and draws from it.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.loader_names import LOADER_ORDER
from lanescope.collector.format.loop_names import SEEDED_SAMPLES
from lanescope.collector.format.names import RANDOM_STATE
from lanescope.webapp.analysis.arrow_columns import phases_of_kind
from lanescope.webapp.analysis.fault_series import found_in_rows
from lanescope.webapp.analysis.findings import Finding, NotRecorded, finding_at
from lanescope.webapp.analysis.forward_ops import DROPOUT, DROPOUT_DRAWS, dropout_ops
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_at_access
from lanescope.webapp.analysis.parameter_history import logged, rank_gradient_rows
from lanescope.webapp.analysis.stack_frames import first_place, phase_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 4  # sampled steps
_MIN_EPOCHS = 3
_MIN_SAMPLES = 32  # of a dataset; of fewer, the first ones may be the same by chance
_MIN_FETCHES, _MIN_SEEDED = 3, 16  # of a place, and samples in all of them


def _states(run: Run) -> pd.DataFrame:
    rows = logged(run, None, prefix=RANDOM_STATE).sort_values(["step", "name"])
    return need_at_access(run, rows, "no model is called with gradients")


@found_in_rows(_states)
def seeded_again(run: Run, rank: int, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `repeated_data`, one per rank. Raises NotApplicable."""
    states = rows.groupby("step")["value"].agg(tuple)
    if len(states) < _MIN_STEPS or states.nunique() > 1:
        return None
    place = _dropped_out(run, rank, states.index)
    if place is None:
        return None
    steps, where = len(states), place or None
    return finding_at(
        run,
        rank,
        rows.iloc[0],
        kind="repeated_data",
        confidence="likely",
        title=f"Dropout{at_place(where)} drops the same elements in each step: torch's random "
        f"generator has the same state at all {units.count(steps)} sampled steps as the model is "
        "called. Set the seed once, before the loop.",
        where=where,
        evidence={"cause": "seeded_again", "steps": steps},
    )


def same_orders(run: Run) -> list[Finding]:
    """Returns findings of kind `repeated_data`, one per rank and length. Raises NotApplicable."""
    orders = logged(run, None, prefix=LOADER_ORDER)
    need_at_access(run, orders, "no DataLoader shuffles")
    length = orders["name"].astype("str").str.rsplit("/", n=1).str[-1].astype("int64")
    found = []
    for (key, samples), own in orders.groupby([orders["rank"], length], sort=True):
        rank, own = int(str(key)), own.sort_values("time_ns")
        enough = len(own) >= _MIN_EPOCHS and int(str(samples)) >= _MIN_SAMPLES
        if enough and own["value"].nunique() == 1 and _trains_on(run, rank, own["time_ns"]):
            found.append(_of_epochs(run, rank, own, int(str(samples))))
    return found


def seeded_samples(run: Run) -> list[Finding]:
    """Returns findings of kind `repeated_data`, one per line. Raises NotApplicable."""
    if not any(run.counts_of(rank)["gradient"] for rank in run.ranks):
        raise NotRecorded("record an optimizer step: the run has no steps")
    rows = logged(run, None, prefix=SEEDED_SAMPLES)
    if rows.empty:
        return []
    places = rows["name"].astype("str").str.rpartition("/")
    found = []
    for (key, where), own in rows.groupby([rows["rank"], places[0]], sort=True):
        rank, seeds = int(str(key)), places.loc[own.index, 2].unique()
        enough = len(own) >= _MIN_FETCHES and own["value"].sum() >= _MIN_SEEDED
        if enough and len(seeds) == 1 and _each_is_trained_on(run, rank, own["time_ns"]):
            found.append(_of_samples(run, rank, own, str(where), str(seeds[0])))
    return found


def _each_is_trained_on(run: Run, rank: int, fetches: pd.Series) -> bool:
    """Whether a backward follows each of these instants before the next; after the last it may
    not."""
    begins = phases_of_kind(run, schema.PhaseKind.backward, rank)["start_ns"]
    counts = begins.searchsorted(fetches.sort_values())
    return bool((pd.Series(counts).diff().dropna() > 0).all())


def _of_samples(run: Run, rank: int, own: pd.DataFrame, where: str, seed: str) -> Finding:
    return finding_at(
        run,
        rank,
        own.iloc[0],
        kind="repeated_data",
        confidence="likely",
        title=f"torch.manual_seed({seed}) at {where} sets the same seed for each sample that the "
        f"dataset hands out, and random numbers are drawn after it, for "
        f"{units.count(int(own['value'].sum()))} samples of {units.count(len(own))} batches or "
        "more: each is augmented alike, and dropout and shuffling repeat as well. Set the seed "
        "once, before the training.",
        where=where or None,
        evidence={"cause": "seeded_samples", "steps": len(own), "seed": seed},
    )


def _trains_on(run: Run, rank: int, begins: pd.Series) -> bool:
    """Whether an optimizer steps in each epoch, and with a parameter that is in all of them."""
    rows = rank_gradient_rows(run, rank)[["time_ns", "parameter"]]
    epoch = begins.searchsorted(rows["time_ns"])
    of_epochs = rows[epoch > 0].groupby(epoch[epoch > 0])["parameter"].agg(set)
    return len(of_epochs) == len(begins) and bool(set.intersection(*of_epochs))


def _of_epochs(run: Run, rank: int, own: pd.DataFrame, samples: int) -> Finding:
    return finding_at(
        run,
        rank,
        own.iloc[1],
        kind="repeated_data",
        confidence="likely",
        title=f"All {units.count(len(own))} epochs go through the {units.count(samples)} samples "
        "in the same order, though the DataLoader shuffles: the same seed is set before each, so "
        "dropout and augmentation repeat as well. Set the seed once, before the first epoch.",
        where=phase_place(run, rank, schema.PhaseKind.data.name, None),
        evidence={"cause": "same_orders", "steps": len(own), "samples": samples},
    )


def _dropped_out(run: Run, rank: int, steps: pd.Index) -> str | None:
    """The place of a dropout that drew numbers in each of these steps; None without one."""
    columns = ["name", "step", "stack", "phase"]
    ops = dropout_ops(run, rank, columns)
    ops = ops[ops["phase"].astype("str") != schema.PhaseKind.evaluation.name]
    names = ops["name"].astype("str")
    for known in (DROPOUT, DROPOUT_DRAWS):
        if not set(steps) <= set(ops.loc[names.isin(known), "step"]):
            return None
    stacks = ops.loc[names.isin(DROPOUT), "stack"].dropna().unique()
    return first_place(run, rank, stacks) or ""
