"""Says where the gradients of all parameters are lost, where an optimizer steps without any.

They are thrown away between backward and step, or backward ran from a loss that the parameters do
not lead to: the forward made no graph, or what it made was detached or turned into a number.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import pandas as pd
import pyarrow as pa

from lanescope.collector.format import schema
from lanescope.collector.format.names import CLIP_LIMIT, CLIP_VALUE
from lanescope.webapp.analysis.access_site import reading
from lanescope.webapp.analysis.arrow_columns import having, stack_of, texts_of, to_frame
from lanescope.webapp.analysis.forward_ops import DETACH, NUMBERS
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.parameter_history import UNNAMED, gradient_rows, logged, samples
from lanescope.webapp.analysis.stack_frames import (
    frames_of,
    in_program,
    library_modules,
    own_place,
    phase_place,
    short_place,
)
from lanescope.webapp.plugins.autograd_graph.autograd_graph import (
    forward_operators,
    graph_nodes,
    reached_parameters,
)
from lanescope.webapp.plugins.autograd_graph.gradient_breaks import COMPARISONS, breaks
from lanescope.webapp.plugins.learning.update_effects import why_all_zero
from lanescope.webapp.runs.run import Run

LossPlace = tuple[str | None, str]
"""file.py:12, and a sentence that says what happens there and what to do."""

OF_A_NUMBER = "detach_"  # with what torch.tensor(number) ends

ZEROED = re.compile(r"^Optimizer\.zero_grad#|^aten::(_foreach_)?zero_$")

_BACKWARD, _FORWARD, _OPTIMIZER = (
    schema.PhaseKind[name].name for name in ("backward", "forward", "optimizer")
)
_COLUMNS = ["start_ns", "name", "depth", "module", "sequence", "stack"]

NO_GRAPH = "runs without recording a gradient; take it out of no_grad()"
_INFINITE = re.compile(r"(Acos|Asin|Log|Log10|Log2|Rsqrt|Sqrt)Backward\d*")
"""Nodes whose gradient is infinite at 0, or at 1."""

_FLAT = re.compile(r"(Ceil|Floor|Round|Sgn|Sign|Trunc)Backward\d*")
"""Nodes whose gradient is 0."""

_ENDS = {
    "no_grad": NO_GRAPH,
    "checkpoint": "runs its function without gradients, because none of its inputs needs one; call "
    "checkpoint() with use_reentrant=False, or (transformers) model.enable_input_require_grads()",
    "detached": "passes the result on without its gradient; leave it out",
    "number": "makes a Python number of a result that is used nowhere else, which carries no "
    "gradient; add the tensor itself to the loss",
    "integer": "has whole numbers or truth values as its result, which carry no gradient; take a "
    "loss of the scores themselves",
    "in_place": "overwrites what backward knows by its old value; leave `.data` out",
}
"""Causes of breaks in the autograd graph that a program can take away, and how."""
_SINGLE = ("no_grad", "checkpoint", "detached", "number")
"""Of these the only one in a graph is where the gradient of a part of it ends."""
_MOST = 0.75
"""Share of the parameters that forward uses: where more have no gradient, it is due to the loss."""


def where_infinite(run: Run, rank: int) -> LossPlace | None:
    """The only line of the first loss with an operator whose gradient can be infinite, and what to
    do; None: there are none or several."""
    found = _only_line(run, rank, _INFINITE)
    if found is None:
        return None
    where, called = found
    ends = "1 and -1" if called in ("acos", "asin") else "0"
    return where, (
        f"Check {called}() at {where} first, the only operator of the loss whose gradient is "
        f"infinite at {ends}: keep its input away from there, as by clamp() or by adding 1e-8. "
        "Then check the learning rate, and divisions by 0."
    )


def why_zero(run: Run, rank: int, names: set[str], *, whole: bool) -> LossPlace | None:
    """Why the gradients of parameters are zero; `whole`: all are. None: not known."""
    if whole and _clips_to_zero(run, rank):
        return None, "They are clipped to 0: raise max_norm (or clip_value)."
    known = samples(run)[lambda rows: (rows["rank"] == rank) & rows["parameter"].isin(names)]
    if known["parameter"].nunique() > 1 and not known["norm"].any():
        one = "parameters of the optimizers" if whole else "these parameters"
        return None, f"All {one} are 0: initialise them, as A of LoRA."
    flat = _only_line(run, rank, _FLAT)
    if flat is not None:
        return flat[0], (
            f"The gradient of {flat[1]}() at {flat[0]} is 0 everywhere: pass it on as if that "
            f"function did nothing, x + ({flat[1]}(x) - x).detach()."
        )
    if not whole:
        return None
    return _thrown_away(run, rank, _phases(run, rank), zeroed=True) or (
        None,
        why_all_zero(run, rank),
    )


def _clips_to_zero(run: Run, rank: int) -> bool:
    limits = [logged(run, rank, name)["value"] for name in (CLIP_LIMIT, CLIP_VALUE)]
    return any(len(one) and one.max() <= 0 for one in limits)


def _only_line(run: Run, rank: int, nodes_named: re.Pattern[str]) -> tuple[str, str] | None:
    """The only line whose operators have nodes of some names in the first graph, and what it calls;
    None: there are none or several."""
    nodes = graph_nodes(run, rank)
    own = nodes[nodes["name"].astype("str").str.fullmatch(nodes_named) & nodes["sequence"].notna()]
    if own.empty:
        return None
    ops = forward_operators(run, rank, nodes, ["sequence", "name", "stack"])
    ops = ops[ops["sequence"].isin(own["sequence"])].drop_duplicates("sequence", keep="last")
    places = {own_place(run, rank, stack_of(op)) for _, op in ops.iterrows()}
    where = places.pop() if len(places) == 1 else None
    if where is None:
        return None
    return where, str(ops["name"].iloc[0]).removeprefix("aten::")


def where_all_are_lost(run: Run, rank: int) -> LossPlace | None:
    """Where the gradients of all parameters of a rank are lost; None: not known."""
    phases = _phases(run, rank)
    backward = phases[phases["kind"] == _BACKWARD]
    if backward.empty:
        return None
    nodes = graph_nodes(run, rank)
    held = gradient_rows(run)
    held = held.loc[held["rank"] == rank, "parameter"]
    if len(nodes) and nodes["parameter"].isin(held).any():  # backward reached some of them
        return _thrown_away(run, rank, phases, zeroed=False)
    thrown = _thrown_away(run, rank, phases, zeroed=True) if nodes.empty else None
    cut = end_of_gradient(run, rank, single=False)
    if nodes.empty:
        cut = cut_before(run, rank, int(backward["start_ns"].iloc[0]))
    return thrown if cut is None else (cut[0], f"The gradient ends at {cut[1]}.")


def zeroed_between(run: Run, rank: int, name: str) -> LossPlace | None:
    """Where the gradient of a parameter that the first backward reaches is set to zero or None
    before another backward and the first step; None: it is not."""
    if name not in reached_parameters(run, rank):
        return None
    phases = _phases(run, rank)
    steps, backward = (phases[phases["kind"] == kind] for kind in (_OPTIMIZER, _BACKWARD))
    passes = backward[backward["start_ns"] < steps["start_ns"].min()]
    if len(passes) < 2:
        return None
    first, second = passes.iloc[0], passes.iloc[1]
    since, until = int(first["end_ns"]), int(second["start_ns"])
    ops = _operators(run, rank, str(first["thread"]), since, until)
    if not ops["name"].str.match(ZEROED).any():
        return None
    windows = ((int(one["start_ns"]), int(one["end_ns"])) for one in (first, second))
    at, then = (phase_place(run, rank, _BACKWARD, one) for one in windows)
    return then, (
        f"{then or 'the training loop'}: zero_grad() before this backward() throws away what "
        f"backward(){at_place(at)} computed; call it once per step, before the first one"
    )


def end_of_gradient(run: Run, rank: int, *, single: bool) -> LossPlace | None:
    """The break in the recorded graph that all its ends lead to; with `single` it has one place.

    Without, the first of several lines is where the gradient ends for what comes before it.
    """
    found = [one for one in breaks(run, rank) if one.where and one.cause in _ENDS]
    if single:
        found = [one for one in found if one.cause in _SINGLE]
    if not found or (single and len(found) > 1):
        return None
    cut = found[0]
    where = short_place(cut.where)
    return where, f"{where}: {cut.op} {_ENDS[cut.cause]}"


def not_returned(run: Run, rank: int) -> dict[str, str]:
    """Returns parameters that the loss leads to and that never get a gradient: name -> file.py:12
    of a function of the program's own whose backward returns none."""
    names = _without_gradient(run).get(rank, set()) & reached_parameters(run, rank)
    if not names:
        return {}
    places = [one.where for one in breaks(run, rank) if one.cause == "no_gradient"]
    where = short_place(next(filter(None, places), ""))
    return dict.fromkeys(sorted(names), where) if places else {}


@lru_cache(maxsize=8)
def left_by_libraries(run: Run, rank: int) -> frozenset[str]:
    """Returns parameters without a gradient that only code of installed packages leaves unused: a
    part of a package's module which that module does not call, a parameter of a package's module
    itself, or a layer that runs in a model of packages alone."""
    names = _without_gradient(run).get(rank, set())
    rows = run.events("module", rank, columns=["path", "class"]).to_pylist() if names else []
    classes: dict[str, str] = {row["path"]: row["class"] for row in rows}
    packages = tuple(f"{name}." for name in library_modules(run, rank))
    foreign = {
        path: kind.startswith(packages)
        for path, kind in classes.items()
        if not kind.startswith("torch.")  # of torch's modules programs and packages build their own
    }
    ran = {one for path in texts_of(run, "op", "module", rank) for one in _and_above(path)}
    cuts = {one.op for one in breaks(run, rank) if one.cause in _SINGLE}
    cut = bool(cuts) and _in_program(run, rank, cuts)
    gradients = gradient_rows(run)
    held = set(gradients.loc[gradients["rank"] == rank, "parameter"].astype(str))
    used = {name for name in held if name.rpartition(".")[0] in ran}
    cut = cut or len(used & names) > _MOST * len(used)
    root = next((p["modules_root"] for p in run.manifest["processes"] if p["rank"] == rank), "")

    def left(layer: str) -> bool:
        if layer not in classes:
            return False
        above = [one for one in _and_above(layer) if one in classes]
        above += [root] if root in classes and not _is_model(above[-1], classes) else []
        idle = next((place for place, one in enumerate(above) if one in ran), len(above))
        owners = [foreign[one] for one in above[idle:] if one in foreign]
        if idle:  # what the program adds comes last
            part = above[idle - 1]
            own = foreign[part] if part in foreign else _is_followed(part, classes)
            return own and owners[:1] == [True]
        if layer in foreign and any(one.startswith(f"{layer}.") for one in classes):
            return foreign[layer]
        return foreign.get(above[-1], False) and all(owners) and not cut

    return frozenset(name for name in names if left(name.rpartition(".")[0] or root))


def _in_program(run: Run, rank: int, names: set[str]) -> bool:
    """Whether the program itself calls an operator of these names, not a package or backward."""
    stacks = set[int]()
    for ops in run.pieces("op", rank, columns=["name", "phase", "stack"]):
        called = having(ops["name"], lambda name: name in names or name[len("aten::") :] in names)
        called &= ~having(ops["phase"], _BACKWARD.__eq__)
        stacks.update(ops["stack"].filter(pa.array(called)).drop_null().to_pylist())
    of_stacks = (frames_of(run, rank, one) for one in stacks)
    # Not where torch calls it, as its optimizers do, but for layers, which the program calls.
    callers = (next((f for f in one if "/torch/nn/" not in f["file"]), None) for one in of_stacks)
    return any(one is not None and in_program(one["file"]) for one in callers)


def _is_followed(path: str, classes: dict[str, str]) -> bool:
    """Whether another part of the same module comes after this one."""
    order = list(classes)
    parts = [one for one in order if one.rpartition(".")[0] == path.rpartition(".")[0]]
    return path != [one for one in parts if one == path or not _is_model(one, classes)][-1]


def _is_model(path: str, classes: dict[str, str]) -> bool:
    """Whether a path is that of an outermost module."""
    return path.partition("#")[0] == classes[path].rpartition(".")[2]


def _and_above(path: str) -> list[str]:
    """A module's path and those of the modules around it, innermost first."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


@lru_cache(maxsize=4)  # asked for each rank
def _without_gradient(run: Run) -> dict[int, set[str]]:
    """Per rank the parameters that never had a gradient."""
    missing = gradient_rows(run).groupby(["rank", "parameter"], observed=True)["missing"].all()
    found: dict[int, set[str]] = {}
    for rank, name in missing.index[missing]:
        found.setdefault(int(rank), set()).add(str(name))
    return found


def cut_before(run: Run, rank: int, instant: int) -> LossPlace | None:
    """Where the loss of a backward that begins at an instant was cut off from the parameters."""
    phases = _phases(run, rank)
    ended = phases[phases["kind"].isin((_BACKWARD, _OPTIMIZER)) & (phases["end_ns"] <= instant)]
    since = int(ended["end_ns"].max()) if len(ended) else 0
    begun = phases[(phases["kind"] == _BACKWARD) & (phases["start_ns"] <= instant)]
    thread = str(begun["thread"].iloc[-1]) if len(begun) else None
    ops = _operators(run, rank, thread, since, instant)
    inside = np.flatnonzero(ops["module"] != "")
    if not len(inside):
        return None
    forward = ops.iloc[int(inside[0]) : int(inside[-1]) + 1]
    after = ops.iloc[int(inside[-1]) + 1 :]
    if not forward["sequence"].notna().any():
        return _at(run, rank, forward.iloc[0], NO_GRAPH)
    detached = after[after["name"].isin(DETACH)]
    numbers = after[after["name"].isin(NUMBERS)]
    if len(numbers) and (after["name"] == OF_A_NUMBER).any():
        words = "makes a number of the loss, which carries no gradient; call backward on the loss"
        return _at(run, rank, numbers.iloc[-1], words)
    if len(detached):
        return _at(run, rank, detached.iloc[-1], _ENDS["detached"])
    if after["sequence"].notna().any():
        return None
    last = int(np.flatnonzero(ops["sequence"].notna())[-1])
    later = ops.iloc[last + 1 :][lambda one: ~one["name"].isin((*NUMBERS, "aten::fill_"))]
    computed = reading(run, rank, int(ops["start_ns"].iloc[last]), later, instant)
    if computed.empty:
        return None
    op = computed.iloc[0]
    return _at(run, rank, op, _ENDS["integer"] if op["name"] in COMPARISONS else NO_GRAPH)


def _phases(run: Run, rank: int) -> pd.DataFrame:
    columns = ["start_ns", "duration_ns", "kind", "depth", "thread"]
    rows = to_frame(run.events("phase", rank, columns=columns))
    rows = rows.assign(kind=rows["kind"].astype("str"))
    rows["end_ns"] = rows["start_ns"] + rows["duration_ns"].fillna(0).astype("int64")
    return rows.sort_values("start_ns", ignore_index=True)


def _operators(run: Run, rank: int, thread: str | None, start: int, end: int) -> pd.DataFrame:
    """Outermost operators that begin in [start, end)."""
    ops = to_frame(run.events("op", rank, thread, columns=_COLUMNS, window=(start, end)))
    ops = ops[(ops["start_ns"] >= start) & (ops["start_ns"] < end) & (ops["depth"] == 0)]
    return ops.assign(name=ops["name"].astype("str"), module=ops["module"].astype("str"))


def _thrown_away(run: Run, rank: int, phases: pd.DataFrame, *, zeroed: bool) -> LossPlace | None:
    """Between which lines gradients are thrown away; `zeroed`: only if an operator shows it."""
    steps = phases[phases["kind"] == _OPTIMIZER]
    for _, step in steps.iloc[::-1].iterrows():
        before = phases[(phases["kind"] == _BACKWARD) & (phases["end_ns"] <= step["start_ns"])]
        if len(before):
            break
    else:
        return None
    backward = before.iloc[-1]
    window = int(backward["end_ns"]), int(step["start_ns"])
    if (steps["start_ns"].between(window[0], window[1] - 1)).any():
        return None  # another step used them
    ops = _operators(run, rank, str(step["thread"]), *window)
    shown = bool(ops["name"].str.match(ZEROED).any())
    if zeroed and not shown:
        return None
    at = [
        phase_place(run, rank, kind, (int(row["start_ns"]), int(row["end_ns"])))
        for kind, row in ((_BACKWARD, backward), (_OPTIMIZER, step))
    ]
    first, second = (at_place(line) for line in at)
    forward = phases[(phases["kind"] == _FORWARD) & phases["start_ns"].between(*window)]
    if not shown and _zeroed_before(run, rank, str(step["thread"]), steps, backward):
        return at[1] or at[0], (
            f"backward(){first} reaches tensors that have the names of parameters and are not the "
            "optimizer's, such as copies that functional_call() gets. Give the optimizer these "
            "tensors, or call the module with its own parameters."
        )
    what = "zero_grad() runs" if shown else "zero_grad(), or `grad = None`, runs"
    words = (
        f"{what} between backward(){first} and step(){second}, and throws the gradients away: "
        "call it after step(), or before backward()."
    )
    if len(forward):
        words = (
            f"step(){second} runs before backward(){first}, and zero_grad() throws away what "
            "backward computed: call zero_grad(), backward(), step()."
        )
    return at[1] or at[0], words


def _zeroed_before(
    run: Run, rank: int, thread: str, steps: pd.DataFrame, backward: pd.Series
) -> bool:
    """Whether the optimizer's zero_grad() runs after the step before and before a backward."""
    until = int(backward["start_ns"])
    before = steps.loc[steps["end_ns"] <= until, "end_ns"]
    ops = _operators(run, rank, thread, int(before.max()) if len(before) else 0, until)
    return bool(ops["name"].str.match(ZEROED).any())


def _at(run: Run, rank: int, op: pd.Series, words: str) -> LossPlace:
    where = own_place(run, rank, stack_of(op))
    named = f"{where}: {op['name']}" if where else str(op["name"])
    return where, f"{named} {words}"


def none_advice(run: Run, rank: int, first: str) -> LossPlace:
    """Returns why no parameter has a gradient, and what to do; `first` is the name of one."""
    if not any(kind == "backward" for kind in texts_of(run, "phase", "kind", rank)):
        return None, "No backward ran: call loss.backward() before step()."
    if UNNAMED.match(first):
        return None, "The model holds other parameters: build the optimizer after replacing them."
    return where_all_are_lost(run, rank) or (
        None,
        "Call zero_grad() after step(), and check that the loss depends on the parameters.",
    )
