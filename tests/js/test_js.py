"""Runs every *.test.js of this folder inside Chromium, against the modules that are shipped."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page, Route

from lanescope import assets

HERE = Path(__file__).parent
ORIGIN = "http://lanescope.test"
FOLDERS = {"assets": assets.FOLDER, "js": HERE, "fixtures": HERE.parent / "fixtures"}
FILES = sorted(HERE.rglob("*.test.js"))

pytestmark = pytest.mark.browser


def serve(route: Route) -> None:
    """Answers from the source tree: no server, nothing leaves the process."""
    path = urlsplit(route.request.url).path.strip("/")
    top, _, rest = path.partition("/")
    file = FOLDERS.get(top, HERE) / rest
    if path == "":
        route.fulfill(body="<!DOCTYPE html><title>tests</title>", content_type="text/html")
    elif top in FOLDERS and file.is_file():
        kind = "text/javascript" if file.suffix == ".js" else mimetypes.guess_type(file.name)[0]
        route.fulfill(body=file.read_bytes(), content_type=kind or "application/octet-stream")
    else:
        route.fulfill(status=404, body="")


@pytest.fixture(scope="module")
def page(context: BrowserContext) -> Iterator[Page]:
    page = context.new_page()
    page.route("**/*", serve)
    yield page
    page.close()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(HERE).as_posix())
def test_modules(page: Page, file: Path) -> None:
    page.goto(f"{ORIGIN}/")
    results = page.evaluate(
        "file => import('/js/harness.js').then(h => h.report(file))",
        f"/js/{file.relative_to(HERE).as_posix()}",
    )
    assert results, f"{file.name} holds no tests"
    failed = [f"{one['name']}: {one['error']}" for one in results if one["error"]]
    assert not failed, "\n\n".join(failed)


def test_every_module_has_a_short_file() -> None:
    long = {
        path.name: lines
        for path in (assets.FOLDER / "timeline").rglob("*.js")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert long == {}
