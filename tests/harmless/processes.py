"""Runs a unit plain or recorded, and reads what came of its tests."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from lanescope.collector.format.options import Options
from lanescope.collector.journal.journal import PROCESS_FILE
from lanescope.collector.session.launch import environment_for

from .units import Unit, testsuite

RUNNER = Path(__file__).with_name("runner.py")
PLAIN = "plain"
ENGINES = ("native", "portable")
SILENT_S = 300.0
"""A process in which no test begins or ends for this long is ended, seconds."""
MAX_BYTES = 4 * 1024**3
"""A process that grows beyond this is ended: a test that hangs may eat memory."""
MAX_CRASHES = 20
END = "<end of the process>"


@dataclass
class Result:
    """What came of a unit in one way of running it: plain, or recorded by an engine."""

    outcomes: dict[str, str] = field(default_factory=dict)  # test -> ok, skip, fail ValueError, ...
    cpu_s: float = 0.0  # processor time of the process and its children
    wall_s: float = 0.0
    processes: int = 0  # that were recorded
    recorder_errors: int = 0  # contained by the recorder
    said: list[str] = field(default_factory=list)  # lines of the recorder on stderr

    def save(self, path: Path) -> None:
        """Write it down for a later comparison."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> Result:
        """What `save` wrote."""
        return cls(**json.loads(path.read_text()))


def run(unit: Unit, way: str, log: Path, only: Iterable[str] = ()) -> Result:
    """Run a unit, or `only` some of its tests; its output goes to `log`.

    After a crash it goes on with the tests behind the one that crashed.
    """
    result = Result()
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="harmless-", ignore_cleanup_errors=True) as folder:
        for attempt in range(MAX_CRASHES):
            place = Path(folder) / str(attempt)
            place.mkdir()
            if _run_once(unit, way, log, sorted(set(only)), place, result):
                break
    return result


def _run_once(
    unit: Unit, way: str, log: Path, only: list[str], place: Path, result: Result
) -> bool:
    """Whether the process ended by itself after its last test."""
    report, request, work = place / "report", place / "request", place / "work"
    work.mkdir()
    report.touch()
    (place / "pytest.ini").write_text("[pytest]\n")
    names = list(unit.names)
    if unit.kind == "pytest":
        names += ["-c", str(place / "pytest.ini"), "--rootdir", str(unit.folder or work)]
    request.write_text(
        json.dumps(
            {
                "kind": unit.kind,
                "names": names,
                "only": only,
                "pattern": unit.pattern,
                "done": sorted(result.outcomes),
                "report": str(report),
            }
        )
    )
    with log.open("ab") as output:
        begin = output.tell()
        ending = _process(
            request, unit.folder or work, report, _environment(unit, way, place), output, result
        )
    with log.open("rb") as output:
        output.seek(begin)
        lines = output.read().decode(errors="replace").splitlines()
    result.said += [line for line in lines if line.startswith("lanescope: ")]
    if way != PLAIN:
        _read_run(place / "run", way, result)
        shutil.rmtree(place / "run", ignore_errors=True)
    return _read_report(report, ending, result)


def _environment(unit: Unit, way: str, place: Path) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LANESCOPE_")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "TMPDIR": str(place / "work")}
    environment |= {name: value.format(work=place / "work") for name, value in unit.environment}
    extra = testsuite()
    if extra is not None:
        environment["HARMLESS_TESTSUITE"] = str(extra)
    if way != PLAIN:
        # As `lanescope record` does, without turning the journals into Parquet.
        recording = environment_for(place / "run", Options(engine=way))
        environment |= {k: v for k, v in recording.items() if os.environ.get(k) != v}
    path = [environment.get("PYTHONPATH", ""), *map(str, unit.path)]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    if not environment["PYTHONPATH"]:
        del environment["PYTHONPATH"]
    return environment


def _process(
    request: Path,
    work: Path,
    report: Path,
    environment: dict[str, str],
    output: BinaryIO,
    result: Result,
) -> str:
    """How the process ended, in words."""
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, str(RUNNER), str(request)],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    grown, size, ended = start, 0, ""
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        now = time.monotonic()
        if report.stat().st_size != size:
            grown, size = now, report.stat().st_size
        if not ended:
            if now - grown > SILENT_S:
                ended = f"no end within {SILENT_S:.0f} s"
            elif _resident(process.pid) > MAX_BYTES:
                ended = f"more than {MAX_BYTES >> 30} GiB"
            if ended:
                _end_group(process.pid)
        time.sleep(0.05)
    process.returncode = os.waitstatus_to_exitcode(status)
    _end_group(process.pid)
    result.cpu_s += usage.ru_utime + usage.ru_stime
    result.wall_s += time.monotonic() - start
    return ended or _words(process.returncode)


def _words(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _resident(pid: int) -> int:
    """Bytes of a process in memory; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _end_group(pid: int) -> None:
    """End a process, and what it left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _read_report(report: Path, ending: str, result: Result) -> bool:
    begun = None
    for line in report.read_text().splitlines():
        test, outcome = json.loads(line)
        if outcome is None:
            begun = test
            continue
        begun = None
        before = result.outcomes.get(test)
        result.outcomes[test] = outcome if before in (None, outcome) else f"{before}; {outcome}"
    if begun is None:
        result.outcomes[END] = ending
        return True
    result.outcomes[begun] = ending
    return False


def _read_run(run: Path, engine: str, result: Result) -> None:
    """Count recorded processes, and make sure that it was `engine` that recorded them."""
    engines: Counter[str] = Counter()
    for path in run.glob(f"**/{PROCESS_FILE}"):
        process = json.loads(path.read_text())
        engines[process["engine"]] += 1
        result.recorder_errors += process.get("coverage", {}).get("recorder_errors", 0)
    if set(engines) != {engine}:
        raise RuntimeError(f"recorded by {dict(engines)}, not by {engine} alone")
    result.processes += engines.total()
