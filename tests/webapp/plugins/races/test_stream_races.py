"""Streams that nothing orders, on a device without hardware: its memory is the host's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lanescope.collector.engines import build
from lanescope.webapp import open_run, races
from lanescope.webapp.plugins.races.race_findings import race_findings
from tests.collector.hooks.devices.test_device import needs_gpu
from tests.support import ROOT
from tests.support.processes import compiled
from tests.webapp.plugins.races.test_races import marked, recorded

SOURCE = ROOT / "tests" / "fixtures" / "streaming_device.cpp"


@pytest.fixture(scope="module")
def device(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of that device."""
    found = build.find_torch()
    library = tmp_path_factory.mktemp("device") / "libdevice.so"
    flags = [
        "-O0",
        "-std=c++20",
        "-DNDEBUG",
        "-shared",
        "-fPIC",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(found.new_abi)}",
        f"-I{found.folder / 'include'}",
        f"-L{found.folder / 'lib'}",
        "-ltorch_cpu",
        "-lc10",
    ]
    return compiled(SOURCE, library, *flags)


@pytest.mark.slow
def test_streams_that_nothing_orders_race_and_their_twins_do_not(
    device: Path, tmp_path: Path
) -> None:
    run = open_run(recorded(tmp_path, f"streams {device}", "--streams"))
    found = race_findings(run)
    places = [{str(f.evidence[side]["where"]) for side in ("first", "second")} for f in found]
    expected = marked("streams.py")
    assert len(expected) == 11
    assert sorted(map(sorted, places)) == sorted(map(sorted, expected.values()))
    assert all(f.severity == "error" for f in found)
    assert len(races(run)) == len(found)
    streams = {f.evidence[side].get("stream") for f in found for side in ("first", "second")}
    streams.discard(None)
    assert streams == {"the default stream", "stream 2", "stream 3"}
    said = Counter(f.title.partition(". ")[0].rpartition(" and ")[2] for f in found)
    assert said.pop("neither stream waits for the other") == 8
    assert {one.rpartition(" does not wait ")[2] for one in said} == {"for the copy"}
    assert said.total() == 3


@pytest.mark.slow
def test_without_asking_nothing_of_streams_is_recorded(device: Path, tmp_path: Path) -> None:
    run = open_run(recorded(tmp_path, f"streams {device}"))
    assert race_findings(run) == []
    assert set(run.events("access", columns=["stream"])["stream"].to_pylist()) == {0}
    kinds = set(run.events("sync", columns=["kind"])["kind"].to_pylist())
    assert not any("device" in kind or "stream" in kind for kind in kinds)


@needs_gpu
def test_streams_of_a_gpu(tmp_path: Path) -> None:
    run = open_run(recorded(tmp_path, "gpu_streams", "--streams"))
    places = [
        {str(f.evidence[side]["where"]) for side in ("first", "second")} for f in race_findings(run)
    ]
    assert places == list(marked("gpu_streams.py").values())
