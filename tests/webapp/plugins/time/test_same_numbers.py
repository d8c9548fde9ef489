"""The first page, the Time page, `lanescope time` and `lw.step_time` show the same numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import lanescope.webapp as lw
from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.cli import main
from lanescope.webapp.plugins.time import charts, headlines
from lanescope.webapp.plugins.time.breakdown import CATEGORIES, mean_steps
from lanescope.webapp.plugins.time.computed_once import computed_once
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("same") / "run"
    return open_run(write_run(path, ranks=2, threads=2, steps=5, ops=40))


def test_in_code_and_on_the_command_line(run: Run) -> None:
    table = lw.step_time(run)
    assert len(table) == 10
    spent = table[[f"{name}_ns" for name in CATEGORIES]]
    assert spent.to_numpy().sum(axis=1).tolist() == table["duration_ns"].tolist()
    printed = CliRunner().invoke(main, ["time", str(run.path), "--json"], catch_exceptions=False)
    rows = {(one["rank"], one["step"]): one for one in json.loads(printed.stdout)["steps"]}
    assert len(rows) == len(table)
    for row in table.to_dict("records"):
        shown = rows[row["rank"], row["step"]]
        assert shown["duration_ns"] == row["duration_ns"]
        assert shown["breakdown"] == {name: row[f"{name}_ns"] for name in CATEGORIES}


def test_on_the_pages(run: Run) -> None:
    table = lw.step_time(run)
    bars = charts.step_bars(mean_steps(run), "light")
    unit = bars.layout.yaxis.title.text.rpartition(" ")[2]
    factor = {"ms": 1e6, "µs": 1e3, "s": 1e9}[unit]
    means = table.groupby("step").mean()
    drawn = {bar.name: np.array(bar.y) * factor for bar in bars.data}
    assert drawn
    for name, title in CATEGORIES.items():
        if title in drawn:
            assert drawn[title] == pytest.approx(means[f"{name}_ns"].to_numpy())
            heat = charts.category_heat(table, name, "light").data[0]
            shares = table.pivot(index="rank", columns="step", values=f"{name}_ns")
            lengths = table.pivot(index="rank", columns="step", values="duration_ns")
            assert np.array(heat.z) == pytest.approx((shares / lengths * 100).to_numpy())
    figure = headlines.step_length_headline(run)
    assert figure is not None
    assert figure.value == units.duration(float(means["duration_ns"].median()))


def test_answers_are_computed_once_and_belong_to_who_asks(run: Run) -> None:
    table = lw.step_time(run)
    table["duration_ns"] = 0
    assert lw.step_time(run)["duration_ns"].all()
    asked = []

    @computed_once(maxsize=2)
    def ask(number: int) -> int:
        asked.append(number)
        if number:
            raise NotApplicable("no steps")
        return number

    for _ in range(2):
        assert ask(0) == 0
        with pytest.raises(NotApplicable, match="no steps"):
            ask(1)
    assert asked == [0, 1]
