"""Every collective of torch.distributed on two real gloo ranks, as both engines record it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.recording import OBSERVERS, SLOW_ON_PORTABLE, Recorded, record_program

pytestmark = pytest.mark.torchrun

PROGRAM = """
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    from torch.distributed import all_reduce as early_bound
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    other = 1 - rank
    def ones(count=4):
        return torch.ones(count)
    def each():
        return [ones() for _ in range(world)]

    early_bound(ones())
    dist.all_reduce(ones(), op=dist.ReduceOp.MAX, async_op=True).wait()
    never_waited = dist.all_reduce(ones(), op=dist.ReduceOp.PRODUCT, async_op=True)
    dist.broadcast(ones(), 1)
    dist.reduce(ones(), 1, op=dist.ReduceOp.MIN)
    dist.all_gather(each(), ones())
    dist.all_gather_into_tensor(ones(8), ones())
    dist.gather(ones(), each() if rank == 1 else None, dst=1)
    dist.scatter(ones(), each() if rank == 1 else None, src=1)
    dist.reduce_scatter(ones(), each())
    dist.reduce_scatter_tensor(ones(), ones(8))
    dist.all_to_all(each(), each())
    dist.all_to_all_single(ones(8), ones(8))
    if rank == 0:
        dist.send(ones(), 1)
        dist.recv(ones(), 1)
    else:
        dist.recv(ones(), 0)
        dist.send(ones(), 0)
    dist.barrier()
    pending = [dist.isend(ones(3), other), dist.irecv(ones(3), other)]
    for work in pending:
        work.wait()
    batch = [dist.P2POp(dist.isend, ones(5), other), dist.P2POp(dist.irecv, ones(5), other)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    dist.send(ones(), 1) if rank == 0 else dist.recv(ones())  # from any
    dist.monitored_barrier()
    dist.all_gather_object([None] * world, {"rank": rank})
    dist.broadcast_object_list([rank], 0)
    with dist._coalescing_manager(async_ops=True) as coalesced:
        dist.all_reduce(ones())
        dist.all_reduce(ones())
    coalesced.wait()
    functional.wait_tensor(functional.all_reduce(ones(), "sum", dist.group.WORLD))
    functional.wait_tensor(functional.broadcast(ones(), 1, dist.group.WORLD))
    functional.wait_tensor(functional.all_to_all_single(ones(), None, None, dist.group.WORLD))
    pair = dist.new_group([0, 1], group_desc="pair")
    turned = dist.new_group([1, 0])
    alone = dist.new_group([1])
    for group in (pair, turned, pair):
        dist.all_reduce(ones(), group=group)
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    dist.all_reduce(ones(), group=mesh.get_group("tp"))
    dist.barrier()
    never_waited.wait()
    dist.destroy_process_group()
"""

EXPECTED = [
    # name, sequence, peer of rank 0, root, reduction, shapes
    ("all_reduce", 0, None, None, "sum", "[4]"),
    ("all_reduce", 1, None, None, "max", "[4]"),
    ("all_reduce", 2, None, None, "product", "[4]"),
    ("broadcast", 3, None, 1, "", "[4]"),
    ("reduce", 4, None, 1, "min", "[4]"),
    ("all_gather", 5, None, None, "", "[4]"),
    ("all_gather_into_tensor", 6, None, None, "", "[4]"),
    ("gather", 7, None, 1, "", "[4]"),
    ("scatter", 8, None, 1, "", "[4]"),
    ("reduce_scatter", 9, None, None, "sum", "[4] [4]"),
    ("reduce_scatter_tensor", 10, None, None, "sum", "[8]"),
    ("all_to_all", 11, None, None, "", "[4] [4]"),
    ("all_to_all_single", 12, None, None, "", "[8]"),
    ("send", 0, 1, None, "", "[4]"),
    ("recv", 0, 1, None, "", "[4]"),
    ("barrier", 13, None, None, "", "[1]"),
    ("send", 1, 1, None, "", "[3]"),
    ("recv", 1, 1, None, "", "[3]"),
    ("send", 2, 1, None, "", "[5]"),
    ("recv", 2, 1, None, "", "[5]"),
    ("send", 3, 1, None, "", "[4]"),
    ("monitored_barrier", 14, None, None, "", "[0]"),
]


@pytest.fixture(scope="module", params=OBSERVERS)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp(request.param)
    found = record_program(folder, PROGRAM, "--engine", request.param, ranks=2)
    assert found.status == 0, found.stderr
    return found


def of_world(recorded: Recorded, rank: int) -> list[dict[str, Any]]:
    return [c for c in recorded.rows("collective", rank) if c["group"] == "0"]


def test_every_collective_is_there_with_root_reduction_and_peer(recorded: Recorded) -> None:
    found = [
        (c["name"], c["sequence"], c["peer"], c["root"], c["reduce_op"], c["shapes"])
        for c in of_world(recorded, 0)
    ]
    assert found[: len(EXPECTED)] == EXPECTED
    rest = [name for name, *_ in found[len(EXPECTED) :]]
    assert rest == [
        "all_gather",
        "all_gather",
        "broadcast",
        "broadcast",  # of objects: sizes, then bytes
        "all_reduce_coalesced",
        "all_reduce",
        "broadcast",
        "all_to_all_single",
        "barrier",
    ]


def test_all_of_them_are_seen_to_complete_after_their_call_began(recorded: Recorded) -> None:
    for rank in (0, 1):
        for call in recorded.rows("collective", rank):
            assert call["complete_ns"] is not None, call
            assert call["complete_ns"] >= call["start_ns"]


def test_ranks_agree_on_every_collective(recorded: Recorded) -> None:
    def key(call: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(
            call[name] for name in ("group", "sequence", "name", "root", "reduce_op", "group_size")
        )

    first, second = (
        [
            key(c)
            for c in recorded.rows("collective", rank)
            if c["name"] not in ("send", "recv") and c["group_size"] == 2
        ]
        for rank in (0, 1)
    )
    assert first == second
    assert len(set(first)) == len(first)


def test_the_kth_send_meets_the_kth_recv(recorded: Recorded) -> None:
    for sender, receiver in ((0, 1), (1, 0)):
        sent = {
            c["sequence"]: c["shapes"]
            for c in of_world(recorded, sender)
            if c["name"] == "send" and c["peer"] == receiver
        }
        received = {
            c["sequence"]: c["shapes"]
            for c in of_world(recorded, receiver)
            if c["name"] == "recv" and c["peer"] == sender
        }
        assert {k: sent[k] for k in received} == received
        assert list(received) == [0, 1, 2]


def test_a_recv_from_any_has_no_peer(recorded: Recorded) -> None:
    peers = Counter(c["peer"] for c in of_world(recorded, 1) if c["name"] == "recv")
    assert peers == {0: 3, None: 1}


def test_groups_are_listed_with_their_ranks_and_what_they_are_for(recorded: Recorded) -> None:
    groups = json.loads((recorded.run / "manifest.json").read_text())["groups"]
    assert groups["0"] == {"ranks": [0, 1], "description": "default_pg"}
    by_description = {g["description"]: g["ranks"] for g in groups.values()}
    assert by_description["pair"] == [0, 1]
    assert by_description["mesh_tp"] in ([0], [1])
    used = {c["group"]: c["group_size"] for r in (0, 1) for c in recorded.rows("collective", r)}
    assert {name: len(groups[name]["ranks"]) for name in used} == used


def test_each_has_the_line_that_called_it(recorded: Recorded) -> None:
    source = (recorded.run.parent / "program.py").read_text().splitlines()
    stacks = {s["stack"]: s["frames"] for s in recorded.rows("stack")}
    calls = of_world(recorded, 0)
    lines = [source[stacks[calls[i]["stack"]][0]["line"] - 1].strip() for i in (0, 3, 13)]
    assert lines == ["early_bound(ones())", "dist.broadcast(ones(), 1)", "dist.send(ones(), 1)"]
    assert all(c["stack"] is not None for c in recorded.rows("collective", 1))


MISSING = """
    import os, signal, torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(2))
    if dist.get_rank() == 0:
        import threading
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
        dist.monitored_barrier()  # rank 1 never comes
    else:
        import time
        time.sleep(60)
"""


@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
def test_a_call_that_never_returned_has_its_line(tmp_path: Path, engine: str) -> None:
    recorded = record_program(tmp_path, MISSING, "--engine", engine, ranks=2)
    assert recorded.status != 0
    last = recorded.rows("collective", 0)[-1]
    assert (last["name"], last["sequence"], last["group"]) == ("monitored_barrier", 1, "0")
    assert (last["duration_ns"], last["complete_ns"]) == (None, None)
    stacks = {s["stack"]: s["frames"] for s in recorded.rows("stack", 0)}
    source = (tmp_path / "program.py").read_text().splitlines()
    assert "monitored_barrier" in source[stacks[last["stack"]][0]["line"] - 1]
