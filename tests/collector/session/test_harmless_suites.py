"""Others' tests as judge: the driver of `make harmless`, and a small part of what it runs."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.harmless.accepted import Accepted
from tests.harmless.differences import Difference, differences
from tests.harmless.page import PAGE, with_accepted
from tests.harmless.processes import END, PLAIN, Result, run
from tests.harmless.table import Compared, summary
from tests.harmless.units import Unit, all_units, chosen_units
from tests.support.recording import OBSERVERS

QUICK = (
    "test.test_asyncio.test_base_events.BaseEventLoopWithSelectorTests.test_call_coroutine",
    "test.test_asyncio.test_events.HandleTests",
    "test.test_context",
    "test.test_copy",
    "test.test_queue.CFailingQueueTest",
    "test.test_queue.CSimpleQueueTest",
    "test.test_sys_setprofile",
    "test.test_thread.LockTests",
    "test.test_thread.ThreadRunningTests",
    "test.test_threading.BoundedSemaphoreTests",
    "test.test_threading.EventTests",
    "test.test_threading.ThreadTests.test_import_from_another_thread",
    "test.test_threading_local",
)
"""Tests of CPython that take little time; those that once differed are among them."""


@pytest.mark.slow
@pytest.mark.parametrize("observer", OBSERVERS)
def test_tests_of_cpython_come_out_the_same(
    observer: str, tmp_path: Path, quick: Result, native: Path
) -> None:
    log = tmp_path / "log"
    unit = Unit("cpython.quick", "unittest", QUICK)
    recorded = run(unit, observer, log)
    assert (recorded.processes, recorded.recorder_errors) == (1, 0)
    found = differences(unit, quick, recorded, observer, log)
    compared = Compared(unit, observer, quick, recorded, found)
    assert not compared.unlisted, f"{summary([compared])}\n{log.read_text()}"


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """What the tests of `QUICK` give where nothing records them."""
    assert not [unit.missing for unit in chosen_units(["threading"]) if unit.missing]
    plain = run(
        Unit("cpython.quick", "unittest", QUICK), PLAIN, tmp_path_factory.mktemp("plain") / "log"
    )
    assert sum(outcome == "ok" for outcome in plain.outcomes.values()) > 100
    return plain


CRASHING = """
    import os, unittest

    class Tests(unittest.TestCase):
        def test_a(self):
            for number in range(3):
                with self.subTest(number=number):
                    self.assertNotEqual(number, 1)
        def test_b(self):
            os.abort()
        def test_c(self):
            pid = os.fork()  # a child that goes on with the tests after this one reports nothing
            if pid:
                self.assertEqual(os.waitpid(pid, 0)[1], 0)
        def test_d(self):
            raise unittest.SkipTest("no reason")
        @unittest.expectedFailure
        def test_e(self):
            os.closerange(3, 100)
            raise KeyError
"""


@pytest.mark.slow
def test_what_comes_after_a_crash_is_run(tmp_path: Path) -> None:
    (tmp_path / "crashing.py").write_text(textwrap.dedent(CRASHING))
    unit = Unit("crashing", "unittest", ("crashing",), path=(tmp_path,))
    outcomes = run(unit, PLAIN, tmp_path / "log").outcomes
    assert {test.rpartition(".")[2]: outcome for test, outcome in outcomes.items()} == {
        "test_a": "fail AssertionError",
        "test_b": "killed by SIGABRT",
        "test_c": "ok",
        "test_d": "skip",
        "test_e": "expected failure",
        END: "exit status 0",
    }


def test_a_difference_that_chance_has_a_part_in_is_called_unsteady() -> None:
    def unsteady(plain: str, recorded: str) -> bool:
        return Difference("t", "native", plain.split(), recorded.split()).unsteady

    assert not unsteady("ok ok ok ok", "fail fail fail fail")
    assert not unsteady("ok ok ok ok", "fail ok fail ok")
    assert unsteady("ok ok ok ok", "fail ok ok ok")
    assert unsteady("ok fail ok ok", "fail fail fail fail")


def test_only_the_listed_difference_is_accepted() -> None:
    entry = Accepted(("test_a.*",), "fail *", "because", engines=("native",))
    assert entry.covers(Difference("test_a.b", "native", ["ok"] * 2, ["fail ValueError", "ok"]))
    assert not entry.covers(Difference("test_a.b", "portable", ["ok"], ["fail ValueError"]))
    assert not entry.covers(Difference("test_a.b", "native", ["ok"], ["killed by SIGSEGV"]))
    assert not entry.covers(Difference("test_c.b", "native", ["ok"], ["fail ValueError"]))


def test_units_are_found_by_name_and_by_suite() -> None:
    names = [unit.name for unit in all_units()]
    assert len(set(names)) == len(names)
    assert {unit.suite for unit in chosen_units(["numpy", "queue"])} == {"numpy", "cpython"}
    assert [unit.name for unit in chosen_units(["torch.modules"])] == ["torch.modules"]
    with pytest.raises(ValueError, match="no unit or suite is called thread_"):
        chosen_units(["thread_"])


def test_the_docs_list_every_accepted_difference() -> None:
    page = PAGE.read_text()
    assert page == with_accepted(page), "run: python -m tests.harmless --stored --docs"
