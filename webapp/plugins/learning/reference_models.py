"""Finds models that are called without gradients and that a part of the ranks keeps up to date.

A teacher or an average of the weights is updated by hand, so no wrapper keeps it equal. Found where
its parameters are equal on all ranks of a group of replicas when first hashed, change on some ranks
later, and never on others, which call it as well. Models are numbered by class in the order of
their first call, which a rank that evaluates more than others may change: of a class only one may
be called so.
"""

from __future__ import annotations

import pandas as pd
import pyarrow.compute as pc

from lanescope.collector.format.loop_names import KEPT_HASH
from lanescope.webapp.analysis.access_site import accesses_among, storage_names
from lanescope.webapp.analysis.findings import Finding, NotRecorded, finding_at
from lanescope.webapp.analysis.nothing_to_check import need_ranks
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.process_exits import of_last_attempt
from lanescope.webapp.analysis.stack_frames import where_of
from lanescope.webapp.plugins.learning.consistency import partings
from lanescope.webapp.plugins.learning.replicas import replicas
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run


def kept_models(run: Run) -> list[Finding]:
    """Returns findings of kind `rank_divergence`, one per model. Raises NotApplicable."""
    need_ranks(run)
    rows = of_last_attempt(run, logged(run, None, prefix=KEPT_HASH))
    if rows.empty or not replicas(run):
        raise NotRecorded("record replicas that call a model without gradients")
    models = rows["name"].str.split("/", n=1).str[0]
    classes = models.str.split("#", n=1).str[0]
    rows = rows[models.groupby(classes).transform("nunique") == 1]
    apart = {one.group for one in partings(run)}  # of a model that is trained apart, so are they
    found: dict[str, Finding] = {}
    for group, ranks in replicas(run).items():
        if group in apart:
            continue
        for name, own in rows[rows["rank"].isin(ranks)].groupby("name", sort=False):
            model = str(name).partition("/")[0]
            kept = None if model in found else _updated(own, ranks)
            if kept is not None:
                found[model] = _finding(run, str(name), ranks, kept, own)
    return list(found.values())


def _updated(own: pd.DataFrame, ranks: tuple[int, ...]) -> tuple[int, ...] | None:
    """Ranks that update a parameter which the others keep as it was; None where all or none do."""
    first = own.drop_duplicates(["step", "rank"])
    table = first.pivot(index="step", columns="rank", values="value").sort_index()
    table = table.reindex(columns=list(ranks)).dropna()
    if len(table) < 2 or table.iloc[0].nunique() > 1:
        return None
    changes = table.nunique() > 1
    updated = tuple(int(rank) for rank in ranks if changes[rank])
    return updated if 0 < len(updated) < len(ranks) else None


def _finding(
    run: Run, name: str, ranks: tuple[int, ...], updated: tuple[int, ...], rows: pd.DataFrame
) -> Finding:
    model, _, parameter = name.partition("/")
    others = tuple(rank for rank in ranks if rank not in updated)
    last = rows[rows["rank"] == updated[0]].sort_values("step").iloc[-1]
    calls = "calls" if len(others) == 1 else "call"
    return finding_at(
        run,
        updated[0],
        last,
        kind="rank_divergence",
        severity="error",
        confidence="likely",
        title=f"Only {ranks_in(run, updated)} "
        f"{'updates' if len(updated) == 1 else 'update'} the model {model}, which "
        f"{ranks_in(run, others)} {calls} as well, without gradients: {parameter} begins equal on "
        f"all of them, and on {ranks_in(run, others)} has not changed by step {int(last['step'])}. "
        "Update it on all ranks, or broadcast it.",
        ranks=ranks,
        where=_written_at(run, updated[0], f"{model}.{parameter}", parameter),
        evidence={"cause": "kept_model", "parameter": name, "updated": list(updated)},
    )


def _written_at(run: Run, rank: int, *names: str) -> str | None:
    """The line that last wrote a parameter, where its storage is known by one of the names: those
    of the first model of a program are without the model's."""
    storages = storage_names(run, rank).items()
    several = ([at for at, said in storages if name in said.split(", ")] for name in names)
    known = next(filter(None, several), [])
    columns = ["start_ns", "storage", "write", "birth", "thread"]
    rows = accesses_among(run, rank, "storage", known, columns)
    rows = rows[rows["write"] & ~rows["birth"]]
    if rows.empty:
        return None
    row = rows.iloc[-1]
    ops = run.events("op", rank, row["thread"], ["start_ns", "stack"])
    stacks = ops.filter(pc.equal(ops["start_ns"], row["start_ns"]))["stack"].drop_null()
    return where_of(run, rank, stacks[0].as_py()) if len(stacks) else None
