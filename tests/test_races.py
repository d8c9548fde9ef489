"""Races planted in real programs are found at their two lines; the clean twins are silent."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from lanescope.webapp import open_run, races
from lanescope.webapp.analysis.race_findings import race_findings
from lanescope.webapp.analysis.spans import Span, share
from tests.recording import BIN, run_program

PROGRAMS = Path(__file__).parent / "races"
MARK = re.compile(r"# race: (\w+) (a|b)( b)?$")


def marked(program: Path) -> dict[str, set[int]]:
    """Name -> the lines that race."""
    lines: dict[str, set[int]] = {}
    for number, line in enumerate(program.read_text().splitlines(), 1):
        if found := MARK.search(line):
            lines.setdefault(found[1], set()).add(number)
    return lines


def recorded(tmp_path: Path, program: str) -> Path:
    run = tmp_path / "run"
    done = run_program(
        [str(BIN / "lanescope"), "record", "-o", str(run), "--engine", "native", "--",
         sys.executable, "-m", f"tests.races.{program}"], timeout=300,
        environment={"PYTHONPATH": str(PROGRAMS.parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return run


def test_planted_races_are_found_once_at_their_lines(tmp_path: Path) -> None:
    run = open_run(recorded(tmp_path, "planted"))
    found = race_findings(run)
    places = [
        {
            int(str(finding.evidence[side]["where"]).rpartition(":")[2])
            for side in ("first", "second")
        }
        for finding in found
    ]
    expected = marked(PROGRAMS / "planted.py")
    assert len(expected) >= 15
    missing = [name for name, lines in expected.items() if places.count(lines) != 1]
    assert not missing
    assert len(places) == len(expected), [p for p in places if p not in expected.values()]
    assert len(races(run)) == len(found)
    assert all(f.evidence["first"]["thread"] != f.evidence["second"]["thread"] for f in found)


def test_programs_whose_threads_are_ordered_are_silent(tmp_path: Path) -> None:
    found = race_findings(open_run(recorded(tmp_path, "clean")))
    assert [finding.title for finding in found] == []


@pytest.mark.parametrize(
    ("a", "b", "shared"),
    [
        (Span(0, 10, 10, 0), Span(10, 20, 10, 0), False),
        (Span(0, 11, 11, 0), Span(10, 20, 10, 0), True),
        (Span(0, 88, 8, 16), Span(8, 96, 8, 16), False),  # left and right half of each row
        (Span(0, 88, 9, 16), Span(8, 96, 8, 16), True),
        (Span(0, 88, 8, 16), Span(24, 32, 8, 0), False),  # a whole gap
        (Span(0, 88, 8, 16), Span(24, 33, 9, 0), True),
        (Span(0, 100, 4, 12), Span(4, 100, 4, 8), True),  # meet in a later row
        (Span(0, 100, 4, -1), Span(0, 100, 100, 0), False),  # nothing is claimed
    ],
)
def test_shared_bytes(a: Span, b: Span, shared: bool) -> None:
    assert share(a, b) is shared
    assert share(b, a) is shared
