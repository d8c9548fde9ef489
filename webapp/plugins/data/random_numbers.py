"""Finds ranks that draw the same random numbers, or other ones where these must be the same.

The state of a rank's random generators is hashed as an outermost module is called in training.

Same numbers: at every sampled step all ranks of a group of data-parallel replicas had the same
state, it was not the same at each step, they trained on different batches, and drew numbers for
dropout or noise in these steps. The masks of all ranks are then the same.

Other numbers: ranks that hold parts of one model, and exchange data in its passes, call it with the
same input and drop out elements with other states. A parameter that began as random numbers, equal
on all of them, is equal no more.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.names import RANDOM_STATE
from lanescope.webapp.analysis.access_site import draws_of_generators
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.collective_calls import collective_calls, group_members
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.forward_ops import DROPOUT_DRAWS
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_at_access, need_ranks
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.process_exits import of_last_attempt
from lanescope.webapp.analysis.stack_frames import first_place
from lanescope.webapp.plugins.data.batches import BATCH_KEYS, batch_samples
from lanescope.webapp.plugins.learning.consistency import first_apart
from lanescope.webapp.plugins.learning.replicas import replicas
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 3
"""Sampled steps."""

_NOISE = (*DROPOUT_DRAWS, "aten::normal_")
_PASSES = (schema.PhaseKind.forward.name, schema.PhaseKind.backward.name)


def same_numbers(run: Run) -> list[Finding]:
    """Returns findings of kind `repeated_data`, one per group of replicas. Raises NotApplicable."""
    states = _states(run)
    found = []
    for ranks in replicas(run).values():
        shared = _shared(states, ranks)
        if len(shared) < _MIN_STEPS or not shared.all():
            continue
        own = states[states["rank"] == ranks[0]]
        drawn = _drawn(run, ranks[0], _NOISE)
        if own["value"].nunique() < _MIN_STEPS or not drawn or not _batches_differ(run, ranks):
            continue
        found.append(_same(run, ranks, len(shared), drawn))
    return found


def other_numbers(run: Run) -> list[Finding]:
    """Returns findings of kind `rank_divergence`, one per group of ranks. Raises NotApplicable."""
    states = _states(run)
    calls = collective_calls(run)
    calls = calls[calls["phase"].isin(_PASSES)]
    known = set(replicas(run).values())
    found = []
    for group, own in calls.groupby("group", sort=True):
        ranks = tuple(rank for rank in group_members(run)[str(group)] if rank in run.ranks)
        if len(ranks) < 2 or ranks in known or own["step"].nunique() < _MIN_STEPS:
            continue
        shared = _shared(states, ranks)
        drawn = _drawn(run, ranks[0], DROPOUT_DRAWS)
        parameter = first_apart(run, ranks)
        apart = len(shared) >= _MIN_STEPS and not shared.any()
        if apart and drawn and parameter and same_inputs(run, ranks):
            found.append(_other(run, ranks, *parameter, drawn))
    return found


def dropped_alike(run: Run, ranks: tuple[int, ...]) -> bool:
    """Returns whether the ranks drop out nothing, or the same elements at each sampled step."""
    return _drawn(run, ranks[0], DROPOUT_DRAWS) is None or bool(_shared(_states(run), ranks).all())


@lru_cache(maxsize=4)
def _states(run: Run) -> pd.DataFrame:
    """The states of a step, as one value: rank, step, value. Raises NotApplicable."""
    need_ranks(run)
    rows = of_last_attempt(run, logged(run, None, prefix=RANDOM_STATE))
    need_at_access(run, rows, "no model is called with gradients")
    rows = rows.sort_values(["rank", "step", "name"], kind="stable")
    return rows.groupby(["rank", "step"])["value"].agg(tuple).reset_index()


def _shared(states: pd.DataFrame, ranks: tuple[int, ...]) -> pd.Series:
    """Whether the states of a step are equal on all ranks, by step."""
    groups = states[states["rank"].isin(ranks)].groupby("step")["value"]
    return (groups.nunique() == 1)[groups.size() == len(ranks)]


def _drawn(run: Run, rank: int, names: tuple[str, ...]) -> tuple[str, str | None] | None:
    """Name and place of an operator that drew numbers in training, in two steps or more.

    Draws from a generator that the operator got are left out, as the states are of the default one,
    and those in backward: what compresses gradients draws the same numbers on all ranks.
    """
    columns = ["name", "step", "stack", "phase", "start_ns"]
    rows = run.events("op", rank, columns=columns)
    rows = rows.filter(pc.is_in(rows["name"].cast(pa.string()), pa.array(names)))
    frame = to_frame(rows)
    frame = frame[(frame["step"] >= 1) & ~frame["phase"].astype("str").isin(_NOT_FORWARD)]
    if len(frame):
        frame = frame[~frame["start_ns"].isin(draws_of_generators(run, rank))]
    if frame["step"].nunique() < 2:
        return None
    name = str(frame["name"].iloc[0])
    stacks = frame.loc[frame["name"].astype("str") == name, "stack"].dropna().unique()
    return name, first_place(run, rank, stacks)


_NOT_FORWARD = (schema.PhaseKind.evaluation.name, schema.PhaseKind.backward.name)


def _inputs(run: Run, ranks: tuple[int, ...]) -> pd.Series:
    """How many different inputs the ranks have, per tensor of each call that all of them made."""
    samples = batch_samples(run)
    samples = samples[samples["rank"].isin(ranks) & (samples["what"] == "input")]
    groups = samples.groupby(["model", "position", *BATCH_KEYS])
    return groups["hash"].nunique()[groups["rank"].nunique() == len(ranks)]


def _batches_differ(run: Run, ranks: tuple[int, ...]) -> bool:
    counts = _inputs(run, ranks)
    return bool((counts > 1).any())


def same_inputs(run: Run, ranks: tuple[int, ...]) -> bool:
    """Returns whether ranks have equal inputs at all sampled steps, but not at each the same."""
    counts = _inputs(run, ranks)
    first = counts[counts.index.get_level_values("call") == 0]
    steps = first.index.get_level_values("step")
    return len(np.unique(steps)) >= _MIN_STEPS and bool((first.groupby("step").min() == 1).all())


def _same(run: Run, ranks: tuple[int, ...], steps: int, drawn: tuple[str, str | None]) -> Finding:
    name, where = drawn
    at = at_place(where)
    return finding_at(
        run,
        ranks[0],
        0,
        kind="repeated_data",
        confidence="likely",
        title=f"{units.sentence(ranks_in(run, ranks))} draw the same random numbers: their "
        f"generators have equal states at all {units.count(steps)} sampled steps, so "
        f"{name}{at} makes the same masks or noise for the different batches of all ranks. Seed "
        "each rank differently once the model is built: torch.manual_seed(seed + rank).",
        ranks=ranks,
        where=where,
        evidence={"cause": "same_random_numbers", "steps": steps, "op": name},
    )


def _other(
    run: Run, ranks: tuple[int, ...], parameter: str, step: int, drawn: tuple[str, str | None]
) -> Finding:
    name, where = drawn
    at = at_place(where)
    return finding_at(
        run,
        ranks[0],
        step,
        kind="rank_divergence",
        severity="error",
        confidence="likely",
        title=f"{units.sentence(ranks_in(run, ranks))} hold parts of one model and get the same "
        f"input, but drop out different elements ({name}{at}): {parameter}, which they all hold, "
        f"differs at step {step}. Use one seed on these ranks for dropout of what they all "
        "hold, and seeds of their own only within their parts.",
        ranks=ranks,
        where=where,
        evidence={"cause": "other_random_numbers", "parameter": parameter, "op": name},
    )
