"""The native engine's clock: read through the processor's counter, it never goes back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lanescope.collector.engines import build
from tests.support import ROOT

SIMULATION = ROOT / "tests" / "fixtures" / "clock_simulation.cpp"


@pytest.mark.usefixtures("native")
def test_it_never_goes_back_on_a_busy_machine(tmp_path: Path) -> None:
    program = tmp_path / "simulation"
    flags = ["-O1", "-std=c++20", f"-I{build.SOURCES}", "-o", str(program)]
    subprocess.run([str(build.find_compiler()), *flags, str(SIMULATION)], check=True)
    went_back = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert went_back.split() == ["0"]
