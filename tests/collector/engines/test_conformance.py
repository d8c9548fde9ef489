"""Both engines over the same programs: what both can see is the same in both logs.

The portable engine sees operators once, below autograd; the native one also sees what they are
made of and what they call. So the native log is first reduced to what the other can see.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from lanescope.collector.format.names import UNSEEN_BY, OpFilter
from lanescope.webapp import open_run
from tests.support.recording import BIN, Recorded, record_program, run_program

Rows = list[dict[str, Any]]

MODEL = """
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(model(torch.ones(3, 4)), torch.tensor([0, 1, 1]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        model(torch.ones(5, 4))
"""

CHECKPOINT = """
    import torch
    from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
    torch.manual_seed(0)
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)
            self.drop = torch.nn.Dropout(0.5)
        def forward(self, x):
            return self.drop(self.inner(x).tanh())
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        def forward(self, x):
            x = checkpoint(self.blocks[0], x, use_reentrant=False)
            return checkpoint(self.blocks[1], x, use_reentrant=True)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    # Stopping early ends a recomputation by an exception, before the last operator reaches the
    # portable engine.
    stop = set_checkpoint_early_stop(False)
    stop.__enter__()
    for _ in range(2):
        model(torch.ones(3, 4, requires_grad=True)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""

THREADS = """
    import threading, torch
    torch.manual_seed(0)
    models = [torch.nn.Linear(4, 4) for _ in range(2)]
    def work(model):
        with torch.profiler.record_function("my scope"):
            model(torch.ones(2, 4)).sigmoid().sum().backward()
        torch.mm(model.weight, model.weight)
    for i, model in enumerate(models):
        thread = threading.Thread(target=work, args=(model,), name=f"worker {i}")
        thread.start()
        thread.join()
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2
        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2
    x = torch.ones(3, requires_grad=True)
    Double.apply(x).sum().backward()
    try:
        torch.ones(2) @ torch.ones(3)
    except RuntimeError:
        pass
    torch.stack([x, x]).cos()
    torch.arange(6.0).reshape(2, 3).add_(1)
    for y in (torch.rand(2, 3, dtype=torch.float64), torch.tensor([[1 + 2j]])):
        (y * y).sum()
"""

RANKS = """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        model(torch.full((3, 4), float(rank))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    tensor = torch.ones(6)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, async_op=True).wait()
    dist.all_gather([torch.empty(6) for _ in range(2)], tensor)
    dist.all_gather_into_tensor(torch.empty(12), tensor)
    dist.reduce_scatter_tensor(torch.empty(3), tensor)
    dist.all_to_all_single(torch.empty(6), tensor)
    dist.broadcast(tensor, 1)
    dist.reduce(tensor, 0)
    dist.gather(tensor, [torch.empty(6)] * 2 if rank == 0 else None, 0)
    dist.scatter(tensor, [torch.ones(6)] * 2 if rank == 0 else None, 0)
    dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    pairs = [dist.P2POp(dist.isend, tensor, 1 - rank), dist.P2POp(dist.irecv, tensor, 1 - rank)]
    for work in dist.batch_isend_irecv(pairs):
        work.wait()
    dist.all_reduce(tensor, group=dist.new_group([0, 1]))
    functional = torch.ops._c10d_functional  # its wrapper in Python asks whether a mode is on
    functional.wait_tensor(functional.all_reduce(tensor, "sum", dist.group.WORLD.group_name))
    dist.barrier()
    dist.destroy_process_group()
"""

PROGRAMS = {"model": MODEL, "checkpoint": CHECKPOINT, "threads": THREADS, "ranks": RANKS}
ENGINES = ("portable", "native")
# Nothing is left out while recording, so that each op's place among the others is known.
COMPUTING = OpFilter((), ())
EVERYTHING = ("--include", "*", "--exclude", "profiler::*", "--stacks", "collectives")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.torchrun if name == "ranks" else ())
        for name in PROGRAMS
    ],
)
def both(
    request: pytest.FixtureRequest, native: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Recorded]:
    """One program, recorded with each engine."""
    recorded = {}
    for engine in ENGINES:
        folder = tmp_path_factory.mktemp(f"{request.param}-{engine}")
        recorded[engine] = record_program(
            folder,
            PROGRAMS[request.param],
            "--engine",
            engine,
            *EVERYTHING,
            ranks=2 if request.param == "ranks" else 0,
        )
        assert recorded[engine].status == 0, recorded[engine].stderr
        assert "error" not in recorded[engine].stderr, recorded[engine].stderr
        manifest = json.loads((recorded[engine].run / "manifest.json").read_text())
        assert {p["engine"] for p in manifest["processes"]} == {engine}
    return recorded


def is_composite(name: str) -> bool:
    """Made of other operators above autograd, so that only those reach the portable engine."""
    space, _, short = name.partition("::")
    packet = getattr(getattr(torch.ops, space, None), short, None)
    if packet is None:  # no operator: torch's own mark around some
        return True
    kinds = {
        _is_composite(f"{name}.{overload}" if overload != "default" else name)
        for overload in packet.overloads()
        if not overload.endswith("out")
    }
    return False not in kinds


def _is_composite(overload: str) -> bool | None:
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(overload, "CompositeImplicitAutograd")
    except RuntimeError:  # known to TorchScript alone
        return None


def threads(recorded: Recorded) -> list[str]:
    """Names of the threads that Python knows."""
    return [r["name"] for r in recorded.rows("thread") if r["kind"] != "native"]


def seen_by_portable(rows: Rows) -> Rows:
    """Returns operators that are neither composites nor parts of another operator."""
    enclosing: list[dict[str, Any]] = []
    found = []
    for row in rows:
        del enclosing[row["depth"] :]
        hidden = any(e["scope"] == "function" and not is_composite(e["name"]) for e in enclosing)
        enclosing.append(row)
        if not hidden and not (row["scope"] == "function" and is_composite(row["name"])):
            found.append(row)
    return found


def in_order(recorded: Recorded, thread: str) -> Rows:
    """A thread's ops, parents before children."""
    return sorted(recorded.rows("op", thread=thread), key=lambda r: (r["start_ns"], r["depth"]))


def chosen(rows: Rows, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[c] for c in columns) for row in rows]


def test_operators(both: dict[str, Recorded]) -> None:
    columns = (
        "name",
        "module",
        "phase",
        "step",
        "shapes",
        "dtypes",
        "device",
        "sequence",
    )
    assert threads(both["portable"]) == threads(both["native"])
    for thread in threads(both["portable"]):
        portable, native = (
            [r for r in rows if r["scope"] == "function" and COMPUTING.wanted(r["name"])]
            for rows in (
                in_order(both["portable"], thread),
                seen_by_portable(in_order(both["native"], thread)),
            )
        )
        assert chosen(native, *columns) == chosen(portable, *columns)


def test_nodes_and_scopes(both: dict[str, Recorded]) -> None:
    for thread in threads(both["portable"]):
        for scope in ("backward", "user"):
            portable, native = (
                chosen(
                    [r for r in in_order(both[e], thread) if r["scope"] == scope],
                    "name",
                    "sequence",
                    "phase",
                    "step",
                )
                for e in ENGINES
            )
            # A node that runs no operator is out of the portable engine's sight.
            assert [row for row in native if row in portable] == portable
            if scope == "user":
                assert len(native) == len(portable)


@pytest.mark.parametrize(
    "table",
    ["phase", "gradient", "parameter", "activation", "node", "collective", "sync", "module"],
)
def test_other_tables(both: dict[str, Recorded], table: str) -> None:
    times = {"start_ns", "duration_ns", "complete_ns", "time_ns", "runnable_ns", "peer", "stack"}
    for rank in range(2 if (both["native"].run / "rank=00001").exists() else 1):
        portable, native = (both[e].table(table, rank) for e in ENGINES)
        columns = [c for c in portable.column_names if c not in times]
        rows = [chosen(log.to_pylist(), *columns) for log in (native, portable)]
        if table == "sync":  # the order between threads is theirs
            rows = [sorted(one) for one in rows]
        assert len(rows[0]) == len(rows[1])
        for one, other in zip(*rows, strict=True):
            assert all(map(is_alike, one, other)), (one, other)


_PROGRAM = re.compile(r"/\S+/(?=program\.py)")


def is_alike(one: Any, other: Any) -> bool:
    """torch takes norms in single precision, the observer in double. Each has its program in
    a folder of its own."""
    if isinstance(one, str) and isinstance(other, str):
        return _PROGRAM.sub("", one) == _PROGRAM.sub("", other)
    return bool(one == other or (isinstance(one, float) and one == pytest.approx(other, rel=1e-4)))


def differences(native: Recorded, portable: Recorded) -> set[str]:
    """What the native log has and the portable one has not, by the names that coverage uses."""
    more, less = native.rows("op"), portable.rows("op")
    known = {row["name"] for row in less}
    found = {
        f"unseen_{'composite' if is_composite(str(row['name'])) else 'inner'}_operators"
        for row in more
        if row["scope"] == "function" and row["name"] not in known
    }
    nodes = [[r for r in rows if r["scope"] == "backward"] for rows in (more, less)]
    if len(nodes[0]) > len(nodes[1]):
        found.add("unseen_empty_nodes")
    if nodes[1]:  # theirs begin and end with their operators
        found.add("unseen_node_bounds")
    if native.rows("access") and not portable.rows("access"):
        found.add("unseen_accesses")
    if {row["scope"] for row in more} > {row["scope"] for row in less}:
        found.add("unseen_compiled_regions")
    kinds = [[r["kind"] for r in one.rows("thread")] for one in (native, portable)]
    if kinds[0].count("native") > kinds[1].count("native"):
        found.add("unseen_backend_threads")
    return found


def test_every_difference_is_declared(both: dict[str, Recorded]) -> None:
    runs = {engine: open_run(both[engine].run) for engine in ENGINES}
    declared = set(UNSEEN_BY["portable"])
    found = differences(both["native"], both["portable"])
    assert found
    assert found <= declared
    assert declared <= set(runs["portable"].coverage)
    (sentence,) = [w for w in runs["portable"].warnings if "portable engine" in w]
    assert all(words in sentence for words in UNSEEN_BY["portable"].values())
    assert not [reason for reason in runs["native"].coverage if reason.startswith("unseen_")]
    assert not [w for w in runs["native"].warnings if "engine" in w]
    shown = run_program([str(BIN / "lanescope"), "info", str(both["portable"].run)])
    assert sentence in shown.stdout
