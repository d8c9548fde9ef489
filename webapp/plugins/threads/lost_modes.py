"""Finds threads that miss a mode of torch which held where they were started, and work without it.

Modes of torch hold on one thread. The recorder noted that a thread or task did not have the
starter's. That it worked without is seen in its operators meanwhile: they made nodes of the
autograd graph, and the thread ran no backward through them, though the starter ran in no_grad;
they multiplied float32 numbers though it ran in autocast, or made or filled tensors though it had
another default device.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from lanescope.collector.format import schema
from lanescope.collector.format.marks import LostMode
from lanescope.webapp.analysis.arrow_columns import marks, stack_of, to_frame
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.nothing_to_check import need_threads
from lanescope.webapp.analysis.stack_frames import short_place, where_of
from lanescope.webapp.plugins.threads.contexts import lost, times_text, who
from lanescope.webapp.runs.run import Run

_OPS = ["start_ns", "name", "sequence", "dtypes", "device", "stack"]

_PRODUCTS = re.compile(r"^aten::(addmm|mm|bmm|baddbmm|_?convolution|mkldnn_convolution)$")
_FACTORIES = re.compile(
    r"^aten::(randn|rand|zeros|ones|full|randint|eye|linspace|empty|uniform_|normal_)$"
)
"""And what layers fill their parameters with: torch.empty is left out of a recording."""

_WORKS = {
    "no_grad": "an autograd graph is recorded in {}, which takes time and memory",
    "autocast": "float32 numbers are multiplied in {}",
    "device": "tensors are made on another device in {}",
}
_ADVICE = {
    "no_grad": "Enter torch.no_grad() in the function that the thread runs.",
    "autocast": "Enter torch.autocast() in the function that the thread runs.",
    "device": "Pass device= where the thread makes tensors, or set the default device in it.",
}


def lost_modes(run: Run) -> list[Finding]:
    """Returns findings of kind `lost_context`: one per rank, mode and line that starts the
    thread. Raises NotApplicable."""
    rows = marks(run, LostMode.PREFIX)
    if not rows:
        need_threads(run)
    found: dict[tuple[int, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        mark = LostMode.parse(row["name"])
        if mark is None:
            continue
        window = (row["start_ns"] - mark.lasted_ns, row["start_ns"])
        op = _without(run, row["rank"], row["thread"], window, mark.mode)
        if op is not None:
            seen = {**row, "op": op, "what": mark.started_as, "started": mark.started_at}
            found.setdefault((row["rank"], mark.mode, mark.started_at), []).append(seen)
    return [_finding(run, *key, several) for key, several in found.items()]


def _without(
    run: Run, rank: int, thread: str, window: tuple[int, int], mode: str
) -> dict[str, Any] | None:
    """Returns the first operator of a thread that shows that it works without a mode."""
    ops = to_frame(run.events("op", rank, thread, columns=_OPS, window=window))
    ops = ops[ops["start_ns"] >= window[0]]
    names, kind = ops["name"].astype("str"), mode.partition(" ")[0]
    if kind == "no_grad":
        shows = ops["sequence"].notna() & (not _trains(run, rank, thread, window))
    elif kind == "autocast":
        products = names.str.match(_PRODUCTS)
        low = ops["dtypes"].astype("str").str.contains("16")
        shows = products & ops["dtypes"].astype("str").str.contains("float32")
        shows &= not (products & low).any()  # it has an autocast of its own
    else:
        wanted = re.escape(mode.partition(" ")[2])
        same = ops["device"].astype("str").str.fullmatch(rf"{wanted}(:\d+)?")  # cuda:0 is cuda
        shows = names.str.match(_FACTORIES) & ~same
    return None if not shows.any() else dict(ops[shows].iloc[0])


def _trains(run: Run, rank: int, thread: str, window: tuple[int, int]) -> bool:
    """Whether a thread runs backward in a window: it wants the graph that it records."""
    kinds = run.events("phase", rank, thread, columns=["kind", "start_ns"], window=window)["kind"]
    return schema.PhaseKind.backward.name in kinds.cast(pa.string()).to_pylist()


def _finding(
    run: Run, rank: int, mode: str, started_at: str, several: list[dict[str, Any]]
) -> Finding:
    first, kind = several[0], mode.partition(" ")[0]
    started = short_place(started_at)
    op = first["op"]
    stack = stack_of(op)
    title = (
        f"Mode {mode} does not reach the {first['what']} that is started in it at {started}: "
        f"{_WORKS[kind].format(who(run, rank, several))} ({op['name']}{times_text(several)}). "
        f"Modes of torch hold on one thread. {_ADVICE[kind]}"
    )
    facts = {"variable": mode, "found": str(op["name"]), "advice": _ADVICE[kind]}
    where = where_of(run, rank, stack) or started
    return lost(run, rank, several, title, where, int(op["start_ns"]), facts)
