"""What one does to lanes, what leads from one to another, and finding one's way by words."""

from __future__ import annotations

import pytest

from tests.browser.conftest import SharedTab
from tests.support.page import LanePage

pytestmark = pytest.mark.browser

MS = 1_000_000


def lane(page: LanePage, rank: int, label: str) -> int:
    """Number of a lane."""
    found: int = next(
        one["id"] for one in page.state["lanes"] if (one["rank"], one["label"]) == (rank, label)
    )
    return found


def shown(page: LanePage) -> list[int]:
    return [one["id"] for one in page.state["lanes"]]


@pytest.mark.slow
def test_a_pinned_lane_stays_at_the_top_while_others_scroll(tab: SharedTab) -> None:
    page = tab(f"/timeline?t=0-{10 * MS}&closed=", height=520)
    evaluator = lane(page, 1, "Thread-1")
    first = page.state["lanes"][0]["id"]
    page.hover(300, page.lane_y(first))
    page.press("p")
    page.page.get_by_role("button", name="Keep Thread-1 at the top").first.click()
    page.idle()
    pins = page.state["arrangement"]["pins"]
    assert pins[0] == first
    assert shown(page)[:2] == pins
    page.press("PageDown")
    assert page.state["viewport"]["scrollY"] > 0
    pinned = [one for one in page.state["lanes"] if one["pinned"]]
    assert [one["id"] for one in pinned] == pins
    assert all(one["visible"] and one["loaded"] for one in pinned)
    # 2 ms into the run its thread is in the forward phase, wherever the others have gone.
    x = 2 / 10 * page.state["viewport"]["width"]
    assert page.pixel(x, page.lane_y(first) - 2) == page.token("forward")
    page.hover(300, page.lane_y(first))
    page.press("p")
    assert page.state["arrangement"]["pins"] == pins[1:]
    assert evaluator in shown(page)


@pytest.mark.slow
def test_lanes_and_ranks_are_dragged_into_another_order(tab: SharedTab) -> None:
    page = tab("/timeline?closed=", height=1000)
    before = shown(page)
    names = page.page.locator(".tl-labels")
    box = names.bounding_box()
    assert box is not None
    second = next(one for one in page.state["lanes"] if one["id"] == before[1])

    def drag(start: float, end: float) -> None:
        page.page.mouse.move(box["x"] + 90, box["y"] + start)
        page.page.mouse.down()
        page.page.mouse.move(box["x"] + 90, box["y"] + end, steps=4)
        page.page.mouse.up()
        page.idle()

    drag(second["y"] + 8, 24)
    assert shown(page)[:2] == [before[1], before[0]]
    assert "order=" in page.query
    page.hover(300, page.lane_y(before[1]))
    page.press("Alt+ArrowDown")
    assert shown(page)[:2] == before[:2]
    head = page.page.locator(".tl-group").nth(1).bounding_box()
    assert head is not None
    drag(head["y"] - box["y"] + 10, 2)
    assert {one["rank"] for one in page.state["lanes"][:3]} == {1}
    assert "ranks=1.0" in page.query
    assert page.page.locator(".tl-group[aria-expanded=false]").count() == 0


@pytest.mark.slow
def test_the_filter_leaves_lanes_that_match(tab: SharedTab) -> None:
    page = tab("/timeline?closed=")
    everything = shown(page)
    page.press("l")
    page.page.keyboard.type("rank 1 thread")
    page.idle()
    left = page.state["lanes"]
    assert {(one["rank"], one["kind"]) for one in left} == {(1, "thread")}
    assert page.text(".tl-filter span") == f"{len(left)}/{len(everything)}"
    assert "lanes=rank%201%20thread" in page.query
    assert not page.page.locator(".tl-message").is_visible()
    page.page.keyboard.type(" nowhere")
    page.idle()
    assert (shown(page), page.text(".tl-message")[:11]) == ([], "No lane has")
    page.page.keyboard.press("Escape")
    page.idle()
    assert shown(page) == everything


def test_arrows_join_one_collective_on_all_ranks(tab: SharedTab) -> None:
    page = tab(f"/timeline?t={22 * MS}-{32 * MS}&closed=", height=1200)
    page.click_slice("all_reduce")
    state = page.state
    assert [flow["kind"] for flow in state["flows"]] == ["collective"]
    assert state["arrows"] == 1
    ranks = {one["id"]: one["rank"] for one in state["lanes"]}
    (flow,) = state["flows"]
    assert (ranks[flow["from"]["lane"]], ranks[flow["to"]["lane"]]) == (0, 1)
    here = state["selection"]["lane"]
    page.page.get_by_role("button", name="later ↗").or_(
        page.page.get_by_role("button", name="earlier ↗")
    ).first.click()
    page.idle()
    assert ranks[page.state["selection"]["lane"]] != ranks[here]
    assert page.state["selection"]["name"] == "all_reduce"
    page.press("Escape")
    assert page.state["arrows"] == 0


@pytest.mark.slow
def test_everything_can_be_called_by_name(tab: SharedTab) -> None:
    page = tab()
    page.press("Control+k")
    page.page.keyboard.type("close or open all")
    page.page.keyboard.press("Enter")
    page.idle()
    assert page.state["lanes"] == []
    page.press("Shift+G")
    assert page.state["lanes"]
    page.press("Control+k")
    page.page.keyboard.type("sql pages")
    page.page.keyboard.press("Enter")
    page.idle()
    assert page.page.locator("h1").inner_text() == "SQL"
    page.press("Control+k")
    assert "Threads" in page.text("dialog.commands")
    assert "Zoom in" not in page.text("dialog.commands")
    page.page.keyboard.press("Escape")


@pytest.mark.slow
def test_the_list_of_keys_is_that_of_the_commands(tab: SharedTab) -> None:
    page = tab()
    page.press("?")
    text = page.text("dialog.help")
    for word in ("Ctrl + K", "Shift + drag", "Pin the lane at the top", "Filter lanes", "pinch"):
        assert word in text
    page.page.keyboard.press("Escape")


def test_a_closed_rank_shows_the_time_that_is_covered(tab: SharedTab) -> None:
    page = tab(f"/timeline?t=0-{10 * MS}&closed=0")
    # Step 0 of thread 0: data to 1 ms, forward to 4 ms, backward to 8.5 ms, optimizer to 10 ms.
    width = page.state["viewport"]["width"]
    for ms, token in ((0.4, "data"), (2, "forward"), (6, "backward"), (9.5, "optimizer")):
        assert page.pixel(ms / 10 * width, 5) == page.token(token), token


@pytest.mark.slow
def test_the_end_of_a_range_snaps_to_slices_and_measures_between_two(tab: SharedTab) -> None:
    page = tab(f"/timeline?t={20 * MS}-{24 * MS}")
    label = page.label("aten::", whole=True)
    y = label["y"] + label["h"] / 2
    page.drag((label["x"] + 2, y), (label["x"] + label["w"] - 1, y), key="Shift")
    page.press("Escape")
    page.click(label["x"] + label["w"] / 2, y)
    selected = page.state["selection"]
    page.press("m")
    assert page.state["range"] == {"t0": selected["start"], "t1": selected["end"]}
    page.press("Escape")
    page.drag((label["x"] + 2, y), (label["x"] + label["w"] - 1, y), key="Shift")
    assert page.state["range"]["t0"] == pytest.approx(selected["start"], abs=2)
    assert page.state["range"]["t1"] == pytest.approx(selected["end"], abs=2)
    page.press("Escape")
    later = max(
        (
            one
            for one in page.state["labels"]
            if one["row"] == label["row"] and one["lane"] == label["lane"]
        ),
        key=lambda one: one["x"],
    )
    page.page.keyboard.down("Shift")
    page.click(later["x"] + later["w"] / 2, y)
    page.page.keyboard.up("Shift")
    assert "Start to start" in page.text(".tl-toast")
    assert page.state["range"]["t0"] == selected["start"]


@pytest.mark.slow
def test_two_fingers_zoom_where_they_are(tab: SharedTab) -> None:
    page = tab(f"/timeline?t={20 * MS}-{24 * MS}")
    x, y = page.at(400, 60)
    touch = page.page.context.new_cdp_session(page.page)

    def fingers(kind: str, apart: float) -> None:
        points = [{"x": x - apart, "y": y, "id": 1}, {"x": x + apart, "y": y, "id": 2}]
        points = [] if kind == "touchEnd" else points
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    t0, t1 = page.window
    width = page.state["viewport"]["width"]
    under = t0 + 400 / width * (t1 - t0)
    fingers("touchStart", 50)
    for apart in (60, 80, 100):
        fingers("touchMove", apart)
    fingers("touchEnd", 0)
    page.idle()
    new0, new1 = page.window
    assert new1 - new0 == pytest.approx((t1 - t0) / 2, rel=0.05)
    assert new0 + 400 / width * (new1 - new0) == pytest.approx(under, rel=1e-3)
    touch.detach()
