"""Runs others' tests in this process, with torch imported first; writes each outcome to a file.

The driver starts it as a program. Children that multiprocessing spawns import it again, and torch
with it, as those of a training program do.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

torch.set_num_threads(1)
torch.ones(1).add(1)  # what runs no operator leaves no record
gc.freeze()  # tests collect garbage hundreds of times: all of torch need not be looked at again

_TESTSUITE = os.environ.get("HARMLESS_TESTSUITE")
"""A folder with the test modules that this interpreter came without."""

if _TESTSUITE:
    import test

    test.__path__.append(_TESTSUITE)


class Report:
    """Outcomes as lines of JSON. Holds no descriptor: tests close, count and replace them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._own = os.getpid()
        self._open, self._write, self._close = os.open, os.write, os.close
        self._pid = os.getpid

    def add(self, test: str, outcome: str | None) -> None:
        """Note that a test began (no outcome), or what came of it. Forked children stay silent."""
        if self._pid() != self._own:
            return
        line = json.dumps([test, outcome]) + "\n"
        file = self._open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        try:
            self._write(file, line.encode())
        finally:
            self._close(file)


class Outcomes(unittest.TestResult):
    """Reports what comes of each test; of subtests, each kind of outcome once."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report
        self._running = False
        self._found: set[str] = set()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._running, self._found = True, set()
        self._report.add(test.id(), None)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self._running = False
        worse = self._found - {"ok"}
        self._report.add(test.id(), ", ".join(sorted(worse or self._found)) or "no outcome")

    def _add(self, test: unittest.TestCase, outcome: str, error: Any = None) -> None:
        if error is not None:
            outcome = f"{outcome} {error[0].__name__}"
            text = self._exc_info_to_string(error, test)
            print(f"--- {test.id()}\n{text}", file=sys.__stderr__, flush=True)
        if self._running:
            self._found.add(outcome)
        else:  # the fixture of a class or a module
            self._report.add(test.id(), outcome)

    def addSuccess(self, test: unittest.TestCase) -> None:
        # Of what a test computed: samples of torch have it, see suites/torch_samples.py.
        self._add(test, f"ok {getattr(test, 'digest', '')}".rstrip())

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._add(test, "error", err)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._add(test, "fail", err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._add(test, "skip")

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._add(test, "expected failure")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._add(test, "unexpected success")

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            failed = issubclass(err[0], test.failureException)
            self._add(test, "fail" if failed else "error", err)


def tests_of(suite: unittest.TestSuite | unittest.TestCase) -> Iterator[unittest.TestCase]:
    """The tests of a suite and of those within it, in their order."""
    if isinstance(suite, unittest.TestCase):
        yield suite
        return
    for one in suite:
        yield from tests_of(one)


class Chosen:
    """Which tests are run: by a pattern, or by name; never those that are done."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._only, self._done = set(asked["only"]), set(asked["done"])
        self._pattern = re.compile(asked["pattern"])

    def __contains__(self, test: str) -> bool:
        if test in self._done:
            return False
        return test in self._only if self._only else bool(self._pattern.search(test))


def run_unittest(report: Report, names: list[str], chosen: Chosen) -> None:
    """Run the tests of modules as CPython's own runner does without any resources."""
    from test import support

    support.use_resources = ["subprocess"]
    support.record_original_stdout(sys.stdout)
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    tests = [one for one in tests_of(suite) if one.id() in chosen]
    unittest.TestSuite(tests).run(Outcomes(report))


class Plugin:
    """Reports what comes of pytest's tests: the worst of set-up, call and tear-down."""

    def __init__(self, report: Report, chosen: Chosen) -> None:
        self._report, self._chosen = report, chosen
        self._found: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [one for one in items if one.nodeid in self._chosen]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._report.add(report.nodeid or "collection", "error while collecting")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._found = []
        self._report.add(nodeid, None)

    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        if report.when in ("setup", "call", "teardown"):
            self._found.append(f"{report.when} failed {call.excinfo.typename}")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if hasattr(report, "wasxfail"):
            self._found.append("expected failure" if report.skipped else "unexpected success")
        elif report.skipped:
            self._found.append("skip")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._report.add(nodeid, ", ".join(self._found) or "ok")


def run_pytest(report: Report, arguments: list[str], chosen: Chosen) -> None:
    """Run tests by pytest, with no settings but the given ones."""
    import pytest

    own = ["-q", "--tb=short", "--continue-on-collection-errors", "-p", "no:cacheprovider"]
    pytest.main([*own, *arguments], plugins=[Plugin(report, chosen)])


def main(request: str) -> None:
    """Do what the file `request` says."""
    sys.path.remove(str(Path(__file__).parent))
    asked = json.loads(Path(request).read_text())
    run = {"unittest": run_unittest, "pytest": run_pytest}[asked["kind"]]
    run(Report(asked["report"]), asked["names"], Chosen(asked))


if __name__ == "__main__":
    main(sys.argv[1])
