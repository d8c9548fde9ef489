"""Plants faults in the product, one at a time, and says whether the tests of their room notice.

    python -m tests.mutations [ROOM ...]

Changes files of this working tree and restores them; run it in a tree of its own (git worktree).
tests/README.md has the table of the last time. Status 1 where a fault was not noticed.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from tests.support import ROOT


@dataclass(frozen=True)
class Mutation:
    """A line that is changed, and the room whose tests must fail then."""

    room: str
    file: str
    line: str
    instead: str


MUTATIONS = (
    Mutation(
        "races",
        "webapp/plugins/races/racing_pairs.py",
        "if a.low >= b.high or b.low >= a.high:",
        "if a.low >= b.high or b.low > a.high:",
    ),
    Mutation(
        "collectives",
        "webapp/plugins/collectives/skew.py",
        'came = came[came["ranks"] > 1]',
        'came = came[came["ranks"] > 0]',
    ),
    Mutation(
        "hangs",
        "webapp/plugins/hangs/hangs.py",
        "one.group == wait.group and one.sequence <= wait.sequence for one in",
        "one.group == wait.group and one.sequence > wait.sequence for one in",
    ),
    Mutation(
        "learning",
        "webapp/plugins/learning/vanishing.py",
        "return bool(len(begin)) and bool(values[-1] > RISING * begin[0])",
        "return bool(len(begin)) and bool(values[-1] > begin[0])",
    ),
    Mutation(
        "diff",
        "webapp/plugins/diff/values/gradient_norms.py",
        "close = apart <= relative * np.maximum(np.abs(base), np.abs(run))",
        "close = apart <= relative * np.minimum(np.abs(base), np.abs(run))",
    ),
    Mutation(
        "autograd_graph",
        "webapp/plugins/autograd_graph/module_graph.py",
        'while end < len(parts) and ".".join(parts[:end]) in opened:',
        'while end < len(parts) and ".".join(parts[:end]) not in opened:',
    ),
    Mutation(
        "threads",
        "webapp/plugins/threads/overlap.py",
        "until = np.where(at > 0, before[np.maximum(at - 1, 0)] + inside, 0)",
        "until = np.where(at > 0, before[np.maximum(at - 1, 0)], 0)",
    ),
    Mutation(
        "timeline_page",
        "webapp/plugins/timeline_page/op_table.py",
        "inside = (ops.end > low) & (ops.start < high)",
        "inside = (ops.end >= low) & (ops.start < high)",
    ),
    Mutation(
        "sql",
        "webapp/plugins/sql/query_process.py",
        "if size > _MAX_BYTES:",
        "if size > 2 * _MAX_BYTES:",
    ),
    Mutation(
        "timeline",
        "webapp/timeline/lod.py",
        "short = length < 1 << level",
        "short = length <= 1 << level",
    ),
    Mutation(
        "bundles",
        "webapp/bundles/redaction.py",
        "if len(argument) < _MIN_LETTERS or argument.lower() in _WORDS",
        "if len(argument) <= _MIN_LETTERS or argument.lower() in _WORDS",
    ),
    Mutation(
        "keep_last",
        "collector/journal/segment_ring.py",
        "while self._total + wanted > self._limit and self._history:",
        "while self._total > self._limit and self._history:",
    ),
    Mutation(
        "numerics",
        "collector/numerics/fingerprint.py",
        "torch.arange(first + 1, first + 1 + count, device=device)",
        "torch.arange(first, first + count, device=device)",
    ),
    Mutation(
        "observer",
        "collector/engines/observer/journal/segment_ring.cpp",
        "live_ -= taken;",
        "live_ -= used;",
    ),
)


def noticed(mutation: Mutation) -> bool:
    """Whether the tests of the room fail with the fault in place."""
    path = ROOT / mutation.file
    whole = path.read_text(encoding="utf-8")
    if whole.count(mutation.line) != 1:
        raise SystemExit(f"{mutation.file} has {whole.count(mutation.line)} of {mutation.line!r}")
    path.write_text(whole.replace(mutation.line, mutation.instead), encoding="utf-8")
    try:
        command = ["make", "test", f"ROOM={mutation.room}", "ARGS=-x -q"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode != 0
    finally:
        path.write_text(whole, encoding="utf-8")


def main(rooms: list[str]) -> int:
    """Plant all of them, or those of some rooms."""
    missed = 0
    for mutation in MUTATIONS:
        if rooms and mutation.room not in rooms:
            continue
        found = noticed(mutation)
        missed += not found
        word = "noticed" if found else "NOT NOTICED"
        print(f"| {mutation.room} | `{mutation.instead}` | {word} |", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
