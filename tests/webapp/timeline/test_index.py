"""The stored index: found again, mapped, and never trusted further than it can be checked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.timeline import array_store, lod
from lanescope.webapp.timeline import index as module
from lanescope.webapp.timeline.array_store import (
    CATALOGUE_FILE,
    Ahead,
    FolderStore,
    MemoryStore,
    cache_folder,
    load_arrays,
)
from lanescope.webapp.timeline.index import DTYPES, Index, open_index
from tests.support.synthetic import write_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A small run that is worth storing, with tiles made ahead."""
    monkeypatch.setattr(module, "SMALL", 1)
    monkeypatch.setattr(lod, "RAW_LIMIT", 20)
    return open_run(write_run(tmp_path / "run", ranks=2, threads=2, steps=4, ops=30))


def same(one: Index, other: Index) -> bool:
    return (
        one.lanes == other.lanes
        and one.names == other.names
        and all(np.array_equal(one.arrays[name], other.arrays[name]) for name in DTYPES)
    )


def folder_of(cache: Path) -> Path:
    (folder,) = cache.iterdir()
    return folder


def listing(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*"))


def test_stored_index_is_mapped_and_equal(run: Run, tmp_path: Path) -> None:
    before = listing(run.path)
    built = open_index(run, tmp_path / "cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "lanes_of", None)
        stored = open_index(run, tmp_path / "cache")
    assert same(built, stored)
    assert same(stored, open_index(run, None))
    assert len(stored.arrays["made_key"]) > 0
    for array in stored.arrays.values():
        assert isinstance(array.base, np.memmap)
        assert not array.flags.writeable
    assert listing(run.path) == before  # a run is never written to


def test_small_runs_and_no_cache_build_in_memory(run: Run, tmp_path: Path) -> None:
    open_index(run, None)
    assert not (tmp_path / "cache").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SMALL", 10**9)
        open_index(run, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def _cut_short(folder: Path) -> None:
    data = (folder / "start.npy").read_bytes()
    (folder / "start.npy").write_bytes(data[: len(data) // 2])


def _not_json(folder: Path) -> None:
    (folder / CATALOGUE_FILE).write_text("{")


def _other_type(folder: Path) -> None:
    np.save(folder / "start.npy", np.zeros(3, np.float32))


def _no_header(folder: Path) -> None:
    (folder / "end.npy").write_bytes(b"")


def _other_fences(folder: Path) -> None:
    fence = np.load(folder / "fence.npy")
    np.save(folder / "fence.npy", np.append(fence, fence[-1:]))
    text = (folder / CATALOGUE_FILE).read_text()
    size = f'"fence": {len(fence)}'
    assert size in text
    (folder / CATALOGUE_FILE).write_text(text.replace(size, f'"fence": {len(fence) + 1}'))


def _missing(folder: Path) -> None:
    (folder / "paint.npy").unlink()


def _other_fields(folder: Path) -> None:
    text = (folder / CATALOGUE_FILE).read_text().replace('"phase_rows"', '"old_field"')
    (folder / CATALOGUE_FILE).write_text(text)


def _rows_do_not_fit(folder: Path) -> None:
    text = (folder / CATALOGUE_FILE).read_text().replace('"rows": 3', '"rows": 4')
    (folder / CATALOGUE_FILE).write_text(text)


@pytest.mark.parametrize(
    "damage",
    [
        _cut_short,
        _not_json,
        _other_type,
        _no_header,
        _other_fences,
        _missing,
        _other_fields,
        _rows_do_not_fit,
        shutil.rmtree,
    ],
)
def test_damaged_index_is_built_again(run: Run, tmp_path: Path, damage: object) -> None:
    cache = tmp_path / "cache"
    open_index(run, cache)
    built = open_index(run, None)  # in memory: damaging a mapped file would end this process
    assert callable(damage)
    damage(folder_of(cache))
    assert same(open_index(run, cache), built)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "lanes_of", None)
        assert same(open_index(run, cache), built)


def test_cache_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert open_index(run, tmp_path / "cache").lanes


def test_full_disk_builds_in_memory_and_leaves_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FolderStore, "append", full)
    assert same(open_index(run, tmp_path / "cache"), open_index(run, None))
    assert list((tmp_path / "cache").iterdir()) == []


def test_interrupted_build_leaves_nothing(run: Run, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_index(run, tmp_path / "cache", interrupt)
    assert list((tmp_path / "cache").iterdir()) == []


def test_progress_reaches_the_number_of_events(run: Run) -> None:
    answer: list[tuple[int, int]] = []
    open_index(run, None, lambda done, total: answer.append((done, total)))
    assert [done for done, _ in answer] == sorted(done for done, _ in answer)
    total = sum(run.counts[name] for name in ("op", "phase", "collective", "value"))
    gradient_samples = 4 * 2  # one per step and rank, made of several rows of the table
    assert answer[-1] == (total + gradient_samples, total)


def test_index_that_was_not_used_for_long_is_removed(run: Run, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in ("old", "recent"):
        (cache / name).mkdir(parents=True)
        (cache / name / CATALOGUE_FILE).write_text("{}")
    (cache / ".making-dead").mkdir()
    for old in (cache / "old" / CATALOGUE_FILE, cache / ".making-dead"):
        os.utime(old, (0, 0))
    open_index(run, cache)
    left = {path.name for path in cache.iterdir()}
    assert left == {"recent", f"{run.etag}-{module.INDEX_VERSION}"}


def test_two_processes_that_store_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    first, second = (FolderStore(folder, {"a": "<i8"}) for _ in range(2))
    for part, values in ((first, [1, 2]), (second, [1, 2, 3])):
        part.append("a", values)
    kept = first.finish({})["a"]
    assert second.finish({})["a"].tolist() == [1, 2, 3]
    assert kept.tolist() == [1, 2]
    found = load_arrays(folder, {"a": "<i8"})
    assert found is not None
    assert found[0]["a"].tolist() == [1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_part_of_a_stored_array_is_fetched_ahead(tmp_path: Path) -> None:
    values = np.arange(3_000_000)
    kept = FolderStore(tmp_path / "one", {"a": "<i8"})
    kept.append("a", values)
    array = kept.finish({})["a"]
    for one in (array, array[:0], values):  # mapped, empty, in memory
        ahead = Ahead(one)
        for low, high in ((0, 1), (0, len(one)), (len(one), len(one)), (2_999_000, 3_000_000)):
            if high <= len(one):
                ahead.expect(low, high)
    assert np.array_equal(array, values)


@pytest.mark.parametrize("size", [0, 1, 9, 10, 99_999, 100_000])
def test_array_of_any_size_comes_back(tmp_path: Path, size: int) -> None:
    values = np.arange(size, dtype=np.int64)
    stores: list[array_store.ArrayStore] = [
        FolderStore(tmp_path / "x", {"a": "<i8"}),
        MemoryStore({"a": "<i8"}),
    ]
    for one in stores:
        one.append("a", values[: size // 3])
        one.append("a", values[size // 3 :])
        assert np.array_equal(one.finish({})["a"], values)
    assert np.array_equal(np.load(tmp_path / "x" / "a.npy"), values)


def test_cache_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "lanescope"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(array_store.sys, "platform", "linux")
    assert cache_folder() == Path.home() / ".cache" / "lanescope"
