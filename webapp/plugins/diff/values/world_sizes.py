"""Runs that share out their batches otherwise: which values can be compared, what that explains.

Until ranks join their values, by a collective in backward as a rule, each has those of its own
share of the batch, and another number of ranks means other shares. So it is with gradients that are
accumulated over several backward passes of a step. What an optimizer works with has been joined, so
that is compared: gradient norms, and tensors of operators inside its step.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import phases_of_kind, texts_of, to_frame
from lanescope.webapp.analysis.collective_calls import collective_calls
from lanescope.webapp.analysis.tensor_fingerprints import Ops, Words
from lanescope.webapp.plugins.diff.values.closeness import relative_of
from lanescope.webapp.plugins.diff.values.precision import coarsest_half
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray

SAME_FACTOR = 1e-3
"""Norms whose ratios to the baseline's are this near to each other, relative, share a factor."""

PLAINLY = 0.01
"""Rounding cannot make a factor this far from 1."""

_ROUNDING = 10.0
"""What another order of a sum may do to a norm, in tolerances of its dtype (`relative_of`)."""

SAME_SHAPES = 0.5
"""Share of operators with the same shapes above which two runs work on equal batches."""

_REDUCING = ("all_reduce", "reduce_scatter", "reduce_scatter_tensor", "reduce")


def shares_differ(base: Run, run: Run) -> bool:
    """Returns whether a forward pass of one has another share of the batch than one of the
    other."""
    return base.world_size != run.world_size or passes(base, run) is not None


@lru_cache(maxsize=4)
def passes(base: Run, run: Run) -> tuple[int, int] | None:
    """Returns backward passes in a step of each where that is another number in all steps they
    share, and most operators of modules work on tensors of other shapes: on parts of a batch."""
    sides = []
    for one in (base, run):
        rows = to_frame(one.events("phase", columns=["rank", "step", "kind", "name"]))
        kinds = rows.groupby(["rank", "step", "kind"]).size().unstack("kind", fill_value=0)
        if not {"backward", "optimizer"} <= set(kinds):
            return None
        sides.append(kinds.loc[(kinds["backward"] > 0) & (kinds["optimizer"] > 0), "backward"])
    both = pd.concat(sides, axis=1, join="inner", keys=["base", "run"])
    if both.empty or (both["base"] == both["run"]).any():
        return None
    was, now = _in_modules(base), _in_modules(run)
    if len(was & now) > SAME_SHAPES * min(len(was), len(now)):
        return None
    return int(both["base"].median()), int(both["run"].median())


def _in_modules(run: Run) -> set[tuple[str, str, str]]:
    """Operators of forward passes by module, name and shapes."""
    rows = run.events("op", columns=["module", "name", "shapes"])
    rows = rows.filter(pc.not_equal(rows["module"].cast(pa.string()), ""))
    every = rows.group_by(["module", "name", "shapes"]).aggregate([]).to_pylist()
    return {(row["module"], row["name"], row["shapes"]) for row in every if row["shapes"]}


def inside_steps(run: Run, ops: Ops, words: Words) -> BoolArray:
    """Returns for each operator of a thread whether it is inside a step of an optimizer: all are of
    a run in which none steps, for its ranks have nothing to join.
    """
    names = _optimizers(run)
    return _inside(names, ops, words) if names else np.ones(len(ops), np.bool_)


def optimizing(run: Run, ops: Ops, words: Words) -> BoolArray:
    """Returns for each operator of a thread whether it is inside an optimizer's step."""
    return _inside(_optimizers(run), ops, words)


@lru_cache(maxsize=4)  # each pair of threads asks
def _optimizers(run: Run) -> frozenset[str]:
    columns = ["start_ns", "name"]
    return frozenset(phases_of_kind(run, schema.PhaseKind.optimizer, columns=columns)["name"])


def _inside(names: frozenset[str], ops: Ops, words: Words) -> BoolArray:
    codes = [k for k, name in enumerate(words.known["phase"]) if name in names]
    inside: BoolArray = np.isin(ops.texts["phase"], codes)
    return inside


def notes(
    base: Run, run: Run, norms: pd.DataFrame, first: dict[str, Any] | None, left_out: int
) -> list[str]:
    """Returns sentences about two runs of different numbers of ranks: what was compared, why they
    part.

    `norms`: rows of gradients that both have, with rank, step, name, base, run, dtype_base.
    `first`: the first operator that differs, as `diff --json` prints it, if any. `left_out`: pairs
    of tensors that were not compared.
    """
    compared = (
        "compared are gradients and what optimizers work with; until ranks join their values each "
        f"has those of its own share of the batch ({left_out:,} tensors)"
        if left_out
        else "operators on tensors of other shapes have no partner"
    )
    sentences = [
        f"the baseline had {base.world_size} {_ranks(base)}, the run {run.world_size}: {compared}"
    ]
    apart = norms[norms["base"] != norms["run"]]
    apart = apart[apart["step"] == apart["step"].min()]
    if apart.empty and first is None:
        return sentences
    joined_by, dtype = _joined_by(run, first), coarsest_half(base, run)
    if not _is_rounding(apart, first, dtype):
        more = f"they differ by more than the number of ranks explains, {joined_by}"
        return [*sentences, more, *_by_share(run)]
    return [
        *sentences,
        f"they differ because of the number of ranks, {joined_by}: a sum over {run.world_size} is "
        f"rounded in another order than one over {base.world_size}{_in(dtype)}",
    ]


def notes_on_passes(
    base: Run, run: Run, norms: pd.DataFrame, first: dict[str, Any] | None, left_out: int
) -> list[str]:
    """Returns notes as `notes`, about runs of different numbers of backward passes in a step."""
    counts = passes(base, run)
    if counts is None:
        return []
    sentences = (
        f"the baseline runs backward {_times(counts[0])} in a step, the run {_times(counts[1])}: "
        "compared are gradients and what optimizers work with; each pass has those of its own "
        f"share of the batch ({left_out:,} tensors)"
    )
    apart = norms[norms["base"] != norms["run"]]
    apart = apart[apart["step"] == apart["step"].min()]
    if apart.empty and first is None:
        return [sentences]
    dtype = coarsest_half(base, run)
    if not _is_rounding(apart, first, dtype):
        return [
            sentences,
            f"gradients differ by more than the number of passes explains ({counts[0]} in the "
            f"baseline, {counts[1]} in the run): a mean over the tokens or samples of a pass "
            "weighs those of short passes more; divide sums by the number in all passes of a step",
            *_by_share(run),
        ]
    return [
        sentences,
        f"they differ because of the number of passes: a sum of {counts[1]} gradients is rounded "
        f"in another order than one of {counts[0]}{_in(dtype)}",
    ]


_OF_SHARES = {
    "BatchNormBackward": "batch normalisation has the statistics of the share",
    "aten::native_dropout": "dropout draws its numbers for the share",
    "aten::bernoulli_": "dropout draws its numbers for the share",
}


def _by_share(run: Run) -> list[str]:
    """Returns a sentence about operators that compute something else on a share of a batch."""
    names = texts_of(run, "op", "name")
    found = {
        words: None for part, words in _OF_SHARES.items() if any(part in name for name in names)
    }
    if not found:
        return []
    return [f"on a share of the batch the model computes something else: {'; '.join(found)}"]


def common_factor(base: Run, run: Run, norms: pd.DataFrame) -> str | None:
    """Returns a sentence where one factor is between the gradients of the first step that differs.

    `norms`: rows of gradients that differ beyond the mode, with step, name, base and run. None
    where there are fewer than two parameters, or several factors.
    """
    rows = norms[norms["step"] == norms["step"].min()]
    low, high = (rows[side].to_numpy(np.float64) for side in ("base", "run"))
    usable = (low > 0) & (high > 0) & np.isfinite(low) & np.isfinite(high)
    if rows["name"][usable].nunique() < 2:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = high[usable] / low[usable]
        factor = float(np.median(ratio))
        one = bool((np.abs(ratio / factor - 1) <= SAME_FACTOR).all())
    if not one or abs(factor - 1) < PLAINLY:
        return None
    text = (
        f"all gradients that differ in step {int(rows['step'].iloc[0])} are "
        f"{units.number(factor, 4)} times those of the baseline"
    )
    counts = passes(base, run) or (1, 1)
    for what, more in (
        ("ranks", run.world_size / base.world_size),
        ("passes", counts[1] / counts[0]),
    ):
        for times, here, there in ((more, "sums", "means"), (1 / more, "means", "sums")):
            if more != 1 and abs(factor / times - 1) < PLAINLY:
                return (
                    f"{text}, by the number of {what}: {here} over {what} where the baseline has "
                    f"{there}"
                )
    return f"{text}: a factor of the loss or of the gradients, not rounding"


def _joined_by(run: Run, first: dict[str, Any] | None) -> str:
    """Which collective call joined the ranks' values before an operator."""
    calls = collective_calls(run)
    calls = calls[calls["name"].isin(_REDUCING)]
    if first is not None:
        calls = calls[
            (calls["rank"] == first["rank"]) & (calls["start_ns"] < first["run"]["time_ns"])
        ]
    if calls.empty:
        return "and no collective is recorded that joined their values"
    call = calls.iloc[0 if first is None else -1]
    return (
        f"whose values {call['name']} joined last before "
        f"(call {call['sequence']} of group {call['group']}, step {call['step']})"
    )


def _in(dtype: str | None) -> str:
    return "" if dtype is None else f", and operators work in {dtype}"


def _is_rounding(norms: pd.DataFrame, first: dict[str, Any] | None, half: str | None) -> bool:
    """Whether norms of gradients, and those of the tensors of the first operator that differs, are
    as near as rounding leaves them.
    """
    coarse = 0.0 if half is None else relative_of(half)
    pairs = list(zip(norms["base"], norms["run"], norms["dtype_base"], strict=True))
    if first is not None:
        sides = (first[side].get("tensors", ()) for side in ("base", "run"))
        pairs += [
            (was["l2"] or 0.0, now["l2"] or 0.0, now["dtype"])
            for was, now in zip(*sides, strict=True)
        ]
    return all(
        abs(high - low) <= max(_ROUNDING * relative_of(dtype), coarse) * max(abs(low), abs(high))
        for low, high, dtype in pairs
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _ranks(run: Run) -> str:
    return "rank" if run.world_size == 1 else "ranks"
