"""Runs recorded on an H100: programs of tests/gpu/cases.py, as they were then."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp import open_run
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.plugins.races.race_findings import race_findings
from lanescope.webapp.plugins.threads.overlap_findings import overlapping_backwards
from tests.gpu.cases import EXPECTED
from tests.support import ROOT

RUNS = ROOT / "tests" / "fixtures" / "gpu"
NAMES = {one.__name__: kinds for one, kinds in EXPECTED.items()}


def test_there_are_some() -> None:
    assert len(list(RUNS.glob("*.lanes"))) == 6


@pytest.mark.parametrize("bundle", sorted(RUNS.glob("*.lanes")), ids=lambda path: path.stem)
def test_faults_are_found_and_their_twins_are_silent(bundle: Path) -> None:
    run = open_run(bundle)
    found: list[Finding] = [*race_findings(run)]
    if "threads" in bundle.stem:
        found += overlapping_backwards(run)
    assert {one.kind for one in found if one.severity != "info"} == NAMES[bundle.stem]


def test_a_read_before_the_copy_has_ended_is_named() -> None:
    (race,) = race_findings(open_run(RUNS / "read_before_copied.lanes"))
    said = ("the default stream writes it (aten::copy_)", "main reads it (aten::sum)")
    assert all(one in race.title for one in said)
    assert "main does not wait for the copy" in race.title


def test_gradients_of_one_model_are_shared() -> None:
    (overlap,) = overlapping_backwards(open_run(RUNS / "two_threads_one_model.lanes"))
    assert overlap.evidence["shared_gradients"] == 10
