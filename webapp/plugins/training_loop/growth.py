"""Finds what there is more of with each step: autograd graphs in memory, hooks of a model.

What a model returned, or a loss made of it, is kept with its graph: in a list, in a running sum, as
an attribute. What keeps it is not known; the recorder sees that the graphs are still there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from lanescope.collector.format.loop_names import KEPT_GRAPHS, KEPT_OUTPUT, MODEL_HOOKS
from lanescope.collector.format.names import SETTINGS
from lanescope.webapp.analysis.fault_series import of_first_rank, series
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_steps
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_Said = tuple[str, dict[str, Any]]
"""Title and evidence."""

_MIN_STEPS = 10
_SHARE = 0.8  # of the steps: as many more hooks


def piling_up(run: Run) -> list[Finding]:
    """Returns findings of kind `growth`, one per line. Raises NotApplicable."""
    need_steps(run)
    found = []
    for prefix, says in _SAYS.items():
        for name, every in series(run, prefix):
            where, *rest = name.split("/")
            _, rows = of_first_rank(every)
            said = says(where, *rest, rows)
            if said is None or (prefix == KEPT_GRAPHS and _differentiable(run)):
                continue
            title, evidence = said
            last = rows.iloc[-1]
            found.append(
                finding_at(
                    run,
                    int(last["rank"]),
                    last,
                    kind="growth",
                    title=title,
                    where=where or None,
                    evidence=evidence,
                )
            )
    return found


def _differentiable(run: Run) -> bool:
    """Whether graphs of inner steps are kept for an outer one."""
    settings = logged(run, None, prefix=SETTINGS)
    return bool(settings["value"][settings["name"].str.endswith(", differentiable")].any())


def _output(where: str, function: str, attribute: str, rows: pd.DataFrame) -> _Said:
    last = rows.iloc[-1]
    since = int(last["value"])
    return (
        f"Memory grows with each step: {function} keeps what its forward returns as "
        f"ctx.{attribute} ({where}), a reference cycle. In step {int(last['step'])} the autograd "
        f"graphs of sampled steps since step {since} are still there: only Python's garbage "
        "collector frees them. Use ctx.save_for_backward().",
        {"cause": "kept_output", "since_step": since},
    )


def _graphs(where: str, model: str, rows: pd.DataFrame) -> _Said:
    last = rows.iloc[-1]
    since = int(last["value"])
    return (
        f"Memory grows with each step: in step {int(last['step'])} the autograd graphs of nearly "
        f"all steps since step {since} are still there. What {model}(...){at_place(where)} "
        "returns, or a loss made of it, is kept with its graph: in a list, a running sum or an "
        "attribute. Keep loss.item() or tensor.detach().",
        {"cause": "kept_graphs", "since_step": since},
    )


def _hooks(where: str, function: str, rows: pd.DataFrame) -> _Said | None:
    first, last = rows.iloc[0], rows.iloc[-1]
    steps = int(last["step"] - first["step"])
    more = int(last["value"] - first["value"])
    if steps < _MIN_STEPS or more < _SHARE * steps:
        return None
    return (
        f"Each step takes longer: the model has {units.count(more)} more hooks that call "
        f"{function}() ({where}) after {units.count(steps)} steps. Register a hook once, before "
        "the loop, or call remove() of the handle that registering it returns.",
        {"cause": "hooks", "hooks": int(last["value"])},
    )


_SAYS: dict[str, Callable[..., _Said | None]] = {
    KEPT_OUTPUT: _output,
    KEPT_GRAPHS: _graphs,
    MODEL_HOOKS: _hooks,
}
