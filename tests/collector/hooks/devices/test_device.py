"""Device activity: Kineto's events on the recorder's clock, streams as lanes, windows of steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lanescope.collector.format.options import Options
from lanescope.collector.hooks.devices.device import _by_thread, _launched_within
from lanescope.collector.hooks.devices.kineto import (
    Activity,
)
from tests.support.recording import OBSERVERS, Recorded, record_program

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU: kernels run on nothing else"
)


# The program stands in a device's place with what this machine has: autograd's nodes count as
# activities, the threads that run them as streams.
ON_THE_CPU = """
    import json, sys, threading
    import torch
    import lanescope.collector as ls
    from lanescope.collector.hooks.devices import device, kineto

    class Module:
        waited = 0
        capturing = False
        @classmethod
        def synchronize(cls):
            cls.waited += 1
        @classmethod
        def is_current_stream_capturing(cls):
            return cls.capturing

    kineto.ON_DEVICE = frozenset({"cpu_op"})
    kinds = frozenset({torch._C._profiler.ProfilerActivity.CPU})
    device.InUse.find = classmethod(lambda cls: cls(Module, kinds))

    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def train(steps):
        for _ in range(steps):
            loss = model(torch.ones(8, 64)).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def on_the_cpu(folder: Path, body: str, *options: str) -> Recorded:
    """Record the body of a program that has the functions above."""
    recorded = record_program(folder, ON_THE_CPU + body, *options)
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    return recorded


def coverage(recorded: Recorded) -> dict[str, int]:
    manifest = json.loads((recorded.run / "manifest.json").read_text())
    (process,) = manifest["processes"]
    found: dict[str, int] = process["coverage"]
    return found


def on_streams(recorded: Recorded) -> list[dict[str, Any]]:
    return [row for row in recorded.rows("op") if row["scope"] == "kernel"]


@pytest.mark.parametrize("engine", OBSERVERS)
def test_a_window_of_steps_becomes_lanes_of_streams(tmp_path: Path, engine: str) -> None:
    recorded = on_the_cpu(
        tmp_path,
        """
    train(6)
    print(Module.waited)
    """,
        "--steps",
        "2:4",
        "--engine",
        engine,
    )
    assert recorded.stdout.split() == ["1"]  # once, where the window ends
    rows = on_streams(recorded)
    nodes = [r["name"] for r in rows]
    assert [r["step"] for r in rows if r["name"] == "AddmmBackward0"] == [2, 3]
    assert nodes.count("PowBackward0") == 2
    assert {(r["depth"], r["launch_ns"], r["launch_thread"]) for r in rows} == {(0, None, "")}
    assert all(r["device"].startswith("cpu:") for r in rows)
    (stream,) = [t for t in recorded.rows("thread") if t["kind"] == "stream"]
    assert stream["native_id"] == 0
    assert str(stream["name"]).startswith("stream ")
    (error,) = [r for r in recorded.rows("value") if r["name"] == "lanescope/device_clock_error"]
    assert float(str(error["value"])) > 0
    assert not [reason for reason in coverage(recorded) if reason.startswith("device")]
    assert all(r["launch_ns"] is None for r in recorded.rows("op"))


def test_times_are_those_of_the_recorder(tmp_path: Path) -> None:
    recorded = on_the_cpu(tmp_path, "    train(3)\n", "--steps", "1:2", "--engine", "native")
    rows = recorded.rows("op")
    nodes = [r for r in rows if r["scope"] == "backward" and r["name"] == "AddmmBackward0"]
    (seen,) = [r for r in on_streams(recorded) if r["name"] == "AddmmBackward0"]
    (node,) = [r for r in nodes if r["step"] == 1]
    first, second = (  # both clocks saw the node's work, so what they saw has it in common
        (int(str(r["start_ns"])), int(str(r["start_ns"])) + int(str(r["duration_ns"])))
        for r in (seen, node)
    )
    assert max(first[0], second[0]) < min(first[1], second[1])


def test_the_programs_own_profiler_comes_first(tmp_path: Path) -> None:
    recorded = on_the_cpu(
        tmp_path,
        """
    train(2)
    with torch.profiler.profile() as profile:
        train(2)
    assert [e for e in profile.events() if e.name == "aten::addmm"], "the program's own is empty"
    train(2)
    """,
        "--steps",
        "0:9",
    )
    steps = {r["step"] for r in on_streams(recorded) if r["name"] == "AddmmBackward0"}
    assert steps == {1, 5}  # again from the first end of a step on at which theirs is over
    assert coverage(recorded)["device_profiler_busy"] == 3
    assert coverage(recorded)["device_not_in_use"] == 1  # before the first step it was not


def test_a_graph_that_is_being_captured_is_not_waited_for(tmp_path: Path) -> None:
    recorded = on_the_cpu(
        tmp_path,
        """
    train(1)
    Module.capturing = True
    train(1)
    print(Module.waited)
    Module.capturing = False
    train(1)
    print(Module.waited)
    """,
        "--steps",
        "0:2",
    )
    assert recorded.stdout.split() == ["0", "1"]
    assert {r["step"] for r in on_streams(recorded)} == {1, 2}


def test_a_long_window_is_stored_in_pieces_and_no_piece_is_larger_than_it_may(
    tmp_path: Path,
) -> None:
    recorded = on_the_cpu(
        tmp_path,
        """
    device.SPAN_NS, device.MAX_ACTIVITIES = 0, 2
    train(5)
    """,
        "--device",
        "on",
    )
    rows = on_streams(recorded)
    assert sorted(str(r["step"]) for r in rows) == sorted("11223344")
    assert coverage(recorded)["device_left_out"] > 0
    assert len([t for t in recorded.rows("thread") if t["kind"] == "stream"]) == 1


def test_a_profiler_that_cannot_begin_is_said_once_and_changes_nothing(tmp_path: Path) -> None:
    recorded = record_program(
        tmp_path,
        ON_THE_CPU
        + """
    def broken(*_): raise RuntimeError("no such profiler")
    torch._C._autograd._prepare_profiler = broken
    train(4)
    """,
        "--steps",
        "1:3",
    )
    assert recorded.status == 0
    assert recorded.stderr.count("no such profiler") == 1
    assert coverage(recorded)["recorder_errors"] == 1
    assert not on_streams(recorded)


def test_a_forked_child_leaves_the_parents_collection_alone(tmp_path: Path) -> None:
    recorded = on_the_cpu(
        tmp_path,
        """
    import os
    train(2)
    if (pid := os.fork()) == 0:
        train(2)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    train(1)
    """,
        "--steps",
        "0:9",
    )
    steps = [r["step"] for r in on_streams(recorded) if r["name"] == "AddmmBackward0"]
    assert steps == [1, 2]


def test_a_program_without_steps_is_collected_from_its_first_use_of_a_device(
    tmp_path: Path,
) -> None:
    recorded = on_the_cpu(
        tmp_path,
        """
    torch.cuda._initialized = True
    torch.cuda._lazy_init()
    torch.cuda._initialized = False
    model(torch.ones(8, 64)).sum().backward()
    """,
        "--device",
        "on",
    )
    assert {r["step"] for r in on_streams(recorded)} == {0}
    assert "device_not_in_use" not in coverage(recorded)


def test_what_the_recorder_itself_launched_is_named() -> None:
    own = _by_thread([(1, 100, 200), (2, 150, 160), (1, 300, 400)])

    def launched(instant: int, thread: int | None) -> bool:
        found = Activity("cuda:0", 7, "kernel", 500, 600, instant, thread)
        return _launched_within(found, own)

    assert [launched(at, 1) for at in (99, 100, 199, 250, 300, 401)] == [0, 1, 1, 0, 1, 0]
    assert [launched(at, 2) for at in (149, 155, 200)] == [0, 1, 0]
    assert not launched(155, None)
    assert not launched(155, 3)


def test_without_a_device_there_are_no_streams_and_it_is_said(tmp_path: Path) -> None:
    source = ON_THE_CPU.partition("    class Module")[0] + (
        "    model" + ON_THE_CPU.partition("    model")[2] + "    train(4)\n"
        "    assert not torch.cuda.is_initialized()\n"
    )
    recorded = record_program(tmp_path, source, "--steps", "1:3")
    assert recorded.status == 0, recorded.stderr
    assert coverage(recorded)["device_not_in_use"] == 2
    assert not on_streams(recorded)


def test_when_devices_are_recorded() -> None:
    window = (1, 3)
    assert not Options().device_activity
    assert Options(steps=window).device_activity
    assert not Options(steps=window, keep_last_bytes=10**7).device_activity
    assert not Options(steps=window, device="off").device_activity
    assert Options(device="on").device_activity
    with pytest.raises(ValueError, match="does not bound device activity"):
        Options(device="on", keep_last_bytes=10**7)


@needs_gpu
def test_kernels_of_a_gpu_are_tied_to_the_operators_that_launched_them(tmp_path: Path) -> None:
    recorded = record_program(
        tmp_path,
        """
        import torch
        model = torch.nn.Linear(256, 256, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.ones(64, 256).cuda()).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        "--steps",
        "1:3",
        "--engine",
        "native",
        real=True,  # Kineto keeps ids of threads from before a fork
    )
    assert recorded.status == 0, recorded.stderr
    rows = on_streams(recorded)
    assert {r["step"] for r in rows} == {1, 2}
    assert any(str(r["name"]).startswith("Memcpy HtoD") for r in rows)
    threads = {r["launch_thread"] for r in rows}
    names = {t["name"] for t in recorded.rows("thread") if t["thread"] in threads}
    assert "main" in names
    assert len(names) == 2  # autograd's own thread launches the backward pass
    # How the library calls its kernels of a product of matrices differs between devices.
    every: list[dict[str, Any]] = recorded.rows("op")
    products = [r for r in every if r["name"] in ("aten::addmm", "aten::mm")]
    assert products
    for product in products:
        until = product["start_ns"] + product["duration_ns"]
        assert any(product["start_ns"] <= r["launch_ns"] < until for r in rows if r["launch_ns"])
