"""Marks that the recorder writes: instants of the phase table whose names carry facts.

Each mark is a dataclass. `encode` returns the name; `parse` reads it back and returns None for the
name of another mark. PREFIX finds a kind of mark in the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar

M = TypeVar("M", bound="Mark")

CUDA_PREFIX = "cuda: "
"""Prefix of all marks of CUDA."""


@dataclass(frozen=True)
class Mark:
    """A mark whose name is PREFIX and TEMPLATE with the fields; PATTERN reads it back."""

    PREFIX: ClassVar[str]
    TEMPLATE: ClassVar[str]
    PATTERN: ClassVar[str]

    def encode(self) -> str:
        """Returns the name of the mark."""
        return self.PREFIX + self.TEMPLATE.format_map(vars(self))

    @classmethod
    def parse(cls: type[M], name: str) -> M | None:
        """Returns the facts of a name."""
        found = re.fullmatch(re.escape(cls.PREFIX) + cls.PATTERN, name)
        if found is None:
            return None
        numbers = {one.name for one in fields(cls) if one.type == "int"}
        texts = found.groupdict(default="")
        return cls(**{k: int(text) if k in numbers else text for k, text in texts.items()})


@dataclass(frozen=True)
class ValidatorVerdict(Mark):
    """What a user's validator found, that it was called first, or never (idle)."""

    PREFIX = "validator "
    PATTERN = (
        r"(?P<verdict>called|failed|raised|idle|compiled): (?P<name>\S+) at (?P<target>\S+)"
        r"(?:: (?P<message>.*))?"
    )

    verdict: str  # called, failed, raised, idle or compiled
    name: str  # of the validator's function
    target: str  # module class or operator
    message: str = ""  # where compiled code hid the target: "<module>", or "<module>: <reason>"

    def encode(self) -> str:
        """Returns the name of the mark."""
        text = f"{self.PREFIX}{self.verdict}: {self.name} at {self.target}"
        return f"{text}: {self.message}" if self.message else text


@dataclass(frozen=True)
class ExpectedGradient(Mark):
    """An assertion of the program about gradients."""

    PREFIX = "expected of gradients: "

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
        found = re.fullmatch(re.escape(cls.PREFIX) + r"(\w+)\((.*)\) at (\S+)", name)
        if found is None:
            return None
        bounds = re.findall(r"(\w+)=([^,]+)", found[2])
        return cls(found[1], {key: float(value) for key, value in bounds}, found[3])


@dataclass(frozen=True)
class BackwardRaised(Mark):
    """An exception that a backward pass raised."""

    PREFIX = "backward raised "
    PATTERN = r"(?P<error>.*?)(?: \((?P<caller>[^()]+:\d+)\))?"

    error: str  # "<type>: <message>"
    caller: str = ""  # "<file>:<line>" of the program that called backward

    def encode(self) -> str:
        """Returns the name of the mark."""
        return f"{self.PREFIX}{self.error}" + (f" ({self.caller})" if self.caller else "")


@dataclass(frozen=True)
class OutsideGroup(Mark):
    """A collective call of a group on a rank that is not in it."""

    PREFIX = "outside of the group: "
    TEMPLATE = "{function} at {place}"
    PATTERN = r"(?P<function>\w+) at (?P<place>.*)"

    function: str  # all_reduce
    place: str  # "<file>:<line>" of the program that called it, or empty


@dataclass(frozen=True)
class NewGroup(Mark):
    """A process group that new_group() returned, on members and others; or the default group.

    Not one with use_local_synchronization=True: others than its members make none.
    """

    PREFIX = "new group: "
    TEMPLATE = "{ranks} at {place}"
    PATTERN = r"(?P<ranks>.+?) at (?P<place>.*)"

    ranks: str  # 0, 1; of many ranks their number and a checksum; all: the default group
    place: str  # "<file>:<line>" of the program that called it, or empty


@dataclass(frozen=True)
class LostContext(Mark):
    """A read of a context variable that a thread or task did not inherit."""

    PREFIX = "lost context: "
    TEMPLATE = (
        "{variable} at {read_at} was {found}, set where the {started_as} was started at "
        "{started_at}"
    )
    PATTERN = (
        r"(?P<variable>.+) at (?P<read_at>.+:\d+) was (?P<found>.+), set where the "
        r"(?P<started_as>thread|task) was started at (?P<started_at>.+:\d+)"
    )

    variable: str
    read_at: str  # "<file>:<line>"
    found: str  # nothing, a fallback, or its default
    started_as: str  # thread or task
    started_at: str  # "<file>:<line>", where the variable was set


@dataclass(frozen=True)
class LostError(Mark):
    """An exception that ended a thread or a process of multiprocessing, or of a task of a pool or a
    loop whose result is not read."""

    PREFIX = "lost error: "
    TEMPLATE = "{of} raised {error}"
    PATTERN = r"(?P<of>thread|process|task|coroutine) raised (?P<error>.*)"

    of: str  # thread, process, task (of a pool) or coroutine (a task of asyncio)
    error: str  # ValueError: bad batch (/path/train.py:12)


@dataclass(frozen=True)
class RemoteError(Mark):
    """An exception of a function that another worker called by torch.distributed.rpc: where it was
    raised, or that a caller got it; or a line from which a function was called without waiting."""

    PREFIX = "remote error: "
    TEMPLATE = "{what} {key} {text}"
    PATTERN = r"(?P<what>raised|read|called) (?P<key>\S+) (?P<text>.*)"

    what: str  # raised, read or called
    key: str  # a checksum of the worker and the class of the error; called: the function
    text: str  # raised: ValueError: bad batch (/path/train.py:12); called: "<file>:<line>"


@dataclass(frozen=True)
class GoneTensor(Mark):
    """An exception that ended a thread as it took a tensor out of a queue of multiprocessing."""

    PREFIX = "gone tensor: "
    TEMPLATE = "{error}"
    PATTERN = r"(?P<error>.*)"

    error: str  # ConnectionRefusedError: [Errno 111] Connection refused (/path/train.py:12)


@dataclass(frozen=True)
class InterruptedJoin(Mark):
    """A wait for the end of a process that Ctrl-C ended, in a process that ran no operator."""

    PREFIX = "interrupted join: "
    TEMPLATE = "{pid} at {place}"
    PATTERN = r"(?P<pid>\d+) at (?P<place>.*)"

    pid: int
    place: str  # "<file>:<line>"


@dataclass(frozen=True)
class LostMode(Mark):
    """A mode of torch that held where a thread or task was started, and not in it: at its end."""

    PREFIX = "lost mode: "
    TEMPLATE = (
        "{mode} for {lasted_ns} ns, in force where the {started_as} was started at {started_at}"
    )
    PATTERN = (
        r"(?P<mode>.+) for (?P<lasted_ns>\d+) ns, in force where the "
        r"(?P<started_as>thread|task) was started at (?P<started_at>.+:\d+)"
    )

    mode: str  # no_grad, "autocast cpu bfloat16", "device meta"
    lasted_ns: int  # duration of the thread or task
    started_as: str  # thread or task
    started_at: str  # "<file>:<line>"


@dataclass(frozen=True)
class CudaBegun(Mark):
    """The first use of CUDA in a process."""

    PREFIX = f"{CUDA_PREFIX}begun on "
    PATTERN = (
        r"cuda:(?P<device>-?\d+) at (?P<place>.+) of (?P<count>\d+) devices"
        r"(?:, visible (?P<visible>\S+))?(?:, local rank (?P<local_rank>\d+))?"
    )

    device: int
    place: str  # "<file>:<line>"
    count: int  # devices
    visible: str = ""  # CUDA_VISIBLE_DEVICES
    local_rank: str = ""  # LOCAL_RANK, digits

    def encode(self) -> str:
        """Returns the name of the mark."""
        text = f"{self.PREFIX}cuda:{self.device} at {self.place} of {self.count} devices"
        text += f", visible {self.visible}" if self.visible else ""
        return text + (f", local rank {self.local_rank}" if self.local_rank else "")


@dataclass(frozen=True)
class CudaChosen(Mark):
    """A thread set its device."""

    PREFIX = CUDA_PREFIX
    TEMPLATE = "cuda:{device} chosen at {place}"
    PATTERN = r"cuda:(?P<device>\d+) chosen at (?P<place>.+)"

    device: int
    place: str  # "<file>:<line>"


@dataclass(frozen=True)
class CudaBlock(Mark):
    """A thread set its device for a `with` block."""

    PREFIX = CUDA_PREFIX
    TEMPLATE = "cuda:{device} in place of cuda:{before} for a block at {place}"
    PATTERN = r"cuda:(?P<device>\d+) in place of cuda:(?P<before>\d+) for a block at (?P<place>.+)"

    device: int
    before: int
    place: str  # "<file>:<line>"


@dataclass(frozen=True)
class CudaForked(Mark):
    """A process that uses CUDA forked."""

    PREFIX = f"{CUDA_PREFIX}forked in use at "
    TEMPLATE = "{place}"
    PATTERN = r"(?P<place>.+)"

    place: str  # "<file>:<line>"


@dataclass(frozen=True)
class CudaRejected(Mark):
    """A forked child tried to use CUDA, which its parent had used; torch raised."""

    PREFIX = f"{CUDA_PREFIX}wanted at "
    TEMPLATE = "{place} in a child forked at {forked_at}"
    PATTERN = r"(?P<place>.+) in a child forked at (?P<forked_at>.+)"

    place: str  # "<file>:<line>"
    forked_at: str
