"""Exports say what the run says, and are safe to open."""

from __future__ import annotations

import csv
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from lanescope.webapp.analysis.plugin import changes, tables
from lanescope.webapp.cli import main
from lanescope.webapp.exporters.report import escaped_markdown, report_markdown
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import START_NS, Builder, write_run

EVIL = "</script><script>alert(1)</script>"
FORMULAS = ("=cmd|' /C calc'!A0", "+1", "-2", "@x", "\t=1", "  =1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(write_run(tmp_path_factory.mktemp("export") / "run", ranks=2, steps=3, ops=20))


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Names of strangers, ops that overlap without nesting, that never ended, infinite values."""
    builder = Builder(
        tmp_path_factory.mktemp("odd") / "run", notes=[f"{EVIL} | [x](http://a.b) `c`"]
    )
    builder.thread(name=EVIL)
    builder.op(START_NS, 100, EVIL)
    builder.op(START_NS + 50, 100, "overlaps")
    builder.op(START_NS + 60, 100, "overlaps both")
    builder.op(START_NS + 155, None, "never ended")
    builder.phase(START_NS + 1, 0, "mark", name="a mark")
    for position, name in enumerate(FORMULAS):
        builder.op(START_NS + 1000 + 10 * position, 5, name)
    for value in (1.5, float("nan"), float("inf")):
        builder.row("value", 0, "1000-0", time_ns=START_NS, name=EVIL, value=value)
    return open_run(builder.write())


def export(run: Run, kind: str, target: Path, *options: str) -> Result:
    command = ["export", str(run.path), "--to", kind, "-o", str(target), *options]
    return CliRunner().invoke(main, command)


def trace(run: Run, target: Path) -> list[dict[str, Any]]:
    result = export(run, "perfetto", target)
    assert result.exit_code == 0, result.output
    answer = json.loads(target.read_text(), parse_float=Decimal)
    assert answer["displayTimeUnit"] == "ns"
    events: list[dict[str, Any]] = answer["traceEvents"]
    return events


def ns(microseconds: Any) -> int:
    exact = Decimal(microseconds) * 1000
    assert exact == int(exact)
    return int(exact)


def slices(run: Run) -> list[tuple[str, int, int]]:
    """Name, start and length of all that had an end."""
    rows = [row for table in ("op", "phase") for row in run.events(table).to_pylist()]
    return sorted(
        (row["name"], row["start_ns"], row["duration_ns"])
        for row in rows
        if row["duration_ns"] is not None and row.get("kind") != "mark"
    )


@pytest.mark.parametrize("which", ["run", "odd"])
def test_a_trace_holds_every_slice_to_the_nanosecond(
    which: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run: Run = request.getfixturevalue(which)
    events = trace(run, tmp_path / "x.json")
    whole = [e for e in events if e["ph"] == "X" and e["cat"] != "sync"]
    assert sorted((e["name"], ns(e["ts"]), ns(e["dur"])) for e in whole) == slices(run)
    asynchronous = [e for e in events if e["ph"] in "be"]
    assert len(asynchronous) == 2 * run.counts["collective"]
    # On one thread of a trace slices nest, or follow each other.
    by_thread: dict[Any, list[tuple[int, int]]] = {}
    for e in whole:
        by_thread.setdefault((e["pid"], e["tid"]), []).append((ns(e["ts"]), ns(e["dur"])))
    for found in by_thread.values():
        ends: list[int] = []
        for start, length in sorted(found, key=lambda one: (one[0], -one[1])):
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or start + length <= ends[-1]
            ends.append(start + length)


def test_facts_without_a_place_in_a_trace_are_reported(odd: Run, tmp_path: Path) -> None:
    events = trace(odd, tmp_path / "x.json")
    assert [e["args"]["value"] for e in events if e["ph"] == "C"] == [Decimal("1.5")]
    instants = {e["name"] for e in events if e["ph"] == "i"}
    assert instants == {"a mark", f"{EVIL} is nan", f"{EVIL} is inf"}
    assert [e["name"] for e in events if e["ph"] == "B"] == ["never ended"]
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {EVIL, f"{EVIL} (2)", f"{EVIL} (3)"}


def test_tables_as_csv_and_parquet(run: Run, odd: Run, tmp_path: Path) -> None:
    for table in ("op", "stack", "thread", *tables()):
        for kind in ("csv", "parquet"):
            result = export(run, kind, tmp_path / f"{table}.{kind}", "--table", table)
            assert result.exit_code == 0, (table, result.output)
        with (tmp_path / f"{table}.csv").open(newline="") as file:
            rows = list(csv.reader(file))
        stored = pq.read_table(tmp_path / f"{table}.parquet")
        assert rows[0] == stored.column_names
        assert len(rows) == stored.num_rows + 1
    ops = pq.read_table(tmp_path / "op.parquet")
    assert ops.to_pylist() == run.events("op").to_pylist()

    assert export(odd, "csv", tmp_path / "odd.csv").exit_code == 0
    with (tmp_path / "odd.csv").open(newline="") as file:
        names = [row["name"] for row in csv.DictReader(file)]
    assert names[-len(FORMULAS) :] == [f"'{text}" for text in FORMULAS]
    assert not any(name.lstrip(" ").startswith(("=", "+", "-", "@", "\t")) for name in names)
    refused = export(run, "csv", tmp_path / "x.csv", "--table", "step_changes")
    assert refused.exit_code == 2
    assert "table step_changes compares the run with a baseline: add --baseline" in refused.output
    for table in changes():
        given = ("--table", table, "--baseline", str(run.path))
        result = export(run, "parquet", tmp_path / f"{table}.parquet", *given)
        assert result.exit_code == 0, (table, result.output)
    same = pq.read_table(tmp_path / "step_changes.parquet")
    assert same["duration_ns"] == same["base_duration_ns"]
    one = export(run, "csv", tmp_path / "one.csv", "--ranks", "1")
    assert one.exit_code == 0
    with (tmp_path / "one.csv").open(newline="") as file:
        assert {row["rank"] for row in csv.DictReader(file)} == {"1"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--to", "csv", "--table", "nothing"], "no table 'nothing', expected one of op,"),
        (["--to", "html", "--table", "op"], "--table is for csv and parquet"),
        (["--to", "csv", "--window", "1-2"], "--window is for html"),
        (["--to", "html", "--window", "2-1"], "is not a window; write its start and end"),
        (["--to", "html", "--window", "1-999999999999"], "expected one within"),
        (["--to", "csv", "--ranks", "9"], "rank 9: no such rank; this run has 0-1 of 2"),
    ],
)
def test_wrong_usage_is_one_sentence(
    run: Run, tmp_path: Path, options: list[str], said: str
) -> None:
    command = ["export", str(run.path), "-o", str(tmp_path / "x"), *options]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_report_in_words(run: Run, odd: Run, tmp_path: Path) -> None:
    assert export(run, "markdown", tmp_path / "x.md").exit_code == 0
    text = (tmp_path / "x.md").read_text()
    for heading in ("## Findings", "## Measured", "## Ranks"):
        assert heading in text
    assert "| ranks | 2 of 2 |" in text
    assert r"| thread\_overlap\_rate |" in text
    hostile = report_markdown(odd)
    assert "<script" not in hostile
    assert re.search(r"(?<!\\)\[x", hostile) is None
    assert escaped_markdown("a|b\n# `c` <i> _d_ @e") == ("a\\|b·\\# \\`c\\` &lt;i\\> \\_d\\_ \\@e")
