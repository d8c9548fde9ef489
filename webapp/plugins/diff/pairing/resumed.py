"""A baseline whose checkpoint the run resumes from: its step of that moment beside the run's first.

Both runs number their steps from their own start. A run that resumes is known by its parameters:
before its first step they are, to the last bit, those of a later step of the baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.loop_names import FRESH_OPTIMIZER, LOADED_FILE, SAVED_FILE
from lanescope.collector.format.steps import Steps
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.plugins.diff.values.generator_states import states_apart
from lanescope.webapp.plugins.diff.values.logged_values import batches_differ
from lanescope.webapp.runs import units
from lanescope.webapp.runs.placed_rows import PlacedRows
from lanescope.webapp.runs.run import Run

_States = dict[int, tuple[int, int]]
"""By step a sum of hashes of all parameters, as there may be millions, and their number."""

_WHOLE = ("value",)
"""Tables that stay whole: settings are recorded once, in the first step."""

LOST = "the checkpoint does not restore"


@dataclass(frozen=True)
class LaterStart:
    """Leaves out the rows of a run before one of its steps, and numbers steps as another run."""

    step: int  # at which the run begins now
    number: int  # that this step has now; those after it follow
    instants: Mapping[int, int]  # rank -> start of the step, ns on the run's axis

    def __call__(self, table: str, piece: PlacedRows) -> PlacedRows:
        """Returns the rows that are left, with the other numbers."""
        rows = piece.rows
        known = [column.name for column in schema.TABLES[table].columns]
        begins = next((one for one in ("start_ns", "time_ns") if one in rows.column_names), None)
        if "step" in known and table not in _WHOLE and begins and piece.rank in self.instants:
            rows = rows.filter(pc.greater_equal(rows[begins], self.instants[piece.rank]))
        if "step" in rows.column_names:
            at = rows.schema.get_field_index("step")
            field = rows.schema.field(at)
            apart = pa.scalar(self.number - self.step, field.type)
            rows = rows.set_column(at, field, pc.add(rows.column(at), apart))
        return replace(piece, rows=rows)

    def steps(self, rank: int, steps: Steps) -> Steps:
        """Returns the steps of a rank that are left, with the other numbers."""
        left = steps.start_ns >= self.instants.get(rank, 0)
        index = steps.index[left] + (self.number - self.step)
        return Steps(index, steps.start_ns[left], steps.end_ns[left])


def continued(base: Run, run: Run) -> Run:
    """Returns the baseline from the step on that the run resumes at, with the run's numbers of
    steps; unchanged where the run does not resume from it. Where the baseline resumes from a
    checkpoint of the run, it has the run's numbers of steps."""
    later = _later_start(base, run)
    if later is None:
        return base
    found = replace(base, rows=replace(base.rows, cut=later))
    for rank in base.ranks:
        found.know_steps(rank, later.steps(rank, base.steps(rank)))
    return found


def later_start(base: Run) -> LaterStart | None:
    """Returns where a baseline begins that `continued` returned; None: at its own start."""
    return base.rows.cut if isinstance(base.rows.cut, LaterStart) else None


def resumed_notes(base: Run, run: Run) -> list[str]:
    """Returns notes: which steps are compared, and which sampled states the checkpoint did not
    restore. `base` is what `continued` returned."""
    later = later_start(base)
    if later is None:
        return []
    which = "the run resumes from a checkpoint of the baseline"
    if later.number > later.step:
        which = "the baseline resumes from a checkpoint of the run"
    said = (
        f"{which}: step {later.number} of the run is compared with step {later.step} of the "
        "baseline, and so on"
    )
    rank = min({*base.ranks} & {*run.ranks})
    lost = _other_random_numbers(base, run, rank, later.number)
    lost = lost or other_update(base, run, rank, later.number)
    lost = lost or _other_gradients(base, run, rank, later.number)
    return [said, *([] if lost is None else [lost])]


def _other_random_numbers(base: Run, run: Run, rank: int, step: int) -> str | None:
    states = states_apart(base, run, rank)
    if states is None or not states.apart:
        return None
    which = " and ".join(f"{name}'s" for name in states.apart)
    same = " and ".join(f"{name}'s" for name in states.same)
    rest = f" (as it does {same})" if same else ""
    return (
        f"{LOST} the random numbers of step {step}: keep the state of {which} generator in it{rest}"
    )


def _other_gradients(base: Run, run: Run, rank: int, step: int) -> str | None:
    known, own = (_gradients(one, rank).get(step) for one in (base, run))
    if None in (known, own) or known == own:
        return None
    start = f"{LOST} all that step {step} computes with, as its gradients differ already: "
    if states_apart(base, run, rank) is None:
        return (
            f"{start}compare the random numbers (states of torch's, Python's and NumPy's "
            "generators), the position in the data, and the parameters that are loaded"
        )
    apart = batches_differ(base, run)["name"]
    if apart.str.startswith(("loaded/", "input/")).any():
        return (
            f"{LOST} the order of the data from step {step} on: the random numbers are those of "
            "the baseline, and the batches are others; keep the position in the data and the state "
            "of the sampler's own generator in it"
        )
    return (
        f"{start}the random numbers and the sampled batches are those of the baseline; compare the "
        "parameters, the buffers and what else the loss is made of"
    )


def other_update(base: Run, run: Run, rank: int, step: int) -> str | None:
    """Returns what to say where the gradients of a step are the same, and later ones are not."""
    known, own = _gradients(base, rank), _gradients(run, rank)
    later = sorted(one for one in known.keys() & own.keys() if one >= step)
    apart = next((one for one in later if known[one] != own[one]), step)
    if apart == step or step not in later:
        return None
    step = apart - 1
    fresh = logged(run, rank, prefix=FRESH_OPTIMIZER)
    if len(fresh):
        where, kind, _ = str(fresh["name"].iloc[0]).split("/", 2)
        return (
            f"{LOST} all of the update of step {step}: {kind} begins without the state that the "
            f"file loaded{units.printable(at_place(where))} holds; call optimizer.load_state_dict()"
        )
    return (
        f"{LOST} all of the update of step {step}: its gradients are those of the baseline, the "
        "next ones are not; compare the optimizer's state, the learning rate, and the data after "
        "the first batch"
    )


def _later_start(base: Run, run: Run) -> LaterStart | None:
    shared = {*base.ranks} & {*run.ranks}
    if not shared:
        return None
    rank = min(shared)
    if _same_start(base, run, rank):
        return None
    like = _like(base, run, rank)
    if like is not None:
        step, first = like
        return LaterStart(step, first, _starts(base, step))
    like = _like(run, base, rank)
    return None if like is None else LaterStart(like[1], like[0], {})


def _starts(run: Run, step: int) -> dict[int, int]:
    """Start of a step on each rank that has it, ns."""
    steps = {rank: run.steps(rank) for rank in run.ranks}
    return {
        rank: int(own.start_ns[own.index == step][0])
        for rank, own in steps.items()
        if step in own.index
    }


def _like(earlier: Run, later: Run, rank: int) -> tuple[int, int] | None:
    """Returns the step of a run with the parameters of another's first step, and that; None: no
    such step, or several."""
    for states in _KNOWN_BY:
        known, own = states(earlier, rank), states(later, rank)
        first = min(own, default=0)
        like = [step for step, state in known.items() if state == own.get(first)]
        if len(like) == 1 and like[0] > first:
            return like[0], first
    return _by_file(earlier, later, rank)


def _by_file(earlier: Run, later: Run, rank: int) -> tuple[int, int] | None:
    """Returns the step in which a run saved last the file that another one loads in its first step,
    and that; None: no such file, or the run has no gradients of that step."""
    sides = ((earlier, SAVED_FILE), (later, LOADED_FILE))
    saved, loaded = (logged(one, rank, prefix=prefix) for one, prefix in sides)
    rows = saved.sort_values("time_ns")
    paths = [str(name).partition("/")[2] for name in rows["name"]]
    steps = dict(zip(paths, map(int, rows["step"]), strict=True))
    first = min(_gradients(later, rank), default=0)
    names = loaded.loc[loaded["step"] <= first, "name"]
    found = {steps[path] for name in names if (path := str(name).partition("/")[2]) in steps}
    if len(found) != 1 or not first < min(found) or min(found) not in _gradients(earlier, rank):
        return None
    return found.pop(), first


def _same_start(base: Run, run: Run, rank: int) -> bool:
    """Whether both begin alike, as far as is known: they do, mostly."""
    pairs = ((states(base, rank), states(run, rank)) for states in _KNOWN_BY)
    return any(one and other and min(one.items()) == min(other.items()) for one, other in pairs)


def _parameters(run: Run, rank: int) -> _States:
    """By the hashes of all parameters before each step, at level numerics."""
    return _states(run, rank, "gradient", "param_hash")


def _samples(run: Run, rank: int) -> _States:
    """By the norms of all parameters before each sampled step."""
    return _states(run, rank, "parameter", "norm")


def _gradients(run: Run, rank: int) -> _States:
    """By the norms of all gradients of each step."""
    return _states(run, rank, "gradient", "norm")


_KNOWN_BY: tuple[Callable[[Run, int], _States], ...] = (_parameters, _samples, _gradients)


@lru_cache(maxsize=8)
def _states(run: Run, rank: int, table: str, column: str) -> _States:
    rows = to_frame(run.events(table, rank, columns=["step", "parameter", column]))
    rows = rows[rows[column].notna() & (rows[column] != 0)]
    # Not by optimizer: one that a run makes again has another number.
    hashes = pd.util.hash_pandas_object(rows[["parameter", column]], index=False)
    steps = hashes.groupby(rows["step"])
    return {
        int(step): (int(own), int(many))
        for (step, own), many in zip(steps.sum().items(), steps.size(), strict=True)
    }
