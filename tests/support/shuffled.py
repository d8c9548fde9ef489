"""Runs files, and the tests within each, in an order by chance: `pytest -p tests.support.shuffled`.

A pytest plugin. The order is that of a seed, which is printed; ORDER=seed repeats it.
"""

from __future__ import annotations

import os
import random

import pytest

SEED = os.environ.setdefault("ORDER", str(random.SystemRandom().randrange(10**6)))
"""In the environment, so that all workers of xdist, which compare their orders, have the same."""


def pytest_report_header() -> str:
    """Say how to have this order again."""
    return f"order of tests: ORDER={SEED}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle; fixtures of a module are still set up once."""
    chance = random.Random(SEED)
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    order = list(files.values())
    chance.shuffle(order)
    for tests in order:
        chance.shuffle(tests)
    items[:] = [item for tests in order for item in tests]
