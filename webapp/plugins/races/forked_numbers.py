"""Finds forked processes that draw the same random numbers: they begin with one generator's state.

Found where two processes of a parent began with the same state of torch's default generator, and
drew from it at the same line before they set a seed, if their program trains: it uses the numbers
as samples, noise or actions. What fills a tensor in place does not count, as layers do so with
parameters that are often loaded afterwards, nor does dropout.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.loop_names import FORKED_STATE, STATE_SET
from lanescope.webapp.analysis.arrow_columns import texts_of
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.nothing_to_check import need_accesses
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.plugins.races.default_draws import draws_of_thread
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MAX_PROCESSES = 64
"""Processes of a rank that are looked at."""

_DRAWN = ("aten::randperm", "aten::multinomial")
"""Draws that are no part of another operator, as those of torch.rand() are of aten::rand."""


def forked_numbers(run: Run) -> list[Finding]:
    """Returns findings of kind `repeated_data`, one per rank and line. Raises NotApplicable."""
    need_accesses(run)
    states = logged(run, None, FORKED_STATE)
    if states.empty:
        raise NotApplicable("no process was forked")
    ranks = states.groupby("rank", sort=True)
    return [one for rank, own in ranks for one in _of_rank(run, int(str(rank)), own)]


def _of_rank(run: Run, rank: int, states: pd.DataFrame) -> list[Finding]:
    if schema.PhaseKind.backward.name not in texts_of(run, "phase", "kind", rank):
        return []
    parents = {str(one["pid"]): one["parent_pid"] for one in run.manifest["processes"]}
    own = logged(run, rank, STATE_SET).groupby("thread", observed=True)["time_ns"].min()
    found: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for child in states.head(_MAX_PROCESSES).itertuples():
        thread = str(child.thread)
        parent = parents.get(thread.partition("-")[0])
        draws = draws_of_thread(run, rank, thread)
        named = draws["name"].astype("str")
        made = (draws["depth"] > 0) & ~named.str.contains("dropout") | named.isin(_DRAWN)
        draws = draws[made & (draws["start_ns"] < own.get(thread, run.duration_ns))]
        for line, rows in draws.groupby("line", sort=True):
            if line:
                found[child.value, parent, line].append(rows.assign(thread=thread).iloc[0])
    # In a number of states, as of a pool for each epoch, a line is named once.
    lines: dict[str, list[Any]] = defaultdict(list)
    for (_, _, line), rows in found.items():
        if len(rows) > 1:
            lines[line] += rows
    return [_finding(run, rank, line, rows) for line, rows in lines.items()]


def _finding(run: Run, rank: int, line: str, draws: list[Any]) -> Finding:
    return finding_at(
        run,
        rank,
        draws[0],
        kind="repeated_data",
        severity="warning",
        confidence="likely",
        title=f"{units.count(len(draws))} forked processes draw the same random numbers at {line}: "
        "each begins with the generator's state of its parent, which did not change between the "
        "forks, and sets no seed before. Call torch.manual_seed() with another seed in each "
        "process, or pass it a torch.Generator of its own.",
        where=line,
        evidence={"cause": "forked", "steps": len({int(one["step"]) for one in draws})},
    )
