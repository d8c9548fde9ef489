"""What tests of several folders share."""

from __future__ import annotations

import atexit
import gc
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.processes import heed_interrupts

pytest_plugins = ["tests.support.accounting"]

if TYPE_CHECKING:
    from flask.testing import FlaskClient
    from playwright.sync_api import BrowserContext

    from lanescope.webapp.runs.run import Run


def pytest_configure() -> None:
    """Lets programs that tests start be interrupted, and collects no garbage of imports."""
    heed_interrupts()
    gc.disable()


def pytest_collection_finish() -> None:
    """Collects garbage of the tests alone: what was imported stays, and is a million objects."""
    gc.freeze()
    gc.enable()
    # The interpreter ends as without that: bindings report objects that are left as leaks. Not
    # before: pytest collects garbage at its end, twice.
    atexit.register(gc.unfreeze)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker gets whole files, and one worker all files of the browser: it is started once.

    The faults share nothing, and are given out one by one."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            found = super()._split_scope(nodeid)
            if found.startswith("tests/faults/"):
                return nodeid
            return "browser" if found.startswith(("tests/browser/", "tests/js/")) else found

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    """One browser per process: a second Playwright cannot start beside the first."""
    from tests.support.chromium import remembering  # other tests do not need Playwright to be there

    with remembering(tmp_path_factory.mktemp("profile")) as context:
        yield context


@pytest.fixture(scope="session", autouse=True)
def engine() -> Path | None:
    """The native engine's library, built before any test records; None without a compiler."""
    from lanescope.collector.engines import build, built_libraries

    return build.ensure(again=True) if built_libraries.find_compiler() else None


@pytest.fixture(scope="session")
def native(engine: Path | None) -> Path:
    """The same, for tests that need it."""
    if engine is None:
        pytest.skip("there is no C++ compiler")
    return engine


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small made-up run of two ranks with two threads each, to be read and not written."""
    from lanescope.webapp.runs.run import open_run
    from tests.support.synthetic import write_run

    path = tmp_path_factory.mktemp("runs") / "one"
    return open_run(write_run(path, ranks=2, threads=2, steps=3, ops=20))


@pytest.fixture(scope="session")
def client(run: Run) -> Iterator[FlaskClient]:
    """Asks the server of `run`, without a socket."""
    from lanescope.webapp.server.server import make_app

    with make_app(run).server.test_client() as client:
        yield client


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up run with notes, the source of `bundle`."""
    from tests.support.bundled import noted_run

    return noted_run(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def its_bundle(whole: Path) -> Path:
    """The bundle of `whole`, to be read and not written."""
    from tests.support.bundled import packed

    return packed(whole)


@pytest.fixture
def bundle(its_bundle: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoiled."""
    return Path(shutil.copy(its_bundle, tmp_path))
