"""Counts the places where a check is switched off. The numbers may fall, never rise.

    python -m tests.suppressions

The numbers allowed stand in suppressions.txt beside this file. Fewer than allowed fails too, and
says what to write there: otherwise the next one would slip in unseen.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT

ALLOWED = Path(__file__).with_name("suppressions.txt")

KINDS = {
    "type-ignore": re.compile(r"#\s*type:\s*ignore|@ts-(?:ignore|expect-error)"),
    "noqa": re.compile(r"#\s*(?:ruff:\s*)?noqa|biome-ignore|clang-format off"),
    "skip": re.compile(
        r"pytest\.(?:skip|importorskip)\(|pytest\.mark\.(?:skip|skipif|xfail)|unittest\.skip"
        r"|\b(?:test|it|describe)\.skip\("
    ),
}


def sources() -> list[Path]:
    """Python, JavaScript and C++ that git tracks or would track, but for this file."""
    kinds = ("*.py", "*.js", "*.cpp", "*.h")
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *kinds],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    paths = [ROOT / name for name in listing]
    return [path for path in paths if path.exists() and path != Path(__file__).resolve()]


def places() -> dict[str, list[str]]:
    """Every suppression, by kind, as `file:line`."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for path in sources():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for kind, pattern in KINDS.items():
                hits = len(pattern.findall(line))
                found[kind] += [f"{path.relative_to(ROOT)}:{number}"] * hits
    return found


def main() -> int:
    """Compare the suppressions there are with those allowed."""
    allowed = {kind: int(count) for kind, count in map(str.split, ALLOWED.open())}
    found = places()
    wrong = False
    for kind, where in found.items():
        limit = allowed.get(kind, 0)
        if len(where) > limit:
            wrong = True
            print(f"{kind}: {len(where)}, allowed are {limit}. Do without the new one:")
            print("".join(f"  {place}\n" for place in where), end="")
        elif len(where) < limit:
            wrong = True
            print(f"{kind}: {len(where)}, allowed were {limit}. Well done; now lower the number")
            print(f"  in {ALLOWED.relative_to(ROOT)} to {len(where)}")
    if not wrong:
        print("suppressions:", ", ".join(f"{kind} {len(where)}" for kind, where in found.items()))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
