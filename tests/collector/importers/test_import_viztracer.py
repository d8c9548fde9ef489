"""A real trace of VizTracer becomes a run: its threads, its functions, all of its events."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lanescope.webapp.analysis.findings import findings
from tests.support.recording import run_program, write_program
from tests.support.trace_files import accounted, imported, rows

PROGRAM = """
    import threading

    def leaf(n):
        return n + 1

    def work(n):
        return [leaf(i) for i in range(n)]

    threads = [threading.Thread(target=work, args=(5,), name=f"worker {i}") for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work(3)
"""


def test_a_trace_of_viztracer(tmp_path: Path) -> None:
    program, trace = write_program(tmp_path, PROGRAM), tmp_path / "trace.json"
    done = run_program([sys.executable, "-m", "viztracer", "-o", str(trace), str(program)])
    assert done.returncode == 0, done.stderr
    run = imported(tmp_path / "run", trace)
    events = json.loads(trace.read_text())["traceEvents"]
    calls = [event for event in events if event["ph"] == "X"]
    assert accounted(run)["imported_slices"] == len(calls)
    assert run.counts["op"] == len(calls)
    assert run.manifest["processes"][0]["engine"] == "viztracer"
    names = [str(name).partition(" ")[0] for (name,) in rows(run, "op", "name")]
    assert (names.count("leaf"), names.count("work")) == (13, 3)
    # Every call of leaf is within one of work, of the same thread.
    for thread in run.threads:
        depth = {"work": set[int](), "leaf": set[int]()}
        for name, level in rows(run, "op", "name", "depth", thread=thread.thread):
            word = str(name).partition(" ")[0]
            if word in depth:
                depth[word].add(level)
        assert not depth["leaf"] or min(depth["leaf"]) > min(depth["work"])
    assert [t.kind for t in run.threads].count("main") == 1
    assert findings(run) == []
