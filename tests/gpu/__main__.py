"""Runs all checks and measurements that need a GPU, and prints a table.

    python -m tests.gpu                                  # make gpu

Exits 0 if all is well, 1 if something failed or was not run, and 2 without a GPU. The table is also
in build/gpu.md.
"""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import TimeoutExpired

import torch

from benchmarks.run import machine
from lanescope.collector.engines import build
from tests.gpu.checks import CHECKS
from tests.gpu.costs import cost
from tests.support import ROOT
from tests.support.processes import run_program

LIMIT_S = 8 * 60
REPORT = ROOT / "build" / "gpu.md"
TESTS = (
    "tests/collector/hooks/devices/test_device.py"
    "::test_kernels_of_a_gpu_are_tied_to_the_operators_that_launched_them",
    "tests/collector/hooks/devices/test_cuda_contexts.py::test_a_forked_child_that_uses_the_device",
    "tests/webapp/plugins/races/test_stream_races.py::test_streams_of_a_gpu",
)
"""Tests marked `needs_gpu`."""

Row = tuple[str, str, str]
"""What, how it ended, figures."""


def missing() -> str | None:
    """Says in one sentence why no GPU can be used; None where one can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no NVIDIA GPU with a working driver"
    return None


def run_tests(folder: Path, left: float) -> list[Row]:
    """Runs the tests; one that was skipped has failed."""
    report = folder / "tests.xml"
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *TESTS]
    done = run_program(command, folder=ROOT, timeout=left)
    if not report.is_file():
        return [("tests", "FAILED", done.stdout[-300:] + done.stderr[-300:])]
    rows = []
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = [one for kind in ("failure", "error", "skipped") for one in case.iter(kind)]
        said = f"{wrong[0].tag}: {wrong[0].get('message', '')}" if wrong else ""
        rows.append((case.get("name", "?"), "FAILED" if wrong else "ok", said))
    if len(rows) != len(TESTS):
        rows.append(("tests", "FAILED", f"{len(rows)} of {len(TESTS)} tests ran"))
    return rows


def one(name: str, work: Callable[[], list[tuple[str, str]]]) -> list[Row]:
    """Runs a check or measurement; what it raises becomes its row."""
    try:
        return [(what, "ok", figures) for what, figures in work()]
    except TimeoutExpired as error:
        return [(name, "FAILED", f"a program did not end within {error.timeout:.0f} s")]
    except Exception as error:
        lines = traceback.format_exception_only(error)
        return [(name, "FAILED", " ".join("".join(lines).split())[:600])]


def every(folder: Path) -> list[Row]:
    """Runs all, as far as the time allows; names what it did not run."""
    began = time.monotonic()
    build.ensure()

    def left() -> float:
        return LIMIT_S - (time.monotonic() - began)

    parts: list[tuple[str, Callable[[], list[Row]]]] = [
        (check.__name__, lambda check=check: one(check.__name__, lambda: _checked(check, folder)))
        for check in CHECKS
    ]
    parts.append(("tests", lambda: run_tests(folder, max(1.0, left()))))
    parts += [
        (program, lambda program=program: one(program, lambda: cost(program, folder)))
        for program in ("steps", "small_ops")
    ]
    rows: list[Row] = []
    for name, part in parts:
        late = left() <= 0
        found = [(name, "NOT RUN", f"{LIMIT_S} s were over")] if late else part()
        for row in found:
            print("  ".join(row), flush=True)
        rows += found
    return rows


def _checked(check: Callable[[Path], str], folder: Path) -> list[tuple[str, str]]:
    return [(check.__name__, check(folder / check.__name__))]


def table(rows: Sequence[Row], seconds: float) -> str:
    """Returns the report in Markdown."""
    device = torch.cuda.get_device_properties(0)
    head = f"{device.name}, CUDA {torch.version.cuda}\n{machine()}\n\n{seconds:.0f} s in all\n"
    lines = ["| what | how | figures |", "|---|---|---|"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return head + "\n" + "\n".join(lines) + "\n"


def main() -> int:
    """Runs all; 0 if all is well, 1 if something is not, 2 without a GPU."""
    reason = missing()
    if reason is not None:
        print(f"make gpu: {reason}, expected one NVIDIA GPU and a torch for it: nothing was run")
        return 2
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        rows = every(Path(folder))
    report = table(rows, time.monotonic() - began)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(report)
    print(f"\n{report}")
    return int(any(how != "ok" for _, how, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
