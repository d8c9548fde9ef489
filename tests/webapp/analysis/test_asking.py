"""A question about a run that cannot be answered, by whose fault it is."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from dash import html

from lanescope.collector.format import schema
from lanescope.webapp.analysis.findings import Finding, check_evidence, run_question
from lanescope.webapp.analysis.plugin import Page, Question, kinds, pages, questions
from lanescope.webapp.cli import main
from lanescope.webapp.exporters.report import report_markdown
from lanescope.webapp.plugins.autograd_graph.traceability import graph_traceability, walks
from lanescope.webapp.plugins.checks import overhead
from lanescope.webapp.plugins.overview import page_checks
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.runs.typed_json import Mismatch
from lanescope.webapp.server.frame import made
from lanescope.webapp.ui.context import Context
from tests.support.recording import record_program
from tests.support.synthetic import START_NS, Builder

BROKEN = Question(
    "Is it there?", "lanescope.webapp.plugins.hangs.hangs:no_such_function", ("hang",), order=0
)


def one_op(path: Path) -> Path:
    builder = Builder(path)
    builder.op(START_NS, 10)
    return builder.write()


def test_a_fault_in_one_question_is_its_answer(tmp_path: Path) -> None:
    asked = run_question(BROKEN, open_run(one_op(tmp_path)))
    assert (asked.question, asked.findings, asked.answered) == ("Is it there?", (), False)
    assert asked.failed.startswith("internal error in no_such_function (AttributeError: module ")
    assert asked.failed.endswith("; please report it")


@pytest.mark.parametrize(("engine", "unasked"), [("portable", True), ("native", False)])
def test_what_an_engine_does_not_see_has_not_passed(
    tmp_path: Path, engine: str, unasked: bool
) -> None:
    run = record_program(tmp_path, "import torch; torch.ones(1).sin()", "--engine", engine).run
    asked = [run_question(one, open_run(run)) for one in questions() if one.native]
    assert asked
    assert {one.unanswered == "record with the native engine" for one in asked} == {unasked}


def kept(_: Run) -> list[Finding]:
    return [Finding("exploding_gradient", "warning", "", evidence={"gradients": 3})]


def test_evidence_of_another_shape_is_a_fault_of_its_question(tmp_path: Path) -> None:
    question = Question("Are they zeroed?", f"{__name__}:kept", ("exploding_gradient",), order=0)
    asked = run_question(question, open_run(one_op(tmp_path)))
    assert "Mismatch: evidence.gradients is 3, expected a list" in asked.failed


def test_a_kind_that_is_not_declared_is_a_fault_of_its_question(tmp_path: Path) -> None:
    question = Question("Are they zeroed?", f"{__name__}:kept", ("nan",), order=0)
    asked = run_question(question, open_run(one_op(tmp_path)))
    assert "a finding of kind 'exploding_gradient', declared: ('nan',)" in asked.failed


@pytest.mark.parametrize(
    ("kind", "evidence", "words"),
    [
        ("race", {"tensor": "w"}, "evidence has no 'first'"),
        ("overlap", {}, "evidence has no 'rate'"),
        ("hang", {"group": "0", "sequence": 1, "op": {"0": 3}}, "evidence.op is an object of 1"),
        ("nan", {"found": {1, 2}}, "{1, 2} is not a JSON value"),
        ("nan", {"found": {1: 2}}, "the key 1 is not text"),
    ],
)
def test_evidence_is_held_against_its_declaration(
    kind: str, evidence: dict[str, Any], words: str
) -> None:
    with pytest.raises(Mismatch, match=re.escape(words)):
        check_evidence(kinds()[kind], Finding(kind, "error", "", evidence=evidence).evidence)


def test_evidence_is_plain_json() -> None:
    found = Finding("nan", "error", "", evidence={"a": np.float64("inf"), "b": (np.int64(3), None)})
    assert found.evidence == {"a": "Infinity", "b": [3, None]}


def unmeasurable(run: Run) -> float:
    return 1 / run.counts["sync"]


def test_what_cannot_be_checked_hides_nothing_and_has_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = one_op(tmp_path / "run")
    monkeypatch.setattr(overhead, "memory_overhead", unmeasurable)
    asked = (BROKEN, *questions())
    monkeypatch.setattr("lanescope.webapp.analysis.findings.questions", lambda: asked)
    junit = tmp_path / "junit.xml"
    result = CliRunner().invoke(main, ["check", str(path), "--json", "--junit", str(junit)])
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [one["in"] for one in found["errors"]] == ["memory_overhead", "Is it there?"]
    assert "ZeroDivisionError: division by zero, at test_asking.py:" in found["errors"][0]["error"]
    assert found["metrics"]["memory_overhead"] is None
    assert found["examined"][0]["error"] == found["errors"][1]["error"]
    assert sum(one["unanswered"] is None for one in found["examined"][1:]) > 1
    suite = ElementTree.parse(junit).getroot()
    assert suite.get("errors") == "2"
    assert {case.get("name") for case in suite if case.find("error") is not None} == {
        "memory_overhead",
        "Is it there?",
    }
    shown = CliRunner().invoke(main, ["check", str(path), "--fail-on", "never"])
    assert shown.exit_code == 0
    assert (
        "error  memory_overhead: not checked: internal error in memory_overhead (" in shown.stdout
    )
    context = Context(open_run(path))
    page = str(page_checks.section(context, context.report()))
    assert "not checked: internal error in no_such_function" in page
    assert "internal error in memory_overhead" in page
    report = report_markdown(context.run)
    not_checked, apart = report.split("## Not checked")[1].split("## Checks that do not apply")
    assert "the job has a single rank" in apart
    assert "the job has a single rank" not in not_checked


def page_called(name: str) -> Page:
    return next(page for page in pages() if page.name == name)


def broken_layout(context: Context) -> html.Div:
    return html.Div(unmeasurable(context.run))


def test_a_page_that_fails_says_so(tmp_path: Path) -> None:
    context = Context(open_run(one_op(tmp_path)))
    broken = replace(page_called("overview"), layout=f"{__name__}:broken_layout")
    shown = str(made(broken, context))
    assert "Internal error in overview (ZeroDivisionError: " in shown


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.0, 1e300])
def test_counts_of_a_graph_that_are_none(tmp_path: Path, value: float) -> None:
    builder = Builder(tmp_path)
    builder.phase(START_NS, 100)
    name = schema.GRAPH_SERIES + "MulBackward0"
    builder.row("value", 0, "1000-0", time_ns=START_NS + 1, name=name, value=value, step=0)
    run = open_run(builder.write())
    assert walks(run) == ()
    assert graph_traceability(run) is None


def test_a_log_that_cannot_be_read_gives_no_answer(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    builder.phase(START_NS, 10, "backward")
    run = open_run(builder.write())
    for part in tmp_path.rglob("phase-*.parquet"):
        part.write_bytes(b"PAR1" + bytes(part.stat().st_size - 8) + b"PAR1")
    question = next(one for one in questions() if ".inplace:" in one.find)
    with pytest.raises(RunError):
        run_question(question, run)
