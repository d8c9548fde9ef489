"""Finds what there is more of with each step: autograd graphs in memory, hooks of a model.

What a model returned, or a loss made of it, is kept with its graph: in a list, in a running sum, as
an attribute. What keeps it is not known; the recorder sees that the graphs are still there.
"""

from __future__ import annotations

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

_MIN_STEPS = 10
_SHARE = 0.8  # of the steps: as many more hooks


def piling_up(run: Run) -> list[Finding]:
    """Returns findings of kind `growth`, one per line. Raises NotApplicable."""
    need_steps(run)
    return [*_outputs(run), *_graphs(run), *_hooks(run)]


def _outputs(run: Run) -> list[Finding]:
    found = []
    for name, every in series(run, KEPT_OUTPUT):
        where, function, attribute = name.split("/")
        _, rows = of_first_rank(every)
        last = rows.iloc[-1]
        since = int(last["value"])
        found.append(
            _finding(
                run,
                rows,
                where,
                f"Memory grows with each step: {function} keeps what its forward returns as "
                f"ctx.{attribute} ({where}), a reference cycle. In step {int(last['step'])} the "
                f"autograd graphs of sampled steps since step {since} are still there: only "
                "Python's garbage collector frees them. Use ctx.save_for_backward().",
                {"cause": "kept_output", "since_step": since},
            )
        )
    return found


def _graphs(run: Run) -> list[Finding]:
    found = []
    settings = logged(run, None, prefix=SETTINGS)
    if settings["value"][settings["name"].str.endswith(", differentiable")].any():
        return []  # graphs of inner steps are kept for an outer one
    for name, every in series(run, KEPT_GRAPHS):
        where, model = name.split("/")
        _, rows = of_first_rank(every)
        last = rows.iloc[-1]
        since = int(last["value"])
        at = at_place(where)
        found.append(
            _finding(
                run,
                rows,
                where,
                f"Memory grows with each step: in step {int(last['step'])} the autograd graphs of "
                f"nearly all steps since step {since} are still there. What {model}(...){at} "
                "returns, or a loss made of it, is kept with its graph: in a list, a running sum "
                "or an attribute. Keep loss.item() or tensor.detach().",
                {"cause": "kept_graphs", "since_step": since},
            )
        )
    return found


def _hooks(run: Run) -> list[Finding]:
    found = []
    for name, every in series(run, MODEL_HOOKS):
        where, function = name.split("/")
        _, rows = of_first_rank(every)
        first, last = rows.iloc[0], rows.iloc[-1]
        steps = int(last["step"] - first["step"])
        more = int(last["value"] - first["value"])
        if steps < _MIN_STEPS or more < _SHARE * steps:
            continue
        found.append(
            _finding(
                run,
                rows,
                where,
                f"Each step takes longer: the model has {units.count(more)} more hooks that call "
                f"{function}() ({where}) after {units.count(steps)} steps. Register a hook once, "
                "before the loop, or call remove() of the handle that registering it returns.",
                {"cause": "hooks", "hooks": int(last["value"])},
            )
        )
    return found


def _finding(
    run: Run, rows: pd.DataFrame, where: str, title: str, evidence: dict[str, Any]
) -> Finding:
    last = rows.iloc[-1]
    return finding_at(
        run,
        int(last["rank"]),
        last,
        kind="growth",
        title=title,
        where=where or None,
        evidence=evidence,
    )
