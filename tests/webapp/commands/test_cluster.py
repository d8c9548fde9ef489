"""Commands with `--cluster`: a real scheduler and two worker processes answer as one does alone."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lanescope.collector.recorder import workers
from lanescope.webapp.analysis import cluster as cluster_module
from lanescope.webapp.cli import main
from tests.support import ROOT
from tests.support.dask_cluster import SCHEDULER, WORKER
from tests.support.processes import first_line, run_program, started
from tests.support.recording import BIN
from tests.support.synthetic import write_run
from tests.support.trace_files import slice_, write_trace

MORTAL = f"""
import os, signal
from lanescope.webapp.analysis import cluster

def dies_half_way(run, rank, answers=cluster._answers):
    answers(run, rank)
    os.kill(os.getpid(), signal.SIGKILL)

cluster._answers = dies_half_way
{WORKER}
"""


RANKS = 4


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    with started(sys.executable, "-c", SCHEDULER) as process:
        yield first_line(process)


@pytest.fixture(scope="module")
def cluster(scheduler: str) -> Iterator[str]:
    """Address of a scheduler with two workers."""
    worker = (sys.executable, "-c", WORKER, scheduler)
    with started(*worker) as one, started(*worker) as two:
        assert first_line(one) != first_line(two)
        yield scheduler


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return (
        write_run(folder / "base", ranks=RANKS, steps=4, ops=20),
        write_run(folder / "run", ranks=RANKS, steps=4, ops=20, gradient_scale=2e9),
    )


def called(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(scope="module")
def checked_alone(runs: tuple[Path, Path]) -> Result:
    return called("check", runs[1], "--json")


@pytest.mark.slow
def test_workers_answer_as_this_process_does(cluster: str, runs: tuple[Path, Path]) -> None:
    base, run = runs
    for words in (("check", run), ("info", run), ("diff", base, run)):
        alone = called(*words, "--json")
        shared = called(*words, "--json", "--cluster", cluster)
        assert json.loads(alone.stdout)
        assert (shared.stdout, shared.exit_code) == (alone.stdout, alone.exit_code), words


@pytest.mark.slow
def test_a_worker_that_is_killed_half_way_changes_nothing(
    runs: tuple[Path, Path], checked_alone: Result
) -> None:
    with started(sys.executable, "-c", SCHEDULER) as process:
        address = first_line(process)
        worker = (sys.executable, "-c", WORKER, address)
        dying = (sys.executable, "-c", MORTAL, address)
        with started(*worker) as other, started(*dying) as mortal:
            assert first_line(other) != first_line(mortal)
            shared = called("check", runs[1], "--json", "--cluster", address)
            assert mortal.wait() == -signal.SIGKILL
    assert (shared.stdout, shared.exit_code) == (checked_alone.stdout, checked_alone.exit_code)


def test_large_runs_are_shared_by_processes_of_this_machine(
    runs: tuple[Path, Path], checked_alone: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "LARGE_ROWS", 1)
    shared = called("check", runs[1], "--json")
    assert (shared.stdout, shared.exit_code) == (checked_alone.stdout, checked_alone.exit_code)


@pytest.mark.slow
def test_traces_are_imported_by_workers(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the workers have another folder
    traces = []
    for rank in range(3):
        events = [slice_(f"aten::op{k}", 10 * k, 5, args={"n": k}) for k in range(1, 50 + rank)]
        traces.append(write_trace(Path(f"rank{rank}.json"), events).name)
    assert called("import", *traces, "-o", "alone").exit_code == 0
    assert called("import", *traces, "-o", "shared", "--cluster", cluster).exit_code == 0
    whole = [path.relative_to("alone") for path in Path("alone").rglob("*.parquet")]
    assert len(whole) >= 6
    for path in whole:
        assert ("alone" / path).read_bytes() == ("shared" / path).read_bytes()
    Path("broken.json").write_text("[1, 2")
    refused = [
        called("import", "broken.json", traces[0], "-o", "x", *more)
        for more in ((), ("--cluster", cluster))
    ]
    assert [one.exit_code for one in refused] == [2, 2]
    assert refused[0].stderr == refused[1].stderr


@pytest.mark.slow
def test_the_page_has_its_checks_answered(cluster: str, runs: tuple[Path, Path]) -> None:
    from distributed import Client  # which takes long, and all workers collect this file

    command = (BIN / "lanescope", "view", runs[1], "--no-browser", "--port", "0")
    with Client(cluster, set_as_default=False) as client:

        def transitions() -> int:
            return int(
                client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.transition_counter)
            )

        before = transitions()
        with started(*command, "--cluster", cluster) as viewer:
            assert first_line(viewer).startswith("http://127.0.0.1:")
            while transitions() < before + RANKS:  # one task a rank
                assert viewer.poll() is None


def test_what_keeps_a_cluster_from_work_is_one_sentence(
    scheduler: str, runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in ("tcp://127.0.0.1:1", "nonsense", "tcp://127.0.0.1:x"):
        done = called("info", runs[0], "--cluster", address)
        assert done.exit_code == 2
        assert done.stderr.startswith(f"lanescope: no Dask scheduler answers at {address}; give")
        assert done.stderr.count("\n") == 1
    monkeypatch.setattr(workers, "CONNECT_S", 0.2)
    with started(sys.executable, "-c", SCHEDULER) as empty:
        address = first_line(empty)
        done = called("check", runs[0], "--cluster", address)
    assert done.exit_code == 2
    assert done.stderr == (
        f"lanescope: the scheduler at {address} has no workers; "
        f"start some with: dask worker {address}\n"
    )


@pytest.mark.slow
def test_a_worker_that_sees_other_files_is_said_so(
    cluster: str, runs: tuple[Path, Path], tmp_path: Path
) -> None:
    done = run_program(
        [sys.executable, "-c", MOVED, runs[0], cluster, tmp_path / "elsewhere"], folder=ROOT
    )
    assert done.stdout == "2\n"
    assert done.stderr.startswith("lanescope: ")
    assert "Traceback" not in done.stderr


MOVED = """
import sys
from pathlib import Path
from click.testing import CliRunner
from lanescope.webapp.cli import main
from lanescope.webapp.runs.files import Folder
Folder.place = property(lambda self: sys.argv[3])  # what the workers are sent
done = CliRunner().invoke(main, ["check", sys.argv[1], "--cluster", sys.argv[2]])
print(done.exit_code)
print(done.stderr, end="", file=sys.stderr)
"""


def test_a_local_process_that_is_killed_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_processors", lambda: 2)
    with (
        pytest.raises(workers.ClusterError, match="one of 2 processes that did the work was ended"),
        workers.connected(None, local=True) as pool,
    ):
        pool.submit(signal.raise_signal, signal.SIGKILL).result()
