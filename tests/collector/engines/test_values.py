"""Level numerics records what was in tensors: both engines the same, in the right place."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lanescope.collector.format.names import LOSS_SCALE, SKIPPED_STEPS
from lanescope.collector.numerics.fingerprint import hash_of
from lanescope.webapp import open_run
from lanescope.webapp.plugins.numerics.values import not_finite, unrecorded_writes
from lanescope.webapp.runs.run import Run
from tests.support.recording import OBSERVERS, SLOW_ON_PORTABLE, Recorded, record_program
from tests.support.synthetic import START_NS, Builder

Rows = list[dict[str, Any]]

ENGINES = ("native", "portable")

PROGRAM = """
    import numpy, torch
    torch.manual_seed(0)
    from torch.utils._python_dispatch import TorchDispatchMode
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(model(torch.ones(3, 4)), torch.tensor([0, 1, 1]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    big = torch.randn(300, 400)
    big.t().mul(2)
    big[::2].add_(1)
    (torch.randn(50, 60).half() * 2).bfloat16()
    out = torch.empty(3)
    torch.add(torch.ones(3), 1, out=out)
    torch._foreach_add_([torch.ones(2), torch.ones(3)], 1.0)
    norm = torch.nn.BatchNorm1d(4)
    norm(torch.randn(6, 4))
    norm(torch.randn(6, 4))  # finds its running statistics changed, as no schema says
    ids = torch.from_numpy(numpy.arange(6))
    torch.nn.Embedding(10, 3)(ids[:4])
    torch.nn.functional.dropout(torch.ones(100))
    torch.tensor([1 + 2j]).mul(2)
"""

PLANTED = """
    import numpy, torch
    small, large = torch.zeros(8), torch.zeros(70000)
    for tensor in (small, large):
        tensor.add_(1)
        tensor.cos()
        tensor.numpy()[:] = 3  # no operator
        tensor.sin()
        made = tensor * 2
        alias = torch.from_numpy(made.numpy()[3:6])  # a storage of its own in the same memory
        alias.add_(1)
        made.tan()
        made.sub_(1)
        alias.tan()
    (small - small).log().sub(1)
    (torch.ones(4) / torch.zeros(4)).mul(0)
"""

REFILLED = """
    import numpy, torch
    import lanescope.collector as ls
    memory, weights = numpy.zeros((4, 3), numpy.float32), numpy.ones((3, 2), numpy.float32)
    batch, weight = torch.from_numpy(memory), torch.nn.Parameter(torch.from_numpy(weights))
    loss = 0.0
    for step in range(4):
        memory[:] = step  # the next batch
        loss = (batch @ weight).sum()
        if step == 2:
            memory[:] = 9  # too early
        loss.backward()
        ls.step()
    weights[:] = 7
    with torch.no_grad():
        weight.sin()
"""

COLUMNS = (
    "name",
    "position",
    "shape",
    "dtype",
    "device",
    "numel",
    "min",
    "max",
    "nan",
    "inf",
    "zeros",
    "hash",
    "expected",
    "finite_inputs",
)


def joined(recorded: Recorded, rank: int = 0) -> Rows:
    """Rows of the tensor table with the names of their operators."""
    rows: Any = recorded.rows("op", rank)
    names = {(r["start_ns"], r["depth"]): r["name"] for r in rows}
    tensors: Any = recorded.rows("tensor", rank)
    return [{**row, "name": names[row["start_ns"], row["depth"]]} for row in tensors]


def recorded(folder: Path, engine: str, program: str, *options: str, ranks: int = 0) -> Recorded:
    done = record_program(
        folder,
        program,
        "--level",
        "numerics",
        "--engine",
        engine,
        "--stacks",
        "none",
        *options,
        ranks=ranks,
    )
    assert done.status == 0, done.stderr
    assert "error" not in done.stderr
    return done


def test_both_engines_see_the_same(tmp_path: Path, native: Path) -> None:
    found = []
    for engine in ENGINES:
        folder = tmp_path / engine
        folder.mkdir()
        found.append(joined(recorded(folder, engine, PROGRAM)))
    assert len(found[0]) > 100
    plain = [[tuple(row[c] for c in COLUMNS) for row in rows] for rows in found]
    assert plain[0] == plain[1]
    for one, other in zip(*found, strict=True):
        assert one["mean"] == pytest.approx(other["mean"], rel=1e-9, abs=1e-9)
        assert one["l2"] == pytest.approx(other["l2"], rel=1e-9)
    assert not any(row["expected"] is not None for row in found[0])
    for engine in ENGINES:
        run = open_run(tmp_path / engine / "run")
        assert [f.title for f in (*not_finite(run), *unrecorded_writes(run))] == []
    # Each once: neither what operators are made of nor what they call is read again.
    assert "aten::linear" not in {row["name"] for row in found[0]}
    assert sum(row["name"] == "aten::addmm" for row in found[0]) == 4


@pytest.mark.parametrize("observer", OBSERVERS)
def test_values_of_the_program(
    tmp_path: Path, request: pytest.FixtureRequest, observer: str
) -> None:
    if observer == "native":
        request.getfixturevalue("native")
    rows = joined(recorded(tmp_path, observer, PLANTED))
    changed = [r for r in rows if r["expected"] is not None]
    assert [(r["name"], r["position"], r["numel"]) for r in changed] == [
        ("aten::sin", "read0", 8),
        ("aten::sin", "read0", 70000),
    ]
    for row in changed:
        length = row["numel"]
        assert row["expected"] == int(hash_of(torch.ones(length)))
        assert row["hash"] == int(hash_of(torch.full((length,), 3.0)))
        assert row["mean"] == 3.0
    (write,) = unrecorded_writes(open_run(tmp_path / "run"))
    assert (write.evidence["op"], write.evidence["times"]) == ("aten::sin", 2)
    assert write.evidence["found"] != write.evidence["expected"]
    (made_nan,) = not_finite(open_run(tmp_path / "run"))
    assert made_nan.severity == "error"
    assert "aten::mul made the first NaN values out of some that were not finite" in made_nan.title
    # The first that made NaN or Inf of what was neither.
    made = [
        (r["name"], r["nan"], r["inf"]) for r in rows if r["finite_inputs"] and r["nan"] + r["inf"]
    ]
    assert made == [("aten::log", 0, 8), ("aten::div", 0, 4)]
    (nan,) = [r for r in rows if r["nan"]]
    assert (nan["name"], nan["finite_inputs"], nan["mean"]) == ("aten::mul", False, None)
    (cosine,) = [r for r in rows if r["name"] == "aten::cos" and r["numel"] == 8]
    assert cosine["hash"] == int(hash_of(torch.ones(8).cos()))
    assert cosine["l2"] == pytest.approx(math.sqrt(8) * math.cos(1))


@pytest.mark.parametrize("observer", OBSERVERS)
def test_memory_that_no_operator_writes_may_be_filled_again(
    tmp_path: Path, request: pytest.FixtureRequest, observer: str
) -> None:
    if observer == "native":
        request.getfixturevalue("native")
    rows = joined(recorded(tmp_path, observer, REFILLED))
    read = [r for r in rows if r["position"].startswith("read") and r["shape"] == "[4, 3]"]
    assert [r["mean"] for r in read if r["expected"] is None] == [0.0, 1.0, 2.0, 3.0]
    # A batch must stay until backward has read it, and only operators write weights.
    changed = [r for r in rows if r["expected"] is not None]
    assert [(r["name"], r["mean"]) for r in changed] == [("aten::mm", 9.0), ("aten::sin", 7.0)]


RANKS = """
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tensor = torch.full((6,), 1.0 + rank)
    dist.all_reduce(tensor)
    tensor.neg()
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    tensor.abs()
    dist.destroy_process_group()
"""


@pytest.mark.torchrun
@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
def test_collectives(tmp_path: Path, engine: str) -> None:
    """What each rank gives, and what came of it where it is used first."""
    run = recorded(tmp_path, engine, RANKS, ranks=2)
    for rank in range(2):
        rows = [r for r in joined(run, rank) if r["numel"] == 6]
        assert [(r["name"], r["position"], r["mean"]) for r in rows] == [
            ("aten::full", "out0", 1.0 + rank),
            ("c10d::allreduce_", "read0", 1.0 + rank),
            ("aten::neg", "read0", 3.0),
            ("aten::neg", "out0", -3.0),
            ("c10d::allreduce_", "read0", 3.0),
            ("aten::abs", "read0", 6.0),
            ("aten::abs", "out0", 6.0),
        ]


@pytest.mark.parametrize("observer", OBSERVERS)
def test_left_out_operators_are_not_read(
    tmp_path: Path, request: pytest.FixtureRequest, observer: str
) -> None:
    if observer == "native":
        request.getfixturevalue("native")
    rows = joined(recorded(tmp_path, observer, PLANTED, "--exclude", "aten::add_"))
    assert "aten::add_" not in {r["name"] for r in rows}
    # What the operator that was left out wrote is not known, so nothing is expected.
    assert all(r["expected"] is None for r in rows if r["name"] == "aten::cos")


def test_where_nan_comes_from(tmp_path: Path) -> None:
    """Masks are made of infinities on purpose; the NaN of finite numbers is the one that counts."""
    builder = Builder(tmp_path)
    rows = [
        ("aten::masked_fill", "out0", 0, 3, True),  # a mask
        ("aten::full", "out0", 3, 0, True),  # by its argument
        ("aten::mul", "out0", 3, 0, False),  # inherited from that
        ("aten::sqrt", "out0", 2, 0, True),
        ("aten::add", "out0", 2, 0, False),
    ]
    for k, (name, position, nan, inf, finite) in enumerate(rows):
        start = START_NS + 100 * k
        builder.op(start, 10, name)
        builder.row(
            "tensor",
            0,
            "1000-0",
            start_ns=start,
            position=position,
            shape="[3]",
            dtype="float32",
            nan=nan,
            inf=inf,
            finite_inputs=finite,
        )
    (finding,) = not_finite(open_run(builder.write()))
    assert (finding.evidence["op"], finding.severity) == ("aten::sqrt", "error")
    assert "out of finite ones: 2 in [3] float32" in finding.title


def scaled(path: Path, nan_of_finite: bool) -> Run:
    """A step whose backward overflows in float16, so that the scaler skips it."""
    builder = Builder(path)
    rows = [
        ("aten::mm", 0, 5, not nan_of_finite),
        ("aten::mul", 4, 0, nan_of_finite),
    ]
    for k, (name, nan, inf, finite) in enumerate(rows):
        start = START_NS + 100 * k
        builder.op(start, 10, name, phase="backward")
        builder.row(
            "tensor",
            0,
            "1000-0",
            start_ns=start,
            position="out0",
            shape="[8]",
            dtype="float16",
            nan=nan,
            inf=inf,
            finite_inputs=finite,
        )
    for at, name in ((500, SKIPPED_STEPS), (510, LOSS_SCALE)):
        builder.row("value", 0, "1000-0", time_ns=START_NS + at, name=name, value=1.0)
    return open_run(builder.write())


def test_a_step_skipped_by_a_gradient_scaler_is_not_an_error(tmp_path: Path) -> None:
    """A scale that is too high overflows, and so is found; 0 / 0 is a fault all the same."""
    (usual,) = not_finite(scaled(tmp_path / "usual", nan_of_finite=False))
    assert (usual.severity, usual.evidence["op"]) == ("info", "aten::mm")
    (wrong,) = not_finite(scaled(tmp_path / "wrong", nan_of_finite=True))
    assert (wrong.severity, wrong.evidence["op"]) == ("error", "aten::mul")


def test_nan_of_infinities_names_what_made_the_first(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    for k, (name, nan, inf) in enumerate((("aten::div", 0, 2), ("aten::sub", 2, 0))):
        start = START_NS + 100 * k
        builder.op(start, 10, name)
        builder.row(
            "tensor",
            0,
            "1000-0",
            start_ns=start,
            position="out0",
            shape="[3]",
            dtype="float32",
            nan=nan,
            inf=inf,
            finite_inputs=not k,
        )
    (finding,) = not_finite(open_run(builder.write()))
    assert (finding.evidence["op"], finding.severity) == ("aten::sub", "error")
    assert "; the first infinity is that of aten::div. " in finding.title


def test_nan_of_an_overflow_leads_to_the_operator_that_overflowed(tmp_path: Path) -> None:
    program = """
        import torch

        scores = torch.tensor([1.0, 2.0])
        scaled = (scores.half() * 60000 * 60000).float()
        scaled - scaled
    """
    (finding,) = record_program(tmp_path, program, "--level", "numerics").findings("nan")
    assert (finding.evidence["op"], finding.severity) == ("aten::mul", "error")
    assert finding.where == "program.py:5"
    assert "; aten::sub makes NaN values of them at program.py:6. " in finding.title


MASKED = """
    import sys, torch
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    hidden = torch.zeros(6, 6, dtype=torch.bool)
    hidden[2] = True
    for _ in range(3):
        x = torch.randn(6, 4)
        weights = torch.softmax((x @ x.T).masked_fill(hidden, float("-inf")), -1)
        if sys.argv[1] == "replaced":
            weights = weights.nan_to_num(0.0)
        loss = layer(weights @ x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(("how", "severity"), [("replaced", "info"), ("kept", "error")])
def test_nan_that_the_program_replaces_is_information(
    tmp_path: Path, how: str, severity: str
) -> None:
    recorded = record_program(tmp_path, MASKED, "--level", "numerics", arguments=(how,))
    (found,) = not_finite(open_run(recorded.run))
    assert "aten::_softmax" in found.title
    assert found.severity == severity
