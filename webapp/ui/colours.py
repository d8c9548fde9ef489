"""The design tokens of the style sheet: fonts and colours, and which of them mean a phase.

They live in assets/style.css and nowhere else; this reads them from there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np

from lanescope import assets
from lanescope.webapp.runs.types import Float64Array

Theme = Literal["light", "dark"]

SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif'

PHASE_TOKENS = ("forward", "backward", "optimizer", "collective", "data", "other")
"""Tokens whose colour means a phase."""

_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
"""From red, green and blue to the cones of the eye, and from their cube roots to Oklab."""

_TOKEN = re.compile(r"--(\w+):\s*light-dark\((#[0-9a-f]{6}),\s*(#[0-9a-f]{6})\);")


@lru_cache(maxsize=1)
def tokens() -> dict[Theme, dict[str, str]]:
    """Returns the colour of each token per theme."""
    text = (assets.FOLDER / "style.css").read_text(encoding="utf-8")
    found = _TOKEN.findall(text)
    return {
        "light": {name: light for name, light, _ in found},
        "dark": {name: dark for name, _, dark in found},
    }


def token_of(kind: str) -> str:
    """Returns the token of a phase kind; what has none of its own is `other`."""
    return kind if kind in PHASE_TOKENS else "other"


def ramp_colour(ramp: Sequence[tuple[float, str]], share: float) -> str:
    """Returns the colour at a share (0 to 1) of a ramp of (share, #rrggbb), from 0 to 1."""
    for (low, one), (high, other) in pairwise(ramp):
        if share <= high:
            part = (share - low) / (high - low)
            mixed = [a + (b - a) * part for a, b in zip(_rgb(one), _rgb(other), strict=True)]
            return "#" + "".join(f"{round(255 * value):02x}" for value in mixed)
    return ramp[-1][1]


def blended(one: str, other: str, share: float) -> str:
    """Returns the colour at a share (0 to 1) of the way to another one, in steps that look even.

    It is a straight line in Oklab, https://bottosson.github.io/posts/oklab.
    """
    way = (1 - share) * _oklab(one) + share * _oklab(other)
    light = (np.linalg.inv(_CONES) @ (np.linalg.inv(_LAB) @ way) ** 3).clip(0, 1)
    shown = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * value):02x}" for value in shown.tolist())


def _oklab(colour: str) -> Float64Array:
    """Lightness, green to red, blue to yellow."""
    found: Float64Array = _LAB @ np.cbrt(_CONES @ np.array(_linear(colour)))
    return found


def readable_ink(fill: str, inks: Sequence[str]) -> str:
    """Returns the first ink that has a contrast of 4.5 on the colour, as WCAG counts it; else the
    best."""
    found = next((ink for ink in inks if _contrast(fill, ink) >= 4.5), None)
    return found or max(inks, key=lambda ink: _contrast(fill, ink))


def _contrast(one: str, other: str) -> float:
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    red, green, blue = _linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(colour: str) -> tuple[float, ...]:
    """Red, green and blue in proportion to light."""
    return tuple(
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in _rgb(colour)
    )


def _rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
