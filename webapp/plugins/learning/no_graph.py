"""Finds what ended a program whose loss has no graph: backward() could not begin."""

from __future__ import annotations

from lanescope.collector.format.marks import BackwardRaised
from lanescope.webapp.analysis.arrow_columns import having
from lanescope.webapp.analysis.findings import Finding, NotApplicable
from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_backward
from lanescope.webapp.analysis.stack_frames import short_place
from lanescope.webapp.plugins.learning.lost_gradients import cut_before
from lanescope.webapp.runs.run import Run

_NO_GRAPH = "does not require grad and does not have a grad_fn"
"""How torch says so."""


def no_graph(run: Run) -> list[Finding]:
    """Findings of kind `dead_parameter`: one per rank that this ended. Raises NotApplicable."""
    if not any(one["exception"] for one in run.manifest["processes"]):
        raise NotApplicable("nothing ended by an exception")
    ended = {one["rank"] for one in run.manifest["processes"] if _NO_GRAPH in one["exception"]}
    if not ended:
        need_backward(run)
    found = []
    for rank in sorted(ended & set(run.ranks)):
        rows = run.events("phase", rank, columns=["start_ns", "name", "thread", "step"])
        rows = rows.filter(having(rows["name"], lambda name: _NO_GRAPH in name))
        if rows.num_rows:
            found.append(_finding(run, rank, rows.to_pylist()[-1]))
    return found


def _finding(run: Run, rank: int, mark: dict[str, object]) -> Finding:
    raised = BackwardRaised.parse(str(mark["name"]))
    instant = int(str(mark["start_ns"]))
    called = short_place(raised.caller) if raised else ""
    cut = cut_before(run, rank, instant)
    advice = "Check that it is computed from the model's output, outside of no_grad()."
    return Finding(
        kind="dead_parameter",
        severity="error",
        title="backward() failed" + (f" at {called}" if called else "") + ": the loss leads to no "
        "parameter. " + (advice if cut is None else f"The gradient ends at {cut[1]}."),
        rank=rank,
        ranks=(rank,),
        thread=str(mark["thread"]),
        step=int(str(mark["step"])),
        time_ns=instant,
        where=cut[0] if cut and cut[0] else called or None,
        evidence={"cause": "no_graph", "parameters": []},
        link=timeline_address(instant, instant + 1, run.duration_ns),
    )
