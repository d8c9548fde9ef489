"""The timeline as one file: it works without a server, and names in it are only text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import BrowserContext, Page

from lanescope.assets.bundling import script
from lanescope.webapp.cli import main
from lanescope.webapp.exporters import offline_answers
from lanescope.webapp.exporters.html_page import MAX_PAGE, OFFLINE_SCRIPT, page_of
from lanescope.webapp.exporters.offline_answers import kept_slices
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.timeline.lanes import COUNTER
from lanescope.webapp.timeline.search.lookup import find, slices_in_window
from lanescope.webapp.timeline.search.marks import SearchRequest, hits, place_among
from lanescope.webapp.timeline.search.marks import modules as modules_of
from lanescope.webapp.timeline.span_details import nearest
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.synthetic import START_NS, Builder, write_run

EVIL = "</script><script>globalThis.hacked = 1</script><img src=x onerror='globalThis.hacked = 1'>"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(write_run(tmp_path_factory.mktemp("page") / "run", ranks=2, steps=3, ops=20))


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Names of strangers, ops that overlap without nesting, one that never ended."""
    builder = Builder(tmp_path_factory.mktemp("odd") / f"{EVIL.replace('/', '')}")
    builder.thread(name=EVIL)
    builder.op(START_NS, 100, EVIL, module=EVIL)
    builder.op(START_NS + 50, 100, "overlaps")
    builder.op(START_NS + 155, None, "never ended")
    builder.op(START_NS + 900, 1, "short")
    builder.op(START_NS + 1000, 0, "none")
    return open_run(builder.write())


def test_the_page_holds_the_modules_it_imports() -> None:
    text, source_map = script(OFFLINE_SCRIPT)
    found = json.loads(source_map)["sources"]
    assert {"page/offline_page.js", "page/timeline.js", "base/viewport.js"} <= set(found)
    assert "page/main.js" not in found  # nor what only a page with a server needs
    assert "panels/dock.js" not in found
    assert not re.search("</script|<!--", text, re.IGNORECASE)  # either would end the element


def state(page: Page) -> dict[str, Any]:
    page.evaluate("lanescope.idle()")
    reported: dict[str, Any] = page.evaluate("lanescope.debugState()")
    return reported


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page that must not complain and must not ask for anything but its own file."""
    page = context.new_page()
    page.set_viewport_size({"width": 1000, "height": 700})
    problems: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.on("request", lambda request: requests.append(request.url))
    yield page
    own = page.url
    page.close()
    assert problems == []
    assert [url for url in requests if not url.startswith(("data:", "blob:"))] == [own]


@pytest.mark.browser
@pytest.mark.slow
def test_the_page_stands_alone(run: Run, tmp_path: Path, page: Page) -> None:
    target = tmp_path / "x.html"
    command = ["export", str(run.path), "--to", "html", "-o", str(target)]
    assert CliRunner().invoke(main, command).exit_code == 0
    assert target.stat().st_size < MAX_PAGE
    page.set_viewport_size({"width": 1280, "height": 1400})  # room for all lanes of both ranks
    page.goto(target.as_uri())
    page.wait_for_function("globalThis.lanescope")
    first = state(page)
    assert first["viewport"]["t1"] == run.duration_ns
    assert len(first["lanes"]) == len(Timeline.open(run).index.lanes)
    assert first["drawn"]["rectangles"] + first["drawn"]["cells"] > 20
    box = first["canvas"]
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + 60)
    for _ in range(3):
        page.keyboard.down("Control")
        page.mouse.wheel(0, -400)
        page.keyboard.up("Control")
        page.keyboard.press("w")
    closer = state(page)
    span = closer["viewport"]["t1"] - closer["viewport"]["t0"]
    assert span < run.duration_ns / 4
    assert closer["drawn"]["rectangles"] > 5
    page.keyboard.press("d")
    assert state(page)["viewport"]["t0"] > closer["viewport"]["t0"]
    page.keyboard.press("Home")
    assert state(page)["viewport"]["t0"] == 0
    answers_as_the_server_does(page, Timeline.open(run))

    # A slice is selected by a click and described; the keys go on from there.
    page.keyboard.press("/")
    page.keyboard.type("aten::gelu")
    page.keyboard.press("Enter")
    chosen = state(page)["selection"]
    panel = page.locator("#slice-panel")
    assert panel.locator("h2").text_content() == "aten::gelu"
    assert page.locator(".search .state").text_content() == f"1 of {count_of(run, 'aten::gelu')}"
    page.keyboard.press("Enter")
    assert state(page)["selection"] != chosen
    facts = dict(
        zip(
            panel.locator("dt").all_text_contents(),
            panel.locator("dd").all_text_contents(),
            strict=True,
        )
    )
    assert {"start", "duration", "module"} <= set(facts)
    page.keyboard.press("Escape")  # the field lets go
    page.keyboard.press(",")
    assert state(page)["selection"] is not None
    page.keyboard.press("Escape")
    state(page)
    assert panel.locator("h2").text_content() == "Nothing selected"


def count_of(run: Run, name: str) -> int:
    return run.events("op")["name"].to_pylist().count(name)


def answers_as_the_server_does(page: Page, timeline: Timeline) -> None:
    """What the file says of slices is what the server says, for all rows and some names."""
    end = timeline.run.duration_ns
    expected: list[tuple[str, Any, Any]] = []
    for lane in timeline.index.lanes:
        if lane.kind == COUNTER:
            continue
        for row in range(lane.rows):
            for t0 in range(0, end, end // 5):
                for t1, shorter in ((t0 + 1, None), (t0 + end // 5, 2_000)):
                    more = f"&shorter={shorter}" if shorter else ""
                    asked = f"look/x/{lane.id}?row={row}&t0={t0}&t1={t1}{more}"
                    reported = slices_in_window(timeline, lane.id, row, (t0, t1), shorter)
                    expected.append(
                        (asked, None, {k: v for k, v in reported.items() if k != "style"})
                    )
                for way in ("next", "prev"):
                    asked = f"nearest/x/{lane.id}?row={row}&t={t0}&dir={way}"
                    expected.append(
                        (asked, None, nearest(timeline, lane.id, row, t0, way == "next"))
                    )
    lanes = [lane.id for lane in timeline.index.lanes]
    texts = modules_of(timeline).texts
    own = kept_slices(timeline, (0, end), lanes).modules
    every = list(range(len(timeline.index.names)))
    narrowed: dict[str, Any] = {"within": [1, 2], "ranks": [timeline.run.ranks[0]], "least": 1000}
    for names, inside, more in (
        ([0, 1], [], {}),
        ([3], [1, 2], {}),
        ([], [len(texts) - 1], {}),
        ([], [], {}),
        (every, [], narrowed),
    ):
        wanted = SearchRequest(timeline, names, inside, **more)
        about = {"names": names, "modules": [own.index(texts[one]) for one in inside]} | more
        about |= {"within": [own.index(texts[one]) for one in more["within"]]} if more else {}
        for t in range(0, end, end // 7):
            for way in ("next", "prev"):
                found = find(timeline, wanted, (t, 1, 0), way == "next")
                if found is not None:
                    key = (found["start_ns"], found["lane"], found["row"])
                    found["position"], found["total"] = place_among(timeline, wanted, key)
                place = {"t": t, "lane": 1, "row": 0, "dir": way}
                expected.append(("find/x", about | place, found or {"ref": None}))
        window = {"t0": 0, "t1": end // 2, "lanes": lanes, "buckets": 100}
        reported = hits(timeline, wanted, (0, end // 2), lanes, 100)
        slices = {str(lane): sorted(some) for lane, some in reported["slices"].items()}
        expected.append(("hits/x", about | window, reported | {"slices": slices}))
    answers = page.evaluate(
        """asked => Promise.all(asked.map(([address, body]) => fetch(`/api/${address}`,
             body ? {method: 'POST', body: JSON.stringify(body)} : {}).then(a => a.json())))""",
        [[address, body] for address, body, _ in expected],
    )
    for (address, body, reported), answer in zip(expected, answers, strict=True):
        if address.startswith("hits"):
            answer["slices"] = {lane: sorted(some) for lane, some in answer["slices"].items()}
        assert answer == reported, (address, body)


@pytest.mark.browser
def test_names_of_strangers_are_text_in_the_page(odd: Run, tmp_path: Path, page: Page) -> None:
    target = tmp_path / "odd.html"
    target.write_text(page_of(odd), encoding="utf-8")
    page.goto(target.as_uri())
    page.wait_for_function("globalThis.lanescope")
    page.keyboard.press("/")
    page.keyboard.type("script")
    page.keyboard.press("Enter")
    state(page)
    panel = page.locator("#slice-panel")
    assert panel.locator("h2").text_content() == EVIL
    assert EVIL in panel.locator("dd").all_text_contents()  # the module
    assert any(
        text.startswith("</script>") for text in page.locator(".search li").all_text_contents()
    )
    page.evaluate("fetch('/api/slice/x/0/4').then(answer => answer.json())")
    assert page.evaluate("fetch('/api/slice/x/0/99').then(a => a.status)") == 404
    assert page.evaluate("fetch('https://example.org/').then(a => a.status)") == 404
    assert page.evaluate("globalThis.hacked") is None


def test_of_too_many_slices_the_longest_are_kept(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline.open(run)
    lanes = [lane.id for lane in timeline.index.lanes]
    whole = (0, run.duration_ns)
    slices = timeline.index.slices
    lengths = (slices.end - slices.start).tolist()
    every = kept_slices(timeline, whole, lanes)
    assert (every.shortest_ns, sum(row[2] for row in every.rows)) == (0, len(lengths))
    monkeypatch.setattr(offline_answers, "MAX_OFFLINE_SLICES", len(lengths) // 3)
    fewer = kept_slices(timeline, whole, lanes)
    count = sum(row[2] for row in fewer.rows)
    assert 0 < count <= len(lengths) // 3
    assert count == sum(length >= fewer.shortest_ns for length in lengths)
    monkeypatch.setattr(offline_answers, "MAX_ANSWER_BYTES", len(fewer.block) // 2)
    assert len(kept_slices(timeline, whole, lanes).block) <= len(fewer.block) // 2
    part = kept_slices(timeline, (whole[1] // 2, whole[1] // 2 + 1), lanes[:1])
    assert {row[0] for row in part.rows} == {lanes[0]}
    assert kept_slices(timeline, whole, []).rows == []
    monkeypatch.setattr(offline_answers, "MAX_OFFLINE_SLICES", 5)
    assert "or more can be selected and found" in page_of(run, timeline=timeline)


def test_a_page_of_strangers_names_runs_nothing_of_theirs(odd: Run) -> None:
    text = page_of(odd)
    assert EVIL not in text
    assert text.count("</script>") == 4
    window = page_of(odd, (100, 900))
    assert '"view":{"t0":100,"t1":900}' in window
