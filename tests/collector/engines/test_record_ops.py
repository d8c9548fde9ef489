"""A known model, op by op, in a real recorded process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp import open_run
from tests.support.recording import OBSERVERS, SLOW_ON_PORTABLE, Recorded, record_program

TWO_LAYERS = """
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in range(2):
        loss = model(torch.ones(3, 4)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def two_layers(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("two-layers")
    return record_program(folder, TWO_LAYERS, "--engine", "portable", "--stacks", "all")


def ops(recorded: Recorded, step: int, phase: str) -> list[dict[str, Any]]:
    return [r for r in recorded.rows("op") if r["step"] == step and r["phase"] == phase]


def names(rows: list[dict[str, Any]], scope: str = "function") -> list[str]:
    return [r["name"].removeprefix("aten::") for r in rows if r["scope"] == scope]


def test_forward_ops_with_module_and_shapes(two_layers: Recorded) -> None:
    rows = ops(two_layers, 0, "forward")
    assert [(r["name"], r["module"], r["shapes"], r["dtypes"]) for r in rows] == [
        ("aten::addmm", "0", "[8] [3, 4] [4, 8]", "float32 float32 float32"),
        ("aten::relu", "1", "[3, 8]", "float32"),
        ("aten::addmm", "2", "[2] [3, 8] [8, 2]", "float32 float32 float32"),
    ]
    assert {r["device"] for r in rows} == {"cpu"}


def test_backward_nodes_and_the_ops_that_ran_for_them(two_layers: Recorded) -> None:
    rows = ops(two_layers, 1, "backward")
    assert names(rows, "backward") == [
        "SumBackward0",
        "AddmmBackward0",
        "AccumulateGrad",
        "TBackward0",
        "AccumulateGrad",
        "ReluBackward0",
        "AddmmBackward0",
        "AccumulateGrad",
        "TBackward0",
        "AccumulateGrad",
    ]
    assert names(rows) == ["mm", "mm", "sum", "threshold_backward", "mm", "sum"]
    assert {r["depth"] for r in rows if r["scope"] == "backward"} == {0}
    assert {r["depth"] for r in rows if r["scope"] == "function"} == {1}


def test_sequence_numbers_tie_backward_to_forward(two_layers: Recorded) -> None:
    for step in (0, 1):
        forward = {r["sequence"]: r for r in ops(two_layers, step, "forward")}
        nodes = [r for r in ops(two_layers, step, "backward") if r["scope"] == "backward"]
        tied = [
            (r["name"], forward[r["sequence"]]["module"]) for r in nodes if r["sequence"] in forward
        ]
        assert tied == [("AddmmBackward0", "2"), ("ReluBackward0", "1"), ("AddmmBackward0", "0")]


def test_phases_and_steps(two_layers: Recorded) -> None:
    rows = two_layers.rows("phase")
    assert [(r["name"], r["kind"], r["step"]) for r in rows] == [
        ("forward", "forward", 0),
        ("backward", "backward", 0),
        ("SGD.step", "optimizer", 0),
        ("forward", "forward", 1),
        ("backward", "backward", 1),
        ("SGD.step", "optimizer", 1),
    ]


def test_optimizer_ops_belong_to_its_phase(two_layers: Recorded) -> None:
    assert names(ops(two_layers, 0, "SGD.step")) == ["add_"] * 4


def test_gradients_of_every_parameter_each_step(two_layers: Recorded) -> None:
    rows = two_layers.rows("gradient")
    assert [(r["step"], r["parameter"], r["numel"]) for r in rows] == [
        (step, name, numel)
        for step in (0, 1)
        for name, numel in (("0.weight", 32), ("0.bias", 8), ("2.weight", 16), ("2.bias", 2))
    ]
    # The loss is a sum over three rows: each of the two biases' gradients is 3.
    assert rows[3]["norm"] == pytest.approx(18**0.5, rel=1e-7)


def test_stacks_name_the_line(two_layers: Recorded) -> None:
    stacks = {r["stack"]: r["frames"] for r in two_layers.rows("stack")}
    source = (two_layers.run.parent / "program.py").read_text().splitlines()
    for phase, text in (("forward", "model(torch"), ("backward", "backward()")):
        for row in ops(two_layers, 0, phase):
            if row["scope"] == "function":
                (frame,) = stacks[row["stack"]]
                assert frame["file"].endswith("program.py")
                assert text in source[frame["line"] - 1]


def test_what_computes_nothing_is_left_out_and_counted(two_layers: Recorded) -> None:
    assert not {"aten::t", "aten::detach", "aten::ones_like"} & {
        r["name"] for r in two_layers.rows("op")
    }


@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
def test_patterns_bring_ops_back_and_take_ops_out(tmp_path: Path, engine: str) -> None:
    recorded = record_program(
        tmp_path,
        TWO_LAYERS,
        "--engine",
        engine,
        "--include",
        "aten::t",
        "--exclude",
        "aten::*mm",
    )
    forward = [r["name"] for r in ops(recorded, 0, "forward") if r["depth"] == 0]
    assert forward.count("aten::t") + forward.count("aten::linear") == 2
    seen = {r["name"] for r in recorded.rows("op")}
    assert "aten::t" in seen
    assert not {"aten::addmm", "aten::mm"} & seen
    # Two layers in two steps; backward multiplies once for the first, twice for the second.
    assert open_run(recorded.run).coverage["filtered"] >= 2 * (2 + 3)


def test_a_step_window_records_only_its_steps(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, TWO_LAYERS, "--steps", "1:2")
    for table in ("op", "phase", "gradient"):
        assert {r["step"] for r in recorded.rows(table)} == {1}, table
    assert open_run(recorded.run).coverage["steps_left_out"] == 1


@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
def test_a_minimum_duration_leaves_out_short_ops(tmp_path: Path, engine: str) -> None:
    recorded = record_program(tmp_path, TWO_LAYERS, "--engine", engine, "--min-duration", "10s")
    assert [r for r in recorded.rows("op") if r["scope"] == "function"] == []
    assert len(recorded.rows("phase")) == 6
    # Multiplications, additions and relu of two layers in two steps, forward and backward.
    assert open_run(recorded.run).coverage["shorter_than_minimum"] >= 2 * 8


COME_AND_GO = """
    import threading, torch
    class Negated(torch.nn.Module):
        def forward(self, x): return torch.neg(x)
    class Rooted(torch.nn.Module):
        def forward(self, x): return torch.sqrt(x)
    class Raising(torch.nn.Module):
        def forward(self, x):
            torch.exp(x)
            raise ValueError
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.kept, self.raising = Negated(), Raising()
        def forward(self, x):
            addresses = set()
            for kind in (Negated, Rooted) * 10:
                made = kind()
                addresses.add(id(made))
                made(x)
                del made
            assert len(addresses) < 20  # used again
            try:
                self.raising(x)
            except ValueError:
                self.kept(x)
            return torch.cos(x)
    model, x = Model(), torch.ones(2)
    def run():
        for _ in range(3):
            model(x)
        torch.sin(x)
    run()
    thread = threading.Thread(target=run, name="second")
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize("observer", OBSERVERS)
def test_paths_of_modules_that_come_and_go(tmp_path: Path, observer: str, native: Path) -> None:
    recorded = record_program(tmp_path, COME_AND_GO, "--engine", observer, "--level", "timing")
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    once = [("neg", "Negated"), ("sqrt", "Rooted")] * 10
    once += [("exp", "raising"), ("neg", "kept"), ("cos", "Model")]
    for thread in ("main", "second"):
        rows = recorded.rows("op", thread=thread)
        assert [
            (r["name"].removeprefix("aten::"), r["module"]) for r in rows if r["phase"] == "forward"
        ] == once * 3
        assert [r["module"] for r in rows if r["name"] == "aten::sin"] in ([""], [None])


OPERATORS_THAT_COME_AND_GO = """
    import gc
    import torch
    ones = torch.ones(3)
    for round in range(4):
        library = torch.library.Library("lane", "DEF")
        if round % 2 == 0:
            library.define("first(Tensor a) -> Tensor")
            library.define("other(Tensor a, Tensor b) -> Tensor")
            library.impl("first", lambda a: a + 1, "CPU")
            library.impl("other", lambda a, b: a * b, "CPU")
            torch.ops.lane.first.default(ones)
            torch.ops.lane.other.default(ones, ones)
        else:
            library.define("first(Tensor a, Tensor b) -> Tensor")
            library.define("again(Tensor a) -> Tensor")
            library.impl("first", lambda a, b: a - b, "CPU")
            library.impl("again", lambda a: a.exp(), "CPU")
            torch.ops.lane.first.default(ones, ones)
            torch.ops.lane.again.default(ones)
        library._destroy()
        for name in ("first", "other", "again"):
            if hasattr(torch.ops.lane, name):
                delattr(torch.ops.lane, name)
        del library
        gc.collect()
"""


@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
def test_operators_that_torch_removes_and_registers_again(tmp_path: Path, engine: str) -> None:
    recorded = record_program(tmp_path, OPERATORS_THAT_COME_AND_GO, "--engine", engine)
    rows = [row for row in recorded.rows("op") if row["name"].startswith("lane::")]
    one, two = ("lane::first", "[3]"), ("lane::first", "[3] [3]")
    even, odd = [one, ("lane::other", "[3] [3]")], [two, ("lane::again", "[3]")]
    assert [(row["name"], row["shapes"]) for row in rows] == [*even, *odd, *even, *odd]


COMPILES_FUNCTIONS = """
    import weakref
    import torch

    codes = []
    ones = torch.ones(1)
    for number in range(24_000):
        names = {}
        exec("\\n" * (number % 7) + "def function(x):\\n    return x + 1", names)
        codes.append(weakref.ref(names["function"].__code__))
        names["function"](ones)
    print(sum(code() is not None for code in codes))
"""


@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
def test_functions_that_a_program_compiles_are_let_go(tmp_path: Path, engine: str) -> None:
    options = "--engine", engine, "--stacks", "all"
    recorded = record_program(tmp_path, COMPILES_FUNCTIONS, *options)
    assert int(recorded.stdout) <= 20_000, recorded.stderr
    lines = {row["stack"]: row["frames"][0]["line"] for row in recorded.rows("stack")}
    adds = [row for row in recorded.rows("op") if row["name"] == "aten::add"]
    # Other code at the address of one that was let go has a stack of its own.
    assert [lines[row["stack"]] for row in adds] == [2 + n % 7 for n in range(24_000)]
