"""Finds training in which gradients are computed and thrown away: an optimizer never steps.

Proven by the recording: an optimizer exists, as its zero_grad() runs between backward passes, no
optimizer made a step, and the program changes nothing in place outside of forward and backward, as
an update by hand would. Compiled regions may hold a step, so runs with them are left out.

Where others step, an optimizer of a class of its own is found whose zero_grad() runs and whose
step() never does, if there are parameters that no optimizer steps: one that wraps another, as SAM
does, leaves the step to it.

An optimizer may update each parameter in a hook as soon as its gradient is there (LOMO): where
parameters are written during backward, nothing is found.
"""

from __future__ import annotations

import re

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.access_site import accesses_among, storage_names
from lanescope.webapp.analysis.arrow_columns import having, texts_of, to_frame
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, NotApplicable
from lanescope.webapp.analysis.links import at_place, timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_backward
from lanescope.webapp.analysis.parameter_history import rank_gradient_rows, samples
from lanescope.webapp.analysis.stack_frames import own_place, phase_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

MIN_THROWN_AWAY = 3
"""Backward passes whose gradients are zeroed before any use."""

_ZEROES = re.compile(r"^Optimizer\.zero_grad#(\w+)")
_FILLS = "fill|zero|detach|requires_grad|uniform|normal|random|bernoulli|trunc_normal|resize"
_UPDATES = re.compile(rf"^aten::(?!({_FILLS})_$)\w+_$")
_BACKWARD, _OPTIMIZER = (schema.PhaseKind.backward.name, schema.PhaseKind.optimizer.name)
_ZEROING = ("start_ns", "name", "thread", "stack")
_PLACE = ("depth", "phase")
_PHASES = ("start_ns", "duration_ns", "kind", "name")


def no_step(run: Run) -> list[Finding]:
    """Returns findings of kind `dead_parameter`, at most one. Raises NotApplicable."""
    need_backward(run)
    passes = run.events("phase", columns=["rank", *_PHASES])
    kinds = passes["kind"].cast(pa.string())
    # What steps on another rank may send its weights to this one.
    stepped = set(passes.filter(pc.equal(kinds, _OPTIMIZER))["name"].to_pylist())
    if stepped:
        found = [one for rank in run.ranks for one in _idle_optimizers(run, rank)]
        return [one for one in found if f"{one.evidence['optimizer']}.step" not in stepped]
    if schema.OpScope.compiled.name in texts_of(run, "op", "scope"):
        raise NotApplicable("compiled regions may hold the optimizer's step")
    backward = to_frame(passes.filter(pc.equal(kinds, _BACKWARD)))
    zeroed = []
    for rank, own in backward.groupby("rank", sort=True):
        ops = _operators(run, int(str(rank)), updates=True)
        zeroing = ops[ops["name"].str.match(_ZEROES)]
        thrown = zeroing[_followed(own["start_ns"], zeroing["start_ns"])]
        by_hand = _updates(ops, int(own["start_ns"].min()))
        if len(thrown) >= MIN_THROWN_AWAY and not by_hand and not _in_backward(run, rank, own):
            zeroed.append((int(str(rank)), thrown, len(own)))
    return [_finding(run, *zeroed[0], tuple(rank for rank, *_ in zeroed))] if zeroed else []


@per_rank
def _idle_optimizers(run: Run, rank: int) -> list[Finding]:
    """A finding for each optimizer of a class that never steps, beside others that do."""
    phases = to_frame(run.events("phase", rank, columns=_PHASES))
    kinds = phases["kind"].astype("str")
    stepped = {str(name) for name in phases.loc[kinds == _OPTIMIZER, "name"]}
    names = filter(_ZEROES.match, texts_of(run, "op", "name", rank))
    if {f"{_class_of(name)}.step" for name in names} <= stepped:
        return []  # so that the operators need not be read
    known = samples(run)
    known = known[(known["rank"] == rank) & known["trainable"].astype(bool)]
    if set(known["parameter"]) <= set(rank_gradient_rows(run, rank)["parameter"]):
        return []
    found = []
    passes = phases[kinds == _BACKWARD]
    for name, own in _operators(run, rank, updates=False).groupby("name", sort=True):
        kind = _class_of(str(name))
        thrown = own[_followed(passes["start_ns"], own["start_ns"])]
        if f"{kind}.step" not in stepped and len(thrown) >= MIN_THROWN_AWAY:
            found.append(_idle(run, rank, kind, thrown))
    return found if found and not _in_backward(run, rank, passes) else []


def _class_of(zero_grad: str) -> str:
    """The optimizer's class, from the name of its slices."""
    return zero_grad.partition("#")[2].partition(".")[0]


def _idle(run: Run, rank: int, kind: str, thrown: pd.DataFrame) -> Finding:
    stacks = thrown["stack"].dropna()
    where = own_place(run, rank, int(stacks.iloc[0])) if len(stacks) else None
    start = int(thrown["start_ns"].iloc[0])
    return Finding(
        kind="dead_parameter",
        severity="warning",
        confidence="likely",
        title=f"{kind} never steps: its zero_grad(){at_place(where)} threw "
        f"gradients away {units.count(len(thrown))} times, and only other optimizers stepped, so "
        "what it holds is not trained. Call its step() after backward() as well.",
        rank=rank,
        thread=str(thrown["thread"].iloc[0]),
        time_ns=start,
        where=where,
        evidence={"cause": "no_step", "optimizer": kind},
        link=timeline_address(start, start + 1, run.duration_ns),
    )


def _operators(run: Run, rank: int, *, updates: bool) -> pd.DataFrame:
    """Calls of zero_grad, and where `updates` asks for them outermost operators in place outside of
    all phases."""
    columns = [*_ZEROING, *(_PLACE if updates else ())]
    parts = []
    for piece in run.pieces("op", rank, columns=columns):
        chosen = having(piece["name"], _ZEROES.match)
        if updates:
            outside = having(piece["phase"], lambda phase: not phase)
            outside &= pc.equal(piece["depth"], 0).fill_null(False).to_numpy()
            chosen |= having(piece["name"], _UPDATES.search) & outside
        if chosen.any():
            parts.append(to_frame(piece.filter(pa.array(chosen))))
    ops = pd.concat(parts) if parts else pd.DataFrame(columns=columns)
    return ops.assign(name=ops["name"].astype("str")).sort_values("start_ns", ignore_index=True)


def _followed(begins: pd.Series, zeroed: pd.Series) -> pd.Series:
    """Which calls of zero_grad have a backward between them and the call before."""
    passed = begins.sort_values().searchsorted(zeroed.to_numpy())
    return pd.Series(passed, zeroed.index).diff().fillna(0) > 0


def _updates(ops: pd.DataFrame, since: int) -> bool:
    """Whether the program may update by hand: it changes tensors in place, time and again."""
    own = ops[~ops["name"].str.match(_ZEROES) & (ops["start_ns"] >= since)]
    return len(own) >= MIN_THROWN_AWAY


def _in_backward(run: Run, rank: int, passes: pd.DataFrame) -> bool:
    """Whether operators during backward passes write parameters, time and again."""
    if not run.counts_of(rank)["access"]:
        return _in_hooks(run, rank)
    columns = ["start_ns", "storage", "write", "birth"]
    written = accesses_among(run, rank, "storage", list(storage_names(run, rank)), columns)
    written = written[written["write"] & ~written["birth"]]
    passes = passes.sort_values("start_ns")
    of_pass = passes["start_ns"].searchsorted(written["start_ns"], side="right") - 1
    ends = (passes["start_ns"] + passes["duration_ns"]).fillna(run.duration_ns).to_numpy()
    within = (of_pass >= 0) & (written["start_ns"].to_numpy() < ends[of_pass])
    return int(within.sum()) >= MIN_THROWN_AWAY


def _in_hooks(run: Run, rank: int) -> bool:
    """Whether backward passes hold operators in place that autograd does not need: beside its
    nodes or in those that accumulate a gradient, which itself takes add_ where one was zeroed."""
    others, adds, zeroed = 0, 0, False
    for piece in run.pieces("op", rank, columns=["name", "depth", "phase"]):
        ops = to_frame(piece.filter(pc.less_equal(piece["depth"], 1)))
        names, inner = ops["name"].astype("str"), ops["depth"] == 1
        outer = names.where(~inner).ffill().fillna("")
        zeroed |= bool((inner & outer.str.match(_ZEROES) & names.str.endswith("zero_")).any())
        own = (ops["phase"].astype("str") == _BACKWARD) & names.str.match(_UPDATES)
        accumulates = inner & (outer == "AccumulateGrad")
        plain = names.isin(["aten::add_", "aten::copy_"])
        others += int((own & ~plain & (accumulates | ~inner)).sum())
        adds += int((own & (names == "aten::add_") & accumulates).sum())
    return others + (0 if zeroed else adds) >= MIN_THROWN_AWAY


def _finding(
    run: Run, rank: int, thrown: pd.DataFrame, passes: int, ranks: tuple[int, ...]
) -> Finding:
    first = thrown.iloc[0]
    name = _ZEROES.match(str(first["name"]))
    optimizer = "" if name is None else name[1]
    where = phase_place(run, rank, _BACKWARD, None)
    start = int(first["start_ns"])
    return Finding(
        kind="dead_parameter",
        severity="error",
        title=f"Nothing is trained: backward ran {units.count(passes)} times"
        + at_place(where)
        + f", {optimizer}.zero_grad() threw its gradients away {units.count(len(thrown))} times, "
        "and no optimizer ever stepped. Call optimizer.step() after loss.backward().",
        rank=rank,
        ranks=ranks,
        thread=str(first["thread"]),
        time_ns=start,
        where=where,
        evidence={"cause": "no_step", "optimizer": optimizer, "backward": passes},
        link=timeline_address(start, start + 1, run.duration_ns),
    )
