"""Finds ranks with parts of one model whose parameters begin unequal or equal where they must not.

Ranks of tensor parallelism call a model with the same input, and sum activations in forward and
gradients of them in backward. Two rules:

- What the loss reaches without such a sum is in the model of every rank, and must begin equal.
  Where each of these parameters differs, in two layers or more, the outputs differ too, and no
  collective is called between the model and backward, each rank trains on a loss of its own.
- Where all parameters are equal on all ranks and stay so, and so do the outputs, each rank computes
  the same part of each layer, and the sum counts it several times. Ranks that shard parameters
  (DTensor) hold parts of one tensor, whose values are not compared.

A third rule holds without any sum. Ranks whose layers begin partly equal and partly unequal, and
that get the same input, hold parts of one model; with parts that are added up, what follows them is
the same on all ranks. Where the parameter nearest to the loss begins equal and parts, while others
begin unequal, a sum is missing between them. (Models with one trunk and a head of its own on each
rank differ nearest to the loss.)

The fourth: ranks with unequal parts sum in forward, so that their outputs are equal at first, and
never in backward. Where a parameter that all of them hold parts, its gradient is that of one part.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.collective_calls import collective_calls, group_members
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.nothing_to_check import need_ranks
from lanescope.webapp.analysis.parameter_history import sharded_names, wrapped
from lanescope.webapp.plugins.data.batches import BATCH_KEYS, batch_samples
from lanescope.webapp.plugins.data.random_numbers import dropped_alike, same_inputs
from lanescope.webapp.plugins.learning.consistency import (
    began_random,
    equal_at_first,
    first_apart,
)
from lanescope.webapp.plugins.learning.local_clipping import held_alike
from lanescope.webapp.plugins.learning.replicas import replicas
from lanescope.webapp.plugins.losses.loss_graph import SAME_NUMBERS, LossGraph, loss_graph
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 3
_NAMED = 3
_FORWARD, _BACKWARD = schema.PhaseKind.forward.name, schema.PhaseKind.backward.name


def parts_of_a_model(run: Run) -> list[Finding]:
    """Returns findings of kind `rank_divergence`, one per group. Raises NotApplicable."""
    need_ranks(run)
    batch_samples(run)
    found = []
    for group, calls in collective_calls(run).groupby("group", sort=True):
        ranks = tuple(rank for rank in group_members(run)[str(group)] if rank in run.ranks)
        steps = _sums_activations(calls)
        if len(ranks) < 2 or steps is None or not same_inputs(run, ranks):
            continue
        if any(rank in wrapped(run) for rank in ranks) or not dropped_alike(run, ranks):
            continue
        if not steps:
            found += _not_summed_back(run, ranks)
            continue
        equal, unequal = began_random(run, ranks)
        outputs = _equal_outputs(run, ranks)
        if outputs.all() and len(outputs) >= _MIN_STEPS and equal and not unequal:
            found += [] if sharded_names(run) else [_alike(run, ranks, equal)]
        elif len(outputs) >= _MIN_STEPS and not outputs.any():
            held = _without_sums(loss_graph(run, ranks[0])) & (equal | unequal)
            if len({one.rpartition(".")[0] for one in held}) > 1 and held <= unequal:
                found.append(_apart(run, ranks, held))
    return found or _not_summed(run)


def _not_summed(run: Run) -> list[Finding]:
    """The third rule, for all ranks of a run."""
    ranks = tuple(run.ranks)
    if len(ranks) < run.world_size or replicas(run) or any(rank in wrapped(run) for rank in ranks):
        return []
    if not same_inputs(run, ranks) or not dropped_alike(run, ranks):
        return []
    _, unequal = began_random(run, ranks)
    apart, outputs = first_apart(run, ranks), _equal_outputs(run, ranks)
    if not unequal or apart is None or len(outputs) < _MIN_STEPS or outputs.any():
        return []
    equal = equal_at_first(run, ranks)
    nearest = next((one for one in _by_distance(run, ranks[0]) if one in equal | unequal), None)
    if nearest is None or nearest in unequal or held_alike(run, ranks):
        return []
    names = sorted(unequal)
    return [
        _finding(
            run,
            ranks,
            "not_summed",
            names,
            f"hold parts of one model ({names[0]}{and_more(len(names), 'parameter')} differ) and "
            f"get the same input, but {nearest}, which all of them hold, began equal and differs "
            f"since step {apart[1]}: what the parts compute is not added up before it. Call "
            "all_reduce on the result of the last layer that is split by its input, and on the "
            "gradients before the first one that is split by its output.",
        )
    ]


def _by_distance(run: Run, rank: int) -> list[str]:
    """Parameters of the first graph, those nearest to the loss first."""
    graph = loss_graph(run, rank)
    nodes = graph.below(next(iter(graph.nodes))) if graph else ()
    return [node.parameter for node in nodes if node.parameter]


def _sums_activations(calls: pd.DataFrame) -> set[int] | None:
    """Steps in which a group sums in forward and in backward, empty where it never does in
    backward; None where it sums in forward of too few, or calls anything beside."""
    sums = calls[calls["name"] == "all_reduce"]
    steps = [set(sums.loc[sums["phase"] == one, "step"]) for one in (_FORWARD, _BACKWARD)]
    beside = calls[~calls["phase"].isin((_FORWARD, _BACKWARD)) & calls["step"].isin(steps[0])]
    beside = beside[beside["step"] > 0]  # broadcasts before the first step
    both = steps[0] & steps[1]
    few = len(both if steps[1] else steps[0]) < _MIN_STEPS
    return None if few or not beside.empty else both


def _not_summed_back(run: Run, ranks: tuple[int, ...]) -> list[Finding]:
    """The fourth rule. Where the ranks are taken for replicas, they are reported as such."""
    if ranks in replicas(run).values():
        return []
    _, unequal = began_random(run, ranks)
    apart, outputs = first_apart(run, ranks, of_norms=True), _equal_outputs(run, ranks)
    if not unequal or apart is None or len(outputs) < _MIN_STEPS or not outputs.iloc[0]:
        return []
    return [
        _finding(
            run,
            ranks,
            "not_summed_back",
            [apart[0]],
            f"hold parts of one model and sum activations in forward, and nothing in backward: "
            f"{apart[0]}, which all of them hold, began equal and differs since step {apart[1]}, "
            "as each rank has the gradient of its own part. Sum the gradient of what the split "
            "layers get: all_reduce it in the backward of their input.",
        )
    ]


def _equal_outputs(run: Run, ranks: tuple[int, ...]) -> pd.Series:
    """Whether what the model returns is equal on all ranks, by step."""
    samples = batch_samples(run)
    samples = samples[samples["rank"].isin(ranks) & (samples["what"] == "output")]
    groups = samples.groupby(["model", "position", *BATCH_KEYS])
    counts = groups["hash"].nunique()[groups["rank"].nunique() == len(ranks)]
    return (counts == 1).groupby("step").all()


def _without_sums(graph: LossGraph | None) -> set[str]:
    """Parameters that the loss reaches by torch's own operators: the sum is one of the program."""
    if graph is None:
        return set()
    nodes = graph.below(
        next(iter(graph.nodes)),
        passes=lambda one: one.op.startswith("aten::") or SAME_NUMBERS.fullmatch(one.name),
    )
    return {node.parameter for node in nodes if node.parameter}


def _apart(run: Run, ranks: tuple[int, ...], held: set[str]) -> Finding:
    names = sorted(held)
    more = f" and {units.count(len(names) - _NAMED)} more" if len(names) > _NAMED else ""
    return _finding(
        run,
        ranks,
        "begin_unequal",
        names,
        "hold parts of one model and get the same input, but what all of them hold differs from "
        f"the start ({', '.join(names[:_NAMED])}{more}): each rank trains on a loss of its own. "
        "Make these parameters with one seed on all ranks, or broadcast them from one.",
    )


def _alike(run: Run, ranks: tuple[int, ...], equal: set[str]) -> Finding:
    return _finding(
        run,
        ranks,
        "begin_equal",
        sorted(equal),
        "sum their activations, but get the same input and hold equal parameters "
        f"({min(equal)} and the others): each computes the same part of each layer. "
        "Make the parts with a seed of their own on each rank, or cut them from one weight.",
    )


def _finding(
    run: Run, ranks: tuple[int, ...], cause: str, parameters: list[str], words: str
) -> Finding:
    return finding_at(
        run,
        ranks[0],
        0,
        kind="rank_divergence",
        confidence="likely",
        title=f"{units.sentence(ranks_in(run, ranks))} {words}",
        ranks=ranks,
        evidence={"cause": cause, "parameters": parameters},
    )
