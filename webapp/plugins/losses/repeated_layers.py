"""Finds layers of a stack that are one module: `nn.ModuleList([block] * 6)`.

A container lists one module with parameters several times, and the graph of the first backward
shows that the module gets what it made itself: a stack of layers was meant. Heads that are listed
once per layer and get different inputs share their parameters on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator

from lanescope.collector.format.names import LISTED_MODULE, TRAINING_MODE
from lanescope.webapp.analysis.fault_series import ranks_of, series
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.plugins.losses.loss_graph import SAME_NUMBERS, LossGraph, loss_graph
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run


def listed_again(run: Run) -> list[Finding]:
    """Returns findings of kind `shared_parameter`, one per module. Raises NotApplicable."""
    if logged(run, None, prefix=TRAINING_MODE).empty:
        raise NotApplicable("record training steps with --level access: no model was called")
    found = []
    for name, own in series(run, LISTED_MODULE):
        ranks = ranks_of(own)
        graph = loss_graph(run, ranks[0])
        place, path, kind, parameter = name.split("/", 3)
        if graph is not None and _follows_itself(graph, parameter):
            times = int(own["value"].iloc[0])
            found.append(_finding(run, ranks, place, path, kind, parameter, times))
    return found


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


def _finding(
    run: Run,
    ranks: tuple[int, ...],
    where: str,
    path: str,
    kind: str,
    parameter: str,
    times: int,
) -> Finding:
    at = at_place(where)
    several = units.count(times)
    return finding_at(
        run,
        ranks[0],
        0,
        kind="shared_parameter",
        confidence="likely",
        title=f"{path}{at} lists one {kind} {several} times: its {several} layers have the same "
        f"parameters ({parameter} and the others), and what they learn is one layer. Make a module "
        f"for each: [{kind}(...) for _ in range({several})], or copy.deepcopy() it. Where it is "
        "meant, call the one module in a loop.",
        ranks=ranks,
        where=where,
        evidence={"cause": "listed_again", "module": path, "times": times, "parameter": parameter},
    )
