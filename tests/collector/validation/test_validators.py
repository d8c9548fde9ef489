"""The user's validators on recorded programs: what they find; the program never notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lanescope.collector.format.marks import ValidatorVerdict
from lanescope.collector.validation import validators
from lanescope.webapp import open_run
from lanescope.webapp.analysis.findings import Finding, findings
from tests.support.processes import fork_program
from tests.support.recording import SLOW_ON_PORTABLE, Recorded, record_program, write_program
from tests.support.synthetic import START_NS, Builder

PROGRAM = """
    import sys, threading, torch
    import lanescope.collector as ls

    fault = sys.argv[1] == "fault"
    torch.manual_seed(3)

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
        def forward(self, x):
            return torch.softmax(self.linear(x), -1) * (2 if fault else 1)

    if len(sys.argv) > 2:
        @ls.validator("aten::softmax")
        def rows_sum_to_one(event, inputs, outputs):
            total = outputs.sum(-1)
            outputs.zero_()  # a copy
            inputs[0].fill_(float("nan"))
            torch.randn(100)  # its own random numbers
            return bool(torch.allclose(total, torch.ones_like(total)))

        @ls.validator(Block)
        def block_sums_to_one(event, inputs, outputs):
            assert not outputs.requires_grad
            total = outputs.sum(-1)
            assert torch.allclose(total, torch.ones_like(total)), f"sums to {total[0].item():.0f}"

        @ls.validator(Block)
        def largest(event, inputs, outputs):
            return outputs.max()

        @ls.validator("aten::relu")
        def broken(event, inputs, outputs):
            if fault:
                raise KeyError("no such key")

        @ls.validator("aten::nothing")
        def unmet(event, inputs, outputs):
            return True

    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = torch.relu(model(torch.randn(2, 4))).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item().hex())
    thread = threading.Thread(target=lambda: print(model(torch.randn(2, 4)).sum().item().hex()))
    thread.start()
    thread.join()
"""

RANKS = """
    import sys, torch
    import torch.distributed as dist
    import lanescope.collector as ls

    @ls.validator("all_reduce")
    def is_six(event, inputs, outputs):
        assert event.name == "all_reduce"
        assert outputs[0].eq(6).all(), f"rank {event.rank}"

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tensor = torch.full((3,), 2.0 * rank + (2 if sys.argv[1] == "clean" else 3))
    dist.all_reduce(tensor)
    again = torch.full((3,), 3.0)
    dist.all_reduce(again, async_op=True).wait()
    dist.barrier()
    dist.destroy_process_group()
"""


def validated(recorded: Recorded) -> dict[str, Finding]:
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    return {one.evidence["validator"]: one for one in recorded.findings("validator")}


@pytest.fixture(scope="module", params=SLOW_ON_PORTABLE)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    def record(kind: str) -> Recorded:
        folder = tmp_path_factory.mktemp(kind)
        engine = ("--engine", request.param)
        return record_program(folder, PROGRAM, *engine, arguments=(kind, "validated"))

    return record("fault"), record("clean")


def test_what_validators_find(pair: tuple[Recorded, Recorded]) -> None:
    found = validated(pair[0])
    assert sorted(found) == ["block_sums_to_one", "broken", "unmet"]
    one = found["block_sums_to_one"]
    assert (one.severity, one.rank, one.step) == ("error", 0, 0)
    assert one.title == "Validator block_sums_to_one of Block failed 4 times, first: sums to 2"
    assert one.evidence == {
        "validator": "block_sums_to_one",
        "target": "Block",
        "modules": one.evidence["modules"],
        "verdict": "failed:",
        "times": 4,
        "message": "sums to 2",
    }
    assert one.link.startswith("/timeline?t=")
    assert found["broken"].title == (
        "Validator broken of aten::relu itself raised 3 times, first: KeyError: 'no such key'"
    )
    assert found["unmet"].severity == "info"


def test_the_clean_twin_has_none(pair: tuple[Recorded, Recorded]) -> None:
    assert list(validated(pair[1])) == ["unmet"]


def test_numbers_become_values(pair: tuple[Recorded, Recorded]) -> None:
    rows = [r for r in pair[1].rows("value") if r["name"] == "validator/largest"]
    assert [r["step"] for r in rows] == [0, 1, 2, 3]
    assert all(0.25 <= float(str(r["value"])) <= 1 for r in rows)


def test_the_program_and_its_recording_do_not_change(
    tmp_path: Path, pair: tuple[Recorded, Recorded]
) -> None:
    program = write_program(tmp_path, PROGRAM)
    for recorded, kind in zip(pair, ("fault", "clean"), strict=True):
        bare = fork_program(program, kind)
        assert bare.returncode == 0, bare.stderr
        assert len(bare.stdout.splitlines()) == 4
        assert recorded.stdout.splitlines() == bare.stdout.splitlines()
        assert "aten::allclose" not in recorded.op_names()
        assert "aten::randn" in recorded.op_names() or "aten::normal_" in recorded.op_names()
        assert [n for n in recorded.op_names() if n.endswith("softmax")].count(
            "aten::_softmax"
        ) <= 4


@pytest.mark.torchrun
@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
@pytest.mark.parametrize("kind", ["fault", pytest.param("clean", marks=pytest.mark.slow)])
def test_collectives(tmp_path: Path, engine: str, kind: str) -> None:
    recorded = record_program(tmp_path, RANKS, "--engine", engine, ranks=2, arguments=(kind,))
    found = validated(recorded)
    if kind == "clean":
        assert not found
        return
    assert found["is_six"].ranks == (0, 1)
    assert found["is_six"].evidence["times"] == 2
    assert found["is_six"].evidence["target"] == "all_reduce"


def test_one_that_was_not_called(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    builder.phase(START_NS, 0, "mark", name=ValidatorVerdict("idle", "checked", "Norm").encode())
    (found,) = [f for f in findings(open_run(builder.write())) if f.kind == "validator"]
    assert found.severity == "info"
    assert (
        found.title == "Validator checked was never called: the run has no Norm. Check that name."
    )


def test_a_target_must_be_a_name_or_a_class() -> None:
    wrong: Any = 3
    with pytest.raises(TypeError, match="looks at 3, expected an operator"):
        validators.validator(wrong)
    with pytest.raises(TypeError, match="compiled=True is for classes of modules, and 'aten::mm'"):
        validators.validator("aten::mm", compiled=True)
