"""FLOPs against torch's own registry and counter; rates worked out on paper."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import flop_registry

from lanescope.webapp.plugins.efficiency.changes import efficiency_changes, efficiency_changes_by
from lanescope.webapp.plugins.efficiency.flops import FORMULAS, OperatorCall, arguments_of, work_of
from lanescope.webapp.plugins.efficiency.rates import efficiency, step_flops
from lanescope.webapp.runs.run import Run, open_run
from tests.support.recording import record_program
from tests.support.synthetic import START_NS, Builder
from tests.support.trace_files import imported

MS = 1_000_000

PROGRAM = """
    import sys
    import torch
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    torch.set_num_threads(1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
            self.grouped = nn.Conv2d(8, 8, 3, groups=2)
            self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
            self.line = nn.Conv1d(4, 4, 5, bias=False)
            self.last = nn.Linear(4, 32)

        def forward(self, x, b):
            y = self.up(self.grouped(self.first(x)).relu())
            z = self.last(self.line(y.flatten(2)).mean(2))
            product = torch.baddbmm(torch.zeros(2, 5, 5), b, b.transpose(1, 2))
            return z.sum() + product.sum() + torch.bmm(b, b.transpose(1, 2)).sum()

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train():
        model(torch.randn(4, 3, 16, 16), torch.randn(2, 5, 6, requires_grad=True)).backward()
        optimizer.step()
        optimizer.zero_grad()

    train()
    train()
    with FlopCounterMode(display=False) as counter:
        train()
    print({str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()})
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profiler:
        train()
    profiler.export_chrome_trace(sys.argv[1])
"""


def test_a_program_against_torchs_counter(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    recorded = record_program(tmp_path, PROGRAM, "--level", "access", arguments=(str(trace),))
    assert recorded.status == 0, recorded.stderr
    truth = {f"aten::{name[5:]}": n for name, n in ast.literal_eval(recorded.stdout).items()}
    run = open_run(recorded.run)
    steps = step_flops(run)
    assert steps["flops"].tolist() == [sum(truth.values())] * 4
    table = efficiency(run)
    assert (table.groupby("name")["total_flops"].sum() / 4).to_dict() == truth
    assert table["total_flops"].sum() == steps["flops"].sum()
    assert (table["time_ns"] > 0).all()
    found = efficiency(imported(tmp_path / "imported", trace))
    assert found.groupby("name")["total_flops"].sum().to_dict() == truth


def query(heads: int, length: int, width: int) -> tuple[int, ...]:
    return (2, heads, length, width)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", [(3, 4), (4, 5)]),
        ("addmm", [(5,), (3, 4), (4, 5)]),
        ("bmm", [(2, 3, 4), (2, 4, 5)]),
        ("baddbmm", [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
        ("_scaled_mm", [(3, 4), (4, 5), (1,), (1,)]),
        ("_scaled_dot_product_flash_attention", [query(6, 7, 8), query(2, 9, 8), query(2, 9, 10)]),
        (
            "_scaled_dot_product_efficient_attention_backward",
            [query(6, 7, 10), query(6, 7, 8), query(2, 9, 8), query(2, 9, 10)],
        ),
    ],
)
def test_formulas_are_those_of_torch(name: str, shapes: list[tuple[int, ...]]) -> None:
    tensors = [torch.empty(shape, device="meta") for shape in shapes]
    work = work_of(f"aten::{name}", OperatorCall(tuple(shapes)))
    assert work is not None
    assert work.flops == flop_registry[getattr(torch.ops.aten, name)](*tensors)


def test_all_operators_of_torchs_registry_but_inner_ones_have_a_formula() -> None:
    known = {f"aten::{one.__name__}" for one in flop_registry if hasattr(one, "_qualified_op_name")}
    inner = {
        f"aten::_{kind}_attention_{way}"
        for kind in ("flash", "efficient")
        for way in ("forward", "backward")
    }
    assert "aten::mm" in known
    assert known - inner <= {*FORMULAS}


def test_calls_that_do_not_hold_enough() -> None:
    assert work_of("aten::add", OperatorCall(((3, 4), (3, 4)))) is None
    assert work_of("aten::mm", OperatorCall(())) is None
    assert work_of("aten::convolution", OperatorCall(((1, 3, 8, 8), (4, 3, 3, 3)))) is None
    assert arguments_of("[1]") == arguments_of("no") == arguments_of(None) == ()


def test_rates_on_paper(tmp_path: Path) -> None:
    """On the host 2 ms for 2 * 100 * 200 * 300 FLOPs; kernels of 1 and 2 ms on a device."""
    builder = Builder(tmp_path / "run")
    stream = builder.thread(ordinal=9, name="stream 7", kind="stream")
    work = {"shapes": "[100, 200] [200, 300]", "dtypes": "float32 float32"}
    builder.phase(START_NS, 100 * MS, "optimizer")
    builder.op(START_NS, 2 * MS, "aten::mm", device="cpu", **work)
    builder.op(START_NS, 1 * MS, "aten::mm", device="cpu", depth=1, **work)  # counts with the outer
    builder.op(START_NS + 10 * MS, MS, "aten::mm", device="cuda:0", **work)
    builder.op(START_NS + 12 * MS, MS, "aten::mm", device="cuda:0")  # no shapes
    for launch, start, length in ((10, 20, 1), (10, 30, 2), (12, 40, 5)):
        builder.op(
            START_NS + start * MS,
            length * MS,
            "gemm",
            thread=stream,
            scope="kernel",
            launch_ns=START_NS + launch * MS,
            launch_thread="1000-0",
        )
    run = open_run(builder.write())
    table = efficiency(run).set_index(["device", "shapes"])
    flops, size = 2 * 100 * 200 * 300, 4 * (100 * 200 + 200 * 300 + 100 * 300)
    host = table.loc["cpu", work["shapes"]]
    assert (host["calls"], host["flops"], host["bytes"]) == (1, flops, size)
    assert host["flops_per_s"] == pytest.approx(flops / 2e-3)
    device = table.loc["cuda:0", work["shapes"]]
    assert device["time_ns"] == 3 * MS
    assert device["bytes_per_s"] == pytest.approx(size / 3e-3)
    unknown = table.loc["cuda:0", ""]
    assert np.isnan(unknown["flops"])
    assert unknown["time_ns"] == 5 * MS
    (step,) = step_flops(run).to_dict("records")
    assert step["flops"] == 2 * flops
    assert step["flops_per_s"] == pytest.approx(2 * flops / 0.1)


def multiplied(path: Path, calls: list[tuple[str, int]]) -> Run:
    """Matrix products of 12 million FLOPs: module and length in ms of each."""
    builder = Builder(path)
    for i, (module, length) in enumerate(calls):
        builder.op(
            START_NS + 100 * i * MS,
            length * MS,
            "aten::mm",
            device="cpu",
            module=module,
            shapes="[100, 200] [200, 300]",
            dtypes="float32 float32",
        )
    return open_run(builder.write())


def test_rates_beside_those_of_a_baseline(tmp_path: Path) -> None:
    """Of `a` a call takes twice as long, `b` is new, `c` is gone."""
    base = multiplied(tmp_path / "base", [("a", 2), ("a", 2), ("c", 5)])
    run = multiplied(tmp_path / "run", [("a", 4), ("a", 4), ("b", 3)])
    table = efficiency_changes(base, run).set_index("module")
    assert table["change_ns"].to_dict() == {"c": -5 * MS, "a": 4 * MS, "b": 3 * MS}
    flops = 2 * 100 * 200 * 300
    assert table.loc["a", "base_flops_per_s"] == pytest.approx(flops / 2e-3)
    assert table.loc["a", "flops_per_s"] == pytest.approx(flops / 4e-3)
    assert table.loc["b", "base_calls"] == table.loc["c", "calls"] == 0
    assert np.isnan(table.loc["b", "base_flops_per_s"])
    assert np.isnan(table.loc["c", "flops_per_s"])
    (whole,) = efficiency_changes_by(efficiency_changes(base, run), ["name"]).to_dict("records")
    assert whole["flops_per_s"] == pytest.approx(3 * flops / 11e-3)
    assert whole["base_flops_per_s"] == pytest.approx(3 * flops / 9e-3)
