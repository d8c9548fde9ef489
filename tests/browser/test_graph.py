"""The Graph page of a model of 2,000 nodes: it is readable at first, opens, finds and moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.run import open_run
from tests.browser.conftest import Opener, Server
from tests.synthetic import START_NS, Builder

pytestmark = pytest.mark.browser

BLOCKS, OPERATORS = 50, 20


@pytest.mark.slow
def test_two_thousand_nodes(opened: Opener, serve: Server, tmp_path: Path) -> None:
    builder, thread = Builder(tmp_path), "1000-0"
    count = BLOCKS * OPERATORS
    for number in range(count):
        module = f"layers.{number // OPERATORS}.part{number % OPERATORS}"
        builder.op(START_NS + number * 10, 5, module=module, sequence=count - 1 - number)
        common = {"time_ns": START_NS + count * 10, "step": 0}
        following = f"{number + count}" + (f" {number + 1}" if number + 1 < count else "")
        builder.row("node", 0, thread, node=number, name="MulBackward0", sequence=number,
                    parameter="", next=following, **common)  # fmt: skip
        last = count - 1 - number
        weight = f"layers.{last // OPERATORS}.part{last % OPERATORS}.weight"
        builder.row("node", 0, thread, node=number + count, name="AccumulateGrad",
                    parameter=weight, next="", **common)  # fmt: skip
    page = opened("/graph", at=serve(open_run(builder.write()))).page
    chart = page.locator("#graph-chart")
    page.locator("#graph-note", has_text="autograd nodes in 50 modules").wait_for()
    drawn = "document.querySelectorAll('#graph-chart .scatterlayer .point').length"
    assert 0 < page.evaluate(drawn) <= 60

    page.get_by_label("find").fill("layers.7.part3")
    page.locator("#graph-note", has_text="“layers.7.part3”: 2 nodes in 1.").wait_for()
    chart.get_by_text("found", exact=True).wait_for()

    def shown() -> float:
        axis = "document.querySelector('#graph-chart .js-plotly-plot').layout.yaxis.range[0]"
        return float(page.evaluate(axis))

    before, box = shown(), chart.bounding_box()
    assert box is not None
    middle = (box["x"] + box["width"] * 0.25, box["y"] + 300)
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0], middle[1] - 120, steps=4)
    page.mouse.up()
    assert shown() != before
