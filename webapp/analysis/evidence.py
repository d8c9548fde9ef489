"""What a finding may bring as evidence: plain JSON, of the shape that its kind promises.

`check --json` prints it, and settings, pages and other analyses read it. So it is compared with the
types here, and with the one that its kind names, when findings are collected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from lanescope.webapp.analysis.plugin import Kind, load
from lanescope.webapp.runs.typed_json import conform


class Side(TypedDict, total=False):
    """One of two accesses, or one of two runs."""

    op: str | None
    where: str | None


class Evidence(TypedDict, total=False):
    """Names that mean the same in findings of every kind: settings allow findings by them."""

    tensor: str
    tensors: list[str]
    gradients: list[str]
    parameter: str
    op: str | dict[str, str]  # of a collective: what each rank called
    first: Side | None
    second: Side | None
    modified_by: Side | None
    saved_by: Side | None


class Missing(TypedDict):
    """A rank that others wait for."""

    rank: int
    doing: str
    where: str | None


class Collective(TypedDict):
    """A collective that did not come about, or not as it should have."""

    group: str
    sequence: int
    op: dict[str, str]
    waiting: list[int]
    missing: list[Missing]


def check_evidence(kind: Kind, evidence: Mapping[str, Any]) -> None:
    """Raises Mismatch where evidence of a finding is not of the shape that its kind promises."""
    conform(evidence, Evidence, "evidence")
    if kind.evidence:
        conform(evidence, load(kind.evidence), "evidence")
