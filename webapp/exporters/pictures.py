"""Pictures of a run as SVG, drawn without a browser: lanes of a window, and lines over steps.

They follow the reader's theme (`prefers-color-scheme`), hold no script, ask for nothing,
and names in them are text.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from lanescope.webapp.runs import units
from lanescope.webapp.runs.types import Int64Array
from lanescope.webapp.timeline.lanes import COUNTER, Lane
from lanescope.webapp.timeline.lod_buckets import runs
from lanescope.webapp.timeline.styles import STYLES
from lanescope.webapp.timeline.tile_columns import STYLE_UNFINISHED
from lanescope.webapp.timeline.timeline import Timeline
from lanescope.webapp.ui.colours import SANS, Theme, token_of, tokens

WIDTH, LABELS, EDGE = 1200, 190, 14
PLOT = WIDTH - LABELS - EDGE
ROW, GAP, _HEAD, FOOT = 13, 7, 30, 12
MAX_LANES, _MAX_ROWS = 24, 6
_SHARES = 4
"""Steps in which a stretch of short slices is denser or paler."""
_LETTER = 6.2
"""Width of a letter at 11 px, roughly: what does not fit is cut."""

_LINES = (
    ("forward", "none"),
    ("backward", "6 4"),
    ("collective", "2 3"),
    ("optimizer", "8 3 2 3"),
    ("other", "12 4"),
    ("data", "12 3 2 3"),
)
"""Token and dashes of a line: never colour alone."""

_KINDS = tuple(dict.fromkeys(token_of(style) if style != "mark" else "ink" for style in STYLES))
_KIND_OF = np.array([_KINDS.index(token_of(s) if s != "mark" else "ink") for s in STYLES], np.int64)


def lanes_picture(
    timeline: Timeline,
    window: tuple[int, int],
    lanes: Sequence[Lane],
    instant_ns: int | None = None,
) -> str:
    """Returns the slices of some lanes in a window [t0, t1), ns from the start; `instant_ns` is
    marked.

    Of each lane the first rows with something in the window, of all lanes the first ones; omissions
    are stated. Slices shorter than a pixel are drawn by the share of it that they cover.
    """
    t0, t1 = window
    scale = PLOT / max(t1 - t0, 1)
    out: list[str] = []
    top = _HEAD
    rank: int | None = None
    drawn = [(lane, rows) for lane in lanes if (rows := _rows(timeline, lane, t0, t1))]
    for lane, rows in drawn[:MAX_LANES]:
        if lane.rank != rank:
            rank = lane.rank
            out.append(_text(EDGE, top + 10, f"rank {rank}", "head"))
            top += ROW + 3
        out.append(_text(EDGE + 10, top + 10, _cut(lane.label, LABELS - EDGE - 14), "label"))
        for row in rows[:_MAX_ROWS]:
            out += _row(timeline, row, t0, t1, scale, top)
            top += ROW + 1
        top += GAP
    if not drawn:
        out.append(_text(LABELS, top + 10, "nothing was recorded here", "label"))
        top += ROW + GAP
    left = len(drawn) - MAX_LANES
    if left > 0:
        out.append(_text(EDGE, top + 10, f"and {left} more lanes", "label"))
        top += ROW + GAP
    if instant_ns is not None and t0 <= instant_ns <= t1:
        x = _short(LABELS + (instant_ns - t0) * scale)
        out.append(f'<path class="instant" d="M{x} {_HEAD - 6}V{top}"/>')
    # Far from the start instants differ in digits that are not shown: they count from t0 there.
    sign = "+" if t0 else ""
    instants = _ticks(0, max(t1 - t0, 1))
    factor, unit = units.unit_for(instants[-1], "ns")
    step = f"{instants[1] / factor:g}" if len(instants) > 1 else "1"
    digits = len(step.partition(".")[2])
    ticks = [(LABELS + at * scale, f"{sign}{at / factor:.{digits}f} {unit}") for at in instants]
    if t0:
        out.append(_text(EDGE, 16, f"from {units.duration(t0)}", "tick"))
    return _svg([*_ruler(ticks, top), *out], top + FOOT)


def lines_picture(title: str, lines: Mapping[str, tuple[Sequence[int], Sequence[float]]]) -> str:
    """Returns positive numbers over steps on a logarithmic axis, a line for each name.

    What is 0, NaN or infinite has no place on it; steps with NaN or infinity have a cross.
    """
    height, top = 220, _HEAD
    known = [v for _, values in lines.values() for v in values if 0 < v < math.inf]
    steps = [step for some, _ in lines.values() for step in some]
    first, last = min(steps, default=0), max(steps, default=0)
    low = math.floor(math.log10(min(known))) if known else 0
    high = math.ceil(math.log10(max(known))) if known else 1
    high += high == low
    across = (PLOT - EDGE) / max(last - first, 1)
    out = [_text(EDGE, 16, title, "head")]
    for power in range(low, high + 1, max(1, (high - low) // 6)):
        level = top + height * (high - power) / (high - low)
        out.append(f'<path class="grid" d="M{LABELS} {_short(level)}h{PLOT}"/>')
        out.append(_text(LABELS - 8, level + 4, f"1e{power}", "tick end"))
    names = list(lines)[: len(_LINES)]
    for position, name in enumerate(names):
        path, pen = [], "M"
        for step, value in zip(*lines[name], strict=True):
            x = _short(LABELS + (step - first) * across)
            if 0 < value < math.inf:
                y = _short(top + height * (high - math.log10(value)) / (high - low))
                path.append(f"{pen}{x} {y}")
                pen = "L"
            else:
                pen = "M"
                if value != 0:
                    out.append(
                        f'<path class="instant" d="M{x} {top + height - 8}m-4 -4l8 8m0-8l-8 8"/>'
                    )
        out.append(f'<path class="line c{position}" d="{"".join(path)}"/>')
        key = LABELS + 110 * position
        out.append(f'<path class="line c{position}" d="M{key} 12h18"/>')
        out.append(_text(key + 24, 16, _cut(name, 84), "tick"))
    for step in _ticks(first, last):
        at = LABELS + (step - first) * across
        out.append(_text(at, top + height + 16, f"step {step}", "tick mid"))
    return _svg(out, top + height + 26)


def _rows(timeline: Timeline, lane: Lane, t0: int, t1: int) -> list[int]:
    """Rows of a lane that have something in the window."""
    if lane.kind == COUNTER or lane.first_ns >= t1 or lane.last_ns < t0:
        return []
    return [
        row
        for row in timeline.index.lane_rows[lane.id]
        if (span := _span(timeline, row, t0, t1))[0] < span[1]
    ]


def _span(timeline: Timeline, row: int, t0: int, t1: int) -> tuple[int, int]:
    """Positions of the slices of a row that touch the window."""
    index = timeline.index
    begin, end = index.row_begin[row], index.row_end[row]
    low = begin + int(index.slices.end[begin:end].searchsorted(t0, side="right"))
    high = begin + int(index.slices.start[begin:end].searchsorted(t1))
    return low, high


def _row(timeline: Timeline, row: int, t0: int, t1: int, scale: float, top: int) -> Iterable[str]:
    slices, names = timeline.index.slices, timeline.index.names
    low, high = _span(timeline, row, t0, t1)
    start = np.maximum(slices.start[low:high], t0) - t0
    end = np.minimum(slices.end[low:high], t1) - t0
    kind = _KIND_OF.take(slices.style[low:high] & ~np.uint8(STYLE_UNFINISHED))
    wide = (end - start) * scale >= 1.5
    for at in np.flatnonzero(wide).tolist():
        x, width = LABELS + start[at] * scale, (end[at] - start[at]) * scale
        shape = f'x="{_short(x)}" y="{top}" width="{_short(width - 0.4)}" height="{ROW}"'
        yield f'<rect class="k{kind[at]}" {shape}/>'
        name = names[int(slices.name[low + at])]
        if width >= 4 * _LETTER:
            yield _text(x + 3, top + 10, _cut(name, width - 6), "name")
    yield from _short_slices(start[~wide], end[~wide], kind[~wide], scale, top)


def _short_slices(
    start: Int64Array, end: Int64Array, kind: Int64Array, scale: float, top: int
) -> Iterable[str]:
    """Slices below a pixel: how much of it they cover, in the colour of the longest of them."""
    if not len(start):
        return
    pixel = np.minimum((start * scale).astype(np.int64), PLOT - 1)
    first = runs(pixel)
    length = end - start
    share = np.minimum(np.add.reduceat(length, first) * scale, 1)
    # The position of the longest of each pixel: the greatest of (length, position) in one number.
    longest = np.maximum.reduceat(length * len(length) + np.arange(len(length)), first) % len(
        length
    )
    step = np.ceil(np.maximum(share, 1e-9) * _SHARES).astype(np.int64)
    colour, at = kind[longest], pixel[first]
    same = (np.diff(at) == 1) & (np.diff(colour) == 0) & (np.diff(step) == 0)
    begins = np.concatenate(([0], np.flatnonzero(~same) + 1))
    widths = np.diff(np.concatenate((begins, [len(at)])))
    paths: dict[tuple[int, int], list[str]] = {}
    for b, width in zip(begins.tolist(), widths.tolist(), strict=True):
        key = int(colour[b]), int(step[b])
        paths.setdefault(key, []).append(f"M{LABELS + at[b]} {top}h{width}v{ROW}h-{width}z")
    for (which, dense), parts in paths.items():
        yield f'<path class="k{which} o{dense}" d="{"".join(parts)}"/>'


def _ticks(t0: int, t1: int) -> list[int]:
    """Round numbers between two, at most nine."""
    power, factors = 1, (1, 2, 5)
    while (t1 - t0) / (power * factors[-1]) > 8:
        power *= 10
    step = power * next(factor for factor in factors if (t1 - t0) / (power * factor) <= 8)
    return list(range(-(-t0 // step) * step, t1 + 1, step))


def _ruler(ticks: Sequence[tuple[float, str]], bottom: int) -> Iterable[str]:
    for x, text in ticks:
        yield f'<path class="grid" d="M{_short(x)} {_HEAD - 8}V{bottom}"/>'
        yield _text(min(x, WIDTH - EDGE - 20), 16, text, "tick mid")


def _svg(parts: Iterable[str], height: int) -> str:
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{_style()}</style>\n'
        f'<rect class="ground" width="{WIDTH}" height="{height}"/>\n{body}\n</svg>\n'
    )


def _style() -> str:
    shares = "".join(f".o{k}{{opacity:{k / _SHARES:g}}}" for k in range(1, _SHARES))
    shape = (
        f"text{{font:11px {SANS}}}.head{{font-weight:600;font-size:12px}}.name{{fill:#000}}"
        ".mid{text-anchor:middle}.end{text-anchor:end}.line,.grid,.instant{fill:none}"
        f".line,.instant{{stroke-width:1.5}}{shares}"
    )
    dark = f"@media (prefers-color-scheme:dark){{{_colours('dark')}}}"
    return html.escape(shape + _colours("light") + dark, quote=False)


def _colours(theme: Theme) -> str:
    colour = tokens()[theme]
    return (
        f".ground{{fill:{colour['panel']}}}.head{{fill:{colour['ink']}}}"
        f".label,.tick{{fill:{colour['muted']}}}.grid{{stroke:{colour['line']}}}"
        f".instant{{stroke:{colour['bad']}}}"
        + "".join(f".k{k}{{fill:{colour[kind]}}}" for k, kind in enumerate(_KINDS))
        + "".join(
            f".c{k}{{stroke:{colour[name]};stroke-dasharray:{dash}}}"
            for k, (name, dash) in enumerate(_LINES)
        )
    )


def _text(x: float, y: float, text: str, kind: str) -> str:
    shown = html.escape(units.printable(text))
    return f'<text class="{kind}" x="{_short(x)}" y="{_short(y)}">{shown}</text>'


def _cut(text: str, width: float) -> str:
    most = max(int(width / _LETTER), 1)
    return text if len(text) <= most else text[: max(most - 1, 1)] + "\N{HORIZONTAL ELLIPSIS}"


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
