"""The skeleton of a plugin: copied and filled in, it gives a page, a finding and a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import lanescope.webapp as lw
from lanescope.webapp.analysis.plugin import load, pages, plugins, questions
from lanescope.webapp.cli import main
from lanescope.webapp.server.server import make_app
from tests.support import ROOT
from tests.support.plugin_copy import NAME, added, copy_skeleton, write_slow_run
from tests.support.processes import output_of

HOST = {"Host": "127.0.0.1:8050"}


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "plugins"
    made = copy_skeleton(folder)
    with added(folder):
        yield made


def test_it_is_listed_where_all_others_are(plugin: Path) -> None:
    assert NAME in [one.name for one in plugins()]
    assert questions()[-1].text == "Operators that take far longer than usual"
    assert pages()[-1].name == NAME
    assert NAME + "_durations" in lw.__all__
    own = plugins()[[one.name for one in plugins()].index(NAME)]
    for entry in (own.questions[0].find, own.kinds[0].evidence, *own.tables.values()):
        assert load(entry).__module__ == f"lanescope.webapp.plugins.{NAME}.findings"


@pytest.mark.usefixtures("plugin")
def test_finding_and_table_are_there_for_all_who_ask(tmp_path: Path) -> None:
    path = write_slow_run(tmp_path / "run")
    run = lw.open_run(path)
    (found,) = [one for one in lw.findings(run) if one.kind == f"{NAME}_call"]
    assert found.title.startswith("aten::mm takes 500 us in step 0 of rank 0, 500 times")
    assert found.evidence == {"op": "aten::mm", "factor": 500.0}
    table = lw.long_calls_durations(run)
    assert table.loc[0, ["name", "calls", "longest_ns"]].tolist() == ["aten::mm", 5, 500_000]
    result = CliRunner().invoke(main, ["check", str(path), "--json"])
    assert found.title in [one["title"] for one in json.loads(result.stdout)["findings"]]
    file = tmp_path / "table.csv"
    command = ["export", str(path), "--to", "csv", "--table", f"{NAME}_durations", "-o", str(file)]
    assert CliRunner().invoke(main, command).exit_code == 0
    assert file.read_text(encoding="utf-8").splitlines()[1] == '0,"aten::mm",5,1000,500000'


@pytest.mark.usefixtures("plugin")
def test_server_has_its_page_and_its_table(tmp_path: Path) -> None:
    run = lw.open_run(write_slow_run(tmp_path / "run"))
    client = make_app(run).server.test_client()
    rail = client.get("/_dash-layout", headers=HOST).get_data(as_text=True)
    assert f'"rail-{NAME}"' in rail
    table = client.get(f"/table/{NAME}_durations.csv", headers=HOST).get_data(as_text=True)
    assert '"aten::mm",5' in table
    query = {"sql": f"SELECT calls FROM {NAME}_durations"}
    answer = client.get("/query.csv", query_string=query, headers=HOST).get_data(as_text=True)
    assert answer.splitlines() == ['"calls"', "5"]


def test_copy_passes_the_linter(tmp_path: Path) -> None:
    copy_skeleton(tmp_path)
    config = ["--config", str(ROOT / "pyproject.toml"), str(tmp_path)]
    output_of(sys.executable, "-m", "ruff", "check", *config)


def test_skeleton_itself_is_not_a_plugin() -> None:
    assert "_skeleton" not in [one.name for one in plugins()]
