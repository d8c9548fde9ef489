"""Tests which rows of a long table the page gets."""

from __future__ import annotations

import pytest

from lanescope.webapp.ui import grids

ROWS = [{"name": "b", "ns": 2}, {"name": "a", "ns": None}, {"name": "c", "ns": 3}]


def asked(**request: object) -> list[str]:
    answer = grids.rows_in_sight(ROWS, {"startRow": 0, "endRow": 100, **request})
    assert answer["rowCount"] == 3
    return [row["name"] for row in answer["rowData"]]


def test_rows_are_sorted_and_those_without_a_value_come_last() -> None:
    assert asked() == ["b", "a", "c"]
    assert asked(sortModel=[{"colId": "name", "sort": "asc"}]) == ["a", "b", "c"]
    assert asked(sortModel=[{"colId": "ns", "sort": "desc"}]) == ["c", "b", "a"]
    assert asked(sortModel=[{"colId": "ns", "sort": "asc"}]) == ["b", "c", "a"]


def test_rows_in_sight_alone_are_given() -> None:
    assert asked(startRow=1, endRow=2) == ["a"]


def test_rows_are_kept_until_many_other_tables_were_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids, "_KEPT_TABLES", 2)
    kept = grids._KeptRows()
    first = kept.keep(ROWS)
    assert kept.keep([dict(row) for row in ROWS]) == first
    kept.keep([{"name": "d"}])
    assert kept.rows(first) == ROWS
    kept.keep([{"name": "e"}])
    kept.keep([{"name": "f"}])
    with pytest.raises(LookupError, match="no longer"):
        kept.rows(first)
