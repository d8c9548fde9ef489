"""The critical path through kernels, on small graphs that are worked out on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp.plugins.time import streams
from lanescope.webapp.plugins.time.critical_path import critical_path, summed
from lanescope.webapp.runs.run import open_run
from tests.support.synthetic import START_NS, Builder
from tests.webapp.plugins.time.test_breakdown import MS, call, op, phase, training_step
from tests.webapp.plugins.time.test_critical_path import legs
from tests.webapp.plugins.time.test_what_if import predicted


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    made = Builder(tmp_path / "run", world_size=2)
    training_step(made)
    return made


def kernel(
    builder: Builder,
    start: float,
    end: float,
    launch: float | None,
    *,
    stream: int = 7,
    rank: int = 0,
    name: str = "sgemm",
) -> None:
    thread = f"{1000 + rank}-{stream}"
    builder.thread(rank, ordinal=stream, kind="stream", name=f"stream {stream}")
    launched: dict[str, Any] = {}
    if launch is not None:
        launched = {"launch_ns": START_NS + int(launch * MS), "launch_thread": f"{1000 + rank}-0"}
    op(builder, start, end, rank, thread=thread, scope="kernel", name=name, **launched)


def wait_for_device(builder: Builder, start: float, end: float, rank: int = 0) -> None:
    op(builder, start, end, rank, name="cudaDeviceSynchronize")


def test_a_synchronisation_leads_to_the_kernel_and_that_to_its_launch(builder: Builder) -> None:
    op(builder, 30, 31, name="cudaLaunchKernel")
    kernel(builder, 32, 50, 30)
    wait_for_device(builder, 40, 52)
    run = open_run(builder.write())
    assert legs(run) == [(0, 0, 0, 30), (0, 7, 30, 50), (0, 0, 50, 90)]
    totals = summed(critical_path(run), ["category", "name", "thread"])
    found = {(r.category, r.name, r.thread): r.duration_ns / MS for r in totals.itertuples()}
    assert found["backward", "sgemm", "1000-7"] == 18
    assert found["launch", "sgemm", "1000-7"] == 2
    assert found["launch", "cudaDeviceSynchronize", "1000-0"] == 2


def test_kernels_that_were_launched_early_follow_their_stream(builder: Builder) -> None:
    """The second and third are of one CUDA graph: one launch for both."""
    kernel(builder, 22, 40, 20)
    kernel(builder, 40.5, 50, 21)
    kernel(builder, 50, 60, 21)
    wait_for_device(builder, 45, 61)
    assert legs(open_run(builder.write())) == [(0, 0, 0, 20), (0, 7, 20, 60), (0, 0, 60, 90)]


@pytest.mark.parametrize("waits", [True, False])
def test_a_stream_that_waits_for_another(builder: Builder, waits: bool) -> None:
    kernel(builder, 22, 50, 20)
    if waits:
        op(builder, 24, 24.1, name="cudaStreamWaitEvent")
    kernel(builder, 51, 60, 25, stream=8)
    wait_for_device(builder, 55, 61)
    through = [(0, 7, 20, 50), (0, 8, 50, 60)] if waits else [(0, 8, 25, 60)]
    assert legs(open_run(builder.write())) == [
        (0, 0, 0, 20 if waits else 25),
        *through,
        (0, 0, 60, 90),
    ]


def test_a_recorded_wait_of_a_stream_and_of_the_host(builder: Builder) -> None:
    kernel(builder, 22, 50, 20)
    for kind, at in (("device_event_wait", 24), ("stream_synchronize", 55)):
        builder.row("sync", 0, "1000-0", kind=kind, start_ns=START_NS + at * MS, duration_ns=0)
    kernel(builder, 51, 60, 25, stream=8)
    op(builder, 54, 61, name="aten::_local_scalar_dense")
    found = legs(open_run(builder.write()))
    assert found == [(0, 0, 0, 20), (0, 7, 20, 50), (0, 8, 50, 60), (0, 0, 60, 90)]


def test_a_kernel_of_a_collective_waits_for_the_last_rank(builder: Builder) -> None:
    training_step(builder, 1)
    phase(builder, "optimizer", 90, 95, rank=0)
    for rank, launch in ((0, 20), (1, 40)):
        call(builder, rank, launch - 1, 60, duration_ns=2 * MS)
        kernel(builder, launch + 1, 60, launch, rank=rank, name="ncclDevKernel_AllReduce")
        wait_for_device(builder, 45, 61, rank)
    run = open_run(builder.write())
    assert legs(run) == [(1, 0, 0, 40), (1, 7, 40, 41), (0, 7, 41, 60), (0, 0, 60, 95)]
    totals = summed(critical_path(run), ["category"]).set_index("category")["duration_ns"]
    assert totals["exposed_communication"] == 19 * MS


def test_a_full_queue_holds_a_launch_up(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FULL_QUEUE", 2)
    for i, launch in enumerate((20, 21, 22)):
        op(builder, launch, 44 if launch == 22 else launch + 0.5, name="cudaLaunchKernel")
        kernel(builder, 24 + 20 * i, 44 + 20 * i, launch)
    assert legs(open_run(builder.write())) == [(0, 0, 0, 20), (0, 7, 20, 44), (0, 0, 44, 90)]


def test_kernels_whose_launch_is_missing_are_on_the_path(builder: Builder) -> None:
    kernel(builder, 22, 40, None)
    kernel(builder, 41, 60, None)
    wait_for_device(builder, 45, 61)
    run = open_run(builder.write())
    assert legs(run) == [(0, 7, 0, 60), (0, 0, 60, 90)]
    totals = summed(critical_path(run), ["category"]).set_index("category")["duration_ns"]
    assert totals["unexplained"] == (22 + 1) * MS


def test_what_if_of_kernels(builder: Builder) -> None:
    """Host and device: the wait ends with the kernel, and the 2 ms after it are kept."""
    op(builder, 30, 31, name="cudaLaunchKernel")
    kernel(builder, 32, 50, 30)
    wait_for_device(builder, 40, 52)
    run = open_run(builder.write())
    assert [predicted(run, f"op=sgemm:x{factor}") for factor in (1, 0.5, 0, 2)] == [90, 81, 80, 108]


def test_what_autograd_does_between_its_operators_is_backward(builder: Builder) -> None:
    """No Python runs in backward: the path and the predictions call its gaps the same."""
    builder.thread(0, ordinal=1, kind="native", name="autograd")
    for begin, end in ((32, 40), (60, 70)):
        op(builder, begin, end, thread="1000-1", phase="backward", name="aten::mm")
    op(builder, 61, 62, thread="1000-1", name="cudaLaunchKernel")
    kernel(builder, 63, 65, 61)
    wait_for_device(builder, 82, 83)
    run = open_run(builder.write())
    totals = summed(critical_path(run), ["category"]).set_index("category")["duration_ns"]
    for spec, category in (("phase=backward:x0.5", "backward"), ("python:x0.5", "python")):
        assert 90 - predicted(run, spec) == pytest.approx(totals[category] / 2 / MS, abs=1), spec


def test_what_if_of_a_full_queue_and_another_stream(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "FULL_QUEUE", 2)
    for i, launch in enumerate((20, 21, 22)):
        op(builder, launch, 44 if launch == 22 else launch + 0.5, name="cudaLaunchKernel")
        kernel(builder, 24 + 20 * i, 44 + 20 * i, launch, name=f"kernel {i}")
    op(builder, 45, 45.1, name="cudaStreamWaitEvent")
    kernel(builder, 84, 86, 46, stream=8)
    wait_for_device(builder, 85, 87)
    run = open_run(builder.write())
    assert predicted(run, "op=kernel 0:x0.5") == 80
    assert predicted(run, "op=kernel 2:x0.5") == 89  # the host comes to its wait at 85
    assert predicted(run, "op=*:x1") == 90


def test_what_if_of_collectives_on_devices(builder: Builder) -> None:
    training_step(builder, 1)
    phase(builder, "optimizer", 90, 95, rank=0)
    op(builder, 30, 39, 1, name="aten::slow")
    for rank, launch in ((0, 20), (1, 40)):
        call(builder, rank, launch - 1, 60, duration_ns=2 * MS)
        kernel(builder, launch + 1, 60, launch, rank=rank, name="ncclDevKernel_AllReduce")
        wait_for_device(builder, 45, 61, rank)
    run = open_run(builder.write())
    assert predicted(run, "op=aten::slow:x0") == 95 - 9
    assert predicted(run, "transfer=0") == 95 - 15
    assert predicted(run, "communication=0") == 95 - 15
