"""Two runs whose differences are known, to be shown beside a baseline."""

from __future__ import annotations

from pathlib import Path

from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import START_NS, Builder

US = 1000
BASE_STEP, RUN_STEP = 2000 * US, 1000 * US
RANKS, STEPS = 2, 3


def pair(folder: Path) -> tuple[Run, Run]:
    """Base and run: two ranks, three steps of a main thread, steps of 2 ms and of 1 ms.

    Each step has the ops a, b and c of 100 us, 200 us apart, a forward phase around
    them and an optimizer phase at its end. In
    the run
    - step 1 of rank 1: the values of b are other by half;
    - step 2 of rank 0: those of a by their last bit; c takes 250 us instead of 100;
    - step 1 of rank 0: after c comes an op `new` with another inside it;
    and the baseline has at the end of step 2 of rank 1 an op `gone`.
    """
    base = _written(folder / "base", BASE_STEP, run=False)
    return base, _written(folder / "run", RUN_STEP, run=True)


def _written(path: Path, length: int, *, run: bool) -> Run:
    builder = Builder(path, world_size=RANKS, level="numerics")
    for rank in range(RANKS):
        for step in range(STEPS):
            begin = START_NS + step * length
            builder.phase(
                begin, 500 * US, "forward", rank=rank, step=step, thread=f"{1000 + rank}-0"
            )
            for k, name in enumerate("abc"):
                slow = run and (rank, step, name) == (0, 2, "c")
                other = run and (rank, step, name) == (1, 1, "b")
                bit = run and (rank, step, name) == (0, 2, "a")
                _op(
                    builder,
                    rank,
                    step,
                    begin + k * 200 * US,
                    250 * US if slow else 100 * US,
                    name,
                    mean=0.75 if other else 0.5,
                    bits=1 + other + bit,
                )
            if run and (rank, step) == (0, 1):
                _op(builder, rank, step, begin + 700 * US, 100 * US, "new")
                _op(builder, rank, step, begin + 720 * US, 10 * US, "inside", depth=1)
            if not run and (rank, step) == (1, 2):
                _op(builder, rank, step, begin + 700 * US, 100 * US, "gone")
            builder.phase(
                begin + length - 100 * US,
                100 * US,
                "optimizer",
                rank=rank,
                step=step,
                thread=f"{1000 + rank}-0",
            )
    return open_run(builder.write())


def _op(
    builder: Builder,
    rank: int,
    step: int,
    start: int,
    duration: int,
    name: str,
    *,
    mean: float = 0.5,
    bits: int = 1,
    depth: int = 0,
) -> None:
    thread = f"{1000 + rank}-0"
    builder.op(
        start,
        duration,
        name,
        rank=rank,
        thread=thread,
        step=step,
        depth=depth,
        module="layer.0" if name == "b" else "layer.1",
        shapes="[4]",
        dtypes="float32",
    )
    builder.row(
        "tensor",
        rank,
        thread,
        start_ns=start,
        depth=depth,
        position="out0",
        shape="[4]",
        dtype="float32",
        numel=4,
        mean=mean,
        l2=2 * mean,
        hash=bits,
    )
