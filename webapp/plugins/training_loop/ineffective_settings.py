"""Finds what a program sets or does to its model without the effect that it is for.

- unread: attributes that torch does not read, as `p.require_grad = False`;
- spare_group: a group without weight decay that has few parameters, beside biases that decay;
- broken_tie: parameters that were one, until each module was given its own;
- copied_tie: an embedding and a layer that begin as copies, in place of one parameter;
- reordered: an input whose lengths view() put in another order, and its numbers not.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from lanescope.collector.format.loop_names import (
    BROKEN_TIE,
    REORDERED_INPUT,
    SPARE_GROUP,
    UNREAD_SETTING,
)
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.fault_series import finding_of_series, found_per_series, series
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import and_more, at_place
from lanescope.webapp.analysis.nothing_to_check import need_models, need_steps
from lanescope.webapp.analysis.parameter_history import samples
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_TIED = 64  # elements, whose norms are not the same by chance
_RATE = "optimizer"
_MIN_DECAYED, _DECAYED_TIMES = 2, 4  # parameters, and times those that are left out


@found_per_series(UNREAD_SETTING, need_steps)
def unread_attributes(run: Run, name: str, rows: pd.DataFrame) -> Finding:
    """Returns findings of kind `unread_setting`, one per line. Raises NotApplicable."""
    where, holder, attribute, value, first = name.split("/", 4)
    at = at_place(where)
    number = float(rows["value"].iloc[0])
    if holder == _RATE:
        title = (
            f"{first}.{attribute} = {value}{at} has no effect: the optimizer reads the rate of "
            f"its groups, which is {number:g}. Set it there: for group in "
            "optimizer.param_groups: group['lr'] = ..., or use a scheduler."
        )
    else:
        title = _not_frozen(at, holder, attribute, value, first, int(number))
    evidence = {"cause": "unread", "attribute": attribute, "object": first}
    return _finding(run, rows, "unread_setting", where, title, evidence)


def _not_frozen(at: str, holder: str, attribute: str, value: str, first: str, count: int) -> str:
    state = "still trained" if value == "False" else "still frozen"
    several = f"{units.count(count)} parameter{'s are' if count != 1 else ' is'} {state}"
    meant = f".requires_grad_({value})"
    why = (
        "a module has no such flag, its parameters have"
        if holder == "module"
        else "the flag of a tensor is requires_grad"
    )
    do = f"module{meant}" if holder == "module" else f"parameter{meant}"
    return f"{attribute} = {value}{at} on {first} has no effect: {why}, and {several}. Call {do}."


@found_per_series(SPARE_GROUP, need_steps)
def spare_groups(run: Run, name: str, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `unread_setting`, one per line. Raises NotApplicable."""
    where, kind = name.split("/")
    decayed, left_out = _norms_and_biases(run, int(rows["rank"].iloc[0]))
    few = int(rows["value"].iloc[0])
    if few > len(left_out) or len(decayed) < max(_MIN_DECAYED, _DECAYED_TIMES * few):
        return None
    has = f"only {' and '.join(left_out[:2])}{and_more(few - 1, 'parameter')}" if few else "none"
    title = (
        f"The group of {kind} without weight decay{at_place(where)} leaves out {has} of the norms "
        f"and biases: {decayed[0]}{and_more(len(decayed), 'parameter')} decay with the weights. "
        "Names are paths (layers.0.norm.weight): test any(part in name for part in no_decay), "
        "not name in no_decay."
    )
    evidence = {"cause": "spare_group", "parameters": decayed[:20]}
    return _finding(run, rows, "unread_setting", where, title, evidence)


def _norms_and_biases(run: Run, rank: int) -> tuple[list[str], list[str]]:
    """Biases and parameters of norms that an optimizer lets decay, and those that it does not."""
    rows = samples(run)
    rows = rows[(rows["rank"] == rank) & (rows["optimizer"] >= 0)].drop_duplicates("parameter")
    known = to_frame(run.events("module", rank))
    norms = known.loc[known["class"].astype("str").str.contains("Norm"), "path"].astype("str")
    biases = rows["parameter"].str.endswith("bias")
    own = rows[biases | rows["layer"].isin(set(norms))]
    decays = own["weight_decay"] > 0
    return list(own.loc[decays, "parameter"]), list(own.loc[~decays, "parameter"])


def _copied_ties(run: Run) -> list[Finding]:
    """Findings about tables of words and heads, one per pair."""
    rows = samples(run)
    own = rows[(rows["rank"] == rows["rank"].min()) & rows["trainable"].astype(bool)]
    if own.empty:
        return []
    known = to_frame(run.events("module", int(own["rank"].iloc[0])))
    kinds = dict(zip(known["path"].astype("str"), known["class"].astype("str"), strict=True))
    first, last = (own.drop_duplicates("parameter", keep=keep) for keep in ("first", "last"))
    ends = last.set_index("parameter")["norm"]
    found = []
    for _, same in first[(first["numel"] >= _MIN_TIED) & (first["norm"] > 0)].groupby(
        ["numel", "norm"]
    ):
        names = {_kind_of(kinds, str(one)): str(one) for one in same["parameter"]}
        pair = [names[one] for one in ("Embedding", "Linear") if one in names]
        if len(same) == len(pair) == 2 and ends[pair[0]] != ends[pair[1]]:
            title = (
                f"{pair[1]} begins as a copy of {pair[0]} (their norms are equal to the last bit), "
                "and then both are trained apart: they are not tied. Assign the parameter itself "
                "(head.weight = embedding.weight), not a clone or a new Parameter."
            )
            evidence = {"cause": "copied_tie", "parameters": pair}
            found.append(_finding(run, own, "shared_parameter", "", title, evidence))
    return found


def _kind_of(kinds: Mapping[str, str], parameter: str) -> str:
    """The class of the module that has a weight; empty: of another parameter."""
    path, _, name = parameter.rpartition(".")
    return kinds.get(path, "").rpartition(".")[2] if name == "weight" else ""


def broken_ties(run: Run) -> list[Finding]:
    """Returns findings of kind `shared_parameter`, one per tie. Raises NotApplicable."""
    known = set(need_steps(run)["parameter"].astype("str"))
    found = []
    for name, own in series(run, BROKEN_TIE):
        where, call, first, other = name.split("/", 3)
        if not all(any(_ends(one, path) for one in known) for path in (first, other)):
            continue  # tied again since
        at = at_place(where)
        title = (
            f"{first} and {other} were one parameter until {call}{at}, which gave each module its "
            "own: from there on they are trained apart. Tie them again after it: "
            f"model.{other} = model.{first}."
        )
        evidence = {"cause": "broken_tie", "parameters": [first, other]}
        found.append(_finding(run, own, "shared_parameter", where, title, evidence))
    return found or _copied_ties(run)


@found_per_series(REORDERED_INPUT, need_models)
def reordered_inputs(run: Run, name: str, rows: pd.DataFrame) -> Finding:
    """Returns findings of kind `mixed_samples`, one per line. Raises NotApplicable."""
    where, kind, shape, before = name.split("/")
    title = (
        f"The input of {kind}{at_place(where)} is mixed up: its shape {shape} is that of a tensor "
        f"{before} by view() or reshape(), which keeps the numbers in their old order, so each "
        "row or image holds parts of others. Use permute() or transpose() to exchange "
        "dimensions."
    )
    evidence = {"cause": "reordered", "shape": shape, "before": before}
    return _finding(run, rows, "mixed_samples", where, title, evidence)


def _ends(name: str, path: str) -> bool:
    """Whether two names are of one parameter: one of the two models is within the other."""
    return name == path or name.endswith(f".{path}") or path.endswith(f".{name}")


def _finding(
    run: Run,
    rows: pd.DataFrame,
    kind: str,
    where: str,
    title: str,
    evidence: Mapping[str, object],
) -> Finding:
    return finding_of_series(
        run,
        rows,
        kind=kind,
        confidence="likely",
        title=title,
        where=where,
        evidence=evidence,
    )
