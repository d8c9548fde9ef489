"""The page as tests use it. Waits for the page's own idle signal, never for time."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Request, ViewportSize

RUN = "RUN"
"""Header by which a server of several runs knows which is meant."""

TIMEOUT_MS = 90_000  # a page that never comes to rest fails the test instead of hanging it

_IDLE = """patience => Promise.race([
  lanescope.idle(),
  new Promise((_, reject) => setTimeout(
    () => reject(new Error("still busy: " + lanescope.debugState().busy)), patience)),
])"""


# Tabs share a cache, so that scripts are fetched once, but not what the page remembers.
_FORGET = """if (!sessionStorage.getItem("tab")) {
  localStorage.clear();
  sessionStorage.setItem("tab", "known");
}"""


class LanePage:
    """One tab. Collects what goes wrong in it and what it asks for.

    What follows `#` in the address goes into the header `RUN`.
    """

    def __init__(
        self,
        context: BrowserContext,
        address: str,
        theme: Literal["light", "dark"],
        width: int = 1280,
        height: int = 800,
    ) -> None:
        self.address, _, self.run = address.partition("#")
        self.page = context.new_page()
        if self.run:
            self.page.set_extra_http_headers({RUN: self.run})
        self.page.set_default_timeout(TIMEOUT_MS)
        self.page.emulate_media(color_scheme=theme)
        self.page.set_viewport_size(ViewportSize(width=width, height=height))
        self.page.add_init_script(_FORGET)
        self.problems: list[str] = []
        self.requests: list[Request] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requests.append(request))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.problems.append(f"{message.type}: {message.text}")

    def close(self) -> None:
        """Ends the tab; fails where it complained, or asked anything of another machine."""
        self.page.close()
        assert not self.problems, "\n".join(self.problems)
        assert not self.foreign_requests(), self.foreign_requests()

    def foreign_requests(self) -> list[str]:
        """Requests that left for anywhere but the server of the page."""
        own = urlsplit(self.address).netloc
        return [
            request.url
            for request in self.requests
            if urlsplit(request.url).scheme in {"http", "https", "ws", "wss"}
            and urlsplit(request.url).netloc != own
        ]

    def go(self, path: str) -> None:
        self.page.goto(self.address + path)
        self.idle()

    def visit(self, path: str) -> None:
        """Any address, as a link within the page leads there: nothing is loaded again."""
        self.page.evaluate(
            """href => { history.pushState({}, "", href);
            dispatchEvent(new CustomEvent("_dashprivate_pushstate")); }""",
            self.address + path,
        )
        self.idle()

    def follow(self, title: str) -> None:
        """Another page, by its link."""
        links = self.page.get_by_role("navigation", name="Pages")
        links.get_by_role("link", name=title, exact=True).click()
        self.idle()

    def idle(self) -> None:
        """Nothing is under way any more: no request, no frame, no callback."""
        self.page.evaluate(_IDLE, TIMEOUT_MS)

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.page.evaluate("lanescope.debugState()")
        return state

    @property
    def window(self) -> tuple[float, float]:
        t0, t1 = self.page.evaluate("(({ t0, t1 }) => [t0, t1])(lanescope.debugState().viewport)")
        return t0, t1

    @property
    def query(self) -> str:
        return urlsplit(self.page.url).query

    def chart(self, name: str) -> Locator:
        """A chart of the page, scrolled to: until then it is not drawn."""
        undrawn_or_chart = f"#{name}-place:not([data-seen=true]), #{name}"
        self.page.locator(undrawn_or_chart).first.scroll_into_view_if_needed()
        self.idle()
        return self.page.locator(f"#{name}")

    def draw_charts(self) -> None:
        """Scroll to each chart of the page that is not drawn yet."""
        while (unseen := self.page.locator(".in-sight[data-seen=false]:visible")).count():
            unseen.first.scroll_into_view_if_needed()
            self.idle()

    def tile_requests(self) -> int:
        return sum("/tile/" in request.url for request in self.requests)

    def asked(self) -> list[str]:
        """Paths of what was asked for, but for the page's own files."""
        paths = [urlsplit(request.url).path for request in self.requests]
        return [path for path in paths if not path.startswith("/assets/")]

    # ---- gestures ----

    def at(self, x: float, y: float) -> tuple[float, float]:
        """A point of the lanes as a point of the page."""
        box = self.page.evaluate("lanescope.debugState().canvas")  # the whole state is long
        return box["x"] + x, box["y"] + y

    def hover(self, x: float, y: float) -> None:
        self.page.mouse.move(*self.at(x, y))
        self.idle()

    def click(self, x: float, y: float) -> None:
        self.page.mouse.click(*self.at(x, y))
        self.idle()

    def drag(self, start: tuple[float, float], end: tuple[float, float], key: str = "") -> None:
        if key:
            self.page.keyboard.down(key)
        self.page.mouse.move(*self.at(*start))
        self.page.mouse.down()
        self.page.mouse.move(*self.at(*end), steps=5)
        self.page.mouse.up()
        if key:
            self.page.keyboard.up(key)
        self.idle()

    def wheel(self, x: float, y: float, dy: float, key: str = "") -> None:
        self.page.mouse.move(*self.at(x, y))
        if key:
            self.page.keyboard.down(key)
        self.page.mouse.wheel(0, dy)
        # The wheel is the one input that Chromium delivers after the call has returned.
        self.page.evaluate(
            "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))"
        )
        if key:
            self.page.keyboard.up(key)
        self.idle()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
            self.idle()

    # ---- what can be seen ----

    def label(self, name: str = "::", *, whole: bool = False) -> dict[str, Any]:
        """A named slice that is drawn, near the middle of the lanes; `whole`: nothing cut off."""
        state = self.state
        middle = state["viewport"]["width"] / 2
        found = [
            label
            for label in state["labels"]
            if name in label["name"] and (not whole or label["text"] == label["name"])
        ]
        assert found, f"no slice named {name!r} is drawn"
        best: dict[str, Any] = min(found, key=lambda one: abs(one["x"] + one["w"] / 2 - middle))
        return best

    def click_slice(self, name: str = "::") -> dict[str, Any]:
        label = self.label(name)
        self.click(label["x"] + label["w"] / 2, label["y"] + label["h"] / 2)
        return label

    def lane_y(self, lane: int, row: int = 0) -> float:
        """Middle of a row of a lane, in the lanes."""
        place: float = next(one["y"] for one in self.state["lanes"] if one["id"] == lane)
        return place + 2 + 17 * row + 8

    def pixel(self, x: float, y: float) -> tuple[int, int, int]:
        """Colour of a pixel of the lanes."""
        red, green, blue, _ = self.page.evaluate(
            """([x, y]) => { const lanes = document.querySelector('.tl-lanes canvas');
            const r = lanes.width / lanes.clientWidth;
            const copy = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
            copy.drawImage(lanes, -Math.floor(x * r), -Math.floor(y * r));
            return [...copy.getImageData(0, 0, 1, 1).data]; }""",
            [x, y],
        )
        return red, green, blue

    def row_of_pixels(self, y: float) -> list[tuple[int, int, int]]:
        """Colours of the lanes at a height, from left to right."""
        values: list[int] = self.page.evaluate(
            """y => { const lanes = document.querySelector('.tl-lanes canvas');
            const r = lanes.width / lanes.clientWidth;
            const copy = new OffscreenCanvas(lanes.width, 1).getContext('2d');
            copy.drawImage(lanes, 0, -Math.floor(y * r));
            return [...copy.getImageData(0, 0, lanes.width, 1).data]; }""",
            y,
        )
        return list(zip(values[0::4], values[1::4], values[2::4], strict=True))

    def lit_columns(self) -> list[int]:
        """Pixels with something in them, of the slim, lowest row of the first lane."""
        lane = self.state["lanes"][0]
        line = self.row_of_pixels(lane["y"] + lane["h"] - 6)
        gap = self.row_of_pixels(lane["y"] + lane["h"] - 1)  # grid lines go through both
        return [x for x in range(len(line)) if line[x] != gap[x]]

    def token(self, name: str) -> tuple[int, int, int]:
        """A colour of the style sheet, in the theme in effect."""
        red, green, blue = self.page.evaluate(
            """name => { const i = document.body.appendChild(document.createElement('i'));
            i.style.color = `var(--${name})`;
            const found = getComputedStyle(i).color.match(/\\d+/g).map(Number);
            i.remove(); return found; }""",
            name,
        )
        return red, green, blue

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def background(self, selector: str) -> tuple[int, ...]:
        found = self.page.evaluate(
            "s => getComputedStyle(document.querySelector(s)).backgroundColor.match(/\\d+/g)",
            selector,
        )
        return tuple(map(int, found))
