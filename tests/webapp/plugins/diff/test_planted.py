"""What one may change in a training, and where diff says that it began: real recordings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lanescope.webapp.plugins.diff.diff import Comparison, compare
from lanescope.webapp.runs.run import Run, open_run
from tests.support.recording import record_into, write_program

PROGRAM = """
    import sys
    from pathlib import Path
    import numpy
    import torch
    from torch.nn import functional as F
    import lanescope.collector as ls

    KINDS = ("bit", "swap", "sign", "zero", "nan")

    def planted(kind):
        values = numpy.linspace(-3, 3, 700, dtype=numpy.float32)
        values[300] = 0.0
        values[400] = numpy.nan
        bits = values.view(numpy.uint32)
        if kind == "bit": bits[699] ^= 1
        if kind == "swap": values[[10, 690]] = values[[690, 10]]
        if kind == "sign": bits[5] ^= 1 << 31
        if kind == "zero": bits[300] = 1 << 31  # -0.0
        if kind == "nan": bits[400] ^= 1  # another NaN
        return torch.from_numpy(values)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (torch.nn.Linear(8, 8) for _ in range(3))

        def forward(self, x, variant):
            layers = [self.b, self.a] if variant == "swapped" else [self.a, self.b]
            for layer in layers:
                if variant == "dtype" and layer is self.b:
                    with torch.autocast("cpu", torch.bfloat16):
                        x = layer(x).float()
                else:
                    x = layer(x)
            x = self.c(x.tanh())
            return torch.log(torch.softmax(x, 1)) if variant == "unfused" else F.log_softmax(x, 1)

    def train(variant):
        torch.manual_seed(variant == "seed")
        model = Model()
        rule = torch.optim.Adam if variant == "rule" else torch.optim.SGD
        optimizer = rule(model.parameters(), lr=0.2 if variant == "lr" else 0.1)
        count = 24 if variant == "batch" else 16
        x, y = torch.randn(24, 8)[:count], torch.arange(count) % 8
        for step in range(2):
            for kind in KINDS:
                with ls.phase(kind):
                    planted(kind if (variant, step) == ("bits", 1) else "").clone()
            # Of one number, rounding may be the same by chance.
            loss = F.nll_loss(model(x, variant), y, reduction="none").mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # here

    for name in sys.argv[3:]:
        with ls.record(Path(sys.argv[1]) / name, level="numerics", engine=sys.argv[2]):
            train(name)
"""


def recorded(path: Path, engine: str, *names: str) -> Path:
    """A run for each variant of the training, all of one process."""
    program = write_program(path, PROGRAM)
    done = record_into(path, program, engine, *names)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = ("base", "again", "lr", "swapped", "unfused", "dtype", "bits", "seed", "batch", "rule")
    return recorded(tmp_path_factory.mktemp("planted"), "auto", *names)


@pytest.fixture(scope="module")
def base(folder: Path) -> Run:
    return open_run(folder / "base")


def against(base: Run, folder: Path, name: str) -> Comparison:
    return compare(base, open_run(folder / name))


def test_a_deterministic_program_repeats_its_bits(base: Run, folder: Path) -> None:
    found = against(base, folder, "again")
    assert (found.verdict, found.only_in_base, found.only_in_run) == ("identical", 0, 0)
    assert found.compared > 100


@pytest.mark.slow
def test_it_does_on_the_portable_engine_too(tmp_path: Path) -> None:
    folder = recorded(tmp_path, "portable", "base", "again", "bits")
    found = against(open_run(folder / "base"), folder, "again")
    assert (found.verdict, found.only_in_base, found.only_in_run) == ("identical", 0, 0)
    assert found.compared > 50
    assert against(open_run(folder / "base"), folder, "bits").verdict == "diverged"


def test_single_bits_are_placed_at_the_operator_that_has_them(base: Run, folder: Path) -> None:
    found = against(base, folder, "bits")
    rows = found.table[(found.table["kind"] == "tensor")]
    answer = rows.groupby("phase")[["step", "name"]].agg(set)
    assert answer.to_dict("index") == {
        kind: {"step": {1}, "name": {"aten::clone"}}
        for kind in ("bit", "swap", "sign", "zero", "nan")
    }
    assert found.first is not None
    assert (found.first["phase"], found.first["op"]) == ("bit", "aten::clone")
    assert (found.only_in_base, found.only_in_run) == (0, 0)


@pytest.mark.parametrize(
    ("name", "step", "op", "module"),
    [
        ("lr", 0, "aten::add_", ""),
        ("swapped", 0, "aten::addmm", "b"),
        ("unfused", 0, "aten::nll_loss_forward", ""),
        ("dtype", 0, "aten::addmm", "b"),
        ("seed", 0, "aten::uniform_", ""),
    ],
)
def test_a_change_gives_the_right_first_place(
    base: Run, folder: Path, name: str, step: int, op: str, module: str
) -> None:
    found = against(base, folder, name)
    first = found.first
    assert first is not None, json.dumps(found.to_json())
    assert (found.verdict, first["step"], first["op"], first["module"]) == (
        "diverged",
        step,
        op,
        module,
    )
    if name == "lr":
        line = next(k for k, text in enumerate(PROGRAM.splitlines(), 1) if "# here" in text)
        assert first["where"] == f"program.py:{line}"
    if name == "unfused":
        assert any("operators of that step" in note and "aten::log" in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("again", ""),
        ("lr", "the learning rate differs since step 0 at the latest: 0.1 became 0.2"),
        ("rule", "parameters are updated by Adam, in the baseline by SGD"),
        ("seed", "aten::uniform_ draws random numbers: another seed"),
        ("batch", "the first of other shapes aten::"),
        ("dtype", "the last aten::"),
    ],
)
def test_the_cause_of_the_first_difference_is_said(
    base: Run, folder: Path, name: str, answer: str
) -> None:
    notes = "\n".join(against(base, folder, name).notes)
    assert answer in notes
    assert ("learning rate" in notes, "draws random" in notes) == (name == "lr", name == "seed")
