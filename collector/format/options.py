"""Settings of a recording with units, and how they reach child processes."""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from .durations import parse_duration, parse_timeout
from .variables import RUN_VARIABLE as RUN_VARIABLE

OPTIONS_VARIABLE = "LANESCOPE_OPTIONS"
SUPERVISOR_VARIABLE = "LANESCOPE_SUPERVISOR"
"""Set by `lanescope record`, which compacts the run in place of the recorded processes."""

LEVELS = ("timing", "access", "numerics")
STACKS = ("auto", "none", "collectives", "all")
ENGINES = ("auto", "native", "portable")
ON_HANG = ("report", "abort", "continue")
DEVICES = ("auto", "on", "off")


MIN_DISK_BYTES = 1_000_000
"""Less has no room for a step."""


@dataclass(frozen=True)
class Options:
    """Settings of a recording. Raises ValueError with one sentence for invalid ones."""

    level: str = "access"
    engine: str = "auto"
    stacks: str = "auto"
    stack_depth: int = 15  # frames
    min_duration_ns: int = 0
    steps: tuple[int, int] | None = None  # first, one past the last
    include: tuple[str, ...] = ()  # patterns of op names, as in fnmatch
    exclude: tuple[str, ...] = ()
    keep_last_bytes: int | None = None  # size limit of a process's journal; None: unlimited
    max_disk_bytes: int | None = None  # of the run; None: SHARE_OF_FREE of the free space
    hang_timeout_ns: int = 60_000_000_000  # without a record; 0: hangs are not detected
    on_hang: str = "report"  # one of ON_HANG
    compile_backend: str | None = None  # of torch.compile, in place of the program's
    device: str = "auto"  # one of DEVICES: record kernels, copies and fills
    streams: bool = False  # record the streams of accesses, and what orders streams
    sample_every: int = 10  # steps between samples of all parameters; 0: never
    activations_every: int = 100  # steps between samples of modules' outputs; 0: never
    source: bool = True  # keep the lines of the program that stacks name
    trace_model: bool = False  # torch.fx graphs of models, traced in a copy of the process

    def __post_init__(self) -> None:
        for name, allowed in (
            ("level", LEVELS),
            ("stacks", STACKS),
            ("engine", ENGINES),
            ("on_hang", ON_HANG),
            ("device", DEVICES),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")
        if self.streams and (self.level == "timing" or not self.native):
            raise ValueError(
                "streams need to know what ops read and write: level access or numerics, with the "
                "native engine"
            )
        if self.stack_depth < 1:
            raise ValueError(f"stack depth is {self.stack_depth}; it must be at least 1 frame")
        if self.hang_timeout_ns < 0:
            raise ValueError(f"hang timeout is {self.hang_timeout_ns} ns; it must not be < 0")
        if self.min_duration_ns < 0:
            raise ValueError(f"minimum duration is {self.min_duration_ns} ns; it must not be < 0")
        if self.max_disk_bytes is not None and self.max_disk_bytes < MIN_DISK_BYTES:
            raise ValueError(
                f"max-disk is {self.max_disk_bytes:,} bytes; it must be at least {MIN_DISK_BYTES:,}"
            )
        for name in ("sample_every", "activations_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)} steps; it must not be < 0")
        if self.steps is not None and not 0 <= self.steps[0] < self.steps[1]:
            raise ValueError(f"steps are {self.steps[0]}:{self.steps[1]}; A:B needs 0 <= A < B")
        if self.keep_last_bytes is not None and self.device == "on":
            raise ValueError(
                "device is 'on' together with keep-last, which does not bound device activity; "
                "leave out one of them"
            )

    @classmethod
    def of(cls, **settings: Any) -> Options:
        """Returns settings given by a command or program: fields, or texts for those of `_TEXTS`.

        None means the default. Raises ValueError, and TypeError for an unknown name.
        """
        values: dict[str, Any] = {}
        for name, value in settings.items():
            if value is None:
                continue
            if name in _TEXTS:
                name, parse = _TEXTS[name]
                value = parse(str(value))
            elif name == "steps":
                value = parse_steps(value) if isinstance(value, str) else tuple(value)
            elif name in ("include", "exclude"):
                value = (value,) if isinstance(value, str) else tuple(value)
            values[name] = value
        known = [one.name for one in fields(cls)]
        for name in values:
            if name not in known:
                raise TypeError(f"no setting {name!r}; expected {', '.join([*known, *_TEXTS])}")
        return cls(**values)

    @property
    def native(self) -> bool:
        """True if the native engine records, where it is available."""
        return self.engine != "portable"

    @property
    def device_activity(self) -> bool:
        """True if kernels, copies and fills of devices are recorded."""
        if self.device == "auto":
            return self.steps is not None and self.keep_last_bytes is None
        return self.device == "on"

    @property
    def op_stacks(self) -> bool:
        """True if every op's Python stack is captured."""
        return self.stacks == "all" or (self.stacks == "auto" and self.level == "numerics")

    @property
    def sampled_stacks(self) -> bool:
        """True if the Python stacks of some ops of each kind are captured."""
        return self.stacks == "auto" and self.level == "access"

    @property
    def collective_stacks(self) -> bool:
        """True if the Python stacks of collectives and thread events are captured."""
        return (
            self.op_stacks
            or self.stacks == "collectives"
            or (self.stacks == "auto" and self.level == "access")
        )

    def to_environment(self) -> str:
        """Returns the value of OPTIONS_VARIABLE."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Options:
        """Returns the settings that a parent process passed on, else the defaults."""
        text = environment.get(OPTIONS_VARIABLE)
        if not text:
            return cls()
        try:
            values = json.loads(text)
            known = {f.name for f in fields(cls)}
            unknown = sorted(set(values) - known)
            if unknown:
                raise ValueError(f"unknown settings {', '.join(unknown)}")
            for name in ("steps", "include", "exclude"):
                if isinstance(values.get(name), list):
                    values[name] = tuple(values[name])
            return cls(**values)
        except (TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{OPTIONS_VARIABLE} cannot be used: {error}") from error


def parse_steps(text: str) -> tuple[int, int]:
    """Converts `10:20` to (10, 20), steps 10 to 19; `:20` starts at 0. Raises ValueError."""
    first, colon, last = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return (int(first or 0), int(last) if last else 2**31 - 1)
    except ValueError:
        raise ValueError(f"{text!r} is not a step window; write A:B, as in 10:20") from None


_SIZES = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def parse_size(text: str) -> int:
    """Converts `512KB`, `64MB`, `2GB`, `64MiB` or plain bytes to bytes. Raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if found is not None and found[2].upper() in _SIZES:
        return round(float(found[1]) * _SIZES[found[2].upper()])
    raise ValueError(
        f"{text!r} is not a size; write a number of bytes or with KB, MB or GB, as in 64MB"
    )


_TEXTS: dict[str, tuple[str, Callable[[str], int]]] = {
    "keep_last": ("keep_last_bytes", parse_size),
    "max_disk": ("max_disk_bytes", parse_size),
    "min_duration": ("min_duration_ns", parse_duration),
    "hang_timeout": ("hang_timeout_ns", parse_timeout),
}
"""Settings that may be given as text -> field, and parser of the text."""


def default_run() -> Path:
    """Returns the folder of a recording without a given one, named by date and time."""
    return Path("runs") / f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
