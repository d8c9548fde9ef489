"""What tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator
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
