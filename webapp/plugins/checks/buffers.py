"""Finds batch normalisation whose running statistics each rank keeps for itself.

DistributedDataParallel broadcasts buffers from rank 0 before every forward. With
`broadcast_buffers=False` the statistics of the ranks part, and a checkpoint holds those of a single
rank.
Found where ranks reduce gradients in every step, BatchNorm ran in training mode, and no collective
call outside of backward moved anything but whole numbers after the first reduction.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.collective_calls import collective_calls
from lanescope.webapp.analysis.findings import Finding, NotApplicable
from lanescope.webapp.analysis.links import and_more, step_link
from lanescope.webapp.plugins.checks.accumulation import MIN_STEPS
from lanescope.webapp.runs.run import Run

_KEEPS = ("torch.nn.modules.batchnorm.BatchNorm", "torch.nn.modules.batchnorm.LazyBatchNorm")
_BACKWARD = schema.PhaseKind.backward.name


def buffers(run: Run) -> list[Finding]:
    """Findings of kind `environment`, at most one. Raises NotApplicable."""
    if run.world_size == 1:
        raise NotApplicable("the job has a single rank")
    calls = collective_calls(run)
    names = {rank: _normalised(run, rank) for rank in run.ranks}
    ranks = tuple(
        rank
        for rank in run.ranks
        if names[rank] and _apart(run, rank, calls[calls["rank"] == rank])
    )
    if len(ranks) < 2:
        return []
    first, rank = names[ranks[0]][0], ranks[0]
    return [
        Finding(
            kind="environment",
            severity="info",
            confidence="likely",
            title=f"Each rank keeps its own running statistics of module {first}"
            f"{and_more(len(names[rank]), 'module')}: no buffer is broadcast or averaged, and "
            "evaluation and checkpoints use those of one rank. Leave broadcast_buffers=True, use "
            "SyncBatchNorm, or average the buffers before evaluation.",
            rank=rank,
            ranks=ranks,
            evidence={
                "name": "broadcast_buffers",
                "set": "DistributedDataParallel(broadcast_buffers=True)",
                "modules": names[rank][:20],
            },
            link=step_link(run, rank, 0),
        )
    ]


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
