"""A bundle says what its run says, byte for byte the same each time, and is read where it lies."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from lanescope.collector import manifest as manifests
from lanescope.collector import schema
from lanescope.collector.options import Options
from lanescope.collector.recorder import Recorder
from lanescope.webapp import bundle as bundles
from lanescope.webapp import parts, storage
from lanescope.webapp.bundle import BUNDLE, Bundle
from lanescope.webapp.cli import main
from lanescope.webapp.errors import RunError
from lanescope.webapp.files import Folder
from lanescope.webapp.notes import Notes
from lanescope.webapp.packer import pack
from lanescope.webapp.run import Run, open_run
from lanescope.webapp.timeline import Timeline
from lanescope.webapp.verifying import problems_of
from tests.synthetic import write_run

NOTES: dict[str, Any] = {
    "format": 1,
    "notes": [
        {"id": "a", "t0": 5, "t1": 9, "lane": "0/1000-0", "text": "early"},
        {"id": "b", "t0": 2_500_000, "t1": 2_600_000, "lane": None, "text": "in step 2"},
    ],
    "views": [{"name": "step 2", "search": "?t=2400000-2700000&sel=1.0.3&q=mm"}],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_run(tmp_path_factory.mktemp("whole") / "run", ranks=4, threads=2, steps=4, ops=12)
    notes = Notes(Folder(path))
    notes.write(NOTES, notes.read()[1])
    return path


@pytest.fixture(scope="module")
def packed(whole: Path) -> Path:
    target = whole.parent / "run.lanes"
    pack(open_run(whole), target, cache=whole.parent / "cache")
    return target


@pytest.fixture
def bundle(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(packed, tmp_path))


def lanescope(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


def same_rows(one: Run, other: Run) -> None:
    for table in schema.TABLES:
        for rank in one.ranks:
            assert one.events(table, rank).equals(other.events(table, rank)), (table, rank)


def test_a_bundle_is_its_run(whole: Path, bundle: Path, tmp_path: Path) -> None:
    run, packed = open_run(whole), open_run(bundle)
    assert packed.etag == run.etag
    assert packed.manifest == run.manifest
    assert packed.warnings == ()
    assert packed.threads == run.threads
    same_rows(run, packed)
    assert Notes(packed.files).read()[0] == NOTES
    assert "bundle" in Notes(packed.files).why_not
    with pytest.raises(RunError, match="bundle"):
        Notes(packed.files).write(NOTES, Notes(packed.files).read()[1])
    assert lanescope("diff", whole, bundle).exit_code == 0


def test_commands_open_a_bundle(whole: Path, bundle: Path) -> None:
    for command in ("info", "check"):
        told = [lanescope(command, "--json", path) for path in (whole, bundle)]
        assert told[0].exit_code == told[1].exit_code
        answers = [json.loads(one.stdout) for one in told]
        assert answers[0] | {"run": ""} == answers[1] | {"run": ""}


def test_the_same_run_gives_the_same_bytes(whole: Path, bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    os.utime(copy / schema.MANIFEST, (0, 0))
    pack(open_run(copy), tmp_path / "again.lanes")
    assert (tmp_path / "again.lanes").read_bytes() == bundle.read_bytes()
    # An unzipper takes it for what it is: a zip file in which nothing is compressed.
    with zipfile.ZipFile(bundle) as archive:
        assert archive.testzip() is None
        listed = json.loads(archive.read(BUNDLE))["members"]
        for entry in archive.infolist():
            assert entry.compress_type == zipfile.ZIP_STORED
            if entry.filename != BUNDLE:
                digest = hashlib.sha256(archive.read(entry)).hexdigest()
                assert listed[entry.filename] == {"bytes": entry.file_size, "sha256": digest}
        archive.extractall(tmp_path / "out")
    same_rows(open_run(tmp_path / "out"), open_run(whole))


def test_some_ranks(whole: Path, tmp_path: Path) -> None:
    target = tmp_path / "some.lanes"
    assert lanescope("pack", whole, "-o", target, "--ranks", "1,3").exit_code == 0
    run = open_run(target)
    assert run.ranks == (1, 3)
    assert run.warnings == ("ranks 0, 2 of 4 missing from the run",)
    assert not run.complete
    assert lanescope("verify", target).stdout == f"{target}: whole, ranks 1, 3 of 4\n"
    assert (
        open_run(whole)
        .events("op", 3)
        .select(["name"])
        .equals(run.events("op", 3).select(["name"]))
    )
    # Instants count from the first event, which is another one; lanes have other numbers.
    kept = Notes(run.files).read()[0]
    assert [one["t0"] for one in kept["notes"]] == [2_499_000]
    assert kept["views"][0]["search"] == "?t=2399000-2699000&q=mm"


def test_some_steps(whole: Path, tmp_path: Path) -> None:
    target = tmp_path / "window.lanes"
    result = lanescope("pack", whole, "-o", target, "--steps", "2:3")
    assert result.exit_code == 0, result.stderr
    run, all_of_it = open_run(target), open_run(whole)
    assert run.warnings == ("only the steps 2 to 2 were packed",)
    assert set(run.events("phase")["step"].to_pylist()) == {2}
    assert run.counts["op"] == 4 * 2 * 12
    ops = all_of_it.events("op", 0).to_pylist()
    wanted = [op["name"] for op in ops if op["step"] == 2]
    assert run.events("op", 0)["name"].to_pylist() == wanted
    assert run.duration_ns < 1_200_000
    assert [one["text"] for one in Notes(run.files).read()[0]["notes"]] == ["in step 2"]
    assert lanescope("verify", target).exit_code == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ranks", "7"], "rank 7: no such rank; this run has 0-3 of 4"),
        (["--ranks", "a"], "--ranks is 'a', expected ranks such as 0,2-5"),
        (["--ranks", "3-1"], "expected ranks such as"),
        (["--steps", "5"], "expected A:B with A before B"),
        (["--steps", "3:3"], "expected A:B with A before B"),
        (["--steps", "90:99"], "no event has a step from 90 to 98; the run has 0 to 3"),
    ],
)
def test_what_is_not_there_is_refused(
    whole: Path, tmp_path: Path, options: list[str], said: str
) -> None:
    result = lanescope("pack", whole, "-o", tmp_path / "no.lanes", *options)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_what_a_dead_process_left_is_packed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    manifests.create(path, Options(), ["program"], world_size=1)
    recorder = Recorder(path, Options())
    recorder.describe(
        pid=os.getpid(), parent_pid=1, rank=0, world_size=1, role="rank", host="h",
        engine="portable", start_ns=1, end_ns=0, closed=False, argv=["program"], python="3",
        torch="2", modules_root="", clock_identity="c", wall_minus_monotonic_ns=0,
    )  # fmt: skip
    state = recorder.thread()
    stack = recorder.intern("a.py\t1\tf")
    for k in range(50):
        recorder.put(state, schema_kind("OP"), name=recorder.intern(f"op{k}"), start=100 * k,
                     end=100 * k + 90, sequence=k, stack=stack)  # fmt: skip
    run = open_run(path)
    pack(run, tmp_path / "dead.lanes")
    packed = open_run(tmp_path / "dead.lanes")
    same_rows(run, packed)
    assert packed.counts["op"] == 50
    assert packed.warnings == run.warnings
    assert any("did not close its log" in text for text in packed.warnings)
    assert problems_of(tmp_path / "dead.lanes")[1] == []


def schema_kind(name: str) -> Any:
    from lanescope.collector.journal import Kind

    return Kind[name]


def test_a_bundle_is_read_through_a_file_system_of_any_kind(
    whole: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As from an object store: by requests for parts, here of files of this machine.
    monkeypatch.setattr(storage, "BLOCK", 5000)
    address = bundle.as_uri()
    run = open_run(address)
    assert run.files.place == run.title == address
    same_rows(open_run(whole), run)
    assert Timeline.open(run).index.lanes == Timeline.open(open_run(bundle)).index.lanes
    assert lanescope("verify", address).exit_code == 0
    copy = f"{address}.copy"
    assert lanescope("pack", address, "-o", copy).exit_code == 0
    assert Path(f"{bundle}.copy").read_bytes() == bundle.read_bytes()
    for wrong, said in (
        (f"{address}.no", "no such object; expected a bundle"),
        ("nosuch://bucket/x.lanes", "expected a path, or the address of an object"),
    ):
        result = lanescope("info", wrong)
        assert result.exit_code == 2
        assert said in result.stderr


# ---- damage ----

STACK_FILE = "rank=00002/stack.parquet"
OP_FILE = "rank=00001/thread=1001-0/op-00000.parquet"


def flipped(bundle: Path, name: str, at: int = 40) -> None:
    """Changes one byte of a member."""
    packed = open_run(bundle).files
    assert isinstance(packed, Bundle)
    place = packed._place(name)[0] + at
    with bundle.open("r+b") as file:
        file.seek(place)
        old = file.read(1)
        file.seek(place)
        file.write(bytes([old[0] ^ 0xFF]))


def test_verify_names_the_member_that_was_changed(bundle: Path) -> None:
    flipped(bundle, "notes.json")
    flipped(bundle, OP_FILE)
    flipped(bundle, STACK_FILE)
    result = lanescope("verify", bundle)
    assert result.exit_code == 1
    for name in ("notes.json", OP_FILE, STACK_FILE):
        assert f"{name!r} was changed: its checksum" in result.stdout
    told = json.loads(lanescope("verify", "--json", bundle).stdout)
    assert told["whole"] is False
    assert len(told["problems"]) >= 3


def test_verify_checks_a_directory_too(whole: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    assert lanescope("verify", copy).exit_code == 0
    data = bytearray((copy / OP_FILE).read_bytes())
    data[100] ^= 0xFF
    (copy / OP_FILE).write_bytes(data)
    result = lanescope("verify", copy)
    assert result.exit_code == 1
    assert f"{OP_FILE!r} was changed" in result.stdout
    refused = lanescope("pack", copy, "-o", tmp_path / "no.lanes")
    assert refused.exit_code == 2
    assert "does not have the checksum" in refused.stderr
    assert lanescope("verify", tmp_path / "nothing").exit_code == 2


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.9999])
def test_a_truncated_bundle_is_said_to_be_one(bundle: Path, share: float) -> None:
    data = bundle.read_bytes()
    bundle.write_bytes(data[: int(len(data) * share)])
    for command in (["verify"], ["info"], ["check"], ["view", "--no-browser"]):
        result = lanescope(*command, bundle)
        assert result.exit_code == 2
        assert "it is truncated" in result.stderr
        assert result.stderr.count("\n") == 1


# ---- hostile bundles ----

Make = Callable[[zipfile.ZipFile], object]


def info(name: str, **fields: Any) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry


def twice(archive: zipfile.ZipFile) -> None:
    archive.writestr("a", b"1")
    with pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("a", b"2")


LISTING = b'{"format": 1, "members": {%s}}'

HOSTILE: list[tuple[str, Make, str]] = [
    ("up", lambda z: z.writestr("../x", b""), "expected paths that stay inside the run"),
    ("up below", lambda z: z.writestr("rank=00000/../../x", b""), "stay inside the run"),
    ("absolute", lambda z: z.writestr("/etc/x", b""), "stay inside the run"),
    ("drive", lambda z: z.writestr("c:/x", b""), "stay inside the run"),
    ("backslash", lambda z: z.writestr("a\\b", b""), "stay inside the run"),
    ("folder", lambda z: z.writestr("rank=00000/", b""), "stay inside the run"),
    ("name", lambda z: z.writestr("a\nb", b""), "which no file of a run is"),
    ("unicode", lambda z: z.writestr("\N{RIGHT-TO-LEFT OVERRIDE}a", b""), "no file of a run"),
    ("long", lambda z: z.writestr("a" * 250, b""), "which no file of a run is"),
    (
        "link",
        lambda z: z.writestr(info("x", create_system=3, external_attr=0o120777 << 16), b"/etc"),
        "is a link",
    ),
    ("twice", twice, "has two members named 'a'"),
    (
        "bomb",
        lambda z: z.writestr(info("x", compress_type=zipfile.ZIP_DEFLATED), bytes(50_000_000)),
        "is compressed",
    ),
    ("nothing", lambda z: None, "without bundle.json"),
    ("other", lambda z: z.writestr("readme", b""), "without bundle.json"),
    ("json", lambda z: z.writestr(BUNDLE, b"{"), "is not valid JSON"),
    ("deep", lambda z: z.writestr(BUNDLE, b"[" * 100_000), "is not valid JSON"),
    ("list", lambda z: z.writestr(BUNDLE, b"[]"), "holds no format version"),
    (
        "newer",
        lambda z: z.writestr(BUNDLE, b'{"format": 2}'),
        "has format 2, this version reads 1; upgrade with",
    ),
    (
        "missing",
        lambda z: z.writestr(BUNDLE, LISTING % b'"a": {"bytes": 1, "sha256": ""}'),
        "the member 'a' is missing",
    ),
    (
        "unlisted",
        lambda z: [z.writestr(BUNDLE, LISTING % b""), z.writestr("x.sh", b"")],
        "holds 'x.sh', which bundle.json does not list",
    ),
]


@pytest.mark.parametrize(("make", "said"), [h[1:] for h in HOSTILE], ids=[h[0] for h in HOSTILE])
def test_a_hostile_bundle_is_refused(tmp_path: Path, make: Make, said: str) -> None:
    path = tmp_path / "x.lanes"
    with zipfile.ZipFile(path, "w") as archive:
        make(archive)
    with pytest.raises(RunError) as caught:
        open_run(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert lanescope("verify", path).exit_code == 2


def test_members_that_overlap_or_are_encrypted_are_refused(bundle: Path) -> None:
    data = bytearray(bundle.read_bytes())
    entry = data.rfind(b"PK\1\2")
    plain = bytes(data)
    data[entry + 8] |= 1
    bundle.write_bytes(data)
    assert "is encrypted" in refusal(bundle)
    data[:] = plain
    data[entry + 42 : entry + 46] = (64).to_bytes(4, "little")  # where another member begins
    bundle.write_bytes(data)
    assert "reaches into what comes after it" in refusal(bundle)
    data[:] = plain
    data[entry + 20 : entry + 28] = (10**9).to_bytes(4, "little") * 2
    bundle.write_bytes(data)
    assert "reaches into what comes after it" in refusal(bundle)


def refusal(path: Path) -> str:
    with pytest.raises(RunError) as caught:
        open_run(path)
    return str(caught.value)


@pytest.mark.parametrize("data", [b"", b"PK", b"hello, world\n" * 100, b"PK\3\4" + bytes(100)])
def test_what_is_no_zip_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.lanes").write_bytes(data)
    assert "bundle" in refusal(tmp_path / "x.lanes")
    assert lanescope("info", tmp_path / "x.lanes").exit_code == 2


def test_too_many_members_are_refused(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_MEMBERS", 20)
    assert "members, expected at most 20" in refusal(bundle)


def test_a_parquet_file_that_says_it_holds_gigabytes_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path / "run", ranks=2, threads=1, steps=2, ops=8)
    name = "rank=00001/thread=1001-0/gradient-00000.parquet"
    shape, rows = schema.GRADIENT.arrow(), 1 << 21
    zeros = pa.array(np.zeros(rows, np.int64))
    columns = [
        zeros.cast(f.type) if pa.types.is_integer(f.type) else pa.nulls(rows, f.type) for f in shape
    ]
    pq.write_table(pa.table(columns, schema=shape), path / name, compression="zstd")
    manifest = json.loads((path / schema.MANIFEST).read_text())
    data = (path / name).read_bytes()
    manifest["files"][name] = {
        "bytes": len(data), "rows": rows, "sha256": hashlib.sha256(data).hexdigest(),
    }  # fmt: skip
    (path / schema.MANIFEST).write_text(json.dumps(manifest))
    # Of a file this large nobody is afraid: the bound is put where a test can reach it.
    assert open_run(path).ranks == (0, 1)
    monkeypatch.setattr(parts, "MAX_DECODED", 64 << 20)
    monkeypatch.setattr(parts, "MAX_EXPANSION", 200)
    run = open_run(path)
    assert run.ranks == (0,)
    assert any("bytes hold" in warning for warning in run.warnings)
