"""Memory that nothing had set, and values written without an operator: chance does not count, and
no finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp import open_run
from lanescope.webapp.plugins.diff.diff import compare
from lanescope.webapp.plugins.numerics.values import not_finite, unrecorded_writes
from tests.support.recording import OBSERVERS, record_program

PROGRAM = """
    import sys
    import numpy
    import torch
    from torch.func import grad, vmap

    rubbish = float(sys.argv[1])

    def is_left_over(count):
        left = torch.empty(count)
        left.numpy()[:] = rubbish  # no operator: the next one of that size has it
        del left
        return torch.empty(count)

    place = torch.tensor([2, 0, 1])
    torch.empty_like(place).scatter_(0, place, torch.arange(3))  # sets all of it
    made = is_left_over(5000).cosh()
    made.sinh().tan()  # chance as well
    made.copy_(torch.ones(5000))
    made.exp()
    filled = torch.empty(5000)
    filled.numpy()[:] = numpy.arange(5000)  # data
    filled.sqrt()

    weights = torch.arange(6.0).reshape(3, 2)
    gradients = vmap(grad(lambda w: (w * w).sum()))(weights)
    (gradients - weights).square()
"""


@pytest.mark.parametrize("observer", OBSERVERS)
def test_chance_is_not_a_difference(tmp_path: Path, native: Path, observer: str) -> None:
    runs = []
    for rubbish in ("1.5", "nan"):
        folder = tmp_path / rubbish
        folder.mkdir()
        recorded = record_program(
            folder, PROGRAM, "--level", "numerics", "--engine", observer, arguments=(rubbish,)
        )
        assert recorded.status == 0, recorded.stderr
        runs.append(open_run(recorded.run))
        ops: dict[Any, str] = {
            (r["start_ns"], r["depth"]): str(r["name"]) for r in recorded.rows("op")
        }
        rows = [
            (ops[r["start_ns"], r["depth"]].removeprefix("aten::"), r["position"], r["unset"])
            for r in recorded.rows("tensor")
        ]
        assert [name for name, _, unset in rows if unset] == ["cosh", "sinh", "tan"]
        assert ("scatter_", "in0", False) in rows
        assert not {("scatter_", "read0", False), ("cosh", "read0", False)} & set(rows)
        assert {("exp", "out0", False), ("sqrt", "read0", False), ("sqrt", "out0", False)} <= set(
            rows
        )
    for run in runs:
        assert not_finite(run) == []
        assert unrecorded_writes(run) == []
    found = compare(*runs)
    assert found.verdict == "identical", found.first
    (answer,) = (note for note in found.notes if "uninitialised memory" in note)
    assert "6 tensors" in answer
    assert "the first by aten::cosh" in answer


COMPILED = """
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    run, scale = torch.compile(model), torch.compile(lambda w: w.mul_(0.5))
    for _ in range(2):
        run(torch.ones(3, 4)).square().sum().backward()
        with torch.no_grad():
            scale(model[0].weight)  # no operator that would be recorded
        model[0].weight.square()
"""


@pytest.mark.parametrize("observer", OBSERVERS)
def test_what_compiled_code_writes_is_nobodys_fault(
    tmp_path: Path, native: Path, observer: str
) -> None:
    recorded = record_program(tmp_path, COMPILED, "--level", "numerics", "--engine", observer)
    assert recorded.status == 0, recorded.stderr
    assert unrecorded_writes(open_run(recorded.run)) == []
