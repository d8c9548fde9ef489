"""A bundle that was damaged, or made by a stranger: refused in one sentence, or named by verify."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp.runs import bundle as bundles
from lanescope.webapp.runs.bundle import BUNDLE, Bundle
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import open_run
from tests.support.bundled import lanescope

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
    answer = json.loads(lanescope("verify", "--json", bundle).stdout)
    assert answer["whole"] is False
    assert len(answer["problems"]) >= 3


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
def test_files_that_are_not_zip_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.lanes").write_bytes(data)
    assert "bundle" in refusal(tmp_path / "x.lanes")
    assert lanescope("info", tmp_path / "x.lanes").exit_code == 2


def test_too_many_members_are_refused(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_MEMBERS", 20)
    assert "members, expected at most 20" in refusal(bundle)
