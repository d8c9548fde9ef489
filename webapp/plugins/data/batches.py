"""The samples of batches, of models' arguments and of what models return, as a table."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypedDict

import pandas as pd

from lanescope.collector.format.names import BATCH_HASH, BATCH_ROWS
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.nothing_to_check import need_at_access, need_rows
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.process_exits import of_last_attempt
from lanescope.webapp.plugins.losses.tensor_reads import OPERATOR_KEY
from lanescope.webapp.runs.run import Run

BATCH_KEYS = ["step", "call"]

_COPIES = ("aten::_to_copy", "aten::copy_")


class RepeatedData(TypedDict):
    """What repeats, and at how many sampled steps it was seen to."""

    cause: str
    steps: int


def given_to_models(samples: pd.DataFrame) -> pd.DataFrame:
    """Returns the inputs of models; losses that are modules get targets as well."""
    of_losses = samples["model"].astype("str").str.contains("Loss|Criterion")
    return samples[(samples["what"] == "input") & ~of_losses]


def readers(run: Run, rank: int, row: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns names and shapes of the operators that read a tensor of a batch after it was loaded,
    or a copy of it, within its step: step, time_ns, thread, and its storage as `value`."""
    steps = run.steps(rank)
    ends = dict(zip(steps.index, steps.end_ns, strict=True))
    window = (int(row["time_ns"]), int(ends.get(row["step"], run.duration_ns)))
    accesses, ops = (
        to_frame(run.events(table, rank, str(row["thread"]), [*OPERATOR_KEY, *columns], window))
        for table, columns in (("access", ["storage", "write"]), ("op", ["name", "shapes"]))
    )
    touched = accesses[accesses["start_ns"] > window[0]].merge(ops, on=OPERATOR_KEY)
    touched = touched.astype({"name": "str", "shapes": "str"})
    reads = touched[~touched["write"]]
    own = reads[reads["storage"] == int(row["value"])]
    copies = own.loc[own["name"].isin(_COPIES), OPERATOR_KEY].drop_duplicates()
    made = touched[touched["write"]].merge(copies, on=OPERATOR_KEY)["storage"]
    own = pd.concat([own, reads[reads["storage"].isin(made)]])
    return list(own[["name", "shapes"]].itertuples(index=False, name=None))


@lru_cache(maxsize=4)
def batch_samples(run: Run) -> pd.DataFrame:
    """Returns one row per sampled tensor: rank, thread, time_ns, step, call, what, model, position,
    hash, rows, alike.

    what: loaded, input or output; call: number of the sample of that name in its step, from 0;
    alike: all rows are the same. Raises NotApplicable where the run holds none.
    """
    hashes, rows = (
        of_last_attempt(run, logged(run, None, prefix=prefix))
        for prefix in (BATCH_HASH, BATCH_ROWS)
    )
    need_at_access(
        run, hashes if len(rows) == len(hashes) else rows.iloc[:0], "no batch was sampled"
    )
    order = ["rank", "thread", "name", "step", "time_ns"]
    both = [frame.sort_values(order, kind="stable", ignore_index=True) for frame in (hashes, rows)]
    frame = both[0].rename(columns={"value": "hash"})
    names = frame["name"].astype("str")
    parts = names.str.split("/", n=1, expand=True)
    frame["what"] = parts[0]
    rest = parts[1].str.rpartition("/")
    frame["model"], frame["position"] = rest[0], rest[2].astype("int64")
    frame["call"] = frame.groupby(["rank", "name", "step"], observed=True).cumcount()
    frame["rows"], frame["alike"] = both[1]["value"].abs(), both[1]["value"] < 0
    return frame.drop(columns="name").sort_values(["rank", "time_ns"], ignore_index=True)


def samples_of_loaders(run: Run) -> pd.DataFrame:
    """Returns the rows of `batch_samples`; raises NotApplicable where no DataLoader handed out
    any."""
    samples = batch_samples(run)
    need_rows(samples[samples["what"] == "loaded"], "no DataLoader is iterated")
    return samples
