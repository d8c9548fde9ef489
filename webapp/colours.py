"""The design tokens of the style sheet: fonts and colours, and which of them mean a phase.

They live in assets/style.css and nowhere else; this reads them from there.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from lanescope import assets

Theme = Literal["light", "dark"]

SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif'

KINDS = ("forward", "backward", "optimizer", "collective", "data", "other")
"""Tokens whose colour means a phase."""

_TOKEN = re.compile(r"--(\w+):\s*light-dark\((#[0-9a-f]{6}),\s*(#[0-9a-f]{6})\);")


@lru_cache(maxsize=1)
def tokens() -> dict[Theme, dict[str, str]]:
    """Colour of each token per theme."""
    text = (assets.FOLDER / "style.css").read_text(encoding="utf-8")
    found = _TOKEN.findall(text)
    return {
        "light": {name: light for name, light, _ in found},
        "dark": {name: dark for name, _, dark in found},
    }


def token_of(kind: str) -> str:
    """Token of a phase kind; what has none of its own is `other`."""
    return kind if kind in KINDS else "other"
