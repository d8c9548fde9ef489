"""One row per trainable parameter: its gradient over the run, also where it never had one.

A parameter that an optimizer holds is judged by every step, another trainable one by the sampled
steps. Frozen parameters have a row only where an optimizer holds them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.parameter_history import gradient_rows, layers_of, samples
from lanescope.webapp.plugins.autograd_graph.autograd_graph import NO_GRADIENT_CAUSES, cut_off
from lanescope.webapp.plugins.gradients.layer_map import as_in_model
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui.grids import rows_in_sight

NORMS = ("first", "last", "least", "greatest")
_COLUMNS = ("parameter", "gradient", "numel", "dtype", *NORMS, "missing")


@lru_cache(maxsize=2)
def parameter_table(run: Run) -> pd.DataFrame:
    """Returns a row per parameter, in forward order.

    parameter, gradient (in words: at which steps it had one, and if at none, why), numel, dtype,
    first, last, least and greatest (norm of its gradient; NaN: none, or NaN), missing (optimizer
    steps of all ranks without a gradient; of no optimizer: sampled ones).
    """
    sampled = samples(run)
    held = gradient_rows(run)
    free = sampled[sampled["trainable"].astype(bool) & (sampled["optimizer"] < 0)]
    free = free[~free["parameter"].isin(held["parameter"].unique())]
    table = pd.concat([_over_steps(held), _over_steps(free.assign(norm=free["grad_norm"]))])
    recorded = to_frame(run.events("gradient", columns=["parameter", "dtype", "numel"]))
    known = pd.concat([recorded, sampled[["parameter", "dtype", "numel"]]])
    known = known.drop_duplicates("parameter").set_index("parameter")
    parts = set(recorded["parameter"].unique()) - set(table.index)
    table = table.reindex([name for name in known.index if name in table.index or name in parts])
    table["dtype"] = known["dtype"].astype(str)
    table["numel"] = table["numel"].fillna(known["numel"]).astype("int64")
    table["gradient"] = _words(run, table, set(free["parameter"].unique()))
    layers = layers_of(table.index.to_series())
    order = as_in_model(run, run.ranks[0], list(layers.unique()))
    places = layers.map({layer: place for place, layer in enumerate(order)})
    table = table.iloc[np.argsort(places.to_numpy(), kind="stable")]
    return table.rename_axis("parameter").reset_index()[list(_COLUMNS)]


def _over_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """By parameter: what its gradients were, over the steps of all ranks."""
    there = ~rows["missing"].astype(bool)
    rows = rows.assign(nonzero=there & (rows["norm"] != 0))
    table = rows.groupby("parameter", sort=False).agg(
        numel=("numel", "first"),
        steps=("step", "nunique"),
        missing=("missing", "sum"),
        never=("missing", "all"),
        nonzero=("nonzero", "any"),
        least=("norm", "min"),
        greatest=("norm", "max"),
    )
    table["first"] = rows.drop_duplicates("parameter").set_index("parameter")["norm"]
    table["last"] = rows.drop_duplicates("parameter", keep="last").set_index("parameter")["norm"]
    for name, flags in (("without", ~there), ("wrong", there & ~np.isfinite(rows["norm"]))):
        counts = rows[flags].groupby("parameter")["step"].nunique()
        table[name] = counts.reindex(table.index, fill_value=0)
    return table


def _words(run: Run, table: pd.DataFrame, free: set[str]) -> list[str]:
    last = samples(run).drop_duplicates("parameter", keep="last")
    frozen = set(last.loc[~last["trainable"].astype(bool), "parameter"])
    silent = table["never"].eq(True).any()
    causes = {
        name: cause for rank in run.ranks if silent for name, cause in cut_off(run, rank).items()
    }
    words = []
    for row in table.itertuples():
        name = str(row.Index)
        if row.steps != row.steps:
            words.append("Not known: shards of other ranks are missing in this run")
            continue
        of = f"of {units.counted(int(row.steps), 'sampled step' if name in free else 'step')}"
        cause = causes.get(name.rpartition(".")[0])
        if row.never and name in frozen:
            text = "None: it is frozen (requires_grad=False)"
        elif row.without:
            text = f"None at {units.count(int(row.without))} {of}"
            text += f": its module {NO_GRADIENT_CAUSES[cause]}" if row.never and cause else ""
        elif row.wrong:
            text = f"NaN or infinite at {units.count(int(row.wrong))} {of}"
        else:
            text = "" if row.nonzero else "Exactly zero "
            text += f"at {units.count(int(row.steps))} {of}"
        text = units.sentence(text)
        words.append(f"No optimizer holds it. {text}" if name in free else text)
    return words


def asked_rows(table: pd.DataFrame, request: dict[str, Any]) -> dict[str, Any]:
    """Returns rows of `parameter_table` that the grid asks for: its getRowsRequest.

    Its filter of the column `parameter` searches names and the words about gradients.

    Returns its getRowsResponse: `rowData`, with norms as text, and `rowCount`, of the filtered.
    """
    text = str(request.get("filterModel", {}).get("parameter", {}).get("filter", ""))
    if text:
        found = [
            table[column].str.contains(text, case=False, regex=False)
            for column in ("parameter", "gradient")
        ]
        table = table[found[0] | found[1]]
    answer = rows_in_sight(table.to_dict("records"), request)
    answer["rowData"] = [
        row
        | {"numel": units.count(row["numel"]), "missing": int(np.nan_to_num(row["missing"]))}
        | {name: "none" if pd.isna(row[name]) else units.aligned(row[name]) for name in NORMS}
        for row in answer["rowData"]
    ]
    return answer
