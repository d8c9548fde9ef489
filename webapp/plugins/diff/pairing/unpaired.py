"""What of two runs has no partner in the other, and why: torch.compile, or another recording."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import (
    ops_named,
    phases_of_kind,
    stack_of,
    texts_of,
)
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.stack_frames import own_frames, place_of
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_NAMED = 4
"""Kinds of operators of a side that a sentence names."""

_DECIDING = {
    "steps": "--steps",
    "include": "--include",
    "exclude": "--exclude",
    "min_duration_ns": "--min-duration",
    "keep_last_bytes": "--keep-last",
    "device": "--device",
}
"""Settings of a recording that decide which operators are in it, and their names."""

_SINGLE_OPS = ("eager", "aot_eager")
"""Backends of torch.compile that fuse nothing."""


@dataclass
class Unpaired:
    """What one run has and the other has not."""

    ops: Counter[str] = field(default_factory=Counter)  # name -> how many
    norms: int = 0  # of gradients

    @property
    def count(self) -> int:
        """Operators and norms."""
        return self.ops.total() + self.norms

    def words(self, noun: str) -> str:
        """Returns `3 gradient norms, 45 operators (aten::linear 9, detach 6 and 2 other kinds)`,
        `noun` being the operators and their names fit for a terminal; nothing where there are none.
        """
        said = [units.counted(self.norms, "gradient norm")] if self.norms else []
        if self.ops:
            named = [
                f"{units.printable(name)} {count}" for name, count in self.ops.most_common(_NAMED)
            ]
            more = len(self.ops) - len(named)
            kinds = ", ".join(named) + (f" and {units.counted(more, 'other kind')}" if more else "")
            said.append(f"{units.counted(self.ops.total(), noun)} ({kinds})")
        return ", ".join(said)


def unpaired_calls(calls: pd.DataFrame) -> tuple[Counter[str], Counter[str]]:
    """Returns calls that one run made more often than the other, of the rows of kind "op" of
    `diff`."""
    more = (calls["run"].fillna(0) - calls["base"].fillna(0)).astype("int64")
    sides = []
    for apart in (-more, more):
        extra = apart[apart > 0].groupby(calls["name"]).sum()
        sides.append(Counter({str(name): int(count) for name, count in extra.items()}))
    return sides[0], sides[1]


def own_gradients(norms: pd.DataFrame) -> list[str]:
    """Returns a sentence about parameters that have gradients in one run alone, of those that
    `compared_norms` returns; none where it has all of them alone."""
    both = norms[norms["base"].notna() & norms["run"].notna()]
    words = []
    for which, state in (("run", "only_in_run"), ("baseline", "only_in_base")):
        rows = norms[(norms["state"] == state) & norms["step"].isin(both["step"])]
        names = rows.loc[~rows["name"].isin(both["name"]), "name"].unique()
        if len(names) and len(both):
            named = f"{names[0]}{and_more(len(names), 'parameter')}"
            words.append(f"only the {which} has gradients of {units.printable(named)}")
    return ["; ".join(words)] if words else []


def own_calls(
    base: Run, run: Run, calls: pd.DataFrame, first: dict[str, Any], said: Sequence[str]
) -> list[str]:
    """Returns the lines of the first operators that a function of one run alone calls, in the first
    step up to that of the first difference that has some; none where `said` names the line."""
    rank, rows = int(first["rank"]), calls[calls["state"] != "identical"]
    rows = rows[(rows["rank"] == rank) & (rows["step"] <= first["step"])]
    step = rows["step"].min()
    names = set(rows.loc[rows["step"] == step, "name"])
    if not names or not same_engine(base, run):
        return []
    now, was = (_places(one, rank, step, names) for one in (run, base))
    words: list[str] = []
    for which, own, other in (("run", now, was), ("baseline", was, now)):
        alone = (f"{key[0]} at {place}" for key in own for place in _more(own[key], other[key]))
        words += [f"the {which} alone calls {one}" for one in islice(alone, 1)]
    words = words or [*islice(_other_counts(now, was), 1)]
    if not words or any(one.rpartition(" ")[2] in " ".join(said) for one in words):
        return []
    return [f"in step {int(step)} {units.printable(', and '.join(words))}"]


_Places = defaultdict[tuple[str, str], Counter[str]]
"""Operator and function -> line -> calls."""


def _other_counts(now: _Places, was: _Places) -> Iterator[str]:
    """Says which line of a function calls an operator more often or less often than its like in the
    baseline, where the function has as many such lines there."""
    for key, own in now.items():
        pairs = [*zip(own.items(), was[key].items(), strict=False)]
        apart = [one for one in pairs if one[0][1] != one[1][1]]
        if len(own) == len(was[key]) and len(apart) == 1:
            (place, calls), (_, before) = apart[0]
            yield f"{place} calls {key[0]} {units.counted(calls, 'time')}, in the baseline {before}"


def _more(own: Counter[str], other: Counter[str]) -> list[str]:
    """Returns lines that call an operator and have no like among those of the other run, which are
    known by how often they call it, as lines move; none where it has as many lines."""
    known = {*other.values()}
    return [one for one, calls in own.items() if calls not in known and len(own) > len(other)]


def _places(run: Run, rank: int, step: int, names: set[str]) -> _Places:
    """Returns how often the lines of a function call an operator, by both names, as outermost ones
    of a step and outside of optimizers; in the order of their first calls."""
    columns = ["start_ns", "name", "depth", "step", "stack", "phase"]
    updates = {
        *phases_of_kind(run, schema.PhaseKind.optimizer, columns=["start_ns", "name"])["name"]
    }
    threads = (one.thread for one in run.threads_of(rank))
    parts = [ops_named(run, rank, one, columns, names.__contains__) for one in threads]
    ops = pd.concat(parts).sort_values("start_ns", kind="stable")
    found = defaultdict[tuple[str, str], Counter[str]](Counter)
    ops = ops[(ops["step"] == step) & (ops["depth"] == 0) & ~ops["phase"].isin(updates)]
    for _, op in ops.iterrows():
        for frame in own_frames(run, rank, stack_of(op))[:1]:
            found[str(op["name"]), str(frame["function"])][place_of(frame)] += 1
    return found


def compiled_words(base: Run, run: Run) -> str | None:
    """Returns that operators of one run have no partner because torch.compile made others of them;
    None where neither was compiled."""
    compiled = [side for side, one in (("baseline", base), ("run", run)) if _was_compiled(one)]
    if not compiled:
        return None
    if len(compiled) == 2:
        return (
            "both went through torch.compile: operators that it ran in order to compile (fewer "
            "where its cache knew the graph), and those of a region that the other run fused "
            "otherwise, have no partner"
        )
    one, other = (base, "run") if compiled == ["baseline"] else (run, "baseline")
    words = f"the {compiled[0]} went through torch.compile, the {other} did not: "
    if one.manifest["options"].get("compile_backend") in _SINGLE_OPS:
        return (
            f"{words}what its regions ran is compared operator by operator; autograd's nodes, "
            "operators that are made of others, and those that it ran in order to compile have no "
            "partner"
        )
    return (
        f"{words}operators that a region fused are not recorded one by one, and those that it ran "
        f"in order to compile are its own; with `lanescope record --compile-backend aot_eager`, "
        "which fuses none, the operators inside can be compared"
    )


def settings_words(base: Run, run: Run) -> str | None:
    """Says what was recorded otherwise that decides which operators a recording has; None where
    nothing was."""
    words = []
    for name in ("engine", "torch"):
        base_has, run_has = (_of_processes(one, name) for one in (base, run))
        if base_has != run_has:
            words.append(f"{name} {base_has} in the baseline, {run_has} in the run")
    options = [one.manifest["options"] for one in (base, run)]
    words += [
        option
        for name, option in _DECIDING.items()
        if (options[0].get(name) or None) != (options[1].get(name) or None)
    ]
    return f"the runs were recorded otherwise: {'; '.join(words)}" if words else None


def same_engine(base: Run, run: Run) -> bool:
    """Whether one engine recorded both: each sees other operators of the same program."""
    return _of_processes(base, "engine") == _of_processes(run, "engine")


def _of_processes(run: Run, name: str) -> str:
    processes: list[dict[str, Any]] = [{**one} for one in run.manifest["processes"]]
    return ", ".join(sorted({str(process[name]) for process in processes}))


def _was_compiled(run: Run) -> bool:
    """By its regions, which one engine alone sees, or by what was captured of them."""
    if schema.OpScope.compiled.name in texts_of(run, "op", "scope"):
        return True
    graphs = run.events("fx", columns=["graph"])["graph"].cast(pa.string())
    return bool(pc.any(pc.ends_with(graphs, schema.COMPILED)).as_py())
