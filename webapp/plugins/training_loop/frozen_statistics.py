"""Finds batch normalisation with running statistics that are not meant.

Layers are frozen and their statistics go on changing, a momentum keeps the last batch alone, or a
model is evaluated whose parameters changed and whose statistics are those it was built with.

No optimizer has its weight and bias, which are frozen and written by no operator, and in training
mode each batch changes running_mean: the layer is not what was loaded. An encoder that follows
another one by its momentum has its weights written as well.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import pyarrow.compute as pc

from lanescope.collector.format.loop_names import BATCH_MOMENTUM, FRESH_STATISTICS
from lanescope.collector.format.names import BUFFER_HASH, TRAINING_MODE
from lanescope.webapp.analysis.cluster import found_per_rank
from lanescope.webapp.analysis.fault_series import found_in_rows
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.nothing_to_check import need_steps, of_operators
from lanescope.webapp.analysis.parameter_history import logged, samples
from lanescope.webapp.runs.run import Run

_MIN_SAMPLED = 3
_MIN_EVALUATED = 2  # evaluations with other parameters
_MEAN = ".running_mean"
_STATISTICS = (_MEAN, ".running_var", ".num_batches_tracked")

_of_batch_norm = of_operators(r"aten::\w*batch_norm\w*", "calls no batch normalisation")


@_of_batch_norm
def frozen_statistics(run: Run) -> list[Finding]:
    """Returns findings of kind `evaluation_mode`, one per rank. Raises NotApplicable."""
    need_steps(run)
    buffers = logged(run, None, prefix=BUFFER_HASH)
    buffers = buffers[buffers["name"].astype("str").str.endswith(_MEAN)]
    if buffers.empty:
        return []
    found = []
    known = samples(run)
    for key, own in buffers.groupby("rank", sort=True):
        rank = int(str(key))
        changes = own.groupby("name", sort=False, observed=True)["value"].nunique()
        layers = {str(name).removesuffix(_MEAN) for name in changes.index[changes >= _MIN_SAMPLED]}
        layers &= _frozen(known[known["rank"] == rank])
        times = own.loc[own["name"].isin([one + _MEAN for one in layers]), "time_ns"]
        layers = _kept(run, rank, layers, int(times.min()), int(times.max())) if layers else set()
        if layers:
            found.append(_finding(run, rank, sorted(layers)))
    return found


@_of_batch_norm
@found_per_rank(need_steps, ahead=False)
def newest_batches(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `evaluation_mode`, one per rank. Raises NotApplicable."""
    rows = logged(run, rank, prefix=BATCH_MOMENTUM)
    if rows.empty:
        return None
    names = [*rows["name"].astype("str").drop_duplicates()]
    layer, _, kind = names[0].partition("/")
    momentum = float(rows["value"].iloc[0])
    title = (
        f"{kind} {layer}{and_more(len(names), 'layer')} has momentum={momentum:g}: torch takes "
        "that share of the newest batch, so evaluation normalises by the last batch of the "
        f"training. Other frameworks count the other way: pass momentum={1 - momentum:.2g}."
    )
    evidence = {"cause": "momentum", "modules": names[:20], "momentum": momentum}
    return _warning(run, rank, title, evidence)


def _untrained(run: Run) -> pd.DataFrame:
    """Statistics of models that are not called with gradients themselves: others train with the
    same ones, maybe on purpose."""
    need_steps(run)
    trained = set(logged(run, None, prefix=TRAINING_MODE)["name"].astype("str"))
    rows = logged(run, None, prefix=FRESH_STATISTICS)
    return rows[~rows["name"].astype("str").str.split("/", n=1).str[0].isin(trained)]


@_of_batch_norm
@found_in_rows(_untrained)
def fresh_statistics(run: Run, rank: int, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `evaluation_mode`, one per rank. Raises NotApplicable."""
    values = rows.groupby("name", sort=False, observed=True)["value"]
    fresh = (values.min() >= 0) & (values.nunique() >= _MIN_EVALUATED)
    if not fresh.any():
        return None
    model, _, layer = str(fresh.index[fresh][0]).partition("/")
    times = int(values.size()[fresh.index[fresh][0]])
    title = (
        f"Batch normalisation {layer} of {model} has the running statistics that it was built "
        f"with, mean 0 and variance 1, in {times} evaluations between which the parameters of the "
        "model changed: it never saw a batch in training mode, as an average that takes parameters "
        "alone. Copy the buffers as well, zip(average.buffers(), model.buffers()), or use "
        "torch.optim.swa_utils.AveragedModel, which does."
    )
    evidence = {"cause": "fresh_statistics", "model": model, "layer": layer}
    return _warning(run, rank, title, evidence)


def _frozen(rows: pd.DataFrame) -> set[str]:
    """Layers whose parameters are frozen whenever they are sampled, and in no optimizer."""
    layers = rows.groupby("layer", sort=False)
    trained = layers["trainable"].any() | (layers["optimizer"].max() >= 0)
    return {str(layer) for layer in trained.index[~trained.astype(bool)]}


def _kept(run: Run, rank: int, layers: set[str], since_ns: int, last_ns: int) -> set[str]:
    """Those of some layers whose parameters no operator writes after an instant, and some reads
    after another: they were not replaced either."""
    storages = run.events("storage", rank, columns=["storage", "name"]).to_pandas()
    names = storages["name"].astype("str")
    storages["layer"] = names.str.rsplit(".", n=1).str[0]
    storages = storages[storages["layer"].isin(layers) & ~names.str.endswith(_STATISTICS)]
    columns, window = ["start_ns", "storage", "write", "birth"], (since_ns, run.duration_ns)
    accesses = run.events("access", rank, columns=columns, window=window)
    written = accesses.filter(pc.or_(accesses["write"], accesses["birth"]))["storage"]
    read = accesses.filter(pc.greater(accesses["start_ns"], last_ns))["storage"]
    kept = ~storages["storage"].isin(pc.unique(written).to_pandas())
    kept &= storages["storage"].isin(pc.unique(read).to_pandas())
    found: set[str] = set(storages["layer"][kept]) - set(storages["layer"][~kept])
    return found


def _finding(run: Run, rank: int, layers: list[str]) -> Finding:
    several = len(layers) > 1
    title = (
        f"Batch normalisation {layers[0]}{and_more(len(layers), 'layer')} "
        f"{'are' if several else 'is'} frozen, and running statistics still change with each "
        "batch: training mode is on. Call eval() on frozen layers after each model.train(), or "
        "override train()."
    )
    return _warning(run, rank, title, {"cause": "frozen_statistics", "modules": layers[:20]})


def _warning(run: Run, rank: int, title: str, evidence: Mapping[str, object]) -> Finding:
    return finding_at(
        run,
        rank,
        0,
        kind="evaluation_mode",
        confidence="likely",
        title=title,
        evidence=evidence,
    )
