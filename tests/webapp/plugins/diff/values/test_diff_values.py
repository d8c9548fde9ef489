"""Diff at level numerics: which values are compared, when they are equal, where they part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp.plugins.diff.diff import Comparison, Mode, compare
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import START_NS, Builder


@dataclass(frozen=True)
class Op:
    """One operator with one tensor."""

    name: str
    hash: int = 1
    step: int = 0
    position: str = "out0"
    mean: float | None = 0.5
    l2: float = 1.0
    nan: int = 0
    dtype: str = "float32"
    shape: str = "[4]"
    thread: str = "1000-0"
    rank: int = 0
    at: int | None = None


OPS = tuple(
    Op(name, 10 * step + k + 1, step) for step in range(3) for k, name in enumerate("abcab")
)


def run_of(path: Path, *ops: Op, names: dict[str, str] | None = None, ranks: int = 1) -> Run:
    """Operators one after the other, 100 ns apart."""
    builder = Builder(path, world_size=ranks, level="numerics")
    for thread, name in (names or {}).items():
        pid, _, ordinal = thread.partition("-")
        builder.thread(0, int(pid), int(ordinal), name=name)
    for order, op in enumerate(ops):
        start = START_NS + 100 * (order if op.at is None else op.at)
        builder.op(
            start,
            50,
            op.name,
            thread=op.thread,
            rank=op.rank,
            step=op.step,
            dtypes=op.dtype,
            shapes=op.shape,
            module="m",
            phase="forward",
        )
        builder.row(
            "tensor",
            op.rank,
            op.thread,
            start_ns=start,
            depth=0,
            position=op.position,
            shape=op.shape,
            dtype=op.dtype,
            numel=4,
            mean=op.mean,
            l2=op.l2,
            nan=op.nan,
            hash=op.hash,
        )
    return open_run(builder.write())


def of(path: Path, base: tuple[Op, ...], run: tuple[Op, ...], mode: Mode = "bitwise") -> Comparison:
    return compare(run_of(path / "base", *base), run_of(path / "run", *run), mode)


def first_of(found: Comparison) -> dict[str, Any]:
    assert found.first is not None
    return found.first


def test_a_single_other_hash_is_found_at_its_operator(tmp_path: Path) -> None:
    for place, op in enumerate(OPS):
        run = (*OPS[:place], replace(op, hash=999), *OPS[place + 1 :])
        found = of(tmp_path / str(place), OPS, run)
        assert found.verdict == "diverged"
        assert (found.compared, found.only_in_base, found.only_in_run) == (15, 0, 0)
        assert found.differing == 1
        first = first_of(found)
        assert (first["step"], first["op"], first["module"]) == (op.step, op.name, "m")
        assert first["run"]["time_ns"] == 100 * place
        assert first["base"]["tensors"][0]["hash"] == f"{op.hash:016x}"
        assert first["run"]["tensors"][0]["hash"] == f"{999:016x}"
        assert first["origin"] == {"kind": "compute", "rank": 0}


def test_inserted_and_removed_operators_shift_nothing(tmp_path: Path) -> None:
    # The inserted one is called like its neighbours: the values say which of them is new.
    for place in (0, 1, 4, 5, 9, 14, 15):  # ends, and beside where a step ends
        run = (*OPS[:place], Op("a", 777, min(place // 5, 2)), *OPS[place:])
        more = of(tmp_path / f"{place}-more", OPS, run)
        assert (more.verdict, more.compared, more.only_in_run) == ("identical", 15, 1)
        fewer = of(tmp_path / f"{place}-fewer", run, OPS)
        assert (fewer.verdict, fewer.compared, fewer.only_in_base) == ("identical", 15, 1)


def test_reordered_operators_are_compared_all_the_same(tmp_path: Path) -> None:
    run = (OPS[2], OPS[0], OPS[1], *OPS[3:])
    found = of(tmp_path / "same", OPS, run)
    assert (found.verdict, found.compared) == ("identical", 15)
    other = of(tmp_path / "other", OPS, (replace(OPS[2], hash=5555), *run[1:]))
    assert (other.verdict, first_of(other)["op"]) == ("diverged", "c")


def test_an_optimizer_may_take_parameters_in_another_order(tmp_path: Path) -> None:
    def stepping(path: Path, phase: str, *hashes: int) -> Run:
        builder = Builder(path, level="numerics")
        for order, bits in enumerate(hashes):
            start = START_NS + 100 * order
            builder.op(start, 50, "aten::add_", phase=phase, shapes="[4]")
            builder.row(
                "tensor",
                0,
                "1000-0",
                start_ns=start,
                depth=0,
                position="in0",
                shape="[4]",
                mean=0.5,
                l2=1.0,
                numel=4,
                hash=bits,
            )
        builder.phase(START_NS, 1000, "optimizer", name="SGD.step")
        return open_run(builder.write())

    base = stepping(tmp_path / "base", "SGD.step", 1, 2, 3)
    turned = compare(base, stepping(tmp_path / "turned", "SGD.step", 3, 1, 2))
    assert (turned.verdict, turned.compared, turned.differing) == ("identical", 3, 0)
    other = compare(base, stepping(tmp_path / "other", "SGD.step", 3, 1, 9))
    assert (other.verdict, other.compared, other.differing) == ("diverged", 3, 1)
    assert first_of(other)["run"]["time_ns"] == 200
    forward = [
        stepping(tmp_path / name, "forward", *bits)
        for name, bits in (("one", (1, 2, 3)), ("two", (3, 1, 2)))
    ]
    assert compare(*forward).differing == 3


def test_fewer_steps_compare_those_that_both_have(tmp_path: Path) -> None:
    found = of(tmp_path, OPS, OPS[:10])
    assert (found.verdict, found.compared, found.only_in_base) == ("identical", 10, 5)


def test_threads_of_other_names_are_matched_by_role_and_order(tmp_path: Path) -> None:
    extra = tuple(replace(op, hash=op.hash + 100) for op in OPS)
    base = run_of(
        tmp_path / "base",
        *OPS,
        *(replace(op, thread="1000-1") for op in extra),
        names={"1000-0": "MainThread", "1000-1": "Thread-1 (work)"},
    )
    run = run_of(
        tmp_path / "run",
        *OPS,
        *(replace(op, thread="1000-7") for op in extra),
        names={"1000-0": "python3", "1000-7": "worker"},
    )
    found = compare(base, run)
    assert (found.verdict, found.compared) == ("identical", 30)
    assert (found.only_in_base, found.only_in_run) == (0, 0)
    assert set(found.table["state"]) == {"identical"}


def test_a_thread_without_partner_is_counted(tmp_path: Path) -> None:
    found = of(tmp_path, OPS, (*OPS, *(replace(op, thread="1000-1") for op in OPS)))
    assert (found.verdict, found.compared, found.only_in_run) == ("identical", 15, 15)


def test_which_thread_of_a_pool_did_a_piece_of_work_is_not_a_difference(tmp_path: Path) -> None:
    def pool(path: Path, worker: int, pieces: int, copied: int = 5) -> Run:
        builder = Builder(path, level="numerics")
        builder.op(START_NS, 50, "a")
        builder.row("tensor", 0, "1000-0", start_ns=START_NS, depth=0, position="out0", hash=7)
        for ordinal in (1, 2):
            builder.thread(ordinal=ordinal, name="pt_gloo_runloop", kind="native")
        for piece in range(pieces):
            builder.op(START_NS + 100 * piece, 50, "gloo:all_reduce", thread=f"1000-{worker}")
        last = {"start_ns": START_NS + 100 * pieces, "depth": 0}
        builder.op(last["start_ns"], 50, "aten::copy_", thread=f"1000-{worker}")
        builder.row("tensor", 0, f"1000-{worker}", **last, position="in0", hash=copied)
        return open_run(builder.write())

    base = pool(tmp_path / "base", 1, 2)
    found = compare(base, pool(tmp_path / "run", 2, 2))
    assert (found.verdict, found.compared, found.tensors) == ("identical", 4, 2)
    assert (found.only_in_base, found.only_in_run) == (0, 0)
    more = compare(base, pool(tmp_path / "more", 2, 3))
    assert (more.compared, more.only_in_base, more.only_in_run) == (4, 0, 1)
    # A value on its way then is not a difference: its result is compared where it is used.
    other = compare(base, pool(tmp_path / "other", 1, 2, copied=6))
    assert (other.verdict, other.compared, other.tensors) == ("identical", 4, 1)


ONE = Op("a")


@pytest.mark.parametrize(
    ("base", "run", "bitwise", "tolerance", "simple"),
    [
        (ONE, ONE, "identical", "identical", "identical"),
        (ONE, replace(ONE, hash=2), "diverged", "within_tolerance", "within_tolerance"),
        # No finite element on both sides: NaN equals NaN, but not fewer NaN.
        (replace(ONE, mean=None, nan=4), replace(ONE, mean=None, nan=4), *["identical"] * 3),
        (replace(ONE, mean=None, nan=4), replace(ONE, mean=None, nan=3, hash=2), *["diverged"] * 3),
        # The norm is 1 and 4 elements: the root mean square is 0.5.
        (ONE, replace(ONE, hash=2, mean=0.5 + 6.4e-7), "diverged", *["within_tolerance"] * 2),
        (ONE, replace(ONE, hash=2, mean=0.5 + 6.6e-7), "diverged", "diverged", "within_tolerance"),
        (ONE, replace(ONE, hash=2, l2=1.1), "diverged", "diverged", "within_tolerance"),
        (ONE, replace(ONE, hash=2, mean=0.50011), *["diverged"] * 3),
        (
            ONE,
            replace(ONE, hash=2, dtype="bfloat16", mean=0.507),
            "diverged",
            "within_tolerance",
            "diverged",
        ),
        (ONE, replace(ONE, dtype="int32"), "diverged", "within_tolerance", "within_tolerance"),
        (
            replace(ONE, dtype="int64"),
            replace(ONE, dtype="int64", hash=2, mean=0.5 + 1e-9),
            "diverged",
            "diverged",
            "within_tolerance",
        ),
    ],
)
def test_modes(
    tmp_path: Path, base: Op, run: Op, bitwise: str, tolerance: str, simple: str
) -> None:
    sides = run_of(tmp_path / "base", base), run_of(tmp_path / "run", run)
    modes: tuple[Mode, ...] = ("bitwise", "tolerance", "simple")
    assert [compare(*sides, mode).verdict for mode in modes] == [bitwise, tolerance, simple]


def test_the_worst_comes_before_the_earliest(tmp_path: Path) -> None:
    run = (replace(OPS[0], hash=91), *OPS[1:4], replace(OPS[4], hash=92, mean=9.0), *OPS[5:])
    assert first_of(of(tmp_path / "all", OPS, run))["op"] == "a"
    assert first_of(of(tmp_path / "worst", OPS, run, "tolerance"))["run"]["time_ns"] == 400


def test_what_an_operator_found_otherwise_came_from_outside(tmp_path: Path) -> None:
    base = (replace(OPS[0], position="read0"), *OPS[1:])
    found = of(tmp_path, base, (replace(base[0], hash=92), *base[1:]))
    assert first_of(found)["origin"] == {"kind": "input", "rank": 0}


@pytest.mark.parametrize("name", ["aten::set_", "c10d::recv_", "c10d::broadcast_"])
def test_memory_that_is_only_pointed_at_or_filled_is_not_compared(
    tmp_path: Path, name: str
) -> None:
    base = (*OPS, Op(name, 1, 2, position="read0"))
    found = of(tmp_path, base, (*base[:-1], replace(base[-1], hash=92)))
    assert (found.verdict, found.compared) == ("identical", 16)


def test_a_batch_that_a_worker_hands_over_a_step_earlier_is_not_a_difference(
    tmp_path: Path,
) -> None:
    """At level numerics and without values; one that the other run never took in is counted."""

    def arriving(*steps: int) -> tuple[Op, ...]:
        return tuple(
            sorted((*OPS, *(Op("aten::set_", step=k) for k in steps)), key=lambda op: op.step)
        )

    found = of(tmp_path, arriving(0, 1, 1), arriving(0, 0, 2))
    assert (found.verdict, found.only_in_base, found.only_in_run) == ("identical", 0, 0)
    found = of(tmp_path / "more", arriving(0, 1), arriving(0, 2, 2))
    assert (found.verdict, found.only_in_base, found.only_in_run) == ("identical", 0, 1)
    plain = []
    for name, steps in (("one", (0, 1)), ("two", (1, 1))):
        builder = Builder(tmp_path / name)
        for order, op in enumerate(arriving(*steps)):
            builder.op(START_NS + 100 * order, 50, op.name, step=op.step)
        plain.append(open_run(builder.write()))
    found = compare(*plain)
    assert (found.verdict, found.only_in_base, found.only_in_run) == ("identical", 0, 0)


def test_ranks_that_one_side_lacks_are_named(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", *OPS, *(replace(op, rank=1) for op in OPS), ranks=2)
    found = compare(run_of(tmp_path / "base", *OPS), run)
    assert (found.verdict, found.compared, found.only_in_run) == ("identical", 15, 15)
    assert any("the baseline had 1 rank, the run 2" in note for note in found.notes)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_difference_that_came_through_a_collective_is_the_other_ranks(
    tmp_path: Path, recorded: bool
) -> None:
    sides = []
    for side, (sent, got) in {"base": (1, 2), "run": (8, 9)}.items():
        builder = Builder(tmp_path / side, world_size=2)
        # Rank 1's clock is ahead: what it sends seems to come after what rank 0 receives.
        for rank, begin in ((0, 0), (1, 2000)) if recorded else ((0, 0),):
            thread, at = f"{1000 + rank}-0", START_NS + begin
            builder.row(
                "collective",
                rank,
                thread,
                start_ns=at + 1000,
                duration_ns=5,
                name="all_reduce",
                group="0",
                group_size=2,
                sequence=0,
                shapes="[4]",
            )
            for start, name, bits in (
                (at, "aten::mul", sent if rank else 3),
                (at + 1200, "aten::add", got),
            ):
                builder.op(start, 9, name, rank=rank, thread=thread)
                position = "read0" if name == "aten::add" else "out0"
                builder.row(
                    "tensor",
                    rank,
                    thread,
                    start_ns=start,
                    depth=0,
                    shape="[4]",
                    position=position,
                    dtype="float32",
                    numel=4,
                    hash=bits,
                )
        sides.append(open_run(builder.write()))
    first = first_of(compare(*sides))
    assert (first["rank"], first["op"]) == (0, "aten::add")
    assert first["origin"] == {"kind": "collective", "rank": 1}


def test_without_values_the_words_say_so(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "timing")
    builder.op(START_NS, 1)
    timing = open_run(builder.write())
    found = compare(timing, run_of(tmp_path / "run", *OPS))
    assert found.notes == (
        "values of operators were not compared: base recorded none "
        "(lanescope record --level numerics)",
    )
