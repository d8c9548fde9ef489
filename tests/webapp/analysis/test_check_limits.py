"""Limits and accepted findings, from files of all kinds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lanescope.webapp import RunError
from lanescope.webapp.analysis.check_limits import Allowed, Settings, load_settings
from lanescope.webapp.analysis.checks import Check
from lanescope.webapp.analysis.findings import AnalysisResult, Finding, acknowledged
from lanescope.webapp.cli import main
from tests.support.synthetic import write_run


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_nearest_file_counts(tmp_path: Path) -> None:
    run, here = tmp_path / "run", tmp_path / "here"
    run.mkdir()
    here.mkdir()
    assert load_settings(run, folder=here) == Settings()
    write(here / "pyproject.toml", "[tool.lanescope.limits]\nmemory_overhead = '20 %'\n")
    assert load_settings(run, folder=here).limits == {"memory_overhead": 0.2}
    write(here / "lanescope.toml", "[limits]\ngradient_fluctuation = 1e-6\n")
    assert load_settings(run, folder=here).limits == {"gradient_fluctuation": 1e-6}
    write(run / "lanescope.toml", "[limits]\nthread_overlap_rate = '0.5'\n")
    assert load_settings(run, folder=here).limits == {"thread_overlap_rate": 0.5}
    own = write(tmp_path / "own.toml", "[[allow]]\nkind = 'race'\nreason = 'meant'\n")
    loaded = load_settings(run, own, here)
    assert loaded == Settings({}, (Allowed(kind="race", reason="meant"),), str(own))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limits = 5", "is 5, expected a table"),
        ("[limits]\noverlap = 1", "has no 'overlap', expected thread_overlap_rate"),
        ("[limits]\nmemory_overhead = '15 MB'", "memory_overhead = '15 MB', expected 0 to 1"),
        ("[limits]\nmemory_overhead = 15", 'expected 0 to 1, or "5 %"'),
        ("[[allow]]\nreason = 'all'", "expected texts for one or more of kind"),
        ("[[allow]]\nop = 5", "has 5, expected texts"),
        ("allow = 1", "allow is 1"),
        ("[[", "is not TOML"),
        ("a = " + "[\n" * 50_000, "is not TOML"),
        (".".join("a" * 1000) + " = 1", "or 1000 in a line"),
        ("#\n" * 600_000, "more than 1048576 bytes"),
    ],
)
def test_texts_that_are_not_settings(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RunError) as error:
        load_settings(tmp_path, write(tmp_path / "lanescope.toml", text))
    assert message in str(error.value)


def test_sides_of_limits() -> None:
    assert not Check("thread_overlap_rate", 0.05, 0.05).passed
    assert Check("gradient_fluctuation", 1e-5, 1e-5).passed
    assert Check("graph_traceability", 1.0, 1.0).passed
    assert not Check("graph_traceability", 0.99, 1.0).passed


def test_a_current_folder_that_was_removed_has_no_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, here = write_run(tmp_path / "run", ranks=1, threads=1, steps=1, ops=2), tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    assert load_settings(run) == Settings()
    write(run / "lanescope.toml", "[limits]\nmemory_overhead = '20 %'\n")
    assert load_settings(run).limits["memory_overhead"] == 0.2
    assert "Traceback" not in CliRunner().invoke(main, ["check", str(run)]).output


def test_intended_findings_are_information() -> None:
    sides: dict[str, Any] = {
        side: {"op": op, "where": "train.py:12", "thread": "1-0", "time_ns": 0, "access": "write"}
        for side, op in (("first", "aten::add_"), ("second", "aten::copy_"))
    }
    evidence = {"tensor": "a.weight", "tensors": ["a.weight", "b"], **sides}
    race = Finding("race", "error", "t", where="train.py:9", evidence=evidence)
    other = replace(race, evidence={**evidence, "tensor": "c", "tensors": ["c"]})
    examined = AnalysisResult("?", (race, other))

    def answer(**patterns: str) -> list[str]:
        settings = Settings(allowed=(Allowed(reason="so", **patterns),), source="x.toml")
        return [one.severity for one in acknowledged(examined, settings).findings]

    assert answer(kind="race") == ["info", "info"]
    assert answer(kind="race", tensor="b") == ["info", "error"]
    assert answer(tensor="*.weight", op="aten::add_", where="train.py:*") == ["info", "error"]
    assert answer(op="aten::copy_", where="train.py:12") == ["info", "info"]
    assert answer(tensor="*.weight", op="aten::mul_") == ["error", "error"]
    assert answer(kind="deadlock") == ["error", "error"]
    (one, _) = acknowledged(
        examined, Settings(allowed=(Allowed(tensor="b", reason="so"),))
    ).findings
    assert one.evidence["allowed"]["reason"] == "so"


def test_check_takes_them(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")  # its threads overlap in most of their backward phases
    assert CliRunner().invoke(main, ["check", str(run)]).exit_code == 1
    wide = write(tmp_path / "wide.toml", "[limits]\nthread_overlap_rate = '100 %'\n")
    done = CliRunner().invoke(main, ["check", str(run), "--json", "--settings", str(wide)])
    (one,) = [c for c in json.loads(done.output)["checks"] if c["name"] == "thread_overlap_rate"]
    assert one["limit"] == 1.0
    assert one["passed"]
    wrong = write(tmp_path / "wrong.toml", "nothing = 1")
    done = CliRunner().invoke(main, ["check", str(run), "--settings", str(wrong)])
    assert done.exit_code == 2
