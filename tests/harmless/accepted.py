"""Accepted differences, each with a reason: read from `accepted.toml`, shown in docs/limits.md."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from .differences import Difference

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LIST = Path(__file__).with_name("accepted.toml")


@dataclass(frozen=True)
class Accepted:
    """Tests that may differ, in one way."""

    tests: tuple[str, ...]  # names; * and ? as in fnmatch
    recorded: str  # the outcome while recorded; * and ? as in fnmatch
    reason: str
    engines: tuple[str, ...] = ("native", "portable")

    def covers(self, found: Difference) -> bool:
        """Whether this is the difference that was found."""
        return (
            found.engine in self.engines
            and all(
                fnmatchcase(outcome, self.recorded) or outcome == found.plain[0]
                for outcome in found.recorded
            )
            and any(fnmatchcase(found.test, test) for test in self.tests)
        )


def accepted() -> list[Accepted]:
    """All of them, in the order of the file."""
    entries = tomllib.loads(LIST.read_text()).get("accepted", [])
    return [
        Accepted(
            tuple(entry["tests"]),
            entry["recorded"],
            entry["reason"],
            tuple(entry.get("engines", Accepted.engines)),
        )
        for entry in entries
    ]
