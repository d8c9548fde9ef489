"""The Graph page: modules open, close and say what they hold; 2,000 nodes stay readable."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.runs.run import Run, open_run
from tests.browser.conftest import Opener, Server
from tests.support.page import TIMEOUT_MS
from tests.support.synthetic import START_NS, Builder

pytestmark = pytest.mark.browser


# A click is of what Plotly last saw below the pointer. Soon after another click, wherever that was,
# it is a double click, which moves all boxes.
FOUND = """name => { const drawn = document.querySelector('#graph-chart .js-plotly-plot');
return drawn._hoverdata?.[0].customdata === name
  && Date.now() - (drawn._mouseDownTime ?? 0) > 2 * drawn._context.doubleClickDelay; }"""


ACROSS = """(() => {
  const boxes = [...document.querySelectorAll('#graph-chart .point')].map(
    one => one.getBoundingClientRect());
  const across = Math.max(...boxes.map(b => b.right)) - Math.min(...boxes.map(b => b.left));
  return across / document.querySelector('.wide-graph').clientWidth;
})()"""
"""Share of the page's width from the first box to the last."""


def chain(folder: Path, blocks: int, operators: int) -> Run:
    """A run of a model of so many blocks; each operator made a node and has a weight."""
    builder, thread = Builder(folder), "1000-0"
    count = blocks * operators
    for number in range(count):
        module = f"layers.{number // operators}.part{number % operators}"
        builder.op(START_NS + number * 10, 5, module=module, sequence=count - 1 - number)
        common = {"time_ns": START_NS + count * 10, "step": 0}
        following = f"{number + count}" + (f" {number + 1}" if number + 1 < count else "")
        builder.row(
            "node",
            0,
            thread,
            node=number,
            name="MulBackward0",
            sequence=number,
            parameter="",
            next=following,
            **common,
        )
        last = count - 1 - number
        weight = f"layers.{last // operators}.part{last % operators}.weight"
        builder.row(
            "node",
            0,
            thread,
            node=number + count,
            name="AccumulateGrad",
            parameter=weight,
            next="",
            **common,
        )
        builder.row(
            "gradient",
            0,
            thread,
            parameter=weight,
            norm=float(number + 1),
            numel=8,
            optimizer=0,
            **common,
        )
    return open_run(builder.write())


@pytest.mark.slow
def test_modules_open_and_close_and_say_what_they_hold(
    opened: Opener, serve: Server, tmp_path: Path
) -> None:
    tab = opened("/graph", at=serve(chain(tmp_path, 31, 2)))
    page = tab.page
    chart, about = page.locator("#graph-chart"), page.locator(".graph-about")

    def click(label: str) -> None:
        word = chart.locator(".bartext", has_text=label).first
        for _ in range(TIMEOUT_MS // 50):
            if page.evaluate(FOUND, label.split()[0]):
                break
            tab.idle()  # boxes move while the chart is drawn again
            word.evaluate("one => one.scrollIntoView({block: 'center'})")
            box = word.bounding_box()
            assert box is not None
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            page.wait_for_timeout(50)  # as often as Plotly looks
        else:
            pytest.fail(f"the pointer never was on {label}")
        page.mouse.down()
        page.mouse.up()

    chart.locator(".bartext", has_text="layers.3 \N{MIDDLE DOT}").wait_for()
    # At once as large as it is to be: a box that is squeezed has no words.
    assert chart.locator(".bartext").count() == 31
    # The page is used from side to side, and more room at once.
    assert 0.8 < page.evaluate(ACROSS) <= 1
    tall = "document.querySelector('#graph-chart .main-svg').getBoundingClientRect().height"
    before = page.evaluate(tall)
    assert before < 800
    page.set_viewport_size({"width": 640, "height": 800})
    page.wait_for_function(f"() => {tall} > {before}")
    tab.idle()
    assert page.evaluate(ACROSS) <= 1
    click("layers.3 \N{MIDDLE DOT}")
    chart.locator(".bartext", has_text="layers.3.part0").wait_for()
    about.get_by_role("button", name="Close layers.3").wait_for()
    click("layers.3.part1")
    about.get_by_text("layers.3.part1: 2 nodes (1 × MulBackward0, 1 × AccumulateGrad)").wait_for()
    about.get_by_role("link", name="Show its backward pass").wait_for()
    # Every word is within its box.
    wider = """[...document.querySelectorAll('#graph-chart .point')].filter(point => {
      const word = point.querySelector('.bartext'), box = point.querySelector('path');
      return word && word.getBoundingClientRect().width > box.getBoundingClientRect().width;
    }).length"""
    assert page.evaluate(wider) == 0
    about.get_by_role("button", name="Close layers.3").click()
    chart.locator(".bartext", has_text="layers.3.part0").wait_for(state="detached")


@pytest.mark.slow
def test_two_thousand_nodes(opened: Opener, serve: Server, tmp_path: Path) -> None:
    tab = opened("/graph", at=serve(chain(tmp_path, 50, 20)))
    page = tab.page
    chart = page.locator("#graph-chart")
    page.locator("#graph-note", has_text="autograd nodes in 50 modules").wait_for()
    drawn = "document.querySelectorAll('#graph-chart .barlayer .point').length"
    assert page.evaluate(drawn) == 50

    page.get_by_label("find", exact=True).fill("layers.7.part3")
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

    page.locator("#graph-depth").click()
    page.get_by_role("option", name="3 of 3 levels").click()
    page.locator("#graph-note", has_text="The first 300 of 1\N{THIN SPACE}000 boxes").wait_for()
    tab.idle()
    assert page.evaluate(drawn) == 300
    assert page.evaluate("document.querySelectorAll('*').length") <= 3000
