"""Workers of torch.distributed.rpc that wait for each other: runs made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.plugins.threads.remote_calls import remote_calls
from lanescope.webapp.runs.run import open_run
from tests.support.synthetic import START_NS, Builder

S = 1_000_000_000
API = "/lib/python3.11/site-packages/torch/distributed/rpc/api.py"
HANDLER = ("/lib/python3.11/site-packages/torch/distributed/rpc/internal.py", 209, "_run_function")
MAIN = [(API, 842, "rpc_sync"), ("/home/u/train.py", 32, "main")]
SHUTDOWN = [(API, 382, "shutdown"), ("/home/u/train.py", 40, "main")]
NESTED = [(API, 842, "rpc_sync"), ("/home/u/train.py", 15, "middle"), HANDLER]
REMOTE = [(API, 600, "remote"), ("/home/u/train.py", 18, "top"), HANDLER]
COMPUTES = [("/home/u/train.py", 8, "leaf"), HANDLER]
ELSEWHERE = [("/lib/python3.11/threading.py", 327, "wait"), ("/home/u/train.py", 50, "serve")]

Threads = list[list[tuple[str, int, str]]]


def found(
    path: Path, *ranks: Threads, cpu: float = 0.0, ended: str = "", later: bool = False
) -> list[Finding]:
    """Findings about ranks whose watchdogs saw these threads at rest for 60 s."""
    builder = Builder(path, world_size=len(ranks), exit_status=None)
    for rank, threads in enumerate(ranks):
        life: dict[str, Any] = {"start_ns": START_NS, "end_ns": START_NS + 70 * S}
        builder.process(rank, closed=bool(ended), ended=ended, **life)
        builder.op(START_NS, S, rank=rank, thread=builder.thread(rank))
        if later:
            builder.op(START_NS + 66 * S, S, rank=rank, thread=builder.thread(rank))
        for number, frames in enumerate(threads):
            names = ("file", "line", "function")
            rows = [dict(zip(names, frame, strict=True)) for frame in frames]
            builder.row("stack", rank, None, stack=number, frames=rows)
            builder.row(
                "stall",
                rank,
                None,
                time_ns=START_NS + 65 * S,
                duration_ns=60 * S,
                pid=1000 + rank,
                reason="no_progress",
                stack=number,
                cpu=cpu,
            )
    return remote_calls(open_run(builder.write()))


@pytest.mark.parametrize(
    ("ranks", "blamed", "where"),
    [
        (([MAIN, NESTED], [SHUTDOWN, NESTED]), (0, 1), "train.py:15"),
        (([MAIN], [SHUTDOWN, REMOTE]), (1,), "train.py:18"),
        (([SHUTDOWN, NESTED], [MAIN, NESTED], [MAIN]), (0, 1), "train.py:15"),
    ],
)
def test_a_call_that_waits_for_another_worker_is_named(
    tmp_path: Path, ranks: tuple[Threads, ...], blamed: tuple[int, ...], where: str
) -> None:
    (finding,) = found(tmp_path, *ranks)
    assert (finding.kind, finding.severity, finding.ranks) == ("deadlock", "error", blamed)
    assert finding.where == where
    assert "Raise num_worker_threads" in finding.title


@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        (([MAIN], [SHUTDOWN, COMPUTES]), {}),  # no call waits for another worker
        (([MAIN, NESTED], [SHUTDOWN, ELSEWHERE]), {}),  # which may be woken from outside
        (([MAIN, NESTED], [SHUTDOWN, NESTED]), {"cpu": 0.9}),  # at work
        (([MAIN, NESTED], [SHUTDOWN, NESTED]), {"ended": "exit"}),  # by itself
        (([MAIN, NESTED], [SHUTDOWN, NESTED]), {"later": True}),  # it went on
        (([MAIN, NESTED], []), {}),  # nothing is known of one
    ],
)
def test_what_may_still_come(
    tmp_path: Path, ranks: tuple[Threads, ...], more: dict[str, Any]
) -> None:
    assert found(tmp_path, *ranks, **more) == []
