"""Compares two runs and finds the first difference.

Compared are gradient norms, by rank, step and parameter, and operators: where both runs know what
was in their tensors (level numerics), each with its like on the other side by those values; else
how often each ran, by rank, thread name, step and op name. What has no partner is counted, never
guessed at.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Literal

import pandas as pd

from lanescope.webapp.analysis.cluster import Executor, spread
from lanescope.webapp.bundles.comparable import comparable
from lanescope.webapp.plugins.diff.causes import cause_notes
from lanescope.webapp.plugins.diff.initial_differences import loss_notes
from lanescope.webapp.plugins.diff.pairing.call_counts import call_counts
from lanescope.webapp.plugins.diff.pairing.rebuilt import rebuilt
from lanescope.webapp.plugins.diff.pairing.renaming import Renamed, renamed
from lanescope.webapp.plugins.diff.pairing.resumed import continued
from lanescope.webapp.plugins.diff.pairing.roles import by_role
from lanescope.webapp.plugins.diff.pairing.unpaired import (
    Unpaired,
    compiled_words,
    settings_words,
    unpaired_calls,
)
from lanescope.webapp.plugins.diff.timing_differences import Timing, timing_differences
from lanescope.webapp.plugins.diff.values import world_sizes
from lanescope.webapp.plugins.diff.values.between_modules import computed_between
from lanescope.webapp.plugins.diff.values.closeness import MODES, RELATIVE, Mode
from lanescope.webapp.plugins.diff.values.compared_ops import tensor_floor
from lanescope.webapp.plugins.diff.values.first_difference import hints
from lanescope.webapp.plugins.diff.values.first_layer import FirstLayer, first_layer
from lanescope.webapp.plugins.diff.values.gradient_norms import (
    compared_norms,
    first_norm,
    norm_floor,
)
from lanescope.webapp.plugins.diff.values.logged_values import outputs_differ, values_differ
from lanescope.webapp.plugins.diff.values.noise import Floor
from lanescope.webapp.plugins.diff.values.precision import least_tolerance
from lanescope.webapp.plugins.diff.values.value_differences import (
    ValueDifferences,
    of_rank,
    value_differences,
)
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run

_Verdict = Literal["identical", "within_tolerance", "diverged"]

TABLE_COLUMNS = (
    "kind",
    "rank",
    "thread",
    "step",
    "name",
    "base",
    "run",
    "difference",
    "state",
    "phase",
    "module",
    "position",
    "thread_id",
    "time_ns",
)


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side. `diff --json` prints `to_json`; `table` has one row per pair."""

    mode: Mode
    verdict: _Verdict
    norms: int  # of gradients that both runs have
    ops: int  # operators that both have; where values of none are known, calls of them
    tensors: int  # of these operators, whose values were compared
    valued: bool  # both runs know what was in the tensors of operators
    alone: tuple[Unpaired, Unpaired]  # what base has and run has not, and the other way round
    first: dict[str, Any] | None  # the first operator that differs, else the first norm
    table: pd.DataFrame = field(repr=False)
    notes: tuple[str, ...] = ()  # sentences: what could not be compared, what else to look at
    differing: int = 0  # tensors that differ in the mode; the table may hold fewer
    timing: Timing | None = field(default=None, repr=False)
    growth: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)  # see `growth_of`

    @property
    def compared(self) -> int:
        """Gradient norms and operators that both runs have."""
        return self.norms + self.ops

    @property
    def only_in_base(self) -> int:
        """Gradient norms and operators."""
        return self.alone[0].count

    @property
    def only_in_run(self) -> int:
        """Gradient norms and operators."""
        return self.alone[1].count

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `diff --json` prints."""
        return {
            "verdict": self.verdict,
            "compared": self.compared,
            "only_in_base": self.only_in_base,
            "only_in_run": self.only_in_run,
            "first": self.first,
        }


def diff(base: Run, run: Run, mode: Mode = "bitwise") -> pd.DataFrame:
    """Returns the table of `compare`: one row per gradient norm and op count, and per tensor that
    differs.

    kind ("gradient", "op" or "tensor"), rank, thread (its name), step, name (parameter or op), base
    and run (norm, number of calls or mean; NaN on a side that has none), difference (run - base),
    state ("identical", "within_tolerance", "different", "only_in_base", "only_in_run"; for an op
    these two mean more calls on that side). Of a tensor also phase, module, position (as in the
    tensor table), thread_id and time_ns (start of its operator in `run`). Gradients first, then
    ops, each by step, rank and order of recording; then tensors, by step and time, without those
    that are identical.
    """
    return compare(base, run, mode).table


def compare(
    base: Run,
    run: Run,
    mode: Mode = "bitwise",
    noise: Run | None = None,
    workers: Executor | None = None,
) -> Comparison:
    """Compares two runs; the values of each rank on `workers`, where there are any.

    Norms are equal in mode bitwise if their bits are (a NaN equals itself, 0.0 is not -0.0), in
    mode tolerance if |base - run| <= RELATIVE[dtype] * max(|base|, |run|), with the coarser dtype,
    in mode simple if |base - run| <= 1e-4. NaN equals NaN in the latter two. A gradient on one
    side only is a difference in all modes. Tensors of runs at level numerics count as norms do:
    see `closeness.tensor_states`, and `tensor_fingerprints.pair_ops` for how they are paired.

    The verdict is "diverged" if a norm differs, "within_tolerance" if only bits do. Calls of one
    side alone are counted in `only_in_base` and `only_in_run` and do not decide: a logging thread
    that runs once more does not make two trainings differ. Without a common norm they do.

    `first` is the first difference by step and time. `noise`, for mode tolerance, is a second
    recording of `base`: differences between the two are allowed as well, see `noise`.
    """
    _check_mode(mode, noise)
    floors, opened = _floors(base, run, noise), (base, run)
    base, run, roles, names = _prepared(*opened)
    norms = compared_norms(base, run, mode, floors[1] if floors else None)
    values = _values(opened, (base, run), mode, floors[0] if floors else None, workers)
    calls = call_counts(base, run, values.names if values else {})
    ops, alone = _pairs(norms, calls, values)
    matched = len(norms) - alone[0].norms - alone[1].norms
    tensors = values.tensors if values else 0
    states = _states(norms, values)
    wanted = "different" if "different" in states else "within_tolerance"
    layer = _layer(base, run, mode if wanted == "different" else "bitwise")
    stated, said = _stated(base, run, mode, layer)
    first = _first_of_all(values, norms[norms["state"] == wanted], layer, wanted)
    notes = [
        *cause_notes(base, run, first, norms, None if values else calls, said),
        *said,
        *roles,
        *(values.notes if values else [_no_values(base, run)]),
        *_floor_notes(floors),
        *_alone_notes(base, run, alone, names),
        *(_explained(base, run, norms, values) or loss_notes(base, run, layer, first, norms)),
    ]
    return Comparison(
        mode=mode,
        verdict=_verdict(states | stated, matched, ops, tensors, alone),
        norms=matched,
        ops=ops,
        tensors=tensors,
        valued=values is not None,
        alone=alone,
        first=first,
        table=_all_rows(norms, calls, values.tables if values else []),
        notes=tuple(notes),
        differing=values.different if values else 0,
        timing=timing_differences(base, run),
        growth=values.grown() if values else pd.DataFrame(),
    )


def _floors(base: Run, run: Run, noise: Run | None) -> tuple[Floor, Floor] | None:
    """Returns how far two recordings of the baseline are apart: in tensors, and in norms."""
    if noise is None:
        return None
    plain, _ = comparable(base, run)
    return tensor_floor(plain, noise), norm_floor(plain, noise)


def _values(
    opened: tuple[Run, Run],
    prepared: tuple[Run, Run],
    mode: Mode,
    floor: Floor | None,
    workers: Executor | None,
) -> ValueDifferences | None:
    """Returns what differs in the values of operators; None where a side recorded none."""
    base, run = prepared
    if not (base.counts["tensor"] and run.counts["tensor"]):
        return None
    ask = partial(_values_of_rank, mode=mode, floor=floor)
    ranks = sorted({*base.ranks, *run.ranks})
    parts: Iterator[Any]
    if workers is None:
        parts = (ask(*opened, rank) for rank in ranks)
    else:
        parts = (part for part in spread(workers, ask, opened, ranks).values())
    return value_differences(base, run, parts)


def _pairs(
    norms: pd.DataFrame, calls: pd.DataFrame, values: ValueDifferences | None
) -> tuple[int, tuple[Unpaired, Unpaired]]:
    """Returns how many operators both runs have, and what each of them has alone."""
    if values is None:
        ops = int(calls[["base", "run"]].fillna(0).min(axis=1).sum())
        names = unpaired_calls(calls)
    else:
        ops, names = values.compared, (values.only_in_base, values.only_in_run)
    only = [int((norms["state"] == f"only_in_{side}").sum()) for side in ("base", "run")]
    return ops, (Unpaired(names[0], only[0]), Unpaired(names[1], only[1]))


def _states(norms: pd.DataFrame, values: ValueDifferences | None) -> set[str]:
    states = set(norms["state"])
    if values is not None:
        states |= {"different"} if values.different else set()
        states |= {"within_tolerance"} if values.within_tolerance else set()
    return states


def _layer(base: Run, run: Run, mode: Mode) -> FirstLayer | None:
    if world_sizes.shares_differ(base, run):
        return None
    return first_layer(base, run, mode, least_tolerance(base, run))


def _stated(
    base: Run, run: Run, mode: Mode, layer: FirstLayer | None
) -> tuple[set[str], list[str]]:
    """Returns the states of what the programs returned and logged, and sentences about where the
    difference begins: the module, outputs, logged values."""
    begins = None
    if layer is not None and layer.module:
        begins = "; ".join(filter(None, (layer.words, computed_between(base, run, layer))))
    outputs = outputs_differ(base, run)
    bits = far = values_differ(base, run, 0.0)
    if bits and mode != "bitwise":
        far = values_differ(base, run, max(RELATIVE["float32"], least_tolerance(base, run)))
    states = set()
    if far or (outputs and mode == "bitwise"):
        states = {"different"}
    elif bits or outputs:
        states = {"within_tolerance"}
    return states, [words for words in (begins, outputs, far or bits) if words]


@lru_cache(maxsize=2)
def _prepared(base: Run, run: Run) -> tuple[Run, Run, list[str], Renamed]:
    """Both runs with base's ranks and modules as run has them; what to say of ranks, and names."""
    base, run = comparable(base, run)
    base, roles = by_role(base, run)
    base, run, again = rebuilt(continued(base, run), run)
    names = renamed(base, run)
    return names.run, run, [*roles, *again], names


def _values_of_rank(
    base: Run, run: Run, rank: int, mode: Mode, floor: Floor | None
) -> ValueDifferences:
    """What differs in a rank of two runs as they were opened."""
    return of_rank(*_prepared(base, run)[:2], rank, mode, floor)


def _check_mode(mode: str, noise: Run | None) -> None:
    """Raises RunError for an unknown mode, or a noise floor that the mode does not use."""
    if mode not in MODES:
        raise RunError(f"no mode {mode!r}, expected one of {', '.join(MODES)}")
    if noise is not None and mode != "tolerance":
        raise RunError(f"a noise floor is for mode tolerance, not for mode {mode}")


def _floor_notes(floors: tuple[Floor, Floor] | None) -> list[str]:
    """Returns the note on the noise floors of tensors and norms, if any."""
    if floors is None:
        return []
    sides = (f"{what}: {one.words()}" for what, one in zip(_FLOORS, floors, strict=True))
    return [f"noise floor of the two baselines at the last step, {', '.join(sides)}"]


def _verdict(
    states: Set[str], norms: int, ops: int, tensors: int, alone: tuple[Unpaired, Unpaired]
) -> _Verdict:
    """Returns the verdict on what both runs have: counts of pairs, and the states of these."""
    nothing = norms + ops == 0 or (norms + tensors == 0 and any(one.count for one in alone))
    if nothing or "different" in states:
        return "diverged"
    return "within_tolerance" if "within_tolerance" in states else "identical"


def _all_rows(norms: pd.DataFrame, calls: pd.DataFrame, tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Norms, then calls, then tensors by step and time."""
    frames = [norms, calls]
    if tables:
        rows = pd.concat(tables, ignore_index=True)
        frames.append(rows.sort_values(["step", "time_ns"], kind="stable", ignore_index=True))
    return pd.concat(frames, ignore_index=True).reindex(columns=list(TABLE_COLUMNS))


def _alone_notes(
    base: Run, run: Run, alone: tuple[Unpaired, Unpaired], names: Renamed
) -> list[str]:
    """Returns which names differ, and why operators have no partner: settings or torch.compile."""
    found = [names.words()]
    if any(one.ops for one in alone):
        found += [settings_words(base, run), compiled_words(base, run)]
    return [words for words in found if words]


def _explained(
    base: Run, run: Run, norms: pd.DataFrame, values: ValueDifferences | None
) -> list[str]:
    """Returns the known causes of the differences."""
    notes = []
    first = values.first.entry if values is not None and values.first is not None else None
    if world_sizes.shares_differ(base, run):
        shared = norms[norms["base"].notna() & norms["run"].notna()]
        ranks = base.world_size != run.world_size
        about = world_sizes.notes if ranks else world_sizes.notes_on_passes
        notes += about(base, run, shared, first, values.left_out if values else 0)
    factor = world_sizes.common_factor(base, run, norms[norms["state"] == "different"])
    notes += [] if factor is None else [factor]
    return notes if first is None else [*notes, *hints(base, run, first)]


def _no_values(base: Run, run: Run) -> str:
    without = [side for side, one in (("base", base), ("run", run)) if not one.counts["tensor"]]
    return (
        f"values of operators were not compared: {' and '.join(without)} recorded none "
        "(lanescope record --level numerics)"
    )


def _first_of_all(
    values: ValueDifferences | None, norms: pd.DataFrame, layer: FirstLayer | None, wanted: str
) -> dict[str, Any] | None:
    decides = values is not None and (wanted == "within_tolerance" or values.different)
    if values is not None and values.first is not None and decides:
        return values.first.entry
    return first_norm(norms, layer)


_FLOORS = ("tensors", "norms of gradients")
