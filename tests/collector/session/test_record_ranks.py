"""Two real gloo ranks under torchrun, and bitwise the same training with and without a recorder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.recording import BIN, Recorded, record_program, run_program, write_program

pytestmark = pytest.mark.torchrun

RANKS = """
    import os, sys, torch
    import torch.distributed as dist
    from torch.distributed import all_reduce as early_bound
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        model(torch.full((3, 4), float(rank))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    tensor = torch.ones(6, dtype=torch.float64)
    early_bound(tensor)
    dist.all_reduce(tensor, async_op=True).wait()
    outputs = [torch.empty(6, dtype=torch.float64) for _ in range(2)]
    dist.all_gather(outputs, tensor)
    dist.broadcast(tensor, 1)
    dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    pair = dist.new_group([0, 1])
    dist.all_reduce(tensor, group=pair)
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    recorded = record_program(tmp_path_factory.mktemp("ranks"), RANKS, ranks=2)
    assert recorded.status == 0, recorded.stderr
    return recorded


def calls(recorded: Recorded, rank: int) -> list[dict[str, Any]]:
    return recorded.rows("collective", rank)


def test_both_ranks_are_there_and_the_launcher_is_not(two_ranks: Recorded) -> None:
    manifest = json.loads((two_ranks.run / "manifest.json").read_text())
    assert manifest["world_size"] == 2
    assert manifest["complete"] is True
    assert [(p["rank"], p["role"]) for p in manifest["processes"]] == [(0, "rank"), (1, "rank")]
    assert all(p["clock"]["calibrated"] for p in manifest["processes"])


@pytest.mark.parametrize("rank", [0, 1])
def test_collectives_of_the_program_in_order(two_ranks: Recorded, rank: int) -> None:
    own = [c for c in calls(two_ranks, rank) if c["dtypes"] == "float64"]
    assert [(c["name"], c["bytes"], c["asynchronous"]) for c in own[:4]] == [
        ("all_reduce", 48, False),
        ("all_reduce", 48, True),
        ("all_gather", 48, False),
        ("broadcast", 48, False),
    ]
    sent, reduced = own[4], own[5]
    assert (sent["name"], sent["peer"]) == (("send", 1) if rank == 0 else ("recv", 0))
    assert reduced["group"] != own[0]["group"]
    assert (reduced["group_size"], reduced["shapes"]) == (2, "[6]")
    assert calls(two_ranks, rank)[-1]["name"] == "barrier"


def test_ranks_agree_on_sequence_numbers(two_ranks: Recorded) -> None:
    def keys(rank: int) -> list[tuple[Any, ...]]:
        return [
            (c["group"], c["sequence"], c["name"].replace("recv", "send"), c["shapes"])
            for c in calls(two_ranks, rank)
        ]

    assert keys(0) == keys(1)
    world = [s for g, s, name, _ in keys(0) if g == keys(0)[0][0] and name != "send"]
    assert world == list(range(len(world)))


def test_the_reducers_collectives_are_seen_in_backward(two_ranks: Recorded) -> None:
    reduced = [
        c for c in calls(two_ranks, 0) if c["name"] == "all_reduce" and c["phase"] == "backward"
    ]
    assert [c["step"] for c in reduced] == [0, 1]
    assert {c["bytes"] for c in reduced} == {40}  # (4 x 2 + 2) float32


def test_completion_follows_the_call_on_every_rank(two_ranks: Recorded) -> None:
    for rank in (0, 1):
        for call in calls(two_ranks, rank):
            if call["complete_ns"] is not None:
                assert call["complete_ns"] >= call["start_ns"]
    # An all_reduce is complete nowhere before its last rank came.
    first, second = (
        {c["sequence"]: c for c in calls(two_ranks, r) if c["group"] == "0"} for r in (0, 1)
    )
    for sequence, mine in first.items():
        theirs = second[sequence]
        if mine["name"] == "all_reduce" and mine["complete_ns"] and theirs["complete_ns"]:
            last = max(mine["start_ns"], theirs["start_ns"])
            assert min(mine["complete_ns"], theirs["complete_ns"]) >= last


def test_stacks_name_the_call(two_ranks: Recorded) -> None:
    stacks = {s["stack"]: s["frames"] for s in two_ranks.rows("stack")}
    source = (two_ranks.run.parent / "program.py").read_text().splitlines()
    own = [c for c in calls(two_ranks, 0) if c["dtypes"] == "float64"]
    lines = [source[stacks[c["stack"]][0]["line"] - 1].strip() for c in own[:2]]
    assert lines == ["early_bound(tensor)", "dist.all_reduce(tensor, async_op=True).wait()"]


def test_gradient_names_do_not_depend_on_the_wrapper(two_ranks: Recorded) -> None:
    assert {g["parameter"] for g in two_ranks.rows("gradient")} == {"0.weight", "0.bias"}


@pytest.mark.slow
def test_ranks_started_with_the_launcher_form(tmp_path: Path) -> None:
    program = write_program(tmp_path, RANKS)
    run = tmp_path / "run"
    done = run_program(
        [
            str(BIN / "torchrun"),
            "--standalone",
            "--nproc-per-node=2",
            "-m",
            "lanescope.collector",
            "-o",
            str(run),
            str(program),
        ]
    )
    assert done.returncode == 0, done.stderr
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["world_size"], manifest["complete"]) == (2, True)
    assert [p["rank"] for p in manifest["processes"]] == [0, 1]
    assert not (run / "journal").exists()


def test_several_ranks_need_one_place(tmp_path: Path) -> None:
    program = write_program(tmp_path, RANKS)
    done = run_program(
        [sys.executable, "-m", "lanescope.collector", str(program)],
        environment={"WORLD_SIZE": "2", "RANK": "0"},
    )
    assert done.returncode == 2
    assert "several ranks need one place to record into; give it with -o RUN" in done.stderr
