"""A browser and the page of a run, served as `lanescope view` serves it."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import BrowserContext, ViewportSize

from benchmarks.generate_run import generate
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.server.http_server import Server as HttpServer
from lanescope.webapp.server.http_server import Start, Wsgi
from lanescope.webapp.server.server import make_app
from tests.support.page import RUN, LanePage
from tests.support.synthetic import write_run

Opener = Callable[..., LanePage]
Server = Callable[..., str]


class Pages:
    """The pages of several runs behind one address, so that the browser compiles scripts once.

    A request names its run in the header `RUN`, which `LanePage` sends; what Chromium asks for by
    itself, such as an icon, is the first run's.
    """

    def __init__(self) -> None:
        self._apps: dict[str, Wsgi] = {}
        self._numbers = itertools.count()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._server = HttpServer(self._answer, self._listener)
        self._thread = threading.Thread(target=self._server.serve, daemon=True)
        self._thread.start()

    def _answer(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        number = environ.get(f"HTTP_{RUN}", next(iter(self._apps)))
        return self._apps[number](environ, start)

    @contextmanager
    def served(self, run: Run, baseline: Run | None = None) -> Iterator[str]:
        """Address of the run's page for `opened`."""
        number = str(next(self._numbers))
        self._apps[number] = make_app(run, baseline).server
        try:
            yield f"http://127.0.0.1:{self._listener.getsockname()[1]}#{number}"
        finally:
            del self._apps[number]

    def close(self) -> None:
        """Stop answering."""
        self._server.stop()
        self._thread.join()
        self._listener.close()


@pytest.fixture(scope="session")
def pages() -> Iterator[Pages]:
    made = Pages()
    yield made
    made.close()


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("runs") / "demo"
    return open_run(write_run(path, ranks=2, threads=2, steps=8, ops=60, step_ns=10_000_000))


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path: Path = tmp_path_factory.mktemp("runs") / "other"
    return open_run(
        write_run(path, ranks=2, threads=2, steps=8, ops=60, step_ns=10_000_000, gradient_scale=1.5)
    )


@pytest.fixture(scope="session")
def address(pages: Pages, run: Run) -> Iterator[str]:
    with pages.served(run) as address:
        yield address


@pytest.fixture
def serve(pages: Pages) -> Iterator[Server]:
    """Serves runs of one test (arguments of `served`) until its pages are closed."""
    with ExitStack() as stack:
        yield lambda *runs: stack.enter_context(pages.served(*runs))


@pytest.fixture
def opened(context: BrowserContext, address: str, serve: Server) -> Iterator[Opener]:
    """Opens pages; at the end none of them may have complained or asked anyone else.

    Depends on `serve` so that a page never outlives its server: it would complain about that.
    """
    pages: list[LanePage] = []

    def open(
        path: str = "/timeline",
        *,
        at: str = "",
        theme: Literal["light", "dark"] = "light",
        width: int = 1280,
        height: int = 800,
    ) -> LanePage:
        page = LanePage(context, at or address, theme, width, height)
        pages.append(page)
        page.go(path)
        return page

    yield open
    for page in pages:
        page.close()


class SharedTab:
    """One tab for tests that change nothing but what an address holds.

    Loading a page takes most of a test's time, showing another address nearly none. A tab whose
    something else was left is replaced.
    """

    def __init__(self, context: BrowserContext, address: str) -> None:
        self._open = lambda: LanePage(context, address, "light")
        self._page: LanePage | None = None
        self._new: dict[str, Any] = {}

    def __call__(
        self, path: str = "/timeline", *, width: int = 1280, height: int = 800
    ) -> LanePage:
        """The tab, with another address in it, in this size."""
        if self._page is not None:
            self._page.page.set_viewport_size(ViewportSize(width=1280, height=800))
            self._page.page.mouse.move(5, 5)
            self._page.press("Escape", "Escape")
            self._rest()
            now = self._left()
            if now != self._new:
                self.close()
                self._page = None
        if self._page is None:
            self._page = self._open()
            self._page.go("/timeline")
            self._rest()
            self._new = self._left()
        self._page.requests.clear()
        self._page.page.set_viewport_size(ViewportSize(width=width, height=height))
        if path == "/timeline":
            self._page.idle()
        else:
            self._page.visit(path)
        return self._page

    def _rest(self) -> None:
        """Show the whole run, whatever is shown."""
        assert self._page is not None
        duration = self._page.state["viewport"]["duration"]
        self._page.visit(f"/timeline?t=0-{duration:.0f}")

    def _left(self) -> dict[str, Any]:
        """What is to be seen, but for what changes by itself."""
        assert self._page is not None
        state = self._page.state
        names = (
            "viewport",
            "canvas",
            "lanes",
            "layout",
            "selection",
            "range",
            "query",
            "hits",
            "arrangement",
            "arrows",
            "flows",
            "overlaps",
        )
        dialogs = self._page.page.locator("dialog[open]").count()
        kept = self._page.page.evaluate(
            """[document.documentElement.dataset.theme, Object.entries(localStorage).sort(),
            document.querySelector("#dock-tabs [aria-selected=true]")?.textContent,
            location.search.replace(/^\\?t=[^&]*/, "")]  // the window is in `viewport`"""
        )
        return {name: state[name] for name in names} | {"dialogs": dialogs, "kept": kept}

    def close(self) -> None:
        """End the tab, if there is one; fails as `LanePage.close` does."""
        if self._page is not None:
            self._page.close()


@pytest.fixture(scope="package")
def tab(context: BrowserContext, address: str) -> Iterator[SharedTab]:
    made = SharedTab(context, address)
    yield made
    made.close()


@pytest.fixture(scope="package", params=[200_000, pytest.param(2_000_000, marks=pytest.mark.slow)])
def large(
    request: pytest.FixtureRequest, pages: Pages, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Address of a run of so many ops in 16 lanes.

    Its index is kept in a folder of its own, which other tests must not take for the user's cache.
    """
    path = generate(tmp_path_factory.mktemp("runs") / "large", request.param, 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with pages.served(open_run(path)) as address:
            yield address
