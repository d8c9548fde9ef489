"""The flame graph as a figure: frames below the ones that they were called in."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from lanescope.webapp.analysis.stack_frames import in_program
from lanescope.webapp.runs import units
from lanescope.webapp.timeline.flame_graph.frame_tree import ROOT, Frame
from lanescope.webapp.timeline.styles import communicates
from lanescope.webapp.ui.charts import escaped
from lanescope.webapp.ui.colours import Theme, blended, ramp_colour, readable_ink, token_of, tokens
from lanescope.webapp.ui.theme import template

ROW_PX = 21
"""Height of a frame, in which its name can be read."""

_MAX_FACTOR = 2.0
"""Times the baseline's time from which on a frame has the full colour; half of it, the other."""

LETTER_PX = 7.4
"""Width of a letter, about."""

INSIDE = 0.35
"""How far the colour of an operator within a phase goes towards the page's, as on the lanes."""

_WORDS = {
    "program": ("python", "the program's Python"),
    "library": ("data", "libraries' Python"),
    "module": ("copy", "module"),
    "op": ("other", "operator"),
    "phase": ("other", "other phase"),
    "missing": ("idle", "no stack or module"),
}
"""What a frame is -> the token of its colour, and what the legend says."""


def room(table: pd.DataFrame, node: int) -> tuple[int, int]:
    """Returns the height of the picture with a node in full width, and the margin at its top, px.

    The frames around a node that is not the whole are named in that margin.
    """
    below, deepest = {node}, 0
    for row in table.itertuples():
        if row.node == node or row.parent in below:
            below.add(row.node)
            deepest = max(deepest, row.depth)
    first = int(table.loc[table["node"] == node, "depth"].sum())
    above = ROW_PX + 3 if node != ROOT else 0
    return ROW_PX * (1 + max(deepest - first, 0)) + above, above


def icicle(table: pd.DataFrame, column: str, theme: Theme, *, beside: bool) -> go.Figure:
    """Returns the picture of rows of `Flame.frames`. A click on a frame shows it in full width.

    `column`: widths, total_ns or base_total_ns; rows without any are left out. `beside`: colours
    are differences from the baseline. Names are to be added, see `names`.
    """
    table = table[table[column] > 0]
    whole = int(table[column].iloc[0])
    colours = differences(table, theme) if beside else _kinds(table, theme)
    inks = (tokens()[theme]["ink"], tokens()[theme]["panel"])
    figure = go.Figure(layout={"template": template(theme)})
    figure.add_icicle(
        ids=table["node"].astype(str).tolist(),
        parents=["" if parent < 0 else str(parent) for parent in table["parent"]],
        labels=[
            escaped(row.frame.label if row.frame else title(None, row.gathered))
            for row in table.itertuples()
        ],
        values=table[column].tolist(),
        branchvalues="total",
        marker={"colors": colours, "line": {"width": 1, "color": tokens()[theme]["panel"]}},
        textinfo="text",
        insidetextfont={"color": [readable_ink(colour, inks) for colour in colours], "size": 12},
        outsidetextfont={"color": readable_ink(colours[0], inks), "size": 12},  # of the whole
        leaf={"opacity": 1},
        tiling={"orientation": "v", "pad": 0},
        pathbar={"thickness": ROW_PX, "edgeshape": "|", "textfont": {"size": 12}},
        hovertext=[_hover(row, whole, beside) for row in table.itertuples()],
        hoverinfo="text",
    )
    figure.update_layout(
        margin={"l": 0, "r": 0, "t": 0, "b": 0}, uniformtext={"minsize": 10, "mode": "hide"}
    )
    return figure


def names(table: pd.DataFrame, column: str, node: int, width_px: int) -> list[str]:
    """Returns the texts of the rows that `icicle` draws, as much of each as its frame has room for.

    `node` is the one that is `width_px` wide.
    """
    table = table[table[column] > 0]
    whole = max(int(table.loc[table["node"] == node, column].sum()), 1)
    found = []
    for row in table.itertuples():
        text = row.frame.label if row.frame else title(None, row.gathered)
        letters = int((getattr(row, column) / whole * width_px - 8) / LETTER_PX)
        if len(text) > letters:
            text = f"{text[: letters - 1]}…" if letters > 3 else ""
        found.append(escaped(text))
    return found


def title(frame: Frame | None, gathered: int) -> str:
    """Returns what a row of `Flame.frames` is called."""
    if frame is not None:
        return frame.title
    return f"other ({units.counted(gathered, 'short frame')})" if gathered else "all"


def _kinds(table: pd.DataFrame, theme: Theme) -> list[str]:
    """Returns the colour of each row by its kind; operators in a phase are paler than it."""
    colours, found = tokens()[theme], {}
    phases: dict[int, str] = {}
    for row in table.itertuples():
        own = _phase(row.frame)
        phases[row.node] = phase = own or phases.get(row.parent, "")
        if phase:
            plain = colours[phase]
            found[row.node] = plain if own else blended(plain, colours["panel"], INSIDE)
        else:
            found[row.node] = colours[_WORDS[_kind(row.frame)][0]]
    return [found[node] for node in table["node"]]


def legend(table: pd.DataFrame) -> dict[str, str]:
    """Returns token -> words of the colours that `_kinds` gives to frames of these rows."""
    found: dict[str, str] = {}
    for frame in filter(None, table["frame"]):
        phase = _phase(frame)
        token, words = (phase, phase) if phase not in ("", "other") else _WORDS[_kind(frame)]
        found.setdefault(token, words)
    return found


def _phase(frame: Frame | None) -> str:
    """Returns the token of a phase, and of an operator that communicates; "" of other frames."""
    if frame is not None and frame.kind == "op" and communicates(frame.name):
        return "collective"
    return token_of(frame.phase) if frame is not None and frame.phase else ""


def _kind(frame: Frame | None) -> str:
    if frame is not None and frame.kind == "python":
        return "program" if in_program(frame.file) else "library"
    return "missing" if frame is None else frame.kind


def differences(table: pd.DataFrame, theme: Theme) -> list[str]:
    """Returns the colour of each row by how many times the baseline's its total is."""
    ramp = diverging(theme)
    times = zip(table["total_ns"].tolist(), table["base_total_ns"].tolist(), strict=True)
    return [ramp_colour(ramp, _place(total, base)) for total, base in times]


@lru_cache(maxsize=2)
def diverging(theme: Theme) -> list[tuple[float, str]]:
    """Returns a scale from faster over equal to slower, even to the eye: (share, colour)."""
    colours = tokens()[theme]
    middle, steps = colours["identical"], 8
    low = [(i / steps / 2, blended(colours["faster"], middle, i / steps)) for i in range(steps)]
    high = [
        (0.5 + i / steps / 2, blended(middle, colours["slower"], i / steps))
        for i in range(steps + 1)
    ]
    return [*low, *high]


def _place(total: int, base: int) -> float:
    """Returns 0 for half the time or less, 0.5 for the same, 1 for twice the time or more."""
    if not total or not base:
        return float(total > base)
    return min(max(0.5 + math.log(total / base, _MAX_FACTOR) / 2, 0.0), 1.0)


def change(total: int, base: int) -> str:
    """Returns `×1.4` for a time and that of the baseline; "same" within 0.5 %."""
    if not base or not total:
        return "removed" if base else "added"
    factor = total / base
    return "same" if 0.995 <= factor < 1.005 else f"×{units.number(factor)}"


def _hover(found: Any, whole: int, beside: bool) -> str:
    total, own = int(found.total_ns), int(found.self_ns)
    lines = [
        f"<b>{escaped(title(found.frame, found.gathered))}</b>",
        f"total {units.duration(total)}, {units.share(total / max(whole, 1))}",
        f"self {units.duration(own)}",
    ]
    if beside:
        base = int(found.base_total_ns)
        sign = "+" if total >= base else "\N{MINUS SIGN}"
        apart = f"{sign}{units.duration(abs(total - base))}"
        lines.append(f"baseline {units.duration(base)}: {apart}, {change(total, base)}")
    return "<br>".join(lines)
