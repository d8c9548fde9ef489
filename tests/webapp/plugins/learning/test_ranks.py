"""Several ranks: shards are put together, and adapters that are not synchronised are named."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from lanescope.webapp.analysis.collective_calls import calls, calls_alone
from lanescope.webapp.analysis.parameter_history import (
    gradient_rows,
    rank_gradient_rows,
    samples,
    sharded_names,
)
from lanescope.webapp.plugins.learning.exploding import exploding
from lanescope.webapp.plugins.learning.layers_made_in_forward import made_in_forward
from lanescope.webapp.plugins.learning.lora import lora
from lanescope.webapp.runs.run import Run, open_run
from tests.support.recording import record_program
from tests.support.synthetic import START_NS, Builder

NAMES = ("q_proj.lora_A.default.weight", "q_proj.lora_B.default.weight")


THREE = """
    import os, torch, torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(8, 8).requires_grad_(False)
            self.lora_A = nn.Linear(8, 2, bias=False)
            self.lora_B = nn.Linear(2, 8, bias=False)
            nn.init.zeros_(self.lora_B.weight)
        def forward(self, x):
            return self.base(x) + self.lora_B(self.lora_A(x))
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.adapted, self.last = Adapted(), nn.Linear(8, 8)
        def forward(self, x):
            return self.last(self.adapted(x).tanh())
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    clean, around, outside = Model(), Model(), Adapted()
    wrapped, unused = DistributedDataParallel(clean), DistributedDataParallel(around)
    owned = [p for m in (clean, around, outside) for p in m.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(owned, lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(6):
        x, y, z = torch.randn(3, 16, 8)
        with wrapped.no_sync():
            (wrapped(y) - 1).square().mean().backward()
        (wrapped(x) - 1).square().mean().backward()
        (around(z) - 1).square().mean().backward()
        (outside(z) - 1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""
"""Adapters that two ranks train: through the wrapper (accumulating), around it, outside of it."""


def test_two_real_ranks(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, THREE, "--level", "timing", ranks=2)
    assert recorded.status == 0, recorded.stderr
    (found,) = lora(open_run(recorded.run))
    assert found.evidence["cause"] == "not_synchronised"
    assert found.evidence["modules"] == ["Model#2.adapted", "Adapted"]
    assert (found.ranks, found.step) == ((0, 1), 0)
    assert "call it through the wrapper" in found.title


TENSOR_PARALLEL = """
    import torch, torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, RowwiseParallel, parallelize_module
    )
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(8), *(nn.Linear(8, 8) for _ in range(4)))
    kinds = ColwiseParallel, RowwiseParallel, ColwiseParallel, RowwiseParallel
    plan = {str(i): kind() for i, kind in enumerate(kinds, 1)}
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(5):
        (model(torch.randn(4, 8)) - 1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""


def test_shards_of_tensor_parallelism_are_not_taken_for_layers_made_in_forward(
    tmp_path: Path,
) -> None:
    recorded = record_program(tmp_path, TENSOR_PARALLEL, ranks=2)
    assert recorded.status == 0, recorded.stderr
    run = open_run(recorded.run)
    assert sharded_names(run) >= {f"{i}.weight" for i in range(1, 5)}
    assert [finding.title for finding in made_in_forward(run)] == []


def run_of(path: Path, norms: dict[int, float], *, calls: bool = True, whole: int = 4) -> Run:
    """Eight steps of two ranks; `norms` are those of the gradients of each rank."""
    builder = Builder(path, world_size=2)
    for rank, norm in norms.items():
        thread = f"{1000 + rank}-0"
        for step in range(8):
            time = START_NS + step * 1000 + rank
            if calls:
                builder.row(
                    "collective",
                    rank,
                    thread,
                    start_ns=time - 10,
                    duration_ns=1,
                    name="all_reduce",
                    group="0",
                    group_size=2,
                    sequence=step,
                )
            for name in NAMES:
                common = {
                    "time_ns": time,
                    "step": step,
                    "parameter": name,
                    "numel": 4,
                    "optimizer": 0,
                    "dtype": "float32",
                    "device": "cpu",
                }
                builder.row("gradient", rank, thread, norm=norm, **common)
                builder.row(
                    "parameter",
                    rank,
                    thread,
                    whole_numel=whole,
                    trainable=True,
                    grad_norm=norm,
                    norm=float(step) if "lora_B" in name else 1.0,
                    update_ratio=0.1,
                    lr=0.1,
                    grad_zeros=0.5 * rank,
                    rule="SGD",
                    **common,
                )
    return open_run(builder.write())


def test_an_adapter_that_is_not_synchronised(tmp_path: Path) -> None:
    (found,) = lora(run_of(tmp_path, {0: 1.0, 1: 1.5}))
    assert found.evidence["cause"] == "not_synchronised"
    assert found.evidence["modules"] == ["q_proj"]
    assert found.ranks == (0, 1)


def test_replicas_programs_apart_and_shards_are_silent(tmp_path: Path) -> None:
    assert lora(run_of(tmp_path / "replicas", {0: 1.5, 1: 1.5})) == []
    assert lora(run_of(tmp_path / "apart", {0: 1.0, 1: 1.5}, calls=False)) == []
    assert lora(run_of(tmp_path / "shards", {0: 1.0, 1: 1.5}, whole=8)) == []


def test_shards_add_up(tmp_path: Path) -> None:
    run = run_of(tmp_path / "shards", {0: 3.0, 1: 4.0}, whole=8)
    rows = gradient_rows(run)
    assert rows["norm"].tolist() == [5.0] * 16
    assert set(rows["numel"]) == {8}
    assert set(rows["rank"]) == {0}
    found = samples(run)
    assert found["grad_norm"].tolist() == [5.0] * 16
    assert found["grad_zeros"].tolist() == [0.25] * 16
    b = found[found["parameter"] == NAMES[1]]
    assert [round(v, 9) for v in b["norm"]] == [round(math.hypot(s, s), 9) for s in range(8)]
    assert [round(v, 9) for v in b["update_ratio"].dropna()] == [0.1] * 7


@pytest.mark.parametrize("whole", [4, 8])
def test_a_rank_read_alone_has_its_rows_of_all_ranks(tmp_path: Path, whole: int) -> None:
    path = run_of(tmp_path / "run", {0: 3.0, 1: 4.0}, whole=whole).path
    every = gradient_rows(open_run(path))
    rows = [rank_gradient_rows(open_run(path), rank) for rank in (0, 1)]
    assert [len(one) for one in rows] == ([16, 16] if whole == 4 else [16, 0])
    pd.testing.assert_frame_equal(pd.concat(rows, ignore_index=True), every)
    every = calls(open_run(path))
    alone = [calls_alone(open_run(path), rank) for rank in (0, 1)]
    pd.testing.assert_frame_equal(pd.concat(alone, ignore_index=True), every)


def test_one_shard_that_is_nan_makes_the_whole_nan(tmp_path: Path) -> None:
    run = run_of(tmp_path, {0: 3.0, 1: math.nan}, whole=8)
    rows = gradient_rows(run)
    assert rows["norm"].isna().all()
    assert not rows["missing"].any()
    assert samples(run)["grad_norm"].isna().all()
    (found,) = exploding(run)
    assert found.evidence["cause"] == "not_finite"


def test_a_replica_of_shards_counts_once(tmp_path: Path) -> None:
    run = run_of(tmp_path, {0: 3.0, 1: 3.0}, whole=5)  # 8 elements recorded of 5
    assert [round(v, 9) for v in gradient_rows(run)["norm"]] == [
        round(math.sqrt(18 * 5 / 8), 9)
    ] * 16


def test_shards_of_ranks_that_are_missing_are_left_out(tmp_path: Path) -> None:
    assert gradient_rows(run_of(tmp_path, {0: 3.0}, whole=8)).empty
