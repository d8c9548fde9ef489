"""Gradients that ranks sum by hand are said so, and those that they average are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.plugins.data.undivided_gradients import summed_gradients
from tests.faults.base import Fault, Program
from tests.faults.judge import recorded
from tests.faults.ranks import by_hand

FORMS = (
    by_hand.summed_one_by_one,
    *(
        pytest.param(form, marks=pytest.mark.slow)
        for form in (by_hand.summed_as_one, by_hand.summed_by_adam, by_hand.summed_losses)
    ),
)


@pytest.mark.torchrun
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("planted", [True, False])
def test_sums_are_information(tmp_path: Path, form: Program, planted: bool) -> None:
    fault = Fault("summed", "ranks", ("wrong_gradient",), form, ranks=2)
    run = recorded(fault, form, tmp_path / "run", planted=planted)
    found = summed_gradients(run)
    assert [one.severity for one in found] == (["info"] if planted else [])
    assert [one.where for one in found] == ([fault.place] if planted else [])
