"""Which data do two runs get otherwise, and what may have made it differ: its order, the random
numbers, the lines of the program, or what the files hold?"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format.loader_names import LOADER_ORDER
from lanescope.collector.format.loop_names import READ_FILE
from lanescope.collector.format.names import BATCH_HASH, LOADER_WORKER
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import short_place
from lanescope.webapp.plugins.diff.pairing.resumed import later_start
from lanescope.webapp.plugins.diff.values.generator_states import states_apart
from lanescope.webapp.plugins.diff.values.logged_values import batches_differ
from lanescope.webapp.plugins.diff.values.precision import precision_note
from lanescope.webapp.plugins.diff.values.world_sizes import shares_differ
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run


def data_notes(base: Run, run: Run, *, same_code: bool) -> list[str]:
    """Returns sentences about generators in another state, and about batches that differ, by more
    than the bits of the same numbers. `same_code`: the lines of the programs are the same."""
    if precision_note(base, run):
        return []
    found = _batches(base, run, same_code=same_code)
    return found if later_start(base) is not None else [*_generators(base, run), *found]


def _generators(base: Run, run: Run) -> list[str]:
    states = states_apart(base, run, min({*base.ranks} & {*run.ranks}, default=0))
    apart = [name for name in states.apart if name != "torch"] if states else []
    if not states or not apart:
        return []
    which = " and ".join(f"{name}'s" for name in apart)
    seeds = " and ".join(_SEEDS[name] for name in apart)
    return [
        f"the random numbers differ: {which} generator is in another state in step {states.step}, "
        f"and the program draws from it; compare the seed ({seeds}) and what draws from it before"
    ]


def file_notes(base: Run, run: Run) -> list[str]:
    """Returns a sentence about files of one name that both programs read and that hold something
    else."""
    sides = [_files(one) for one in (base, run)]
    apart = [name for name, held in sides[1].items() if sides[0].get(name, held) != held]
    if not apart:
        return []
    names = units.printable(
        f"{', '.join(apart[:_LISTED])}{and_more(len(apart) - _LISTED + 1, 'file')}"
    )
    return [f"files that both programs read hold something else: {names}"]


def _files(run: Run) -> dict[str, list[float]]:
    """Returns name -> hashes of what the files of that name hold, as they were opened."""
    rows = logged(run, min(run.ranks), prefix=READ_FILE).sort_values("time_ns", kind="stable")
    found: dict[str, list[float]] = {}
    for path, held in zip(rows["name"], rows["value"], strict=True):
        found.setdefault(short_place(str(path)), []).append(float(held))
    return found


_LISTED = 3
_SEEDS = {"Python": "random.seed", "NumPy": "numpy.random.seed"}


def _same_order(base: Run, run: Run, rank: int, step: int) -> bool | None:
    """Whether the last iteration that shuffles up to a step begins with the same samples; None:
    unknown."""
    if later_start(base) is not None:
        return None
    keys = []
    for one in (base, run):
        rows = logged(one, rank, prefix=LOADER_ORDER).sort_values("time_ns", kind="stable")
        keys += [
            (str(row["name"]), float(row["value"]))
            for _, row in rows[rows["step"] <= step].tail(1).iterrows()
        ]
    return keys[0] == keys[1] if len(keys) == 2 else None


def _compare_what(base: Run, run: Run, rank: int, step: int, *, same_code: bool) -> str:
    order, states = _same_order(base, run, rank, step), states_apart(base, run, rank, step)
    if order is False:
        return (
            "a DataLoader that shuffles goes through it in another order: compare the seed and the "
            "state of the generator that its sampler draws from"
        )
    if states is None or states.step > step or states.apart or not states.same:
        return "compare the data, its order and the seed"
    alike = [*(["its order"] if order else []), "the random numbers"]
    alike += ["the recorded lines of the program"] if same_code else []
    same = f"{', '.join(alike[:-1])} and {alike[-1]}" if len(alike) > 1 else alike[0]
    what = [] if _same_files(base, run) else ["what the files hold that the program reads"]
    what += [] if same_code else ["the lines that make batches"]
    return f"{same} are the same: compare {' and '.join(what or ['the data'])}"


def _same_files(base: Run, run: Run) -> bool:
    """Whether all files that are known to be read hold the same."""
    return bool(_files(run)) and _files(base) == _files(run)


def _batches(base: Run, run: Run, *, same_code: bool) -> list[str]:
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
    loaded = logged(base, int(first["rank"]), f"{BATCH_HASH}loaded/0")["step"]
    # Of several batches of a step, as those of an evaluation, this one may not be sampled.
    alone = (loaded == first["step"]).sum() == 1
    if not groups[0]["name"].str.startswith("loaded/").any() and alone:
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
    rank, step = int(first["rank"]), int(first["step"])
    what = _compare_what(base, run, rank, step, same_code=same_code)
    return [f"the data differs {since}: {what}"]


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
