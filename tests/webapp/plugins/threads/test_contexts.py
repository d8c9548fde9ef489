"""Context variables that threads did not inherit are found; who hands them on is left in peace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lanescope.collector.compaction.compact import compact
from lanescope.webapp import open_run
from lanescope.webapp.plugins.threads.contexts import lost_contexts
from lanescope.webapp.runs.run import Run
from tests.support.recording import Recorded, record_into, write_program

PROGRAM = """
    import asyncio, sys, sysconfig, threading
    from concurrent.futures import ThreadPoolExecutor
    from contextvars import ContextVar, copy_context
    import torch
    import installed
    import lanescope.collector as ls

    # As if it lay among the installed packages.
    installed.read.__code__ = installed.read.__code__.replace(
        co_filename=sysconfig.get_path("purelib") + "/installed.py")
    methods = ContextVar.get, ContextVar.set, ThreadPoolExecutor.submit
    ls.start(sys.argv[1])

    early = ContextVar("early", default=0)
    assert early.get() == 0 and ContextVar.get is methods[0]
    scale, level, request = ContextVar("scale", default=1.0), ContextVar("level"), ContextVar("r")
    scale.set(8.0)
    level.set("high")
    request.set(object())
    same = ContextVar("same", default="as it is")
    same.set("as it is")

    def started(target, *args, name=None):
        thread = threading.Thread(target=target, args=args, name=name)
        thread.start()  # started
        thread.join()

    # lost

    def trains():
        torch.ones(2) * scale.get()  # lost: scale default

    def trains_often():
        for _ in range(3):
            torch.ones(2) * scale.get(2.0)  # lost: scale fallback

    def fails():
        torch.ones(2)
        try:
            level.get()  # lost: level nothing
        except LookupError as error:
            print("as without recording", error.args == (level,))

    def task():
        return torch.ones(2) * scale.get()  # lost: task

    started(trains, name="loser")
    started(trains_often)
    started(fails)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(task).result()  # submitted

    # not lost

    def handed_on():
        torch.ones(2) * scale.get()

    def sets_its_own():
        if scale.get() == 1.0:
            scale.set(2.0)
        torch.ones(2) * scale.get()

    def never_reads():
        torch.ones(2) * 3

    def reads_an_unset_variable():
        torch.ones(2) * early.get() * scale.get(8.0)

    def reads_the_same():
        same.get()
        torch.ones(2)

    def no_torch():
        scale.get()

    def library():
        installed.read(scale)
        torch.ones(2)

    started(copy_context().run, handed_on)
    asyncio.run(asyncio.to_thread(handed_on))
    for target in (sets_its_own, never_reads, reads_an_unset_variable, reads_the_same, no_torch,
                   library):
        started(target)
    with ThreadPoolExecutor(1, initializer=scale.set, initargs=(4.0,)) as pool:
        pool.submit(handed_on).result()
        pool.submit(copy_context().run, handed_on).result()

    def unset():
        with ThreadPoolExecutor(1) as pool:
            pool.submit(handed_on).result()
    started(unset)  # its context is empty, and so is the task's

    # phases

    with ls.phase("outside"):
        started(lambda: torch.ones(2).cos())
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: torch.ones(2).sin()).result()
            with ls.phase("inside"):
                pool.submit(lambda: torch.ones(2).tan()).result()
    assert level.get() == "high" and scale.get() == 8.0
    torch.ones(2).exp()

    # nothing stays, and meanwhile a compiled function reads as ever

    compiled = torch.compile(lambda x: x * scale.get(), backend="eager")
    assert compiled(torch.ones(1)).item() == 8.0
    assert ContextVar.get is methods[0]
    ls.stop()
    assert methods == (ContextVar.get, ContextVar.set, ThreadPoolExecutor.submit)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("contexts")
    write_program(folder, "def read(variable):\n    return variable.get()\n", "installed.py")
    program, run = write_program(folder, PROGRAM), folder / "run"
    done = record_into(run, program)
    compact(run)
    return Recorded(run, done.returncode, done.stdout, done.stderr)


def marked(folder: Path) -> dict[str, str]:
    lines = (folder / "program.py").read_text().splitlines()
    found = [
        (re.search(r"# (lost: .+|started|submitted)$", line), n) for n, line in enumerate(lines, 1)
    ]
    return {match[1]: f"program.py:{number}" for match, number in found if match}


def test_lost_values_are_reported_once_each_and_no_others(recorded: Recorded) -> None:
    assert recorded.status == 0, recorded.stderr
    assert recorded.stderr == ""
    assert recorded.stdout.strip() == "as without recording True"
    run: Run = open_run(recorded.run)
    lines = marked(recorded.run.parent)
    found = {finding.where: finding for finding in lost_contexts(run)}
    assert set(found) == {place for name, place in lines.items() if name.startswith("lost")}
    assert len(lost_contexts(run)) == len(found)
    default, often, nothing, task = (
        found[lines[f"lost: {name}"]]
        for name in ("scale default", "scale fallback", "level nothing", "task")
    )
    names = {t.thread: t.name for t in run.threads}
    assert names[str(default.thread)] == "loser"
    assert default.evidence["variable"] == "scale"
    assert default.evidence["found"] == "its default"
    assert default.evidence["started_at"] == lines["started"]
    assert often.evidence["found"] == "a fallback"
    assert often.evidence["times"] == 1
    assert (nothing.evidence["variable"], nothing.evidence["found"]) == ("level", "nothing")
    assert task.evidence["started_as"] == "task"
    assert task.evidence["started_at"] == lines["submitted"]


def test_phases_are_handed_on(recorded: Recorded) -> None:
    phases = {str(row["name"]): row["phase"] for row in recorded.rows("op")}
    assert phases["aten::cos"] == "outside"
    assert phases["aten::sin"] == "outside"
    assert phases["aten::tan"] == "inside"
    assert phases["aten::exp"] == ""
