"""Which thread added what to which layer's gradient: recorded, put together, and shown."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lanescope.collector.format.schema import ADDED_NORM_OF
from lanescope.webapp.plugins.gradients import page_threads as page
from lanescope.webapp.plugins.gradients.backward_threads import added_by_layer
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.timeline.lanes import COUNTER, lanes_of
from lanescope.webapp.timeline.spans import SpanNames
from lanescope.webapp.ui.context import Context
from tests.support.recording import record_program
from tests.support.synthetic import START_NS, Builder

FIRST, SECOND = "1000-1", "1000-2"

# Of the sum over all elements of x W, the gradient of W (3 x 2) is 2 rows of x; x is n times ones.
PROGRAM = """
    import threading, torch
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.left = torch.nn.Linear(2, 3, bias=False)
            self.right = torch.nn.Linear(2, 3)
        def forward(self, x, side):
            return getattr(self, side)(x)
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2), "left").sum().backward()
    def work(side, size):
        model(torch.full((1, 2), size), side).sum().backward()
    for step in range(2):
        for name, side, size in (("one", "left", 1.0), ("two", "right", 4.0), ("two", "left", 2.0)):
            thread = threading.Thread(target=work, args=(side, size), name=name)
            thread.start()
            thread.join()
        optimizer.step()
        optimizer.zero_grad()
"""


def run_of(path: Path) -> Run:
    """Two threads, two steps; the second thread adds to `b.up` alone, at step 1 a NaN."""
    builder = Builder(path)
    for path_of in ("b", "b.up", "b.down", "head"):
        builder.row("module", 0, None, path=path_of, parameters=1, **{"class": "Linear"})
    for step in range(2):
        common = {"time_ns": START_NS + step, "step": step}
        for layer, norm in (("head", 3.0), ("b.down", 4.0), ("b.up", 3.0), ("b.up", 4.0)):
            builder.row("value", 0, FIRST, name=ADDED_NORM_OF + layer, value=norm, **common)
        bad = float("nan") if step else 12.0
        builder.row("value", 0, SECOND, name=ADDED_NORM_OF + "b.up", value=bad, **common)
    return open_run(builder.write())


def test_what_threads_add_to_layers(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    table = page.by_thread(run, 0, "", None)
    assert list(table.index) == ["b.up", "b.down", "head"]  # as in the model
    assert list(table.columns) == ["Thread-1", "Thread-2"]
    assert table["Thread-1"].tolist() == pytest.approx([5.0, 4.0, 3.0])
    assert table.loc["b.up", "Thread-2"] == math.inf
    assert table["Thread-2"].isna().tolist() == [False, True, True]
    steps = page.by_thread(run, 0, SECOND, None)
    assert steps.loc["b.up"].tolist() == [12.0, math.inf]
    whole = page.by_thread(run, 0, FIRST, 1)
    assert whole.loc["b"].tolist() == pytest.approx([math.hypot(5.0, 4.0)] * 2)


def test_what_the_page_offers(tmp_path: Path) -> None:
    run = run_of(tmp_path / "two")
    dropdown = page.layers_section(Context(run))[1].children[0].children[1]
    assert [one["label"] for one in dropdown.options] == [
        "all threads",
        "Thread-1, by step",
        "Thread-2, by step",
    ]
    assert COUNTER not in {lane.kind for lane, _ in lanes_of(run, SpanNames())}  # they are too many
    empty = Builder(tmp_path / "none")
    empty.op(START_NS, 5)
    assert page.layers_section(Context(open_run(empty.write()))) == []


def test_recorded(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, PROGRAM)
    assert "recorder error" not in recorded.stderr
    rows = added_by_layer(open_run(recorded.run))
    found = {(int(r.step), str(r.layer), round(float(r.added), 4)) for r in rows.itertuples()}
    for step in range(2):
        assert (step, "left", round(math.sqrt(6), 4)) in found
        assert (step, "left", round(2 * math.sqrt(6), 4)) in found
        assert (step, "right", round(math.sqrt(16 * 6 + 3), 4)) in found
    assert len(found) == 6
