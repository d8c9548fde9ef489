"""Marks that the recorder writes: instants of the phase table whose names carry facts.

Each mark is a dataclass. `encode` returns the name; `parse` reads it back and returns None for the
name of another mark. PREFIX finds a kind of mark in the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

VERDICTS = ("failed", "raised", "idle", "compiled")

_VERDICT = re.compile(rf"validator ({'|'.join(VERDICTS)}): (\S+) at (\S+)(?:: (.*))?")
_EXPECTED = re.compile(r"expected of gradients: (\w+)\((.*)\) at (\S+)")
_BOUND = re.compile(r"(\w+)=([^,]+)")
_RAISED = re.compile(r"backward raised (.*?)(?: \(([^()]+:\d+)\))?")
_LOST_CONTEXT = re.compile(
    r"lost context: (.+) at (.+:\d+) was (.+), set where the (thread|task) was started at (.+:\d+)"
)
_CUDA_BEGUN = re.compile(
    r"cuda: begun on cuda:(-?\d+) at (.+) of (\d+) devices(?:, visible (\S+))?"
    r"(?:, local rank (\d+))?"
)
_CUDA_CHOSEN = re.compile(r"cuda: cuda:(\d+) chosen at (.+)")
_CUDA_BLOCK = re.compile(r"cuda: cuda:(\d+) in place of cuda:(\d+) for a block at (.+)")
_CUDA_FORKED = re.compile(r"cuda: forked in use at (.+)")
_CUDA_REJECTED = re.compile(r"cuda: wanted at (.+) in a child forked at (.+)")


@dataclass(frozen=True)
class ValidatorVerdict:
    """What a user's validator found, or that it was not called (idle)."""

    PREFIX: ClassVar[str] = "validator "

    verdict: str  # one of VERDICTS
    name: str  # of the validator's function
    target: str  # module class or operator
    message: str = ""  # where compiled code hid the target: "<module>", or "<module>: <reason>"

    def encode(self) -> str:
        """Returns the name of the mark."""
        text = f"validator {self.verdict}: {self.name} at {self.target}"
        return f"{text}: {self.message}" if self.message else text

    @classmethod
    def parse(cls, name: str) -> ValidatorVerdict | None:
        """Returns the facts of a name."""
        found = _VERDICT.fullmatch(name)
        return found and cls(found[1], found[2], found[3], found[4] or "")


@dataclass(frozen=True)
class ExpectedGradient:
    """An assertion of the program about gradients."""

    PREFIX: ClassVar[str] = "expected of gradients: "

    function: str  # assert_grad_norm
    bounds: dict[str, float]  # keyword -> number: least, most, after
    target: str  # path of a parameter, or of a module with .*

    def encode(self) -> str:
        """Returns the name of the mark."""
        bounds = ", ".join(f"{name}={value!r}" for name, value in self.bounds.items())
        return f"{self.PREFIX}{self.function}({bounds}) at {self.target}"

    @classmethod
    def parse(cls, name: str) -> ExpectedGradient | None:
        """Returns the facts of a name."""
        found = _EXPECTED.fullmatch(name)
        if found is None:
            return None
        return cls(found[1], {k: float(v) for k, v in _BOUND.findall(found[2])}, found[3])


@dataclass(frozen=True)
class BackwardRaised:
    """An exception that a backward pass raised."""

    PREFIX: ClassVar[str] = "backward raised "

    error: str  # "<type>: <message>"
    caller: str = ""  # "<file>:<line>" of the program that called backward

    def encode(self) -> str:
        """Returns the name of the mark."""
        return f"{self.PREFIX}{self.error}" + (f" ({self.caller})" if self.caller else "")

    @classmethod
    def parse(cls, name: str) -> BackwardRaised | None:
        """Returns the facts of a name."""
        found = _RAISED.fullmatch(name)
        return found and cls(found[1], found[2] or "")


@dataclass(frozen=True)
class LostContext:
    """A read of a context variable that a thread or task did not inherit."""

    PREFIX: ClassVar[str] = "lost context: "

    variable: str
    read_at: str  # "<file>:<line>"
    found: str  # nothing, a fallback, or its default
    started_as: str  # thread or task
    started_at: str  # "<file>:<line>", where the variable was set

    def encode(self) -> str:
        """Returns the name of the mark."""
        return (
            f"{self.PREFIX}{self.variable} at {self.read_at} was {self.found}, set "
            f"where the {self.started_as} was started at {self.started_at}"
        )

    @classmethod
    def parse(cls, name: str) -> LostContext | None:
        """Returns the facts of a name."""
        found = _LOST_CONTEXT.fullmatch(name)
        return found and cls(*found.groups())


CUDA_PREFIX = "cuda: "
"""Prefix of all marks below."""


@dataclass(frozen=True)
class CudaBegun:
    """The first use of CUDA in a process."""

    device: int
    place: str  # "<file>:<line>"
    count: int  # devices
    visible: str = ""  # CUDA_VISIBLE_DEVICES
    local_rank: str = ""  # LOCAL_RANK, digits

    def encode(self) -> str:
        """Returns the name of the mark."""
        text = f"{CUDA_PREFIX}begun on cuda:{self.device} at {self.place} of {self.count} devices"
        text += f", visible {self.visible}" if self.visible else ""
        return text + (f", local rank {self.local_rank}" if self.local_rank else "")

    @classmethod
    def parse(cls, name: str) -> CudaBegun | None:
        """Returns the facts of a name."""
        found = _CUDA_BEGUN.fullmatch(name)
        return found and cls(int(found[1]), found[2], int(found[3]), found[4] or "", found[5] or "")


@dataclass(frozen=True)
class CudaChosen:
    """A thread set its device."""

    device: int
    place: str  # "<file>:<line>"

    def encode(self) -> str:
        """Returns the name of the mark."""
        return f"{CUDA_PREFIX}cuda:{self.device} chosen at {self.place}"

    @classmethod
    def parse(cls, name: str) -> CudaChosen | None:
        """Returns the facts of a name."""
        found = _CUDA_CHOSEN.fullmatch(name)
        return found and cls(int(found[1]), found[2])


@dataclass(frozen=True)
class CudaBlock:
    """A thread set its device for a `with` block."""

    device: int
    before: int
    place: str  # "<file>:<line>"

    def encode(self) -> str:
        """Returns the name of the mark."""
        devices = f"cuda:{self.device} in place of cuda:{self.before}"
        return f"{CUDA_PREFIX}{devices} for a block at {self.place}"

    @classmethod
    def parse(cls, name: str) -> CudaBlock | None:
        """Returns the facts of a name."""
        found = _CUDA_BLOCK.fullmatch(name)
        return found and cls(int(found[1]), int(found[2]), found[3])


@dataclass(frozen=True)
class CudaForked:
    """A process that uses CUDA forked."""

    place: str  # "<file>:<line>"

    def encode(self) -> str:
        """Returns the name of the mark."""
        return f"{CUDA_PREFIX}forked in use at {self.place}"

    @classmethod
    def parse(cls, name: str) -> CudaForked | None:
        """Returns the facts of a name."""
        found = _CUDA_FORKED.fullmatch(name)
        return found and cls(found[1])


@dataclass(frozen=True)
class CudaRejected:
    """A forked child tried to use CUDA, which its parent had used; torch raised."""

    place: str  # "<file>:<line>"
    forked_at: str

    def encode(self) -> str:
        """Returns the name of the mark."""
        return f"{CUDA_PREFIX}wanted at {self.place} in a child forked at {self.forked_at}"

    @classmethod
    def parse(cls, name: str) -> CudaRejected | None:
        """Returns the facts of a name."""
        found = _CUDA_REJECTED.fullmatch(name)
        return found and cls(found[1], found[2])
