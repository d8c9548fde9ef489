"""Compares a unit's outcomes, plain and recorded; what differs is run again before it counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from .processes import END, PLAIN, Result, run
from .units import Unit

AGAIN = 3
"""How often a test that differs is run again, plain and recorded."""
ABSENT = "not run"
MAX_ALONE = 30
"""Of more tests that differ at once, the whole unit is run again."""


@dataclass
class Difference:
    """A test that came out otherwise while it was recorded, with what later runs gave."""

    test: str
    engine: str
    plain: list[str] = field(default_factory=list)  # outcomes, the first run's first
    recorded: list[str] = field(default_factory=list)

    @property
    def unsteady(self) -> bool:
        """Whether chance has a part in it: plain runs differ among themselves, or most recorded
        runs gave what plain ones give."""
        agreeing = sum(outcome == self.plain[0] for outcome in self.recorded)
        return len(set(self.plain)) > 1 or agreeing > len(self.recorded) / 2

    def __str__(self) -> str:
        return (
            f"{self.test} [{self.engine}]: {_counted(self.plain)} plain, "
            f"{_counted(self.recorded)} recorded"
        )


def _counted(outcomes: list[str]) -> str:
    counts = Counter(outcomes)
    if len(counts) == 1:
        return outcomes[0]
    return " / ".join(f"{count}x {outcome}" for outcome, count in counts.items())


def differences(
    unit: Unit, plain: Result, recorded: Result, engine: str, log: Path
) -> list[Difference]:
    """The tests of a unit that differ, those of unsteady outcome among them."""
    tests = [*plain.outcomes, *(test for test in recorded.outcomes if test not in plain.outcomes)]
    found = [
        Difference(test, engine, [was], [came])
        for test in tests
        if (was := plain.outcomes.get(test, ABSENT))
        != (came := recorded.outcomes.get(test, ABSENT))
    ]
    if found:
        _run_again(unit, engine, found, log)
    return found


def _run_again(unit: Unit, engine: str, found: list[Difference], log: Path) -> None:
    """Alone first, which is short; where that shows no difference, with the unit's other tests."""
    real = [one.test for one in found if one.test != END]
    alone = real if len(real) == len(found) <= MAX_ALONE else []
    for _ in range(AGAIN):
        plain, recorded = run(unit, PLAIN, log, alone), run(unit, engine, log, alone)
        for one in found:
            one.plain.append(plain.outcomes.get(one.test, ABSENT))
            one.recorded.append(recorded.outcomes.get(one.test, ABSENT))
    if alone and any(one.recorded[1:] == one.plain[1:] for one in found):
        whole = [run(unit, engine, log).outcomes for _ in range(2)]  # one more makes no majority
        for one in found:
            if one.recorded[1:] == one.plain[1:] == one.plain[:1] * AGAIN:
                # Alone it does not differ: its order among the others decides.
                one.plain = one.plain[:1]
                one.recorded = [one.recorded[0], *(w.get(one.test, ABSENT) for w in whole)]
