"""In the capture of a CUDA graph nothing is computed or asked. Only the capture is pretended."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lanescope.collector.format.names import CAPTURE
from lanescope.collector.hooks.training.device_readback import DeviceReadback
from lanescope.webapp.runs.run import open_run
from tests.support.needed import lacking
from tests.support.recording import record_program


def test_no_number_of_a_capture_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
    readback, found = DeviceReadback(), list[torch.Tensor]()
    readback.enqueue(torch.ones(1, device="meta"), found.append)
    readback.drain(wait=True)
    assert not found
    readback.enqueue(torch.ones(1), found.append)  # in host memory nothing is captured
    assert len(found) == 1


def test_gradients_of_a_captured_step_are_counted(tmp_path: Path) -> None:
    recorded = record_program(
        tmp_path,
        """
        import torch

        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step():
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

        step()
        known = torch.cuda.is_initialized, torch.cuda.is_current_stream_capturing
        torch.cuda.is_initialized = torch.cuda.is_current_stream_capturing = lambda: True
        step()
        torch.cuda.is_initialized, torch.cuda.is_current_stream_capturing = known
        step()
        """,
    )
    assert recorded.status == 0, recorded.stderr
    run = open_run(recorded.run)
    assert set(run.events("gradient", columns=["step"])["step"].to_pylist()) == {0, 2}
    assert run.coverage["gradients_not_read"] == 2


def test_a_capture_is_a_phase(tmp_path: Path) -> None:
    if torch.version.cuda is not None:
        lacking("a torch with CUDA has real captures: make gpu looks at one")
    recorded = record_program(
        tmp_path,
        """
        import torch

        class Device:
            def capture_begin(self, **_):
                pass
            def capture_end(self):
                if self.fails:
                    raise RuntimeError("capture failed")

        torch.cuda.CUDAGraph.__bases__ = (Device,)
        graph = object.__new__(torch.cuda.CUDAGraph)
        graph._tracker, graph.fails = None, False
        for graph.fails in (False, True):
            graph.capture_begin()
            torch.ones(2) + 1
            try:
                graph.capture_end()
            except RuntimeError as error:
                print(error)
            torch.ones(2) - 1
        """,
    )
    assert recorded.status == 0, recorded.stderr
    assert recorded.stdout.splitlines() == ["capture failed"]
    captures = [row for row in recorded.rows("phase") if row["name"] == CAPTURE]
    spans = [(row["start_ns"], row["start_ns"] + row["duration_ns"]) for row in captures]
    assert len(spans) == 2
    for name, within in (("aten::add", True), ("aten::sub", False)):
        found = [row["start_ns"] for row in recorded.rows("op") if row["name"] == name]
        assert [any(a <= one < b for a, b in spans) for one in found] == [within] * 2
