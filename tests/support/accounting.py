"""Counts the processor time that tests take, with all processes that they start.

A pytest plugin. At the end of a run it prints the sum by area (pure, recorded, ranks, browser) of
the tests that `make test` runs, and of those marked `slow` where they ran as well. In CI it prints
also the 30 tests and the 30 files that took the most; SLOWEST=100 prints 100 of each anywhere.
Processor time does not change with what else the machine does, and nearly all of a recorded test's
is spent in other processes.
"""

from __future__ import annotations

import os
import resource
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import forked

SLOWEST = int(os.environ.get("SLOWEST", "30" if "CI" in os.environ else "0"))
_STARTING = {
    "tests.support.recording",
    "tests.support.processes",
    "tests.faults.judge",
    "subprocess",
}
AREAS = ("pure", "recorded", "ranks", "browser")
_KEY = "processor_s"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def processor_s() -> float:
    """Processor seconds of this process and all below it, ended (and waited for) or alive.

    Of the fork server, which works for others too, what it did for this process.
    """
    used = sum(_seconds(resource.getrusage(who)) for who in _OWN)
    server, forked_s = forked()
    others = (pid for pid in _children(os.getpid()) if pid != server)
    return used + forked_s + sum(map(_alive_s, others))


_OWN = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def _seconds(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def _children(pid: int) -> Iterator[int]:
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            yield from map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    except OSError:  # it ended meanwhile, or this system does not say
        return


def _alive_s(pid: int) -> float:
    """Of a process with its children: those it has waited for are in its own figures."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) * _TICK_S + sum(map(_alive_s, _children(pid)))


def area_of(item: pytest.Item) -> str:
    """By what a test starts: a browser, several ranks, a program, or nothing."""
    if "context" in getattr(item, "fixturenames", ()) or item.get_closest_marker("browser"):
        return "browser"
    if item.get_closest_marker("torchrun"):
        return "ranks"
    used = vars(getattr(item, "module", object)).values()
    from_there = (getattr(one, "__module__", getattr(one, "__name__", "")) for one in used)
    return "recorded" if _STARTING.intersection(map(str, from_there)) else "pure"


class Accounts:
    """Adds up what each test took, also over the workers of xdist."""

    def __init__(self) -> None:
        self._last_s = 0.0  # the first test also takes what its process took to start
        self._by_area: defaultdict[tuple[str, bool], float] = defaultdict(float)
        self._by_test: defaultdict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Write the time since the last one into a test's last report.

        Of a browser's test into each: the process of its tab ends with it, and is forgotten.
        """
        report = yield
        if report.when != "teardown" and area_of(item) != "browser":
            return report
        now = processor_s()
        kind = (area_of(item), item.get_closest_marker("slow") is not None)
        report.user_properties.append((_KEY, (*kind, max(0.0, now - self._last_s))))
        self._last_s = max(now, self._last_s)  # a process may end that nothing waits for
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Read it again, in the process that prints."""
        for area, slow, seconds in (found for key, found in report.user_properties if key == _KEY):
            self._by_area[area, slow] += seconds
            self._by_test[report.nodeid] += seconds

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say it."""
        write = terminalreporter.write_line
        terminalreporter.section("processor time")
        for slow in sorted({slow for _, slow in self._by_area}):
            taken = [self._by_area[area, slow] for area in AREAS]
            for area, seconds in zip((*AREAS, "in all"), (*taken, sum(taken)), strict=True):
                write(f"{seconds:8.1f} s  {area}{', slow' if slow else ''}")
        by_file: defaultdict[str, float] = defaultdict(float)
        for name, seconds in self._by_test.items():
            by_file[name.partition("::")[0]] += seconds
        for what, taken in (("tests", self._by_test), ("files", by_file)) if SLOWEST else ():
            terminalreporter.section(f"the {SLOWEST} {what} that took the most")
            for name, seconds in sorted(taken.items(), key=lambda one: -one[1])[:SLOWEST]:
                write(f"{seconds:8.1f} s  {name}")


def pytest_configure(config: pytest.Config) -> None:
    """In the process that prints, and in each worker."""
    config.pluginmanager.register(Accounts())
