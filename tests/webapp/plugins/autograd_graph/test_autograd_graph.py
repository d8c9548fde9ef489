"""The recorded autograd graph, by module: edges, levels, cut-off modules, the drawing."""

from __future__ import annotations

from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp.plugins.autograd_graph.autograd_graph import graph_nodes, graph_of
from lanescope.webapp.plugins.autograd_graph.charts import MAX_BOXES, MAX_CUT_OFF, graph_drawing
from lanescope.webapp.plugins.autograd_graph.fx_graph import fx_graph_of, fx_graphs, refusals, tied
from lanescope.webapp.plugins.autograd_graph.gradient_breaks import breaks
from lanescope.webapp.plugins.autograd_graph.module_graph import OUTSIDE, Graph, ModuleBox, matches
from lanescope.webapp.plugins.autograd_graph.page import toggled
from lanescope.webapp.plugins.autograd_graph.page_graph_parts import broken, graph_note, norms
from lanescope.webapp.runs.run import Run, open_run
from tests.support.recording import record_program
from tests.support.synthetic import START_NS, Builder

PROGRAM = """
    import torch
    from torch import nn
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 0.5
        @staticmethod
        def backward(ctx, gradient):
            return None
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        def forward(self, x):
            return x + self.last(self.first(x).t().t().unflatten(1, (2, 2)).flatten(1))
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(Block(), Block())
            self.detached, self.silent = nn.Linear(4, 4), nn.Linear(4, 4)
            self.rounded, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)
            self.frozen = nn.Linear(4, 4).requires_grad_(False)
            self.halved, self.changed = nn.Linear(4, 4), nn.Linear(4, 4)
            self.seen = []
        def forward(self, x):
            self.seen.append(type(x))
            x = self.blocks(x) + self.detached(x).detach() + self.frozen(x)
            with torch.no_grad():
                y = self.silent(x)
            z = self.changed(x)
            z.data.mul_(2)
            x = x + z + Halved.apply(self.halved(x))
            return x + y + self.rounded(x).int()
    class Choosy(nn.Module):
        def __init__(self):
            super().__init__()
            self.only = nn.Linear(4, 4)
        def forward(self, x):
            return self.only(x) if x.sum() > -1e9 else x
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model.seen == [torch.Tensor] * 2, model.seen
    Choosy()(torch.randn(2, 4))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("graph")
    recorded = record_program(folder, PROGRAM, "--engine", "native", "--trace-model")
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    return open_run(recorded.run)


@pytest.mark.parametrize("engine", ["native", "portable"])
def test_a_window_of_steps_holds_the_graph_of_its_first_backward(
    tmp_path: Path, engine: str
) -> None:
    source = PROGRAM.replace("range(2)", "range(9)").replace("] * 2", "] * 9")
    recorded = record_program(tmp_path, source, "--engine", engine, "--steps", "3:7")
    assert recorded.status == 0, recorded.stderr
    nodes = open_run(recorded.run).events("node", 0)
    assert set(nodes["step"].to_pylist()) == {3}
    assert "blocks.0.first.weight" in nodes["parameter"].to_pylist()


def of(run: Run, *arguments: Any) -> Any:
    graph = graph_of(run, 0, *arguments)
    assert graph is not None
    return graph


def in_order(graph: Graph) -> list[str]:
    """Names of boxes, each before those that it leads to. Raises CycleError."""
    before: dict[str, set[str]] = {group.name: set() for group in graph.groups}
    for one, other in graph.edges:
        before[other].add(one)
    return list(TopologicalSorter(before).static_order())


def test_modules_and_what_leads_to_what(run: Run) -> None:
    graph = of(run)
    groups = {group.name: group for group in graph.groups}
    assert {"blocks.0.first", "blocks.0.last", "blocks.1", OUTSIDE} <= set(groups)
    assert groups["blocks.1.last"].parameters == ("blocks.1.last.bias", "blocks.1.last.weight")
    assert dict(groups["blocks.1.last"].kinds)["AccumulateGrad"] == 2
    # A view is not recorded, and belongs to what its neighbours have in common.
    of_block = [dict(group.kinds) for group in graph.groups if group.module == "blocks.1"]
    assert sum(kinds.get("TBackward0", 0) for kinds in of_block) == 2
    # What its children made is added to what it got: it runs before them and after them.
    assert graph.edges["blocks.1", "blocks.1.last"] == 1
    assert graph.edges["blocks.1", "blocks.0"] == 1
    order = in_order(graph)
    found = [order.index(one) for one in (OUTSIDE, "blocks.1", "blocks.1.last", "blocks.1.first")]
    assert found == sorted(found)
    assert graph.nodes == sum(1 for _ in run.events("node").to_pylist())


def test_cut_off_modules_and_reasons(run: Run) -> None:
    assert of(run).cut_off == {
        "detached": "not_reached",
        "silent": "no_grad",
        "rounded": "not_reached",
        "unused": "not_called",
    }


def test_operators_at_which_gradients_end(run: Run) -> None:
    found = [(one.cause, one.op, one.module) for one in breaks(run, 0)]
    assert found == [
        ("detached", "detach", "Model"),
        ("no_grad", "aten::linear", "silent"),
        ("in_place", "aten::mul_", "Model"),
        ("no_gradient", "Halved", "Model"),
        ("integer", "aten::to", "Model"),
    ]
    lines = [int(one.where.rpartition(":")[2]) for one in breaks(run, 0)]
    first = PROGRAM.splitlines().index(
        "            x = self.blocks(x) + self.detached(x).detach() + self.frozen(x)"
    )
    assert lines == [first + 1 + after for after in (0, 2, 4, 5, 6)]


def test_the_graph_of_torch_fx_is_tied_to_it(run: Run) -> None:
    graph, *others = fx_graphs(run, 0)
    assert (graph, others) == ("1 Model", [])
    drawn = fx_graph_of(run, 0, graph, None)
    groups = {group.name: group for group in drawn.groups}
    assert {"Model", "blocks.0", "blocks.0.first", "frozen", "unused"} - set(groups) == {"unused"}
    assert groups["detached"].parameters == ("detached.weight", "detached.bias")
    order = in_order(drawn)
    assert order.index("Model") < order.index("blocks.1.last") < order.index("blocks.0.first")
    ties = tied(run, 0, graph).set_index("node_name")
    assert ties.loc["blocks_0_first", "autograd"].split()[-1] == "AddmmBackward0"
    assert ties.loc["detach", "autograd"] == ""
    assert ties.loc["add_2", "autograd"] == "AddBackward0"
    assert ties.loc["frozen", "module"] == "frozen"
    (refused,) = refusals(run, 0)
    assert (refused.graph, refused.kind) == ("Choosy", "untraceable")
    assert "control flow" in refused.reason
    assert refused.where.startswith("/")


def test_nodes_are_found_by_module_name_and_parameter(run: Run) -> None:
    nodes = graph_nodes(run, 0)
    assert matches(nodes, "HalvedBack", None, []) == {"Model": 1}
    assert matches(nodes, "first.weight", 1, []) == {"blocks": 2}
    assert matches(nodes, "  ", 1, []) == {}
    assert matches(nodes, "((", 1, []) == {}


def test_modules_collapse_and_open(run: Run) -> None:
    names = {group.module for group in of(run, 1).groups}
    assert names == {OUTSIDE, "Model", "blocks", "changed", "halved"}
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
    known = norms(run, 0, graph)
    rows = {r["parameter"]: r["norm"] for r in run.events("gradient").to_pylist() if not r["step"]}
    one = known["blocks.0.first"]
    expected = rows["blocks.0.first.weight"] ** 2 + rows["blocks.0.first.bias"] ** 2
    assert one == pytest.approx(expected**0.5)
    marked = broken(run, 0, graph, None, [])
    drawing = graph_drawing(graph, known, "light", "chart", ["halved"], marked)
    figure = drawing["figure"]
    marks = next(trace for trace in figure.data if trace.name == "a gradient ends here")
    assert list(marks.customdata) == ["Model"]
    boxes = {trace.name: trace for trace in figure.data if trace.type == "bar"}
    assert [text.split()[-1] for text in boxes["cut off"].text] == [
        "detached",
        "silent",
        "rounded",
        "unused",
    ]
    (framed,) = [
        module
        for name in ("", "no norm", "zero, or NaN")
        if name in boxes
        for module, width in zip(boxes[name].customdata, boxes[name].marker.line.width, strict=True)
        if width == 3
    ]
    assert framed == "halved"
    assert drawing["boxes"].keys() == {group.name for group in graph.groups}
    assert set(drawing["edges"]) == set(graph.edges)
    placed = {name for trace in figure.data for name in trace.meta or ()}
    assert placed == drawing["boxes"].keys() | drawing["alone"].keys()
    assert len(drawing["alone"]) == 4


def test_of_very_many_boxes_the_first_are_drawn() -> None:
    groups = tuple(ModuleBox(f"layer{n}", 1, (), (), f"layer{n}") for n in range(2000))
    edges = {(f"layer{n}", f"layer{n + 1}"): 1 for n in range(1999)}
    causes = {f"gone{n}": "not_called" for n in range(2000)}
    graph = Graph(0, groups, edges, causes)
    drawing = graph_drawing(graph, {}, "light", "chart")
    assert len(drawing["boxes"]) == MAX_BOXES
    assert len(drawing["edges"]) == MAX_BOXES - 1
    assert len(drawing["alone"]) == MAX_CUT_OFF
    assert "The first 300 of 2\N{THIN SPACE}000 boxes are drawn" in graph_note(
        graph, "autograd", {}, ""
    )


def test_a_long_path_is_shortened_to_its_end() -> None:
    names = ["layers.1", "base_model.model.layers.1.self_attention.q_proj.lora_A.default"]
    groups = tuple(ModuleBox(name, 1, (), (), name) for name in names)
    figure = graph_drawing(Graph(0, groups, {}), {names[1]: 1234.5}, "light", "chart")["figure"]
    (boxes,) = [trace for trace in figure.data if trace.type == "bar" and not trace.name]
    assert list(boxes.text) == ["…q_proj.lora_A.default · 1200"]
    assert list(boxes.customdata) == [names[1]]


def test_a_run_without_a_graph(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    builder.op(START_NS, 10)
    assert graph_of(open_run(builder.write()), 0) is None
