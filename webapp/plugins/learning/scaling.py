"""Checks the gradient scaler: skipped steps and loss scale.

A scaler that begins too high skips a few steps, and later one now and then when it tries a higher
scale. It has collapsed where

- SKIPPED_IN_A_ROW steps in a row are skipped, later than its first ones or as all there are, or
- the scale falls below MIN_SCALE: then it magnifies nothing any more, and small gradients
  underflow, or
- from SETTLING updates after the first step that was taken on, more than SKIPPED_SHARE of the steps
  are skipped.

Gradients that are clipped while they are still scaled are left with next to nothing when they are
unscaled: what the optimizer uses, times the scale, has the norm that they were clipped to.

An optimizer that steps by itself, MIN_DIRECT times or more, uses scaled gradients as they are.

Without a scaler, gradients of a backward in float16 are rounded away where half of the parameters
or more have none above _SUBNORMAL, and a tenth of all elements are zeros of these.

Adam divides by `sqrt(v) + eps` in the dtype of the parameters. In float16 squares of small
gradients are 0, and so is a small eps: `0 / 0` is NaN. Fused optimizers compute in float32.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from lanescope.collector.format.loop_names import SCALED_STEP
from lanescope.collector.format.names import (
    CLIP_LIMIT,
    CLIP_NORM,
    LOSS_SCALE,
    SETTINGS,
    SKIPPED_STEPS,
)
from lanescope.webapp.analysis.arrow_columns import having, to_frame
from lanescope.webapp.analysis.fault_series import ranks_of
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.links import and_more, at_place, timeline_address
from lanescope.webapp.analysis.parameter_history import clip_place, gradient_rows, logged, samples
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

SKIPPED_IN_A_ROW = 15  # steps; 65536 halved so often is 2
MIN_SCALE = 1.0
SETTLING = 20  # updates, from the first whose step was taken
SKIPPED_SHARE = 0.2  # of the updates after these
MIN_UPDATES = 20  # for a share of them
MIN_DIRECT = 3  # steps
MIN_CLIPPED = 3  # steps at which gradients were clipped
MAGNIFIES = 4.0  # a smaller scale looks like no scale
_AS_LARGE = 0.01  # relative difference of norms
_LISTED = 20  # parameters named in the evidence

_HALF = "float16"
_ROUNDED_AWAY = 2.0**-25
"""Half of the smallest number of float16."""

_SUBNORMAL = 2.0**-14
"""Below it numbers of float16 have fewer and fewer digits."""
_LOW_SHARE, _LOST_SHARE, _LOW_STEPS = 0.5, 0.1, 3

_RULES = ("Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop")
"""Optimizers of torch that divide by a root of squares plus eps."""

_EPS = re.compile(rf"({'|'.join(_RULES)}) (\d+), group (\d+), eps")

UNDERFLOWS = (
    "Backward computes in float16, where numbers below 6e-8 are zero: scale the loss with "
    "torch.amp.GradScaler, or use bfloat16."
)


def underflows(run: Run, rank: int) -> bool:
    """Returns whether backward of a rank works in float16, on a loss that no scaler scales."""
    if len(logged(run, rank, LOSS_SCALE)):
        return False
    ops = run.events("op", rank, columns=["dtypes", "phase"])
    halves = having(ops["dtypes"], lambda dtypes: "float16" in dtypes.split())
    return bool((halves & having(ops["phase"], lambda phase: phase.startswith("backward"))).any())


def rounded_gradients(run: Run) -> list[Finding]:
    """Returns findings of kind `vanishing_gradient`, at most one per rank."""
    rows = samples(run)
    rows = rows[(rows["optimizer"] >= 0) & ~rows["missing"]]
    rows = rows.assign(low=rows["grad_max"] < _SUBNORMAL)
    rows = rows.assign(lost=rows["grad_zeros"].fillna(0) * rows["numel"] * rows["low"])
    found = []
    for rank, own in rows.groupby("rank", sort=True):
        steps = own.groupby("step")
        lost = steps["lost"].sum() / steps["numel"].sum()
        few = (lost >= _LOST_SHARE) & (steps["low"].mean() >= _LOW_SHARE) & (steps["low"].sum() > 1)
        few &= steps["grad_norm"].max() > 0  # all zero is another finding
        if few.sum() < max(_LOW_STEPS, len(few) / 2) or not underflows(run, int(rank)):
            continue
        step = int(few.index[few][0])
        at = own[(own["step"] == step) & own["low"]].sort_values("grad_zeros", ascending=False)
        names = [str(one) for one in at["parameter"]]
        found.append(
            finding_at(
                run,
                int(rank),
                step,
                kind="vanishing_gradient",
                confidence="likely",
                title=f"{units.share(float(lost[few].mean()))} of the elements of all gradients "
                f"are rounded to zero, most of {names[0]}{and_more(len(names), 'parameter')} "
                f"(since step {step}). {UNDERFLOWS}",
                evidence={"cause": "float16", "parameters": names[:_LISTED]},
            )
        )
    return found


def zero_eps(run: Run, rank: int, parameters: list[str]) -> str | None:
    """Returns what to say of the first optimizer of some parameters whose eps is 0 in float16."""
    rows = samples(run)
    rows = rows[(rows["rank"] == rank) & rows["parameter"].isin(parameters)]
    halves = rows[(rows["dtype"] == _HALF) & rows["rule"].isin(_RULES)]
    settings = logged(run, rank, prefix=SETTINGS)
    values = dict(zip(settings["name"].astype("str"), settings["value"], strict=True))
    for name, eps in values.items():
        found = _EPS.fullmatch(name)
        fused = values.get(name.removesuffix("eps") + "fused", 0.0)
        if found is None or fused or not 0 <= eps <= _ROUNDED_AWAY:
            continue
        if ((halves["rule"] == found[1]) & (halves["optimizer"] == int(found[2]))).any():
            return (
                f"The parameters are in float16, where eps={eps:g} of {found[1]} is 0: a step "
                "divides 0 by 0. Keep them in float32 and compute in float16 by torch.autocast, or "
                "pass eps=1e-4."
            )
    return None


def scaler_skips(run: Run) -> list[Finding]:
    """Returns findings of kind `scaler_skips`, at most one. Raises NotApplicable."""
    scales, skips = logged(run, None, LOSS_SCALE), logged(run, None, SKIPPED_STEPS)
    if scales.empty:
        raise NotApplicable("the program uses no gradient scaler")
    found = []
    for rank, updates in scales.groupby("rank", sort=True):
        why = _collapsed(updates, skips[skips["rank"] == rank])
        if why is not None:
            found.append((int(rank), *why))
    if not found:
        return []
    rank, words, at = found[0]
    mine = skips[skips["rank"] == rank]
    where = _where(run, rank)
    more = and_more(len(where), "parameter")
    place = f". The gradients of {where[0]}{more} were not finite" if where else ""
    time = int(at["time_ns"])
    return [
        finding_at(
            run,
            rank,
            at,
            kind="scaler_skips",
            severity="error",
            title=f"The loss scale collapses at step {int(at['step'])}: {words}{place}. Lower the "
            "learning rate, or record with --level numerics to find the operator that overflows.",
            ranks=tuple(one[0] for one in found),
            evidence={
                "skipped": len(mine),
                "updates": int((scales["rank"] == rank).sum()),
                "scale": float(scales.loc[scales["rank"] == rank, "value"].iloc[-1]),
                "parameters": where[:_LISTED],
            },
            link=timeline_address(time, time, run.duration_ns),
        )
    ]


def still_scaled(run: Run) -> list[Finding]:
    """Returns findings of kind `exploding_gradient`, one per optimizer's class and line. Raises
    NotApplicable."""
    rows = logged(run, None, prefix=SCALED_STEP)
    if rows.empty and logged(run, None, LOSS_SCALE).empty:
        raise NotApplicable("the program uses no gradient scaler")
    found = []
    for name, own in rows[rows["value"] >= MAGNIFIES].groupby("name", sort=False, observed=True):
        own = own.sort_values("time_ns")
        ranks = ranks_of(own)
        own = own[own["rank"] == ranks[0]]
        if len(own) < MIN_DIRECT:
            continue
        where, kind = str(name).split("/")
        first = own.iloc[0]
        step, scale = int(first["step"]), float(first["value"])
        found.append(
            finding_at(
                run,
                ranks[0],
                first,
                kind="exploding_gradient",
                severity="error",
                title=f"{kind}.step(){at_place(where)} uses gradients that are still "
                f"scaled by {scale:g}, in {units.count(len(own))} steps since step {step}: "
                "GradScaler.scale() scaled the loss, and nothing unscaled them. Call "
                "scaler.step(optimizer) and scaler.update() in place of optimizer.step().",
                ranks=ranks,
                where=where or None,
                evidence={"cause": "still_scaled", "scale": scale, "steps": len(own)},
            )
        )
    return found


def clipped_while_scaled(run: Run) -> list[Finding]:
    """Returns findings of kind `vanishing_gradient`, at most one. Raises NotApplicable."""
    found = {}
    asked = False
    for rank in run.ranks:
        scales, clips = logged(run, rank, LOSS_SCALE), logged(run, rank, CLIP_NORM)
        if scales.empty or clips.empty:
            continue
        asked = True
        steps = _clipped_steps(run, rank, scales, clips)
        wrong = steps[(steps["left"] * steps["scale"] / steps["limit"] - 1).abs() < _AS_LARGE]
        if len(wrong) >= max(MIN_CLIPPED, len(steps) / 2):
            found[rank] = wrong.iloc[0]
    if not asked:
        raise NotApplicable("the program uses no gradient scaler, or clips nothing")
    if not found:
        return []
    rank, at = next(iter(found.items()))
    step, scale = int(at["step"]), float(at["scale"])
    left, limit = float(at["left"]), float(at["limit"])
    return [
        finding_at(
            run,
            rank,
            step,
            kind="vanishing_gradient",
            severity="error",
            title=f"Gradients are clipped to {units.number(limit)} while they are still scaled by "
            f"{scale:g}, and then unscaled: since step {step} a norm of {units.number(left)} is "
            "left. Call scaler.unscale_(optimizer) before clip_grad_norm_.",
            ranks=tuple(found),
            where=clip_place(run, rank),
            evidence={
                "cause": "clipped_while_scaled",
                "scale": scale,
                "max_norm": limit,
                "norm": left,
            },
        )
    ]


def _clipped_steps(run: Run, rank: int, scales: pd.DataFrame, clips: pd.DataFrame) -> pd.DataFrame:
    """Steps of optimizers whose gradients were clipped, in time: step, left (norm that they used),
    limit, scale.
    """
    rows = gradient_rows(run)
    rows = rows[(rows["rank"] == rank) & ~rows["missing"]]
    groups = rows.assign(square=rows["norm"] ** 2).groupby("time_ns")
    steps = groups.agg(step=("step", "first"), left=("square", "sum")).reset_index()
    steps["left"] = np.sqrt(steps["left"])
    clips = clips.rename(columns={"value": "total"})[["time_ns", "total"]]
    # A limit is logged with each norm, at the same instant.
    limits = logged(run, rank, CLIP_LIMIT).drop_duplicates("time_ns").set_index("time_ns")["value"]
    clips = clips.assign(limit=clips["time_ns"].map(limits), clipped_ns=clips["time_ns"])
    before = scales.rename(columns={"value": "scale"})[["time_ns", "scale"]]
    clips = pd.merge_asof(clips.sort_values("time_ns"), before.sort_values("time_ns"))
    steps = pd.merge_asof(steps, clips, on="time_ns")
    own = steps["clipped_ns"] > steps["time_ns"].shift(fill_value=0)  # since the step before
    clipped = (steps["total"] > steps["limit"]) & (steps["scale"] >= MAGNIFIES)
    return steps[own & clipped]


def _collapsed(updates: pd.DataFrame, skips: pd.DataFrame) -> tuple[str, pd.Series] | None:
    """Why a rank's scaler has collapsed, and the row at which it showed."""
    updates = updates.sort_values("time_ns")
    # Each update belongs to the step, or to the skip, since the one before.
    before = np.searchsorted(updates["time_ns"], np.sort(skips["time_ns"].to_numpy()))
    skipped = np.zeros(len(updates) + 1, bool)
    skipped[before] = True
    skipped = skipped[: len(updates)]
    taken = np.flatnonzero(~skipped)
    begin = int(taken[0]) if len(taken) else 0  # however far it has to come down at first
    row = 0
    for position, one in list(enumerate(skipped))[begin:]:
        row = row + 1 if one else 0
        if row == SKIPPED_IN_A_ROW:
            first = updates.iloc[position - row + 1]
            return f"{SKIPPED_IN_A_ROW} steps in a row were skipped", first
    low = updates[updates["value"] < MIN_SCALE]
    if not low.empty:
        return f"it is below {MIN_SCALE:g}, and magnifies nothing", low.iloc[0]
    late = skipped[begin + SETTLING :]
    if len(late) >= MIN_UPDATES and late.mean() > SKIPPED_SHARE:
        share = float(late.mean())
        words = f"{share:.0%} of the steps were skipped after it had {SETTLING} to settle"
        return words, updates.iloc[begin + SETTLING + int(np.argmax(late))]
    return None


def _where(run: Run, rank: int) -> list[str]:
    """Parameters whose gradients were not finite when steps were skipped, the most often first."""
    rows = to_frame(run.events("parameter", rank, columns=["parameter", "skipped"]))
    counts = rows.loc[rows["skipped"].astype(bool), "parameter"].value_counts()
    return [str(name) for name in counts.index]
