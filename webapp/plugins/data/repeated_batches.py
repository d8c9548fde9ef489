"""Finds ranks that train on the same batches, and epochs that repeat the order of the one before.

Same batches: at every sampled step all ranks of a group of data-parallel replicas called the model
with the same arguments, bit for bit, these were not the same at each step, and the outputs were the
same too (or dropout made them differ). Where ranks each take a part of the same arguments within
the model, outputs differ. Ranks that sum activations in forward by hand hold parts of one model.

Same order: a DistributedSampler that shuffles was iterated to the end twice or more with backward
in between, always with the same epoch, from which and its seed it computes the order. Or it got
another epoch only during an iteration, which so has the order of the one before.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.names import SAMPLER_END, SAMPLER_EPOCH
from lanescope.webapp.analysis.arrow_columns import phases_of_kind, texts_of
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_ranks, need_rows
from lanescope.webapp.analysis.parameter_history import logged, sharded_names, wrapped
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.plugins.data.batches import BATCH_KEYS, batch_samples, given_to_models
from lanescope.webapp.plugins.learning.replicas import gradient_reductions, replicas
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 3
"""Sampled steps."""

_RANDOM = ("aten::dropout", "aten::native_dropout", "aten::bernoulli_", "aten::rand_like")


def same_batches(run: Run) -> list[Finding]:
    """Returns findings of kind `repeated_data`, one per group of replicas. Raises NotApplicable."""
    need_ranks(run)
    samples = batch_samples(run)
    if sharded_names(run):
        raise NotApplicable("parameters are sharded: ranks may share batches")
    groups = replicas(run)
    if not groups:
        raise NotApplicable("no ranks are known to be data-parallel replicas")
    found = []
    for group, ranks in groups.items():
        if _hold_parts(run, group, ranks[0]):
            continue
        own = samples[samples["rank"].isin(ranks)]
        inputs = given_to_models(own)
        steps = _same_steps(inputs, ranks)
        if len(steps) < _MIN_STEPS or not _same_outputs(run, own, ranks):
            continue
        found.append(_same_batches(run, ranks, steps))
    return found


def _hold_parts(run: Run, group: str, rank: int) -> bool:
    """Whether ranks sum activations: they hold parts of one model, and have to get one input."""
    calls = gradient_reductions(run, group, rank)
    forward = calls["phase"] == schema.PhaseKind.forward.name
    return rank not in wrapped(run) and calls.loc[forward, "step"].nunique() >= _MIN_STEPS


def _same_steps(samples: pd.DataFrame, ranks: tuple[int, ...]) -> list[int]:
    """The sampled steps if all tensors that vary are equal on all ranks at each; else none."""
    keys = ["model", "position"]
    changes = samples.groupby([*keys, "rank"])["hash"].nunique().groupby(level=[0, 1]).min()
    varied = changes.index[changes >= _MIN_STEPS]
    samples = samples[pd.MultiIndex.from_frame(samples[keys]).isin(varied)]
    groups = samples.groupby([*keys, *BATCH_KEYS])
    table = groups.agg(hashes=("hash", "nunique"), ranks=("rank", "nunique")).reset_index()
    if table.empty or (table["hashes"] > 1).any():
        return []
    whole = table[table["ranks"] == len(ranks)]
    return sorted(int(step) for step in whole["step"].unique())


def _same_outputs(run: Run, samples: pd.DataFrame, ranks: tuple[int, ...]) -> bool:
    outputs = samples[samples["what"] == "output"]
    table = outputs.groupby(["model", "position", *BATCH_KEYS])
    shared = table["hash"].nunique()[table["rank"].nunique() == len(ranks)]
    if not len(shared):
        return False
    first = shared[shared.index.get_level_values("step") == samples["step"].min()]
    return bool((first == 1).all()) or any(name in texts_of(run, "op", "name") for name in _RANDOM)


def _same_batches(run: Run, ranks: tuple[int, ...], steps: list[int]) -> Finding:
    rank = ranks[0]
    where = phase_place(run, rank, schema.PhaseKind.forward.name, None)
    at = at_place(where)
    return finding_at(
        run,
        rank,
        steps[0],
        kind="repeated_data",
        confidence="likely",
        title=f"{units.sentence(ranks_in(run, ranks))} train on the same batches: at all "
        f"{units.count(len(steps))} sampled steps they call the model with the same "
        f"input{at}. Give each rank its own part of the data: use DistributedSampler, or seed the "
        "data by rank.",
        ranks=ranks,
        where=where,
        evidence={"cause": "same_on_ranks", "steps": len(steps), "sampled": steps[:20]},
    )


def same_order(run: Run) -> list[Finding]:
    """Returns findings of kind `repeated_data`, one per sampler. Raises NotApplicable."""
    begun = logged(run, None, prefix=SAMPLER_EPOCH)
    need_rows(begun, "no shuffling DistributedSampler was iterated at level access")
    ended = logged(run, None, prefix=SAMPLER_END)
    found: dict[str, list[tuple[int, pd.DataFrame]]] = {}
    for (rank, name), own in begun.groupby(["rank", "name"], observed=True, sort=True):
        mine = ended[(ended["rank"] == rank) & (ended["name"].astype("str") == str(name))]
        trained = _trained(run, int(rank), own.sort_values("time_ns"), mine)
        repeats = trained["value"].diff() == 0
        too_late = repeats & (trained["ended"] != trained["value"])
        if len(trained) > 1 and (repeats[1:].all() or too_late.any()):
            found.setdefault(str(name), []).append((int(rank), trained))
    return [_same_order(run, several) for several in found.values()]


def _trained(run: Run, rank: int, begun: pd.DataFrame, ended: pd.DataFrame) -> pd.DataFrame:
    """The iterations to the last batch during which the rank ran backward; ended: the epoch of the
    sampler at their end."""
    starts = phases_of_kind(run, schema.PhaseKind.backward, rank)["start_ns"].to_numpy()
    ended = ended.sort_values("time_ns")
    ends = ended["time_ns"].to_numpy()
    begins = begun["time_ns"].to_numpy()
    place = np.searchsorted(ends, begins)
    until = np.append(ends, begins[-1:])[np.minimum(place, len(ends))]  # none: no backward fits
    following = np.append(begins[1:], np.iinfo(np.int64).max)
    whole = (place < len(ends)) & (until < following)
    trained = whole & (np.searchsorted(starts, until) > np.searchsorted(starts, begins))
    return begun[trained].assign(ended=ended["value"].to_numpy()[place[trained]])


def _same_order(run: Run, several: list[tuple[int, pd.DataFrame]]) -> Finding:
    rank, trained = several[0]
    repeats = trained["value"].diff() == 0
    second = trained[repeats].iloc[0]
    window = (int(second["time_ns"]), run.duration_ns)
    epoch = int(second["value"])
    title = (
        f"{units.count(len(trained))} epochs use the same order of samples: the epoch of the "
        f"DistributedSampler stays {epoch}. Call sampler.set_epoch(epoch) before each epoch."
    )
    if not repeats[1:].all():
        second = trained[repeats & (trained["ended"] != trained["value"])].iloc[0]
        epoch = int(second["value"])
        title = (
            f"Two epochs use the same order of samples: the DistributedSampler begins both with "
            f"epoch {epoch}, and gets epoch {int(second['ended'])} only within the second one, "
            "when its order is drawn already. Call sampler.set_epoch(epoch) before the loop over "
            "the DataLoader."
        )
    return finding_at(
        run,
        rank,
        second,
        kind="repeated_data",
        title=title,
        ranks=tuple(one for one, _ in several),
        where=phase_place(run, rank, schema.PhaseKind.data.name, window),
        evidence={
            "cause": "same_order",
            "steps": int(repeats.sum()) + 1,
            "epoch": epoch,
        },
    )
