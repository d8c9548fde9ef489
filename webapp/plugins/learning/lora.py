"""Finds low-rank adapters (LoRA) that do not learn, and the cause.

An adapter is a pair of matrices A and B whose product is added to a layer. B starts at zero, so A
has no gradient in the first step: that is healthy, and so are frozen base weights and an adapter
that is frozen while another is trained. An adapter is inactive where, in this order,

- not_trainable: neither it nor another adapter of its model is trainable, or B is frozen; of a
  later model in the process (`Model#2`) only where something else of it is trained;
- not_in_optimizer: it is trainable, and no optimizer of the run ever held it;
- compiled_away, no_gradient: its gradient was None at every step, of NO_GRADIENT_STEPS or more;
- not_synchronised: ranks that began with the same B have gradients of B that differ, at half of
  the steps or more;
- clipped: its gradients are zero or nearly so after clipping, and were not before;
- undone: its optimizer's steps change it, and before each it is what it was at first (`unmoved`);
- zero: B is still zero after ZERO_STEPS steps;
- decayed: B has shrunk to DECAYED of what it was, and weight decay is stronger than the gradient.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lanescope.collector.format.names import CLIP_LIMIT, CLIP_NORM
from lanescope.webapp.analysis.arrow_columns import texts_of
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.nothing_to_check import need_rows, need_steps
from lanescope.webapp.analysis.parameter_history import last_logged, samples
from lanescope.webapp.plugins.learning.lost_gradients import end_of_gradient
from lanescope.webapp.plugins.learning.update_effects import decays, is_undone
from lanescope.webapp.runs.run import Run

NO_GRADIENT_STEPS = 3  # optimizer steps
_ZERO_STEPS = 5  # steps after which B must have left zero
DECAYED = 0.1  # of the largest norm that B had
APART = 1e-3  # relative difference of gradient norms between ranks
CLIPPED = 1e-7  # of the gradient is left
_LISTED = 20  # modules named in the evidence

_NAME = re.compile(
    r"(?P<module>.*?)\.?lora_(?:embedding_)?(?P<side>A|B|a|b|down|up)"
    r"(?:\.(?!weight$)(?P<adapter>[^.]*))?(?:\.weight)?"
)
_LATER_MODEL = r"^([^.]+#\d+)\."
"""The name of a model that is not the first of its process."""

_SIDES = {"a": "A", "down": "A", "b": "B", "up": "B"}

_ADVICE = {
    "not_trainable": "it is frozen: load it with is_trainable=True, or set requires_grad",
    "not_in_optimizer": "no optimizer holds it. Build the optimizer after the adapter is added",
    "compiled_away": "its gradient is always None while regions run compiled: compile after the "
    "adapter was added, or again",
    "no_gradient": "its gradient is always None: check that it is enabled, not merged, and called",
    "not_synchronised": "ranks have different gradients for it: add it before the model is wrapped "
    "for data parallelism, and call it through the wrapper",
    "clipped": "clipping leaves nothing of its gradient: check max_norm, and what makes the norm "
    "so large",
    "undone": "steps change it, and before each it has its first value again: find what writes "
    "the old values back, or creates it again",
    "zero": "B is still zero: check its learning rate, the scaling factor, and that A is not zero",
    "decayed": "weight decay is stronger than its gradient: exclude it from decay",
}


def is_lora(parameters: pd.Series) -> pd.Series:
    """Returns which parameters are an adapter's A or B, by their names."""
    return parameters.isin([one for one in parameters.unique() if _NAME.fullmatch(one)])


@dataclass(frozen=True)
class _Adapter:
    """What the run says of one adapter on one rank."""

    run: Run
    rank: int
    samples: pd.DataFrame  # rows of the parameter table, with side and module
    gradients: pd.DataFrame  # rows of the gradient table, the same
    others: pd.DataFrame  # rows of the parameter table of the rank's other adapters


_Verdict = tuple[int, list[str]] | None
"""Since which step, and the modules."""


def lora(run: Run) -> list[Finding]:
    """Returns findings of kind `lora_inactive`, one per adapter and cause. Raises NotApplicable."""
    sampled = _adapters(samples(run))
    need_rows(sampled, "the model has no low-rank adapter (lora_A, lora_B)")
    taken = need_steps(run)
    gradients = _adapters(taken)
    found: dict[tuple[str, str], list[tuple[int, int, list[str]]]] = {}
    for (rank, adapter), rows in sampled.groupby(["rank", "adapter"], sort=True):
        mine = gradients[(gradients["rank"] == rank) & (gradients["adapter"] == adapter)]
        same = (sampled["rank"] == rank) & (sampled["adapter"] != adapter)
        one = _Adapter(run, int(rank), rows, mine, sampled[same])
        for cause, judge in _CAUSES:
            verdict = judge(one)
            if verdict is not None:
                found.setdefault((adapter, cause), []).append((int(rank), *verdict))
                break
    return [_finding(run, *key, verdicts) for key, verdicts in found.items()]


def _adapters(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows[is_lora(rows["parameter"])]
    parts = [_NAME.fullmatch(name) for name in rows["parameter"]]
    named = [part.groupdict("") for part in parts if part is not None]
    return rows.assign(
        module=[one["module"] for one in named],
        side=[_SIDES.get(one["side"], one["side"]) for one in named],
        adapter=[one["adapter"] for one in named],
    )


def _last(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.groupby("parameter", sort=False).last()


def _not_trainable(one: _Adapter) -> _Verdict:
    last = _last(one.samples)
    frozen = last[~last["trainable"].astype(bool)]
    rows = _last_frozen(one)
    later = _later_models(one, frozen)
    if not later.empty:
        return _since(rows, later)
    if len(frozen) == len(last):
        elsewhere = not one.others.empty and bool(one.others["trainable"].any())
        return None if elsewhere else _since(rows, frozen)
    frozen_b = frozen[frozen["side"] == "B"]
    trained_a = set(last.loc[last["trainable"].astype(bool) & (last["side"] == "A"), "module"])
    stuck = frozen_b[frozen_b["module"].isin(trained_a)]
    return _since(rows, stuck)


def _last_frozen(one: _Adapter) -> pd.DataFrame:
    """parameter and step of rows behind the last at which it was trainable, or had a gradient."""
    found = []
    for rows, alive in (
        (one.samples, one.samples["trainable"].astype(bool)),
        (one.gradients, ~one.gradients["missing"].astype(bool)),
    ):
        last = rows["step"].where(alive).groupby(rows["parameter"]).transform("max")
        found.append(rows.loc[~(rows["step"] <= last), ["parameter", "step"]])
    return pd.concat(found)


def _later_models(one: _Adapter, frozen: pd.DataFrame) -> pd.DataFrame:
    """The frozen parameters of models that were made later, whose adapters are all frozen though
    something else of them is trained: a reference that is frozen as a whole is meant."""
    roots = frozen["module"].str.extract(_LATER_MODEL, expand=False)
    if roots.isna().all():
        return frozen[:0]
    everything = samples(one.run)
    mine = everything[everything["trainable"].astype(bool) & (everything["rank"] == one.rank)]
    trained = mine.assign(root=mine["parameter"].str.extract(_LATER_MODEL, expand=False))
    adapters = set(trained.loc[is_lora(trained["parameter"]), "root"])
    held = set(trained.loc[trained["optimizer"] >= 0, "root"])
    return frozen[roots.notna() & roots.isin(held - adapters)]


def _not_in_optimizer(one: _Adapter) -> _Verdict:
    held = set(one.gradients["parameter"])
    rows = one.samples[~one.samples["parameter"].isin(held) & one.samples["trainable"].astype(bool)]
    values = rows.groupby("parameter")["norm"].nunique()  # of more than one something trains it
    return _stuck(rows, values <= 1)


def _compiled_away(one: _Adapter) -> _Verdict:
    compiled = "compiled" in texts_of(one.run, "op", "scope", one.rank)
    return _no_gradient(one) if compiled else None


def _no_gradient(one: _Adapter) -> _Verdict:
    trained = one.samples.loc[one.samples["trainable"].astype(bool), "parameter"]
    own = one.gradients[one.gradients["parameter"].isin(set(trained))]  # others wait
    groups = own.groupby("parameter", sort=False)
    never = groups["missing"].all() & (groups["missing"].size() >= NO_GRADIENT_STEPS)
    return _stuck(own, never)


def _not_synchronised(one: _Adapter) -> _Verdict:
    run = one.run
    if len(run.ranks) < 2 or not run.counts["collective"]:
        return None
    everywhere = _adapters(samples(run))
    everywhere = everywhere[(everywhere["side"] == "B") & ~everywhere["missing"]]
    first = everywhere.groupby(["parameter", "rank"], sort=False)["norm"].first().unstack()
    start = first.dropna()
    alike = start.index[(start.max(axis=1) - start.min(axis=1)) <= APART * start.max(axis=1)]
    mine = everywhere[everywhere["parameter"].isin(set(alike))]
    table = mine.groupby(["step", "parameter", "rank"], sort=False)["grad_norm"].last().unstack()
    table = table.dropna()
    if table.shape[1] < 2:
        return None
    apart = (table.max(axis=1) - table.min(axis=1)) > APART * table.max(axis=1)
    share = apart.groupby("parameter").mean()
    parameters = set(share.index[share >= 0.5])
    rows = one.samples[one.samples["parameter"].isin(parameters)]
    return _since(rows, _last(rows))


def _clipped(one: _Adapter) -> _Verdict:
    norms = last_logged(one.run, one.rank, CLIP_NORM)
    limits = last_logged(one.run, one.rank, CLIP_LIMIT)
    left = (limits / (norms + 1e-6)).reindex(norms.index)
    nothing = set(left.index[(left < CLIPPED) & (norms > 0)])
    steps = set(one.gradients["step"])
    if not steps or len(nothing & steps) < max(NO_GRADIENT_STEPS, len(steps) / 2):
        return None
    rows = one.gradients[one.gradients["step"].isin(nothing)]
    return _since(rows, _last(rows))


def _trained_b(one: _Adapter) -> pd.DataFrame:
    rows = one.samples[one.samples["side"] == "B"]
    return rows[rows["trainable"].astype(bool) & rows["norm"].notna()]


def _undone(one: _Adapter) -> _Verdict:
    b = _trained_b(one)
    rows = b[is_undone(b)]
    return _since(rows, _last(rows))


def _zero(one: _Adapter) -> _Verdict:
    b = _trained_b(one)
    groups = b.groupby("parameter", sort=False)
    stuck = (groups["norm"].max() == 0) & (groups["call"].max() >= _ZERO_STEPS)
    return _stuck(b, stuck)


def _decayed(one: _Adapter) -> _Verdict:
    b = _trained_b(one)
    if b.empty:
        return None
    largest = b.groupby("parameter")["norm"].max()
    small = b[b["norm"] <= DECAYED * b["parameter"].map(largest)]
    if small.empty:
        return None
    after = small["call"] > small["parameter"].map(
        b.loc[b["norm"] == b["parameter"].map(largest)].groupby("parameter")["call"].first()
    )
    last = set(b.groupby("parameter")["call"].max().items())
    rows = small[after & decays(small)]
    ends = [key in last for key in zip(rows["parameter"], rows["call"], strict=True)]
    names = set(rows.loc[np.array(ends, bool), "parameter"])
    rows = rows[rows["parameter"].isin(names)]
    return _since(rows, _last(rows))


_CAUSES: tuple[tuple[str, Callable[[_Adapter], _Verdict]], ...] = (
    ("not_trainable", _not_trainable),
    ("not_in_optimizer", _not_in_optimizer),
    ("compiled_away", _compiled_away),
    ("no_gradient", _no_gradient),
    ("not_synchronised", _not_synchronised),
    ("clipped", _clipped),
    ("undone", _undone),
    ("zero", _zero),
    ("decayed", _decayed),
)


def _stuck(rows: pd.DataFrame, which: pd.Series) -> _Verdict:
    """The verdict on the parameters for which `which`, indexed by parameter, holds."""
    rows = rows[rows["parameter"].isin(set(which.index[which.to_numpy(bool)]))]
    return _since(rows, _last(rows))


def _since(rows: pd.DataFrame, stuck: pd.DataFrame) -> _Verdict:
    """The first step of the parameters in `stuck` (indexed by parameter), and their modules."""
    if stuck.empty:
        return None
    first = rows[rows["parameter"].isin(set(stuck.index))]["step"].min()
    return int(first), list(dict.fromkeys(stuck["module"]))


def _module(path: str) -> str:
    return f"module {path}" if path else "the model"


def _finding(
    run: Run, adapter: str, cause: str, verdicts: list[tuple[int, int, list[str]]]
) -> Finding:
    rank, step, modules = verdicts[0]
    cut = end_of_gradient(run, rank, single=True) if cause == "no_gradient" else None
    name = f" {adapter}" if adapter else ""
    more = and_more(len(modules), "module")
    return finding_at(
        run,
        rank,
        step,
        kind="lora_inactive",
        severity="error",
        title=f"The adapter{name} of {_module(modules[0])}{more} has not learned since step "
        f"{step}: {_ADVICE[cause]}." + (f" The gradient ends at {cut[1]}." if cut else ""),
        where=cut[0] if cut else None,
        ranks=tuple(one[0] for one in verdicts),
        evidence={
            "cause": cause,
            "adapter": adapter,
            "modules": modules[:_LISTED],
            "inactive": len(modules),
        },
    )
