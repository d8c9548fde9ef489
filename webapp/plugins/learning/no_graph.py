"""Finds what ended a program whose loss has no graph: backward() could not begin, or another one
had freed the graph."""

from __future__ import annotations

from functools import partial

from lanescope.collector.format.marks import BackwardRaised
from lanescope.collector.format.record_kinds import PhaseKind
from lanescope.webapp.analysis.arrow_columns import having
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.links import at_place, timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_backward
from lanescope.webapp.analysis.stack_frames import short_place
from lanescope.webapp.plugins.learning.lost_gradients import cut_before
from lanescope.webapp.runs.run import Run

_NO_GRAPH = "does not require grad and does not have a grad_fn"
_FREED = "Trying to backward through the graph a second time"
"""How torch says so."""


def no_graph(run: Run) -> list[Finding]:
    """Findings of kind `dead_parameter`: one per rank that this ended. Raises NotApplicable."""
    if not any(one["exception"] for one in run.manifest["processes"]):
        raise NotApplicable("nothing ended by an exception")
    errors = {one["rank"]: one["exception"] for one in run.manifest["processes"]}
    found = []
    for sentence, finding in ((_NO_GRAPH, _without), (_FREED, _freed)):
        for rank in sorted({one for one, error in errors.items() if sentence in error}):
            rows = run.events("phase", rank, columns=["start_ns", "name", "thread", "step"])
            rows = rows.filter(having(rows["name"], partial(_says, sentence)))
            if rank in run.ranks and rows.num_rows:
                found.append(finding(run, rank, rows.to_pylist()[-1]))
    if not found:
        need_backward(run)
    return found


def _without(run: Run, rank: int, mark: dict[str, object]) -> Finding:
    cut = cut_before(run, rank, int(str(mark["start_ns"])))
    advice = "Check that it is computed from the model's output, outside of no_grad()."
    words = "the loss leads to no parameter. "
    words += advice if cut is None else f"The gradient ends at {cut[1]}."
    return _finding(run, rank, mark, words, "no_graph", cut[0] if cut else None)


def _freed(run: Run, rank: int, mark: dict[str, object]) -> Finding:
    """What a backward lacks is of the step before, or of another backward of the same step."""
    instant = int(str(mark["start_ns"]))
    phases = run.events("phase", rank, columns=["start_ns", "kind"])
    begun = {
        kind: phases.filter(having(phases["kind"], kind.__eq__))["start_ns"].to_pylist()
        for kind in (PhaseKind.backward.name, PhaseKind.optimizer.name)
    }
    *_, before, _ = [0, 0, *(one for one in begun[PhaseKind.backward.name] if one <= instant)]
    stepped = any(before < one < instant for one in begun[PhaseKind.optimizer.name])
    advice = (
        "a tensor of the step before is used again, such as the state of a recurrent layer or a "
        "loss that is summed up. detach() it at the begin of each step."
        if stepped
        else "two losses share a part of it. Add them and call backward() once, detach() what they "
        "share, or pass retain_graph=True to all but the last."
    )
    words = f"an earlier backward has freed the graph that it needs: {advice}"
    return _finding(run, rank, mark, words, "graph_freed", None)


def _finding(
    run: Run, rank: int, mark: dict[str, object], words: str, cause: str, where: str | None
) -> Finding:
    raised = BackwardRaised.parse(str(mark["name"]))
    instant = int(str(mark["start_ns"]))
    called = short_place(raised.caller) if raised else ""
    return finding_at(
        run,
        rank,
        mark,
        kind="dead_parameter",
        severity="error",
        title="backward() failed" + at_place(called) + f": {words}",
        where=where or called,
        evidence={"cause": cause, "parameters": []},
        link=timeline_address(instant, instant + 1, run.duration_ns),
    )


def _says(sentence: str, name: str) -> bool:
    return sentence in name
