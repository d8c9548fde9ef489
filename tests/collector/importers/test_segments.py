"""One large trace that several workers read is the run that one makes of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from lanescope.collector.format.schema import TABLES
from lanescope.collector.importers.chrome_trace import segments
from lanescope.collector.importers.import_limits import ImportRejected
from lanescope.collector.importers.run_writer import import_files
from lanescope.webapp.runs.run import open_run
from tests.support.trace_files import DATA, imported, kernel, slice_

PLACE = {"pid": 7, "tid": 7}


@pytest.fixture(scope="module")
def workers() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        yield pool


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MIN_BYTES", 2000)


def some_events(count: int = 60) -> list[dict[str, Any]]:
    """Events of all kinds; names, lanes and signatures are others in each part of the file."""
    found: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "trainer"}},
        {"ph": "B", "name": "outer", "ts": 0, "args": {"from": "the first part"}, **PLACE},
    ]
    for n in range(count):
        at = 10 * n + 1
        args = {"Input Dims": [[n % 9, 4]], "Input type": ["float"], "Sequence number": n}
        found += [
            slice_(f"aten::op{n % 11}", at, 5, cat="cpu_op", tid=n % 5, args=args),
            kernel(f"gemm{n % 7}", at + 1, 2, n % 3, correlation=n),
            {"ph": "C", "name": "heap", "ts": at, "args": {"used": n}, **PLACE},
            {"ph": "i", "name": f"mark {n}", "ts": at, "s": "t", **PLACE},
            {"ph": "s", "id": n, "ts": at, "cat": "net", "name": "packet", **PLACE},
            {"ph": "f", "id": n, "ts": at + 3, "cat": "net", "name": "packet", **PLACE},
            {"ph": "b", "id": n, "ts": at, "cat": "load", "name": "read", **PLACE},
            {"ph": "e", "id": n, "ts": at + 9, "cat": "load", "name": "read", **PLACE},
        ]
    named = {"ph": "M", "name": "thread_name", "args": {"name": "loader"}, **PLACE}
    return [*found, named, {"ph": "E", "ts": 10 * count, "args": {"to": "the last"}, **PLACE}]


def everything(run: Path) -> dict[str, Any]:
    opened = open_run(run)
    tables = {name: opened.events(name).to_pylist() for name in TABLES}
    return {**tables, "coverage": opened.coverage, "warnings": opened.warnings}


def read_by(workers: Executor, file: Path, folder: Path) -> bool:
    """Whether the parts make the same run; False where the file was read as a whole."""
    parts = folder / "parts"
    parts.mkdir()
    found = segments.read_in_segments(file, parts, workers) is not None
    imported(folder / "alone", file)
    import_files([file], folder / "run", workers=workers)
    assert everything(folder / "run") == everything(folder / "alone")
    return found


@pytest.mark.parametrize("kind", ["object", "list", "bom", "truncated", "lines"])
def test_parts_make_the_same_run(workers: Executor, tmp_path: Path, kind: str) -> None:
    lines = kind == "lines"
    events = json.dumps(some_events(), indent=1 if lines else None)
    text = events if kind == "list" else f'{{"schemaVersion": 1, "traceEvents": {events}, "a": 1}}'
    text = ("\N{BOM}" if kind == "bom" else "") + (text[:-300] if kind == "truncated" else text)
    file = tmp_path / "trace.json"
    file.write_text(text, encoding="utf-8")
    assert read_by(workers, file, tmp_path)


def test_a_guess_that_is_wrong(workers: Executor, tmp_path: Path) -> None:
    # Parts would begin within texts that look like the end of an event.
    events = [slice_("x", n, 1, args={"said": '}, {"ph": 1, ' * 40}) for n in range(60)]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}).replace("\\", ""), encoding="utf-8")
    with pytest.raises(ImportRejected):
        imported(tmp_path / "broken", file)
    with pytest.raises(ImportRejected):
        import_files([file], tmp_path / "broken", workers=workers)
    nested = [slice_("x", n, 1, args={"said": [{"a": 1}, {"b": 2}] * 40}) for n in range(60)]
    file.write_text(json.dumps({"traceEvents": nested}), encoding="utf-8")
    assert not read_by(workers, file, tmp_path)


@pytest.mark.parametrize("file", sorted(DATA.glob("*.json.gz")), ids=lambda file: file.stem)
def test_traces_of_others(workers: Executor, tmp_path: Path, file: Path) -> None:
    plain = tmp_path / "trace.json"
    plain.write_bytes(gzip.decompress(file.read_bytes()))
    several = plain.stat().st_size > 1 << 20  # of few events each may be longer than a part
    assert read_by(workers, plain, tmp_path) or not several
