"""A browser and the page of a run, served as `lanescope view` serves it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from werkzeug.serving import make_server

from lanescope.webapp.commands.view import Quiet
from lanescope.webapp.run import Run, open_run
from lanescope.webapp.server import make_app
from tests.browser.page import LanePage
from tests.chromium import launched
from tests.synthetic import write_run

Opener = Callable[..., LanePage]


@contextmanager
def served(run: Run, baseline: Run | None = None) -> Iterator[str]:
    """Address of the run's page, without the slash at its end."""
    app = make_app(run, baseline)
    server = make_server("127.0.0.1", 0, app.server, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


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
def address(run: Run) -> Iterator[str]:
    with served(run) as address:
        yield address


@pytest.fixture
def opened(browser: Browser, address: str) -> Iterator[Opener]:
    """Opens pages; at the end none of them may have complained or asked anyone else."""
    pages: list[LanePage] = []

    def open(path: str = "/", *, at: str = "", theme: str = "light", **size: int) -> LanePage:
        page = LanePage(browser, at or address, theme, **size)
        pages.append(page)
        page.go(path)
        return page

    yield open
    for page in pages:
        page.close()
