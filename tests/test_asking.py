"""A question about a run that cannot be answered, by whose fault it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.analysis.findings import ANALYSES, Analysis, ask
from lanescope.webapp.errors import RunError
from lanescope.webapp.run import open_run
from tests.synthetic import START_NS, Builder


def test_a_fault_in_one_question_is_its_answer(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    builder.op(START_NS, 10)
    run = open_run(builder.write())
    asked = ask(Analysis("Is it there?", "hangs:no_such_function"), run)
    assert (asked.question, asked.findings) == ("Is it there?", ())
    assert "a fault of LaneScope (AttributeError at findings.py:" in asked.unanswered


def test_a_log_that_cannot_be_read_is_no_answer(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    builder.phase(START_NS, 10, "backward")
    run = open_run(builder.write())
    for part in tmp_path.rglob("phase-*.parquet"):
        part.write_bytes(b"PAR1" + bytes(part.stat().st_size - 8) + b"PAR1")
    question = next(one for one in ANALYSES if one.entry.startswith("inplace:"))
    with pytest.raises(RunError):
        ask(question, run)
