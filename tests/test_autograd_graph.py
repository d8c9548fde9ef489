"""The recorded autograd graph, by module: edges, levels, what is cut off, the drawing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp.analysis.autograd_graph import OUTSIDE, graph_of
from lanescope.webapp.graph_charts import graph_figure
from lanescope.webapp.pages.context import Context
from lanescope.webapp.pages.graph import norms, toggled
from lanescope.webapp.run import Run, open_run
from tests.recording import record_program
from tests.synthetic import START_NS, Builder

PROGRAM = """
    import torch
    from torch import nn
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        def forward(self, x):
            return x + self.last(self.first(x).t().t())
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(Block(), Block())
            self.detached, self.silent = nn.Linear(4, 4), nn.Linear(4, 4)
            self.rounded, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)
            self.frozen = nn.Linear(4, 4).requires_grad_(False)
        def forward(self, x):
            x = self.blocks(x) + self.detached(x).detach() + self.frozen(x)
            with torch.no_grad():
                y = self.silent(x)
            return x + y + self.rounded(x).int()
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("graph")
    recorded = record_program(folder, PROGRAM, "--engine", "native", "--level", "timing")
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    return open_run(recorded.run)


def of(run: Run, *arguments: Any) -> Any:
    graph = graph_of(run, 0, *arguments)
    assert graph is not None
    return graph


def test_modules_and_what_leads_to_what(run: Run) -> None:
    graph = of(run)
    groups = {group.name: group for group in graph.groups}
    assert {"blocks.0.first", "blocks.0.last", "blocks.1", OUTSIDE} <= set(groups)
    assert groups["blocks.1.last"].parameters == ("blocks.1.last.bias", "blocks.1.last.weight")
    assert dict(groups["blocks.1.last"].kinds)["AccumulateGrad"] == 2
    # A view is not recorded, and belongs to what its neighbours have in common.
    assert dict(groups["blocks.1"].kinds)["TBackward0"] == 2
    assert graph.edges["blocks.1", "blocks.1.last"] == 1
    assert graph.edges["blocks.1", "blocks.0"] == 1
    assert groups[OUTSIDE].level < groups["blocks.1"].level < groups["blocks.1.last"].level
    assert graph.nodes == sum(1 for _ in run.events("node").to_pylist())


def test_what_is_cut_off_and_why(run: Run) -> None:
    assert of(run).cut_off == {
        "detached": "not_reached", "silent": "no_grad", "rounded": "not_reached",
        "unused": "not_called",
    }  # fmt: skip


def test_modules_collapse_and_open(run: Run) -> None:
    names = {group.name for group in of(run, 1).groups}
    assert names == {OUTSIDE, "Model", "blocks"} or names == {OUTSIDE, "blocks"}
    opened = toggled([], "blocks")
    assert opened == ["blocks"]
    names = {group.name for group in of(run, 1, opened).groups}
    assert {"blocks.0", "blocks.1"} <= names
    both = toggled(opened, "blocks.1")
    assert "blocks.1.first" in {group.name for group in of(run, 1, both).groups}
    assert toggled(both, "blocks.1") == ["blocks"]
    assert toggled(both, "blocks") == []


def test_the_drawing(run: Run) -> None:
    graph = of(run)
    known = norms(Context(run), 0, graph)
    rows = {r["parameter"]: r["norm"] for r in run.events("gradient").to_pylist() if not r["step"]}
    one = known["blocks.0.first"]
    expected = rows["blocks.0.first.weight"] ** 2 + rows["blocks.0.first.bias"] ** 2
    assert one == pytest.approx(expected**0.5)
    figure = graph_figure(graph, known, "light")
    crosses = next(trace for trace in figure.data if trace.name == "cut off")
    assert list(crosses.text) == ["detached", "silent", "rounded", "unused"]
    shown = [name for trace in figure.data for name in trace.customdata or ()]
    assert sorted(shown) == sorted(group.name for group in graph.groups)


def test_a_run_without_a_graph(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    builder.op(START_NS, 10)
    assert graph_of(open_run(builder.write()), 0) is None
