"""Finds running statistics that each rank keeps for itself.

DistributedDataParallel broadcasts buffers from rank 0 before every forward. With
`broadcast_buffers=False`, and without that wrapper, the statistics of the ranks part, and a
checkpoint holds those of a single rank.
Found where ranks train replicas or shards of one model, buffers of floating point change in
training and differ between the ranks at every sampled step but the first (or BatchNorm ran in
training mode, where buffers were not hashed), and no step has collective calls outside of backward
that others have not, as averaging before an evaluation would be.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.names import BUFFER_HASH
from lanescope.webapp.analysis.collective_calls import collective_calls
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import and_more, step_link
from lanescope.webapp.analysis.nothing_to_check import need_backward, need_ranks
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.plugins.checks.accumulation import MIN_STEPS
from lanescope.webapp.runs.run import Run

_KEEPS = ("torch.nn.modules.batchnorm.BatchNorm", "torch.nn.modules.batchnorm.LazyBatchNorm")
_BACKWARD = schema.PhaseKind.backward.name
_MIN_SAMPLED = 3
"""Sampled steps, without the first."""


def buffers(run: Run) -> list[Finding]:
    """Returns findings of kind `environment`, at most one. Raises NotApplicable."""
    need_ranks(run)
    need_backward(run)
    calls = collective_calls(run)
    names = {rank: _normalised(run, rank) for rank in run.ranks}
    ranks = tuple(
        rank
        for rank in run.ranks
        if names[rank] and _apart(run, rank, calls[calls["rank"] == rank])
    )
    if len(ranks) >= 2:
        modules = names[ranks[0]]
        return [_finding(run, ranks, modules, f"module {modules[0]}", "module")]
    ranks, modules = _differing(run)
    reduced = [rank for rank in ranks if _reduces(run, rank, calls[calls["rank"] == rank])]
    if len(ranks) < 2 or len(reduced) < len(ranks):
        return []
    return [_finding(run, ranks, modules, f"buffer {modules[0]}", "buffer")]


def _finding(
    run: Run, ranks: tuple[int, ...], modules: list[str], first: str, noun: str
) -> Finding:
    return Finding(
        kind="environment",
        severity="info",
        confidence="likely",
        title=f"Each rank keeps its own running statistics of {first}"
        f"{and_more(len(modules), noun)}: no buffer is broadcast or averaged, and "
        "evaluation and checkpoints use those of one rank. Leave broadcast_buffers=True, use "
        "SyncBatchNorm, or average the buffers before evaluation.",
        rank=ranks[0],
        ranks=ranks,
        evidence={
            "name": "broadcast_buffers",
            "set": "DistributedDataParallel(broadcast_buffers=True)",
            "modules": modules[:20],
        },
        link=step_link(run, ranks[0], 0),
    )


def _differing(run: Run) -> tuple[tuple[int, ...], list[str]]:
    """Ranks whose buffers are never equal once they trained, and these buffers."""
    rows = logged(run, None, prefix=BUFFER_HASH)
    rows = rows[rows["step"] > rows["step"].min()]
    ranks = tuple(sorted(int(rank) for rank in rows["rank"].unique()))
    names = []
    for name, own in rows.groupby("name", sort=False):
        steps = own.groupby("step").agg(hashes=("value", "nunique"), ranks=("rank", "nunique"))
        changes = own.groupby("rank")["value"].nunique()
        if (
            len(steps) >= _MIN_SAMPLED
            and (steps["ranks"] == len(ranks)).all()
            and (steps["hashes"] > 1).all()
            and (changes >= _MIN_SAMPLED).all()
        ):
            names.append(str(name))
    return (ranks, names) if names else ((), [])


def _reduces(run: Run, rank: int, calls: pd.DataFrame) -> bool:
    """Whether a rank reduces gradients, and no step but the first has more calls than usual.

    Nor has the time after the last step, in which buffers may be averaged.
    """
    reduces = calls["name"].str.startswith(("all_reduce", "reduce_scatter"))
    floats = calls[(calls["bytes"] > 0) & ~calls["dtypes"].str.startswith("int")]
    counts = floats[floats["phase"] != _BACKWARD].groupby("step").size()
    steps = run.steps(rank).index
    usual = counts.reindex(steps[1:], fill_value=0).median()
    more = counts[counts.index > steps.min(initial=0)] > usual
    return bool(reduces.any()) and not more.any()


def _normalised(run: Run, rank: int) -> list[str]:
    """Modules of batch normalisation of a rank that ran in training mode."""
    modules = run.events("module", rank, columns=["path", "class"])
    returned = run.events("activation", rank, columns=["module", "training"])
    trained = set(returned.filter(returned["training"])["module"].cast("string").to_pylist())
    rows = zip(
        *(modules[name].cast("string").to_pylist() for name in ("path", "class")), strict=True
    )
    return [path for path, kind in rows if kind.startswith(_KEEPS) and path in trained]


def _apart(run: Run, rank: int, calls: pd.DataFrame) -> bool:
    """Whether a rank reduces gradients in its steps and shares no buffers."""
    reduces = calls["name"].str.startswith(("all_reduce", "reduce_scatter"))
    reduced = calls.loc[reduces & (calls["phase"] == _BACKWARD), "step"].nunique()
    steps = len(run.steps(rank))
    if steps <= MIN_STEPS or reduced < steps - 1:
        return False
    begun = calls["start_ns"] > calls.loc[reduces & (calls["phase"] == _BACKWARD), "start_ns"].min()
    shared = calls[begun & (calls["phase"] != _BACKWARD) & (calls["bytes"] > 0)]
    # The order of DDP's buckets, exchanged once, is not a buffer.
    return len(shared[~shared["dtypes"].str.startswith("int")]) == 0
