"""The browser that tests drive: the system's Chromium, with nothing that asks the net by itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, sync_playwright

from tests.support.needed import lacking

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--renderer-process-limit=1",  # a new tab takes a fifth less where a process for it is there
)


def executable() -> str:
    """Path of the browser. Without one the test is skipped, or fails where one is required."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        reason = f"no browser: none of {', '.join(NAMES)} is on the PATH"
        lacking(reason, "LANESCOPE_REQUIRE_BROWSER")
    return found


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser whose contexts know nothing of each other."""
    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def remembering(profile: Path) -> Iterator[BrowserContext]:
    """A browser with a profile on disk: only there is it kept what was compiled of the page's
    scripts, several MB, without which each page takes half as long again."""
    path = executable()
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(profile), executable_path=path, args=list(FLAGS)
        )
        try:  # its first tab stays, and with it the process that draws all tabs
            yield context
        finally:
            context.close()
