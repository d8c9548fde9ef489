"""Autograd nodes are tied to operators, memory of the recorder is measured, in one real program."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.collector.format import schema
from lanescope.collector.format.marks import BackwardRaised
from lanescope.webapp import check, forward_to_backward, open_run
from lanescope.webapp.analysis.check_limits import Settings
from lanescope.webapp.plugins.autograd_graph.traceability import untraceable_graphs, walks
from lanescope.webapp.runs.run import Run
from tests.support.recording import record_program
from tests.support.synthetic import START_NS, Builder

PROGRAM = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


torch.set_num_threads(1)
model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten())
recurrent, head = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 1)
scripted = torch.jit.script(nn.Sequential(nn.Linear(1, 1), nn.Tanh()))
optimizer = torch.optim.SGD([*model.parameters(), *recurrent.parameters(), *head.parameters()], 0.1)
for step in range(3):
    features = model(torch.randn(4, 2, 6)).view(4, 2, 8)
    hidden, _ = recurrent(Double.apply(features))
    hidden = hidden.clone()
    hidden[:, 0].mul_(2)  # in place on a view
    again = checkpoint(head, hidden.transpose(0, 1), use_reentrant=False)
    once_more = checkpoint(torch.nn.functional.gelu, again, use_reentrant=True)
    once_more = scripted(once_more)
    loss = once_more.permute(1, 0, 2).reshape(-1).expand(2, -1).softmax(-1).pow(2).mean()
    if step == 1:
        loss = loss.sinh()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def run(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    recorded = record_program(tmp_path_factory.mktemp("traced"), PROGRAM, "--exclude", "aten::sinh")
    assert recorded.status == 0, recorded.stderr
    return open_run(recorded.run)


def test_nodes_are_tied_but_those_whose_operator_was_left_out(run: Run) -> None:
    clean, left_out, after = (walk for walk in walks(run) if walk.reached > 10)
    assert (clean.step, left_out.step, after.step) == (0, 1, 2)
    assert (clean.not_run, clean.no_operator, clean.tied) == ({}, {}, clean.reached)
    assert (left_out.not_run, left_out.no_operator) == ({}, {"SinhBackward0": 1})
    assert (after.not_run, after.no_operator) == ({}, {})
    (finding,) = untraceable_graphs(run)
    assert finding.step == 1
    assert "1 SinhBackward0" in finding.title
    metric = check(run).metrics["graph_traceability"]
    total = sum(walk.reached for walk in walks(run))
    assert metric == (total - 1) / total
    for limit, severity in ((1.0, "error"), (0.5, "warning")):
        findings = check(run, settings=Settings({"graph_traceability": limit})).findings
        assert [f.severity for f in findings if f.kind == "untraceable_graph"] == [severity]


def test_a_part_that_torchscript_runs_as_one_is_tied_without_an_operator(run: Run) -> None:
    names = run.events("op", columns=["name"])["name"].unique().to_pylist()
    assert "DifferentiableGraphBackward" in names


def test_the_recorders_memory_is_measured(run: Run) -> None:
    metric = check(run).metrics["memory_overhead"]
    assert 0 < metric < 0.15
    (one,) = [one for one in check(run).checks if one.name == "memory_overhead"]
    assert one.passed


def test_windows_between_forward_and_backward(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    for start, duration, kind in (
        (0, 10, "forward"),
        (20, 30, "forward"),
        (55, 45, "backward"),
        (60, 5, "forward"),
        (66, 4, "backward"),  # within the other, of a checkpoint
        (110, 10, "backward"),  # a second one of the same forward: no window of its own
        (130, 10, "forward"),
        (140, None, "backward"),
    ):
        builder.phase(START_NS + start, duration, kind)
    table = forward_to_backward(open_run(builder.write()))
    assert table[["forward_end_ns", "backward_start_ns", "window_ns"]].values.tolist() == [
        [50, 55, 5],
        [140, 140, 0],
    ]


@pytest.mark.parametrize(
    ("duration", "raises", "reached"), [(900, False, 3), (None, False, None), (900, True, None)]
)
def test_a_backward_that_did_not_come_to_its_end_is_not_judged(
    tmp_path: Path, duration: int | None, raises: bool, reached: int | None
) -> None:
    builder = Builder(tmp_path / "run")
    thread = builder.thread()
    builder.op(START_NS, 10)
    builder.phase(START_NS + 100, duration)
    name = schema.GRAPH_SERIES + "torch::autograd::AccumulateGrad"
    builder.row("value", 0, thread, time_ns=START_NS + 200, name=name, value=3.0)
    if raises:
        builder.phase(START_NS + 900, 0, "mark", name=BackwardRaised("RuntimeError").encode())
    opened = open_run(builder.write())
    assert [walk.reached for walk in walks(opened)] == ([] if reached is None else [reached])
