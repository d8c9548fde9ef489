"""How many elements the pages hold: as few with 1,024 ranks as fit a browser that stays fluid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.generate_job import generate_job
from lanescope.webapp.analysis.plugin import load, pages
from lanescope.webapp.runs.run import open_run
from tests.browser.conftest import Opener, Server
from tests.support.page import LanePage
from tests.support.synthetic import write_run

MOST_ELEMENTS = 3_000
PATIENCE_MS = 600_000  # all questions are asked of all ranks


def four(path: Path) -> Path:
    return write_run(path, ranks=4, steps=8, ops=60)


def many(path: Path) -> Path:
    return generate_job(path, 1024, threads=2, steps=2, processes=1)


def elements(page: LanePage) -> int:
    found: int = page.page.evaluate("document.querySelectorAll('*').length")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("write", [four, many])
def test_no_page_holds_too_many_elements(
    write: Callable[[Path], Path],
    opened: Opener,
    serve: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.support.page.TIMEOUT_MS", PATIENCE_MS)
    run = open_run(write(tmp_path / "run"))
    page = opened(at=serve(run))
    counts = {"timeline": elements(page)}
    for one in pages():
        if one.stays or (one.shown and not load(one.shown)(run)):
            continue
        page.visit(one.path)
        page.page.locator(".page h1").wait_for()
        counts[one.name] = elements(page)
    assert {"collectives", "hang", "threads", "gradients", "time"} <= counts.keys()
    assert {name: count for name, count in counts.items() if count > MOST_ELEMENTS} == {}
