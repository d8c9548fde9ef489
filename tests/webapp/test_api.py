"""The interface in code: `import lanescope.webapp as lw`."""

from __future__ import annotations

import inspect
import json
import operator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pyarrow as pa
import pytest

import lanescope.webapp as lw
from lanescope.webapp.analysis.checks import counts
from lanescope.webapp.runs.run_warnings import ranks_text
from tests.support.synthetic import write_run


@pytest.mark.parametrize("name", lw.__all__)
def test_every_name_is_there_and_says_what_it_answers(name: str) -> None:
    assert name in dir(lw)
    assert inspect.getdoc(getattr(lw, name))


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Runs'"):
        operator.attrgetter("Runs")(lw)


def test_questions_give_tables(tmp_path: Path) -> None:
    run = lw.open_run(write_run(tmp_path / "run", steps=2, ops=4))
    assert isinstance(run.events("op"), pa.Table)
    for answer in (lw.overlap(run), lw.collectives(run), lw.gradients(run), lw.diff(run, run)):
        assert isinstance(answer, pd.DataFrame)
        assert len(answer)
    assert [finding.kind for finding in lw.findings(run)] == ["overlap"]


def test_a_finding_is_json_of_the_agreed_shape() -> None:
    finding = lw.Finding(
        kind="overlap",
        severity="warning",
        title="two threads",
        ranks=(0, 1),
        step=3,
        evidence={"rate": 0.5},
    )
    assert json.loads(json.dumps(finding.to_json())) == {
        "kind": "overlap",
        "severity": "warning",
        "title": "two threads",
        "rank": None,
        "ranks": [0, 1],
        "thread": None,
        "step": 3,
        "time_ns": None,
        "where": None,
        "evidence": {"rate": 0.5},
        "link": "/timeline",
        "confidence": "certain",
    }


def test_a_finding_about_a_rank_concerns_that_rank_alone() -> None:
    assert lw.Finding(kind="race", severity="error", title="", rank=3).ranks == (3,)
    assert lw.Finding(kind="race", severity="error", title="", rank=3, ranks=(3, 4)).ranks == (3, 4)
    assert lw.Finding(kind="race", severity="error", title="").ranks == ()


def test_a_finding_of_an_unknown_severity_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no finding of severity 'bad'"):
        lw.Finding(kind="race", severity=cast("Any", "bad"), title="")
    with pytest.raises(ValueError, match="no finding of confidence 'sure'"):
        lw.Finding(kind="race", severity="error", title="", confidence=cast("Any", "sure"))


def test_only_certain_findings_fail_a_check() -> None:
    slow = lw.Finding(kind="straggler", severity="warning", title="", confidence="likely")
    assert not counts(slow, "warning")
    assert counts(replace(slow, confidence="certain"), "warning")


@pytest.mark.parametrize(
    ("ranks", "text"), [((), "none"), ((3,), "3"), ((0, 1), "0-1"), ((5, 0, 1, 2), "0-2, 5")]
)
def test_ranks_as_people_write_them(ranks: tuple[int, ...], text: str) -> None:
    assert ranks_text(ranks) == text
