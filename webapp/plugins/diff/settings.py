"""In what settings of the program do two runs differ? Optimizers, seeds, flags, versions, data.

What recordings do not hold is not compared: environment variables, files, and settings that a
program keeps to itself.
"""

from __future__ import annotations

from functools import lru_cache

import pandas as pd

from lanescope.collector.format.names import (
    BATCH_HASH,
    MATMUL_PRECISION,
    MATMUL_PRECISIONS,
    SETTING_FLAGS,
    SETTINGS,
)
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

LISTED = 6
"""Settings, or words of a command, named in one sentence."""


def settings_notes(base: Run, run: Run) -> list[str]:
    """Sentences about settings that differ, the program's own first, then versions, then data."""
    own = _settings(base), _settings(run)
    apart = [
        f"{_short(name)} {_number(name, own[0][name])} became {_number(name, own[1][name])}"
        for name in own[0]
        if name in own[1] and own[0][name] != own[1][name]
    ]
    if all(own):
        for one, words in ((0, "in the base alone"), (1, "in the run alone")):
            alone = [name for name in own[one] if name not in own[1 - one]]
            apart += [f"{alone[0].partition(', ')[0]} {words}"] if alone else []
    notes = [f"settings differ: {_listed(apart)}"] if apart else []
    return [*notes, *_versions(base, run), *_rates(base, run), *_batches(base, run)]


def _settings(run: Run) -> dict[str, float]:
    """The first value of each setting, of the lowest rank."""
    rows = logged(run, min(run.ranks), prefix=SETTINGS)
    first = rows.sort_values("time_ns", kind="stable").drop_duplicates("name")
    return dict(zip(first["name"].astype("str"), first["value"].astype(float), strict=True))


def _short(name: str) -> str:
    """A setting without the number of an optimizer's only group."""
    return name.replace(", group 0, ", ", ")


def _number(name: str, value: float) -> str:
    if name in SETTING_FLAGS:
        return "on" if value else "off"
    if name == MATMUL_PRECISION and value in range(len(MATMUL_PRECISIONS)):
        return MATMUL_PRECISIONS[int(value)]
    return f"{value:.15g}"


def _listed(words: list[str]) -> str:
    more = len(words) - LISTED
    return "; ".join(words[:LISTED]) + (f"; and {more} more" if more > 0 else "")


def _versions(base: Run, run: Run) -> list[str]:
    found = []
    for name in ("torch", "python"):
        sides = [sorted({str(p[name]) for p in one.manifest["processes"]}) for one in (base, run)]
        if sides[0] != sides[1]:
            before, after = (units.printable(", ".join(side)) for side in sides)
            found.append(f"{name} {before} in the base, {after} in the run")
    words = [one.manifest["command"] for one in (base, run)]
    gone = [word for word in words[0] if word not in set(words[1])]
    come = [word for word in words[1] if word not in set(words[0])]
    if all(words) and (gone or come):
        there, here = (units.printable(" ".join(side[:LISTED])) for side in (come, gone))
        found.append(f"the command has {there or 'nothing'} in place of {here or 'nothing'}")
    return found


def _rates(base: Run, run: Run) -> list[str]:
    """The first step at which a learning rate or weight decay differs, if not from the start."""
    keys = ["rank", "step", "parameter", "optimizer"]
    columns = [*keys, "lr", "weight_decay"]
    sides = [to_frame(one.events("parameter", columns=columns)) for one in (base, run)]
    sides = [one.astype({"parameter": "object"}).drop_duplicates(keys) for one in sides]
    both = sides[0].merge(sides[1], on=keys, suffixes=("_base", "_run")).sort_values("step")
    found = []
    for name, words in (("lr", "learning rate"), ("weight_decay", "weight decay")):
        low, high = both[f"{name}_base"], both[f"{name}_run"]
        apart = both[(low != high) & low.notna() & high.notna()]
        if len(apart) and apart["step"].iloc[0] > both["step"].iloc[0]:
            first = apart.iloc[0]
            found.append(
                f"the {words} differs since step {int(first['step'])} at the latest: "
                f"{first[f'{name}_base']:.6g} became {first[f'{name}_run']:.6g}, for "
                f"{units.printable(str(first['parameter']))}"
            )
    return found


def _beside(base: pd.DataFrame, run: pd.DataFrame) -> pd.DataFrame:
    """Values of two runs that have the same rank, step and name, and the same place among these."""
    keys = ["rank", "step", "name"]
    sides = []
    for one in (base, run):
        rows = one.sort_values("time_ns", kind="stable").astype({"name": "object"})
        rows["call"] = rows.groupby(keys).cumcount()
        sides.append(rows[[*keys, "call", "value"]])
    return sides[0].merge(sides[1], on=[*keys, "call"], suffixes=("_base", "_run"))


@lru_cache(maxsize=2)
def batches_differ(base: Run, run: Run) -> pd.DataFrame:
    """Samples of batches, arguments and outputs that both runs hold and that differ, by step.

    rank, step, name (loaded/0, input/<class>/0, output/<class>/0), call. Callers must not change
    it.
    """
    both = _beside(*(logged(one, None, prefix=BATCH_HASH) for one in (base, run)))
    apart = both[both["value_base"] != both["value_run"]]
    return apart.sort_values(["step", "rank"], kind="stable", ignore_index=True)


def _batches(base: Run, run: Run) -> list[str]:
    apart = batches_differ(base, run)
    given = apart[~apart["name"].str.startswith("output/")]
    if given.empty:
        return []
    first = given.iloc[0]
    return [
        f"the data differs since step {int(first['step'])} of rank {int(first['rank'])} at the "
        "latest: compare the data, its order and the seed"
    ]


def outputs_differ(base: Run, run: Run) -> str | None:
    """The first step at which a model returned something else; None where none was seen."""
    apart = batches_differ(base, run)
    made = apart[apart["name"].str.startswith("output/")]
    if made.empty:
        return None
    first = made.iloc[0]
    model = units.printable(str(first["name"]).split("/")[1])
    return f"{model} returns something else since step {int(first['step'])} at the latest"


def _losses(run: Run) -> pd.DataFrame:
    rows = to_frame(run.events("value", columns=["rank", "step", "name", "value", "time_ns"]))
    names = rows["name"].astype("object").astype("str")
    own = names.str.contains("loss", case=False) & ~names.str.startswith("lanescope/")
    return rows.assign(name=names.astype("object"))[own & (names != "loss_scale")]


def losses_differ(base: Run, run: Run, relative: float) -> str | None:
    """The first value of the program's own series with "loss" in its name that differs.

    By more than `relative` of the larger. None: no such series, or all are equal.
    """
    both = _beside(_losses(base), _losses(run))
    low, high = both["value_base"], both["value_run"]
    far = (low - high).abs() > relative * low.abs().combine(high.abs(), max)
    apart = both[far | (low.isna() != high.isna())].sort_values("step", kind="stable")
    if apart.empty:
        return None
    first = apart.iloc[0]
    return (
        f"the logged value {units.printable(str(first['name']))} differs since step "
        f"{int(first['step'])}: {first['value_base']:.9g} became {first['value_run']:.9g}"
    )
