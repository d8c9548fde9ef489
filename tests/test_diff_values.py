"""Diff at level numerics: what is compared with what, when it is the same, where it began."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lanescope.webapp.analysis.alignment import align
from lanescope.webapp.analysis.checks import check
from lanescope.webapp.analysis.diff import Comparison, Mode, compare
from lanescope.webapp.cli import main
from lanescope.webapp.pages.context import Context
from lanescope.webapp.pages.diff import tables, verdict
from lanescope.webapp.run import Run, open_run
from tests.recording import record_program
from tests.synthetic import START_NS, Builder


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
        builder.op(start, 50, op.name, thread=op.thread, rank=op.rank, step=op.step,
                   dtypes=op.dtype, shapes=op.shape, module="m", phase="forward")  # fmt: skip
        builder.row(
            "tensor", op.rank, op.thread, start_ns=start, depth=0, position=op.position,
            shape=op.shape, dtype=op.dtype, numel=4, mean=op.mean, l2=op.l2, nan=op.nan,
            hash=op.hash,
        )  # fmt: skip
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
            builder.row("tensor", 0, "1000-0", start_ns=start, depth=0, position="in0",
                        shape="[4]", mean=0.5, l2=1.0, numel=4, hash=bits)  # fmt: skip
        builder.phase(START_NS, 1000, "optimizer", name="SGD.step")
        return open_run(builder.write())

    base = stepping(tmp_path / "base", "SGD.step", 1, 2, 3)
    turned = compare(base, stepping(tmp_path / "turned", "SGD.step", 3, 1, 2))
    assert (turned.verdict, turned.compared, turned.differing) == ("identical", 3, 0)
    other = compare(base, stepping(tmp_path / "other", "SGD.step", 3, 1, 9))
    assert (other.verdict, other.compared, other.differing) == ("diverged", 3, 1)
    assert first_of(other)["run"]["time_ns"] == 200
    forward = [stepping(tmp_path / name, "forward", *bits)
               for name, bits in (("one", (1, 2, 3)), ("two", (3, 1, 2)))]  # fmt: skip
    assert compare(*forward).differing == 3


def test_fewer_steps_compare_those_that_both_have(tmp_path: Path) -> None:
    found = of(tmp_path, OPS, OPS[:10])
    assert (found.verdict, found.compared, found.only_in_base) == ("identical", 10, 5)


def test_threads_of_other_names_are_matched_by_role_and_order(tmp_path: Path) -> None:
    extra = tuple(replace(op, hash=op.hash + 100) for op in OPS)
    base = run_of(
        tmp_path / "base", *OPS, *(replace(op, thread="1000-1") for op in extra),
        names={"1000-0": "MainThread", "1000-1": "Thread-1 (work)"},
    )  # fmt: skip
    run = run_of(
        tmp_path / "run", *OPS, *(replace(op, thread="1000-7") for op in extra),
        names={"1000-0": "python3", "1000-7": "worker"},
    )  # fmt: skip
    found = compare(base, run)
    assert (found.verdict, found.compared) == ("identical", 30)
    assert (found.only_in_base, found.only_in_run) == (0, 0)
    assert set(found.table["state"]) == {"identical"}


def test_a_thread_without_partner_is_counted(tmp_path: Path) -> None:
    found = of(tmp_path, OPS, (*OPS, *(replace(op, thread="1000-1") for op in OPS)))
    assert (found.verdict, found.compared, found.only_in_run) == ("identical", 15, 15)


def test_which_thread_of_a_pool_did_a_piece_of_work_is_no_difference(tmp_path: Path) -> None:
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
    # What was on its way then is no difference: what came of it is compared where it is used.
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
        (ONE, replace(ONE, hash=2, dtype="bfloat16", mean=0.507), "diverged", "within_tolerance",
         "diverged"),
        (ONE, replace(ONE, dtype="int32"), "diverged", "within_tolerance", "within_tolerance"),
        (replace(ONE, dtype="int64"), replace(ONE, dtype="int64", hash=2, mean=0.5 + 1e-9),
         "diverged", "diverged", "within_tolerance"),
    ],
)  # fmt: skip
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


def test_a_batch_that_a_worker_hands_over_a_step_earlier_is_no_difference(tmp_path: Path) -> None:
    """At level numerics and without values; one that the other run never took in is counted."""

    def arriving(*steps: int) -> tuple[Op, ...]:
        return tuple(sorted((*OPS, *(Op("aten::set_", step=k) for k in steps)),
                            key=lambda op: op.step))  # fmt: skip

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
    assert any("the base had 1 rank, the run 2" in note for note in found.notes)


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
                "collective", rank, thread, start_ns=at + 1000, duration_ns=5, name="all_reduce",
                group="0", group_size=2, sequence=0, shapes="[4]",
            )  # fmt: skip
            for start, name, bits in (
                (at, "aten::mul", sent if rank else 3), (at + 1200, "aten::add", got),
            ):  # fmt: skip
                builder.op(start, 9, name, rank=rank, thread=thread)
                position = "read0" if name == "aten::add" else "out0"
                builder.row("tensor", rank, thread, start_ns=start, depth=0, shape="[4]",
                            position=position, dtype="float32", numel=4, hash=bits)  # fmt: skip
        sides.append(open_run(builder.write()))
    first = first_of(compare(*sides))
    assert (first["rank"], first["op"]) == (0, "aten::add")
    assert first["origin"] == {"kind": "collective", "rank": 1}


codes = st.lists(st.integers(1, 6), max_size=30)


@given(codes, codes)
def test_alignment_pairs_equal_codes_in_order(base: list[int], run: list[int]) -> None:
    left, right = align(np.array(base, np.uint64), np.array(run, np.uint64))
    assert [base[i] for i in left] == [run[j] for j in right]
    assert (np.diff(left) > 0).all()
    assert (np.diff(right) > 0).all()
    forth = len(left)
    assert forth >= min(1, len(set(base) & set(run)))


@given(codes, st.data())
def test_alignment_finds_all_of_what_was_only_cut(base: list[int], data: st.DataObject) -> None:
    kept = [code for code in base if data.draw(st.booleans())]
    left, right = align(np.array(base, np.uint64), np.array(kept, np.uint64))
    assert len(right) <= len(kept)
    assert [base[i] for i in left] == [kept[j] for j in right]
    if len(set(base)) == len(base):
        assert len(right) == len(kept)


def test_a_long_edit_script_is_still_aligned() -> None:
    random = np.random.default_rng(0)
    base = random.integers(1, 5, 5000).astype(np.uint64)
    run = np.delete(base, random.choice(5000, 500, replace=False))
    left, right = align(base, run)
    assert (base[left] == run[right]).all()
    assert (np.diff(left) > 0).all()
    assert len(left) > 100


PROGRAM = """
    import sys
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 1, 0, 1, 0])
    for step in range(3):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model[2].weight.add_(float(sys.argv[1]) if step == 1 else 0.0)
"""


@pytest.mark.slow
def test_a_recorded_pair_parts_at_the_changed_line(tmp_path: Path) -> None:
    paths = []
    for name, change in (("base", "0"), ("again", "0"), ("run", "1e-3")):
        (tmp_path / name).mkdir()
        done = record_program(tmp_path / name, PROGRAM, "--level", "numerics", arguments=(change,))
        assert done.status == 0, done.stderr
        paths.append(str(done.run))
    base, again, run = map(open_run, paths)
    same = compare(base, again)
    assert (same.verdict, same.only_in_base, same.only_in_run) == ("identical", 0, 0)
    assert same.compared > 100

    found = compare(base, run)
    first = first_of(found)
    assert (found.verdict, found.only_in_base, found.only_in_run) == ("diverged", 0, 0)
    assert (first["op"], first["where"]) == ("aten::add_", "program.py:14")
    assert [tensor["position"] for tensor in first["run"]["tensors"]] == ["in0"]
    assert first["origin"] == {"kind": "compute", "rank": 0}
    rows = found.table[found.table["kind"] == "tensor"]
    assert len(rows) == found.differing >= 10
    assert rows.iloc[0]["name"] == "aten::add_"

    [finding] = [one for one in check(run, baseline=base).findings if one.kind == "divergence"]
    assert (
        finding.title == "values differ from the baseline from step 2, aten::add_ at program.py:14"
    )

    runner = CliRunner()
    told = runner.invoke(main, ["diff", paths[0], paths[2]])
    assert told.exit_code == 1
    assert "aten::add_" in told.stdout
    assert "at program.py:14: in0 mean" in told.stdout
    assert "origin: computed on rank 0" in told.stdout
    pasted = runner.invoke(main, ["diff", paths[0], paths[2], "--markdown"]).stdout
    assert pasted.startswith("**diverged** (mode bitwise)")
    assert "program.py:14" in pasted
    printed = json.loads(runner.invoke(main, ["diff", paths[0], paths[2], "--json"]).stdout)
    assert printed == found.to_json()

    page = json.dumps(
        verdict(found, Context(run, base), base), default=lambda part: part.to_plotly_json()
    )
    lane = f"at=0%2F{first['thread']}@{first['run']['time_ns']}"
    assert lane in page
    assert "diff-tensor" in json.dumps(tables(found), default=lambda part: part.to_plotly_json())


RANKS = """
    import sys
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(6, 4)
    for step in range(3):
        changed = dist.get_rank() == 1 and step == 1
        model(x.mul(float(sys.argv[1]) if changed else 1.0)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""


def test_a_difference_on_rank_1_that_all_reduce_spreads_is_rank_1s(tmp_path: Path) -> None:
    sides = []
    for name, change in (("base", "1"), ("run", "1.5")):
        (tmp_path / name).mkdir()
        done = record_program(
            tmp_path / name, RANKS, "--level", "numerics", ranks=2, arguments=(change,)
        )
        assert done.status == 0, done.stderr
        sides.append(open_run(done.run))
    found = compare(*sides)
    first = first_of(found)
    assert found.verdict == "diverged"
    assert (first["rank"], first["step"], first["op"]) == (1, 1, "aten::mul")
    assert first["where"] == "program.py:12"
    assert first["origin"] == {"kind": "compute", "rank": 1}
    tensors = found.table[found.table["kind"] == "tensor"]
    assert set(tensors["rank"]) == {0, 1}
    assert tensors["step"].min() == 1


def test_without_values_the_words_say_so(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "timing")
    builder.op(START_NS, 1)
    timing = open_run(builder.write())
    found = compare(timing, run_of(tmp_path / "run", *OPS))
    assert found.notes == (
        "values of operators were not compared: base recorded none "
        "(lanescope record --level numerics)",
    )
