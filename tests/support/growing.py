"""Runs that this very process records, record by record, through the real recorder."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from lanescope.collector.compaction import manifest
from lanescope.collector.format.options import Options
from lanescope.collector.journal.journal import NO_SEQUENCE, RecordKind
from lanescope.collector.recorder.recorder import Recorder


def begin(run: Path, **fields: Any) -> Recorder:
    """Begins a run of one rank without hooks; `fields` are those of its process that differ.

    Its process is this one, so that the run is still growing until the recorder is closed.
    """
    manifest.create(run, Options(), ["program"], world_size=1)
    recorder = Recorder(run, Options())
    process = {
        "pid": os.getpid(),
        "parent_pid": 1,
        "rank": 0,
        "world_size": 1,
        "role": "rank",
        "host": socket.gethostname(),
        "engine": "portable",
        "start_ns": 1,
        "end_ns": 0,
        "closed": False,
        "argv": ["program"],
        "python": "3",
        "torch": "2",
        "modules_root": "",
        "clock_identity": "c",
        "wall_minus_monotonic_ns": 0,
    }
    recorder.describe(**process | fields)
    return recorder


def write_ops(recorder: Recorder, first: int, count: int) -> None:
    """Pairs of a child and its parent, a collective and a module now and then."""
    state = recorder.thread()
    stack = recorder.intern("a.py\t1\tf")
    for i in range(first, first + count):
        at = 1_000 + 100 * i
        recorder.put(
            state,
            RecordKind.OP,
            depth=1,
            name=recorder.intern("child"),
            start=at + 10,
            end=at + 30,
            sequence=NO_SEQUENCE,
            stack=stack,
        )
        recorder.put(
            state, RecordKind.OP, name=recorder.intern("parent"), start=at, end=at + 90, sequence=i
        )
        if i % 1_000 == 0:
            group = recorder.intern("dp\t2\t")
            recorder.put(
                state,
                RecordKind.COLLECTIVE,
                name=recorder.intern("all_reduce"),
                start=at,
                end=at + 5,
                sequence=i,
                aux=group,
            )
