"""Colours that mean something are distinct, with each of the common colour-blindnesses too.

What someone with one of them sees is computed by the matrices for full severity of Machado,
Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency"
(2009); how far apart two colours are by CIEDE2000, after Sharma, Wu and Dalal (2005).
"""

from __future__ import annotations

import itertools
import math

import pytest

from lanescope.webapp.plugins.threads.charts import pair_rates
from lanescope.webapp.ui.colours import PHASE_TOKENS, Theme, readable_ink, tokens

Triple = tuple[float, float, float]

SIGHT: dict[str, tuple[Triple, Triple, Triple]] = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
TO_XYZ = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
WHITE = (0.95047, 1.0, 1.08883)
STATES = ("identical", "within", "different", "added", "removed", "slower", "faster")
LEAST = 10.0
"""Two colours side by side differ at a glance from about 10 on; 1 is what can just be noticed."""


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("names", [(*PHASE_TOKENS, "bad"), STATES], ids=["phases", "states"])
def test_no_two_look_alike(names: tuple[str, ...], theme: Theme, sight: str) -> None:
    seen = {name: lab(tokens()[theme][name], sight) for name in names}
    pairs = itertools.combinations(names, 2)
    far = {(one, other): difference(seen[one], seen[other]) for one, other in pairs}
    assert {pair: round(one, 1) for pair, one in far.items() if one < LEAST} == {}


def test_difference_is_that_of_the_published_examples() -> None:
    # Rows 1, 7, 17 and 25 of table 1 of Sharma, Wu and Dalal.
    for one, other, expected in (
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 0, 0), (50, -1, 2), 2.3669),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
    ):
        assert difference(one, other) == pytest.approx(expected, abs=1e-4)


def times(matrix: tuple[Triple, Triple, Triple], vector: Triple) -> Triple:
    x, y, z = (sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix)
    return x, y, z


def lab(colour: str, sight: str) -> Triple:
    """A colour like #4c8fd6 as it is seen, in CIELAB."""

    def linear(value: float) -> float:
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    seen = times(SIGHT[sight], (red, green, blue))
    r, g, b = (min(1.0, max(0.0, value)) for value in seen)
    xyz = times(TO_XYZ, (r, g, b))
    share = [value / white for value, white in zip(xyz, WHITE, strict=True)]
    x, y, z = (t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116 for t in share)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def difference(one: Triple, other: Triple) -> float:
    """CIEDE2000 of two colours in CIELAB."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    grey = 1.5 - 0.5 * math.sqrt(mean**7 / (mean**7 + 25**7))
    c1, c2 = math.hypot(a1 * grey, b1), math.hypot(a2 * grey, b2)
    h1, h2 = (
        math.degrees(math.atan2(b, a * grey)) % 360 if a or b else 0.0
        for a, b in ((a1, b1), (a2, b2))
    )
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    hue = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2))
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    middle = math.radians((h1 + turn / 2) % 360 if c1 * c2 else h1 + h2)
    weight = (
        1
        - 0.17 * math.cos(middle - math.radians(30))
        + 0.24 * math.cos(2 * middle)
        + 0.32 * math.cos(3 * middle + math.radians(6))
        - 0.20 * math.cos(4 * middle - math.radians(63))
    )
    of_light = 1 + 0.015 * (light - 50) ** 2 / math.sqrt(20 + (light - 50) ** 2)
    of_chroma, of_hue = 1 + 0.045 * chroma, 1 + 0.015 * chroma * weight
    bend = 60 * math.exp(-(((math.degrees(middle) - 275) / 25) ** 2))
    twist = -2 * math.sqrt(chroma**7 / (chroma**7 + 25**7)) * math.sin(math.radians(bend))
    x, y, z = (l2 - l1) / of_light, (c2 - c1) / of_chroma, hue / of_hue
    return math.sqrt(x**2 + y**2 + z**2 + twist * y * z)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_numbers_of_the_matrix_of_rates_can_be_read(theme: Theme) -> None:
    rates = pair_rates(["a", "b"], [[None, 1.0], [1.0, None]], [["", ""], ["", ""]], theme).data[0]
    ink = rates.textfont.color
    worst = "#808080"  # is chosen only where the ink has less than 4.5
    assert [readable_ink(fill, [ink, worst]) for _, fill in rates.colorscale] == [ink, ink]
