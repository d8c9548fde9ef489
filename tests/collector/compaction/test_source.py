"""The lines of the program that a run keeps: those that ran, or none."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanescope.collector.compaction import source
from lanescope.collector.compaction.arrow_columns import frames_column
from lanescope.collector.compaction.reader import ProcessLog
from lanescope.collector.compaction.source import source_rows
from lanescope.collector.format.schema import Process
from lanescope.collector.journal.clock import clock_identity, program_start_ns
from lanescope.collector.journal.journal import SOURCES_FILE
from tests.support.processes import fork_program
from tests.support.recording import OBSERVERS, Recorded, record_program, write_program

PROGRAM = """\
    import torch
    import linecache
    # one above
    def first(x):
        return x.sin()  # named
    # one below
    first(torch.ones(2))

    def run(name):
        text = "def cell(x):\\n    return x.cos()  # in memory\\n"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        scope = {}
        exec(compile(text, name, "exec"), scope)
        scope["cell"](torch.ones(2))
    run("<cell 1>")
    run("/tmp/ipykernel_1/2.py")
    exec("torch.ones(2).tan()")
"""


Lines = dict[tuple[str, int], str | None]


def kept(recorded: Recorded, rank: int = 0) -> Lines:
    """(name of the file, line) -> text."""
    rows = recorded.table("source", rank).to_pylist()
    return {(row["file"].rpartition("/")[2], row["line"]): row["text"] for row in rows}


@pytest.mark.parametrize("engine", OBSERVERS)
def test_named_lines_are_kept_with_their_neighbours(tmp_path: Path, engine: str) -> None:
    recorded = record_program(tmp_path, PROGRAM, "--engine", engine, "--stacks", "all")
    assert recorded.status == 0, recorded.stderr
    lines = kept(recorded)
    program = (tmp_path / "program.py").read_text().splitlines()
    for line in range(2, 9):
        assert lines["program.py", line] == program[line - 1]
    assert lines["<cell 1>", 2] == "    return x.cos()  # in memory"
    assert lines["2.py", 1] == "def cell(x):"
    assert {file for file, _ in lines} == {"program.py", "<cell 1>", "2.py"}
    listed = json.loads((recorded.run / "manifest.json").read_text())["files"]
    assert listed["rank=00000/source.parquet"]["rows"] == len(lines)


def test_a_killed_process_leaves_the_lines_of_its_files(tmp_path: Path) -> None:
    killed = f"{PROGRAM}    import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    recorded = record_program(tmp_path, killed)
    assert recorded.status == 137
    lines = kept(recorded)
    assert lines["program.py", 5] == "    return x.sin()  # named"
    assert ("<cell 1>", 2) not in lines


def test_a_file_that_changes_while_it_runs_has_no_text(tmp_path: Path) -> None:
    (tmp_path / "steady.py").write_text("def f(x):\n    return x.cos()\n")
    (tmp_path / "touched.py").write_text("def g(x):\n    return x.tan()\n")
    program = """
        import os, pathlib, sys, torch
        sys.path.insert(0, os.path.dirname(__file__))
        import steady, touched
        steady.f(torch.ones(2))
        touched.g(torch.ones(2))
        file = pathlib.Path(touched.__file__)
        before = file.stat()
        file.write_text("def g(x):\\n    return x.SECRET()\\n")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        pathlib.Path(__file__).write_text("nothing")
    """
    lines = kept(record_program(tmp_path, program))
    assert lines["steady.py", 2] == "    return x.cos()"
    changed = {place: text for place, text in lines.items() if place[0] != "steady.py"}
    assert ("touched.py", 2) in changed
    assert {file for file, _ in changed} == {"touched.py", "program.py"}
    assert set(changed.values()) == {None}


def test_every_rank_has_its_lines(tmp_path: Path) -> None:
    program = """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(2))
        dist.destroy_process_group()
    """
    recorded = record_program(tmp_path, program, ranks=2)
    assert recorded.status == 0, recorded.stderr
    for rank in (0, 1):
        assert kept(recorded, rank)["program.py", 4] == "dist.all_reduce(torch.ones(2))"


def test_no_source_keeps_no_text(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, PROGRAM, "--no-source", "--stacks", "all")
    assert recorded.rows("stack")
    assert not (recorded.run / "rank=00000/source.parquet").exists()
    for path in recorded.run.rglob("*.parquet"):
        assert "# named" not in str(pq.read_table(path, partitioning=None).to_pylist())


def test_a_setting_in_code_keeps_no_text(tmp_path: Path) -> None:
    program = """
        import os, torch, lanescope.collector as ls
        folder = os.path.dirname(__file__)
        for name in ("with", "without"):
            with ls.record(f"{folder}/{name}", stacks="all", source=name == "with"):
                torch.ones(2).sin()
    """
    done = fork_program(write_program(tmp_path, program))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "with/rank=00000/source.parquet").exists()
    assert (tmp_path / "without/rank=00000/stack.parquet").exists()
    assert not (tmp_path / "without/rank=00000/source.parquet").exists()


def test_a_restart_with_other_lines_leaves_only_the_same_ones(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    for value in ("1.5", "2.5"):
        program.write_text(f"import torch\nx = torch.full((2,), {value})\nx.sin()\n")
        done = fork_program(program, environment={"LANESCOPE_RECORD": str(tmp_path / "run")})
        assert done.returncode == 0, done.stderr
    lines = kept(Recorded(tmp_path / "run", 0, "", ""))
    assert lines["program.py", 3] == "x.sin()"
    assert lines["program.py", 2] is None


# What compaction reads, file by file ----------------------------------------------------------


def stacks_of(*places: tuple[Path | str, int]) -> pa.Table:
    text = "\n".join(f"{file}\t{line}\tf" for file, line in places)
    return pa.table({"frames": frames_column([text])})


def log_of(folder: Path, *texts: str, **process: Any) -> ProcessLog:
    """The journal of a process of this host that starts in a second."""
    described = {
        "source": True,
        "rank": 0,
        "role": "rank",
        "program_start_ns": time.time_ns() + 10**9,
        "clock_identity": clock_identity(),
        "working_folder": str(folder),
        **process,
    }
    return ProcessLog(folder, described, ("", *texts), (), ())


def read(
    log: ProcessLog,
    *places: tuple[Path | str, int],
    known: pa.Table | None = None,
    others: Sequence[Process] = (),
) -> Lines | None:
    rows = source_rows(log, stacks_of(*places), known, others)
    if rows is None:
        return None
    names = ("file", "line", "text")
    return {
        (f.rpartition("/")[2], n): t
        for f, n, t in zip(*(rows[c].to_pylist() for c in names), strict=True)
    }


def test_lines_are_those_that_python_counts(tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_bytes(b"# coding: latin-1\r\na = '\xe9'\x0c\r\nb = 1\rc = 2\n" + b"d" * 500)
    assert read(log_of(tmp_path), (file, 2)) == {
        ("odd.py", 1): "# coding: latin-1",
        ("odd.py", 2): "a = 'é'",
        ("odd.py", 3): "b = 1",
        ("odd.py", 4): "c = 2",
        ("odd.py", 5): "d" * 199 + "…",
        ("odd.py", 6): None,
    }
    (tmp_path / "unknown.py").write_bytes(b"# coding: no-such\na = 1\n")
    (tmp_path / "broken.py").write_bytes(b"# \xff\na = 1\n")
    assert read(log_of(tmp_path), (tmp_path / "unknown.py", 2)) is None
    assert read(log_of(tmp_path), (tmp_path / "broken.py", 2)) is None


def test_places_are_read_relative_to_the_folder_of_the_process(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a = 1\n")
    assert read(log_of(tmp_path), ("a.py", 1)) == {("a.py", 1): "a = 1", ("a.py", 2): None}
    assert read(log_of(tmp_path, working_folder=""), ("a.py", 1)) is None


def test_marks_and_exceptions_name_places(tmp_path: Path) -> None:
    for name in ("mark", "raised"):
        (tmp_path / f"{name}.py").write_text(f"{name} = 1\n")
    mark = f"cuda: cuda:1 chosen at {tmp_path}/mark.py:1"
    log = log_of(tmp_path, mark, exception=f"ValueError: no ({tmp_path}/raised.py:1)")
    assert read(log) == {
        ("mark.py", 1): "mark = 1",
        ("mark.py", 2): None,
        ("raised.py", 1): "raised = 1",
        ("raised.py", 2): None,
    }


def test_other_files_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "lib.py").write_text("a = 1\n")
    (tmp_path / "huge.py").write_bytes(b"a = 1\n" * 2_000_000)
    places = [tmp_path / "pipe.py", installed / "lib.py", tmp_path / "huge.py", tmp_path]
    places += [tmp_path / "missing.py", Path("/proc/self/mem"), tmp_path / "\udcff.py"]
    log = log_of(tmp_path)
    assert read(log, *((place, 1) for place in places[:-1])) is None
    assert read(log, ("<string>", 1), ("a\0b.py", 1), ("", 0), (str(tmp_path / "x.py"), -1)) is None


def test_another_host_and_an_unknown_start_keep_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a = 1\n")
    for process in (
        {"clock_identity": "boot-2/time-1"},
        {"program_start_ns": 0},
        {"program_start_ns": "soon"},
        {"source": False},
    ):
        assert read(log_of(tmp_path, **process), (tmp_path / "a.py", 1)) is None


def test_limits_of_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.py"
    file.write_text("".join(f"a = {i:04}\n" for i in range(1_000)))
    places = [(file, line) for line in range(10, 1_000, 10)]
    monkeypatch.setattr(source, "MAX_SOURCE_LINES", 35)
    assert len(read(log_of(tmp_path), *places) or ()) == 35
    monkeypatch.setattr(source, "MAX_SOURCE_BYTES", 8 * 21)
    assert len(read(log_of(tmp_path), *places) or ()) == 21


def test_rank_0_keeps_short_files_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.py"
    file.write_text("".join(f"a = {i:04}\n" for i in range(100)))
    lines = read(log_of(tmp_path), (file, 50)) or {}
    assert sorted(line for _, line in lines) == list(range(1, 102))
    assert lines["a.py", 101] is None
    assert len(read(log_of(tmp_path, rank=1), (file, 50)) or ()) == 7
    monkeypatch.setattr(source, "_WHOLE_LINES", 99)
    assert len(read(log_of(tmp_path), (file, 50)) or ()) == 7


def test_a_later_process_of_the_rank(tmp_path: Path) -> None:
    """It keeps equal lines; of a file that changed meanwhile only those of the same program."""
    file = tmp_path / "a.py"
    file.write_text("a = 1\nb = 1\n")
    known = source_rows(log_of(tmp_path), stacks_of((file, 1)), None, ())
    restarted: Any = [{"role": "rank"}]
    assert read(log_of(tmp_path), (file, 1), known=known, others=restarted) is None
    file.write_text("a = 1\nb = 2\n")
    other = {("a.py", 1): "a = 1", ("a.py", 2): None, ("a.py", 3): None}
    assert read(log_of(tmp_path), (file, 1), known=known, others=restarted) == other
    changed = log_of(tmp_path, program_start_ns=1)
    none = {("a.py", 1): None, ("a.py", 2): None, ("a.py", 3): None}
    assert read(changed, (file, 1), known=known, others=restarted) == none
    forked = log_of(tmp_path, program_start_ns=1, role="child")
    assert read(forked, (file, 1), known=known, others=restarted) is None
    file.unlink()
    assert read(log_of(tmp_path), (file, 1), known=known, others=restarted) == none


def test_a_damaged_file_of_sources_counts_as_none(tmp_path: Path) -> None:
    for text in ('{"<a>": ["x"', "[1]", '{"<a>": [1]}', '{"<a>": 1}', "\0"):
        (tmp_path / SOURCES_FILE).write_text(text)
        assert read(log_of(tmp_path), ("<a>", 1)) is None
    (tmp_path / SOURCES_FILE).write_text('{"<a>": ["x = \\ud800"]}')
    assert read(log_of(tmp_path), ("<a>", 1)) == {("<a>", 1): "x = ?", ("<a>", 2): None}


def test_the_start_of_a_process_is_before_now() -> None:
    start = program_start_ns()
    assert 0 < start < time.time_ns()
    assert abs(program_start_ns() - start) <= 2 * 10**7  # a tick of the system's clock
