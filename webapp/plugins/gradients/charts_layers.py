"""Axes and words that all figures of layers share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

import numpy as np

MODEL = "(model)"

MAX_LAYER_NAMES = 64
"""Layers named beside a heat map."""

MAX_SLANTED = 24
"""Layers named below a profile, slanted."""

SLANTED = 20
"""Letters that there is room for in a slanted name."""

LEVEL = 120
"""Letters that fit below a profile side by side."""


def layer_names(layers: Iterable[object]) -> list[str]:
    """Returns what layers are called; the model itself has an empty path."""
    return [str(layer) or MODEL for layer in layers]


def factor(ratio: float) -> str:
    """Returns a ratio as a factor; infinite: of a norm that is NaN or infinite."""
    if np.isinf(ratio):
        return "NaN or infinite"
    return f"{float(f'{ratio:.3g}'):g} \N{MULTIPLICATION SIGN}"


def layer_axis(layers: Sequence[str], most: int, letters: int = 60) -> dict[str, Any]:
    """Returns names of layers along an axis, `most` of them, without what all begin with, which is
    its title; of longer ones the last letters."""
    names = layer_names(layers)
    ends = [name.split(".")[:-1] for name in (min(names, default=""), max(names, default=""))]
    same = takewhile(lambda pair: pair[0] == pair[1], zip(*ends, strict=False))
    shared = ".".join(one for one, _ in same) if len(names) > 1 else ""
    shown = names[:: -(-len(names) // most) or 1]
    short = [name[len(shared) + bool(shared) :] for name in shown]
    return {
        "type": "category",
        "tickmode": "array",
        "tickvals": shown,
        "ticktext": [
            one if len(one) <= letters else "\N{HORIZONTAL ELLIPSIS}" + one[-letters:]
            for one in short
        ],
        "title_text": f"in {shared}" if shared else "",
    }


def plain_cells(values: Any) -> Sequence[Sequence[float | None]]:
    """Returns cells of a heat map as plain numbers; None, which leaves a gap, for NaN."""
    return [[None if np.isnan(v) else float(v) for v in row] for row in values]
