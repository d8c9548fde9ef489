"""Finds ranks that begin with the same model and then train apart: nothing keeps them equal.

Found where

- parameters that did not begin as constants were equal on all ranks of a group when first hashed,
  at least half of the elements of all, and are not at the last hashed step,
- their gradients differed from the first step on,
- the ranks mean to train together: they share a DistributedSampler's order, or reduce a small value
  (the loss) in every step, and
- in no step do they exchange half of the parameters' bytes, nor anything within forward or
  backward, as parts of one model do, nor in each a tensor with as many numbers as a parameter,
  unless these are gradients of different ones.
"""

from __future__ import annotations

from math import prod

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.names import SAMPLER_EPOCH
from lanescope.webapp.analysis.collective_calls import calls, collective_calls, group_members
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.nothing_to_check import need_at_access, need_ranks
from lanescope.webapp.analysis.op_inputs import tensor_shapes
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.plugins.learning.consistency import began_random, parted
from lanescope.webapp.plugins.learning.divergence_causes import Cause, crossed
from lanescope.webapp.plugins.learning.replicas import EQUAL_SHARE, bytes_of_step, hashes, replicas
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 3

_PASSES = (schema.PhaseKind.forward.name, schema.PhaseKind.backward.name)


def unsynchronised(run: Run) -> list[Finding]:
    """Returns findings of kind `rank_divergence`, one per group. Raises NotApplicable."""
    need_ranks(run)
    need_at_access(run, hashes(run), "nothing was hashed")
    known = [set(ranks) for ranks in replicas(run).values()]
    found: list[Finding] = []
    for group, own in calls(run).groupby("group", sort=True):
        ranks = tuple(rank for rank in group_members(run)[str(group)] if rank in run.ranks)
        if len(ranks) < 2 or any(len(same & {*ranks}) > 1 for same in known):
            continue
        if any({*one.ranks} & {*ranks} for one in found) or not _trains_together(run, ranks, own):
            continue
        names, step = parted(run, ranks)
        if names:
            found.append(_finding(run, ranks, names, step))
    return found


def _trains_together(run: Run, ranks: tuple[int, ...], own: pd.DataFrame) -> bool:
    """Whether the ranks share samples or losses, and exchange nothing that keeps them equal."""
    mine = own[own["rank"] == ranks[0]]
    if mine["name"].isin(["send", "recv"]).any() or mine["phase"].isin(_PASSES).any():
        return False
    every = calls(run)
    every = every[every["rank"] == ranks[0]]
    moved = every.groupby("step")["bytes"].sum()
    if len(moved) and moved.max() >= EQUAL_SHARE * bytes_of_step(run, ranks[0]):
        return False
    if _moves_parameters(run, every) and crossed(run, ranks) is None:
        return False
    sampled = logged(run, None, prefix=SAMPLER_EPOCH)
    shared = set(sampled["rank"]) >= set(ranks)
    reduced = collective_calls(run)
    reduced = reduced[(reduced["rank"] == ranks[0]) & (reduced["name"] == "all_reduce")]
    steps = len(run.steps(ranks[0]))
    each = steps >= _MIN_STEPS and reduced["step"].nunique() >= steps - 1
    # Models that only have a trunk in common are compared by their losses, and not one model.
    return shared or (each and not began_random(run, ranks)[1])


def _moves_parameters(run: Run, own: pd.DataFrame) -> bool:
    """Whether a rank exchanges something in each of its steps that may be a gradient."""
    numbers = hashes(run)["numel"]
    sizes = {int(one) for one in numbers[numbers > 1]}
    shapes = own["shapes"].map(tensor_shapes)
    fits = shapes.map(lambda found: any(prod(shape) in sizes for shape in found))
    return bool(own.loc[fits.astype(bool), "step"].nunique() >= _MIN_STEPS)


def _finding(run: Run, ranks: tuple[int, ...], names: list[str], step: int) -> Finding:
    where = phase_place(run, ranks[0], schema.PhaseKind.backward.name, None)
    cause = crossed(run, ranks) or Cause(
        "No gradient is reduced. Wrap the model in DistributedDataParallel, or average the "
        "gradients before each optimizer step; a loss that is reduced does not reduce them."
    )
    return finding_at(
        run,
        ranks[0],
        step,
        kind="rank_divergence",
        severity="error",
        confidence="likely",
        title=f"{units.sentence(ranks_in(run, ranks))} begin with equal parameters and train "
        f"apart: {names[0]}{and_more(len(names), 'parameter')} "
        f"differ{'s' if len(names) == 1 else ''} at step {step}. {cause.words}",
        ranks=ranks,
        where=where,
        evidence={
            "cause": "never_reduced",
            "parameters": names[:20],
            "differing": len(names),
        },
    )
