"""Finds DataLoaders that shuffle inputs and targets apart, or hand out None for most batches, whose
persistent workers keep an older copy of the dataset, loops over them that return in their first
round, and samples that are trained on and evaluated."""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.loader_names import (
    LOADED_BY,
    LOADER_DATA,
    LOADER_ORDER,
    NO_BATCH,
    SHARED_SAMPLES,
)
from lanescope.collector.format.loop_names import LEFT_LOOP, STALE_DATASET
from lanescope.collector.format.names import BATCH_STORAGE
from lanescope.webapp.analysis.arrow_columns import phases_of_kind
from lanescope.webapp.analysis.cluster import found_per_rank
from lanescope.webapp.analysis.fault_series import (
    finding_of_series,
    found_in_rows,
    found_per_series,
)
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.nothing_to_check import need_loader
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.plugins.data.batches import BATCH_KEYS, given_to_models, samples_of_loaders
from lanescope.webapp.plugins.training_loop.line_findings import of_lines
from lanescope.webapp.plugins.training_loop.sorted_data import CLASSIFIES, read_by_a_loss
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 4  # sampled steps
_MIN_NONE, _MIN_SHARE = 4, 0.5  # of the batches those that are None

_MIN_EPOCHS = 3

_LOSSES = (*CLASSIFIES, "mse_loss", "l1_loss", "huber_loss")

_MIN_ITERATIONS = 2  # of a DataLoader whose dataset was changed


@found_in_rows(samples_of_loaders)
def loaders_apart(run: Run, rank: int, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    pairs = _pairs(run, rank, rows)
    if pairs["step"].nunique() < _MIN_STEPS:
        return None
    few = pairs.head(_MIN_STEPS).to_dict("records")
    if not all(read_by_a_loss(run, rank, row, _LOSSES) for row in few):
        return None
    length = int(pairs["length"].iloc[0])
    return _finding(
        run,
        rank,
        pairs.iloc[0],
        "wrong_loss",
        "Targets do not belong to their inputs: they come from two DataLoaders, and each "
        f"shuffles its {units.count(length)} samples in an order of its own. Put both into one "
        "dataset, such as TensorDataset(inputs, targets).",
        {"cause": "loaders", "steps": int(pairs["step"].nunique())},
    )


def _pairs(run: Run, rank: int, own: pd.DataFrame) -> pd.DataFrame:
    """The second batches of steps with two batches of one tensor each: a model gets the first one,
    none the second. Two shuffling iterations over equal lengths make them, and begin differently.

    Empty where other steps have two batches as well.
    """
    loaded = own[own["what"] == "loaded"]
    orders = logged(run, rank, prefix=LOADER_ORDER)
    parts = orders["name"].astype("str").str.split("/", expand=True).reindex(columns=[0, 1])
    orders = orders.assign(by=pd.to_numeric(parts[0]), length=parts[1])[["by", "length", "value"]]
    if orders["by"].nunique() < 2:
        return own[:0]
    numbered = {LOADED_BY: "by", f"{BATCH_STORAGE}loaded/0": "value"}
    for name, column in numbered.items():
        values = logged(run, rank, name).rename(columns={"value": column})
        values["call"] = values.groupby("step").cumcount()
        loaded = loaded.merge(values[[*BATCH_KEYS, column]], on=BATCH_KEYS)
    single = loaded.groupby(BATCH_KEYS)["position"].transform("max") == 0
    loaded = loaded[single].merge(orders.rename(columns={"value": "order"}), on="by")
    both = loaded[loaded["call"] == 0].merge(loaded[loaded["call"] == 1], on="step")
    passed = set(given_to_models(own)["hash"])
    fits = (
        (both["by_x"] != both["by_y"])
        & (both["length_x"] == both["length_y"])
        & (both["order_x"] != both["order_y"])
        & both["hash_x"].isin(passed)
        & ~both["hash_y"].isin(passed)
    )
    both = both if fits.all() else both[:0]
    renamed = {one: one.removesuffix("_y") for one in both.columns}
    return both.drop(columns=[one for one in both if one.endswith("_x")]).rename(columns=renamed)


@found_per_rank(need_loader)
def lost_batches(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `lost_error`, at most one per rank. Raises NotApplicable."""
    empty = logged(run, rank, NO_BATCH)
    if len(empty) < _MIN_NONE:
        return None
    threads = set(empty["thread"].astype("str"))
    phases = run.events("phase", rank, columns=["name", "thread"]).to_pylist()
    count = sum(one["name"] == "next(loader)" and one["thread"] in threads for one in phases)
    if len(empty) <= _MIN_SHARE * count:
        return None
    title = (
        f"{units.count(len(empty))} of {units.count(count)} batches of the DataLoader are None: "
        "what collate_fn made of most samples is lost. Look at what it leaves out, and at the "
        "errors that it catches."
    )
    evidence = {"cause": "none", "batches": len(empty)}
    return _finding(run, rank, empty.iloc[0], "lost_error", title, evidence)


@found_per_rank(need_loader)
def evaluated_samples(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `repeated_data`, at most one per rank. Raises NotApplicable.

    A part of the training's samples may be evaluated on purpose, beside others.
    """
    shared = logged(run, rank, prefix=SHARED_SAMPLES)
    if shared.empty:
        return None
    loops = _loops(run, rank)
    trained = set(loops.loc[loops["trains"], "value"])
    evaluated = set(loops["value"]) - trained
    pairs = [
        (*_numbers(str(name)), int(count))
        for name, count in zip(shared["name"], shared["value"], strict=True)
    ]
    pairs += [(b, a, size, of, is_part, count) for a, b, of, size, is_part, count in pairs]
    seen = {
        part: (size, is_part, count)
        for first, part, _, size, is_part, count in pairs
        if count and part in evaluated and _after(loops, part, first, 1 if is_part else 2)
    }
    for part, (size, is_part, count) in seen.items():
        if count == size and len(evaluated) > 1:
            continue
        held = "both Subsets have their indices" if is_part else "both datasets hold their rows"
        loop = loops[loops["value"] == part].iloc[0]
        many = "all" if count == size else f"{units.count(count)} of the"
        return finding_at(
            run,
            rank,
            loop,
            kind="repeated_data",
            confidence="likely",
            title=f"The loop at {loop['name']} evaluates {many} {units.count(size)} samples that "
            f"the training learns from as well: {held}, so the evaluation does not "
            "show how the model does on new data. Split by torch.utils.data.random_split, or check "
            "the slices.",
            where=str(loop["name"]) or None,
            evidence={
                "cause": "evaluated_samples",
                "samples": count,
                "steps": int(loops.loc[loops["value"] == part, "step"].nunique()),
            },
        )
    return None


def _numbers(name: str) -> tuple[int, int, int, int, int]:
    """Two datasets, their sizes, and whether they are Subsets: all were in earlier recordings."""
    first, second, size, other, is_part = (*map(int, name.split("/")), 1)[:5]
    return first, second, size, other, is_part


def _after(loops: pd.DataFrame, part: int, trained: int, times: int) -> bool:
    """Whether iterations over one dataset, in so many steps, come after one that trains with
    another, and no other training between: of folds, each trains a model of its own. Of whole
    datasets a single one may be no evaluation: it takes the features of all samples."""
    last = loops["value"].where(loops["trains"]).ffill()
    own = loops.loc[(loops["value"] == part) & (last == trained), "step"]
    return int(own.nunique()) >= times


def _loops(run: Run, rank: int) -> pd.DataFrame:
    """Iterations over DataLoaders, in their order, and whether a backward comes before the next
    one: time_ns, name (file.py:12), value (of the dataset), trains."""
    loops = logged(run, rank, prefix=LOADER_DATA).sort_values("time_ns", ignore_index=True)
    begun = phases_of_kind(run, schema.PhaseKind.backward, rank)["start_ns"]
    before = begun.searchsorted(loops["time_ns"])
    return loops.assign(trains=pd.Series([*before[1:], len(begun)]) > before)


def left_loops(run: Run) -> list[Finding]:
    """Returns findings of kind `repeated_data`, one per line. Raises NotApplicable."""
    need_loader(run)
    return of_lines(run, LEFT_LOOP, _left_loop, "repeated_data", "left_loop")


def _left_loop(at: str, rest: str, rows: pd.DataFrame) -> str | None:
    loop, batches = rest.rsplit("/", 1)
    epochs = rows["step"].nunique()
    if epochs < _MIN_EPOCHS or int(batches) < 2:
        return None
    return (
        f"The loop over the DataLoader at {loop} returns{at} at the end of its first round, in "
        f"{units.count(epochs)} epochs: one of {units.count(int(batches))} batches of an epoch is "
        "trained on. Move the return behind the loop."
    )


def _finding(
    run: Run, rank: int, first: pd.Series, kind: str, title: str, evidence: dict[str, object]
) -> Finding:
    return finding_at(
        run,
        rank,
        first,
        kind=kind,
        confidence="likely",
        title=title,
        where=phase_place(run, rank, schema.PhaseKind.data.name, None),
        evidence=evidence,
    )


@found_per_series(STALE_DATASET, need_loader)
def stale_datasets(run: Run, name: str, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `repeated_data`, one per attribute. Raises NotApplicable.

    `dataset.epoch = epoch` in the main process does not reach persistent workers that were started
    before it.
    """
    kind, attribute = name.split("/")
    times = int(rows["value"].max())
    if times < _MIN_ITERATIONS:
        return None
    return finding_of_series(
        run,
        rows,
        kind="repeated_data",
        confidence="likely",
        title=f"{kind}.{attribute} is changed in the main process, and the persistent workers of "
        "the DataLoader keep the value that it had as they started, in "
        f"{units.count(times)} epochs: what depends on it is the same in each of them. Set "
        "persistent_workers=False, or hold it in shared memory (torch.zeros(1).share_memory_()).",
        where=phase_place(run, int(rows["rank"].iloc[0]), schema.PhaseKind.data.name, None),
        evidence={"cause": "stale_dataset", "attribute": attribute, "steps": times},
    )
