"""A form of a fault: a program that has it and a twin that does not."""

from __future__ import annotations

import inspect
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Program = Callable[[], None] | Callable[[bool], None]
"""A function of a module of this folder. One with a parameter is two programs: True plants the
fault, False is the twin."""

MARK = "# named"
"""Ends the line of a program that its finding must name; without one any place will do."""


@dataclass(frozen=True)
class Fault:
    """One form of a fault. Its programs are recorded with defaults, each in its own process."""

    name: str  # of the fault; it has at least three forms
    room: str  # which recall is counted together
    kinds: tuple[str, ...]  # of findings: one of them must be an error or a warning
    program: Program
    twin: Program | None = None  # leads to no error and no warning; None: `program` called so
    says: str = ""  # part of the sentence
    ranks: int = 0  # as torchrun starts them; 0: a process without a launcher
    options: tuple[str, ...] = ()  # of lanescope record
    baseline: Program | None = None  # with which program and twin are compared
    slow: bool = False  # takes more than a few seconds

    @property
    def form(self) -> str:
        """Name of the form: that of its program."""
        return self.program.__name__

    @property
    def place(self) -> str:
        """File and line that the finding must name; empty: any."""
        lines, first = inspect.getsourcelines(self.program)
        marked = [n for n, line in enumerate(lines, first) if line.rstrip().endswith(MARK)]
        file = Path(inspect.getsourcefile(self.program) or "").name
        return f"{file}:{marked[0]}" if marked else ""


def forms(name: str, room: str, kind: str, says: str, *programs: Program) -> tuple[Fault, ...]:
    """Returns the forms of a fault; all but the first are for `make soak`."""
    return tuple(
        Fault(name, room, (kind,), one, says=says, slow=place > 0)
        for place, one in enumerate(programs)
    )


WAIT_S = 30
"""How long at most a program is watched before Ctrl-C."""


def ctrl_c_at_rest(after_s: int = 0, signal: str = "INT", also: tuple[int, ...] = ()) -> None:
    """Has Ctrl-C end this process once its watchdog has seen a rest, `after_s` from now or later,
    as a user would who sees nothing happen: again where it does not end, and in the end by SIGKILL.
    `signal`: another one than that of Ctrl-C. `also`: processes that get it too, as those of a
    terminal do. Does nothing where it is not recorded."""
    recorded = os.environ.get("LANESCOPE_RECORD")
    if recorded is None:
        return
    seen = Path(recorded) / "journal" / f"{os.getpid()}-*" / "quiet.json"
    # A file of a rest before this one may still be there.
    newer = f"find {seen} -newer $now 2>/dev/null | grep -q ."
    looks = f"for i in $(seq {WAIT_S}0); do {newer} && break; sleep 0.1; done"
    loop = f"sleep {after_s}; now=$(mktemp); {looks}"
    others = f"kill -{signal} {' '.join(map(str, also))}; " if also else ""
    kills = f"for i in 1 2 3; do kill -{signal} $PPID || exit; sleep 1; done; kill -KILL $PPID"
    ends = f"rm $now; {others}{kills}"
    null = subprocess.DEVNULL
    # In the background of a shell that has ended: a process with a child may be a launcher.
    subprocess.run(["sh", "-c", f"({loop}; {ends}) &"], stdout=null, stderr=null, check=True)
