"""What came of a comparison, in a table by suite and engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from .accepted import accepted
from .differences import Difference
from .processes import END, Result
from .units import Unit, all_units

COLUMNS = (
    "suite",
    "engine",
    "units",
    "tests",
    "same",
    "unsteady",
    "accepted",
    "different",
    "processes recorded",
    "processor time plain",
    "recorded",
)


@dataclass(frozen=True)
class Compared:
    """A unit's outcomes plain and recorded."""

    unit: Unit
    engine: str
    plain: Result
    recorded: Result
    found: list[Difference]

    @cached_property
    def steady(self) -> list[Difference]:
        """Those differences that chance has no part in."""
        return [one for one in self.found if not one.unsteady]

    @cached_property
    def unlisted(self) -> list[Difference]:
        """Those that are not accepted."""
        known = accepted()
        return [one for one in self.steady if not any(entry.covers(one) for entry in known)]

    @property
    def tests(self) -> int:
        """How many tests there are."""
        return len((self.plain.outcomes.keys() | self.recorded.outcomes.keys()) - {END})


def rows(compared: Iterable[Compared]) -> list[tuple[str, ...]]:
    """A row of `COLUMNS` for each suite and engine."""
    groups: dict[tuple[str, str], list[Compared]] = {}
    for one in compared:
        groups.setdefault((one.unit.suite, one.engine), []).append(one)
    found = []
    known = Counter(unit.suite for unit in all_units())
    for (suite, engine), ones in sorted(groups.items()):
        tests = sum(one.tests for one in ones)
        differing = sum(len(one.found) for one in ones)
        steady = sum(len(one.steady) for one in ones)
        unlisted = sum(len(one.unlisted) for one in ones)
        figures = (
            tests,
            tests - differing,
            differing - steady,
            steady - unlisted,
            unlisted,
            sum(one.recorded.processes for one in ones),
        )
        times = (sum(one.plain.cpu_s for one in ones), sum(one.recorded.cpu_s for one in ones))
        found.append(
            (
                suite,
                engine,
                f"{len(ones)} of {known[suite]}",
                *(f"{n:,}" for n in figures),
                *(f"{time:,.0f} s" for time in times),
            )
        )
    return found


def summary(compared: list[Compared]) -> str:
    """The table, and every difference by name."""
    lines = [COLUMNS, *rows(compared)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    for title, found in (
        ("Unsteady", [d for one in compared for d in one.found if d.unsteady]),
        ("Accepted", [d for one in compared for d in one.steady if d not in one.unlisted]),
        ("Different", [d for one in compared for d in one.unlisted]),
    ):
        if found:
            text += ["", f"{title}:", *(f"  {one}" for one in found)]
    errors = sum(one.recorded.recorder_errors for one in compared)
    if errors:
        text += ["", f"The recorder contained {errors} errors of its own."]
    return "\n".join(text)
