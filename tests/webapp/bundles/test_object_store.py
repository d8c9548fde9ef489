"""A bundle in an object store: written and read in place by the real S3 client over a socket.

The services: one of our own that counts the bytes fetched, and Moto's, which others wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from lanescope.webapp.bundles.writer import pack
from lanescope.webapp.runs import storage
from lanescope.webapp.runs.run import Run, open_run
from tests.support.bundled import lanescope
from tests.support.s3_server import Store, serving
from tests.support.synthetic import write_run

ADDRESS = "s3://bucket/runs/mine.lanes"
OBJECT = "/bucket/runs/mine.lanes"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with serving() as store:
        for name, value in store.settings.items():
            monkeypatch.setenv(name, value)
        yield store


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("store") / "run"
    return open_run(write_run(path, ranks=4, threads=2, steps=3, ops=4000))


def test_a_bundle_in_a_store_is_the_run(
    store: Store, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lanescope("pack", run.path, "-o", ADDRESS).exit_code == 0
    pack(run, tmp_path / "local.lanes")
    assert store.objects[OBJECT] == (tmp_path / "local.lanes").read_bytes()
    size = len(store.objects[OBJECT])
    monkeypatch.setattr(
        storage, "FETCHED_BYTES", 1 << 14
    )  # the bundle is small, so its pieces are too

    store.asked.clear()
    there = open_run(ADDRESS)
    assert there.etag == run.etag
    opening = [sent for _, path, sent in store.asked if path == OBJECT]
    assert sum(opening) < size  # in place: the ends of files, not their rows
    one = there.events("op", 2, columns=["name", "start_ns"])
    assert one.equals(run.events("op", 2, columns=["name", "start_ns"]))
    assert sum(sent for _, _, sent in store.asked) - sum(opening) < size / 4
    monkeypatch.undo()
    for name, value in store.settings.items():
        monkeypatch.setenv(name, value)
    for command in (["info"], ["verify"], ["export", "--to", "csv", "-o", str(tmp_path / "x")]):
        result = lanescope(command[0], ADDRESS, *command[1:])
        assert result.exit_code == 0, result.output


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from moto.server import ThreadedMotoServer  # which takes long, and all workers collect this

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        address = "http://{}:{}".format(*server.get_host_and_port())
        for name, value in Store(address).settings.items():
            monkeypatch.setenv(name, value)
        yield address
    finally:
        server.stop()


@pytest.mark.slow
def test_a_service_of_others_holds_a_bundle(moto: str, run: Run, tmp_path: Path) -> None:
    urlopen(Request(f"{moto}/bucket", method="PUT")).close()
    packed = lanescope("pack", run.path, "-o", ADDRESS)
    assert packed.exit_code == 0, packed.output
    pack(run, tmp_path / "local.lanes")
    with urlopen(f"{moto}{OBJECT}") as stored:
        assert stored.read() == (tmp_path / "local.lanes").read_bytes()
    assert lanescope("verify", ADDRESS).stdout.startswith(f"{ADDRESS}: whole")
    assert open_run(ADDRESS).events("op", 1).equals(run.events("op", 1))
    assert lanescope("pack", ADDRESS, "-o", f"{ADDRESS}.copy", "--ranks", "1").exit_code == 0
    assert open_run(f"{ADDRESS}.copy").ranks == (1,)
    assert "no such object" in lanescope("info", "s3://bucket/none.lanes").stderr


@pytest.mark.slow
def test_a_run_directory_in_a_store_is_read_where_it_is(
    store: Store, run: Run, tmp_path: Path
) -> None:
    folder, where = "s3://bucket/runs/folder", "/bucket/runs/folder"
    for path in run.path.rglob("*"):
        if path.is_file():
            name = path.relative_to(run.path).as_posix()
            store.objects[f"{where}/{name}"] = path.read_bytes()
    there = open_run(folder)
    assert there.etag == run.etag == open_run(f"{folder}/").etag
    there = open_run(folder)
    store.asked.clear()
    assert there.events("op", 2).equals(run.events("op", 2))
    assert all(path.startswith(f"{where}/rank=00002/") for _, path, _ in store.asked)
    here, remote = (lanescope("check", place, "--json") for place in (run.path, folder))
    assert remote.stdout.replace(folder, str(run.path)) == here.stdout
    assert lanescope("pack", folder, "-o", tmp_path / "packed.lanes").exit_code == 0
    assert open_run(tmp_path / "packed.lanes").events("op").equals(run.events("op"))
    del store.objects[f"{where}/rank=00001/thread=1001-0/op-00000.parquet"]
    assert open_run(folder).ranks == (0, 2, 3)


@pytest.mark.slow
def test_a_service_of_others_holds_a_run_directory(moto: str, run: Run) -> None:
    urlopen(Request(f"{moto}/bucket", method="PUT")).close()
    for path in (path for path in run.path.rglob("*") if path.is_file()):
        name = path.relative_to(run.path).as_posix()
        # A form, which urllib sends by default, would be read twice by moto.
        kind = {"Content-Type": "application/octet-stream"}
        at = f"{moto}/bucket/folder/{name}"
        urlopen(Request(at, path.read_bytes(), kind, method="PUT"), timeout=30).close()
    assert open_run("s3://bucket/folder").events("op", 1).equals(run.events("op", 1))


def test_what_a_store_does_not_give_is_a_sentence(store: Store, run: Run) -> None:
    for address, said in (
        ("s3://bucket/none.lanes", "no such object"),
        ("s3://bucket", "cannot be read"),
        ("s3://", "cannot be read"),
        ("nowhere://bucket/x", "cannot be opened"),
    ):
        refused = lanescope("info", address)
        assert refused.exit_code == 2, address
        assert said in refused.stderr
        assert refused.stderr.count("\n") == 1
    store.objects[OBJECT] = b"no bundle"
    assert "is a file, and not a bundle" in lanescope("info", ADDRESS).stderr
    store.broken = True
    for arguments in (("info", ADDRESS), ("pack", run.path, "-o", ADDRESS)):
        refused = lanescope(*arguments)
        assert refused.exit_code == 2
        assert "AWS Error" in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert store.objects[OBJECT] == b"no bundle"
