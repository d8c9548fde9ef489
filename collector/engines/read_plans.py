"""Which tensors of an operator are read, by its schema."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..hooks.collectives.collectives import plan_for

OVERWRITING = frozenset(
    f"aten::{name}"
    for name in (
        "bernoulli_",
        "cauchy_",
        "copy_",
        "exponential_",
        "fill_",
        "geometric_",
        "log_normal_",
        "normal_",
        "random_",
        "uniform_",
        "zero_",
        "_foreach_copy_",
        "_foreach_zero_",
    )
)
"""Operators that do not read the inputs that they change."""

NO_VALUES = (
    "c10d::",
    "_c10d_functional",
    "aten::empty",
    "aten::new_empty",
    "aten::_empty",
    "aten::resize",
)
"""Prefixes of operators that compute no values, or only wait for them."""


class Argument(NamedTuple):
    """An argument that may hold tensors."""

    position: int
    name: str
    reads: bool
    writes: bool
    named: bool


class ReadPlan(NamedTuple):
    """How to read an operator, determined once."""

    arguments: tuple[Argument, ...]
    fresh: tuple[bool, ...]  # results that are neither views nor inputs
    collective: bool
    nothing: bool  # it computes no values
    overwrites: bool
    workspace: bool  # uint8 results are scratch memory, partly uninitialised


def read_plan(operator: Any) -> ReadPlan | None:
    """Returns what to read of an operator's tensors; None of one without a schema or a tensor."""
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return None
    collective = plan_for(operator) is not None
    in_place = schema.name.endswith("_") and schema.name != "c10d::send"
    arguments = []
    for position, argument in enumerate(schema.arguments):
        if "Tensor" not in str(argument.type):
            continue
        alias, name = argument.alias_info, argument.name
        reads, writes = alias is None, alias is not None and alias.is_write
        if collective:  # schemas of collectives lack this, so argument names are used
            writes = writes or "output" in name or (in_place and "input" not in name)
            reads = "output" not in name and name != "barrier"
        elif "batch_norm" in schema.name and name.startswith("running_"):
            # The schema omits that they are written; backward of a training pass needs none.
            backward = "backward" in schema.name
            reads, writes = reads and not backward, writes or not backward
        arguments.append(Argument(position, name, reads, writes, not argument.kwarg_only))
    return ReadPlan(
        arguments=tuple(arguments),
        fresh=tuple(r.alias_info is None and "Tensor" in str(r.type) for r in schema.returns),
        collective=collective,
        nothing=not collective and schema.name.startswith(NO_VALUES),
        overwrites=schema.name in OVERWRITING,
        workspace="_rnn" in schema.name,
    )
