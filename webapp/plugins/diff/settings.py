"""In what settings of the program do two runs differ? Optimizers, seeds, flags, versions, data.

What recordings do not hold is not compared: files, other variables of the environment, and settings
that a program keeps to itself.
"""

from __future__ import annotations

import re

import pandas as pd

from lanescope.collector.format.loader_names import LOADER_ORDER
from lanescope.collector.format.loop_names import BLEND_FACTOR
from lanescope.collector.format.names import (
    BATCH_HASH,
    CLIP_LIMIT,
    CLIP_VALUE,
    ENVIRONMENT,
    LOADER_WORKER,
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
from lanescope.webapp.plugins.diff.values.logged_values import batches_differ
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

_LISTED = 6
"""Settings, or words of a command, named in one sentence."""


def settings_notes(base: Run, run: Run) -> list[str]:
    """Returns sentences about settings that differ, the program's own first, then versions."""
    resumes = later_start(base) is not None
    own = [_settings(one, rates=not resumes) for one in (base, run)]
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


def data_notes(base: Run, run: Run) -> list[str]:
    """Returns sentences about batches that differ, by more than the bits of the same numbers."""
    return [] if precision_note(base, run) else _batches(base, run)


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


def _settings(run: Run, *, rates: bool) -> dict[str, float]:
    """The first value of each setting, of the lowest rank; without the learning `rates`, which a
    schedule has changed before another run resumes."""
    rank = min(run.ranks)
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


def _batches(base: Run, run: Run) -> list[str]:
    apart = batches_differ(base, run)
    inputs = logged(base, None, prefix=f"{BATCH_HASH}input/").sort_values("time_ns")["name"]
    # What the first model returns may be what others get.
    model = f"input/{str(inputs.iloc[0]).partition('/')[0]}/" if len(inputs) else "input/"
    given = apart[apart["name"].str.startswith(("loaded/", model))]
    groups = [one for _, one in given.groupby(["step", "rank"]) if not _beside_training(base, one)]
    if not groups:
        return []
    first = groups[0].iloc[0]
    rows = first["rows_base"], first["rows_run"]
    shared = shares_differ(base, run)  # parts of the same batches
    if shared and rows[0] * base.world_size == rows[1] * run.world_size:
        return []
    since = f"since step {int(first['step'])} of rank {int(first['rank'])} at the latest"
    if rows[0] != rows[1]:
        return [
            f"batches have {rows[1]:.0f} sampled rows where the baseline has {rows[0]:.0f}, "
            f"{since}: another batch size, or parts of batches"
        ]
    if shared:
        return []
    was, now = (_loader_workers(one) for one in (base, run))
    if was != now:
        return [
            f"the data differs {since}: {now or 'no'} workers load it, {was or 'none'} in the "
            "baseline, and each process draws random numbers of its own: let the dataset seed "
            "a generator with the index of a sample, or keep num_workers"
        ]
    if len(inputs) and groups[0]["name"].str.startswith("loaded/").all():
        return [
            f"the data differs {since}: the model gets the same inputs, but part "
            f"{str(first['name']).partition('/')[2]} of a batch differs: compare the labels"
        ]
    loaded = logged(base, int(first["rank"]), prefix=f"{BATCH_HASH}loaded/")["step"]
    if not groups[0]["name"].str.startswith("loaded/").any() and first["step"] in {*loaded}:
        return [
            f"the model gets other inputs from the same batches {since}: compare the lines between "
            "the DataLoader and the model"
        ]
    (op, shapes), (own_op, own_shapes) = (
        _first_shapes(one, int(first["rank"]), int(first["step"])) for one in (base, run)
    )
    if shapes and own_shapes and op == own_op and not {*shapes} & {*own_shapes}:
        return [
            f"batches have shape {own_shapes[0]} where the baseline has {shapes[0]}, {since}: "
            "another batch size, or parts of batches"
        ]
    lengths = [_length_of_data(one, int(first["rank"])) for one in (base, run)]
    of = f" has {lengths[1]} samples, {lengths[0]} in the baseline" if None not in lengths else ""
    if of and lengths[0] != lengths[1]:
        return [f"the data differs {since}: the first dataset that a DataLoader shuffles{of}"]
    return [f"the data differs {since}: compare the data, its order and the seed"]


def _beside_training(base: Run, apart: pd.DataFrame) -> bool:
    """Whether all parts of a batch differ in a step, and no input of the model: one run alone loads
    it, as for an evaluation."""
    first = apart.iloc[0]
    batches = logged(base, int(first["rank"]), prefix=BATCH_HASH)
    names = batches.loc[batches["step"] == first["step"], "name"].astype("str")
    loaded = names.str.startswith("loaded/")
    return bool(names.str.startswith("input/").any() and set(apart["name"]) == set(names[loaded]))


def _first_shapes(run: Run, rank: int, step: int) -> tuple[str, list[str]]:
    """Returns the first operator in a module and the shapes of its first tensor, in all its calls
    of a step, as an evaluation may call it as well."""
    for piece in run.pieces("op", rank, None, ["start_ns", "name", "module", "shapes", "step"]):
        ops = to_frame(piece).astype({"module": "str", "shapes": "str"}).sort_values("start_ns")
        own = ops[(ops["step"] == step) & ~ops["module"].isin(["", "nan", "None"])]
        if len(own):
            first = own.iloc[0]
            same = own[(own["name"] == first["name"]) & (own["module"] == first["module"])]
            shapes = [one[: one.find("]") + 1] for one in same["shapes"] if "]" in one]
            return str(first["name"]), shapes
    return "", []


def _length_of_data(run: Run, rank: int) -> str | None:
    """Returns the length of the dataset of the first DataLoader that shuffles."""
    names = logged(run, rank, prefix=LOADER_ORDER).sort_values("time_ns")["name"]
    return str(names.iloc[0]).rpartition("/")[2] if len(names) else None


def _loader_workers(run: Run) -> int:
    """The most workers of DataLoaders on a rank; 0: the ranks load their data themselves."""
    named = {(one.rank, one.name) for one in run.threads if one.name.startswith(LOADER_WORKER)}
    ranks = [rank for rank, _ in named]
    return max(map(ranks.count, ranks), default=0)
