"""`lanescope time`: where the time of each step goes, what limits it, what would help."""

from __future__ import annotations

import json
from typing import Any

import click
import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lanescope.collector.recorder.progress import working
from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.analysis.nothing_to_check import if_applicable
from lanescope.webapp.commands.baselines import open_baseline
from lanescope.webapp.commands.run_argument import run_argument
from lanescope.webapp.commands.text_output import output_console, print_table
from lanescope.webapp.plugins.time.breakdown import CATEGORIES, step_time
from lanescope.webapp.plugins.time.changes import category_changes, steady, step_changes
from lanescope.webapp.plugins.time.critical_path import (
    PATH_CATEGORIES,
    PATH_COLUMNS,
    critical_path,
    summed,
)
from lanescope.webapp.plugins.time.job_steps import job_step
from lanescope.webapp.plugins.time.slowdown import slowdown
from lanescope.webapp.plugins.time.stream_work import short_title
from lanescope.webapp.plugins.time.what_if import Prediction, ready_made, what_if
from lanescope.webapp.runs import units
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.runs.run_warnings import ranks_text

_SHOWN = 12
"""Rows of the critical path that people get to see; the JSON has all."""

_MAX_RANKS = 8
"""Columns of the table of categories; the JSON has all ranks."""

_BY = ["category", "name", "rank", "thread", "where"]


@click.command()
@run_argument()
@click.option("--step", type=int, help="The step to explain. [default: the one of median length]")
@click.option(
    "--what-if",
    "specs",
    multiple=True,
    metavar="SPEC",
    help="Predict the step's length after a change, for example rank=2:delay=0, straggler=none, "
    "op=aten::mm*:x0.5, module=blocks.3:x0.8, phase=backward:x0.5, data=0, transfer=0, bucket=5. "
    "Repeat the option for several changes. [default: changes that help any run]",
)
@click.option(
    "--baseline", metavar="RUN0", help="Compare the categories of each step with those of RUN0."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def time(
    run: str, step: int | None, specs: tuple[str, ...], baseline: str | None, as_json: bool
) -> None:
    """Show where the steps of RUN spend their time, the critical path of one, and what would help.

    \b
    Examples:
      lanescope time runs/a --baseline runs/before
      lanescope time runs/a --step 17 --what-if rank=2:delay=0
    """
    with working("Opening the run"):
        opened = open_run(run)
    try:
        with working("Following the critical path"):
            job_step(opened, step)
            changes = None
            if baseline is not None:
                changes = _changes(open_baseline(baseline, opened), opened, step)
            if specs:
                predictions = what_if(opened, specs, step)
            else:
                predictions = if_applicable(ready_made, opened, step, otherwise=[])
    except NotApplicable as reason:
        raise RunError(f"{opened.title}: {reason}") from None
    except RunError:  # a ValueError as well, but not about the arguments
        raise
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        found = _summary(opened, step, predictions)
        if changes is not None:
            found["baseline"] = _changes_summary(changes)
        click.echo(json.dumps(found))
        return
    console = output_console()
    _show(opened, step, predictions, console)
    if changes is not None:
        _show_changes(changes, console)


def _changes(base: Run, run: Run, step: int | None) -> pd.DataFrame:
    """The steps beside those of the baseline. Raises NotApplicable where it has no such step."""
    table = step_changes(base, run)
    chosen = table if step is None else table[table["step"] == step]
    if chosen.empty:
        raise NotApplicable(f"the baseline has no step {step}")
    return chosen


def _changes_summary(changes: pd.DataFrame) -> list[dict[str, Any]]:
    """For each pair of steps the times of the baseline, ns; those of the run are in `steps`."""
    return [
        {
            "step": int(row["step"]),
            "base_step": int(row["base_step"]),
            "duration_ns": round(row["base_duration_ns"]),
            "breakdown": {name: round(row[f"base_{name}_ns"]) for name in CATEGORIES},
        }
        for row in changes.to_dict("records")
    ]


_TEXTS = ("category", "what", "where")
"""Columns that may wrap; the others hold numbers."""


def _table(*heads: str) -> Table:
    table = Table(box=None)
    for head in heads:
        table.add_column(head, no_wrap=head not in _TEXTS, overflow="fold")
    return table


def _show_changes(changes: pd.DataFrame, console: Console) -> None:
    kept = steady(changes)
    means = kept.mean()
    which = f"step {int(kept['step'].iloc[0])}" if len(kept) == 1 else f"mean of {len(kept)} steps"
    which += "" if len(kept) == len(changes) else " without the first"
    heads = _table("category", "baseline", "run", "change")
    rows = [
        ("whole step", means["base_duration_ns"], means["duration_ns"]),
        *(
            (CATEGORIES[row.category], row.base_ns, row.run_ns)
            for row in category_changes(kept).itertuples()
        ),
    ]
    for title, before, now in rows:
        sign = "+" if now >= before else "-"
        heads.add_row(
            title,
            units.duration(before),
            units.duration(now),
            f"{sign}{units.duration(abs(now - before))}",
        )
    console.print(Text(f"\nAgainst the baseline, {which}, mean over the ranks", style="bold"))
    print_table(console, heads)


def _summary(run: Run, step: int | None, predictions: list[Prediction]) -> dict[str, Any]:
    """The object that `time --json` prints."""
    table = step_time(run)
    chosen = table if step is None else table[table["step"] == step]
    no_path = pd.DataFrame(columns=PATH_COLUMNS)
    path = summed(if_applicable(critical_path, run, step, otherwise=no_path), _BY)
    return {
        "steps": [
            {
                "step": int(row["step"]),
                "rank": int(row["rank"]),
                "duration_ns": int(row["duration_ns"]),
                "breakdown": {name: int(row[f"{name}_ns"]) for name in CATEGORIES},
            }
            for row in chosen.to_dict("records")
        ],
        "critical_path": [
            {**row, "where": row["where"] or None}
            for row in path[[*_BY, "duration_ns"]].to_dict("records")
        ],
        "what_if": [
            {"spec": one.spec, "step_ns": one.step_ns, "speedup": one.speedup}
            for one in predictions
        ],
        "slowdown": _slowdown_summary(run),
    }


def _slowdown_summary(run: Run) -> dict[str, Any] | None:
    found = if_applicable(slowdown, run, otherwise=None)
    if found is None:
        return None
    return {
        "steps": list(found.steps),
        "step_ns": round(found.step_ns),
        "ideal_ns": round(found.ideal_ns),
        "job": found.job,
        "operations": dict(found.operations),
        "workers": [
            {
                "rank": rank,
                "slowdown": factor,
                "steps": found.by_step.loc[found.by_step["rank"] == rank, "slowdown"].tolist(),
            }
            for rank, factor in found.workers.items()
        ],
        "slowest_workers": {"ranks": list(found.slowest), "share": found.slowest_share},
        "last_stage": {"ranks": list(found.last_stage), "share": found.last_stage_share},
    }


def _show(run: Run, step: int | None, predictions: list[Prediction], console: Console) -> None:
    table = step_time(run)
    chosen = table if step is None else table[table["step"] == step]
    means = chosen.groupby("rank").mean().head(_MAX_RANKS)
    heads = _table("category", *[f"rank {rank}" for rank in means.index])
    categories = ((f"{name}_ns", title) for name, title in CATEGORIES.items())
    for column, title in (("duration_ns", "whole step"), *categories):
        if means[column].any():
            heads.add_row(title, *map(units.duration, means[column]))
    which = "mean of all steps" if step is None else f"step {step}"
    console.print(Text(f"Time of a step by category, {which}", style="bold"))
    print_table(console, heads)
    window = job_step(run, step)
    length = units.duration(window.end_ns - window.start_ns)
    console.print(Text(f"\nCritical path of step {window.step}, {length}", style="bold"))
    try:
        path = summed(critical_path(run, step), ["category", "name", "rank", "where"])
    except NotApplicable as reason:
        console.print(f"Not shown: {reason}.")
        return
    rows = _table("time", "share", "category", "what", "rank", "where")
    for row in path.head(_SHOWN).itertuples():
        rows.add_row(
            units.duration(row.duration_ns),
            units.share_cell(row.share),
            PATH_CATEGORIES[row.category],
            units.printable(short_title(row.name)),
            str(row.rank),
            units.printable(row.where),
        )
    print_table(console, rows)
    if predictions:
        console.print(Text("\nWhat would help: the step's predicted length", style="bold"))
        for one in predictions:
            console.print(f"  {units.duration(one.step_ns)} (x{one.speedup:.2f})  {one.words}")
    _show_slowdown(run, console)


def _show_slowdown(run: Run, console: Console) -> None:
    found = if_applicable(slowdown, run, otherwise=None)
    if found is None or found.slowest_share is None:
        return
    ideal, length = units.duration(found.ideal_ns), units.duration(found.step_ns)
    console.print(Text(f"\nSlowdown by stragglers: x{found.job:.2f}", style="bold"))
    cause = "no single rank causes the difference"
    if found.slowest_share > 0:
        cause = f"{found.slowest_part} of the difference is due to the slowest: "
        cause += f"rank {ranks_text(found.slowest)}"
    console.print(f"  {length} a step, {ideal} with all work spread evenly over the ranks; {cause}")
    if found.last_stage_share is not None:
        console.print(f"  {units.share(found.last_stage_share)} to the last pipeline stage")
