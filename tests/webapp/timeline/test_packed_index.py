"""The index in a bundle: small, the same once it is unfolded, and not trusted."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lanescope.webapp.bundles.writer import pack
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.timeline import index as indexes
from lanescope.webapp.timeline.index import DTYPES, Index, open_index
from lanescope.webapp.timeline.packed_index import decoded_array, encoded_array
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.synthetic import write_run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("whole") / "run"
    return open_run(write_run(path, ranks=2, threads=2, steps=4, ops=400))


def never(*_: object) -> None:
    raise AssertionError("the index was built")


@pytest.mark.parametrize("mapped", [False, True])
def test_a_bundle_brings_its_index(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    built = open_index(whole, None)
    monkeypatch.setattr(indexes, "SMALL", 100)
    if mapped:
        monkeypatch.setattr(indexes, "MAPPED", 100)
    pack(whole, tmp_path / "run.lanes", cache=tmp_path / "cache")
    monkeypatch.setattr(indexes, "built", never)
    run = open_run(tmp_path / "run.lanes")
    timeline = Timeline.open(run, cache=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert timeline.index.lanes == built.lanes
    assert timeline.tile(12, 0, [0, 1]) == Timeline(run, built).tile(12, 0, [0, 1])
    with zipfile.ZipFile(tmp_path / "run.lanes") as archive:
        size = sum(archive.getinfo(f"index/{name}").file_size for name in DTYPES)
    plain = sum(built.arrays[name].nbytes for name in DTYPES)
    assert size == plain if mapped else size < plain / 3
    for name in DTYPES:
        array = timeline.index.arrays[name]
        assert np.array_equal(array, built.arrays[name], equal_nan=name == "value"), name
        if mapped and array.size:
            assert not array.flags.owndata
            assert array.__array_interface__["data"][0] % 64 == 0


def test_a_small_run_travels_without_one(whole: Run, tmp_path: Path) -> None:
    pack(whole, tmp_path / "run.lanes")
    with zipfile.ZipFile(tmp_path / "run.lanes") as archive:
        assert not [name for name in archive.namelist() if name.startswith("index/")]
    assert isinstance(open_index(open_run(tmp_path / "run.lanes"), None), Index)


@pytest.mark.parametrize("dtype", sorted(set(DTYPES.values())))
@pytest.mark.parametrize("ascends", [False, True])
def test_arrays_come_back(dtype: str, ascends: bool) -> None:
    chance = np.random.default_rng(1)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        ascends = False
        arrays = [chance.normal(size=1000), np.array([np.nan, np.inf, -0.0])]
    else:
        bounds = np.iinfo(kind)
        arrays = [chance.integers(bounds.min, bounds.max, 1000, kind, endpoint=True)]
        arrays += [np.array([bounds.max, bounds.min, bounds.max, 0]), np.arange(100)]
    for array in [*arrays, np.empty(0)]:
        values = array.astype(kind)
        back = decoded_array(
            pa.py_buffer(encoded_array(values, ascends=ascends)),
            dtype,
            len(values),
            ascends=ascends,
        )
        assert back.tobytes() == values.tobytes()


@pytest.mark.parametrize(
    "change",
    [
        {"start": -1},
        {"start": 10**15},
        {"start": "many"},
        {"start": None},
        {"made_data": 10**9},
        {"start": 5, "end": 5},
        {"time": 0},
        {"value": 3},
    ],
)
def test_a_wrong_index_is_built_again(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setattr(indexes, "SMALL", 100)
    pack(whole, tmp_path / "run.lanes", cache=tmp_path / "cache")
    run = open_run(tmp_path / "run.lanes")
    read = type(run.files).read

    def lying(files: Any, name: str, most: int) -> bytes:
        data = read(files, name, most)
        if name != "index/catalogue.json":
            return data
        answer = json.loads(data)
        answer["counts"] = (
            None if "start" in change and change["start"] is None else answer["counts"] | change
        )
        return json.dumps(answer).encode()

    monkeypatch.setattr(type(run.files), "read", lying)
    assert indexes._packed(run) is None
    assert open_index(run, None).lanes == open_index(whole, None).lanes
