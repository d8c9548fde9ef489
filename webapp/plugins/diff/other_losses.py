"""Says that the losses of two runs differ: modules return the same, and gradients are others."""

from __future__ import annotations

from math import isfinite
from typing import Any

from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.diff.values.first_layer import FirstLayer
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_ROUNDING = 1e-5
"""Relative difference of gradients that backward may have made, which adds in another order."""

_LAST = 200
"""Operators before backward that are looked at, of the thread that calls it."""

_BEGINS = ("aten::ones_like", "aten::fill_")
"""Make the gradient that backward begins with."""


def loss_notes(
    base: Run, run: Run, layer: FirstLayer | None, first: dict[str, Any] | None
) -> list[str]:
    """Returns a sentence where the first gradients that differ are those of the first step in
    which norms of outputs are recorded, and none of these differs there."""
    if layer is None or first is None or "parameter" not in first:
        return []
    norms = [first[side]["norm"] for side in ("base", "run")]
    known = all(isinstance(one, float) and isfinite(one) for one in norms)
    if known and abs(norms[0] - norms[1]) <= _ROUNDING * max(map(abs, norms)):
        return []
    step, rank = int(first["step"]), int(first["rank"])
    sampled = run.events("activation", rank, columns=["step"])["step"]
    returns_the_same = layer.step >= step if not layer.module else layer.step > step
    if not len(sampled) or min(sampled.to_pylist()) != step or not returns_the_same:
        return []
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
    own = [one for one in last if one["step"] == step and one["name"] not in _BEGINS]
    stacks = [one["stack"] for one in own]
    places = (own_place(run, rank, stack) for stack in reversed(stacks))
    return next(filter(None, places), None)
