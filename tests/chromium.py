"""The browser that tests drive: the system's Chromium, with nothing that asks the net by itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
)


def executable() -> str:
    """Path of the browser. Without one the test is skipped, or fails where one is required."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        reason = f"no browser: none of {', '.join(NAMES)} is on the PATH"
        if os.environ.get("LANESCOPE_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@contextmanager
def launched() -> Iterator[Browser]:
    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()
