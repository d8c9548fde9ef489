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
from lanescope.webapp.commands.run_argument import run_argument
from lanescope.webapp.plugins.time.breakdown import CATEGORIES, step_time
from lanescope.webapp.plugins.time.critical_path import (
    COLUMNS,
    PATH_CATEGORIES,
    critical_path,
    job_step,
    summed,
)
from lanescope.webapp.plugins.time.stream_work import short_title
from lanescope.webapp.plugins.time.what_if import Prediction, ready_made, what_if
from lanescope.webapp.runs import units
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run, open_run

SHOWN = 12
"""Rows of the critical path that people get to see; the JSON has all."""

MAX_RANKS = 8
"""Columns of the table of categories; the JSON has all ranks."""

_BY = ["category", "name", "rank", "thread", "where"]


@click.command()
@run_argument()
@click.option("--step", type=int, help="The step to explain; without, the one of median length.")
@click.option(
    "--what-if",
    "specs",
    multiple=True,
    metavar="SPEC",
    help="Predict the step's length after a change, for example rank=2:delay=0, straggler=none, "
    "op=aten::mm*:x0.5, module=blocks.3:x0.8, phase=backward:x0.5, data=0, transfer=0, bucket=5. "
    "May be given several times; without, changes that help any run are tried.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def time(run: str, step: int | None, specs: tuple[str, ...], as_json: bool) -> None:
    """Show where the steps of RUN spend their time, the critical path of one, and what would help.

    \b
    Examples:
      lanescope time runs/a
      lanescope time runs/a --step 17 --what-if rank=2:delay=0
    """
    with working("Opening the run"):
        opened = open_run(run)
    try:
        with working("Following the critical path"):
            job_step(opened, step)
            predictions = what_if(opened, specs, step) if specs else _ready_made(opened, step)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except NotApplicable as reason:
        raise RunError(f"{opened.title}: {reason}") from None
    if as_json:
        click.echo(json.dumps(_summary(opened, step, predictions)))
    else:
        _show(opened, step, predictions, Console(highlight=False, soft_wrap=True))


def _ready_made(run: Run, step: int | None) -> list[Prediction]:
    """Predictions that were not asked for: none where the step cannot be replayed."""
    try:
        return ready_made(run, step)
    except NotApplicable:
        return []


def _path(run: Run, step: int | None) -> pd.DataFrame:
    """The critical path; without rows where it cannot be worked out."""
    try:
        return critical_path(run, step)
    except NotApplicable:
        return pd.DataFrame(columns=COLUMNS)


def _summary(run: Run, step: int | None, predictions: list[Prediction]) -> dict[str, Any]:
    """The object that `time --json` prints."""
    table = step_time(run)
    chosen = table if step is None else table[table["step"] == step]
    path = summed(_path(run, step), _BY)
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
    }


def _show(run: Run, step: int | None, predictions: list[Prediction], console: Console) -> None:
    table = step_time(run)
    chosen = table if step is None else table[table["step"] == step]
    means = chosen.groupby("rank").mean().head(MAX_RANKS)
    heads = Table("category", *[f"rank {rank}" for rank in means.index], box=None)
    for column, title in (("duration_ns", "whole step"), *_columns()):
        if means[column].any():
            heads.add_row(title, *map(units.duration, means[column]))
    which = "mean of all steps" if step is None else f"step {step}"
    console.print(Text(f"Time of a step by category, {which}", style="bold"))
    console.print(heads)
    window = job_step(run, step)
    length = units.duration(window.end_ns - window.start_ns)
    console.print(Text(f"\nCritical path of step {window.step}, {length}", style="bold"))
    try:
        path = summed(critical_path(run, step), ["category", "name", "rank", "where"])
    except NotApplicable as reason:
        console.print(f"Not shown: {reason}.")
        return
    rows = Table("time", "share", "category", "what", "rank", "where", box=None)
    for row in path.head(SHOWN).itertuples():
        rows.add_row(
            units.duration(row.duration_ns),
            units.share(row.share),
            PATH_CATEGORIES[row.category],
            units.printable(short_title(row.name)),
            str(row.rank),
            units.printable(row.where),
        )
    console.print(rows)
    if predictions:
        console.print(Text("\nWhat would help: the step's predicted length", style="bold"))
        for one in predictions:
            console.print(f"  {units.duration(one.step_ns)} (x{one.speedup:.2f})  {one.words}")


def _columns() -> list[tuple[str, str]]:
    """Column of `step_time` and what people read, for each category."""
    return [(f"{name}_ns", title) for name, title in CATEGORIES.items()]
