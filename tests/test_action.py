"""The action for continuous integration, run as the script that it is."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support import ROOT
from tests.support.processes import Ended, run_program

ACTION = ROOT / ".github/actions/lanescope"
CASES = ROOT / "examples/cases"


def checked(folder: Path, program: str, **inputs: str) -> Ended:
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "COMMAND": f"{sys.executable} {program}",
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        **inputs,
    }
    return run_program(["bash", ACTION / "check.sh"], environment=environment, folder=folder)


@pytest.mark.slow
def test_the_action_fails_on_new_findings(tmp_path: Path) -> None:
    race = str(CASES / "race.py")
    first = checked(tmp_path, race, BASELINE="main.lanes")
    assert first.returncode == 1, first.stderr
    assert "there is no main.lanes yet" in first.stderr
    suite = ElementTree.parse(tmp_path / "lanescope/junit.xml").getroot()
    failed = {case.get("name") for case in suite if case.find("failure") is not None}
    assert "race" in failed
    assert "race" in (tmp_path / "summary.md").read_text()
    (tmp_path / "lanescope/run.lanes").rename(tmp_path / "main.lanes")
    # The same race is known; it was there before.
    again = checked(tmp_path, race, BASELINE="main.lanes")
    suite = ElementTree.parse(tmp_path / "lanescope/junit.xml").getroot()
    failed = {case.get("name") for case in suite if case.find("failure") is not None}
    assert "race" not in failed, again.stdout


@pytest.mark.slow
def test_the_action_passes_on_the_status_of_the_command(tmp_path: Path) -> None:
    program = tmp_path / "fails.py"
    program.write_text("import torch; torch.ones(2) + 1; raise SystemExit(7)")
    assert checked(tmp_path, str(program)).returncode == 7


def test_the_action_s_inputs_are_the_script_s() -> None:
    script = (ACTION / "check.sh").read_text()
    inputs = (ACTION / "action.yml").read_text().partition("env:")[2].partition("run:")[0]
    names = [line.split(":")[0].strip() for line in inputs.splitlines() if ":" in line]
    assert names == ["COMMAND", "BASELINE", "LEVEL", "FAIL_ON", "OUTPUT"]
    assert all(f"${name}" in script or f"${{{name}" in script for name in names)
