"""What optimizers did to parameters, as the analyses of gradients need it: shards put together.

A sharded parameter has a part on each rank. Norms of the parts add up as squares:

    norm = sqrt(sum over ranks of norm^2 * whole / sum over ranks of numel)

where the last factor is 1 unless shards are replicated (hybrid sharding). Where the run does not
hold all ranks' shards the parameter is left out: its norm is not known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
import pyarrow as pa

from lanescope.collector.format.names import CLIP_NORM, REPLICAS
from lanescope.webapp.analysis.arrow_columns import having, to_frame
from lanescope.webapp.analysis.stack_frames import place_before
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray

_ROWS = ["rank", "thread", "step", "time_ns", "parameter", "norm", "numel", "optimizer"]


_PARAMETRIZED = re.compile(r"(^|\.)parametrizations\.[^.]+$")
"""What "fc.parametrizations.weight" has beside the name of the layer that it is a part of."""

UNNAMED = re.compile(r"optimizer(\d+)\.parameter(\d+)")
"""A parameter of no module that was called, by its place in its optimizer."""

HEALTHY_NORMS = (1e-3, 1e1)
"""Norms of a gradient that are usual."""

_KNOWN: WeakKeyDictionary[Run, pd.DataFrame] = WeakKeyDictionary()


def gradient_rows(run: Run) -> pd.DataFrame:
    """Returns one row per rank, optimizer step and parameter, in the order of recording.

    rank (the lowest where shards were put together), thread, optimizer, call (number of the
    optimizer's step in its process, from 0), step, time_ns, parameter, layer, numel, norm (NaN
    where the gradient was None), missing.
    """
    if run not in _KNOWN:
        _KNOWN[run] = _put_together(_recorded(run))
    return _KNOWN[run]


@lru_cache(maxsize=4)
def rank_gradient_rows(run: Run, rank: int) -> pd.DataFrame:
    """Returns the rows of `gradient_rows` of a rank; without reading other ranks, unless these have
    parts of its parameters."""
    own = None if run in _KNOWN else _recorded(run, rank)
    if own is None or (own["whole"] > own["numel"]).any():
        rows = gradient_rows(run)
        return rows[rows["rank"] == rank].reset_index(drop=True)
    return _put_together(own)


def _recorded(run: Run, rank: int | None = None) -> pd.DataFrame:
    """The rows before shards are put together, with `whole`: elements of all shards, else 0."""
    events = run.events("gradient", rank, columns=_ROWS)
    frame = to_frame(events)
    frame["missing"] = events["norm"].is_null().to_numpy()
    frame["call"] = _calls(frame)
    whole = _sharded(run, rank)
    frame["whole"] = 0
    if whole:
        keys = zip(frame["rank"], frame["parameter"], strict=True)
        frame["whole"] = [whole.get(key, 0) for key in keys]
    return frame


def _put_together(frame: pd.DataFrame) -> pd.DataFrame:
    sharded = frame["whole"] > frame["numel"]
    parts = [frame[~sharded]]
    if sharded.any():
        joined = _joined(frame[sharded], {"norm": "missing"}, ["missing"])
        parts.append(joined.assign(numel=joined["whole"]))
    frame = pd.concat(parts).sort_values(["rank", "time_ns"], kind="stable", ignore_index=True)
    frame["layer"] = layers_of(frame["parameter"])
    return frame.drop(columns="whole")


@lru_cache(maxsize=4)
def samples(run: Run) -> pd.DataFrame:
    """Returns the rows of the parameter table with `layer`, shards put together, skipped steps left
    out.

    `optimizer` is -1 where no optimizer holds the parameter; `missing`: the gradient was None. A
    joined `update_ratio` is sqrt(sum (ratio * norm)^2 / sum norm^2).
    """
    events = run.events("parameter")
    frame = to_frame(events)
    frame["optimizer"] = frame["optimizer"].fillna(-1).astype("int64")
    frame["missing"] = events["grad_norm"].is_null().to_numpy()
    frame["unknown"] = events["norm"].is_null().to_numpy()
    frame["unchanged"] = events["update_ratio"].is_null().to_numpy()
    frame = frame[~frame["skipped"].astype(bool)].drop(columns="skipped")
    frame["call"] = _calls(frame)
    frame = frame.rename(columns={"whole_numel": "whole"})
    sharded = frame["whole"] > frame["numel"]
    parts = [frame[~sharded]]
    if sharded.any():
        shards = frame[sharded].assign(
            change=frame["update_ratio"] * frame["norm"],
            grad_zeros=frame["grad_zeros"] * frame["numel"],
        )
        squares = {"norm": "unknown", "grad_norm": "missing", "change": "unchanged"}
        joined = _joined(shards, squares, ["missing"], ["grad_zeros"], ["grad_max"])
        joined["update_ratio"] = joined.pop("change") / joined["norm"]
        parts.append(joined.assign(numel=joined["whole"]))
    frame = pd.concat(parts).sort_values(["rank", "time_ns"], kind="stable", ignore_index=True)
    frame["layer"] = layers_of(frame["parameter"])
    return frame.drop(columns=["whole", "unknown", "unchanged"])


_GRADIENTS = (
    "rank",
    "thread",
    "step",
    "time_ns",
    "parameter",
    "norm",
    "numel",
    "dtype",
    "device",
    "optimizer",
)


def gradients(run: Run) -> pd.DataFrame:
    """Returns one row per rank, step and parameter, in the order of recording.

    rank, thread, step, time_ns (from the start of the run), parameter, norm (L2 norm of the
    gradient as the optimizer saw it, float64; NaN where the gradient was None, see `missing`),
    numel, dtype, device, optimizer, missing (True: there was no gradient, False: `norm` is what
    was recorded, be it NaN).
    """
    events = run.events("gradient", columns=_GRADIENTS)
    frame = to_frame(events)
    frame["missing"] = events["norm"].is_null().to_numpy()
    return frame


def gradient_norms(run: Run) -> pd.DataFrame:
    """Returns the norm of the whole gradient per rank and step: sqrt(sum over parameters of
    norm^2).

    Columns rank, step, norm, parameters (with a gradient), missing (without one), time_ns (last of
    the step). A parameter without gradient adds nothing; a NaN or infinite one makes the norm so.
    On a rank that holds shards of parameters it is the norm of that rank's shard.
    """
    frame = gradients(run)
    frame["square"] = np.where(frame["missing"], 0.0, frame["norm"] ** 2)
    # min_count and skipna would both hide a NaN gradient, which is what one looks for.
    frame["nan"] = ~frame["missing"] & frame["norm"].isna()
    groups = frame.groupby(["rank", "step"], sort=True)
    table = pd.DataFrame(
        {
            "norm": np.sqrt(groups["square"].sum()),
            "parameters": groups["missing"].count() - groups["missing"].sum(),
            "missing": groups["missing"].sum(),
            "time_ns": groups["time_ns"].max(),
        }
    )
    table.loc[groups["nan"].any(), "norm"] = np.nan
    return table.reset_index().astype({"parameters": "int64", "missing": "int64"})


def layers_of(parameters: pd.Series) -> pd.Series:
    """Returns the module that a parameter is of: the name without its last part, and without what
    torch's parametrizations, such as spectral_norm, put into it."""
    layers = {
        name: _PARAMETRIZED.sub("", str(name).rpartition(".")[0]) for name in parameters.unique()
    }
    return parameters.map(layers).astype("str")


def streaks(flags: BoolArray) -> list[tuple[int, int]]:
    """Returns [low, high) of the longest stretches in which all flags are set."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(np.int8), [0]))))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def _calls(frame: pd.DataFrame) -> pd.Series:
    groups = frame.groupby(["rank", "thread", "optimizer"], sort=False)["time_ns"]
    return groups.rank(method="dense").astype("int64") - 1


@lru_cache(maxsize=4)  # asked for each process group
def sharded_names(run: Run) -> frozenset[str]:
    """Returns parameters that are sharded: a rank has only a part."""
    return frozenset(name for _, name in _sharded(run))


def _sharded(run: Run, rank: int | None = None) -> dict[tuple[int, str], int]:
    columns = ["rank", "parameter", "numel", "whole_numel"]
    rows = to_frame(run.events("parameter", rank, columns=columns))
    rows = rows[rows["whole_numel"] > rows["numel"]]
    keys = zip(rows["rank"], rows["parameter"], strict=True)
    return dict(zip(keys, rows["whole_numel"], strict=True))


def _joined(
    frame: pd.DataFrame,
    squares: dict[str, str],
    every: Sequence[str],
    means: Sequence[str] = (),
    largest: Sequence[str] = (),
) -> pd.DataFrame:
    """Shards of all ranks as one row; `squares` add up as squares, `every` holds if of all.

    `squares`: a column, and the one that says where it has no value; one that is NaN makes the
    whole NaN, as it does in the whole gradient. `means`: columns that hold
    a mean over the elements of a shard.
    """
    keys = ["optimizer", "call", "parameter"]
    groups = frame.groupby(keys, sort=False)
    table = groups.first()
    held = groups["numel"].sum()
    table["rank"] = groups["rank"].min()
    by = [frame[key] for key in keys]
    for name, absent in squares.items():
        there = ~frame[absent].astype(bool)
        total = (frame[name].where(there) ** 2).groupby(by, sort=False).sum()
        wrong = (there & frame[name].isna()).groupby(by, sort=False).any()
        gone = ~there.groupby(by, sort=False).any()
        norm = np.sqrt(total * table["whole"] / held)
        table[name] = norm.where(~(wrong | gone), np.nan)
    for name in every:
        table[name] = groups[name].all()
    for name in means:
        table[name] = groups[name].sum(min_count=1) / held
    for name in largest:
        table[name] = groups[name].max()
    return table[held >= table["whole"]].reset_index()


_COLUMNS = ["rank", "thread", "time_ns", "step", "name", "value"]


def logged(run: Run, rank: int | None, *names: str, prefix: str | None = None) -> pd.DataFrame:
    """Returns a row per value of a rank, or of all: rank, thread, time_ns, step, name, value.

    Of the series `names`, or of those whose names begin with `prefix`, which is taken off.
    """
    rows = run.events("value", rank, columns=_COLUMNS)
    wanted = names.__contains__ if prefix is None else lambda name: name.startswith(prefix)
    chosen = having(rows["name"], wanted)
    found = (
        to_frame(rows.take(pa.array(np.flatnonzero(chosen))))
        if chosen.any()
        else _no_rows(rows.schema).copy()
    )
    if prefix is not None:
        found["name"] = found["name"].str.removeprefix(prefix)
    return found


@lru_cache(maxsize=4)  # most series are those of a fault, which no rank has
def _no_rows(columns: pa.Schema) -> pd.DataFrame:
    return to_frame(columns.empty_table())


@lru_cache(maxsize=1024)  # several questions ask for the same few series of each rank
def last_logged(run: Run, rank: int, name: str) -> pd.Series:
    """Returns the last value of each step, by step. Callers must not change it."""
    return logged(run, rank, name).groupby("step")["value"].last()


@lru_cache(maxsize=4)
def wrapped(run: Run) -> dict[int, int]:
    """Returns ranks that called a DistributedDataParallel -> between how many ranks it reduces."""
    rows = logged(run, None, REPLICAS)
    return {int(rank): int(own["value"].max()) for rank, own in rows.groupby("rank")}


def clip_place(run: Run, rank: int) -> str | None:
    """Returns file.py:12 at which the program first called clip_grad_norm_; None where it did
    not."""
    for _, row in logged(run, rank, CLIP_NORM).head(1).iterrows():
        return place_before(run, rank, str(row["thread"]), int(row["time_ns"]))
    return None
