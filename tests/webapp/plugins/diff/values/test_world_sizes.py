"""The same global batch on one rank and on two: rounding, and planted faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.plugins.diff.diff import Comparison, compare
from lanescope.webapp.runs.run import open_run
from tests.support.recording import record_into, write_program
from tests.support.synthetic import START_NS, Builder

PROGRAM = """
    import os
    import sys
    from pathlib import Path
    import torch
    import torch.distributed as dist
    import lanescope.collector as ls

    def train(variant, rank, world):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)
        )
        model = torch.nn.parallel.DistributedDataParallel(net) if world > 1 else net
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            x, y = (part.chunk(world)[rank] for part in torch.randn(64, 20).split((16, 4), 1))
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            (loss * world if variant == "sum" else loss).backward()
            optimizer.step()  # here

    rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
    world = os.environ.pop("WORLD_SIZE")
    if rank == 0:
        with ls.record(folder / "alone", level="numerics"):
            train("mean", 0, 1)
    os.environ["WORLD_SIZE"] = world
    dist.init_process_group("gloo")
    for name in ("mean", "sum"):
        with ls.record(folder / name, level="numerics"):
            train(name, rank, 2)
            dist.barrier()
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks")
    program = write_program(path, PROGRAM)
    done = record_into(path, program, ranks=2)
    assert done.returncode == 0, done.stderr
    return path


def against(folder: Path, name: str) -> Comparison:
    return compare(open_run(folder / "alone"), open_run(folder / name), "tolerance")


def text_of(found: Comparison) -> str:
    return "\n".join(found.notes)


@pytest.mark.torchrun
def test_another_order_of_the_sum_is_called_rounding(folder: Path) -> None:
    found = against(folder, "mean")
    first = found.first
    assert first is not None
    assert (found.verdict, found.differing) == ("within_tolerance", 0)
    norms = found.table[found.table["kind"] == "gradient"]
    assert "within_tolerance" in set(norms[norms["rank"] == 0]["state"])  # each, or nearly each
    assert (first["step"], first["phase"], first["op"]) == (0, "SGD.step", "aten::add_")
    line = next(k for k, text in enumerate(PROGRAM.splitlines(), 1) if "# here" in text)
    assert first["where"] == f"program.py:{line}"
    assert first["origin"] == {"kind": "collective", "rank": 1}
    assert "the baseline had 1 rank, the run 2" in text_of(found)
    assert "they differ because of the number of ranks, whose values all_reduce" in text_of(found)
    assert "step 0): a sum over 2 is rounded in another order than one over 1" in text_of(found)
    assert "times those of the baseline" not in text_of(found)


@pytest.mark.torchrun
def test_a_sum_in_place_of_a_mean_is_not_rounding(folder: Path) -> None:
    found = against(folder, "sum")
    assert found.verdict == "diverged"
    assert found.first is not None
    assert (found.first["step"], found.first["op"]) == (0, "aten::add_")
    assert "they differ by more than the number of ranks explains" in text_of(found)
    assert (
        "all gradients that differ in step 0 are 2 times those of the baseline, by the number of "
        "ranks: sums over ranks where the baseline has means"
    ) in text_of(found)


def norms(path: Path, world: int, *factors: float, dtypes: str = "float32") -> Path:
    builder = Builder(path, world_size=world)
    builder.op(START_NS - 100, 50, "aten::mm", step=0, dtypes=dtypes)
    for name, factor in zip("abc", factors, strict=False):
        builder.row(
            "gradient",
            0,
            "1000-0",
            time_ns=START_NS,
            step=0,
            parameter=name,
            norm=1.5 * factor,
            dtype="float32",
        )
    return builder.write()


@pytest.mark.parametrize(
    ("world", "factors", "answer"),
    [
        (1, (1, 1, 1), None),
        (1, (0.125, 0.125, 0.125), "0.125 times those of the baseline: a factor of the loss"),
        (1, (2, 2, 3), None),
        (1, (2,), None),
        (1, (1 + 1e-5, 1 + 1e-5, 1 + 1e-5), None),
        (4, (0.25, 0.25, 0.25), "means over ranks where the baseline has sums"),
        (4, (4, 4, 4), "sums over ranks where the baseline has means"),
    ],
)
def test_one_factor_between_all_gradients(
    tmp_path: Path, world: int, factors: tuple[float, ...], answer: str | None
) -> None:
    base = open_run(norms(tmp_path / "base", 1, *(1 for _ in factors)))
    found = text_of(compare(base, open_run(norms(tmp_path / "run", world, *factors))))
    assert ("times those of the baseline" in found) == (answer is not None)
    assert answer is None or answer in found


@pytest.mark.parametrize(
    ("dtypes", "explained"),
    [
        ("float32 float32", False),
        ("float32 bfloat16", True),
        ("bfloat16 float16", True),
        ("float16 int64", False),
    ],
)
def test_gradients_of_what_works_in_bfloat16_are_no_more_exact(
    tmp_path: Path, dtypes: str, explained: bool
) -> None:
    """Gradients in float32, converted from what was computed in another dtype."""
    base = open_run(norms(tmp_path / "base", 1, 1, 1, dtypes=dtypes))
    found = text_of(compare(base, open_run(norms(tmp_path / "run", 2, 1.004, 0.997))))
    assert ("and operators work in bfloat16" in found) == explained
    assert ("by more than the number of ranks explains" in found) != explained
