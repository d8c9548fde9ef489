"""The native engine's clock: read through the processor's counter, it never goes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.collector.engines import build
from tests.support import ROOT
from tests.support.processes import compiled, output_of

SIMULATION = ROOT / "tests" / "fixtures" / "clock_simulation.cpp"


@pytest.mark.usefixtures("native")
def test_it_never_goes_back_on_a_busy_machine(tmp_path: Path) -> None:
    program = tmp_path / "simulation"
    compiled(SIMULATION, program, "-O1", "-std=c++20", f"-I{build.SOURCES}")
    assert output_of(program).split() == ["0"]
