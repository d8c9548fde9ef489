"""Every form of every fault is found, and no twin has an error or a warning."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.base import Fault
from tests.faults.judge import FAULTS, judged

FORMS = 3
"""Of each fault, at least."""


ONE = {one.name: one for one in reversed(FAULTS)}
ONE |= {one.name: one for one in reversed(FAULTS) if not one.slow}
"""A form of each fault, one that is not slow where there is one."""

QUICK = {(one.room, one.kinds): one for one in ONE.values() if not one.slow}
"""A form for each room and kind of finding. Tests of the rooms have each rule of each question."""


def marks(fault: Fault) -> list[pytest.MarkDecorator]:
    """A form of each fault runs in `make test-all`, the others in `make soak`."""
    if QUICK.get((fault.room, fault.kinds)) is fault:
        return []
    return [pytest.mark.slow] + [pytest.mark.soak] * (ONE[fault.name] is not fault)


@pytest.mark.parametrize(
    "fault", [pytest.param(one, id=one.form, marks=marks(one)) for one in FAULTS]
)
def test_a_fault_is_found_and_its_twin_is_silent(fault: Fault, tmp_path: Path) -> None:
    verdict = judged(fault, tmp_path)
    assert verdict.right, verdict.found
    assert verdict.alarms == []


def test_each_fault_has_three_forms_or_more() -> None:
    forms = Counter(fault.name for fault in FAULTS)
    assert min(forms.values()) >= FORMS, forms
    assert len({fault.form for fault in FAULTS}) == len(FAULTS)
