"""In which parts a module is drawn."""

from __future__ import annotations

from lanescope.webapp.plugins.autograd_graph.module_graph import MAX_PARTS, acyclic_parts


def test_a_module_around_others_is_split_into_parts() -> None:
    #        add0 -> linear -> add1 -> linear -> weight of the outer
    groups = ["outer", "inner", "outer", "inner", "outer"]
    assert acyclic_parts(groups, [[1, 2], [2], [3, 4], [4], []]) == [0, 0, 1, 1, 2]


def test_what_can_be_together_is() -> None:
    # Two results of one module; the second comes by way of another.
    groups = ["loss", "other", "trunk", "trunk", "trunk"]
    assert acyclic_parts(groups, [[1, 2], [3], [4], [4], []]) == [0] * 5


def test_a_branch_that_nothing_waits_for_is_kept_for_last() -> None:
    # A view of the embedding's weight, which the head shares, and the embedding itself.
    groups = ["head", "embedding", "block", "norm", "block", "embedding", "embedding"]
    following = [[1, 2], [6], [3, 4], [4], [5], [6], []]
    assert acyclic_parts(groups, following) == [0, 0, 0, 0, 1, 0, 0]


def test_a_cell_called_very_often_stays_whole() -> None:
    count = 2 * (MAX_PARTS + 1)
    groups = ["cell" if node % 2 else "norm" for node in range(count)]
    following = [[node + 1] if node + 1 < count else [] for node in range(count)]
    assert set(acyclic_parts(groups, following)) == {0}
