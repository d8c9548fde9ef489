"""The `lanescope` command: info, check, view, and how commands are found."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from lanescope.collector.format import schema
from lanescope.webapp import cli
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import open_run
from tests.support.processes import first_line, started
from tests.support.synthetic import START_NS, Builder, write_run


def called(*arguments: str | Path, status: int = 0) -> str:
    result = CliRunner().invoke(cli.main, [str(a) for a in arguments])
    assert result.exit_code == status, result.output
    return result.stdout


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", ranks=2, threads=2, steps=3, ops=8)


def test_info_as_json(run: Path) -> None:
    found: dict[str, Any] = json.loads(called("info", run, "--json"))
    size = sum(f.stat().st_size for f in run.rglob("*.parquet"))
    assert found == {
        "format": schema.FORMAT_VERSION,
        "run": str(run),
        "world_size": 2,
        "ranks": [0, 1],
        "threads": 4,
        "steps": 3,
        "duration_ns": 3_351_020,
        "events": {
            "op": 96,
            "collective": 6,
            "phase": 48,
            "gradient": 24,
            "sync": 8,
            "value": 6,
        },
        "dropped": 0,
        "complete": True,
        "clock": {"calibrated": True, "uncertainty_ns": 0},
        "engine": "portable",
        "size_bytes": size,
        "missing_ranks": [],
        "warnings": [],
    }


def test_info_for_people(run: Path) -> None:
    found = called("info", run)
    assert found.splitlines()[0] == str(run)
    rows = {line.split()[0]: line.split()[1:] for line in found.splitlines() if line.strip()}
    assert rows["rank"] == [
        "threads",
        "steps",
        "op",
        "collective",
        "phase",
        "gradient",
        "sync",
        "value",
        "dropped",
    ]
    assert rows["0"] == ["2", "3", "48", "3", "24", "12", "4", "3", "0"]
    assert rows["all"] == ["4", "3", "96", "6", "48", "24", "8", "6", "0"]
    assert rows["length"] == ["3.35", "ms,", "3", "steps"]
    assert rows["command"] == ["python", "train.py"]


def test_info_sums_up_many_ranks_by_host(tmp_path: Path) -> None:
    builder = Builder(tmp_path, world_size=72)
    for rank in range(72):
        builder.process(rank, host=f"gpu-{rank // 8}", coverage={"dropped": 1})
        builder.op(START_NS, 1, rank=rank, thread=f"{1000 + rank}-0")
    lines = [line.split() for line in called("info", builder.write()).splitlines()]
    assert ["gpu-8,", "ranks", "64-71", *["8", "0", "8", "0", "0", "0", "0", "0", "8"]] in lines
    assert ["all", *["72", "0", "72", "0", "0", "0", "0", "0", "72"]] in lines
    assert sum(line[:1] == ["host"] or line[:1] == ["rank"] for line in lines) == 1


def test_info_names_the_clock_s_uncertainty(tmp_path: Path) -> None:
    builder = Builder(tmp_path, world_size=2)
    builder.process(0)
    builder.process(1, clock={"host": "b", "calibrated": False, "uncertainty_ns": 1_500_000})
    builder.op(START_NS, 1)
    builder.op(START_NS, 1, rank=1, thread="1001-0")
    path = builder.write()
    assert "not calibrated, within 1.50 ms" in called("info", path)
    clock = json.loads(called("info", path, "--json"))["clock"]
    assert clock == {"calibrated": False, "uncertainty_ns": 1_500_000}


def backward(path: Path, *slices: tuple[str, int, int]) -> Path:
    builder = Builder(path)
    for thread, start, duration in slices:
        builder.phase(START_NS + start, duration, thread=thread)
    return builder.write()


def test_check_passes_below_its_limit(tmp_path: Path) -> None:
    path = backward(tmp_path, ("1000-0", 0, 100), ("1000-1", 96, 104))
    found = json.loads(called("check", path, "--json"))
    assert found == {
        "run": str(path),
        "metrics": {
            "thread_overlap_rate": 0.02,
            "gradient_fluctuation": None,
            "graph_traceability": None,
            "memory_overhead": None,
            "comm_compute_overlap": {"0": None},
        },
        "checks": [{"name": "thread_overlap_rate", "value": 0.02, "limit": 0.05, "passed": True}],
        "findings": [],
        "source": [],
        "examined": found["examined"],
        "errors": [],
        "warnings": [],
    }
    assert {one["findings"] for one in found["examined"]} == {0}
    assert not any(one["question"].endswith("?") for one in found["examined"])
    assert "passed  thread_overlap_rate: 2 %, limit 5 %" in called("check", path)


def test_check_fails_at_its_limit(tmp_path: Path) -> None:
    path = backward(tmp_path / "run", ("1000-0", 0, 100), ("1000-1", 95, 5))
    report = tmp_path / "report.xml"
    assert "failed  thread_overlap_rate" in called("check", path, "--junit", report, status=1)
    called("check", path, "--fail-on", "warning", status=1)
    called("check", path, "--fail-on", "never")
    suite = ElementTree.fromstring(report.read_bytes())
    # The finding of the limit, which counts once with it.
    assert (suite.tag, suite.get("failures")) == ("testsuite", "1")
    case, *others = suite
    assert suite.get("tests") == str(1 + len(others))
    skipped = [other for other in others if other.find("skipped") is not None]
    assert suite.get("skipped") == str(len(skipped))
    assert len(skipped) >= 4  # one process has no ranks to compare
    assert case.get("name") == "overlap"
    assert "5 %" in str(case[0].get("message"))


def test_check_fails_for_new_findings_only(tmp_path: Path) -> None:
    overlapping = (("1000-0", 0, 100), ("1000-1", 95, 5))
    path, same = (backward(tmp_path / name, *overlapping) for name in ("run", "base"))
    clean = backward(tmp_path / "clean", ("1000-0", 0, 100))
    arguments = ("--new", "--json", "--baseline")
    found = json.loads(called("check", path, *arguments, same, status=1))  # the limit itself
    (overlap,) = (one for one in found["findings"] if one["kind"] == "overlap")
    assert overlap["severity"] == "info"
    assert overlap["evidence"]["allowed"]["by"] == "the baseline"
    found = json.loads(called("check", path, *arguments, clean, status=1))
    (overlap,) = (one for one in found["findings"] if one["kind"] == "overlap")
    assert overlap["severity"] == "error"
    assert CliRunner().invoke(cli.main, ["check", str(path), "--new"]).exit_code == 2


def test_check_of_a_run_without_the_phase_measures_nothing(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    builder.op(START_NS, 1)
    found = json.loads(called("check", builder.write(), "--json"))
    assert found["metrics"]["thread_overlap_rate"] is None
    assert found["checks"] == []


def test_check_against_a_baseline_finds_the_divergence(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", threads=1, steps=2, ops=8)
    run = write_run(tmp_path / "run", threads=1, steps=2, ops=8, gradient_scale=2.0)
    found = json.loads(called("check", run, "--baseline", base, "--json", status=1))
    (finding,) = found["findings"]
    assert finding["title"] == (
        "Gradients differ from the baseline since step 0, first embed.weight. Look at this first: "
        "all gradients that differ in step 0 are 2 times those of the baseline: a factor of the "
        "loss or of the gradients, not rounding."
    )
    evidence = finding.pop("evidence")
    assert evidence["verdict"] == "diverged"
    assert finding == {
        "kind": "divergence",
        "severity": "error",
        "rank": 0,
        "ranks": [0],
        "thread": "1000-0",
        "step": 0,
        "time_ns": None,
        "where": None,
        "confidence": "certain",
        "link": finding["link"],
        "title": finding["title"],
    }
    unchecked = [
        line
        for line in called("check", base, "--baseline", base).splitlines()
        if "not checked (" in line
    ]
    assert any(" more (--json lists all)" in line for line in unchecked)
    assert max(line.count("; ") for line in unchecked) <= 4


def test_check_says_how_processes_ended(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.process(0, closed=False, ended="signal SIGSEGV")
    builder.op(START_NS, 1)
    path = builder.write()
    (warning,) = open_run(path).warnings
    assert "was ended by SIGSEGV" in warning
    assert f"!  {warning}\n" in called("check", path)
    assert json.loads(called("check", path, "--json"))["warnings"] == [warning]


def test_check_counts_limits_without_a_value_as_not_checked(run: Path) -> None:
    shown = called("check", run, "--fail-on", "never")
    asked = json.loads(called("check", run, "--json", "--fail-on", "never"))
    lines = [line for line in shown.splitlines() if "not checked (" in line]
    limits = sum(f"   -    {name}: not measured" in shown for name in asked["metrics"])
    unchecked = re.search(r", (\d+) not checked", shown.splitlines()[-1])
    assert unchecked is not None
    assert int(unchecked[1]) >= len(lines) + limits - 1  # the overlap of communication has no limit


def test_check_says_where_a_report_cannot_go(run: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.main, ["check", str(run), "--junit", str(tmp_path / "a/b")])
    assert result.exit_code == 2
    assert "cannot be written (No such file or directory)" in result.stderr


def test_help_lists_what_exists_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "later", ("lanescope.webapp.commands.later:later", "Soon."))
    shown = called("--help")
    assert "later" not in shown
    for name in ("record", "view", "info", "check", "diff"):
        assert re.search(rf"^  {name} ", shown, re.MULTILINE)
    result = CliRunner().invoke(cli.main, ["later"])
    assert result.exit_code == 2


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_loads_and_explains_itself(name: str) -> None:
    assert called(name, "--help").startswith("Usage: ")


def test_view_serves_until_a_signal_stops_it(run: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "lanescope.webapp.cli",
        "view",
        str(run),
        "--port",
        "0",
        "--no-browser",
    ]
    with started(*command) as process:
        assert process.stdout is not None
        address = first_line(process)
        try:
            assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/", address)
            with urllib.request.urlopen(address) as answer:
                assert answer.status == 200
            port = address.split(":")[-1].strip("/")
            taken = CliRunner().invoke(cli.main, ["view", str(run), "--port", port, "--no-browser"])
            assert taken.exit_code == 2
            assert f"port {port} of 127.0.0.1 cannot be bound (Address already" in taken.stderr
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert process.stdout.read() == ""


AT_WORK = """
from threading import Event, Thread
import pyarrow as pa
from lanescope.webapp.commands.view import leave

kinds = ("int64", "int32", "float32", "string")
columns = {kind: pa.array(list(range(100_000))).cast(kind) for kind in kinds}
table, begun = pa.table(columns), Event()

def convert():
    while True:
        table.to_pandas()
        begun.set()

for _ in range(4):
    Thread(target=convert, daemon=True).start()
begun.wait()
print("left", end="")
leave()
"""


def test_view_ends_while_threads_are_within_arrow() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_WORK], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "left", "")


@pytest.mark.parametrize(
    ("function", "number", "text"),
    [
        (units.duration, 0, "0 ns"),
        (units.duration, 999, "999 ns"),
        (units.duration, 1_000, "1.00 us"),
        (units.duration, 12_345_678, "12.3 ms"),
        (units.duration, 999_999, "1.00 ms"),
        (units.duration, 123_456_789_012, "123 s"),
        (units.size, 999, "999 B"),
        (units.size, 14_863_295, "14.9 MB"),
        (units.count, 2_000_000, "2\u2009000\u2009000"),
        (units.share, 0.0421, "4.21 %"),
        (units.share, 1e-7, "1e-5 %"),
        (units.share, None, "-"),
        (units.number, 0.00012345, "0.000123"),
        (units.number, 1e-5, "1e-5"),
        (units.number, -1234.5, "-1230"),
        (units.number, 2.5e7, "2.5e7"),
        (units.number, math.inf, "inf"),
    ],
)
def test_units(function: Any, number: float | None, text: str) -> None:
    assert function(number) == text
