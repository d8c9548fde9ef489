"""One access of a thread to a tensor, as findings tell it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lanescope.webapp.analysis.stack_frames import place


@dataclass(frozen=True)
class Touch:
    """An operator that read or wrote a tensor. Times are ns from the start of the run."""

    thread: str
    op: str
    module: str
    phase: str
    start_ns: int
    end_ns: int
    write: bool
    step: int
    stack: tuple[str, ...]  # "file:line function", innermost first; empty: not captured
    stream: str = ""  # of the device, where it is told by streams

    @property
    def where(self) -> str | None:
        """The program's line, "file.py:12"; None where no stack was captured."""
        return place(self.stack)

    @property
    def place(self) -> str:
        """The same for a sentence: the module, where the line is not known."""
        return self.where or (f"module {self.module}" if self.module else "an unknown place")

    def to_json(self) -> dict[str, Any]:
        """The access as it stands in the evidence of a finding."""
        return {
            "op": self.op,
            "thread": self.thread,
            "where": self.where,
            "time_ns": self.start_ns,
            "access": "write" if self.write else "read",
            "module": self.module,
            "phase": self.phase,
            "stack": list(self.stack),
            **({"stream": self.stream} if self.stream else {}),
        }
