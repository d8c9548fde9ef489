"""Ranks on hosts made of namespaces, whose clocks are off and drift: how true is the one axis?"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp import Run, open_run
from tests.support import ROOT
from tests.support.processes import compiled
from tests.support.recording import BIN, run_program, write_program

MAX_RESIDUAL_NS = 120_000
"""Half of what the clocks drift apart; on an idle machine it is a tenth."""
AHEAD_S = 70_000
GAIN_PPM = 80

RANK = """
    import time, torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    for step in range(8):
        dist.all_reduce(torch.ones(4))
        time.sleep(0.4)  # together the clocks drift apart by 0.25 ms
    dist.barrier()
    dist.destroy_process_group()
"""

NEAR = """
    set -e
    hostname near
    ip link set lo up
    unshare --net --uts --time --monotonic $AHEAD_S --fork bash $FAR &
    far=/proc/$!/ns/net
    until [ "$(readlink $far)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
    ip link add eth0 type veth peer name eth0 netns $far
    ip address add 10.77.0.1/24 dev eth0
    ip link set eth0 up
    RANK=0 $PYTHON $PROGRAM
    wait
"""
"""Rank 0 on a host of its own, which makes the other one."""

FAR = """
    set -e
    hostname far
    until ip link show eth0 > /dev/null 2>&1; do sleep 0.01; done
    ip link set lo up
    ip address add 10.77.0.2/24 dev eth0
    ip link set eth0 up
    export LD_PRELOAD=$SHIM
    RANK=1 $PYTHON $PROGRAM &
    RANK=2 $PYTHON $PROGRAM &
    wait
"""

IN_NAMESPACES = ["unshare", "--user", "--map-root-user", "--net", "--uts", "--fork"]


def why_no_namespaces() -> str:
    """What keeps this user from making hosts of namespaces; empty: nothing."""
    made = "ip link add a0 type veth peer name b0 && unshare --time --monotonic 1 true"
    try:
        done = run_program([*IN_NAMESPACES, "sh", "-c", made])
    except OSError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


def drifting_clock(folder: Path) -> Path:
    """Builds a library; preloaded, it makes a process's monotonic clock gain on the system's."""
    source = ROOT / "tests" / "fixtures" / "drifting_clock.c"
    flags = ("-x", "c", "-O1", "-shared", "-fPIC", "-ldl")
    return compiled(source, folder / "drifting_clock.so", *flags)


@pytest.mark.slow
@pytest.mark.torchrun
@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("writer", ["auto", pytest.param("portable", marks=pytest.mark.soak)])
def test_hosts_whose_clocks_are_off_and_drift(tmp_path: Path, writer: str) -> None:
    """Rank 0 alone, ranks 1 and 2 on another host, 70,000 s ahead and gaining 80 us a second.

    Hosts are network, name and time namespaces that a pair of virtual cards joins.
    """
    if reason := why_no_namespaces():
        pytest.skip(f"hosts cannot be made of namespaces: {reason}")
    program = write_program(tmp_path, RANK)
    near, far = (
        write_program(tmp_path, source, name)
        for source, name in ((NEAR, "near.sh"), (FAR, "far.sh"))
    )
    ahead = AHEAD_S * 1_000_000_000
    anchor = time.monotonic_ns() + ahead
    environment = {
        "MASTER_ADDR": "10.77.0.1",
        "MASTER_PORT": "29400",
        "WORLD_SIZE": "3",
        "GLOO_SOCKET_IFNAME": "eth0",
        "PROGRAM": str(program),
        "PYTHON": sys.executable,
        "AHEAD_S": str(AHEAD_S),
        "FAR": str(far),
        "SHIM": str(drifting_clock(tmp_path)),
        "DRIFT_ANCHOR_NS": str(anchor),
        "DRIFT_PPM": str(GAIN_PPM),
    }
    path = tmp_path / "run"
    done = run_program(
        [
            str(BIN / "lanescope"),
            "record",
            "--engine",
            writer,
            "-o",
            str(path),
            "--",
            *IN_NAMESPACES,
            "bash",
            str(near),
        ],
        environment=environment,
    )
    assert done.returncode == 0, done.stderr
    assert "recorder error" not in done.stderr
    run = open_run(path)
    listed = {p["rank"]: p for p in run.manifest["processes"]}
    assert {rank: one["host"] for rank, one in listed.items()} == {0: "near", 1: "far", 2: "far"}
    assert listed[0]["clock"]["uncertainty_ns"] == 0
    assert listed[1]["clock"]["host"] == listed[2]["clock"]["host"] != listed[0]["clock"]["host"]
    for rank in (1, 2):
        _is_placed(listed[rank], anchor, ahead)
    assert run.clock_calibrated
    assert run.duration_ns < 600e9
    _no_rank_leaves_before_the_last_entered(run)

    info = run_program([str(BIN / "lanescope"), "info", str(path), "--json"])
    reported = json.loads(info.stdout)["clock"]
    assert reported == {"calibrated": True, "uncertainty_ns": run.clock_uncertainty_ns}


def _is_placed(process: dict[str, Any], anchor: int, ahead: int) -> None:
    """Compares the stated error of a process' clock with the true one; times in ns."""
    known = process["clock"]
    assert known["calibrated"]
    assert 0 < known["uncertainty_ns"] < 2_000_000
    for local in (process["start_ns"], process["end_ns"]):
        true = anchor + round((local - anchor) / (1 + GAIN_PPM * 1e-6)) - ahead
        drifted = round((local - process["start_ns"]) * known["drift_ppb"] * 1e-9)
        residual = abs(local + known["offset_ns"] + drifted - true)
        assert residual <= min(known["uncertainty_ns"], MAX_RESIDUAL_NS)


def _no_rank_leaves_before_the_last_entered(run: Run) -> None:
    rows = run.events("collective").to_pylist()
    for sequence in range(8):
        calls = [r for r in rows if (r["name"], r["sequence"]) == ("all_reduce", sequence)]
        assert len(calls) == 3
        first_end = min(c["complete_ns"] for c in calls)
        assert first_end + run.clock_uncertainty_ns > max(c["start_ns"] for c in calls)
