"""The first difference: where it was called, what it worked on, who changed that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from lanescope.webapp.bundles.writer import pack
from lanescope.webapp.commands.diff import show
from lanescope.webapp.plugins.diff.diff import Comparison, compare
from lanescope.webapp.plugins.diff.verdict_words import inputs, origin, stack, verdict_markdown
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.synthetic import START_NS, Builder

FRAMES = [
    {"file": "/home/a/train.py", "line": 12, "function": "step"},
    {"file": "/home/a/train.py", "line": 40, "function": "main"},
]


def tensor(
    builder: Builder, start: int, position: str, bits: int, expected: int | None = None
) -> None:
    builder.row(
        "tensor",
        0,
        "1000-0",
        start_ns=start,
        depth=0,
        position=position,
        shape="[2, 4]",
        dtype="float32",
        numel=8,
        mean=float(bits),
        l2=1.0,
        min=-1.0,
        max=2.0,
        hash=bits,
        expected=expected,
    )


def access(builder: Builder, start: int, storage: int, *, write: bool, offset: int = 0) -> None:
    builder.row(
        "access",
        0,
        "1000-0",
        start_ns=start,
        duration_ns=50,
        depth=0,
        bytes=32,
        offset=offset,
        run=32,
        storage=storage,
        write=write,
        birth=write,
    )


def program(
    path: Path,
    *,
    made: int = 1,
    found: int | None = None,
    result: int = 9,
    layer: str = "gelu",
    offset: int = 0,
    command: tuple[str, ...] = ("python", "train.py"),
) -> Run:
    """`aten::<layer>` writes storage 64, which `aten::mm` reads together with a batch.

    `made`: hash of what the layer wrote; `found`: that of what mm found there, if it is another;
    `offset`: where in it mm reads.
    """
    builder = Builder(path, level="numerics", command=list(command))
    builder.process(argv=["train.py", *command[2:]])
    builder.rows("stack", 0, None, stack=[3], frames=[FRAMES])

    one, two = START_NS, START_NS + 100
    builder.op(one, 50, f"aten::{layer}", module="projectphoenix.act", stack=3, shapes="[2, 4]")
    access(builder, one, 64, write=True)
    tensor(builder, one, "out0", made)
    builder.op(two, 50, "aten::mm", module="projectphoenix.fc", stack=3, shapes="[2, 4] [2, 4]")
    access(builder, two, 96, write=False)
    access(builder, two, 64, write=False, offset=offset)
    access(builder, two, 128, write=True)
    tensor(builder, two, "read0", 77)
    if found is not None:
        tensor(builder, two, "read1", found, expected=made)
    tensor(builder, two, "out0", result)
    return open_run(builder.write())


def first_of(found: Comparison) -> dict[str, Any]:
    assert found.first is not None
    return found.first


def test_its_stack_and_its_inputs_are_shown(tmp_path: Path) -> None:
    found = compare(program(tmp_path / "base"), program(tmp_path / "run", result=10))
    first = first_of(found)
    assert (first["op"], first["where"]) == ("aten::mm", "train.py:12")
    assert first["run"]["stack"] == ["/home/a/train.py:12 step", "/home/a/train.py:40 main"]
    assert [one["hash"] for one in first["run"]["inputs"]] == [f"{77:016x}", f"{1:016x}"]
    assert [one["written_by"] for one in first["base"]["inputs"]] == [
        None,
        "aten::gelu at train.py:12",
    ]
    assert stack(first) == ["train.py:12 step", "train.py:40 main"]
    assert inputs(first)[1] == (
        "[2, 4] float32 of -1 to 2, written by aten::gelu at train.py:12, the same in both"
    )
    assert origin(first) == "computed on rank 0 from inputs that are equal as far as recorded"
    pasted = verdict_markdown(found, "base", "run")
    assert "- stack: `train.py:12 step` < `train.py:40 main`" in pasted
    console = Console(record=True, width=200)
    show(found, console)
    assert "input: [2, 4] float32 of -1 to 2, of no recorded operator" in console.export_text()


def test_another_part_of_the_same_input_is_named(tmp_path: Path) -> None:
    """A batch taken from elsewhere in a tensor that holds all of the data."""
    base = program(tmp_path / "base")
    first = first_of(compare(base, program(tmp_path / "run", result=10, offset=64)))
    assert (
        origin(first) == "computed on rank 0 from another part of an input that is the same in both"
    )
    assert inputs(first)[1].endswith(
        "the same in both; it reads bytes 64 to 96, in the baseline 0 to 32"
    )


def test_an_input_that_only_one_run_s_operator_wrote_is_named(tmp_path: Path) -> None:
    """gelu in place of relu: neither has a partner, what reads them differs first."""
    base = program(tmp_path / "base", layer="relu")
    first = first_of(compare(base, program(tmp_path / "run", made=2, result=10)))
    assert (first["op"], first["origin"]["kind"]) == ("aten::mm", "compute")
    assert "unequal inputs" in str(origin(first))
    assert inputs(first)[1] == (
        "[2, 4] float32 of -1 to 2, written by aten::gelu at train.py:12; in the baseline "
        "[2, 4] float32 of -1 to 2, written by aten::relu at train.py:12, mean 1 became 2"
    )


def test_what_somebody_else_wrote_in_between_came_from_outside(tmp_path: Path) -> None:
    """A bit flips in memory: no recorded operator computed anything else."""
    base = program(tmp_path / "base")
    first = first_of(compare(base, program(tmp_path / "run", found=3, result=10)))
    assert (first["op"], first["origin"]) == ("aten::mm", {"kind": "input", "rank": 0})
    # Where both runs found the same there, it is the operator.
    both = compare(program(tmp_path / "a", found=3), program(tmp_path / "b", found=3, result=10))
    assert first_of(both)["origin"] == {"kind": "compute", "rank": 0}


def test_what_was_overwritten_in_one_run_alone_is_a_difference_of_bits(tmp_path: Path) -> None:
    """Even where it changes no result, as a gradient's last bit may."""
    base, run = program(tmp_path / "base"), program(tmp_path / "run", found=3)
    for sides, hashes in (((base, run), (1, 3)), ((run, base), (3, 1))):
        found = compare(*sides)
        assert (found.verdict, found.differing) == ("diverged", 1)
        first = first_of(found)
        answer = [first[side]["tensors"][0] for side in ("base", "run")]
        assert [one["position"] for one in answer] == ["read1", "read1"]
        assert [one["hash"] for one in answer] == [f"{bits:016x}" for bits in hashes]
        assert first["origin"] == {"kind": "input", "rank": 0}
        assert compare(*sides, "tolerance").verdict == "within_tolerance"


def test_operators_that_either_run_has_alone_before_it_are_listed(tmp_path: Path) -> None:
    base = program(tmp_path / "base", layer="dropout")
    found = compare(base, program(tmp_path / "run", made=2, result=10))
    assert [note.partition(",")[0] for note in found.notes] == [
        "before the first difference the run ran 1 operator of that step that the baseline did "
        "not run",
        "before the first difference the baseline ran 1 operator of that step that the run did "
        "not run",
    ]
    assert "the last aten::dropout in projectphoenix.act at train.py:12" in found.notes[1]


def accumulated(path: Path, passes: int, norm: float = 1.5, batch: int = 8) -> Run:
    """Two steps with so many backward passes over equal parts of a batch."""
    builder = Builder(path, level="numerics")
    for step in range(2):
        begin = START_NS + 10_000 * step
        for k in range(passes):
            at, bits = begin + 1000 * k, 10 * passes + k
            builder.op(at, 50, "aten::mean", step=step, phase="forward", shapes="[]")
            builder.op(
                at + 50,
                9,
                "aten::mm",
                step=step,
                phase="forward",
                module="fc",
                shapes=f"[{batch // passes}, 4]",
            )
            builder.row(
                "tensor",
                0,
                "1000-0",
                start_ns=at,
                position="out0",
                shape="[]",
                dtype="float32",
                numel=1,
                mean=1.0 * k,
                l2=1.0 * k,
                hash=bits,
            )
            builder.phase(at + 100, 500, "backward", step=step)
        at = begin + 5000
        builder.phase(at, 900, "optimizer", name="SGD.step", step=step)
        builder.op(at + 10, 50, "aten::add_", step=step, phase="SGD.step", shapes="[4] [4]")
        builder.row(
            "tensor",
            0,
            "1000-0",
            start_ns=at + 10,
            position="in0",
            shape="[4]",
            dtype="float32",
            numel=4,
            mean=norm,
            l2=norm,
            hash=int(norm * 1e9),
        )
        for name in "ab":
            builder.row(
                "gradient",
                0,
                "1000-0",
                time_ns=at,
                step=step,
                parameter=name,
                norm=norm,
                dtype="float32",
            )
    return open_run(builder.write())


def test_gradients_accumulated_over_more_passes(tmp_path: Path) -> None:
    """Each pass has another share of the batch: the joined values are compared."""
    base, run = accumulated(tmp_path / "base", 1), accumulated(tmp_path / "run", 4, 1.5 + 1e-7)
    found = compare(base, run, "tolerance")
    assert (found.verdict, first_of(found)["op"]) == ("within_tolerance", "aten::add_")
    assert "the baseline runs backward once in a step, the run 4 times" in found.notes[0]
    assert "of its own share of the batch (2 tensors)" in found.notes[0]
    assert "a sum of 4 gradients is rounded in another order than one of 1" in found.notes[1]
    forgot = compare(base, accumulated(tmp_path / "forgot", 4, 6.0), "tolerance")
    assert forgot.verdict == "diverged"
    answer = "\n".join(forgot.notes)
    assert "gradients differ by more than the number of passes explains" in answer
    assert "by the number of passes: sums over passes where the baseline has means" in answer
    assert compare(base, accumulated(tmp_path / "same", 1)).notes == ()
    # A larger batch in equal parts: what both have is the same work.
    more = compare(base, accumulated(tmp_path / "more", 2, batch=16), "tolerance")
    assert "runs backward" not in "".join(more.notes)


def test_a_run_is_identical_to_its_own_redacted_bundle(tmp_path: Path) -> None:
    """`projectphoenix` is an argument: in the bundle it is replaced wherever it stands."""
    command = ("python", "train.py", "--model", "projectphoenix")
    run = program(tmp_path / "run", command=command)
    pack(run, tmp_path / "shared.lanes", redact=True)
    shared = open_run(tmp_path / "shared.lanes")
    assert "projectphoenix.fc" not in shared.events("op")["module"].to_pylist()
    for base, other in ((run, shared), (shared, run), (shared, shared)):
        found = compare(base, other)
        assert (found.verdict, found.compared) == ("identical", 2)
        assert (found.only_in_base, found.only_in_run) == (0, 0)
        assert found.timing is not None
        assert found.timing.changed.empty
        assert len(Timeline.open(other, base).differences or ()) == 0
    other = program(tmp_path / "other", command=command, result=10)
    assert first_of(compare(shared, other))["op"] == "aten::mm"
