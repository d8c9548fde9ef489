"""Finds the first parameter and step at which data-parallel replicas diverge.

After synchronisation every replica has the same gradients, and so the same parameters, bit for bit.
Compared are the recorded hashes of both, on the ranks of a process group that are replicas:

- the group was seen to keep them so: its ranks call a DistributedDataParallel, broadcast at least
  half of the parameters' bytes before the first step (as DDP does), or reduce at least half of the
  gradients' bytes in a step;
- at least half of the elements are equal on all its ranks when they are first hashed, in the
  parameters or, where gradients are reduced, in these. That leaves out sharded, pipelined and
  deliberately different models, which have neither in common.

Gradients of the step after which DistributedDataParallel ended the run, as some of them could not
be reduced, differ because of that: a parameter without gradient is reported by
`dead_parameters`.

A parameter whose hashes never were equal is left out, for the same reason. Nor are ranks that
come together again: those that average their parameters now and then (local SGD) part in between,
and those that hand them to neighbours after each step (gossip) come near by and by.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.collective_calls import group_title
from lanescope.webapp.analysis.findings import Finding, NotRecorded
from lanescope.webapp.analysis.links import and_more, step_bounds, timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_at_access, need_ranks
from lanescope.webapp.analysis.parameter_history import gradient_rows, wrapped
from lanescope.webapp.analysis.process_exits import reduction_unfinished
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.plugins.learning.dead_parameters import dead_parameters
from lanescope.webapp.plugins.learning.divergence_causes import (
    Cause,
    crossed,
    left_whole,
    mixed_parts,
    not_reduced,
    other_group,
    other_order,
    other_settings,
    reduced_too_early,
    skipped_step,
    sums_activations_alone,
    writes,
)
from lanescope.webapp.plugins.learning.replicas import (
    EQUAL_SHARE,
    REDUCES,
    began_equal,
    bytes_of_step,
    changed_apart,
    common_hashes,
    group_calls,
    hand_round,
    hashes,
    meant_equal,
    replicas,
    scaled_apart,
    was_reduced,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_LISTED = 20
_NORMS = ("torch.nn.modules.normalization.LayerNorm", "torch.nn.modules.normalization.RMSNorm")


@dataclass(frozen=True)
class Parting:
    """The first step at which replicas are not equal any more."""

    group: str
    ranks: tuple[int, ...]
    step: int
    what: str  # "gradient" or "parameter"
    last_equal: int | None  # last step at which all was equal
    synchronised: bool  # gradients were reduced in that step
    compared: int  # parameters that are meant to be equal
    rows: pd.DataFrame  # rank, step, time_ns, thread, parameter, hash: all of that step that differ


def rank_divergence(run: Run) -> list[Finding]:
    """Returns findings of kind `rank_divergence`. Raises NotApplicable where nothing can be
    compared."""
    need_ranks(run)
    need_at_access(run, hashes(run), "nothing was hashed")
    if not replicas(run):
        raise NotRecorded("record from the start of the program: no ranks are known to be replicas")
    return [_finding(run, one) for one in partings(run) if not _reported_as_unused(run, one)]


def _reported_as_unused(run: Run, parting: Parting) -> bool:
    return (
        _was_cut_off(run, parting)
        and not_reduced(run, parting.group, parting.ranks, "unknown") is None
        and any(one.evidence["cause"] == "unused" for one in dead_parameters(run))
    )


def _was_cut_off(run: Run, parting: Parting) -> bool:
    """Whether they part in the last step, whose gradients were not all reduced: the next one ended
    the run."""
    return reduction_unfinished(run) and parting.step == int(gradient_rows(run)["step"].max())


@lru_cache(maxsize=4)
def partings(run: Run) -> tuple[Parting, ...]:
    """Returns per group of replicas the first step at which they part; none of equal ones."""
    found = []
    for group, ranks in replicas(run).items():
        rows = hashes(run)
        rows = rows[rows["rank"].isin(ranks)]
        meant = meant_equal(run, group, ranks)
        parts = []
        for order, column in enumerate(("param_hash", "grad_hash")):
            common = common_hashes(rows, ranks, column).reset_index()
            common = common[common["parameter"].isin(meant) & ~common["equal"]]
            if not common.empty:
                parts.append((int(common["step"].min()), order, column, common))
        if not parts:
            continue
        step, _, column, common = min(parts, key=lambda part: part[:2])
        if hand_round(run, ranks) or _come_together(run, group, ranks, meant, step):
            continue
        names = common.loc[common["step"] == step, "parameter"]
        odd = rows[(rows["step"] == step) & rows["parameter"].isin(set(names))]
        before = rows.loc[rows["step"] < step, "step"]
        found.append(
            Parting(
                group,
                ranks,
                step,
                "gradient" if column == "grad_hash" else "parameter",
                None if before.empty else int(before.max()),
                was_reduced(run, group, ranks[0], step),
                len(meant),
                odd.assign(hash=odd[column]),
            )
        )
    return tuple(found)


def first_apart(
    run: Run, ranks: tuple[int, ...], *, of_norms: bool = False
) -> tuple[str, int] | None:
    """Returns a parameter that was equal on the ranks and parted, and the step; None without one.

    Among those of `equal_at_first`.
    """
    common = common_hashes(hashes(run), ranks, "param_hash").reset_index()
    equal = equal_at_first(run, ranks, of_norms=of_norms)
    apart = common[common["parameter"].isin(equal) & ~common["equal"]]
    if apart.empty:
        return None
    first = apart.sort_values("step", kind="stable").iloc[0]
    return str(first["parameter"]), int(first["step"])


def equal_at_first(run: Run, ranks: tuple[int, ...], *, of_norms: bool = False) -> set[str]:
    """Returns parameters that were equal on the ranks, and did not begin as a constant, which may
    be equal by chance; `of_norms`: those of layers that normalise all features as well, which are
    not split."""
    names = began_equal(common_hashes(hashes(run), ranks, "param_hash"))
    modules = to_frame(run.events("module", ranks[0], columns=["path", "class"]))
    whole = set(modules.loc[modules["class"].isin(_NORMS), "path"]) if of_norms else set()
    kept = {name for name in names if name.rpartition(".")[0] in whole}
    return names - (_constant(run) - kept)


def began_random(run: Run, ranks: tuple[int, ...]) -> tuple[set[str], set[str]]:
    """Returns parameters that all ranks hold and that did not begin as a constant: those that are
    always equal, and those that began unequal."""
    common = common_hashes(hashes(run), ranks, "param_hash")
    groups = common.groupby("parameter", sort=False)["equal"]
    constant = _constant(run)
    first, always = groups.first(), groups.all()
    return set(always.index[always]) - constant, set(first.index[~first]) - constant


def parted(run: Run, ranks: tuple[int, ...]) -> tuple[list[str], int]:
    """Returns parameters that began equal, had other gradients from then on, and are equal no more.

    With the step at which they are first seen to differ; none, unless they are at least half of
    the elements of all, and differ at the last hashed step. Constants may be equal by chance.
    """
    rows = hashes(run)
    rows = rows[rows["rank"].isin(ranks)]
    values, slopes = (common_hashes(rows, ranks, name) for name in ("param_hash", "grad_hash"))
    began = began_equal(values) - _constant(run) - began_equal(slopes)
    sizes = values.groupby("parameter", sort=False)["numel"].first()
    apart = values[~values["equal"]].reset_index()
    last = apart.loc[apart["step"] == rows["step"].max(), "parameter"]
    names = [name for name in sizes.index if name in began and name in set(last)]
    if sizes[names].sum() < EQUAL_SHARE * sizes.sum() or not names:
        return [], 0
    return names, int(apart.loc[apart["parameter"].isin(names), "step"].min())


def _constant(run: Run) -> set[str]:
    """Parameters whose first norm is that of all zeros, or of all ones."""
    rows = to_frame(run.events("parameter", columns=["parameter", "norm", "numel", "step"]))
    first = rows.sort_values("step", kind="stable").drop_duplicates("parameter")
    alike = (first["norm"] == 0) | np.isclose(first["norm"] ** 2, first["numel"], rtol=1e-5)
    return set(first.loc[alike, "parameter"])


def _come_together(
    run: Run, group: str, ranks: tuple[int, ...], meant: set[str], parted: int
) -> bool:
    """Whether parameters are equal again later, or may be: were averaged and not hashed after it.

    So it is where gradients alone part. Averaging is a reduction or a broadcast of at least half of
    their bytes outside of backward.
    """
    rows = hashes(run)
    common = common_hashes(rows, ranks, "param_hash").reset_index()
    common = common[common["parameter"].isin(meant) & (common["step"] >= parted)]
    equal = common.groupby("step")["equal"].all()
    later = equal[equal.index > parted]
    if len(later) and (equal.all() or later[later.index > equal.idxmin()].any()):
        return True
    calls = group_calls(run, group, ranks[0], (*REDUCES, "broadcast"))
    first = rows.loc[rows["rank"] == ranks[0], "time_ns"].min()
    at_start = (calls["name"] == "broadcast") & (calls["start_ns"] < first)
    calls = calls[(calls["phase"] != schema.PhaseKind.backward.name) & ~at_start]
    moved = calls.groupby("step")["bytes"].sum()
    enough = moved >= EQUAL_SHARE * bytes_of_step(run, ranks[0])
    averaged = set(moved.index[enough])
    # What happens in every step is how gradients are synchronised by hand.
    now_and_then = (
        bool(averaged) and max(averaged) >= parted and not set(rows["step"]) - {parted} <= averaged
    )
    return now_and_then and not any(_not_after_all(run, rows, ranks[0], calls, later.index))


def _not_after_all(
    run: Run, rows: pd.DataFrame, rank: int, calls: pd.DataFrame, steps: pd.Index[Any]
) -> Iterator[bool]:
    """Of each step whether averaging went before its hashes, with no optimizer step in between."""
    mine = rows[rows["rank"] == rank]
    for step in steps:
        before = step_bounds(run, rank, int(step) - 1)
        since = before[1] if before is not None else 0
        until = mine.loc[mine["step"] == step, "time_ns"].min()
        between = calls["start_ns"].between(since, until)
        yield bool(calls.loc[between, "bytes"].sum() >= EQUAL_SHARE * bytes_of_step(run, rank))


def _finding(run: Run, parting: Parting) -> Finding:
    rows = parting.rows
    names = list(dict.fromkeys(rows["parameter"]))
    first = rows[rows["parameter"] == names[0]].sort_values("rank")
    mine = first.iloc[0]
    time = int(first["time_ns"].min())
    window = step_bounds(run, int(mine["rank"]), parting.step) or (time, time + 1)
    more = and_more(len(names), "parameter").replace(" and ", " and of ")
    cause = _cause(run, parting, names)
    where = cause.where or _where(run, int(mine["rank"]), parting)
    what = "gradient" if parting.what == "gradient" else "value"
    return Finding(
        kind="rank_divergence",
        severity="error",
        title=f"{units.sentence(ranks_in(run, parting.ranks))} diverge at step {parting.step}: "
        f"the {what} of {names[0]}{more} differs. {cause.words}",
        rank=int(mine["rank"]),
        ranks=parting.ranks,
        thread=str(mine["thread"]),
        step=parting.step,
        time_ns=time,
        where=where,
        evidence={**_evidence(run, parting, names, first), "left_out": list(cause.parameters)},
        link=timeline_address(*window, run.duration_ns),
    )


def _cause(run: Run, parting: Parting, names: list[str]) -> Cause:
    known = (
        not_reduced(run, parting.group, parting.ranks, "unknown")
        or not_reduced(run, parting.group, parting.ranks, "ignored", names)
        or not_reduced(run, parting.group, parting.ranks, "unfrozen", names)
        or left_whole(run, names)
        or crossed(run, parting.ranks)
    )
    if known is None and parting.what == "gradient":
        scaled = scaled_apart(run, parting.rows) if parting.synchronised else None
        known = (scaled and Cause(*scaled)) or sums_activations_alone(
            run, parting.group, parting.ranks, parting.step
        )
    if known is None and parting.what == "parameter":
        known = other_settings(run, parting.ranks, parting.step)
        if known is None and parting.last_equal is None:
            known = mixed_parts(run, parting.ranks, parting.rows) or other_group(
                run, parting.group, parting.ranks, parting.rows
            )
        known = known or writes(run, parting.ranks, names, _since_equal(run, parting))
    elif known is None and parting.synchronised and not _was_cut_off(run, parting):
        known = other_order(parting.rows) or reduced_too_early(
            run, parting.group, parting.ranks[0], parting.step
        )
        changed = changed_apart(run, parting.group, parting.rows, names[0])
        known = known or (changed and Cause(*changed))
    if known is None and parting.last_equal is not None:
        known = skipped_step(run, parting.ranks, parting.step)
    if known is not None:
        return known
    whole = len(names) == parting.compared
    if parting.last_equal is None and parting.what == "parameter":
        words = "It was never equal: broadcast it from one rank at the start."
    elif _was_cut_off(run, parting):
        words = (
            "Not all were reduced, as the loss does not depend on one of the parameters, and that "
            "is what ended this run: set find_unused_parameters=True in DistributedDataParallel."
        )
    elif parting.what == "gradient" and not parting.synchronised:
        words = (
            "Nothing was reduced in that step: call the DDP wrapper, not the module in it, and "
            "let the last backward of a step run outside of no_sync()."
        )
    elif parting.what == "gradient" and parting.ranks[0] not in wrapped(run) and whole:
        words = (
            "Gradients were reduced by hand in that step, but none is equal as the optimizer uses "
            "them: hand all_reduce() the gradient itself rather than a copy, or write the result "
            "back; wait for it, and do the same on all ranks afterwards."
        )
    elif not whole:
        words = "The others are equal: check that it is synchronised as they are."
    else:
        words = "No parameter is equal any more: compare what the ranks do in that step."
    return Cause(words)


def _since_equal(run: Run, parting: Parting) -> dict[int, tuple[int, int]]:
    """From when to when each rank's parameters parted. Those that never were equal did so after the
    last broadcast, which the wrapper of a model makes of them."""
    rows = hashes(run)
    windows = {}
    for rank in parting.ranks:
        times = rows[rows["rank"] == rank].groupby("step")["time_ns"].min()
        until = int(times[parting.step])
        sent = group_calls(run, parting.group, rank, ("broadcast",))["start_ns"]
        before = [int(sent[sent < until].max()) + 1] if (sent < until).any() else [until]
        known = times[times.index == parting.last_equal].to_list()
        windows[rank] = (int((known or before)[0]), until)
    return windows


def _where(run: Run, rank: int, parting: Parting) -> str | None:
    """The line that runs backward in the step, or that steps the optimizer."""
    gradient = parting.what == "gradient"
    kinds = (schema.PhaseKind.backward, schema.PhaseKind.optimizer)
    window = step_bounds(run, rank, parting.step)
    places = (
        phase_place(run, rank, kind.name, within)
        for kind in (kinds if gradient else reversed(kinds))
        for within in (window, None)
    )
    return next(filter(None, places), None)


def _evidence(run: Run, parting: Parting, names: list[str], first: pd.DataFrame) -> dict[str, Any]:
    return {
        "group": parting.group,
        "group_title": group_title(run, parting.group),
        "parameter": names[0],
        "what": parting.what,
        "parameters": names[:_LISTED],
        "differing": len(names),
        "compared": parting.compared,
        "last_equal_step": parting.last_equal,
        "gradients_reduced": parting.synchronised,
        "hash": {
            str(rank): f"{int(value) & (1 << 64) - 1:016x}"
            for rank, value in zip(first["rank"], first["hash"], strict=True)
        },
    }
