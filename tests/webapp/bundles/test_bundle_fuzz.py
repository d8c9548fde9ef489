"""A damaged bundle is refused in one sentence or opens in part; nothing else ever happens."""

from __future__ import annotations

import contextlib
import random
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lanescope.collector.format import schema
from lanescope.webapp.bundles.writer import pack
from lanescope.webapp.runs.bundle import open_bundle
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.notes import Notes
from lanescope.webapp.runs.run import open_run, run_of
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.synthetic import write_run


class Memory:
    """A bundle in memory."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._data = pa.py_buffer(data)

    def at(self, offset: int, count: int) -> pa.Buffer:
        return self._data.slice(min(offset, self.size), min(count, max(self.size - offset, 0)))

    def file(self, offset: int, count: int) -> pa.NativeFile:
        return pa.BufferReader(self.at(offset, count))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder: Path = tmp_path_factory.mktemp("fuzz")
    pack(open_run(write_run(folder / "run", ranks=1, threads=1, steps=1, ops=4)), folder / "x")
    return (folder / "x").read_bytes()


def mutated(data: bytes, dice: random.Random) -> bytes:
    """One to three changes, mostly where structure is: headers, JSON, the end."""
    made = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2))):
        if not made:
            break
        size = len(made)
        heads = [i for i in (made.find(b"PK", dice.randrange(size)), made.rfind(b"PK")) if i >= 0]
        json = made.rfind(b'{"') if dice.random() < 0.5 else made.rfind(b"{")
        at = dice.choice(
            [*(dice.randrange(size) for _ in range(6)), *heads, max(json, 0), max(size - 30, 0)]
        )
        at = min(at + dice.choice((0, dice.randrange(64), dice.randrange(2048))), size - 1)
        match dice.choice((0, 0, 0, 0, 1, 1, 1, 5, 5, 2, 3, 4)):
            case 0:
                made[at] ^= 1 << dice.randrange(8)
            case 1:
                made[at : at + 4] = dice.choice((bytes(4), b"\xff" * 4, b"\xff\xff\xff\x7f"))
            case 2:
                del made[at : at + dice.randrange(1, 40)]
            case 3:
                del made[at:]
            case 4:
                made[at:at] = dice.randbytes(dice.randrange(1, 40))
            case 5:
                other = dice.randrange(size)
                made[at : at + 16] = made[other : other + 16]
    return bytes(made)


def outcome(data: bytes) -> str:
    """What becomes of it: refused, or opened, with all of it looked at."""
    try:
        run = run_of(open_bundle(Memory(data), "x.lanes", "x.lanes"), "x.lanes")
    except RunError as error:
        return in_one_line(error, "refused")
    for table in filter(run.counts.get, schema.TABLES):
        for rank in run.ranks:
            try:
                run.events(table, rank)
            except RunError as error:
                in_one_line(error, "")
    try:
        Notes(run.files).read()
        timeline = Timeline.open(run)
    except RunError:
        return "opened in part"
    lanes = range(len(timeline.index.lanes))
    # Where the index is wrong the page says that it could not be answered.
    with contextlib.suppress(IndexError, ValueError):
        assert timeline.tile(12, 0, list(lanes))
    return "opened"


def in_one_line(error: RunError, word: str) -> str:
    assert "\n" not in str(error)
    return word


def fuzz(data: bytes, first: int, count: int) -> dict[str, int]:
    answer: dict[str, int] = {}
    with np.errstate(all="ignore"):
        for seed in range(first, first + count):
            found = outcome(mutated(data, random.Random(seed)))
            answer[found] = answer.get(found, 0) + 1
    return answer


@pytest.mark.slow
def test_damaged_bundles_are_refused_or_open_in_part(whole: bytes) -> None:
    assert outcome(whole) == "opened"
    answer = fuzz(whole, 0, 500)
    assert answer["refused"] > 100
    assert answer["opened"] > 50


@pytest.mark.slow
@pytest.mark.parametrize("count", [1_500, pytest.param(10_000, marks=pytest.mark.soak)])
def test_many_damaged_bundles(whole: bytes, count: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fuzz(whole, 1_000, count)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB
