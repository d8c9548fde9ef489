"""The guided cases: each program in examples/cases has the finding that its page speaks of."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lanescope.webapp.analysis.checks import check
from lanescope.webapp.runs.run import Run, open_run
from tests.support import ROOT
from tests.support.recording import record_script


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record_case", ROOT / "examples/record_case.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its data classes ask for it
    spec.loader.exec_module(module)
    return module


cases = loaded()

STARTED = ("hang", "overlap")
"""Cases that `make demo` starts here as well, one with ranks and one without; others are forked."""

AT_THE_LINE = ("straggler", "mismatch", "race", "lost_context", "leak")
"""Cases whose finding is at the line that the page explains; others name a cause apart from it."""


def forked(name: str, output: Path, arguments: tuple[str, ...]) -> Run:
    """The run of a case's program, recorded with its options."""
    case = cases.CASES[name]
    ranks = case.ranks if case.ranks > 1 else 0
    program = cases.HERE / f"{name}.py"
    record_script(output, program, *arguments, options=case.options, ranks=ranks)
    return open_run(output)


@pytest.mark.slow
@pytest.mark.parametrize("name", cases.CASES)
def test_a_case_has_its_finding(name: str, tmp_path: Path) -> None:
    case, output = cases.CASES[name], tmp_path / "run"
    base = None if case.baseline is None else forked(name, tmp_path / "baseline", case.baseline)
    if name in STARTED:
        cases.record(name, output)
        run = open_run(output)
    else:
        run = forked(name, output, case.arguments)
    places = {one.kind: one.where for one in check(run, base).findings}
    assert case.kind in places
    if name in AT_THE_LINE:
        page = (ROOT / f"docs/cases/{name}.md").read_text(encoding="utf-8")
        assert f"`{places[case.kind]}`: `" in page


def test_every_case_has_a_program_and_a_page_that_names_its_line() -> None:
    programs = {path.stem for path in (ROOT / "examples/cases").glob("*.py")}
    assert programs == set(cases.CASES)
    index = (ROOT / "docs/cases.md").read_text(encoding="utf-8")
    for name in cases.CASES:
        page = (ROOT / f"docs/cases/{name}.md").read_text(encoding="utf-8")
        assert f"](cases/{name}.md)" in index
        assert f"make demo CASE={name}" in page
        lines = (ROOT / f"examples/cases/{name}.py").read_text(encoding="utf-8").splitlines()
        for line, source in re.findall(rf"`{name}\.py:(\d+)`: `([^`]+)`", page):
            assert source in lines[int(line) - 1], (name, line)
        assert re.search(rf"`{name}\.py:\d+`: `", page), name
