"""Damaged and hostile files: rejected in one sentence, or imported as far as possible."""

from __future__ import annotations

import gzip
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lanescope.collector.importers import (
    decompress,
    flight_recorder,
    json_stream,
    kineto,
    spill,
    to_tables,
)
from lanescope.collector.importers.chrome_trace import complete_events, other_events
from lanescope.collector.importers.import_limits import ImportRejected
from lanescope.collector.importers.run_writer import import_files
from lanescope.webapp.runs.run import open_run
from tests.collector.importers.test_import_ranks import dump
from tests.support.trace_files import accounted, imported, kernel, slice_, write_trace


def seeds() -> list[bytes]:
    """A small file of each kind."""
    args = {"Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"], "Sequence number": 3}
    comm = {
        "Collective name": "allreduce",
        "Process Group Name": "0",
        "Group size": 2,
        "In msg nelems": 4,
        "dtype": "Float",
    }
    memory = {"Total Allocated": 5, "Device Type": 1, "Device Id": 0}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}},
        slice_("ProfilerStep#3", 1, 90.5, cat="user_annotation"),
        slice_("aten::mm", 5.125, 10, cat="cpu_op", args=args),
        slice_("c10d::allreduce_", 20, 9, cat="cpu_op", args=args),
        slice_("record_param_comms", 21, 7, cat="cpu_op", args=comm),
        slice_("nccl:all_reduce", 22, 5, cat="user_annotation", args=args),
        slice_("cudaLaunchKernel", 23, 1, cat="cuda_runtime", args={"correlation": 9}),
        kernel("ncclDevKernel_AllReduce", 30, 5, 7, 9),
        {"ph": "B", "name": "b", "ts": 40, "pid": 7, "tid": 8},
        {"ph": "E", "ts": 45, "pid": 7, "tid": 8},
        {"ph": "b", "name": "a", "cat": "net", "id": 1, "ts": 40, "pid": 7, "tid": 7},
        {"ph": "e", "name": "a", "cat": "net", "id": 1, "ts": 49, "pid": 7, "tid": 7},
        {"ph": "i", "name": "[memory]", "ts": 50, "pid": 7, "tid": 7, "args": memory},
        {"ph": "C", "name": "c", "ts": 51, "pid": 7, "args": {"x": 1.5}},
        {"ph": "s", "cat": "flow", "name": "f", "id": 4, "ts": 52, "pid": 7, "tid": 7},
        {"ph": "f", "cat": "flow", "name": "f", "id": 4, "ts": 53, "pid": 7, "tid": 8},
    ]
    info = {"rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    whole = {
        "schemaVersion": 1,
        "distributedInfo": info,
        "traceEvents": events,
        "baseTimeNanoseconds": 10**18,
    }
    frames = [{"name": "main", "filename": "train.py", "line": 3}]
    dumped = dump(1, 2, 3, pg_status={"0": {"last_enqueued_collective": 3}})
    dumped["entries"][0]["frames"] = frames
    return [
        json.dumps(whole).encode(),
        json.dumps(events).encode(),
        json.dumps(dumped).encode(),
        pickle.dumps(dumped, 2),
        pickle.dumps(dumped, 4),
        gzip.compress(json.dumps(whole).encode()),
    ]


PIECES = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"\\",
    b"\\ud800",
    b"\xff",
    b"null",
    b"NaN",
    b"-1",
    b"1e999",
    b"9" * 30,
    b"9223372036854775807",
    b"-9223372036854775808",
    b"true",
    b"{}",
    b"[]",
    b'"X"',
    b'"\\u0000"',
    b"0.0000000001",
    b"\x00",
    b"\x1f\x8b",
    b"\x80\x04",
    b'{"a":' * 50,
    b"[" * 2000,
    b"1152921504606846976",
    b'"E"',
    b'"ts"',
    b'"name"',
    b"R",
    b"b",
    b"c",
    b"\x95",
    b'"\xc2\xb2"',
    b'"--5"',
]
"""What mutations put in."""


def mutated(data: bytes, chance: random.Random) -> bytes:
    """A file with some bytes changed, moved, doubled, lost, or replaced by special ones."""
    result = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(result) + 1)
        stop = min(len(result), at + chance.choice((1, 2, 8, 60)))
        match chance.randrange(6):
            case 0:
                result[at:stop] = chance.choice(PIECES)
            case 1:
                result[at:at] = chance.choice(PIECES)
            case 2:
                del result[at:stop]
            case 3:
                other = chance.randrange(len(result) + 1)
                result[other:other] = result[at:stop]
            case 4:
                result[at:stop] = bytes(chance.randrange(256) for _ in range(stop - at))
            case _:
                del result[at:]
        if not result:
            break
    return bytes(result)


def refusal(path: Path, run: Path) -> str:
    """Returns the sentence with which a file is rejected; empty: it was imported."""
    try:
        import_files([path], run)
    except ImportRejected as error:
        return str(error)
    return ""


def attempt(data: bytes, folder: Path) -> bool:
    """Import a file; whether it could be. Every other end than a sentence is a failure."""
    path, run = folder / "trace_rank0.json", folder / f"run-{len(list(folder.iterdir()))}"
    path.write_bytes(data)
    sentence = refusal(path, run)
    if sentence:
        assert "\n" not in sentence
        assert len(sentence) < 1000
        assert not run.exists()
        return False
    opened = open_run(run)
    accounted(opened)
    for table in ("op", "phase", "value", "collective", "sync"):
        opened.events(table)
    opened.steps(0)
    return True


def fuzz(folder: Path, seed: int, count: int) -> None:
    chance = random.Random(seed)
    samples = seeds()
    done = sum(attempt(mutated(chance.choice(samples), chance), folder) for _ in range(count))
    assert 0 < done < count  # else the mutations change nothing, or nothing is left of any file


@pytest.mark.slow
def test_mutations_are_rejected_or_imported_in_part(tmp_path: Path) -> None:
    assert all(attempt(data, tmp_path) for data in seeds())
    fuzz(tmp_path, 1, 1_000)


@pytest.mark.slow
@pytest.mark.soak
def test_many_mutations_are_rejected_or_imported_in_part(tmp_path: Path) -> None:
    fuzz(tmp_path, 2, 10_000)


@pytest.mark.parametrize("depth", [900, 9_000, 11_000])
def test_deep_nesting_does_not_recurse(depth: int, tmp_path: Path) -> None:
    for opening, closing in ((b'{"a":', b"}"), (b"[", b"]")):
        deep = opening * depth + b"1" + closing * depth
        for text in (
            b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1, "name": "a", "args": %b}]}' % deep,
            b'{"x": %b, "traceEvents": [{"ph": "X", "ts": 1, "dur": 1, "name": "a"}]}' % deep,
            b'{"distributedInfo": %b, "traceEvents": [{"ph": "X", "ts": 1, "dur": 1}]}' % deep,
            b"[%b]" % deep,
            b'{"entries": %b}' % deep,
            deep,
        ):
            attempt(text, tmp_path)


def _dumped(value: Any) -> bytes:
    """The instructions that build a value, without the first and the last one."""
    return pickle.dumps(value, 2)[2:-1]


def test_a_pickle_that_names_a_list_a_million_times_takes_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = dump(1, 2)["entries"][0] | {
        "frames": [{"name": "step", "filename": "train.py", "line": n} for n in range(100)]
    }
    named, kept = b"j\xff\0\0\0", b"r\xff\0\0\0"
    entries = b"](" + _dumped(entry) + kept + named * 999 + b"e"
    ranks = b"](" + b"K\1" * 1000 + b"e" + kept
    groups = b"".join(
        _dumped(str(number)) + b"}" + _dumped("ranks") + (named if number else ranks) + b"s"
        for number in range(1000)
    )
    monkeypatch.setattr(flight_recorder, "MAX_DUMP_VALUES", 10_000)
    path = tmp_path / "dump.pickle"
    for listed, unread in ((b"}", "stacks"), (b"}(" + groups + b"u", "groups")):
        both = _dumped("pg_config") + listed + _dumped("entries") + entries
        path.write_bytes(b"\x80\2}(" + both + b"u.")
        run = imported(tmp_path / unread, path)
        assert run.coverage["imported_calls"] == 1000
        assert 900 <= run.coverage[f"unread_{unread}"] < 1000
        assert any(f" {unread}" in warning for warning in run.warnings)
    monkeypatch.setattr(flight_recorder, "MAX_DUMP_ENTRIES", 999)
    assert "holds 1,000 entries" in refusal(path, tmp_path / "run")


def test_keys_of_a_pickle_are_plain(tmp_path: Path) -> None:
    # To hash such a key overflows the machine's stack, or takes 2 to the 60th turns.
    deep = b"N" + b"\x85" * 300_000
    doubled = b"N" + b"".join(b"\x94h" + bytes([level]) + b"\x86" for level in range(60))
    path = tmp_path / "dump.pickle"
    for key in (deep, doubled):
        path.write_bytes(b"\x80\4}" + key + b"Ns.")
        assert "is not a complete pickle" in refusal(path, tmp_path / "run")


def test_files_beyond_a_limit_are_rejected_or_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_TABLE_ROWS", "MAX_NAMES"):
        monkeypatch.setattr(spill, name, 100)
    for name, module in (
        ("MAX_NAMED_THREADS", other_events),
        ("MAX_METADATA_VALUES", json_stream),
        ("MAX_STEPS", kineto),
        ("MAX_LAUNCHES", to_tables),
        ("MAX_PHASES", to_tables),
        ("MAX_COLLECTIVES", complete_events),
    ):
        monkeypatch.setattr(module, name, 20)
    count = range(60)
    for words, every in (
        ("more than 100 slices", [slice_("a", n, 1) for n in range(101)]),
        (
            "more than 100 values",
            [{"ph": "C", "name": "c", "ts": n, "args": {"x": 1, "y": 2}} for n in count],
        ),
        ("more than 100 arrows", [{"ph": "t", "id": n, "ts": n} for n in count]),
        ("100 of different names", [slice_(f"{n}", n, 1) for n in range(101)]),
        ("id has more than 2000", [slice_("a", 1, 1, tid="x" * 2001)]),
    ):
        path = write_trace(tmp_path / "trace.json", every)
        assert words in refusal(path, tmp_path / "run")
    for words, every in (
        ("names", [{"ph": "M", "name": "thread_name", "tid": n, "args": {}} for n in count]),
        (
            "launches",
            [slice_("l", n, 1, cat="cuda_runtime", args={"correlation": n}) for n in count],
        ),
        ("ends of steps", [slice_("Optimizer.step#a", n, 1, cat="user_annotation") for n in count]),
        ("phases", [slice_("Optimizer.step#a", n, 1, cat="user_annotation") for n in count]),
        ("collectives", [slice_("c10d::send", n, 1, cat="cpu_op") for n in count]),
    ):
        path = write_trace(tmp_path / "trace.json", [slice_("a", 0, 1), *every])
        run = imported(tmp_path / words, path)
        accounted(run)
        assert any(f" {words}" in warning for warning in run.warnings), words
    path = write_trace(tmp_path / "trace.json", [slice_("a", 0, 1)], distributedInfo=list(count))
    assert any("1 members" in warning for warning in imported(tmp_path / "run", path).warnings)


def test_slices_without_end_and_many_levels_take_little_time(tmp_path: Path) -> None:
    nested = [slice_("a", i, 100_000 - 2 * i) for i in range(40_000)]
    crossing = [slice_("b", i, 50_000, tid=8) for i in range(20_000)]
    begun = [{"ph": "B", "name": "c", "ts": i, "pid": 7, "tid": 9} for i in range(20_000)]
    run = imported(tmp_path / "run", write_trace(tmp_path / "t.json", nested + crossing + begun))
    assert accounted(run) == {"imported_slices": 80_000}
    depth = run.events("op", 0, "7-0", ["depth"])["depth"].to_numpy()
    assert depth.max() == 32_000
    assert (np.diff(depth) >= 0).all()


def test_expansion_is_limited_before_memory_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decompress, "MIN_CHECKED_BYTES", 1 << 20)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (24 << 20)))
    reader = decompress.Blocks(path)
    with pytest.raises(ImportRejected, match="unpacks to more than 400 times its size"):
        imported(tmp_path / "run", path)
    with pytest.raises(ImportRejected):
        list(reader)
    bound = decompress.MAX_EXPANSION * path.stat().st_size + decompress.BLOCK_BYTES
    assert reader.unpacked <= bound


def test_gigantic_events_and_texts_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream, "MAX_MEMBER_BYTES", 1 << 20)
    monkeypatch.setattr(json_stream, "MAX_EVENT_BYTES", 1 << 20)
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 1 << 18)
    path = tmp_path / "trace.json"
    long = b"x" * (3 << 20)
    for text, words in (
        (b'{"traceEvents": [{"ph": "X", "name": "' + long + b'"}]}', "more than 1 MB"),
        (b'{"traceEvents": [{"ph": "X", "args": [' + b"1," * (1 << 20) + b"1]}]}", "an event of"),
        (b'{"traceEvents": [' + b"1" * (3 << 20) + b"]}", "not JSON"),
        (b'{"' + long + b'": 1}', "a text of"),
    ):
        path.write_bytes(text)
        with pytest.raises(ImportRejected, match=words):
            imported(tmp_path / "run", path)
    # An unused member may have any length: it is skipped and counted.
    path.write_bytes(
        b'{"files": [' + b"1," * (1 << 20) + b'1], "traceEvents": [{"ph": "X", "ts": 1, "dur": 2}]}'
    )
    run = imported(tmp_path / "run", path)
    assert any("1 members" in warning for warning in run.warnings)
