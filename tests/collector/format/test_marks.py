"""Marks: the names that earlier recordings hold parse to their facts, and encode to themselves."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lanescope.collector.format import marks
from lanescope.collector.format.marks import (
    BackwardRaised,
    CudaBegun,
    CudaBlock,
    CudaChosen,
    CudaForked,
    CudaRejected,
    ExpectedGradient,
    GoneTensor,
    InterruptedJoin,
    LostContext,
    LostError,
    LostMode,
    NewGroup,
    OutsideGroup,
    RemoteError,
    ValidatorVerdict,
)

NAMES: dict[str, Any] = {
    "validator failed: rms_norm at Norm: rows differ: 1.5": ValidatorVerdict(
        "failed", "rms_norm", "Norm", "rows differ: 1.5"
    ),
    "validator idle: checked at aten::mm": ValidatorVerdict("idle", "checked", "aten::mm"),
    "expected of gradients: assert_grad_norm(least=0.0, most=inf, after=1.0) at head.*": (
        ExpectedGradient(
            "assert_grad_norm", {"least": 0.0, "most": math.inf, "after": 1.0}, "head.*"
        )
    ),
    "backward raised RuntimeError: [1] (2:3) is at version 2 (/a (b)/train.py:7)": BackwardRaised(
        "RuntimeError: [1] (2:3) is at version 2 (/a (b)/train.py:7)"
    ),
    "backward raised RuntimeError: lost (train.py:7)": BackwardRaised(
        "RuntimeError: lost", "train.py:7"
    ),
    "backward raised RuntimeError: lost": BackwardRaised("RuntimeError: lost"),
    "lost context: rank at /a/b.py:3 was its default, set where the thread was started at c.py:4": (
        LostContext("rank", "/a/b.py:3", "its default", "thread", "c.py:4")
    ),
    "lost error: coroutine raised ValueError: bad batch (/a/b.py:3)": LostError(
        "coroutine", "ValueError: bad batch (/a/b.py:3)"
    ),
    "lost error: task raised ValueError: bad batch (/a/b.py:3)": LostError(
        "task", "ValueError: bad batch (/a/b.py:3)"
    ),
    "gone tensor: EOFError: (/a/b.py:3)": GoneTensor("EOFError: (/a/b.py:3)"),
    "interrupted join: 12 at /a/b.py:3": InterruptedJoin(12, "/a/b.py:3"),
    "lost mode: autocast cpu for 7 ns, in force where the task was started at /a/b.py:3": (
        LostMode("autocast cpu", 7, "task", "/a/b.py:3")
    ),
    "outside of the group: all_reduce at /train.py:12": OutsideGroup("all_reduce", "/train.py:12"),
    "outside of the group: barrier at ": OutsideGroup("barrier", ""),
    "new group: 0, 1 at /train.py:12": NewGroup("0, 1", "/train.py:12"),
    "new group: all at ": NewGroup("all", ""),
    "remote error: raised 00ab push: ValueError('at 1') (/a/b.py:3)": RemoteError(
        "raised", "00ab", "push: ValueError('at 1') (/a/b.py:3)"
    ),
    "remote error: read 00ab ": RemoteError("read", "00ab", ""),
    "remote error: called Store.push /a/b.py:3": RemoteError("called", "Store.push", "/a/b.py:3"),
    "cuda: begun on cuda:0 at /train.py:1 of 8 devices, visible 3,4, local rank 1": CudaBegun(
        0, "/train.py:1", 8, "3,4", "1"
    ),
    "cuda: begun on cuda:1 at /train.py:1 of 2 devices": CudaBegun(1, "/train.py:1", 2),
    "cuda: cuda:2 chosen at /train.py:3": CudaChosen(2, "/train.py:3"),
    "cuda: cuda:2 in place of cuda:0 for a block at /train.py:9": CudaBlock(2, 0, "/train.py:9"),
    "cuda: forked in use at /train.py:5": CudaForked("/train.py:5"),
    "cuda: wanted at /data.py:7 in a child forked at /train.py:5": CudaRejected(
        "/data.py:7", "/train.py:5"
    ),
}
KINDS: list[Any] = marks.Mark.__subclasses__()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_parsed_by_its_mark_alone(name: str) -> None:
    found = [mark for kind in KINDS if (mark := kind.parse(name)) is not None]
    assert found == [NAMES[name]]
    assert found[0].encode() == name


def test_every_mark_has_a_name_here() -> None:
    assert {type(mark) for mark in NAMES.values()} == set(KINDS)


def test_names_of_the_program_are_not_marks() -> None:
    for name in ("validator", "cuda: 3", "backward", "lost context: x", "expected of gradients: "):
        assert all(kind.parse(name) is None for kind in KINDS)
