"""Compares programs on a GPU with and without the recorder; AssertionError says what differs."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lanescope.collector.format.names import CAPTURE, OWN_ACTIVITY
from lanescope.collector.hooks.devices.device import CLOCK_ERROR
from lanescope.webapp.analysis.findings import findings
from lanescope.webapp.plugins.races.race_findings import race_findings
from lanescope.webapp.plugins.threads.overlap import overlap_rate
from lanescope.webapp.plugins.threads.overlap_findings import shared_gradients
from lanescope.webapp.plugins.time.breakdown import CATEGORIES, step_time
from lanescope.webapp.plugins.time.critical_path import critical_path
from lanescope.webapp.plugins.time.job_steps import job_steps
from lanescope.webapp.runs.run import Run, open_run
from tests.gpu.cases import EXPECTED
from tests.gpu.programs import STEPS
from tests.support.processes import run_program
from tests.support.recording import record_script

PROGRAMS = Path(__file__).with_name("programs.py")
CASES = Path(__file__).with_name("cases.py")
_QUIET = ("--sample-every", "0", "--activations-every", "0")
"""The recorder itself then gives no work to the device."""

_WINDOW = f"1:{STEPS}"

_MAX_CLOCK_ERROR_NS = 1_000_000


def plain(name: str, *arguments: str) -> Any:
    """What a program prints without the recorder."""
    done = run_program([sys.executable, PROGRAMS, name, *arguments])
    assert done.returncode == 0, f"{name} ended with {done.returncode} unrecorded: {done.stderr}"
    return json.loads(done.stdout)


def recorded(folder: Path, name: str, *options: str, arguments: tuple[str, ...] = ()) -> Any:
    """What a program prints under the recorder, which leaves its run in `folder`."""
    done = record_script(folder, PROGRAMS, name, *arguments, options=options, real=True)
    assert done.status == 0, f"{name} ended with {done.status} recorded: {done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


def same_results(folder: Path) -> str:
    """Each program gives the same bits with every engine and level."""
    ways = {
        "timing": ("--level", "timing"),
        "access": ("--streams", "--device", "on"),
        "numerics": ("--level", "numerics"),
        "portable": ("--engine", "portable", "--level", "numerics"),
    }
    compared = 0
    for name in ("training", "streams", "graphs", "nccl"):
        expected = plain(name)
        for way, options in ways.items():
            if way != "access" and name != "training":
                continue
            found = recorded(folder / f"{name}-{way}", name, *options)
            assert found == expected, f"{name} gives other results at {way}: {found} for {expected}"
            compared += 1
    return f"{compared} recordings, same bits"


def kernels_are_recorded(folder: Path) -> str:
    """The kernels are those that torch.profiler counts, each with its launch."""
    expected = Counter(plain("kernels"))
    options = ("--level", "timing", "--steps", _WINDOW, "--device", "on", *_QUIET)
    recorded(folder, "training", *options)
    run = open_run(folder)
    kernels = _kernels(run)
    kernels = kernels[~kernels["name"].astype(str).str.startswith(OWN_ACTIVITY)]
    # What was launched before the window may run on in its first step.
    launched = kernels[kernels["launch_ns"].notna()]
    found = Counter(launched["name"])
    assert found == expected, f"not recorded {expected - found}, more recorded {found - expected}"
    unknown = sorted(set(kernels["step"][kernels["launch_ns"].isna()]))
    assert unknown in ([], [1]), f"kernels without a launch in steps {unknown}"
    early = int((launched["start_ns"] < launched["launch_ns"]).sum())
    assert early == 0, f"{early} of {len(launched)} kernels begin before their launch"
    assert set(kernels["step"]) == set(range(1, STEPS)), f"steps {sorted(set(kernels['step']))}"
    values = run.events("value", columns=["name", "value"]).to_pylist()
    errors = [row["value"] for row in values if row["name"] == CLOCK_ERROR]
    assert errors, "no error of the device's clock is stated"
    assert max(errors) < _MAX_CLOCK_ERROR_NS, f"the clock may be off by {max(errors)} ns"
    return f"{len(kernels)} kernels and copies as torch.profiler, clock within {max(errors):.0f} ns"


def step_times_add_up(folder: Path) -> str:
    """The categories add up to the steps, and the critical path is as long as its step."""
    recorded(folder, "training", "--device", "on", "--steps", _WINDOW)
    run = open_run(folder)
    times = step_time(run)
    total = sum(times[f"{name}_ns"] for name in CATEGORIES)
    assert (total == times["duration_ns"]).all(), "the categories do not add up to the steps"
    steps = job_steps(run)
    assert len(steps) == STEPS - 1, f"{len(steps)} steps"
    for step in steps:
        length = int(critical_path(run, step.step)["duration_ns"].sum())
        assert length == step.end_ns - step.start_ns, f"the path of step {step.step} is {length} ns"
    return f"{len(steps)} steps, exact"


def streams_are_ordered(folder: Path) -> str:
    """The events that order two streams are recorded, and nothing races."""
    recorded(folder, "streams", "--streams", "--device", "on")
    run = open_run(folder)
    kinds = Counter(run.events("sync", columns=["kind"])["kind"].to_pylist())
    for kind in ("device_event_record", "device_event_wait"):
        assert kinds[kind] >= 2 * STEPS, f"{kinds[kind]} of {kind}, expected {2 * STEPS} or more"
    lanes = {one.name for one in run.threads if one.kind == "stream"}
    assert len(lanes) >= 2, f"kernels on {sorted(lanes)}, expected two streams"
    return f"{kinds.total()} events, {len(lanes)} streams"


def graphs_are_recorded(folder: Path) -> str:
    """The kernels of a CUDA graph have the launch of the graph, and its capture races nothing."""
    recorded(folder / "timing", "graphs", "--level", "timing", "--device", "on", "--steps", _WINDOW)
    kernels = _kernels(open_run(folder / "timing"))
    by_launch = kernels.groupby(["step", "launch_ns"]).size()
    largest = by_launch.groupby("step").max()
    assert set(largest.index) == set(range(1, STEPS)), f"kernels in steps {sorted(largest.index)}"
    # The graph holds a product of matrices and an activation for each of the four layers.
    assert largest.min() == largest.max() >= 8, f"kernels of one launch: {largest.to_dict()}"
    recorded(folder / "streams", "graphs", "--streams")
    run = open_run(folder / "streams")
    captures = [
        row for row in run.events("phase", columns=["name"]).to_pylist() if row["name"] == CAPTURE
    ]
    assert len(captures) == 1, f"{len(captures)} captures, expected 1"
    races = [finding.title for finding in race_findings(run)]
    assert not races, races[0]
    return f"{int(largest.max())} kernels in each replay"


def device_without_steps(folder: Path) -> str:
    """Kernels of a program that never ends a step are recorded from its first use of a device."""
    recorded(folder, "inference", "--device", "on", *_QUIET)
    names = _kernels(open_run(folder))["name"]
    assert len(names) >= 8 * STEPS, f"{len(names)} kernels, expected {8 * STEPS} or more"
    return f"{len(names)} kernels and copies"


def threads_share_gradients(folder: Path) -> str:
    """Two threads' passes over one model share gradients, those over two do not."""
    said = []
    for models in ("1", "2"):
        recorded(folder / models, "threads", arguments=(models,))
        run = open_run(folder / models)
        rate, shared = overlap_rate(run), shared_gradients(run)
        assert rate, f"no passes over {models} overlap"
        assert bool(shared) == (models == "1"), f"{shared} shared gradients of {models} models"
        said.append(f"{shared} of {models}")
    return f"shared gradients: {', '.join(said)}"


def faults_are_found(folder: Path) -> str:
    """Of faulty programs what is wrong is found, and nothing in their clean twins."""

    def kinds(name: str) -> set[str]:
        done = record_script(folder / name, CASES, name, options=("--streams",), real=True)
        assert done.status == 0, f"{name} ended with {done.status} recorded: {done.stderr}"
        found = findings(open_run(folder / name))
        return {one.kind for one in found if one.severity != "info"}

    with ThreadPoolExecutor(5) as pool:
        found = dict(
            zip(EXPECTED, pool.map(kinds, [one.__name__ for one in EXPECTED]), strict=True)
        )
    wrong = {one.__name__: kinds for one, kinds in found.items() if kinds != EXPECTED[one]}
    assert not wrong, f"found {wrong}"
    return f"{len(EXPECTED)} programs"


def collectives_of_nccl(folder: Path) -> str:
    """Calls of NCCL are recorded. None has a completion: that would take a wait for the device."""
    recorded(folder, "nccl", "--device", "on")
    rows = open_run(folder).events("collective").to_pandas()
    found = Counter(rows["name"])
    for name in ("all_reduce", "all_gather"):
        assert found[name] >= STEPS, f"{found[name]} of {name}, expected {STEPS} or more"
        calls = rows[rows["name"] == name]
        assert calls["duration_ns"].notna().all(), f"a call of {name} has no end"
        assert calls["complete_ns"].isna().all(), f"{name} claims completions"
        assert (calls["bytes"] > 0).all(), f"a call of {name} has no bytes"
    return ", ".join(f"{count} {name}" for name, count in sorted(found.items()))


def fingerprints_agree(folder: Path) -> str:
    """The same elements have the same hash on the host and on the device."""
    recorded(folder, "fingerprints", "--level", "numerics", "--engine", "portable")
    rows = open_run(folder).events("tensor", columns=["position", "dtype", "device", "hash"])
    hashes: dict[str, dict[str, set[int]]] = {}
    for row in rows.to_pylist():
        if row["position"] == "out0":
            kind = row["device"].partition(":")[0]
            hashes.setdefault(row["dtype"], {}).setdefault(kind, set()).add(row["hash"])
    agreed = [dtype for dtype, on in hashes.items() if on.get("cuda", set()) & on.get("cpu", set())]
    for dtype in ("float32", "float16", "bfloat16", "int64", "uint8"):
        assert dtype in agreed, f"hashes of {dtype}: {hashes.get(dtype)}"
    return ", ".join(sorted(agreed))


def _kernels(run: Run) -> Any:
    columns = ["start_ns", "name", "scope", "step", "launch_ns"]
    rows = run.events("op", columns=columns).to_pandas()
    return rows[rows["scope"] == "kernel"]


CHECKS: tuple[Callable[[Path], str], ...] = (
    same_results,
    kernels_are_recorded,
    step_times_add_up,
    streams_are_ordered,
    graphs_are_recorded,
    device_without_steps,
    threads_share_gradients,
    faults_are_found,
    collectives_of_nccl,
    fingerprints_agree,
)
