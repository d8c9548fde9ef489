"""Which findings of two runs are the same one."""

from __future__ import annotations

from lanescope.webapp.analysis.findings import AnalysisResult, Finding, known_before


def side(op: str, frame: str) -> dict[str, object]:
    stack = [frame] if frame else []
    return {"op": op, "module": "", "phase": "backward", "stack": stack, "where": "train.py:1"}


def race(tensor: str, first: dict[str, object], second: dict[str, object]) -> Finding:
    evidence = {"tensor": tensor, "tensors": [tensor], "first": first, "second": second}
    return Finding("race", "error", f"Data race on {tensor}", evidence=evidence)


def severities(before: Finding, *now: Finding) -> list[str]:
    known = known_before(AnalysisResult("Data races", now), [before])
    return [finding.severity for finding in known.findings]


def test_a_race_of_the_same_functions_is_known_whatever_tensor_it_was_seen_on() -> None:
    add, copy = side("aten::add_", "/a/train.py:17 work"), side("aten::copy_", "/a/train.py:9 save")
    before = race("0.weight", add, copy)
    moved = side("aten::copy_", "/b/train.py:12 save")
    other = side("aten::add_", "/a/train.py:17 load")
    assert severities(
        before, race("0.bias", copy, add), race("0.weight", moved, add), race("0.bias", add, other)
    ) == ["info", "info", "error"]


def test_a_race_without_stacks_is_known_by_its_operators() -> None:
    add, copy = side("aten::add_", ""), side("aten::copy_", "")
    assert severities(race("a", add, copy), race("b", copy, add), race("a", add, add)) == [
        "info",
        "error",
    ]


def test_other_findings_are_known_by_what_they_are_about() -> None:
    before = Finding("vanishing", "error", "", where="train.py:3", evidence={"tensor": "0.weight"})
    moved = Finding("vanishing", "error", "", where="train.py:5", evidence={"tensor": "0.weight"})
    other = Finding("vanishing", "error", "", where="train.py:5", evidence={"tensor": "1.weight"})
    assert severities(before, moved, other) == ["info", "error"]
