"""A run that goes on with a model that it builds again, under the names of the first one.

A program that resumes from a checkpoint without a new process, or sets a model up again after a
failure, has a second model of the class, whose modules and parameters have names of their own
(`Sequential#2.0.weight`). The other run goes on with its first one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.plugins.diff.pairing.renaming import with_other_texts
from lanescope.webapp.plugins.diff.pairing.resumed import other_update
from lanescope.webapp.runs.run import Run

_MODEL = re.compile(r"(?:(\w+#\d+)\.)?(.*)")
"""The model in the name of a parameter, of all but the first one, and the rest."""


@dataclass(frozen=True)
class _Model:
    """The parameters of a model, and in which steps an optimizer had them."""

    first: int
    last: int
    numels: dict[str, int]


def rebuilt(base: Run, run: Run) -> tuple[Run, Run, list[str]]:
    """Returns both runs, each with the names that the other has, and sentences about the models
    that take the place of others."""
    sides = [_models(one) for one in (base, run)]
    later = [_later(own, other) for own, other in (sides, sides[::-1])]
    base, run = (_with_names(one, names) for one, names in zip((base, run), later, strict=True))
    said = []
    for which, names, models in zip(("baseline", "run"), later, sides, strict=True):
        for name in names:
            step = models[name].first
            said.append(f"since step {step} the {which} trains {name}, a model that it built again")
            lost = other_update(base, run, min({*base.ranks} & {*run.ranks}), step)
            said += [] if lost is None else [lost]
    return base, run, said


def _later(own: dict[str, _Model], other: dict[str, _Model]) -> dict[str, str]:
    """Models of a run -> those whose place they take, with which the other run goes on."""
    found = {}
    for name, model in own.items():
        before = [
            old
            for old, one in own.items()
            if one.last < model.first and one.numels == model.numels and _reaches(other, old, model)
        ]
        if name not in other and before:
            found[name] = max(before, key=lambda old: own[old].last)
    return found


def _reaches(other: dict[str, _Model], name: str, model: _Model) -> bool:
    return name in other and other[name].last >= model.first


@lru_cache(maxsize=4)
def _models(run: Run) -> dict[str, _Model]:
    """The models whose parameters optimizers had; "": that without a name in front."""
    rows = to_frame(run.events("gradient", columns=["step", "parameter", "numel"]))
    names = rows["parameter"].astype("str")
    parts = {name: _MODEL.fullmatch(name) for name in names.unique()}
    owners = {name: (part[1] or "") if part else "" for name, part in parts.items()}
    found = {}
    for owner, own in rows.assign(parameter=names).groupby(names.map(owners), sort=False):
        one = own.drop_duplicates("parameter")
        rests = [name.removeprefix(f"{owner}.") for name in one["parameter"]]
        steps = own["step"].to_numpy(np.int64)
        numels = dict(zip(rests, one["numel"], strict=True))
        found[str(owner)] = _Model(int(steps.min()), int(steps.max()), numels)
    return found


def _with_names(run: Run, names: dict[str, str]) -> Run:
    if not names:
        return run

    def changed(text: str) -> str:
        owner, dot, rest = text.partition(".")
        if owner not in names:
            return text
        before = names[owner]
        if not dot:
            return before or owner.partition("#")[0]  # the model's path is its class
        return f"{before}.{rest}" if before else rest

    columns = ("module", "parameter", "path")
    change: dict[str, Callable[[str], str]] = dict.fromkeys(columns, changed)
    return replace(run, rows=run.rows.changed_by(partial(with_other_texts, change)))
