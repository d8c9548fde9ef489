"""Nothing that is to be left out is anywhere in a redacted bundle, and the rest still is."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanescope.collector.format import schema
from lanescope.collector.format.names import ENVIRONMENT, SETTINGS
from lanescope.webapp.bundles.redaction import _FIXED, Redactor
from lanescope.webapp.bundles.writer import pack
from lanescope.webapp.runs.files import Folder
from lanescope.webapp.runs.notes import Notes
from lanescope.webapp.runs.run import open_run
from tests.support.synthetic import START_NS, Builder

HOST = "gpu-node-17.corp.example"
SECRETS = (
    "gpu-node-17",
    "corp.example",
    "alice",
    "TOKEN-12345",
    "vault",
    "plans",
    "projectphoenix",
    "10.1.2.3",
    "/home",
    "boot-77",
    "hunter2",
    "carol",
    "relay9",
)
PLANTED = (
    f"on {HOST} by alice with TOKEN-12345: 'No such file: \"/mnt/vault/the plans/x.bin\"' "
    "/home/alice/secret at tcp://10.1.2.3:29500 and 10.1.2.3, projectphoenix, "
    "for carol@relay9.example.org"
)
TEXTS = (PLANTED, f"/mnt/vault/plans/{HOST}.py", f"worker-{HOST}", "ALICE", "gpu-node-17")
WORDS = tuple(text for text in TEXTS if text != PLANTED)
"""For columns with words of the recorder's own, in which no argument can be."""


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, bytes]]:
    """The members of a redacted bundle of a run with secrets in every text there is."""
    folder = tmp_path_factory.mktemp("redaction")
    builder = Builder(
        folder / "run",
        command=["torchrun", "train.py", "--token=TOKEN-12345", "--data", "/mnt/vault/plans/x.bin"],
        notes=[PLANTED],
        options={"include": [PLANTED], "compile_backend": "projectphoenix"},
        groups={"0": {"ranks": [0], "description": PLANTED}},
        axis={"clock_identity": "boot-77/time-1", "wall_minus_monotonic_ns": 0},
    )
    builder.process(
        host=HOST,
        argv=["/home/alice/work/train.py", "--token=TOKEN-12345", "projectphoenix", "--lr", "0.1"],
        exception="RuntimeError: password hunter2 (/home/alice/work/train.py:12)",
        modules_root=PLANTED,
        clock={"host": "boot-77/time-1"},
    )
    builder.thread(name=PLANTED)
    builder.op(START_NS, 10, "aten::mm", module="model.head", stack=7)
    for name, shape in schema.TABLES.items():
        if name in ("thread", "stack"):
            continue
        texts = {
            c.name: [PLANTED if c.name not in _FIXED else WORDS[0], *WORDS]
            for c in shape.columns
            if pa.types.is_dictionary(c.type) or pa.types.is_string(c.type)
        }
        instant = "start_ns" if any(c.name == "start_ns" for c in shape.columns) else "time_ns"
        times = {instant: [START_NS + k for k in range(len(TEXTS))]} if shape.per_thread else {}
        builder.rows(name, 0, "1000-0" if shape.per_thread else None, **times, **texts)
    files = [
        "/home/alice/work/train.py",
        "/home/alice/work/pkg/model.py",
        "/mnt/vault/plans/lib.py",
        "/opt/alice/lib/python3.11/site-packages/torch/nn/modules/linear.py",
        "/opt/alice/lib/python3.11/threading.py",
        "<string>",
    ]
    frames = [{"file": file, "line": 3, "function": "f"} for file in files]
    builder.rows("stack", 0, None, stack=[7], frames=[frames])
    path = builder.write()
    notes = Notes(Folder(path))
    written = {
        "format": 1,
        "notes": [{"id": "a", "t0": 1, "t1": 2, "lane": None, "text": PLANTED}],
        "views": [{"name": PLANTED, "search": "?q=%2Fmnt%2Fvault%2Fplans&lanes=alice&t=1-2"}],
    }
    notes.write(written, notes.read()[1])
    pack(open_run(path), folder / "run.lanes", redact=True)
    with zipfile.ZipFile(folder / "run.lanes") as archive:
        archive.extractall(folder / "out")
        yield {entry.filename: archive.read(entry) for entry in archive.infolist()}


def texts_of(data: bytes) -> Iterator[str]:
    """Every text in a Parquet file: cells, words of dictionaries that no cell has, statistics."""
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        yield str(file.metadata.metadata)
        for group in range(file.metadata.num_row_groups):
            for column in range(file.metadata.num_columns):
                yield str(file.metadata.row_group(group).column(column).statistics)
        table = file.read()
    for column in table.columns:
        yield str(column.to_pylist())
        if pa.types.is_dictionary(column.type):
            yield from (str(chunk.dictionary.to_pylist()) for chunk in column.chunks)


def test_no_secret_is_in_any_member(members: dict[str, bytes]) -> None:
    looked = 0
    for name, data in members.items():
        texts = [name, data.decode("latin-1")]
        if name.endswith(".parquet"):
            texts += texts_of(data)
            looked += 1
        for secret in SECRETS:
            for text in texts:
                assert secret.lower() not in text.lower(), (name, secret)
    assert looked == len(schema.TABLES) - 1
    assert f"rank=00000/{schema.SOURCE.name}.parquet" not in members


def test_what_a_run_is_about_stays(members: dict[str, bytes], tmp_path: Path) -> None:
    for name, data in members.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    run = open_run(tmp_path)
    assert run.warnings
    frames = run.events("stack")["frames"].to_pylist()[0]
    assert [frame["file"] for frame in frames] == [
        "train.py",
        "pkg/model.py",
        frames[2]["file"],
        "torch/nn/modules/linear.py",
        "python3.11/threading.py",
        "<string>",
    ]
    assert frames[2]["file"].startswith("<path ")
    op: dict[str, Any] = next(
        row for row in run.events("op").to_pylist() if row["name"] == "aten::mm"
    )
    assert op["module"] == "model.head"
    process = run.manifest["processes"][0]
    assert process["argv"] == ["train.py"]
    assert process["exception"] == "RuntimeError: <left out> (train.py:12)"
    assert run.manifest["command"] == []
    assert json.loads(members["manifest.json"])["processes"][0]["host"] == "host 1"
    assert run.clock_calibrated


def test_the_same_is_replaced_by_the_same() -> None:
    redactor = Redactor(hosts=["node-1", "node-2"], arguments=["phoenix"], users=["bob", "root"])
    assert redactor.text("node-2, node-1, node-2") == "<host 1>, <host 2>, <host 1>"
    assert redactor.text("/a/b") == redactor.text("/a/b") != redactor.text("/a/c")
    assert redactor.text("phoenix.layer") == "<argument 1>.layer"
    setting = f"{SETTINGS}{ENVIRONMENT}NCCL_SOCKET_IFNAME="
    assert redactor.text(f"{setting}eth0") == f"{setting}<variable 1>"
    assert redactor.text(f"{setting}eth0,eth1") == f"{setting}<variable 2>"
    assert redactor.text("bob and bobby, root") == "<user> and bobby, root"
    four = Redactor(arguments=["fire", "ice"])  # three letters are in every other word
    assert four.text("fire and ice") == "<argument 1> and ice"
    for plain in (
        "aten::add",
        "[4, 8] [8]",
        "lanescope/rss",
        "a/b",
        "0/1000-0",
        "module.0.weight",
        "3 / 4",
        "v2.13.0",
        "DDP's backward",
        "127.0.0.1",
        "x: int",
    ):
        assert redactor.text(plain) == plain
