"""The timeline, with hands and eyes."""

from __future__ import annotations

import pytest
from playwright.sync_api import Route

from lanescope.webapp.runs.run import Run
from tests.browser.conftest import Opener, SharedTab
from tests.support.page import LanePage

pytestmark = pytest.mark.browser

MS = 1_000_000


def test_lanes_of_all_ranks_are_visible(opened: Opener, run: Run) -> None:
    page = opened(height=1400)  # as many are open as fit when the page is loaded
    lanes = page.state["lanes"]
    assert all(lane["visible"] and lane["loaded"] for lane in lanes)
    shown = {(lane["rank"], lane["label"]) for lane in lanes if lane["kind"] == "thread"}
    assert shown == {(thread.rank, thread.name) for thread in run.threads}
    for rank in run.ranks:
        assert page.page.locator(f'[data-group="{rank}"]').is_visible()
    assert page.state["drawn"]["rectangles"] > 0


@pytest.mark.slow
def test_slices_have_the_colour_of_their_phase(tab: SharedTab) -> None:
    # A step of thread 0: data to 1 ms, forward to 4 ms, backward to 8.5 ms, optimizer to 10 ms;
    # the next one begins at 11 ms.
    page = tab(f"/timeline?t=0-{10 * MS}")
    y = page.lane_y(0) + 6
    width = page.state["viewport"]["width"]
    for _ in ("light", "dark"):
        for first, last in ((0, 88), (0, 10), (33, 43)):
            page.visit(f"/timeline?t={first * MS}-{last * MS}")
            for ms, token in ((0.5, "data"), (2, "forward"), (6, "backward"), (9.5, "optimizer")):
                x = ms / (last - first) * width
                assert page.pixel(x, y) == page.token(token), (token, first, last)
        # Twenty nanoseconds around the end of forward, which is the beginning of backward.
        page.visit(f"/timeline?t={37 * MS - 10}-{37 * MS + 10}")
        assert page.pixel(width / 2 - 3, y) == page.token("forward")
        assert page.pixel(width / 2 + 2, y) == page.token("backward")
        page.press("t")


def test_zoom_changes_the_drawing(tab: SharedTab) -> None:
    page = tab()
    before = page.state
    for _ in range(8):
        page.wheel(300, 40, -200, key="Control")
    after = page.state
    assert after["viewport"]["level"] < before["viewport"]["level"]
    assert after["viewport"]["t1"] - after["viewport"]["t0"] < before["viewport"]["duration"] / 10
    assert {label["name"] for label in after["labels"]} - {n["name"] for n in before["labels"]}
    page.press("f")
    assert page.window == (0, before["viewport"]["duration"])


def test_the_instant_under_the_pointer_stays_there(tab: SharedTab) -> None:
    page = tab()
    t0, t1 = page.window
    width = page.state["viewport"]["width"]
    under = t0 + 300 / width * (t1 - t0)
    page.wheel(300, 40, -240, key="Control")
    t0, t1 = page.window
    assert t0 + 300 / width * (t1 - t0) == pytest.approx(under, rel=1e-9)


def test_a_clicked_slice_shows_its_name_and_all_else(tab: SharedTab) -> None:
    page = tab(f"/timeline?t={20 * MS}-{24 * MS}")
    label = page.click_slice("aten::")
    panel = page.text("#slice-panel")
    assert label["name"] in panel
    for word in ("start", "duration", "self", "step", "scope", "function"):
        assert word in panel
    selection = page.state["selection"]
    assert (selection["lane"], selection["row"]) == (label["lane"], label["row"])
    place = ".".join(str(selection[name]) for name in ("lane", "row", "ref"))
    assert f"sel={place}" in page.query
    page.press("Escape")
    assert page.state["selection"] is None
    assert "Nothing selected" in page.text("#slice-panel")


@pytest.mark.slow
def test_an_address_that_names_a_slice_shows_its_lane(opened: Opener, large: str) -> None:
    page = opened("/timeline?closed=", at=large, height=500)
    lane = page.state["lanes"][-1]["id"]
    page.go(f"/timeline?sel={lane}.0.5")
    state = page.state
    assert state["viewport"]["scrollY"] > 0
    assert lane in [one["id"] for one in state["lanes"] if one["visible"]]
    page.go(f"/timeline?sel={lane}.0.5&y=1")
    assert page.state["viewport"]["scrollY"] == 1  # as somebody kept it


@pytest.mark.slow
def test_a_slice_stays_selected_when_dash_hands_on_an_older_address(opened: Opener) -> None:
    page = opened(f"/timeline?t={20 * MS}-{24 * MS}")
    page.click_slice("aten::")
    chosen, address = page.state["selection"], page.page.url
    kept = page.query[page.query.index("t=") :]
    held: list[Route] = []
    page.page.route("**/api/slice/**", lambda route: held.append(route))
    with page.page.expect_request("**/api/slice/**"):
        page.page.goto(address)
    while page.state["busy"] != ["slice"]:
        page.page.wait_for_timeout(20)
    assert page.query == kept  # until the details have come as well
    held[0].continue_()
    page.page.unroute("**/api/slice/**")
    page.idle()
    page.page.evaluate("href => lanescope.shown(href)", f"{page.address}/timeline?t=0-1000")
    page.idle()
    assert page.state["selection"]["ref"] == chosen["ref"]
    assert page.page.url == address
    assert chosen["name"] in page.text("#slice-panel")


def test_hover_names_the_slice_at_once(tab: SharedTab) -> None:
    page = tab(f"/timeline?t={20 * MS}-{24 * MS}")
    label = page.label("aten::")
    page.hover(label["x"] + label["w"] / 2, label["y"] + 8)
    assert label["name"] in page.text(".tl-tip")
    page.page.mouse.move(5, 5)
    page.idle()
    assert not page.page.is_visible(".tl-tip")


@pytest.mark.slow
def test_neighbours_by_keyboard(tab: SharedTab) -> None:
    page = tab(f"/timeline?t={20 * MS}-{24 * MS}")
    page.click_slice("aten::")
    first = page.state["selection"]
    page.press(".")
    second = page.state["selection"]
    assert second["start"] >= first["end"]
    assert (second["lane"], second["row"]) == (first["lane"], first["row"])
    page.press(",")
    assert page.state["selection"]["ref"] == first["ref"]
    page.press("ArrowUp")
    above = page.state["selection"]
    assert (above["lane"], above["row"]) != (first["lane"], first["row"])
    page.press("ArrowDown")
    assert page.state["selection"]["row"] == first["row"]


def test_keys_move_the_window(tab: SharedTab) -> None:
    page = tab(f"/timeline?t={20 * MS}-{24 * MS}")
    page.page.mouse.move(5, 5)
    start, end = page.window
    page.press("w")
    t0, t1 = page.window
    assert t1 - t0 < end - start
    page.press("s")
    assert page.window == pytest.approx((start, end), rel=1e-3)
    page.press("d")
    assert page.window[0] > start
    page.press("a")
    assert page.window[0] == pytest.approx(start, rel=1e-3)
    page.press("Home")
    assert page.window == (0, page.state["viewport"]["duration"])


def test_dragging_moves_in_both_directions(tab: SharedTab) -> None:
    page = tab(f"/timeline?t={20 * MS}-{24 * MS}&closed=", height=600)
    start, _ = page.window
    page.drag((600, 200), (500, 120))
    state = page.state
    width = state["viewport"]["width"]
    assert page.window[0] == pytest.approx(start + 100 / width * 4 * MS, rel=1e-6)
    assert state["viewport"]["scrollY"] == pytest.approx(80, abs=1)


@pytest.mark.slow
def test_panning_within_prefetched_tiles_asks_for_nothing(opened: Opener) -> None:
    page = opened(f"/timeline?t={20 * MS}-{24 * MS}")  # a shared tab has the tiles of other tests
    before = page.tile_requests()
    assert before > 0
    width = page.state["viewport"]["width"]
    page.drag((600, 40), (600 - width * 0.4, 40))
    page.drag((300, 40), (300 + width * 0.4, 40))
    page.press("d", "a")
    assert page.tile_requests() == before
    assert all(lane["loaded"] for lane in page.state["lanes"] if lane["visible"])
    # Nothing at all while the dock is closed; opened, its table and its overlap ask once each, for
    # where the window is then.
    # (Chromium asks for the page's icon whenever the address changes.)
    page.page.get_by_role("button", name="Hide details").click()
    page.idle()
    page.requests.clear()
    page.press("d", "d", "a")
    page.drag((600, 40), (500, 40))
    assert page.asked() == []
    page.page.get_by_role("button", name="Show details").click()
    page.idle()
    assert page.asked() == ["/_dash-update-component"] * 2


@pytest.mark.slow
def test_the_strip_moves_the_window(tab: SharedTab) -> None:
    page = tab(f"/timeline?t={20 * MS}-{24 * MS}")
    box = page.page.locator(".tl-head").bounding_box()
    assert box is not None
    page.page.mouse.click(box["x"] + box["width"] * 0.75, box["y"] + 20)
    page.idle()
    t0, t1 = page.window
    duration = page.state["viewport"]["duration"]
    assert (t0 + t1) / 2 == pytest.approx(duration * 0.75, rel=0.01)
    assert t1 - t0 == pytest.approx(4 * MS)


def test_a_range_has_a_table_and_a_matrix_of_its_own(tab: SharedTab) -> None:
    page = tab(f"/timeline?t=0-{20 * MS}")
    assert page.text("#ops-title").startswith("Window")
    width = page.state["viewport"]["width"]
    page.drag((width * 0.2, 40), (width * 0.45, 45), key="Shift")
    chosen = page.state["range"]
    assert chosen["t0"] == pytest.approx(4 * MS, abs=50_000)
    assert chosen["t1"] == pytest.approx(9 * MS, abs=50_000)
    assert page.text("#ops-title").startswith("Range")
    assert "aten::" in page.text("#ops")
    assert "In range" in page.text("#dock-overlap")
    # Of 4.5 ms backward on each of two threads, 4.0 ms are shared: 88.9 % of the pair.
    assert page.page.locator("#dock-overlap .matrix").count() == 2
    assert "88.9" in page.text("#dock-overlap")
    assert f"range={chosen['t0']}-{chosen['t1']}" in page.query
    page.press("Escape")
    assert page.state["range"] is None
    assert page.text("#ops-title").startswith("Window")


def test_a_range_says_how_long_ranks_waited(tab: SharedTab) -> None:
    page = tab()
    assert "Waiting in collectives" in page.text("#dock-overlap")
    assert "8.00 µs" in page.text("#dock-overlap") or "8 µs" in page.text("#dock-overlap")


def test_all_ranks_are_in_sight_at_first(opened: Opener) -> None:
    page = opened("/timeline", height=500)
    view = page.page.locator(".tl-labels").bounding_box()
    last = page.page.locator(".tl-group").last.bounding_box()
    assert view
    assert last
    assert last["y"] + last["height"] <= view["y"] + view["height"]
    assert page.page.locator(".tl-group[aria-expanded=false]").count() > 0
    assert "closed" not in page.query
    page.press("l")
    page.page.keyboard.type("rank 1 main")
    page.idle()
    assert [one["rank"] for one in page.state["lanes"]] == [1]
    page.page.keyboard.press("Escape")
    page.idle()
    assert "closed" not in page.query


def test_groups_close_and_lanes_open(tab: SharedTab) -> None:
    page = tab("/timeline?closed=")
    count = len(page.state["lanes"])
    group = page.page.locator('[data-group="0"]')
    assert group.get_attribute("aria-expanded") == "true"
    group.click()
    page.idle()
    assert group.get_attribute("aria-expanded") == "false"
    assert len(page.state["lanes"]) < count
    assert "closed=0" in page.query
    group.press("Enter")
    page.idle()
    assert len(page.state["lanes"]) == count


def test_the_address_restores_the_view(opened: Opener) -> None:
    page = opened(f"/timeline?t={20 * MS}-{24 * MS}")
    page.click_slice("aten::")
    page.page.get_by_role("button", name="rank 1").click()
    width = page.state["viewport"]["width"]
    page.drag((width * 0.2, 40), (width * 0.6, 40), key="Shift")
    page.press("/")
    page.page.keyboard.type("aten::")
    page.idle()
    page.page.keyboard.press("Tab")
    page.press("t")
    page.press("o")
    kept = ("selection", "range", "query", "overlaps")
    left = page.state
    again = opened(page.page.url.removeprefix(page.address))
    found = again.state
    assert again.window == pytest.approx(page.window, abs=1)
    assert again.page.evaluate("document.documentElement.dataset.theme") == "dark"
    for name in kept:
        if name == "selection":
            place = ("lane", "row", "ref", "name", "start", "end")
            assert [found[name][k] for k in place] == [left[name][k] for k in place]
        else:
            assert found[name] == left[name], name
    assert [lane["id"] for lane in found["lanes"]] == [lane["id"] for lane in left["lanes"]]
    assert left["selection"]["name"] in again.text("#slice-panel")


@pytest.mark.slow
def test_dark_theme_by_system_and_by_toggle(opened: Opener) -> None:
    dark = opened(theme="dark")
    assert dark.token("ground") == (18, 22, 28)
    blank = dark.state["viewport"]["width"] - 2, dark.state["canvas"]["height"] - 2
    assert dark.background("body") == (18, 22, 28)
    assert sum(dark.pixel(*blank)) < 3 * 80
    dark.press("t")
    assert dark.token("ground") == (246, 247, 249)
    assert "theme=light" in dark.query
    dark.page.get_by_role("button", name="Light or dark").click()
    dark.idle()
    assert "theme=dark" in dark.query


@pytest.mark.slow
def test_help_lists_the_keys(tab: SharedTab) -> None:
    page = tab()
    page.press("?")
    assert page.page.locator("dialog.help").is_visible()
    assert "Shift + drag" in page.text("dialog.help")
    page.page.keyboard.press("Escape")
    assert not page.page.locator("dialog.help").is_visible()


@pytest.mark.slow
def test_dock_closes_and_resizes(opened: Opener) -> None:
    page = opened()
    height = page.state["viewport"]["height"]
    page.page.get_by_role("button", name="Hide details").click()
    page.idle()
    assert page.state["viewport"]["height"] > height + 100
    page.page.get_by_role("button", name="Show details").click()
    page.idle()
    assert page.state["viewport"]["height"] == height
    box = page.page.locator("#dock-bar").bounding_box()
    assert box is not None
    page.page.mouse.move(box["x"] + 500, box["y"] + 2)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + 500, box["y"] - 98)
    page.page.mouse.up()
    page.idle()
    assert page.state["viewport"]["height"] == pytest.approx(height - 100, abs=5)


@pytest.mark.slow
def test_a_server_that_fails_is_said_and_the_coarser_level_stays(tab: SharedTab) -> None:
    page = tab()
    page.page.route(
        "**/tile/**", lambda route: route.fulfill(status=500, json={"error": "no disk"})
    )
    _zoom_far(page)
    assert "no disk" in page.text(".tl-toast")
    assert page.state["drawn"]["cells"] + page.state["drawn"]["rectangles"] > 0
    page.page.unroute("**/tile/**")
    page.press("d")
    page.problems = [text for text in page.problems if "500" not in text]


def _zoom_far(page: LanePage) -> None:
    for _ in range(6):
        page.wheel(400, 40, -240, key="Control")


@pytest.mark.slow
def test_a_notch_of_zoom_moves_few_bytes_at_any_depth(opened: Opener, large: str) -> None:
    page = opened("/timeline", at=large)
    page.press("q")  # the details ask for more with each notch
    middle = page.state["canvas"]["width"] / 2
    before = page.state["requests"]
    for _ in range(24):
        page.wheel(middle, 100, -240, key="Control")
        after = page.state["requests"]
        assert after["bytes"] - before["bytes"] < 300_000
        assert after["requests"] - before["requests"] <= 8
        before = after


@pytest.mark.slow
def test_one_nanosecond_among_all_ops_is_a_pixel(opened: Opener, large: str) -> None:
    page = opened("/timeline?closed=", at=large)
    # PROBE stands alone in the slim, lowest row of the first lane, in the middle of the run.
    lit = page.lit_columns()
    assert len(lit) in (1, 2, 3)  # a bucket is up to two pixels wide, wherever it begins
    assert abs(lit[0] / page.state["viewport"]["width"] - 0.5) < 0.1
