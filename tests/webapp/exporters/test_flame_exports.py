"""Flame graphs as files: by the rules of speedscope's schema, and with the times of the run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lanescope.webapp.cli import main
from lanescope.webapp.exporters import speedscope
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.timeline.flame_graph import flame
from tests.support.synthetic import START_NS, Builder

STACK = [
    {"file": "/w/model.py", "line": 7, "function": "a;b"},
    {"file": "/w/train.py", "line": 12, "function": "main"},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Operators that touch, nest, overlap, last for no time, and one that never ended."""
    builder = Builder(tmp_path_factory.mktemp("run") / "run", world_size=2)
    for rank in range(2):
        thread = builder.thread(rank)
        builder.rows("stack", rank, None, stack=[0], frames=[STACK])
        at = START_NS
        builder.phase(at + 5, 90, "forward", rank=rank, thread=thread)
        for start, length, name in ((0, 50, "mm"), (50, 20, "mm"), (60, 30, "mul"), (80, 0, "mm")):
            builder.op(at + start, length, f"aten::{name}", rank=rank, thread=thread, stack=0)
        builder.op(at + 10, 20, "aten::mm", rank=rank, thread=thread, depth=1)
        builder.op(at + 120, None, "aten::open", rank=rank, thread=thread)
        builder.op(at + 130, 10, "aten::in", rank=rank, thread=thread, depth=1)
    builder.thread(1, ordinal=1)
    return open_run(builder.write())


def export(run: Run, target: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["export", str(run.path), "-o", str(target), *options])


def speedscope_of(run: Run, target: Path, *options: str) -> dict[str, Any]:
    """The file, once it is as https://www.speedscope.app/file-format-schema.json wants it."""
    result = export(run, target, "--to", "speedscope", *options)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(target.read_text())
    assert found["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert {*found} == {"$schema", "exporter", "name", "profiles", "shared"}
    assert {*found["shared"]} == {"frames"}
    for frame in found["shared"]["frames"]:
        assert isinstance(frame["name"], str)
        assert {*frame} <= {"name", "file", "line"}
        assert isinstance(frame.get("line", 0), int)
    for profile in found["profiles"]:
        assert {*profile} == {"type", "name", "unit", "startValue", "endValue", "events"}
        assert (profile["type"], profile["unit"]) == ("evented", "nanoseconds")
        opened: list[int] = []
        last = profile["startValue"]
        for event in profile["events"]:
            assert {*event} == {"type", "frame", "at"}
            assert last <= event["at"] <= profile["endValue"]
            last = event["at"]
            if event["type"] == "O":
                assert 0 <= event["frame"] < len(found["shared"]["frames"])
                opened.append(event["frame"])
            else:
                assert event["type"] == "C"
                assert opened.pop() == event["frame"]
        assert not opened
    return found


def times(found: dict[str, Any]) -> Counter[str]:
    """Frames joined by ";" -> time in which the last one was innermost."""
    spent: Counter[str] = Counter()
    for profile in found["profiles"]:
        opened: list[str] = []
        last = 0
        for event in profile["events"]:
            if event["at"] > last:
                spent[";".join(opened)] += event["at"] - last
            last = event["at"]
            frame = found["shared"]["frames"][event["frame"]]
            place = f" ({Path(frame['file']).name}:{frame['line']})" if "line" in frame else ""
            if event["type"] == "O":
                opened.append(frame["name"].replace(";", ":") + place)
            else:
                opened.pop()
    del spent[""]
    return spent


def collapsed(run: Run, target: Path, *options: str) -> dict[str, int]:
    result = export(run, target, "--to", "collapsed", *options)
    assert result.exit_code == 0, result.output
    lines = (line.rpartition(" ") for line in target.read_text().splitlines())
    return {path: int(value) for path, _, value in lines}


@pytest.mark.parametrize(
    "options", [(), ("--by", "stack"), ("--window", "15-125", "--ranks", "1")], ids=" ".join
)
def test_both_formats_have_the_same_times(
    options: tuple[str, ...], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = collapsed(run, tmp_path / "x.txt", *options)
    whole = speedscope_of(run, tmp_path / "x.json", *options)
    assert times(whole) == lines
    monkeypatch.setattr(flame, "OPERATORS_AT_ONCE", 2)
    monkeypatch.setattr(speedscope, "STRETCHES_AT_ONCE", 3)
    assert speedscope_of(run, tmp_path / "y.json", *options) == whole


def test_frames_of_each_thread_in_order_of_time(run: Run, tmp_path: Path) -> None:
    found = speedscope_of(run, tmp_path / "x.json")
    names = [profile["name"] for profile in found["profiles"]]
    assert names == ["rank 0 · MainThread (1000-0)", "rank 1 · MainThread (1001-0)"]
    frames = [frame["name"] for frame in found["shared"]["frames"]]
    events = [
        (event["at"], event["type"], frames[event["frame"]])
        for event in found["profiles"][0]["events"]
    ]
    mm, mul, forward, inner = "aten::mm", "aten::mul", "forward", "aten::in"
    assert events == [
        *((0, "O", mm), (5, "C", mm), (5, "O", forward), (5, "O", mm), (10, "O", mm)),
        # The second call begins where the first one ends; mul outlasts it.
        *((30, "C", mm), (50, "C", mm), (50, "O", mm), (60, "O", mul), (70, "C", mul)),
        *((70, "C", mm), (70, "O", mul), (90, "C", mul), (95, "C", forward)),
        *((120, "O", "aten::open"), (130, "O", inner), (140, "C", inner), (140, "C", "aten::open")),
    ]
    found = speedscope_of(run, tmp_path / "y.json", "--by", "stack")
    assert {"name": "a;b", "file": "/w/model.py", "line": 7} in found["shared"]["frames"]


def test_what_cannot_be_written_is_one_sentence(run: Run, tmp_path: Path) -> None:
    for options, said in (
        (("--to", "speedscope", "--by", "module"), "ran within a torch.nn.Module"),
        (("--to", "collapsed", "--by", "stack", "--window", "125-140"), "record with --stacks all"),
        (("--to", "speedscope", "--window", "100-110"), "Nothing ran here"),
        (("--to", "csv", "--by", "stack"), "--by is for speedscope and collapsed, not for csv"),
        (("--to", "collapsed", "--window", "1-999"), "expected one within 0-140"),
    ):
        result = export(run, tmp_path / "x", *options)
        assert result.exit_code == 2
        assert said in result.stderr
        assert result.stderr.count("\n") == 1
