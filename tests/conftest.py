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


@pytest.fixture(scope="session")
def native() -> Path:
    """The native engine's library, built if it is not there yet."""
    from lanescope.collector.engines import build

    if build.find_compiler() is None:
        pytest.skip("there is no C++ compiler")
    return build.ensure(again=True)
