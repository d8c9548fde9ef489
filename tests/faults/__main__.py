"""Prints recall and false alarms of the catalogue by room: `python -m tests.faults [NAME ...]`.

    python -m tests.faults --write     also puts the table into docs/checks.md

Every form is recorded with defaults, which takes some minutes. Below the table stands what was not
found, what a twin led to, and what was found without a line. Status 1 where anything was missed or
a twin led to anything.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from docs.schema_reference import CHECKS, updated_recall
from tests.faults.judge import FAULTS, Verdict, judged
from tests.support.processes import heed_interrupts

_AT_ONCE = 3
"""More than two cores' worth: the programs wait much of their time."""


def table(verdicts: list[Verdict]) -> str:
    """Rows of a Markdown table, one per room and one for all."""
    rooms = dict.fromkeys(one.fault.room for one in verdicts)
    rows = [_row(room, [one for one in verdicts if one.fault.room == room]) for room in rooms]
    rows.append(_row("all", verdicts))
    head = (
        "| room | faults | programs | found | twins | false alarms |\n|---|---|---|---|---|---|\n"
    )
    return head + "".join(rows)


def _row(room: str, verdicts: list[Verdict]) -> str:
    faults = len({one.fault.name for one in verdicts})
    found = sum(bool(one.right) for one in verdicts)
    false = sum(bool(one.alarms) for one in verdicts)
    return f"| {room} | {faults} | {len(verdicts)} | {found} | {len(verdicts)} | {false} |\n"


def main(arguments: list[str]) -> int:
    """Judges all faults, or those of the rooms, faults and programs that are named."""
    heed_interrupts()
    names = {one for one in arguments if one != "--write"}
    chosen = [one for one in FAULTS if not names or names & {one.room, one.name, one.form}]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(_AT_ONCE) as pool:
        verdicts = list(pool.map(lambda one: judged(one, Path(folder) / one.form), chosen))
    made = table(verdicts)
    print(made)
    wrong = [one for one in verdicts if one.alarms or not one.right]
    for one in wrong:
        if not one.right:
            print(f"missed: {one.fault.form}: {one.found}")
        if one.alarms:
            print(f"false alarm: {one.fault.form}: {one.alarms}")
    placed = [one for one in verdicts if any(found.where for found in one.right)]
    unplaced = [one.fault.form for one in verdicts if one.right and one not in placed]
    print(f"found without a line of the program: {', '.join(unplaced) or 'nothing'}")
    if "--write" in arguments:
        CHECKS.write_text(updated_recall(CHECKS.read_text(encoding="utf-8"), made), "utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
