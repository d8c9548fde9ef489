"""In which parts a module is drawn, and where boxes stand: apart, and beside the edges."""

from __future__ import annotations

from itertools import pairwise

import pytest

from lanescope.webapp.plugins.autograd_graph.acyclic import MAX_PARTS, parts
from lanescope.webapp.plugins.autograd_graph.graph_layout import BOX, GAP, ROW, laid_out


def test_a_module_around_others_is_split_into_parts() -> None:
    #        add0 -> linear -> add1 -> linear -> weight of the outer
    groups = ["outer", "inner", "outer", "inner", "outer"]
    assert parts(groups, [[1, 2], [2], [3, 4], [4], []]) == [0, 0, 1, 1, 2]


def test_what_can_be_together_is() -> None:
    # Two results of one module; the second comes by way of another.
    groups = ["loss", "other", "trunk", "trunk", "trunk"]
    assert parts(groups, [[1, 2], [3], [4], [4], []]) == [0] * 5


def test_a_branch_that_nothing_waits_for_is_kept_for_last() -> None:
    # A view of the embedding's weight, which the head shares, and the embedding itself.
    groups = ["head", "embedding", "block", "norm", "block", "embedding", "embedding"]
    following = [[1, 2], [6], [3, 4], [4], [5], [6], []]
    assert parts(groups, following) == [0, 0, 0, 0, 1, 0, 0]


def test_a_cell_called_very_often_stays_whole() -> None:
    count = 2 * (MAX_PARTS + 1)
    groups = ["cell" if node % 2 else "norm" for node in range(count)]
    following = [[node + 1] if node + 1 < count else [] for node in range(count)]
    assert set(parts(groups, following)) == {0}


@pytest.fixture
def unet() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A chain of 12 whose two halves are tied by edges that pass rows."""
    levels = {str(n): n for n in range(12)}
    chain = [(str(n), str(n + 1)) for n in range(11)]
    return levels, chain + [(str(n), str(11 - n)) for n in range(5)]


def test_no_edge_leads_over_a_box(unet: tuple[dict[str, int], list[tuple[str, str]]]) -> None:
    levels, edges = unet
    layout = laid_out(levels, dict.fromkeys(levels, 100.0), edges)
    assert layout.height == 12 * ROW
    for x, y in layout.boxes.values():
        assert 50 <= x <= layout.width - 50
        for path in layout.paths:
            for (x0, y0), (x1, y1) in pairwise(path):
                inside = max(min(y0, y1), y - BOX / 2) < min(max(y0, y1), y + BOX / 2) - 1e-9
                assert not inside or max(x0, x1) <= x - 50 or min(x0, x1) >= x + 50


def test_boxes_of_a_row_stand_apart_and_below_what_they_hang_on() -> None:
    levels = {"top": 0, "left": 1, "right": 1, "below left": 2, "below right": 2}
    widths = {"top": 50.0, "left": 200.0, "right": 80.0, "below left": 60.0, "below right": 60.0}
    edges = [("top", "right"), ("top", "left"), ("left", "below left"), ("right", "below right")]
    boxes = laid_out(levels, widths, edges).boxes
    (left, _), (right, _) = sorted((boxes["left"], boxes["right"]))
    assert right - left >= 140 + GAP - 1e-9
    assert boxes["below left"][0] == pytest.approx(boxes["left"][0])
    assert boxes["below right"][0] == pytest.approx(boxes["right"][0])


def test_what_leads_to_one_box_shares_a_line() -> None:
    levels = {**{str(n): n for n in range(20)}, "mask": 20}
    chain = [(str(n), str(n + 1)) for n in range(19)]
    once = laid_out(levels, dict.fromkeys(levels, 40.0), [*chain, ("0", "mask")])
    all_of = [(str(n), "mask") for n in range(20)]
    often = laid_out(levels, dict.fromkeys(levels, 40.0), [*chain, *all_of])
    assert often.width == pytest.approx(once.width, abs=20)
