"""Which forward operator made an autograd node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lanescope.collector.format import schema

BACKWARD = schema.OpScope.backward.name


def maker(node: dict[str, Any], rows: Sequence[dict[str, Any]]) -> int | None:
    """Position among `rows` (of the op table, with the node's sequence number) of its maker.

    Sequence numbers count per forward thread, and an operator that makes no node may carry the
    number of the next one. So it is the one that has the node's name (AddmmBackward0: aten::addmm),
    began before it and is nearest, on the node's thread if one is.
    """
    fitting = [
        (row["thread"] != node["thread"], node["start_ns"] - row["start_ns"], k)
        for k, row in enumerate(rows)
        if row["scope"] != BACKWARD
        and row["start_ns"] <= node["start_ns"]
        and stem(row["name"]) == stem(node["name"])
    ]
    return min(fitting)[2] if fitting else None


def stem(name: str) -> str:
    """What the names of an op and its node share: nllloss of aten::nll_loss_forward."""
    bare = re.sub(r"Backwards?[0-9]*$", "", name.rpartition("::")[2])
    return re.sub(r"_forward$", "", bare).replace("_", "").lower()
