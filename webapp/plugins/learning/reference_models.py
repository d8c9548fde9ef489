"""Finds models that are called without gradients and that a part of the ranks keeps up to date.

A teacher or an average of the weights is updated by hand, so no wrapper keeps it equal. Found where
its parameters are equal on all ranks of a group of replicas when first hashed, change on some ranks
later, and never on others, which call it as well. Models are numbered by class in the order of
their first call, which a rank that evaluates more than others may change: of a class only one may
be called so.

So are copies of the model that the replicas train, by the names of their parameters, that never
were equal, though each rank updates its own: they were made before the replicas were.
"""

from __future__ import annotations

import pandas as pd
import pyarrow.compute as pc

from lanescope.collector.format.loop_names import KEPT_HASH
from lanescope.webapp.analysis.access_site import accesses_among, storage_names
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.nothing_to_check import need_at_access, need_ranks
from lanescope.webapp.analysis.parameter_history import gradient_rows, logged
from lanescope.webapp.analysis.process_exits import of_last_attempt
from lanescope.webapp.analysis.stack_frames import where_of
from lanescope.webapp.plugins.learning.consistency import partings
from lanescope.webapp.plugins.learning.replicas import replicas
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run


def kept_models(run: Run) -> list[Finding]:
    """Returns findings of kind `rank_divergence`, one per model. Raises NotApplicable."""
    need_ranks(run)
    rows = of_last_attempt(run, logged(run, None, prefix=KEPT_HASH))
    known = rows if replicas(run) else rows.iloc[:0]
    need_at_access(run, known, "no replica calls a model without gradients")
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
            table = None if model in found else _by_step(own, ranks)
            if table is None:
                continue
            kept = _updated(table)
            if kept:
                found[model] = _finding(run, str(name), ranks, kept, own)
            elif _never_equal(table) and _is_copy(run, rows, model):
                found[model] = _of_unlike_copies(run, str(name), ranks, own)
    return list(found.values())


def _by_step(own: pd.DataFrame, ranks: tuple[int, ...]) -> pd.DataFrame | None:
    """Hashes of a parameter by step and rank; None where there are fewer than two steps."""
    first = own.drop_duplicates(["step", "rank"])
    table = first.pivot(index="step", columns="rank", values="value").sort_index()
    table = table.reindex(columns=list(ranks)).dropna()
    return None if len(table) < 2 else table


def _updated(table: pd.DataFrame) -> tuple[int, ...]:
    """Ranks that update a parameter which the others keep as it was; none where all do or none, or
    where it does not begin equal."""
    changes = table.nunique() > 1
    if table.iloc[0].nunique() > 1 or changes.all():
        return ()
    return tuple(int(rank) for rank in table.columns[changes])


def _never_equal(table: pd.DataFrame) -> bool:
    return bool((table.nunique(axis=1) > 1).all() and (table.nunique() == len(table)).all())


def _is_copy(run: Run, rows: pd.DataFrame, model: str) -> bool:
    """Whether a model has the parameters, by their names, that are trained."""
    names = rows.loc[rows["name"].str.startswith(f"{model}/"), "name"]
    own = {name.partition("/")[2] for name in names}
    trained = set(gradient_rows(run)["parameter"])
    return own <= trained | {name.partition(".")[2] for name in trained}


def _of_unlike_copies(run: Run, name: str, ranks: tuple[int, ...], rows: pd.DataFrame) -> Finding:
    model, _, parameter = name.partition("/")
    first = rows[rows["rank"] == ranks[0]].sort_values("step").iloc[0]
    return finding_at(
        run,
        ranks[0],
        first,
        kind="rank_divergence",
        severity="error",
        confidence="likely",
        title=f"{units.sentence(ranks_in(run, ranks))} train one model, but each keeps and updates "
        f"a copy of its own, {model}, and calls it without gradients: {parameter} is not equal at "
        "any step. Copy the model once its ranks are equal (after DistributedDataParallel wraps "
        "it), or broadcast the copy.",
        ranks=ranks,
        where=_written_at(run, ranks[0], f"{model}.{parameter}", parameter),
        evidence={"cause": "unlike_copies", "parameter": name},
    )


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
