"""The report that pages wait for: made once, and the same wherever it is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from werkzeug.test import Client

from lanescope.webapp.analysis.check_limits import Settings
from lanescope.webapp.analysis.checks import Report, check
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.server.server import make_app
from lanescope.webapp.ui.context import Context
from lanescope.webapp.ui.examination import Examination, check_apart
from tests.support.synthetic import write_run


def test_another_process_makes_the_same_report(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=2, threads=2, steps=3, ops=40))
    base = open_run(
        write_run(tmp_path / "base", ranks=2, threads=2, steps=3, ops=40, gradient_scale=1.5)
    )
    for baseline in (None, base):
        apart = check_apart(run, baseline, None, Settings())
        assert apart.to_json() == check(run, baseline).to_json()
        assert apart.metrics


def test_it_is_made_once_and_again_where_it_failed() -> None:
    made: list[int] = []

    def make() -> Report:
        made.append(len(made))
        if len(made) == 1:
            raise RunError("the files were gone for a moment")
        return Report("run", {}, (), ())

    examination = Examination(make)
    with pytest.raises(RunError, match="gone for a moment"):
        examination.begin().result()
    assert examination.begin().result() is examination.begin().result()
    assert made == [0, 1]


def test_pages_take_it(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=1, threads=1, steps=2, ops=10))
    begun: list[str] = []

    def make() -> Report:
        begun.append("begun")
        return Report("made elsewhere", {}, (), ())

    examination = Examination(make)
    server = make_app(run, examination=examination).server
    client = Client(server)
    assert client.get("/overview", headers={"Accept": "text/html"}).status_code == 200
    assert client.get("/api/findings").json == {"findings": []}
    assert Context(run, examination=examination).report().run == "made elsewhere"
    assert begun == ["begun"]
