"""A column of numbers is in one unit, which its title names."""

from __future__ import annotations

from math import nan

from lanescope.webapp.runs import units
from lanescope.webapp.ui import widgets


def test_a_column_is_in_the_unit_of_its_largest_value() -> None:
    times = units.in_one_unit([57_640_000, 3_040, None, nan, 0], "ns")
    assert times == ("ms", ["57.6", "0.00304", "–", "–", "0"])
    # The unit of the largest would hide the least; where no unit shows both, the least gives way.
    assert units.in_one_unit([2_500_000, -400], "B/s") == ("kB/s", ["2500", "-0.400"])
    assert units.in_one_unit([250_000_000, 40, -40], "B") == ("MB", ["250", "< 0.001", "> -0.001"])
    assert units.in_one_unit([], "B") == ("B", [])
    assert units.in_one_unit([4.56e9, None], "FLOP/s") == ("GFLOP/s", ["4.56", "–"])


def test_columns_to_compare_share_a_unit() -> None:
    columns = [
        widgets.column("a", "first", base="ns", together="times"),
        widgets.column("b", "second", base="ns", together="times"),
        widgets.column("c", "third", base="ns"),
    ]
    heads, rows = widgets.with_units(columns, [{"a": 2_000_000, "b": 500_000, "c": 7_000}])
    assert [one["headerName"] for one in heads] == ["first, ms", "second, ms", "third, µs"]
    assert [rows[0][f"{name}_text"] for name in "abc"] == ["2.00", "0.500", "7.00"]
    assert all(name not in one for one in heads for name in ("base", "together"))
    assert widgets.with_units(columns, [])[0][0]["headerName"] == "first"
