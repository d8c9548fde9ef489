"""Compaction while the recorded process lives, and compaction that dies in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanescope.collector.compaction import catalogue, chunks, compact, manifest, parts
from lanescope.collector.format.file_names import PART_CATALOGUE
from lanescope.collector.format.record_kinds import PhaseKind
from lanescope.collector.journal import journal, writer
from lanescope.collector.journal.journal import RecordKind
from lanescope.collector.recorder.recorder import Recorder
from lanescope.webapp.runs.run import open_run
from tests.support.growing import begin, write_ops

CHUNK = 1_500
OPS = 6_000


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setattr(chunks, "CHUNK_RECORDS", CHUNK)
    monkeypatch.setattr(writer, "LAST_SEGMENT_BYTES", journal.FIRST_SEGMENT_BYTES)
    return begin(tmp_path / "run")


def complete(recorder: Recorder) -> None:
    for i in range(0, OPS, 1_000):
        recorder.put(
            recorder.thread(),
            RecordKind.COLLECTIVE_END,
            name=recorder.intern("all_reduce"),
            end=9_000_000 + i,
            sequence=i,
            aux=recorder.intern("dp\t2\t"),
        )


def read(run: Path, table: str) -> pa.Table:
    listed = manifest.load_manifest(run)["files"]
    paths = [p for p in sorted(listed) if p.rpartition("/")[2].startswith(f"{table}-")]
    tables = [pq.read_table(run / p, partitioning=None) for p in paths]
    for path, rows in zip(paths, tables, strict=True):
        assert rows.num_rows == listed[path]["rows"]
        assert (run / path).stat().st_size == listed[path]["bytes"]
    return pa.concat_tables(tables).sort_by([("start_ns", "ascending")])


def check_whole(run: Path) -> None:
    ops = read(run, "op")
    assert ops["name"].to_pylist() == ["parent", "child"] * OPS
    assert set(ops["self_ns"].to_pylist()[::2]) == {70}
    assert ops["sequence"].to_pylist()[::2] == list(range(OPS))
    calls = read(run, "collective")
    assert calls["complete_ns"].to_pylist() == [9_000_000 + i for i in range(0, OPS, 1_000)]
    (thread,) = pq.read_table(run / "rank=00000/thread.parquet", partitioning=None).to_pylist()
    assert (thread["name"], thread["start_ns"]) == ("main", 1_000)
    assert thread["end_ns"] == 1_000 + 100 * (OPS - 1) + 90
    assert not (run / "journal").exists()


def test_a_live_process_is_compacted_step_by_step(recorder: Recorder) -> None:
    run = recorder.run
    parts = 0
    for first in range(0, OPS, 1_000):
        write_ops(recorder, first, 1_000)
        assert not compact.advance(run).done
        parts = len(list(run.glob("rank=*/thread=*/op-*.parquet")))
    assert parts >= 3
    # What is in the parts is no longer in the journal: disk stays bounded while recording.
    records = sum(len(r) for t in decode_log(recorder).threads for r in t.records())
    assert records < 2 * OPS
    complete(recorder)
    recorder.close()
    compact.compact(run)
    check_whole(run)


def test_a_closed_run_has_a_catalogue_of_its_files(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "WORTH_LISTING", 1)
    write_ops(recorder, 0, OPS)
    compact.compact(recorder.run)
    assert not (recorder.run / PART_CATALOGUE).exists()  # it goes on
    complete(recorder)
    recorder.close()
    compact.compact(recorder.run)
    listed = pq.read_table(recorder.run / PART_CATALOGUE).to_pylist()
    files = manifest.load_manifest(recorder.run)["files"]
    assert {row["path"]: row["rows"] for row in listed} == {p: f["rows"] for p, f in files.items()}


def decode_log(recorder: Recorder) -> Any:
    from lanescope.collector.compaction.reader import read_process

    assert recorder.folder is not None
    return read_process(recorder.folder)


class Died(BaseException):
    """Stands for a SIGKILL of the compactor."""


def dying(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if after:
            original(*args, **kwargs)
        raise Died

    monkeypatch.setattr(owner, name, wrapped)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (parts, "write_part"),
        (parts.PendingParts, "commit"),
        (parts.manifests, "write_manifest"),
        (parts.os, "replace"),
        (Path, "unlink"),
    ],
)
def test_a_compactor_that_dies_loses_and_doubles_nothing(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool
) -> None:
    run = recorder.run
    write_ops(recorder, 0, 3_000)
    with monkeypatch.context() as patched:
        dying(patched, owner, name, after=after)
        with pytest.raises(Died):
            compact.advance(run)
    write_ops(recorder, 3_000, OPS - 3_000)
    compact.advance(run)
    complete(recorder)
    recorder.close()
    compact.compact(run)
    check_whole(run)


def test_open_events_of_a_dead_process_come_out_unfinished(recorder: Recorder) -> None:
    write_ops(recorder, 0, 10)
    recorder.begin_phase("backward", PhaseKind.backward)
    recorder.close()
    compact.compact(recorder.run)
    (phase,) = read(recorder.run, "phase").to_pylist()
    assert (phase["name"], phase["duration_ns"]) == ("backward", None)


def write_short_threads(recorder: Recorder) -> None:
    """Ten pairs of ops in each of six threads that end; the first one makes a collective too."""

    def work(number: int) -> None:
        write_ops(recorder, 10 * number, 10)
        recorder.leave_thread()

    recorder.thread()  # of the main thread, which goes on
    for number in range(6):
        thread = threading.Thread(target=work, args=(number,))
        thread.start()
        thread.join()


def segments_of(recorder: Recorder) -> int:
    assert recorder.folder is not None
    return len(list(recorder.folder.glob(f"*{journal.SEGMENT_SUFFIX}")))


def check_short_threads(recorder: Recorder) -> None:
    recorder.close()
    compact.compact(recorder.run)
    run = open_run(recorder.run)
    assert run.counts["op"] == 120
    assert sorted(run.events("op")["start_ns"].to_pylist())[::2] == list(range(0, 6_000, 100))
    assert run.complete


def test_short_threads_are_finished_while_the_process_goes_on(recorder: Recorder) -> None:
    write_short_threads(recorder)
    assert segments_of(recorder) == 7
    assert not compact.advance(recorder.run).behind
    # That of the thread with a collective stays: another may know of its end.
    assert segments_of(recorder) == 2
    files = sorted(recorder.run.glob("rank=*/thread=*/op-*.parquet"))
    assert [pq.read_metadata(file).num_rows for file in files] == [20] * 5
    before = [file.read_bytes() for file in files]
    assert open_run(recorder.run).counts["op"] == 120
    check_short_threads(recorder)
    assert [file.read_bytes() for file in files] == before


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (parts, "write_part"),
        (parts.PendingParts, "commit"),
        (parts.manifests, "write_manifest"),
        (Path, "unlink"),
    ],
)
def test_a_death_while_short_threads_are_finished(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool
) -> None:
    write_short_threads(recorder)
    with monkeypatch.context() as patched:
        dying(patched, owner, name, after=after)
        with pytest.raises(Died):
            compact.advance(recorder.run)
    assert open_run(recorder.run).counts["op"] == 120
    check_short_threads(recorder)
