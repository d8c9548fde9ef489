"""A manifest that is invalid or impossible: one sentence names the place and both values."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lanescope.collector.format import schema
from lanescope.webapp.runs.run import open_run
from tests.support.spoiled import OP_FILE, change, refusal, setter
from tests.support.synthetic import write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", ranks=2, threads=2, steps=2, ops=8)


@pytest.mark.parametrize("version", [schema.FORMAT_VERSION + 1, 70, 10**30])
def test_a_future_format_is_named_whatever_else_it_holds(tmp_path: Path, version: int) -> None:
    (tmp_path / schema.MANIFEST).write_text(json.dumps({"format": version, "new": {}}))
    found = refusal(tmp_path)
    shown = "a number of about 100 bits" if version == 10**30 else str(version)
    reads = f"this version reads up to {schema.FORMAT_VERSION}; upgrade with"
    assert f"the run has format {shown}, {reads}" in found


@pytest.mark.parametrize("version", [0, -1, "1", 1.0, None, True, [1]])
def test_a_format_that_is_not_a_version(run: Path, version: object) -> None:
    change(run, lambda manifest: manifest.update(format=version))
    assert "the format version is" in refusal(run)


MALFORMED: list[tuple[bytes, str]] = [
    (b"", "is not valid JSON"),
    (b"{", "is not valid JSON"),
    (b"\x89PNG\r\n\x1a\n", "byte 0 is not UTF-8"),
    (b'{"format": 1, "id": "\xff"}', "byte 21 is not UTF-8"),
    (b"\xef\xbb\xbf{}", "is not valid JSON"),
    (b"[" * 100_000, "is not valid JSON"),
    (b'{"format": ' + b"9" * 5000 + b"}", "is not valid JSON"),
    (b"[]", "holds a list of 0 without a format version"),
    (b"null", "holds None without a format version"),
    (b'"format"', "holds 'format' without a format version"),
    (b"{}", "holds an object of 0 without a format version"),
    (b'{"format": 1}', "it has no 'id'"),
    (b'{"format": NaN}', "the format version is nan"),
]


@pytest.mark.parametrize(("data", "reason"), MALFORMED)
def test_a_file_that_is_not_a_manifest(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / schema.MANIFEST).write_bytes(data)
    assert reason in refusal(tmp_path)


WRONG: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (setter("world_size", "2"), "world_size is '2', expected a whole number of 64 bits"),
    (setter("world_size", 0), "world_size is 0, expected 1 to 1000000"),
    (setter("world_size", 10**9), "world_size is 1000000000, expected 1 to 1000000"),
    (setter("world_size", 1), "processes[1].rank is 1, expected 0 to 0"),
    (setter("world_size", 10**400), "world_size is a number of about 1329 bits, expected"),
    (setter("world_size", True), "world_size is True, expected a whole number"),
    (setter("processes", {}), "processes is an object of 0, expected a list"),
    (setter("processes", 0, None), "processes[0] is None, expected an object"),
    (setter("processes", 0, "rank", -1), "processes[0].rank is -1, expected 0 to 1"),
    (setter("processes", 1, "rank", 2), "processes[1].rank is 2, expected 0 to 1"),
    (setter("processes", 1, "rank", 0.5), "processes[1].rank is 0.5, expected a whole number"),
    (setter("processes", 0, "pid", "x" * 99), "processes[0].pid is 'xxxx"),
    (setter("processes", 0, "clock", []), "processes[0].clock is a list of 0, expected an object"),
    (setter("processes", 0, "clock", "offset_ns", 2**63), "clock.offset_ns is 9223372036854775808"),
    (setter("processes", 0, "clock", "offset_ns", 2**63 - 1), "offset_ns is 9223372036854775807"),
    (setter("processes", 0, "clock", "drift_ppb", float("nan")), "drift_ppb is nan, expected a"),
    (setter("processes", 0, "clock", "drift_ppb", float("inf")), "drift_ppb is inf, expected a"),
    (setter("processes", 0, "clock", "drift_ppb", 10**400), "drift_ppb is a number of about"),
    (setter("processes", 0, "clock", "drift_ppb", -2e9), "drift_ppb is -2000000000.0, expected"),
    (setter("processes", 0, "clock", "uncertainty_ns", -1), "uncertainty_ns is -1, expected 0"),
    (setter("processes", 0, "coverage", "dropped", "many"), "coverage['dropped'] is 'many'"),
    (setter("processes", 0, "argv", [1]), "processes[0].argv[0] is 1, expected a text"),
    (setter("processes", 0, "host", "\ud800"), "processes[0].host holds text that is not valid"),
    (setter("files", []), "files is a list of 0, expected an object"),
    (setter("files", OP_FILE, 3), f"files['{OP_FILE}'] is 3, expected an object"),
    (setter("files", OP_FILE, "bytes", -1), ".bytes is -1, expected 0 to"),
    (setter("files", OP_FILE, "rows", 1e3), ".rows is 1000.0, expected a whole number"),
    (setter("complete", 1), "complete is 1, expected true or false"),
    (setter("exit_status", "0"), "exit_status is '0', expected one of int, null"),
    (setter("notes", [None]), "notes[0] is None, expected a text"),
    (setter("options", {"a": {}}), "options['a'] is an object of 0, expected one of str, int"),
]


@pytest.mark.parametrize(("how", "reason"), WRONG, ids=[reason[:50] for _, reason in WRONG])
def test_a_manifest_of_wrong_values(
    run: Path, how: Callable[[dict[str, Any]], None], reason: str
) -> None:
    found = refusal(change(run, how))
    assert reason in found
    assert found.endswith("the file is damaged or was not written by LaneScope")
    assert len(found) < 400 + len(str(run))


@pytest.mark.parametrize(
    "path",
    [
        "../op.parquet",
        "/etc/passwd",
        "rank=00000/../../x",
        "a//b",
        "./a",
        "",
        "C:/x",
        "a\\b",
        "a\0b",
        "rank=00000/thread=1-0/../../../op-00000.parquet",
    ],
)
def test_a_manifest_that_leads_outside(run: Path, path: str) -> None:
    entry = {"bytes": 1, "rows": 1, "sha256": ""}
    found = refusal(change(run, setter("files", path, entry)))
    assert "expected paths that stay inside the run" in found


def test_a_rank_beyond_the_world(run: Path) -> None:
    entry = {"bytes": 1, "rows": 1, "sha256": ""}
    found = refusal(change(run, setter("files", "rank=00009/stack.parquet", entry)))
    assert "expected ranks 0-1 at world size 2" in found


def test_a_process_listed_twice(run: Path) -> None:
    def twice(manifest: dict[str, Any]) -> None:
        manifest["processes"].append(manifest["processes"][0])

    assert "processes[2] lists process 1000 of rank 0 twice" in refusal(change(run, twice))


def test_a_pipe_in_place_of_the_manifest(run: Path) -> None:
    """Opening it would wait for a writer for good."""
    (run / "manifest.json").unlink()
    os.mkfifo(run / "manifest.json")
    assert "it is not a regular file" in refusal(run)


def test_files_of_a_kind_unknown_are_left_alone(run: Path) -> None:
    entry = {"bytes": 1, "rows": 1, "sha256": ""}
    opened = open_run(change(run, setter("files", "notes/view.json", entry)))
    assert opened.warnings == ("1 file of a kind unknown to this version was not read",)
