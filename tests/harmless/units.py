"""What is run: each unit in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from . import packages
from .packages import BUILD

CPYTHON = (
    "asyncgen",
    "asyncio",
    "atexit",
    "bdb",
    "bufio",
    "class",
    "code",
    "concurrent_futures",
    "context",
    "contextlib",
    "contextlib_async",
    "copy",
    "copyreg",
    "coroutines",
    "cprofile",
    "ctypes",
    "descr",
    "doctest",
    "eintr",
    "epoll",
    "exceptions",
    "faulthandler",
    "fcntl",
    "file",
    "fileio",
    "fork1",
    "frame",
    "functools",
    "gc",
    "generators",
    "httpservers",
    "inspect",
    "io",
    "largefile",
    "linecache",
    "logging",
    "memoryio",
    "mmap",
    "multiprocessing_fork",
    "multiprocessing_forkserver",
    "multiprocessing_main_handling",
    "multiprocessing_spawn",
    "openpty",
    "os",
    "pathlib",
    "pickle",
    "pickletools",
    "pkgutil",
    "poll",
    "popen",
    "posix",
    "profile",
    "pty",
    "queue",
    "reprlib",
    "resource",
    "runpy",
    "sched",
    "select",
    "selectors",
    "shelve",
    "shutil",
    "signal",
    "site",
    "socket",
    "socketserver",
    "subprocess",
    "super",
    "support",
    "sys",
    "sys_setprofile",
    "sys_settrace",
    "tempfile",
    "thread",
    "threadedtempfile",
    "threading",
    "threading_local",
    "threadsignals",
    "timeout",
    "trace",
    "traceback",
    "tracemalloc",
    "types",
    "typing",
    "wait3",
    "wait4",
    "warnings",
    "weakref",
    "weakset",
    "with",
    "xmlrpc",
)
"""Test modules of CPython, without `test_`. Each module of a package of tests is a unit."""


SHARDS = {
    "concurrent_futures": {
        "threads": r"\.(?!ProcessPool)\w+\.\w+$",
        "fork": r"\.ProcessPoolFork(?!server)\w+\.\w+$",
        "forkserver": r"\.ProcessPoolForkserver\w+\.\w+$",
        "spawn": r"\.ProcessPoolSpawn\w+\.\w+$",
    },
} | {
    f"multiprocessing_{method}": {
        "processes": r"\.WithProcesses\w+\.\w+$",
        "threads": r"\.WithThreads\w+\.\w+$",
        "manager": r"\.WithManager\w+\.\w+$",
        "misc": r"\.(?!With(Processes|Threads|Manager))\w+\.\w+$",
    }
    for method in ("fork", "forkserver", "spawn")
}
"""Modules too long for one process -> the units they make, by patterns of test names."""
SHARDS["socket"] = {"": r"\.(?!ThreadedVSOCK)\w+\.\w+$"}
"""Sockets between a virtual machine and its host: in some machines the test waits for ever."""


@dataclass(frozen=True)
class Unit:
    """Tests that share a process. `name` is the suite's and the unit's, as in `cpython.queue`."""

    name: str
    kind: str  # unittest or pytest
    names: tuple[str, ...]  # modules for unittest, arguments for pytest
    pattern: str = ""  # of the names of the tests that are run, as in re.search
    folder: Path | None = None  # the current folder; else one of its own
    path: tuple[Path, ...] = ()  # for PYTHONPATH
    environment: tuple[tuple[str, str], ...] = ()
    missing: str = ""  # why it cannot be run
    package: str = ""  # whose source distribution is needed

    @property
    def suite(self) -> str:
        """The project whose tests these are."""
        return self.name.partition(".")[0]


def all_units() -> list[Unit]:
    """Every unit, in the order in which they are run."""
    return [*(unit for name in CPYTHON for unit in _cpython(name)), *_packages()]


def chosen_units(names: list[str]) -> list[Unit]:
    """The units of the given names, each the whole name or without the suite's, or a suite.

    Raises ValueError for a name without a unit.
    """
    found = all_units()
    if not names:
        return found
    for name in names:
        if not any(_is_called(unit, name) for unit in found):
            raise ValueError(f"no unit or suite is called {name}; --list lists them")
    return [unit for unit in found if any(_is_called(unit, name) for name in names)]


def _is_called(unit: Unit, name: str) -> bool:
    own = unit.name
    return f"{own}.".startswith(f"{name}.") or f"{own}.".startswith(f"{unit.suite}.{name}.")


def _cpython(name: str) -> Iterator[Unit]:
    for folder in _test_folders():
        path = folder / f"test_{name}"
        if path.with_suffix(".py").exists():
            for shard, pattern in SHARDS.get(name, {"": ""}).items():
                own = f"cpython.{name}.{shard}".rstrip(".")
                yield Unit(own, "unittest", (f"test.test_{name}",), pattern)
            return
        if path.is_dir():
            for module in sorted(path.glob("test_*.py")):
                yield Unit(
                    f"cpython.{name}.{module.stem.removeprefix('test_')}",
                    "unittest",
                    (f"test.test_{name}.{module.stem}",),
                )
            return
    missing = f"{sys.executable} came without test_{name}"
    yield Unit(f"cpython.{name}", "unittest", (), missing=missing)


def _packages() -> Iterator[Unit]:
    for name, module in packages.SUITES_BY_UNITTEST.items():
        environment = packages.DISTRIBUTED if name == "torch.distributed" else ()
        path = (packages.SUITES,)
        yield Unit(name, "unittest", (module,), path=path, environment=environment)
    for suite in packages.SUITES_BY_PYTEST:
        plugins = tuple(part for plugin in suite.plugins for part in ("-p", plugin))
        environment = (("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1"), *suite.environment)
        yield Unit(
            suite.name,
            "pytest",
            (*plugins, *suite.arguments),
            environment=environment,
            package=suite.source,
        )


def prepared(unit: Unit) -> Unit:
    """The unit with what its tests need: fetched now, where it is not there yet."""
    if unit.suite == "cpython" or unit.missing:
        return unit
    try:
        unit = replace(unit, path=(*unit.path, packages.needed()))
        if unit.package:
            place = packages.source(unit.package)
            pinned = (place,) if unit.package in packages.PINNED else ()
            unit = replace(unit, folder=place, path=(*unit.path, *pinned))
    except packages.MissingError as error:
        return replace(unit, missing=str(error))
    return unit


def _test_folders() -> list[Path]:
    spec = importlib.util.find_spec("test")
    own = list(spec.submodule_search_locations or ()) if spec else []
    return [Path(place) for place in own] + [place for place in [testsuite()] if place]


@cache
def testsuite() -> Path | None:
    """Where Debian's package with CPython's tests of this version is, fetched if need be.

    An interpreter may come without some of its tests, as 3.11.7 does of those of multiprocessing.
    """
    version = "python{}.{}".format(*sys.version_info)
    for root in (Path("/"), BUILD / "testsuite"):
        place = root / "usr" / "lib" / version / "test"
        if (place / "test_threading.py").exists():
            return place
    target = BUILD / "testsuite"
    target.mkdir(parents=True, exist_ok=True)
    package = f"lib{version}-testsuite"
    if _run(["apt-get", "download", "-qq", package], target):
        for archive in target.glob(f"{package}*.deb"):
            if _run(["dpkg-deb", "--extract", str(archive), "."], target):
                return target / "usr" / "lib" / version / "test"
    return None


def _run(command: list[str], folder: Path) -> bool:
    try:
        return not subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode
    except OSError:  # no such command: not a Debian
        return False
