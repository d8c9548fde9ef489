"""What a finding may bring as evidence: plain JSON, of the shape that its kind promises.

`check --json` prints it, and settings, pages and other analyses read it. So a finding is held
against the types here when it is made, and not where somebody reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from lanescope.webapp.runs.typed_json import conform, plain_json


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


class Access(TypedDict):
    """An access to a tensor, as `Touch.to_json` makes it."""

    op: str
    thread: str
    where: str | None
    time_ns: int
    access: str


class Race(TypedDict):
    """Two accesses that nothing orders."""

    tensor: str
    first: Access
    second: Access


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


class Overlap(TypedDict):
    """Threads in backward at the same time: a higher limit in the settings lets it pass."""

    rate: float


class DeadParameter(TypedDict):
    """Parameters that do not learn, and why."""

    cause: str


class Environment(TypedDict):
    """A setting, and what to set it to."""

    name: str
    set: str


SHAPES: dict[str, Any] = {
    "race": Race,
    "hang": Collective,
    "collective_mismatch": Collective,
    "overlap": Overlap,
    "dead_parameter": DeadParameter,
    "environment": Environment,
}
"""Kind -> what its evidence has beside `Evidence`."""


def checked(kind: str, evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Returns evidence of a finding as plain JSON. Raises Mismatch where it is of another shape."""
    found: dict[str, Any] = plain_json(evidence)
    conform(found, Evidence, "evidence")
    if kind in SHAPES:
        conform(found, SHAPES[kind], "evidence")
    return found
