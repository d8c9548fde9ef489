"""Lines of the program that are kept with a run, and those that are not."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from lanescope.collector.compaction.source_lines import MAX_CHARACTERS, MAX_LINES, source_lines
from lanescope.webapp import open_run
from lanescope.webapp.analysis.source import line_text, lines_around
from tests.support.processes import run_program
from tests.support.recording import (
    BIN,
    OBSERVERS,
    record_program,
    record_script,
    write_program,
)

PROGRAM = """
import os, signal, sys, threading, torch

def work(total):
    for _ in range(3):
        total.add_(torch.ones(3))  # </script><img src=x onerror="hurt()">

exec(compile("import torch\\ntorch.ones(2).add_(1)", "<made>", "exec"))
total = torch.zeros(3)
threads = [threading.Thread(target=work, args=(total,)) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
if "die" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
"""
LINE = 'total.add_(torch.ones(3))  # </script><img src=x onerror="hurt()">'


def stack(*places: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"frames": [{"file": file, "line": line, "function": "f"} for file, line in places]}]


def now_ns() -> int:
    return time.monotonic_ns()


@pytest.mark.parametrize("engine", OBSERVERS)
def test_the_line_and_its_neighbours_are_in_the_run(tmp_path: Path, engine: str) -> None:
    recorded = record_program(tmp_path, PROGRAM, "--engine", engine)
    assert recorded.status == 0, recorded.stderr
    run, file = open_run(recorded.run), str(tmp_path / "program.py")
    number = next(n for n, text in enumerate(PROGRAM.splitlines(), 1) if LINE in text)
    number -= not (tmp_path / "program.py").read_text().startswith("\n")
    (tmp_path / "program.py").write_text("# another program\n" * 30)  # only the run counts
    found = lines_around(run, f"program.py:{number}")
    assert [line.number for line in found] == list(range(number - 3, number + 4))
    assert found[3].text.strip() == LINE
    assert line_text(run, 0, file, number) == found[3].text
    assert {Path(name).name for name in run.events("source")["file"].to_pylist()} == {"program.py"}


def test_a_killed_program_keeps_its_lines(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, PROGRAM, arguments=("die",))
    assert LINE in str(open_run(recorded.run).events("source")["text"].to_pylist())


def test_without_source_and_in_a_redacted_bundle_there_are_none(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, PROGRAM, "--no-source")
    assert not list(recorded.run.rglob("source*"))
    assert open_run(recorded.run).events("source").num_rows == 0

    kept = record_script(tmp_path / "kept", tmp_path / "program.py").run
    for options, rows in (((), open_run(kept).events("source").num_rows), (("--redact",), 0)):
        bundle = tmp_path / f"{len(options)}.zip"
        command = [str(BIN / "lanescope"), "pack", str(kept), "-o", str(bundle), *options]
        assert run_program(command).returncode == 0
        assert open_run(bundle).events("source").num_rows == rows
    assert rows == 0 < open_run(kept).events("source").num_rows


def test_files_that_are_not_what_ran_are_left_out(tmp_path: Path) -> None:
    changed, binary, gone = tmp_path / "changed.py", tmp_path / "binary.py", tmp_path / "gone.py"
    changed.write_text("a\nb\n")
    binary.write_bytes(b"\xff\xfe\x00")
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    places = stack(*((str(path), 1) for path in (changed, binary, gone, pipe, tmp_path)))
    assert source_lines(places, now_ns() - 60_000_000_000) is None  # written since it began
    os.utime(changed, (1, 1))
    rows = source_lines([*places, {"frames": None}], now_ns())
    assert rows is not None
    assert rows.to_pylist() == [
        {"file": str(changed), "line": 1, "text": "a"},
        {"file": str(changed), "line": 2, "text": "b"},
    ]


def test_files_of_packages_and_without_a_name_are_left_out() -> None:
    places = stack((pytest.__file__, 1), (os.__file__, 1), ("<string>", 1), ("", 1))
    assert source_lines(places, now_ns()) is None


def test_lines_are_bounded(tmp_path: Path) -> None:
    long = tmp_path / "long.py"
    long.write_text(("x" * 300 + "\n") * (MAX_LINES // 2))
    os.utime(long, (1, 1))
    places = stack(*((str(long), line) for line in range(1, MAX_LINES)))
    rows = source_lines(places, now_ns(), held=MAX_LINES - 10)
    assert rows is not None
    assert (rows.num_rows, len(rows["text"][0].as_py())) == (10, MAX_CHARACTERS)


def test_a_name_that_two_files_share_is_not_guessed(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text(
            f"import torch\ndef f():  # {folder}\n    torch.ones(2).add_(1)\n"
        )
    source = """
        import sys, runpy, threading
        for folder in ("one", "two"):
            f = runpy.run_path(f"{sys.argv[1]}/{folder}/same.py")["f"]
            for _ in range(3):
                f()
    """
    program = write_program(tmp_path, source)
    recorded = record_program(tmp_path, source, arguments=(str(tmp_path),))
    assert recorded.status == 0, (recorded.stderr, program)
    run = open_run(recorded.run)
    assert lines_around(run, "same.py:3") == ()
    assert line_text(run, 0, str(tmp_path / "two" / "same.py"), 2) == "def f():  # two"
