"""Races planted in real programs are found at their two lines; the clean twins are silent."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from lanescope.webapp import open_run, races
from lanescope.webapp.analysis import stack_frames
from lanescope.webapp.plugins.races import access_table
from lanescope.webapp.plugins.races import races as detector
from lanescope.webapp.plugins.races.access_table import first_of_scratch
from lanescope.webapp.plugins.races.inplace import inplace_modifications
from lanescope.webapp.plugins.races.race_findings import race_findings
from lanescope.webapp.plugins.races.races import Race, find_races
from lanescope.webapp.plugins.races.racing_pairs import Span, share_bytes
from lanescope.webapp.plugins.threads.concurrent_backward import concurrent_backwards
from lanescope.webapp.plugins.threads.deadlocks import deadlocks
from lanescope.webapp.runs.run import Run
from lanescope.webapp.timeline.search.lookup import selecting
from lanescope.webapp.timeline.span_details import slice_facts
from lanescope.webapp.timeline.timeline import Timeline
from tests.collector.journal.test_background_compactor import wait_for_end
from tests.support.recording import WITH_TESTS, record_script

PROGRAMS = Path(__file__).parent
MARK = re.compile(r"# race: (\w+) (a|b)( b)?$")
FAULT = re.compile(r"# fault: (\w+)(?: (\w+))?$")


def marked(*programs: str) -> dict[str, set[str]]:
    """Name -> the places that race."""
    places: dict[str, set[str]] = {}
    for program in programs:
        for number, line in enumerate((PROGRAMS / program).read_text().splitlines(), 1):
            if found := MARK.search(line):
                places.setdefault(found[1], set()).add(f"{program}:{number}")
    return places


def faults(program: str) -> dict[str, str]:
    """What stands behind "fault:" -> its place, as findings write it."""
    lines = (PROGRAMS / program).read_text().splitlines()
    found = [(FAULT.search(line), number) for number, line in enumerate(lines, 1)]
    return {mark[0][9:]: f"{program}:{number}" for mark, number in found if mark}


def recorded(tmp_path: Path, program: str, *options: str, status: int = 0) -> Path:
    run = tmp_path / "run"
    name, *arguments = program.split()
    done = record_script(
        run,
        PROGRAMS / f"{name}.py",
        *arguments,
        options=("--engine", "native", *options),
        environment=WITH_TESTS,
    )
    assert done.status == status, done.stderr
    return run


def test_planted_races_are_found_once_at_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(recorded(tmp_path, "forms"))
    found = race_findings(run)
    places = [{str(f.evidence[side]["where"]) for side in ("first", "second")} for f in found]
    expected = marked("planted.py", "forms.py")
    assert len(expected) >= 15
    missing = [name for name, lines in expected.items() if places.count(lines) != 1]
    assert not missing
    assert len(places) == len(expected), [p for p in places if p not in expected.values()]
    assert len(races(run)) == len(found)
    # A process that goes on recording is judged as far as all its threads are known.
    begin = min(race.first.start_ns for race in find_races(run))
    processes = {(one.rank, one.pid) for one in run.threads}
    assert find_races(replace(run, read_at_ns=dict.fromkeys(processes, begin))) == ()
    (chance,) = (f for f in found if f.severity != "error")
    assert {chance.evidence[side]["where"] for side in ("first", "second")} == expected["published"]
    assert chance.severity == "info"
    assert chance.evidence["first"]["access"] == "write"
    (uneven,) = (
        f for f, place in zip(found, places, strict=True) if place == expected["lock_on_one_side"]
    )
    held = {side["where"]: side["locks"] for side in map(uneven.evidence.get, ("first", "second"))}
    assert sorted(held.values()) == [0, 1]
    assert "take the same lock in both places" in uneven.evidence["advice"]
    (unlike,) = (
        f for f, place in zip(found, places, strict=True) if place == expected["two_conditions"]
    )
    assert unlike.evidence["first"]["locks"] == unlike.evidence["second"]["locks"] == 1
    assert "but not the same one" in unlike.evidence["advice"]
    assert all(f.evidence["first"]["thread"] != f.evidence["second"]["thread"] for f in found)
    shown_on_the_timeline(run)
    examined_in_stretches(run, monkeypatch)


def shown_on_the_timeline(run: Run) -> None:
    """A finding's link selects one side of the race; its panel leads to the other."""
    timeline = Timeline.open(run)
    for finding in race_findings(run):
        (selected,) = parse_qs(urlsplit(selecting(timeline, finding.link)).query)["sel"]
        lane, _, ref = map(int, selected.split("."))
        facts = slice_facts(timeline, lane, ref)
        others = [
            one for one in facts["races"] if one["where"] == finding.evidence["second"]["where"]
        ]
        (other,) = {(one["lane"], one["ref"], one["outgoing"]) for one in others}
        assert other[2]
        back = slice_facts(timeline, *other[:2])["races"]
        assert (lane, ref, False) in {(one["lane"], one["ref"], one["outgoing"]) for one in back}
        assert all(one["stack"] for one in back)


def examined_in_stretches(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what was before, a summary is kept: no race is lost by it, and none counted twice."""

    def answer() -> dict[frozenset[str | None], Race]:
        return {frozenset((one.first.where, one.second.where)): one for one in find_races(run)}

    whole = answer()
    for at_once in (30, 100):
        monkeypatch.setattr(detector, "ACCESSES_AT_ONCE", at_once)
        find_races.cache_clear()
        parts = answer()
        assert parts.keys() == whole.keys()
        for places, race in parts.items():
            assert len(race.tensors) == len(whole[places].tensors)
            assert race.pairs >= 1  # of stretches it is an estimate
    find_races.cache_clear()


def test_programs_whose_threads_are_ordered_are_silent(tmp_path: Path) -> None:
    run = open_run(recorded(tmp_path, "clean"))
    for analysis in (race_findings, concurrent_backwards, inplace_modifications, deadlocks):
        assert [finding.title for finding in analysis(run)] == []


def test_backward_that_others_disturb(tmp_path: Path) -> None:
    run, lines = open_run(recorded(tmp_path, "faulty")), faults("faulty.py")
    changed, stepped = inplace_modifications(run)
    assert changed.where == lines["changed culprit"]
    assert changed.evidence["modified_by"]["op"] == "aten::add_"
    assert changed.evidence["saved_by"]["where"] == lines["changed saved"]
    assert changed.evidence["saved_by"]["op"] == "aten::exp"
    assert changed.evidence["raised"]["where"] == lines["changed raised"]
    assert changed.evidence["writes"] == 2
    assert "spoiler" in changed.title
    assert stepped.where == lines["stepped culprit"]
    assert stepped.evidence["tensor"] == "2.weight"
    assert stepped.evidence["saved_by"]["where"] == lines["stepped saved"]
    assert stepped.evidence["modified_by"]["phase"] == "SGD.step"

    at_once = [one for one in concurrent_backwards(run) if one.where == lines["at_once both"]]
    (one,) = at_once
    assert len(one.evidence["threads"]) == 2
    assert one.evidence["shared_nodes"] > 0
    assert one.evidence["overlap_ns"] > 0

    found = race_findings(run)
    (hogwild,) = [one for one in found if "Hogwild" in one.title]
    assert hogwild.where == lines["hogwild step"]
    assert len(hogwild.evidence["threads"]) == 3
    names = [name.rpartition(".")[2] for name in hogwild.evidence["tensors"]]
    assert sorted(names) == ["bias", "weight"]  # of a layer that is called on its own
    assert {one.where for one in found} == {hogwild.where, lines["at_once both"]}


def test_accesses_within_others_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(values: list[tuple[int, int, int, int]]) -> dict[str, np.ndarray]:
        start, end, depth, storage = np.array(values).T
        columns = {"start_ns": start, "duration_ns": end - start, "depth": depth}
        columns |= {"storage": storage, "write": np.ones(len(values), bool)}
        return columns | {"birth": np.arange(len(values)) % 2 == 0}

    outer = [(100, 200, 0, 7), (120, 130, 0, 8), (300, 400, 0, 7), (2**50, 2**50 + 9, 0, 7)]
    inner = [(110, 190, 1, 7), (150, 160, 2, 7), (300, 310, 1, 7), (150, 160, 2, 9)]
    for largest in (access_table._MAX_COMBINED, 0):
        monkeypatch.setattr(access_table, "_MAX_COMBINED", largest)
        kept = access_table.outermost_accesses(rows(inner + outer))
        found = set(zip(*(kept[name].tolist() for name in ("start_ns", "storage")), strict=True))
        assert found == {(start, storage) for start, _, _, storage in [*outer, inner[-1]]}
        born = dict(
            zip(
                zip(kept["start_ns"].tolist(), kept["storage"].tolist(), strict=True),
                kept["birth"].tolist(),
                strict=True,
            )
        )
        assert born == {
            (100, 7): True,
            (120, 8): False,
            (300, 7): True,
            (2**50, 7): False,
            (150, 9): False,
        }


def test_threads_that_wait_for_ever(tmp_path: Path) -> None:
    run = open_run(recorded(tmp_path, "deadlocked", *ABORT, status=1))
    lines = faults("deadlocked.py")
    found = {
        frozenset(one["where"] for one in f.evidence["threads"]): f
        for f in deadlocks(run)
        if "threads" in f.evidence
    }
    circles = [{"forth", "back"}, {"taken_twice"}, {"worker", "joined"}]
    assert found.keys() == {frozenset(lines[name] for name in circle) for circle in circles}
    assert "for the end of worker" in found[frozenset({lines["worker"], lines["joined"]})].title
    (stuck,) = [f for f in deadlocks(run) if "threads" not in f.evidence]
    assert stuck.where == lines["stuck"]
    assert "SumBackward0" in stuck.title
    waiting = {row["name"] for row in run.events("stall").to_pylist()}
    assert {"holder", "patient", "join"} <= waiting  # reported by the watchdog, not as a finding


@pytest.mark.parametrize(
    ("kernel", "born", "scratch"),
    [
        ("aten::native_layer_norm_backward", None, [True, False]),
        ("aten::native_layer_norm_backward", 120, [False, False]),  # an operator made it, within
        ("aten::native_layer_norm_backward", 90, [True, False]),  # another one, that is gone
        (
            "mine::step",
            None,
            [False, False],
        ),  # written in Python, it may know more than it is given
        (None, None, [False, False]),  # made of others, whose accesses are all there are
    ],
)
def test_memory_that_an_operator_takes_for_itself(
    kernel: str | None, born: int | None, scratch: list[bool]
) -> None:
    def rows(values: list[tuple[int, int, int, int, bool, bool]]) -> dict[str, np.ndarray]:
        names = ("start_ns", "duration_ns", "depth", "storage", "write", "birth")
        return dict(zip(names, map(np.array, zip(*values, strict=True)), strict=True))

    writes = [(150, 10, 2, 9, True, False), (170, 10, 2, 9, True, False)]
    births = [] if born is None else [(born, 5, 2, 9, True, True)]
    around = [] if kernel is None else [(100, 100, 1, 7, False, False)]
    before = [(10, 20, 0, 9, True, False)]  # of the same address, by itself
    own = rows([*writes, *births, *before])
    every = rows([*around, *writes, *births, *before])
    found = first_of_scratch(every, own, lambda start, _: [kernel or "aten::linear"] * len(start))
    assert found.tolist() == scratch + [False] * len([*births, *before])


def test_memory_that_an_operator_takes_for_itself_is_read_by_another_within() -> None:
    """mse_loss writes the squares, which no other operator sees, and mean reads them."""
    around = (100, 100, 0, 7, False, False)
    squares = [
        (150, 10, 1, 9, False, False),
        (170, 10, 1, 9, True, True),
        (185, 5, 1, 9, False, False),
    ]
    names = ("start_ns", "duration_ns", "depth", "storage", "write", "birth")
    own, every = (
        dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))
        for rows in (squares, [around, *squares])
    )
    found = first_of_scratch(every, own, lambda start, _: ["aten::mse_loss"] * len(start))
    assert found.tolist() == [True, False, False]


ABORT = ("--hang-timeout", "2", "--on-hang", "abort")


def test_threads_at_rest_without_a_circle(tmp_path: Path) -> None:
    run = open_run(recorded(tmp_path, "resting pool", *ABORT, status=1))
    lines = faults("resting.py")
    (found,) = deadlocks(run)
    assert found.severity == "error"
    places = {one["where"]: one["waits_for"] for one in found.evidence["threads"]}
    assert places[lines["consumer"]] == "an item of a queue"
    assert places[lines["producer"]] == "a lock that consumer holds"
    assert places[lines["outer"]] == places[lines["main"]] == "the result of a future"
    assert found.title.startswith(
        "Deadlock: every thread is blocked: main waits for the result of a future at "
    )
    assert "a pool of their own" in found.evidence["advice"]


@pytest.mark.slow
def test_a_data_loader_worker_that_never_comes(tmp_path: Path) -> None:
    run = open_run(recorded(tmp_path, "resting loader", *ABORT, status=1))
    lines = faults("resting.py")
    (found,) = deadlocks(run)
    assert {one["where"] for one in found.evidence["threads"]} >= {lines["loader"], lines["worker"]}
    (worker,) = {p["pid"] for p in run.manifest["processes"]} - {run.threads[0].pid}
    wait_for_end(worker)  # not left behind


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "status", "answer"), [("served", 143, ["info"]), ("slow", 0, [])]
)
def test_a_rest_that_may_be_meant(
    tmp_path: Path, program: str, status: int, answer: list[str]
) -> None:
    run = open_run(recorded(tmp_path, f"resting {program}", "--hang-timeout", "2", status=status))
    assert [found.severity for found in deadlocks(run)] == answer


def test_the_line_of_a_frame() -> None:
    stack = ("/my runs/train 2.py:12 step (where the task was started)", "/b.py:3 <module>")
    assert stack_frames.innermost_place(stack) == "train 2.py:12"
    assert stack_frames.innermost_line(stack) == "/my runs/train 2.py:12"
    assert stack_frames.line_and_function(stack[1]) == ("/b.py:3", "<module>")
    assert stack_frames.innermost_place(()) is None


@pytest.mark.parametrize(
    ("a", "b", "shared"),
    [
        (Span(0, 10, 10, 0), Span(10, 20, 10, 0), False),
        (Span(0, 11, 11, 0), Span(10, 20, 10, 0), True),
        (Span(0, 88, 8, 16), Span(8, 96, 8, 16), False),  # left and right half of each row
        (Span(0, 88, 9, 16), Span(8, 96, 8, 16), True),
        (Span(0, 88, 8, 16), Span(24, 32, 8, 0), False),  # a whole gap
        (Span(0, 88, 8, 16), Span(24, 33, 9, 0), True),
        (Span(0, 100, 4, 12), Span(4, 100, 4, 8), True),  # meet in a later row
        (Span(0, 100, 4, -1), Span(0, 100, 100, 0), False),  # nothing is claimed
        (Span(0, 2**62, 2**62, 1), Span(2**61, 2**62, 8, 16), True),  # damaged: runs do not fit
        (Span(5, 5, 0, 0), Span(0, 100, 4, 12), False),
    ],
)
def test_shared_bytes(a: Span, b: Span, shared: bool) -> None:
    assert share_bytes(a, b) is shared
    assert share_bytes(b, a) is shared
