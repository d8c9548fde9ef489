"""Finds layers of a stack that are one module, `nn.ModuleList([block] * 6)`, and tensors that look
like parameters.

A container lists one module with parameters several times, and the graph of the first backward
shows that the module gets what it made itself: a stack of layers was meant. Heads that are listed
once per layer and get different inputs share their parameters on purpose.

`self.scale = torch.ones(4, requires_grad=True)` is not a parameter: optimizers do not get it.
Inputs that are differentiated, as of a differential equation, are kept like this on purpose; that
is a backward pass more before the step.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.loop_names import PLAIN_TENSOR
from lanescope.collector.format.names import LISTED_MODULE
from lanescope.webapp.analysis.arrow_columns import phases_of_kind
from lanescope.webapp.analysis.fault_series import found_per_series, ranks_of
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_models
from lanescope.webapp.plugins.losses.loss_graph import SAME_NUMBERS, LossGraph, loss_graph
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run


@found_per_series(LISTED_MODULE, need_models)
def listed_again(run: Run, name: str, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `shared_parameter`, one per module. Raises NotApplicable."""
    ranks = ranks_of(rows)
    graph = loss_graph(run, ranks[0])
    where, path, kind, parameter = name.split("/", 3)
    if graph is None or not _follows_itself(graph, parameter):
        return None
    times = int(rows["value"].iloc[0])
    several = units.count(times)
    return finding_at(
        run,
        ranks[0],
        0,
        kind="shared_parameter",
        confidence="likely",
        title=f"{path}{at_place(where)} lists one {kind} {several} times: its {several} layers "
        f"have the same parameters ({parameter} and the others), and what they learn is one layer. "
        f"Make a module for each: [{kind}(...) for _ in range({several})], or copy.deepcopy() it. "
        "Where it is meant, call the one module in a loop.",
        ranks=ranks,
        where=where,
        evidence={"cause": "listed_again", "module": path, "times": times, "parameter": parameter},
    )


_ACCUMULATES = "AccumulateGrad"


@found_per_series(PLAIN_TENSOR, need_models)
def plain_tensors(run: Run, name: str, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `dead_parameter`, one per tensor. Raises NotApplicable."""
    ranks = ranks_of(rows)
    if not _is_left_out(run, ranks[0]):
        return None
    where, _, path = name.rpartition("/")
    count = units.counted(int(rows["value"].iloc[0]), "element")
    return finding_at(
        run,
        ranks[0],
        0,
        kind="dead_parameter",
        confidence="likely",
        title=f"{path}{at_place(where)} requires a gradient ({count}) and is not a parameter of "
        "its module: parameters() leaves it out, no optimizer trains it, and state_dict() does not "
        "save it. Wrap it in nn.Parameter().",
        ranks=ranks,
        where=where or None,
        evidence={"cause": "plain_tensor", "tensor": path},
    )


def _is_left_out(run: Run, rank: int) -> bool:
    """Whether the loss leads to a tensor that no optimizer has, by the only pass before a step."""
    graph = loss_graph(run, rank)
    leaves = graph.nodes.values() if graph is not None else ()
    if not any(one.name == _ACCUMULATES and not one.parameter for one in leaves):
        return False
    steps, passes = (
        phases_of_kind(run, kind, rank)["start_ns"]
        for kind in (schema.PhaseKind.optimizer, schema.PhaseKind.backward)
    )
    return len(steps) > 1 and int((passes < steps.min()).sum()) == 1


def _follows_itself(graph: LossGraph, parameter: str) -> bool:
    """Whether a node that uses a parameter leads to another that uses it too."""
    users = set(_users(graph, parameter))
    return any(node.number in users - {user} for user in users for node in graph.below(user))


def _users(graph: LossGraph, parameter: str) -> Iterator[int]:
    """Yields nodes that use a parameter, or a view or a cast of it."""
    before: dict[int, list[int]] = {}
    for number, node in graph.nodes.items():
        for one in node.next:
            before.setdefault(one, []).append(number)
    pending = [number for number, node in graph.nodes.items() if node.parameter == parameter]
    seen = set(pending)
    while pending:
        for number in before.get(pending.pop(), ()):
            if number in seen:
                continue
            seen.add(number)
            if SAME_NUMBERS.fullmatch(graph.nodes[number].name):
                pending.append(number)
            else:
                yield number
