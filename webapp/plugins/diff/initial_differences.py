"""Says of two runs in which other parameters or modes they begin, which random numbers one draws
beside those that both draw, which updates differ first, and that their losses differ.

From a call on that one run draws random numbers by, torch's generator is in another state, so
weights, dropout and the order of data are others although the seed is the same. Losses differ where
modules return the same, and gradients are others.
"""

from __future__ import annotations

import re
from collections import Counter
from math import isfinite
from typing import Any, NamedTuple

import pandas as pd
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.names import EVALUATION_MODE, TRAINING_MODE
from lanescope.webapp.analysis.access_site import draws_of_generators
from lanescope.webapp.analysis.arrow_columns import ops_named, stack_of
from lanescope.webapp.analysis.links import at_place, step_bounds
from lanescope.webapp.analysis.parameter_history import logged, samples
from lanescope.webapp.analysis.stack_frames import (
    first_place,
    own_frames,
    own_place,
    phase_place,
)
from lanescope.webapp.plugins.diff.values.first_layer import FirstLayer
from lanescope.webapp.plugins.diff.values.precision import precision_note
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_APART = 1e-6
"""Relative difference of norms. They may be added up in another order."""

_KEYS = ["rank", "parameter", "dtype", "numel"]
_MODES = ("evaluation", "training")
_USES = {TRAINING_MODE: "trained", EVALUATION_MODE: "called without gradients"}
"""What is done with a model, by the series of its modes."""


def start_notes(base: Run, run: Run) -> list[str]:
    """Returns sentences about modes and first parameters that differ."""
    return [*_modes(base, run), *_parameters(base, run)]


def _modes(base: Run, run: Run) -> list[str]:
    for series, use in _USES.items():
        sides = [_by_step(one, series) for one in (base, run)]
        for name in sides[0].columns.intersection(sides[1].columns):
            both = pd.concat([side[name] for side in sides], axis=1).ffill().dropna()
            apart = both[both.iloc[:, 0] != both.iloc[:, 1]]
            if len(apart):
                was, now = (_MODES[int(one)] for one in apart.iloc[0])
                return [
                    f"the mode differs: {units.printable(str(name))} is {use} in {now} mode since "
                    f"step {int(apart.index[0])}, and in {was} mode in the baseline: eval() or "
                    "train() is called in one of them alone"
                ]
    return []


def _by_step(run: Run, series: str) -> pd.DataFrame:
    """Step -> the last mode of each model, of the lowest rank; only where one changes."""
    rows = logged(run, min(run.ranks), prefix=series)
    rows = rows.astype({"name": "str"}).sort_values("time_ns", kind="stable")
    return rows.drop_duplicates(["step", "name"], keep="last").pivot(
        index="step", columns="name", values="value"
    )


def _parameters(base: Run, run: Run) -> list[str]:
    sides = [_first_norms(one) for one in (base, run)]
    both = sides[0].merge(sides[1], on=_KEYS, suffixes=("_base", "_run"))
    low, high = both["norm_base"], both["norm_run"]
    apart = both[(low - high).abs() > _APART * low.abs().clip(lower=_APART)]
    if apart.empty:
        return []
    first = apart.iloc[0]
    return [
        f"the first parameters differ: {units.count(len(apart))} of {units.count(len(both))} "
        f"before the first step, {units.printable(str(first['parameter']))} at first: its norm "
        f"{first['norm_base']:.9g} became {first['norm_run']:.9g}; compare the seed, the "
        "initialisation and the state that is loaded"
    ]


def _first_norms(run: Run) -> pd.DataFrame:
    """The norms of trained parameters before the first step of their optimizer."""
    rows = samples(run)
    rows = rows[(rows["call"] == 0) & (rows["optimizer"] >= 0) & rows["norm"].notna()]
    rows = rows.drop_duplicates(["rank", "parameter"])[[*_KEYS, "norm"]]
    return rows.astype({"parameter": "str", "dtype": "str"})


_OTHER_UPDATE = 1e-3
"""Relative difference of updates, which may be rounded otherwise."""


def update_notes(base: Run, run: Run) -> list[str]:
    """Returns a sentence about the first updates that differ where parameters and gradients, as far
    as norms say, do not."""
    columns = [*_KEYS, "step", "optimizer", "call"]
    rows = samples(base).merge(samples(run), on=columns, suffixes=("_base", "_run"))
    rows = rows[rows["optimizer"] >= 0].dropna(subset=["update_ratio_base", "update_ratio_run"])
    same = pd.Series(True, index=rows.index)
    for name in ("norm", "grad_norm"):
        same &= (rows[f"{name}_base"] - rows[f"{name}_run"]).abs() <= _APART * rows[f"{name}_base"]
    was, now = rows["update_ratio_base"], rows["update_ratio_run"]
    other = (was - now).abs() > _OTHER_UPDATE * was
    if not other.any() or not same[rows["step"] <= rows.loc[other, "step"].min()].all():
        return []
    rows = rows[other & (rows["step"] == rows.loc[other, "step"].min())]
    first, rank = rows.iloc[0], int(rows["rank"].min())
    step = int(first["step"])
    optimizer = schema.PhaseKind.optimizer.name
    place = at_place(phase_place(run, rank, optimizer, step_bounds(run, rank, step)))
    return [
        f"the first update that differs is that of step {step}{units.printable(place)}: parameters "
        f"and gradients are the same, and that of {units.printable(str(first['parameter']))} is "
        f"{units.number(float(now[first.name] / was[first.name]))} times as large: compare the "
        "optimizer's state (is it loaded in both runs?) and its settings"
    ]


_DRAW = re.compile(
    r"aten::(bernoulli_|exponential_|multinomial|native_dropout|normal_|random_|randperm|uniform_)"
)
_EXTRA, _FOLLOWING = 16, 8
"""Draws of one run in a row, and later ones that have to be the same in both runs."""

_AHEAD = 2
"""Steps after the first difference whose draws prove that one up to it is left out."""


class _Draw(NamedTuple):
    key: tuple[str, str]  # operator, shapes
    step: int
    stack: int | None


def draws_notes(base: Run, run: Run, first: dict[str, Any] | None) -> list[str]:
    """Returns a sentence about the first call that one run makes alone, up to the step of the first
    difference; none where the order of calls does not prove one."""
    if first is None or first["rank"] not in base.ranks:
        return []
    rank, step = int(first["rank"]), int(first["step"])
    was, now = (_draws(one, rank, step + _AHEAD) for one in (base, run))
    at = next(
        (at for at, pair in enumerate(zip(was, now, strict=False)) if pair[0].key != pair[1].key),
        None,
    )
    if at is None:
        return []
    for one, draws, others, names in (
        (run, now, was, ("run", "baseline")),
        (base, was, now, ("baseline", "run")),
    ):
        later = [draw.key for draw in others[at : at + _FOLLOWING]]
        known = [draw.key for draw in draws[at + 1 : at + _EXTRA + _FOLLOWING]]
        extra = (known[more : more + len(later)] for more in range(_EXTRA))
        if draws[at].step <= step and later and (later in extra or _again(draws, others, at)):
            draw = _own_draw((one, draws), (base if one is run else run, others), rank, at)
            shown = f"{draw.key[0]}{at_place(own_place(one, rank, draw.stack))}"
            return [
                f"the {names[0]} draws random numbers that the {names[1]} does not, "
                f"{units.printable(shown)} in step {draw.step}: all that it draws later are "
                "others"
            ]
    return []


def _own_draw(
    side: tuple[Run, list[_Draw]], other: tuple[Run, list[_Draw]], rank: int, at: int
) -> _Draw:
    """Returns the draw that one run makes alone: of equal calls in a row up to `at`, that of a
    function that draws less often in the other one."""
    run, draws = side
    start = at
    while start and draws[start - 1].key == draws[at].key:
        start -= 1
    known = Counter(_function(other[0], rank, one) for one in other[1][start:at])
    for draw in draws[start:at]:
        function = _function(run, rank, draw)
        if not known[function]:
            return draw
        known[function] -= 1
    return draws[at]


def _function(run: Run, rank: int, draw: _Draw) -> str:
    frames = own_frames(run, rank, draw.stack)
    return frames[0]["function"] if frames else ""


def _again(draws: list[_Draw], others: list[_Draw], at: int) -> bool:
    """Whether one run draws in each step what another one draws, and more, from a call on."""
    steps = {draw.step for draw in draws[at:]} & {draw.step for draw in others[at:]}
    for step in steps:
        known, own = (
            [draw.key for draw in side[at:] if draw.step == step] for side in (draws, others)
        )
        rest = iter(known)
        if len(own) >= len(known) or not all(key in rest for key in own):
            return False
    return len(steps) > 1


def _draws(run: Run, rank: int, until_step: int) -> list[_Draw]:
    """Calls of the first thread of a rank that draws numbers from the default generator, in their
    order."""
    columns = ["start_ns", "name", "shapes", "step", "stack"]
    for thread in run.threads_of(rank):
        ops = ops_named(run, rank, thread.thread, columns, _DRAW.fullmatch)
        own = ops[ops["step"] <= until_step]
        if len(own):
            own = own[~own["start_ns"].isin(draws_of_generators(run, rank, thread.thread))]
            return [
                _Draw((str(op["name"]), str(op["shapes"])), int(op["step"]), stack_of(op))
                for _, op in own.iterrows()
            ]
    return []


_ROUNDING = 1e-5
"""Relative difference of gradients that backward may have made, which adds in another order."""

_LAST = 200
"""Operators before backward that are looked at, of the thread that calls it."""

_BEGINS = ("aten::ones_like", "aten::fill_")
"""Make the gradient that backward begins with."""


def _largest_norm(run: Run, rank: int, step: int) -> float:
    """Returns the largest gradient norm of a step: a gradient that cancels out, as that of a bias
    before batch normalisation, is the rounding of others."""
    rows = run.events("gradient", rank, columns=["step", "norm"])
    own = pc.max(rows.filter(pc.equal(rows["step"], step))["norm"]).as_py()
    return own if own is not None and isfinite(own) else 0.0


def loss_notes(
    base: Run,
    run: Run,
    layer: FirstLayer | None,
    first: dict[str, Any] | None,
    gradients: pd.DataFrame,
) -> list[str]:
    """Returns a sentence where the first gradients that differ are those of the first step in
    which norms of outputs are recorded, and none of these differs there."""
    if layer is None or first is None or "parameter" not in first or precision_note(base, run):
        return []
    norms = [first[side]["norm"] for side in ("base", "run")]
    known = all(isinstance(one, float) and isfinite(one) for one in norms)
    step, rank = int(first["step"]), int(first["rank"])
    if known and abs(norms[0] - norms[1]) <= _ROUNDING * _largest_norm(base, rank, step):
        return []
    sampled = run.events("activation", rank, columns=["step"])["step"]
    returns_the_same = layer.step >= step if not layer.module else layer.step > step
    if not len(sampled) or min(sampled.to_pylist()) != step or not returns_the_same:
        return []
    same = (gradients["rank"] == rank) & (gradients["step"] == step)
    states = gradients.loc[same, "state"]
    apart = int((states != "identical").sum())
    if apart < len(states):
        return [
            f"all modules return outputs of the same norm in step {step}, and the gradients of "
            f"{apart} of {len(states)} parameters differ, the others do not: compare hooks on "
            "these parameters, terms of the loss that they alone are in, and what changes "
            "gradients after backward"
        ]
    places = [_loss_place(one, rank, step) for one in (run, base)]
    at = f", at {places[0]}" if places[0] else ""
    was = f" and at {places[1]} in the baseline" if at and places[1] else ""
    return [
        f"all modules return outputs of the same norm in step {step}, and the gradients differ: "
        f"compare the losses{units.printable(at + was)}: targets, weights of classes or samples, "
        "what they are divided by, and what changes gradients after backward"
    ]


def _loss_place(run: Run, rank: int, step: int) -> str | None:
    """Returns file.py:12 of the last operator before the first backward of a step."""
    phases = run.events("phase", rank, columns=["kind", "step", "start_ns", "thread"]).to_pylist()
    found = [one for one in phases if one["kind"] == "backward" and one["step"] == step]
    if not found:
        return None
    begin = min(found, key=lambda one: one["start_ns"])
    window = 0, int(begin["start_ns"])
    columns = ["stack", "step", "name"]
    ops = run.events("op", rank, str(begin["thread"]), columns=columns, window=window)
    last = ops.slice(max(len(ops) - _LAST, 0)).to_pylist()
    own = [one for one in reversed(last) if one["step"] == step and one["name"] not in _BEGINS]
    return first_place(run, rank, (one["stack"] for one in own))
