"""A tree of frames: each node is a frame below the frames that were open around it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from lanescope.webapp.runs.types import Int64Array

FrameKind = Literal["python", "module", "op", "phase", "missing"]

ROOT = 0
"""Node that has all others below it; it has no frame."""


class Frame(NamedTuple):
    """What is open: a Python function at a line, a module, an operator or a phase."""

    name: str  # of a module its path
    kind: FrameKind
    file: str = ""  # of a Python function
    line: int = 0  # the one that was running; 0: none
    phase: str = ""  # kind of a phase

    @property
    def place(self) -> str:
        """`train.py:12`; empty without a line."""
        return f"{PurePath(self.file).name}:{self.line}" if self.line else ""

    @property
    def title(self) -> str:
        """`main (train.py:12)`, or the name alone."""
        return f"{self.name} ({self.place})" if self.line else self.name

    @property
    def label(self) -> str:
        """The title; of a module, its name within the one around it."""
        return self.name.rpartition(".")[2] if self.kind == "module" else self.title


class FrameTree:
    """Nodes by number, each after its parent. Several selections may be folded into one tree."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.parent: list[int] = [-1]
        self.frame: list[int] = [-1]  # position in `frames`
        self.depth: list[int] = [0]
        self._numbers: dict[Frame, int] = {}
        self._children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.parent)

    def number(self, frame: Frame) -> int:
        """Returns the position of a frame in `frames`."""
        found = self._numbers.setdefault(frame, len(self.frames))
        if found == len(self.frames):
            self.frames.append(frame)
        return found

    def child(self, parent: int, frame: int) -> int:
        """Returns the node of a frame (position in `frames`) below a node."""
        found = self._children.setdefault((parent, frame), len(self.parent))
        if found == len(self.parent):
            self.parent.append(parent)
            self.frame.append(frame)
            self.depth.append(self.depth[parent] + 1)
        return found

    def below(self, node: int, frames: Iterable[Frame]) -> int:
        """Returns the node that a path of frames leads to, outermost first."""
        for frame in frames:
            node = self.child(node, self.number(frame))
        return node

    def children(self, parents: Int64Array, frames: Int64Array) -> Int64Array:
        """Returns `child` of each pair; the work grows with the number of different pairs."""
        width = len(self.frames)
        codes, pairs = pd.factorize(parents * width + frames)
        nodes = [self.child(*divmod(int(pair), width)) for pair in pairs]
        found: Int64Array = np.array(nodes, np.int64)[codes]
        return found

    def path(self, node: int) -> list[Frame]:
        """Returns the frames from the outermost one to that of a node."""
        found = []
        while node != ROOT:
            found.append(self.frames[self.frame[node]])
            node = self.parent[node]
        return found[::-1]

    def sums(self, own: Int64Array) -> Int64Array:
        """Returns per node the sum over itself and all nodes below it."""
        total = own.copy()
        parent, depth = np.array(self.parent), np.array(self.depth)
        for level in range(int(depth.max()), 0, -1):
            here = np.flatnonzero(depth == level)
            np.add.at(total, parent[here], total[here])
        return total
