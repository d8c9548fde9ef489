"""Programs that use torch.compile: still compiled, the same bits, and what can be seen of them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.recording import record_program, run_program, write_program

COMPILED = """
    import sys, torch
    from torch._dynamo.utils import counters
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    compiled = torch.compile(model, backend=sys.argv[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = compiled(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item().hex())
    print(counters["stats"]["unique_graphs"], dict(counters["graph_break"]))
"""


@pytest.mark.parametrize("engine", ["portable", "auto"])
@pytest.mark.parametrize(
    "backend",
    [
        "aot_eager",
        pytest.param(
            "inductor",
            marks=pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs g++"),
        ),
    ],
)
def test_compilation_goes_on_and_gives_the_same(tmp_path: Path, engine: str, backend: str) -> None:
    program = write_program(tmp_path, COMPILED)
    bare = run_program([sys.executable, str(program), backend], timeout=300)
    recorded = record_program(tmp_path, COMPILED, "--engine", engine, arguments=(backend,))
    assert (recorded.status, recorded.stdout) == (0, bare.stdout), recorded.stderr
    assert bare.stdout.splitlines()[-1] == "1 {}"  # one graph, no breaks
    assert len(recorded.stderr.splitlines()) == 1, recorded.stderr  # no warning of torch's either
    # The modules' own code is gone, but their forward and its operators are on the timeline.
    last = [r for r in recorded.rows("op") if r["step"] == 2 and r["phase"] == "forward"]
    assert [r["name"] for r in last].count("aten::addmm") == 2
    assert {r["module"] for r in last if r["name"] == "aten::addmm"} == {"Sequential"}


def test_another_backend_shows_single_ops(tmp_path: Path) -> None:
    recorded = record_program(
        tmp_path, COMPILED, "--engine", "portable", "--compile-backend", "aot_eager",
        arguments=("no-such-backend",),
    )  # fmt: skip
    assert recorded.status == 0, recorded.stderr
    last = [r["name"] for r in recorded.rows("op") if r["step"] == 2 and r["phase"] == "forward"]
    assert last == ["aten::addmm", "aten::gelu", "aten::addmm"]
