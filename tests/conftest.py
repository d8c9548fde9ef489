"""What tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser per process: a second Playwright cannot start beside the first."""
    from tests.chromium import launched  # other tests do not need Playwright to be there

    with launched() as browser:
        yield browser


@pytest.fixture(scope="session", autouse=True)
def engine() -> Path | None:
    """The native engine's library, built before any test records; None without a compiler."""
    from lanescope.collector.engines import build

    return build.ensure(again=True) if build.find_compiler() else None


@pytest.fixture(scope="session")
def native(engine: Path | None) -> Path:
    """The same, for tests that need it."""
    if engine is None:
        pytest.skip("there is no C++ compiler")
    return engine
