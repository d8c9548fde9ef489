"""`--keep-last`: the end of the record is there, the disk holds no more than was allowed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lanescope.collector.compaction.reader import ProcessLog, read_process
from lanescope.collector.format.options import parse_size
from lanescope.collector.journal import journal, memory_limit
from lanescope.collector.journal.journal import RecordKind, write_json
from lanescope.collector.journal.segment_ring import Ring
from lanescope.collector.journal.writer import ThreadJournal
from lanescope.webapp import open_run
from tests.support.processes import fork_program
from tests.support.recording import OBSERVERS, SLOW_ON_PORTABLE, record_program, write_program

LIMIT = 1_000_000

HELD = """
    import os, sys, threading, torch
    import lanescope.collector as ls
    from pathlib import Path

    def held():
        total = 0
        for path in Path(os.environ["LANESCOPE_RECORD"]).glob("journal/*/*.lsj*"):
            try:
                total += path.stat().st_blocks * 512
            except FileNotFoundError:
                pass
        return total

    most = 0
    def look():
        global most
        most = max(most, held())
"""


def new_journal(folder: Path, ring: Ring, ordinal: int = 0) -> ThreadJournal:
    write_json(folder / journal.PROCESS_FILE, {"pid": 7, "rank": 0, "keep_last_bytes": LIMIT})
    return ThreadJournal(
        folder, pid=7, ordinal=ordinal, native_id=11, kind=1, created_ns=5, ring=ring
    )


def put(target: ThreadJournal, value: int, kind: RecordKind = RecordKind.OP) -> None:
    target.append(kind, 0, 0, value, 10 * value, 10 * value + 5, -1, 0, 0, 0, 0, 0, 0, 0)


def held(folder: Path) -> int:
    return sum(p.stat().st_blocks * 512 for p in folder.glob("*.lsj"))


def names(log: ProcessLog, ordinal: int = 0) -> list[int]:
    (thread,) = (t for t in log.threads if t.ordinal == ordinal)
    return [int(r["name"]) for part in thread.records() for r in part if r["kind"] == RecordKind.OP]


def test_the_last_records_stay_and_the_others_are_counted(tmp_path: Path) -> None:
    ring = Ring(LIMIT)
    written = new_journal(tmp_path, ring)
    for value in range(50_000):
        put(written, value)
        if value % 500 == 0:
            assert held(tmp_path) <= LIMIT
    log = read_process(tmp_path)  # not closed: as after a kill
    kept = names(log)
    assert kept == list(range(50_000 - len(kept), 50_000))
    assert len(kept) * journal.RECORD_BYTES > LIMIT * 0.8
    assert log.process["coverage"] == {"overwritten": 50_000 - len(kept)}


def test_the_thread_s_name_and_open_events_outlive_their_segment(tmp_path: Path) -> None:
    written = new_journal(tmp_path, Ring(LIMIT))
    put(written, 1, RecordKind.THREAD)
    put(written, 77, RecordKind.THREAD)
    written.push_open(0, RecordKind.PHASE, 2, 100, 1, 0, 0)
    for value in range(50_000):
        put(written, value)
    (thread,) = read_process(tmp_path).threads
    named = [r["name"] for part in thread.records() for r in part if r["kind"] == RecordKind.THREAD]
    assert set(named) == {77}
    assert len(named) == len(thread.segments)
    assert thread.open_events()["name"].tolist() == [100]


def test_a_busy_thread_overwrites_what_others_wrote_before(tmp_path: Path) -> None:
    ring = Ring(LIMIT)
    quiet, busy = new_journal(tmp_path, ring, 0), new_journal(tmp_path, ring, 1)
    for value in range(3_000):
        put(quiet, value)
    for value in range(50_000):
        put(busy, value)
    log = read_process(tmp_path)
    kept = names(log)  # of the segment that it still writes to
    assert kept
    assert kept == list(range(3_000 - len(kept), 3_000))
    total = len(kept) + len(names(log, 1)) + log.process["coverage"]["overwritten"]
    assert total == 53_000


def test_more_threads_than_there_is_room_for(tmp_path: Path) -> None:
    ring = Ring(LIMIT)
    threads = [new_journal(tmp_path, ring, ordinal) for ordinal in range(300)]
    for value in range(200):
        for thread in threads:
            put(thread, value)
    assert held(tmp_path) <= LIMIT
    log = read_process(tmp_path)
    kept = sum(len(names(log, thread.ordinal)) for thread in log.threads)
    dropped = sum(thread.dropped for thread in threads)
    assert dropped > 0
    assert kept + ring.overwritten + dropped == 300 * 200
    for thread in threads[:200]:
        thread.close()
    for value in range(1_000):  # there is room again
        put(threads[-1], value)
    assert names(read_process(tmp_path), 299)[-1] == 999


def test_kept_records_take_their_share_only(tmp_path: Path) -> None:
    ring = Ring(LIMIT)
    write_json(tmp_path / journal.PROCESS_FILE, {"pid": 7, "rank": 0, "keep_last_bytes": LIMIT})
    kept = ThreadJournal(
        tmp_path, pid=7, ordinal=9, native_id=0, kind=1, created_ns=0, ring=ring, kept=True
    )
    for value in range(10_000):
        put(kept, value, RecordKind.MODULE)
    assert held(tmp_path) <= LIMIT // 4
    written = new_journal(tmp_path, ring)
    for value in range(50_000):
        put(written, value)
    (modules,) = (t for t in read_process(tmp_path).threads if t.ordinal == 9)
    assert sum(len(part) for part in modules.records()) == 10_000 - kept.dropped
    assert kept.dropped < 8_000
    assert held(tmp_path) <= LIMIT


@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
@pytest.mark.slow
def test_a_real_program(tmp_path: Path, engine: str) -> None:
    recorded = record_program(
        tmp_path,
        HELD
        + """
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)
        def forward(self, x):
            return self.inner(x)
    Model()(torch.ones(2, 2))
    def work():
        for i in range(4_000):
            torch.ones(2).cosh()
            look()
    thread = threading.Thread(target=work, name="side")
    thread.start()
    x = torch.ones(2)
    for i in range(20_000):
        x.tan()
        if i % 100 == 0:
            look()
    thread.join()
    x.sinh()
    print(most)
    """,
        "--keep-last",
        "1MB",
        "--engine",
        engine,
    )
    assert recorded.status == 0, recorded.stderr
    assert LIMIT // 2 < int(recorded.stdout) <= LIMIT
    run = open_run(recorded.run)
    assert run.coverage["overwritten"] > 10_000
    assert run.dropped == 0
    assert recorded.op_names(thread="main")[-1] == "aten::sinh"
    assert [m["path"] for m in recorded.rows("module")] == ["Model", "inner"]
    assert any("were overwritten" in warning for warning in run.warnings)
    assert not (recorded.run / "journal").exists()


@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
def test_a_killed_program_leaves_its_last_events(tmp_path: Path, engine: str) -> None:
    program = write_program(
        tmp_path,
        HELD
        + """
    x = torch.ones(2)
    for i in range(20_000):
        x.tan()
        if i % 100 == 0:
            look()
    with ls.phase("backward"):
        x.sinh()
        print(most, flush=True)
        os.kill(os.getpid(), 9)
    """,
    )
    options = json.dumps({"keep_last_bytes": LIMIT, "engine": engine, "level": "timing"})
    run = tmp_path / "run"
    done = fork_program(
        program,
        environment={"LANESCOPE_RECORD": str(run), "LANESCOPE_OPTIONS": options},
    )
    assert done.returncode == -9
    assert int(done.stdout) <= LIMIT
    opened = open_run(run)
    ops = opened.events("op", columns=["name"])["name"].to_pylist()
    assert ops[-1] == "aten::sinh"
    assert opened.events("phase")["name"].to_pylist() == ["backward"]
    assert [t.name for t in opened.threads] == ["main"]
    # THREAD and ones(), which ran before, may be overwritten too.
    assert 0 <= len(ops) + opened.coverage["overwritten"] - 20_002 <= 3


@pytest.mark.slow
@pytest.mark.parametrize("engine", OBSERVERS)
def test_threads_that_come_and_go(tmp_path: Path, engine: str) -> None:
    recorded = record_program(
        tmp_path,
        HELD
        + """
    def work():
        for _ in range(3):
            torch.ones(2).tan()
    for i in range(150):
        threads = [threading.Thread(target=work, name=f"t{i * 10 + j}") for j in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        look()
    print(most)
    """,
        "--keep-last",
        "1MB",
        "--engine",
        engine,
    )
    assert recorded.status == 0, recorded.stderr
    assert int(recorded.stdout) <= LIMIT
    run = open_run(recorded.run)
    kept = {t.name for t in run.threads}
    assert "t1499" in kept
    assert "t0" not in kept
    assert run.coverage["overwritten"] > 1_000
    assert run.dropped == 0


def test_in_code_and_in_forked_children(tmp_path: Path) -> None:
    program = write_program(
        tmp_path,
        """
        import os, sys, torch
        import lanescope.collector as ls
        x = torch.ones(2)
        with ls.record(sys.argv[1], keep_last="1MB"):
            for _ in range(20_000):
                x.tan()
            child = os.fork()
            if child == 0:
                for _ in range(20_000):
                    x.sinh()
                os._exit(0)
            os.waitpid(child, 0)
        """,
    )
    run = tmp_path / "run"
    done = fork_program(program, str(run))
    assert (done.returncode, done.stderr) == (0, "")
    opened = open_run(run)
    for process in opened.manifest["processes"]:
        assert process["coverage"]["overwritten"] > 1_000
    ops = set(opened.events("op", columns=["name"])["name"].to_pylist())
    assert {"aten::tan", "aten::sinh"} <= ops


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512KB", 512_000),
        ("64MB", 64_000_000),
        ("2 gb", 2_000_000_000),
        ("1MiB", 1_048_576),
        ("1.5MB", 1_500_000),
        ("300000", 300_000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "64XB", "1e9", "1MB2"])
def test_other_texts_are_not_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write a number of bytes or with KB"):
        parse_size(text)


def test_a_buffer_must_fit_into_memory(tmp_path: Path) -> None:
    memory_limit.check_buffer(800_000_000, memory=1_000_000_000)
    with pytest.raises(ValueError, match="more than 80% of the 1,000,000,000 bytes of memory here"):
        memory_limit.check_buffer(800_000_001, memory=1_000_000_000)
    with pytest.raises(ValueError, match="it must be at least"):
        memory_limit.check_buffer(1_000)
    (tmp_path / "memory.max").write_text("max\n")
    physical = memory_limit.memory_bytes(tmp_path)
    (tmp_path / "memory.max").write_text("123456789\n")
    assert memory_limit.memory_bytes(tmp_path) == 123_456_789 < physical
