"""Every key of the list of keys, and every gesture beside them, on one page."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import SharedTab
from tests.support.page import LanePage

pytestmark = pytest.mark.browser

MS = 1_000_000
START, END = 20 * MS, 24 * MS

# Checked where what they do is checked: search and notes, pictures and tables, themes and pages,
# groups of ranks.
ELSEWHERE = {
    "B",
    "Ctrl + Enter",
    "Shift + T",
    "T",
    "?",
    "Ctrl + K",
    "Ctrl + Shift + P",
    "J",
    "Shift + J",
    "L",
    "Shift + L",
}


class Hands:
    """Presses keys of the list of keys, and says what the timeline was before and is now."""

    def __init__(self, page: LanePage) -> None:
        self.page = page
        self.pressed: set[str] = set()

    def press(self, key: str, shown: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """`shown` is what the list of keys calls it."""
        before = self.page.state
        self.page.press(key)
        self.pressed.add(shown)
        return before, self.page.state


def span(state: dict[str, Any]) -> float:
    return float(state["viewport"]["t1"] - state["viewport"]["t0"])


def start(state: dict[str, Any]) -> float:
    return float(state["viewport"]["t0"])


def move_the_window(page: LanePage, hands: Hands) -> None:
    for key, factor in (("w", 0.6), ("s", 1 / 0.6)):
        before, after = hands.press(key, key.upper())
        assert span(after) == pytest.approx(span(before) * factor, rel=1e-3), key
    for key, shown, share in (
        ("a", "A", -0.25),
        ("d", "D", 0.25),
        ("Shift+A", "Shift + A", -1),
        ("Shift+D", "Shift + D", 1),
        ("ArrowLeft", "←", -0.1),
        ("ArrowRight", "→", 0.1),
    ):
        before, after = hands.press(key, shown)
        moved = (start(after) - start(before)) / span(before)
        assert moved == pytest.approx(share, rel=1e-3), key
    window = page.window
    _, after = hands.press("Shift+ArrowRight", "Shift + →")
    steps = [(float(low), float(high)) for _, low, high in page.state["stepBounds"]]
    first = (after["range"]["t0"], after["range"]["t1"])
    assert first in steps
    _, after = hands.press("Shift+ArrowLeft", "Shift + ←")
    assert (after["range"]["t0"], after["range"]["t1"]) == steps[steps.index(first) - 1]
    hands.press("Backspace", "Backspace")
    page.press("Backspace", "Escape")
    assert page.window == pytest.approx(window)
    before, after = hands.press("PageDown", "Page down")
    assert after["viewport"]["scrollY"] > before["viewport"]["scrollY"]
    before, after = hands.press("PageUp", "Page up")
    assert after["viewport"]["scrollY"] < before["viewport"]["scrollY"]


def select_a_slice(page: LanePage, hands: Hands) -> str:
    """Returns its name."""
    label = page.click_slice("aten::")
    page.page.mouse.move(5, 5)
    chosen = page.state["selection"]
    _, after = hands.press(".", ".")
    assert after["selection"]["start"] >= chosen["end"]
    _, after = hands.press(",", ",")
    assert after["selection"]["ref"] == chosen["ref"]
    _, after = hands.press("ArrowUp", "↑")
    assert after["selection"]["row"] != chosen["row"]
    _, after = hands.press("ArrowDown", "↓")
    assert after["selection"]["row"] == chosen["row"]
    length = chosen["end"] - chosen["start"]
    for key, shown in (("Enter", "Enter"), ("f", "F")):
        page.press("Home")
        _, after = hands.press(key, shown)
        assert span(after) == pytest.approx(length * 1.3, rel=1e-3), key
    _, after = hands.press("m", "M")
    assert after["range"] == {"t0": chosen["start"], "t1": chosen["end"]}
    _, after = hands.press("Home", "Home")
    assert span(after) == after["viewport"]["duration"]
    for gone in ("range", "selection"):
        _, after = hands.press("Escape", "Esc")
        assert after[gone] is None
    return str(label["name"])


def search(page: LanePage, hands: Hands, name: str) -> None:
    hands.press("o", "O")
    first = page.window
    hands.press("o", "O")
    assert page.window != first
    hands.press("Shift+O", "Shift + O")
    assert page.window == pytest.approx(first)
    page.press("Escape")
    hands.press("/", "/")
    page.page.keyboard.type(name)
    page.page.keyboard.press("Tab")
    page.idle()
    _, one = hands.press("n", "N")
    _, two = hands.press("n", "N")
    assert two["hits"]["position"] == one["hits"]["position"] + 1
    assert two["selection"]["name"] == name
    _, after = hands.press("Shift+N", "Shift + N")
    assert after["selection"]["ref"] == one["selection"]["ref"]
    page.press("Escape", "Escape")


def follow_a_collective(page: LanePage, hands: Hands) -> None:
    page.visit(f"/timeline?t={START}-{START + 12 * MS}")
    page.click_slice("all_reduce")
    lane = page.state["selection"]["lane"]
    there, back = ("]", "[") if page.state["flows"][0]["from"]["lane"] == lane else ("[", "]")
    _, after = hands.press(there, there)
    assert (after["selection"]["lane"] != lane, after["selection"]["name"]) == (True, "all_reduce")
    _, after = hands.press(back, back)
    assert after["selection"]["lane"] == lane
    page.press("Escape")


def arrange_lanes(page: LanePage, hands: Hands) -> None:
    page.press("PageUp", "PageUp", "PageUp")
    lanes = [one["id"] for one in page.state["lanes"]]
    page.hover(300, page.state["lanes"][0]["y"] + 8)
    _, after = hands.press("p", "P")
    assert after["arrangement"]["pins"] == lanes[:1]
    page.press("p")
    _, after = hands.press("Alt+ArrowDown", "Alt + ↓")
    assert [one["id"] for one in after["lanes"]][:2] == [lanes[1], lanes[0]]
    page.hover(300, next(one["y"] for one in after["lanes"] if one["id"] == lanes[0]) + 8)
    _, after = hands.press("Alt+ArrowUp", "Alt + ↑")
    assert [one["id"] for one in after["lanes"]] == lanes
    page.hover(300, page.state["lanes"][0]["y"] + 8)
    hands.press("e", "E")
    assert f"open={lanes[0]}&" in page.query
    _, after = hands.press("g", "G")
    assert len(after["lanes"]) < len(lanes)
    _, after = hands.press("Shift+G", "Shift + G")
    assert after["lanes"] == []
    page.press("Shift+G")


@pytest.mark.slow
def test_every_key_does_what_the_list_says(tab: SharedTab) -> None:
    page = tab(f"/timeline?t={START}-{END}&closed=", height=560)
    hands = Hands(page)
    before, after = hands.press("q", "Q")  # the details: closed, nothing is asked for them
    assert after["viewport"]["height"] > before["viewport"]["height"]
    move_the_window(page, hands)
    name = select_a_slice(page, hands)
    search(page, hands, name)
    follow_a_collective(page, hands)
    arrange_lanes(page, hands)

    page.press("?")
    listed = set(page.page.locator("dialog.help dt kbd").all_inner_texts())
    named = {key for text in listed for key in text.split(", ")}
    page.page.keyboard.press("Escape")
    page.press("q")
    gestures = {
        "Wheel",
        "pinch",
        "Click",
        "Double click",
        "Drag",
        "Drag a name",
        "Drag on the strip",
    }
    held = {"Shift + wheel", "Ctrl + wheel", "Shift + drag", "Shift + click"}
    assert named - gestures - held - ELSEWHERE == hands.pressed


@pytest.mark.slow
def test_gestures_of_wheel_ruler_and_strip(tab: SharedTab) -> None:
    page = tab(f"/timeline?t={START}-{END}&closed=", height=560)
    page.press("q")
    before = page.state
    page.wheel(400, 60, 100, key="Shift")
    after = page.state
    width = after["viewport"]["width"]
    assert start(after) == pytest.approx(start(before) + 100 / width * span(before), rel=1e-6)
    page.wheel(400, 60, 40)
    assert page.state["viewport"]["scrollY"] == 40
    assert span(page.state) == span(before)
    page.wheel(-60, 60, -40)  # over the names
    assert page.state["viewport"]["scrollY"] == 0
    page.wheel(400, -32, -100)  # over the ruler, where there is nothing to scroll
    assert span(page.state) == pytest.approx(span(before) * 0.8187, rel=1e-3)
    page.wheel(400, 60, 100, key="Control")
    assert span(page.state) == pytest.approx(span(before), rel=1e-3)
    assert page.state["viewport"]["scrollY"] == 0
    before = page.state
    page.wheel(400, 60, -10, key="Control")  # how a trackpad reports a pinch
    assert span(page.state) == pytest.approx(span(before) * 0.9048, rel=1e-3)

    label = page.label("aten::")
    page.page.mouse.dblclick(*page.at(label["x"] + label["w"] / 2, label["y"] + 8))
    page.idle()
    chosen = page.state["selection"]
    assert chosen["name"] == label["name"]
    assert span(page.state) == pytest.approx((chosen["end"] - chosen["start"]) * 1.3, rel=1e-3)

    page.press("Escape", "Home")
    page.drag((width * 0.25, -32), (width * 0.5, -32))  # along the ruler
    state = page.state
    duration = state["viewport"]["duration"]
    assert state["range"]["t0"] == pytest.approx(duration * 0.25, rel=0.01)
    assert state["range"]["t1"] == pytest.approx(duration * 0.5, rel=0.01)
    page.press("Escape")
    # On the strip: the edges of the window, the window itself, a new one.
    page.visit(f"/timeline?t={int(duration * 0.4)}-{int(duration * 0.6)}")
    page.drag((width * 0.4, -70), (width * 0.3, -70))
    assert page.window == pytest.approx((duration * 0.3, duration * 0.6), rel=0.01)
    page.drag((width * 0.6, -70), (width * 0.5, -70))
    assert page.window == pytest.approx((duration * 0.3, duration * 0.5), rel=0.01)
    page.drag((width * 0.4, -70), (width * 0.6, -70))
    assert page.window == pytest.approx((duration * 0.5, duration * 0.7), rel=0.01)
    page.drag((width * 0.1, -70), (width * 0.2, -70))
    assert page.window == pytest.approx((duration * 0.1, duration * 0.2), rel=0.01)

    # The bar beside the lanes.
    bar = page.page.locator(".tl-scroll").bounding_box()
    assert bar is not None
    page.page.mouse.move(bar["x"] + 4, bar["y"] + 4)
    page.page.mouse.down()
    page.page.mouse.move(bar["x"] + 4, bar["y"] + bar["height"] - 2, steps=3)
    page.page.mouse.up()
    page.idle()
    state = page.state
    low = state["layout"]["height"] - state["viewport"]["height"]
    assert state["viewport"]["scrollY"] == pytest.approx(low, abs=1)
    page.press("q")
