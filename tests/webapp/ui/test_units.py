"""A column of numbers is in one unit, which its title names."""

from __future__ import annotations

from math import inf, nan

from lanescope.webapp.runs import units
from lanescope.webapp.ui import grids, widgets


def test_a_column_is_in_the_unit_of_its_largest_value() -> None:
    times = units.in_one_unit([57_640_000, 3_040, None, nan, 0], "ns")
    assert times == ("ms", ["57.6", "0.00304", "–", "–", "0"])
    # The unit of the largest would hide the least; where no unit shows both, the least gives way.
    assert units.in_one_unit([2_500_000, -400], "B/s") == ("kB/s", ["2\N{THIN SPACE}500", "-0.400"])
    assert units.in_one_unit([250_000_000, 40, -40], "B") == ("MB", ["250", "< 0.001", "> -0.001"])
    assert units.in_one_unit([], "B") == ("B", [])
    assert units.in_one_unit([4.56e9, None], "FLOP/s") == ("GFLOP/s", ["4.56", "–"])


def test_the_micro_sign_stands_in_durations_alone() -> None:
    assert widgets.with_micro("us") == "\N{MICRO SIGN}s"
    words = "12.3 us of 40 us, and rank 2 uses the usual 3 users"
    shown = "12.3 \N{MICRO SIGN}s of 40 \N{MICRO SIGN}s, and rank 2 uses the usual 3 users"
    assert widgets.with_micro(words) == shown


def test_shares_of_a_column_have_the_same_digits() -> None:
    rates = (1, 0.425, 0.03, 0.0287, 0.0004, 0, None, nan)
    shown = ["100.0 %", "42.5 %", "3.0 %", "2.9 %", "< 0.1 %", "0.0 %", "–", "–"]
    assert [units.share_cell(rate) for rate in rates] == shown
    assert [units.aligned(one) for one in (0.5, 12345, inf, 2e-7)] == [
        "0.500",
        "12\N{THIN SPACE}300",
        "inf",
        "2e-7",
    ]


def test_columns_to_compare_share_a_unit() -> None:
    columns = [
        grids.column("a", "first", base="ns", together="times"),
        grids.column("b", "second", base="ns", together="times"),
        grids.column("c", "third", base="ns"),
    ]
    heads, rows = grids.with_units(columns, [{"a": 2_000_000, "b": 500_000, "c": 7_000}])
    assert [one["headerName"] for one in heads] == ["first, ms", "second, ms", "third, µs"]
    assert [rows[0][f"{name}_text"] for name in "abc"] == ["2.00", "0.500", "7.00"]
    assert all(name not in one for one in heads for name in ("base", "together"))
    assert grids.with_units(columns, [])[0][0]["headerName"] == "first"
