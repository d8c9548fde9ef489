"""Finds parameters that do not learn, and the cause.

A layer is a module with parameters of its own. Causes:

- no_gradient: the loss leads to it, and a function of the program's own returns no gradient for it;
- unused: its parameters' gradient was None at every step, of _UNUSED_STEPS or more;
- zero: its gradient was exactly zero at every step, of _ZERO_STEPS or more, or at the last
  FELL_SILENT steps after it had not been, and for more than TURNS times as long as ever before
  (not where it had shrunk to _CONVERGED at the last _CONVERGED_STEPS, or the loss to _REACHED
  before it became 0: all samples keep their margin);
- library: unused, in a module that code of a library calls, or does not call;
- stopped: they had gradients, and none at the last FELL_SILENT steps, for more than TURNS times as
  long as ever before, though they are still trainable;
- not_in_optimizer: it is trainable and has gradients, no optimizer of the run ever held it, and
  its value does not change (something else may train it);
- clipped, rounded, no_rate, undone: its optimizer's steps change nothing, or not for good
  (`unmoved`);
- frozen, replaced: an optimizer holds it, or what it was replaced by, in vain (`held_in_vain`);
- decay: weight decay was stronger than the gradient at last (`decaying_since`).

Layers that have a gradient now and then (experts, heads that take turns) are not reported, nor are
frozen ones. Adapters have an analysis of their own (`lora`).
"""

from __future__ import annotations

from typing import TypedDict

import pandas as pd

from lanescope.collector.format.names import ZERO_LOSS
from lanescope.webapp.analysis.arrow_columns import texts_of
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import and_more, at_place
from lanescope.webapp.analysis.nothing_to_check import need_steps
from lanescope.webapp.analysis.parameter_history import (
    UNNAMED,
    gradient_rows,
    logged,
    samples,
    sharded_names,
    streaks,
)
from lanescope.webapp.analysis.process_exits import reduction_unfinished
from lanescope.webapp.plugins.autograd_graph.autograd_graph import reached_parameters
from lanescope.webapp.plugins.learning.held_parameters import Found, frozen, join_replaced, stuck
from lanescope.webapp.plugins.learning.layers_made_in_forward import made_of
from lanescope.webapp.plugins.learning.lora import is_lora
from lanescope.webapp.plugins.learning.lost_gradients import (
    LossPlace,
    end_of_gradient,
    left_by_libraries,
    none_advice,
    not_returned,
    why_zero,
    zeroed_between,
)
from lanescope.webapp.plugins.learning.scaling import UNDERFLOWS, underflows
from lanescope.webapp.plugins.learning.update_effects import (
    decaying_since,
    decays,
    faded_at,
    unmoved,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray

_UNUSED_STEPS = 2  # optimizer steps
_ZERO_STEPS = 5  # optimizer steps
FELL_SILENT = 10  # optimizer steps, the last of the run
TURNS = 2.0  # times the longest stretch before that it was zero for
_CONVERGED = 1e-5  # of the largest gradient
_CONVERGED_STEPS = 3  # optimizer steps, the last before
_REACHED = 0.1  # of the largest loss, the last one above 0
_LISTED = 20  # parameters named in the evidence

_WORDS = {
    "unused": (
        "never gets a gradient",
        "never get a gradient",
        "The loss does not depend on {it}: use {its} output without detach(), or freeze {it}.",
    ),
    "library": (
        "never gets a gradient: the library that holds it does not use it",
        "never get a gradient: the library that holds them does not use them",
        "Freeze {it} to save memory, or ignore this.",
    ),
    "no_gradient": (
        "never gets a gradient, though the loss leads to it",
        "never get a gradient, though the loss leads to them",
        "",
    ),
    "zero": (
        "has a gradient of exactly zero",
        "have gradients of exactly zero",
        "Look for dead activations, a mask, or a factor of 0.",
    ),
    "stopped": (
        "had gradients, and gets none any more",
        "had gradients, and get none any more",
        "Look for no_grad() or detach() that begins there; freeze {it} with requires_grad_(False) "
        "where that is meant.",
    ),
    "not_in_optimizer": (
        "has gradients that no optimizer uses",
        "have gradients that no optimizer uses",
        "Add {it} to an optimizer, or freeze {it}.",
    ),
    "clipped": (
        "hardly changes, as its gradient is clipped to almost nothing",
        "hardly change, as their gradients are clipped to almost nothing",
        "Check max_norm (or clip_value), and the scale of the loss.",
    ),
    "rounded": (
        "does not change, as its optimizer's steps are lost in the rounding of its 16 bits",
        "do not change, as their optimizer's steps are lost in the rounding of their 16 bits",
        "Keep {it} in float32, or raise the learning rate.",
    ),
    "no_rate": (
        "does not change, as its learning rate is 0 or next to it",
        "do not change, as their learning rate is 0 or next to it",
        "Check the parameter group's lr and when the scheduler steps; freeze {it} where that is "
        "meant.",
    ),
    "undone": (
        "does not learn: steps change it, and before each it has its first value again",
        "do not learn: steps change them, and before each they have their first values again",
        "Find what writes the old values back.",
    ),
    "frozen": (
        "is frozen at every sampled step, though an optimizer has a group for it alone",
        "are frozen at every sampled step, though an optimizer has a group for them alone",
        "Call requires_grad_(True) on {it}, or leave {it} out of the optimizer to keep {it} as "
        "loaded (Embedding.from_pretrained() freezes unless freeze=False).",
    ),
    "replaced": (
        "has gradients that no optimizer uses: it replaced a parameter after the optimizer was "
        "built",
        "have gradients that no optimizer uses: they replaced parameters after the optimizer was "
        "built, which still holds the old ones",
        "Build the optimizer after the last change of the model, or add_param_group() {it}.",
    ),
    "decay": (
        "shrinks: weight decay is stronger than its gradient",
        "shrink: weight decay is stronger than their gradients",
        "Lower weight_decay, or exclude {it} from it.",
    ),
}
"""What to say of one parameter, of several, and what to do."""

_SEVERE = ("no_gradient", "replaced", "zero")
_OF_ALL = {
    "frozen": "All parameters are frozen at every sampled step: nothing is trained",
    "unused": "No parameter has a gradient when the optimizer steps",
    "zero": "All gradients are exactly zero",
    "no_rate": "No parameter changes: the learning rate is 0 or next to it",
}
"""What to say where it holds for all that optimizers hold."""


class DeadParameter(TypedDict):
    """Parameters that do not learn, and why."""

    cause: str


def dead_parameters(run: Run) -> list[Finding]:
    """Returns findings of kind `dead_parameter`, one per cause. Raises NotApplicable."""
    rows = need_steps(run)
    rows = rows[~is_lora(rows["parameter"]) & (rows["numel"] > 0)]
    sampled = samples(run)
    idle = frozen(sampled)  # with adapters, which are trained, in its groups
    idle = idle[~is_lora(idle["parameter"])]
    sampled = sampled[~is_lora(sampled["parameter"]) & sampled["trainable"].astype(bool)]
    held = set(zip(gradient_rows(run)["rank"], gradient_rows(run)["parameter"], strict=True))
    found: Found = {}

    def add(cause: str, name: str, rank: int, step: int, numel: int) -> None:
        entry = found.setdefault(cause, {}).setdefault(name, (step, numel, []))
        entry[2].append(rank)

    least = 1 if reduction_unfinished(run) else _UNUSED_STEPS  # it allows a single step
    trained = _trained(sampled, least)
    ended = logged(run, None, ZERO_LOSS)[lambda rows: rows["value"] <= _REACHED]
    for (rank, _), group in _suspects(rows).groupby(["rank", "layer"], sort=False):
        since = _unused(group, trained.get(int(rank), set()), least)
        cause = "unused"
        if since is None:
            since, cause = _stopped(group, sampled[sampled["rank"] == rank]), "stopped"
        if since is None:
            done = {*ended.loc[ended["rank"] == rank, "step"]}
            since, cause = _zero(group, done), "zero"
        if since is not None:
            for name, numel in group.groupby("parameter", sort=False)["numel"].first().items():
                add(cause, str(name), int(rank), since, int(numel))
    # Once for all: of ten thousand parameters nearly every one is neither.
    sampled = sampled.assign(decays=decays(sampled))
    last = sampled.drop_duplicates(["rank", "parameter"], keep="last")
    owned = pd.MultiIndex.from_frame(last[["rank", "parameter"]]).isin(held)
    suspects = pd.MultiIndex.from_frame(last.loc[last["decays"] | ~owned, ["rank", "parameter"]])
    suspected = pd.MultiIndex.from_frame(sampled[["rank", "parameter"]]).isin(suspects)
    for (rank, name), group in sampled[suspected].groupby(["rank", "parameter"], sort=False):
        first = group.iloc[0]
        if (rank, name) not in held and stuck(group):
            add("not_in_optimizer", str(name), int(rank), int(first["step"]), int(first["numel"]))
        since = decaying_since(group)
        if since is not None and str(name) not in found.get("zero", {}):
            add("decay", str(name), int(rank), since, int(first["numel"]))
    for cause, own in {"frozen": idle, **unmoved(run, sampled)}.items():
        for (rank, name), group in own.groupby(["rank", "parameter"], sort=False):
            first = group.iloc[0]
            add(cause, str(name), int(rank), int(first["step"]), int(first["numel"]))
    _of_functions(run, rows, found)
    join_replaced(found)
    if not rows["missing"].all() and not reduction_unfinished(run):
        _leave_to_libraries(run, found)
    had = {cause: set(rows.loc[~rows["missing"], "parameter"]) for cause in _OF_ALL}
    had["frozen"] = {name for _, name in held}
    return [
        _finding(run, cause, names, whole=cause in _OF_ALL and had[cause] <= set(names))
        for cause, names in found.items()
        if names
    ]


def _of_functions(run: Run, rows: pd.DataFrame, found: Found) -> None:
    """Adds parameters for which a function of the program's own returns no gradient."""
    for rank in run.ranks:
        for name in not_returned(run, rank):
            own = rows[(rows["rank"] == rank) & (rows["parameter"] == name)]
            if len(own):
                found.get("unused", {}).pop(name, None)
                place = int(own["step"].iloc[0]), int(own["numel"].iloc[0]), list[int]()
                found.setdefault("no_gradient", {}).setdefault(name, place)[2].append(rank)


def _leave_to_libraries(run: Run, found: Found) -> None:
    """Puts what only packages leave unused under the cause `library`."""
    unused = found.get("unused", {})
    for name, one in list(unused.items()):
        if all(name in left_by_libraries(run, rank) for rank in one[2]):
            found.setdefault("library", {})[name] = unused.pop(name)


def _suspects(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of layers without a gradient other than zero at the last step: no other is dead."""
    last = rows.drop_duplicates(["rank", "parameter"], keep="last")
    alive = last[~last["missing"] & (last["norm"] != 0)]
    living = pd.MultiIndex.from_frame(alive[["rank", "layer"]])
    return rows[~pd.MultiIndex.from_frame(rows[["rank", "layer"]]).isin(living)]


def _trained(sampled: pd.DataFrame, least: int) -> dict[int, set[str]]:
    """Per rank the parameters that were seen to be trainable at `least` steps."""
    counts = sampled.groupby(["rank", "parameter"], sort=False).size()
    found: dict[int, set[str]] = {}
    for rank, name in counts.index[counts >= least]:
        found.setdefault(int(rank), set()).add(str(name))
    return found


def _unused(layer: pd.DataFrame, trained: set[str], least: int) -> int | None:
    """Since when a trainable layer has no gradient; None: it had one, or is frozen."""
    if not set(layer["parameter"]) & trained or not layer["missing"].all():
        return None
    if layer["call"].nunique() < least:
        return None
    return int(layer["step"].iloc[0])


def _stopped(layer: pd.DataFrame, sampled: pd.DataFrame) -> int | None:
    """Since when a layer that had gradients has none; None: it has, never had, or was frozen."""
    calls = layer.groupby("call")
    missing, steps = calls["missing"].all().to_numpy(), calls["step"].first()
    since = _silent_since(missing)
    if since is None or missing.all():
        return None
    after = sampled[sampled["step"] >= steps.iloc[since]]
    if not after["parameter"].isin(set(layer["parameter"])).any():
        return None  # no longer trainable, or not looked at since
    return int(steps.iloc[since])


def _silent_since(silent: BoolArray) -> int | None:
    """Begin of the stretch that lasts to the end, where it is long and longer than any before."""
    stretches = [(high - low, low, high) for low, high in streaks(silent)]
    length, since, until = stretches.pop() if stretches else (0, 0, 0)
    if length < FELL_SILENT or until < len(silent):
        return None
    if stretches and length <= TURNS * max(stretches)[0]:
        return None
    return since


def _zero(layer: pd.DataFrame, done: set[int]) -> int | None:
    """Since when a layer's gradient is zero; None: it is not, or all its steps are `done`."""
    there = layer[~layer["missing"]]
    largest = there.groupby("call")["norm"].max()
    steps = there.groupby("call")["step"].first()
    if len(largest) and not (largest != 0).any():
        return int(steps.iloc[0]) if len(largest) >= _ZERO_STEPS else None
    since = _silent_since(largest.to_numpy() == 0)
    if since is None or done.issuperset(steps.iloc[since:]) or _converged(largest.iloc[:since]):
        return None
    return int(steps.iloc[since])


def _converged(norms: pd.Series) -> bool:
    """Whether gradients had shrunk to the rounding of what they were: the minimum was reached."""
    last = norms[norms > 0].iloc[-_CONVERGED_STEPS:]
    return bool(last.max() <= _CONVERGED * norms.max())


def _finding(
    run: Run, cause: str, names: dict[str, tuple[int, int, list[int]]], *, whole: bool
) -> Finding:
    first = next(iter(names))
    step, _, ranks = names[first]
    several, ended_by_it = len(names) > 1, False
    where = faded_at(run, ranks[0]) if cause == "no_rate" else None
    *verbs, advice = _WORDS[cause]
    words = f"{_called(first, names[first][1])}{and_more(len(names), 'parameter')} {verbs[several]}"
    if cause == "unused" and UNNAMED.fullmatch(first):
        advice = "No module that ran holds {it}: build the optimizer last, or leave {it} out."
    it, its = ("them", "their") if several else ("it", "its")
    advice = advice.format(it=it, its=its)
    if whole:
        words = _OF_ALL[cause]
    if cause == "zero" and underflows(run, ranks[0]):
        advice = UNDERFLOWS
    elif cause == "zero" and (why := why_zero(run, ranks[0], {*names}, whole=whole)):
        where, advice = why
    elif whole and cause == "unused":
        where, advice = none_advice(run, ranks[0], first)
    elif cause == "zero" and decays(last := _last(run, ranks[0], first)).any():
        advice += f" Weight decay of {last['weight_decay'].iloc[0]:g} still changes {it}: to "
        advice += f"freeze {it}, set requires_grad_(False) in place of gradients of zero."
    elif cause == "no_gradient":
        where = not_returned(run, ranks[0])[first] or None
        advice = f"The backward of the function{at_place(where)} returns None for "
        advice += f"{it}: return the gradient of {it}."
    elif cause == "unused" and (made := made_of(run, ranks[0]).get(first)):
        where = made
        advice = f"nn.Parameter(...) at {made} makes another parameter of it in each forward: use "
        advice += f"{first} itself there."
    elif cause == "unused" and (cut := _cut(run, ranks[0], first)) is not None:
        where, advice = cut[0], f"Check {cut[1]}."
    elif cause == "unused" and not whole and first in reached_parameters(run, ranks[0]):
        cause, advice = "taken_away", f"The loss leads to {it}: its gradient is set to None."
    elif cause == "unused" and len(run.ranks) > 1 and first not in sharded_names(run):
        advice += " DistributedDataParallel needs find_unused_parameters=True for such parameters"
        ended_by_it = reduction_unfinished(run)
        advice += ": that is what ended this run." if ended_by_it else "."
    # What stops for all half-way may be meant: a margin that all samples keep, a schedule's end.
    severe = ended_by_it or (not step if whole else cause in _SEVERE)
    return finding_at(
        run,
        ranks[0],
        step,
        kind="dead_parameter",
        severity="info" if cause in ("library", "taken_away") else "error" if severe else "warning",
        # Some are left out of the optimizer on purpose, and not frozen.
        confidence="likely" if cause == "not_in_optimizer" else "certain",
        title=f"{words} (since step {step}). {advice}",
        ranks=tuple(ranks),
        where=where,
        evidence={
            "cause": cause,
            "parameters": list(names)[:_LISTED],
            "dead": len(names),
            "elements": sum(numel for _, numel, _ in names.values()),
        },
    )


def _last(run: Run, rank: int, name: str) -> pd.DataFrame:
    known = samples(run)
    return known[(known["rank"] == rank) & (known["parameter"] == name)].iloc[-1:]


def _cut(run: Run, rank: int, name: str) -> LossPlace | None:
    """Returns where the gradient ends on its way to a parameter that forward used, and what to do.

    None where the recorded graph has no such place, or several.
    """
    if name.rpartition(".")[0] not in texts_of(run, "op", "module", rank):
        return None
    return zeroed_between(run, rank, name) or end_of_gradient(run, rank, single=True)


def _called(name: str, elements: int) -> str:
    """Returns the name of a parameter; of one of no module its place in the optimizer."""
    place = UNNAMED.fullmatch(name)
    if place is None:
        return name
    size = units.counted(elements, "element")
    return f"Parameter {place[2]} of optimizer {place[1]} ({size})"
