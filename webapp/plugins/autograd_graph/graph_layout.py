"""Where boxes and edges of a graph are drawn, in pixels: in rows, without edges behind boxes.

Boxes of a level stand in a row. An edge that passes rows by gets a column between their boxes;
all that lead to the same box share one, so that what many others use (an embedding, a mask) hangs
on one line. Rows are ordered by the mean place of what their boxes hang on, and moved as close to
it as the boxes' widths allow: the least squares of an order, found by pooling neighbours that are
in each other's way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

ROW = 46
BOX = 24
"""Heights, px: of a row, of a box in it."""
GAP = 16
"""Px between two boxes of a row, at least."""
LINE = 12
"""Px that an edge needs on its way past a row."""
SWEEPS = 8
PULLS = (2.0, 0.5, 8.0)
"""How much the place of a neighbour counts: of a box for a box, of a box and a column, of two
columns."""

Point = tuple[float, float]
Cell = tuple[str, int]  # of a box (level -1), or of the column to a box at a level


@dataclass(frozen=True)
class Layout:
    """Places in pixels, from the top left."""

    boxes: dict[str, Point]  # middle
    paths: tuple[tuple[Point, ...], ...]  # of edges and parts of them, from box to box
    width: float
    height: float


def laid_out(
    levels: Mapping[str, int], widths: Mapping[str, float], edges: Iterable[tuple[str, str]]
) -> Layout:
    """Places of boxes with these widths; edges lead to higher levels."""
    links = _links(levels, edges)
    rows: dict[int, list[Cell]] = defaultdict(list)
    level_of: dict[Cell, int] = {}
    width_of: dict[Cell, float] = {}
    cells = dict.fromkeys([(name, -1) for name in levels] + [one for pair in links for one in pair])
    for cell in cells:
        name, level = cell
        level_of[cell] = levels[name] if level < 0 else level
        width_of[cell] = widths[name] + GAP if level < 0 else LINE
        rows[level_of[cell]].append(cell)
    up: dict[Cell, list[Cell]] = defaultdict(list)
    down: dict[Cell, list[Cell]] = defaultdict(list)
    for one, other in links:
        down[one].append(other)
        up[other].append(one)
    order = [rows[level] for level in sorted(rows)]
    across = _across(order, up, down, width_of)
    left = min((across[cell] - width_of[cell] / 2 for cell in across), default=0.0)
    at = {cell: (across[cell] - left, (level_of[cell] + 0.5) * ROW) for cell in across}
    return Layout(
        {name: at[name, -1] for name in levels},
        tuple(_path(at[one], at[other], one, other) for one, other in links),
        max((at[cell][0] + width_of[cell] / 2 for cell in at), default=0.0),
        len(order) * ROW,
    )


def _links(levels: Mapping[str, int], edges: Iterable[tuple[str, str]]) -> list[tuple[Cell, Cell]]:
    """Edges cut at each row that they pass; those to one box are one from where they meet."""
    found: dict[tuple[Cell, Cell], None] = {}
    for one, other in edges:
        before: Cell = (one, -1)
        for level in range(levels[one] + 1, levels[other]):
            found[before, (other, level)] = None
            before = (other, level)
        found[before, (other, -1)] = None
    return list(found)


def _across(
    rows: Sequence[list[Cell]],
    up: Mapping[Cell, list[Cell]],
    down: Mapping[Cell, list[Cell]],
    width: Mapping[Cell, float],
) -> dict[Cell, float]:
    """Middle of each cell; orders the rows."""
    place: dict[Cell, float] = {}
    for row in rows:
        for position, cell in enumerate(row):
            place[cell] = position - len(row) / 2
    for sweep in range(SWEEPS):
        near, way = (up, rows) if sweep % 2 == 0 else (down, rows[::-1])
        for row in way:
            wish = {cell: _mean(place, near.get(cell) or [cell]) for cell in row}
            row.sort(key=wish.__getitem__)
            for position, cell in enumerate(row):
                place[cell] = position - len(row) / 2
    across = {cell: x for row in rows for cell, x in _side_by_side(row, width)}
    for sweep in range(SWEEPS):
        near, way = (up, rows) if sweep % 2 == 0 else (down, rows[::-1])
        for row in way:
            wishes, weights = [], []
            for cell in row:
                pulls = [
                    (across[one], PULLS[(one[1] >= 0) + (cell[1] >= 0)])
                    for one in near.get(cell, ())
                ]
                total = sum(pull for _, pull in pulls)
                wishes.append(sum(x * pull for x, pull in pulls) / total if pulls else across[cell])
                weights.append(total or 0.1)
            for cell, x in zip(row, _apart(row, wishes, weights, width), strict=True):
                across[cell] = x
    return across


def _mean(place: Mapping[Cell, float], cells: Sequence[Cell]) -> float:
    return sum(place[cell] for cell in cells) / len(cells)


def _side_by_side(row: Sequence[Cell], width: Mapping[Cell, float]) -> list[tuple[Cell, float]]:
    ends = np.cumsum([width[cell] for cell in row])
    return [
        (cell, float(end - width[cell] / 2 - ends[-1] / 2))
        for cell, end in zip(row, ends, strict=True)
    ]


def _apart(
    row: Sequence[Cell],
    wishes: Sequence[float],
    weights: Sequence[float],
    width: Mapping[Cell, float],
) -> list[float]:
    """Places closest to the wishes, in this order and not over one another.

    Without the widths of what stands to the left this is isotonic regression: pools of neighbours
    in each other's way share their mean.
    """
    offsets = [x for _, x in _side_by_side(row, width)]
    pools: list[list[float]] = []  # sum of weight * wish, sum of weight, members
    for wish, weight, offset in zip(wishes, weights, offsets, strict=True):
        pools.append([(wish - offset) * weight, weight, 1])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] >= pools[-1][0] / pools[-1][1]:
            last = pools.pop()
            pools[-1] = [one + other for one, other in zip(pools[-1], last, strict=True)]
    means = [total / weight for total, weight, many in pools for _ in range(int(many))]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _path(one: Point, other: Point, source: Cell, target: Cell) -> tuple[Point, ...]:
    """From the foot of one box to the head of another; straight past a row."""
    (x0, y0), (x1, y1) = one, other
    start, end = y0 + BOX / 2, y1 - BOX / 2
    points: list[Point] = [(x0, y0 - BOX / 2)] if source[1] >= 0 else []
    if abs(x1 - x0) < 1:
        points += [(x0, start), (x1, end)]
    else:
        for t in np.linspace(0, 1, 9):
            ease = t * t * (3 - 2 * t)
            points.append((float(x0 + (x1 - x0) * ease), float(start + (end - start) * t)))
    return tuple(points)
