"""In what settings of the program do two runs differ? Optimizers, seeds, flags, versions.

What recordings do not hold is not compared: other variables of the environment, and settings
that a program keeps to itself.
"""

from __future__ import annotations

import re

import pandas as pd

from lanescope.collector.format.loop_names import BLEND_FACTOR
from lanescope.collector.format.names import (
    CLIP_LIMIT,
    CLIP_VALUE,
    ENVIRONMENT,
    MATMUL_PRECISION,
    MATMUL_PRECISIONS,
    SETTING_FLAGS,
    SETTINGS,
)
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import place_before
from lanescope.webapp.plugins.diff.pairing.resumed import later_start
from lanescope.webapp.plugins.diff.values.generator_states import states_apart
from lanescope.webapp.plugins.diff.values.precision import precision_note
from lanescope.webapp.plugins.diff.values.world_sizes import shares_differ
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_CLIPS = {
    CLIP_LIMIT: "max_norm of clip_grad_norm_",
    CLIP_VALUE: "clip_value of clip_grad_value_",
}
_GROUP = re.compile(r"(.+), group (\d+), (.+)")
_OF_LAUNCHERS = ("TORCH_NCCL_ASYNC_ERROR_HANDLING",)
"""Variables that torchrun sets for its workers."""

_RANKS = 8
"""Ranks whose settings are compared where those of the lowest one are the same."""

_LISTED = 6
"""Settings, or words of a command, named in one sentence."""


def settings_notes(base: Run, run: Run) -> list[str]:
    """Returns sentences about settings that differ, the program's own first, then versions."""
    resumes = later_start(base) is not None
    own = [_settings(one, min(one.ranks), rates=not resumes) for one in (base, run)]
    groups = [_groups(one) for one in own]
    if groups[0] == groups[1]:  # their order does not matter
        own = [{name: one[name] for name in one if not _GROUP.match(name)} for one in own]
    apart = [
        f"{_short(name)} {_number(name, own[0][name])} became {_number(name, own[1][name])}"
        for name in own[0]
        if name in own[1] and own[0][name] != own[1][name]
    ]
    if all(own):
        apart += [*_alone(own[0], own[1], "baseline"), *_alone(own[1], own[0], "run")]
        apart += _environment(base, run)
        apart = apart or _of_other_ranks(base, run, rates=not resumes)
    notes = [f"settings differ: {_listed(apart)}"] if apart else []
    # Shares of a batch are weighed by their number.
    notes += [] if apart or resumes or shares_differ(base, run) else _factors(base, run)
    precision = precision_note(base, run)
    notes += [precision] if precision else []
    return [*notes, *_versions(base, run), *_rates(base, run, from_start=resumes)]


def _factors(base: Run, run: Run) -> list[str]:
    """Returns a sentence about the first number of each run that operators multiply or blend
    tensors with and that those of the other run do not."""
    rank = min(run.ranks)
    states = states_apart(base, run, rank)
    if states is not None and {"Python", "NumPy"} & {*states.apart}:
        return []  # the factors may be drawn from these
    sides = [logged(one, min(one.ranks), BLEND_FACTOR) for one in (base, run)]
    steps = {*sides[0]["step"]} & {*sides[1]["step"]}
    sides = [one[one["step"].isin(steps)].sort_values("time_ns") for one in sides]
    known = [{*one["value"]} for one in sides]
    alone = [one[~one["value"].isin(known[1 - at])] for at, one in enumerate(sides)]
    if alone[0].empty or alone[1].empty:
        return []
    was, now = (one.iloc[0] for one in alone)
    place = at_place(place_before(run, rank, str(now["thread"]), int(now["time_ns"]) + 1))
    return [
        f"an operator{units.printable(place)} multiplies or blends tensors with "
        f"{now['value']:.6g}, in the baseline with {was['value']:.6g}: compare decays of moving "
        "averages and other factors"
    ]


def _groups(settings: dict[str, float]) -> list[tuple[str, list[tuple[str, float]]]]:
    """Returns the settings of each group of parameters by its optimizer, in no order of theirs."""
    found: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for name, value in settings.items():
        if group := _GROUP.match(name):
            found.setdefault((group[1], group[2]), []).append((group[3], value))
    return sorted((of, sorted(one)) for (of, _), one in found.items())


def _alone(own: dict[str, float], other: dict[str, float], side: str) -> list[str]:
    """What one run alone has: optimizers and groups of parameters as a whole, else settings; not
    those of modules, which have other names where a model is written otherwise."""
    missing = [name for name in own if name not in other and not _of_module(name)]
    found = dict[str, None]()
    for name in missing:
        parts = name.split(", ")
        wholes = (", ".join(parts[:count]) for count in range(1, len(parts)))
        whole = next((one for one in wholes if not _has(other, one)), None)
        text = whole or f"{_short(name)} {_number(name, own[name])}"
        found[f"{text} in the {side} alone"] = None
    return list(found)


def _of_module(name: str) -> bool:
    return name not in SETTING_FLAGS and ", " not in name and "." in name


def _has(settings: dict[str, float], whole: str) -> bool:
    """Whether an optimizer, or one of its groups, is there."""
    return any(name == whole or name.startswith(f"{whole},") for name in settings)


def _environment(base: Run, run: Run) -> list[str]:
    """Variables of the environment with other texts, or that one run alone has."""
    sides = [_variables(one) for one in (base, run)]
    found = []
    for name in sorted({*sides[0], *sides[1]}):
        was, now = (side.get(name) for side in sides)
        if was != now:
            texts = ("not set" if text is None else text or "empty" for text in (was, now))
            found.append(f"{name} {units.printable(' became '.join(texts))}")
    return found


def _variables(run: Run) -> dict[str, str]:
    rows = logged(run, min(run.ranks), prefix=f"{SETTINGS}{ENVIRONMENT}")
    pairs = (str(name).partition("=") for name in rows["name"])
    return {name: text for name, _, text in pairs if name not in _OF_LAUNCHERS}


def _of_other_ranks(base: Run, run: Run, *, rates: bool) -> list[str]:
    """Returns the settings that differ on the first rank that has some, where both runs have as
    many."""
    ranks = sorted(run.ranks)[1:] if base.ranks == run.ranks else []
    for rank in ranks[:_RANKS]:
        was, now = (_settings(one, rank, rates=rates) for one in (base, run))
        names = [name for name in was if name in now and was[name] != now[name]]
        if names:
            return [
                f"{_short(name)} {_number(name, was[name])} became {_number(name, now[name])} on "
                f"rank {rank}"
                for name in names
            ]
    return []


def _settings(run: Run, rank: int, *, rates: bool) -> dict[str, float]:
    """The first value of each setting of a rank; without the learning `rates`, which a schedule has
    changed before another run resumes."""
    rows, clips = logged(run, rank, prefix=SETTINGS), logged(run, rank, *_CLIPS)
    if rows.empty and clips.empty:
        return {}
    rows = pd.concat([rows, clips.assign(name=clips["name"].map(_CLIPS))])
    first = rows.sort_values("time_ns", kind="stable").drop_duplicates("name")
    first = first[~first["name"].str.startswith(ENVIRONMENT)]
    first = first[rates | ~first["name"].str.endswith(", lr")]
    return dict(zip(first["name"].astype("str"), first["value"].astype(float), strict=True))


def _short(name: str) -> str:
    """A setting without the number of an optimizer's only group."""
    return name.replace(", group 0, ", ", ")


def _number(name: str, value: float) -> str:
    if name in SETTING_FLAGS:
        return "on" if value else "off"
    if name == MATMUL_PRECISION and value in range(len(MATMUL_PRECISIONS)):
        return MATMUL_PRECISIONS[int(value)]
    # All digits of a seed: it is recorded to 53 bits.
    return f"{value:.0f}" if value.is_integer() and abs(value) < 2**64 else f"{value:.15g}"


def _listed(words: list[str]) -> str:
    more = len(words) - _LISTED
    return "; ".join(words[:_LISTED]) + (f"; and {more} more" if more > 0 else "")


def _versions(base: Run, run: Run) -> list[str]:
    found = []
    for name in ("torch", "python"):
        sides = [sorted({str(p[name]) for p in one.manifest["processes"]}) for one in (base, run)]
        if sides[0] != sides[1]:
            before, after = (units.printable(", ".join(side)) for side in sides)
            found.append(f"{name} {before} in the baseline, {after} in the run")
    whole = [one.manifest["command"] for one in (base, run)]
    words = [list(map(_without_folders, one)) for one in whole]
    if words[0] == words[1]:
        words = whole
    gone = [word for word in words[0] if word not in set(words[1])]
    come = [word for word in words[1] if word not in set(words[0])]
    if all(words) and (gone or come):
        there, here = (units.printable(" ".join(side[:_LISTED])) for side in (come, gone))
        if come and gone:
            found.append(f"the command has {there} in place of {here}")
        else:
            found.append(f"the command has {there} added" if come else f"the command lacks {here}")
    return found


def _without_folders(word: str) -> str:
    """A word of a command; of a program its file's name."""
    return word.rpartition("/")[2] if word.endswith(".py") else word


def _rates(base: Run, run: Run, *, from_start: bool) -> list[str]:
    """The first step at which a learning rate or weight decay differs. What differs from the start
    is a setting, mostly."""
    keys = ["rank", "step", "parameter", "optimizer"]
    columns = [*keys, "lr", "weight_decay"]
    sides = [to_frame(one.events("parameter", columns=columns)) for one in (base, run)]
    if any(one.empty for one in sides):
        return []
    sides = [one.astype({"parameter": "object"}).drop_duplicates(keys) for one in sides]
    both = sides[0].merge(sides[1], on=keys, suffixes=("_base", "_run")).sort_values("step")
    found = []
    for name, words in (("lr", "learning rate"), ("weight_decay", "weight decay")):
        low, high = both[f"{name}_base"], both[f"{name}_run"]
        apart = both[(low != high) & low.notna() & high.notna()]
        if len(apart) and (from_start or apart["step"].iloc[0] > both["step"].iloc[0]):
            first = apart.iloc[0]
            found.append(
                f"the {words} differs since step {int(first['step'])} at the latest: "
                f"{first[f'{name}_base']:.6g} became {first[f'{name}_run']:.6g}, for "
                f"{units.printable(str(first['parameter']))}"
            )
    return found
