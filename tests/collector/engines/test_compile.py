"""Programs that use torch.compile: still compiled, the same bits, and what can be seen of them."""

from __future__ import annotations

import functools
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp import open_run
from lanescope.webapp.plugins.diff.diff import compare
from lanescope.webapp.plugins.diff.verdict_words import headline, uncompared
from tests.support.processes import fork_program
from tests.support.recording import SLOW_ON_PORTABLE, Recorded, record_program, write_program

# A model that compiles whole, as does a function that lets gradients go while there are threads,
# and a function that breaks the graph twice, so that breaks count.
COMPILED = """
    import sys, threading, torch
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

    other = threading.Thread(target=torch.ones, args=(1,))
    other.start()
    other.join()
    model(torch.ones(1, 8)).backward()

    @torch.compile(backend=sys.argv[1], fullgraph=True)
    def let_go(x):
        model[2].weight.grad = None
        model[0].zero_grad()
        return x + 1
    let_go(torch.ones(3))
    print([parameter.grad is None for parameter in model.parameters()])

    @torch.compile(backend=sys.argv[1])
    def broken(x):
        y = x.sin()
        torch._dynamo.graph_break()
        y = y.cos()
        print("in between")
        return y.tan()
    for _ in range(2):
        print(broken(torch.ones(3)).sum().item().hex())
    print(counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))
"""
Record = Callable[..., Recorded]
BACKENDS = (
    "aot_eager",
    pytest.param(
        "inductor",
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs g++"),
        ],
    ),
)


@pytest.fixture(scope="module", params=BACKENDS)
def bare(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The backend, then the lines that the program prints without recording."""
    program = write_program(tmp_path_factory.mktemp("bare"), COMPILED)
    done = fork_program(program, request.param, timeout=300)
    assert done.returncode == 0, done.stderr
    return [request.param, *done.stdout.splitlines()]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Records the program with an engine and a backend, once each."""

    @functools.cache
    def record(engine: str, backend: str = "aot_eager") -> Recorded:
        folder = tmp_path_factory.mktemp("compiled")
        return record_program(folder, COMPILED, "--engine", engine, arguments=(backend,))

    return record


def regions(recorded: Recorded) -> Counter[Any]:
    return Counter(r["name"] for r in recorded.rows("op") if r["scope"] == "compiled")


@pytest.mark.slow
@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
def test_compilation_goes_on_and_gives_the_same(
    compiled: Record, engine: str, bare: list[str]
) -> None:
    backend, *lines = bare
    recorded = compiled(engine, backend)
    # The numbers of graphs and of breaks are among the lines.
    assert (recorded.status, recorded.stdout.splitlines()) == (0, lines), recorded.stderr
    assert lines[3] == "1 {}"
    assert lines[4] == "[True, True, True, False]"
    assert lines[-1] == "5 2"
    assert len(recorded.stderr.splitlines()) == 1, recorded.stderr  # no warning of torch's either
    # The modules' own code is gone, but their forward and its operators are on the timeline.
    last = [r for r in recorded.rows("op") if r["step"] == 2 and r["phase"] == "forward"]
    assert [r["name"] for r in last].count("aten::addmm") == 2
    assert {r["module"] for r in last if r["name"] == "aten::addmm"} == {"Sequential"}


def test_compiled_regions_are_slices(compiled: Record, native: Path) -> None:
    recorded = compiled("auto")
    assert recorded.status == 0, recorded.stderr
    assert {p["engine"] for p in open_run(recorded.run).manifest["processes"]} == {"native"}
    found = regions(recorded)
    # What torch.compile captured is there as torch.fx has it, and where it stopped.
    fx = [r for r in recorded.rows("fx") if r["op"] not in ("placeholder", "output")]
    said = [(r["graph"].partition(" ")[2], r["module"], r["target"]) for r in fx]
    assert [one for one, r in zip(said, fx, strict=True) if r["op"] != "break"] == [
        ("Sequential (compiled)", "0", "torch._C._nn.linear"),
        ("Sequential (compiled)", "1", "torch._C._nn.gelu"),
        ("Sequential (compiled)", "2", "torch._C._nn.linear"),
        ("let_go (compiled)", "", "add"),
        ("broken (compiled)", "", "sin"),
        ("torch_dynamo_resume_in_broken_at_33 (compiled)", "", "cos"),
        ("torch_dynamo_resume_in_broken_at_35 (compiled)", "", "tan"),
    ]
    assert ["graph_break()" in r["target"] for r in fx if r["op"] == "break"] == [True, False]
    # The model's region ran three times, the function that breaks twice in three parts.
    assert found["Torch-Compiled Region: 0/0"] == 3
    assert sorted(found.values()) == [1, 2, 2, 2, 3]
    ops = recorded.rows("op")
    (outer, *_) = [r for r in ops if r["name"] == "Torch-Compiled Region: 0/0" and r["step"] == 2]
    inside = [
        r["name"]
        for r in ops
        if outer["start_ns"] <= r["start_ns"] < outer["start_ns"] + outer["duration_ns"]
        and r["depth"] > outer["depth"]
    ]
    assert inside.count("aten::addmm") == 2
    assert inside.count("aten::gelu") == 1


@pytest.mark.slow
def test_the_portable_engine_declares_that_it_sees_no_regions(compiled: Record) -> None:
    recorded = compiled("portable")
    assert recorded.status == 0, recorded.stderr
    assert not regions(recorded)
    assert open_run(recorded.run).coverage["unseen_compiled_regions"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
def test_another_backend_shows_single_ops(tmp_path: Path, engine: str) -> None:
    recorded = record_program(
        tmp_path,
        COMPILED,
        "--engine",
        engine,
        "--compile-backend",
        "aot_eager",
        arguments=("no-such-backend",),
    )
    assert recorded.status == 0, recorded.stderr
    last = [
        r["name"]
        for r in recorded.rows("op")
        if r["step"] == 2 and r["phase"] == "forward" and str(r["name"]).startswith("aten::")
    ]
    if engine == "auto":  # which also sees how addmm begins: with a copy of the bias
        assert last.count("aten::copy_") == 2
        last = [name for name in last if name != "aten::copy_"]
    assert last == ["aten::addmm", "aten::gelu", "aten::addmm"]


# The same training three times: eager, compiled, and compiled with another number in one layer.
AGAINST_EAGER = """
    import sys, torch
    import lanescope.collector as ls
    torch.set_num_threads(1)
    for name in ("eager", "compiled", "other"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
        call = model if name == "eager" else torch.compile(model, backend="aot_eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with ls.record(f"{sys.argv[1]}/{name}", level="numerics", engine=sys.argv[2]):
            for step in range(3):
                if (name, step) == ("other", 1):
                    model[2].bias.data.add_(1e-3)
                call(torch.randn(4, 8)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
"""


@pytest.mark.slow
def test_compiled_and_eager_are_compared_operator_by_operator(tmp_path: Path, native: Path) -> None:
    program = write_program(tmp_path, AGAINST_EAGER)
    done = fork_program(program, str(tmp_path), "auto")
    assert done.returncode == 0, done.stderr
    eager, compiled, other = (open_run(tmp_path / n) for n in ("eager", "compiled", "other"))
    found = compare(eager, compiled)
    assert found.verdict == "identical"
    assert headline(found) == "identical in what both runs have"
    (note,) = found.notes
    assert note.startswith("the run went through torch.compile, the baseline did not: ")
    assert "--compile-backend aot_eager" in note
    # What computes has a partner, though its module is the one that was compiled.
    assert not {"aten::addmm", "aten::gelu", "aten::mm"} & found.alone[0].ops.keys()
    assert found.alone[0].ops["aten::linear"] == 2 * 3  # is not called in what was compiled
    said = uncompared(found) or ""
    assert "(aten::linear 6, " in said
    assert said.endswith(" of the run")

    first = compare(eager, other).first
    assert first is not None
    assert (first["step"], first["op"], first["module"]) == (1, "aten::addmm", "Sequential")


IN_PLACE = """
    import torch
    from torch._dynamo.utils import counters
    class Half(torch.nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            torch._dynamo.graph_break()
            return y * 1
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Half(4, 1))
    model.compile(backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(counters["stats"]["unique_graphs"], dict(counters["frames"]))
"""


@pytest.mark.slow
def test_a_model_that_is_compiled_in_place_has_its_names(tmp_path: Path) -> None:
    """Its hooks are called by torch's own code, and would be compiled one by one."""
    recorded = record_program(tmp_path, IN_PLACE)
    bare = fork_program(write_program(tmp_path, IN_PLACE), timeout=300)
    assert recorded.stdout == bare.stdout, recorded.stderr
    names = {r["parameter"] for r in recorded.rows("gradient")}
    assert names == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert [r["kind"] for r in recorded.rows("phase")].count("forward") == 2
