"""Short threads share files: fewer files, the same rows, whenever the compactor dies."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lanescope.collector.compaction import compact, manifest, parts, short_threads
from lanescope.collector.recorder.recorder import Recorder
from lanescope.webapp.bundles.verify import problems_of
from lanescope.webapp.bundles.writer import pack
from lanescope.webapp.runs.run import Run, open_run
from tests.support.growing import begin, write_ops
from tests.support.recording import Recorded, record_program

THREADS = 300
PROGRAM = f"""
    import threading, torch
    seen = torch.zeros({THREADS})
    lock = threading.Lock()
    def work(number):
        for _ in range(number % 7 + 1):
            a = torch.ones(4)
            a.mul(2)
        with lock:
            seen[number] += 1
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    for number in range({THREADS}):
        thread = threading.Thread(target=work, args=(number,), name=f"short {{number}}")
        thread.start()
        thread.join()
        if number % 100 == 99:
            optimizer.step()
    assert seen.sum() == {THREADS}
"""


def file_names(run: Path) -> list[str]:
    return sorted(manifest.load_manifest(run)["files"])


def products(run: Run) -> dict[str, int]:
    """How often each thread multiplied, by its name."""
    names = {(thread.rank, thread.thread): thread.name for thread in run.threads}
    rows = run.events("op", columns=["rank", "thread", "name"]).to_pylist()
    return Counter(names[row["rank"], row["thread"]] for row in rows if row["name"] == "aten::mul")


EXPECTED = {f"short {number}": number % 7 + 1 for number in range(THREADS)}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    done = record_program(tmp_path_factory.mktemp("short"), PROGRAM, "--level", "access")
    assert done.status == 0, done.stderr
    return done


@pytest.mark.slow
def test_hundreds_of_short_threads_share_a_file_per_table(recorded: Recorded) -> None:
    files = file_names(recorded.run)
    shared = [name for name in files if "-short/" in name]
    assert len(files) < 100
    assert {name.rpartition("/")[2] for name in shared} >= {
        f"{table}-00000.parquet" for table in ("op", "sync", "access")
    }
    assert recorded.op_names(thread="short 299").count("aten::mul") == EXPECTED["short 299"]


def test_what_short_threads_did_is_read_thread_by_thread(recorded: Recorded) -> None:
    run = open_run(recorded.run)
    assert not any("left out" in warning for warning in run.warnings)
    found = products(run)
    assert {name: found[name] for name in EXPECTED} == EXPECTED
    of = {thread.name: thread for thread in run.threads}
    for number in (0, 15, 16, 150, 299):
        thread = of[f"short {number}"]
        names = run.events("op", rank=0, thread=thread.thread, columns=["name"])["name"]
        assert names.to_pylist().count("aten::mul") == EXPECTED[thread.name]
        window = thread.start_ns, thread.end_ns + 1
        within = run.events("op", rank=0, columns=["thread", "name"], window=window).to_pylist()
        mine = [row["name"] for row in within if row["thread"] == thread.thread]
        assert mine.count("aten::mul") == EXPECTED[thread.name]
        begun = run.events("sync", rank=0, thread=thread.thread, columns=["kind"])["kind"]
        assert begun.to_pylist().count("lock_acquire") == 1
    pieces = sum(piece.num_rows for piece in run.pieces("op", columns=["name"]))
    assert pieces == run.counts["op"]


@pytest.mark.slow
def test_a_bundle_of_short_threads_has_the_same_rows(recorded: Recorded, tmp_path: Path) -> None:
    run = open_run(recorded.run)
    for options in ({}, {"redact": True}):
        bundle = tmp_path / "run.lanes"
        pack(run, bundle, cache=tmp_path, **options)
        packed, problems = problems_of(bundle)
        assert not problems
        assert products(packed) == products(run)
        assert len(packed.manifest["files"]) <= len(run.manifest["files"])
    pack(run, tmp_path / "step.lanes", steps=(1, 2), cache=tmp_path)
    packed, problems = problems_of(tmp_path / "step.lanes")
    assert not problems
    found = products(packed)
    assert {name: found[name] for name in EXPECTED} == {
        name: count if 100 <= int(name.split()[1]) < 200 else 0 for name, count in EXPECTED.items()
    }


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def missing(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("spoil", [truncated, missing])
def test_a_damaged_shared_file_costs_what_was_in_it(
    recorded: Recorded, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    listed = manifest.load_manifest(recorded.run)
    for name in listed["files"]:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((recorded.run / name).read_bytes())
    (copy / "manifest.json").write_text(json.dumps(listed))
    (name,) = (name for name in listed["files"] if name.endswith("-short/op-00000.parquet"))
    spoil(copy / name)
    run = open_run(copy)
    lost = {*listed["files"][name]["threads"]}
    assert len(lost) > 250
    (warning,) = set(run.warnings) - set(open_run(recorded.run).warnings)
    assert f"what {len(lost)} short threads" in warning
    assert f"{name} is {spoil.__name__}" in warning
    before, after = products(open_run(recorded.run)), products(run)
    names = {thread.name for thread in run.threads if thread.thread in lost}
    assert after == {name: count for name, count in before.items() if name not in names}
    # Accesses whose order is not known any more would look like races; lost rows are dropped ones.
    assert run.counts["access"] == 0
    assert run.dropped >= listed["files"][name]["rows"]
    assert any(name in problem for problem in problems_of(copy)[1])


def write_short_threads(recorder: Recorder, first: int, count: int) -> None:
    """Ten pairs of ops in each of several threads that end."""

    def work(number: int) -> None:
        write_ops(recorder, 1_000_001 + 10 * number, 10)
        recorder.leave_thread()

    for number in range(first, first + count):
        thread = threading.Thread(target=work, args=(number,))
        thread.start()
        thread.join()


def starts(run: Path) -> list[int]:
    return sorted(open_run(run).events("op", columns=["start_ns"])["start_ns"].to_pylist())[::2]


class Died(BaseException):
    """Stands for a SIGKILL of the compactor."""


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "name", "calls"),
    [
        (short_threads, "write_part", 1),
        (parts, "write_part", 2),
        (parts.PendingParts, "commit", 1),
        (parts.manifests, "write_manifest", 1),
        (Path, "unlink", 1),
        (Path, "unlink", 30),
    ],
)
def test_a_death_in_between_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: int, after: bool
) -> None:
    recorder = begin(tmp_path / "run")
    recorder.thread()  # of the main thread, which goes on
    write_short_threads(recorder, 0, 30)
    compact.advance(recorder.run)
    write_short_threads(recorder, 30, 40)
    original: Callable[..., Any] = getattr(owner, name)
    left = [calls]

    def dying(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0]:
            return original(*args, **kwargs)
        if after:
            original(*args, **kwargs)
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, dying)
        with pytest.raises(Died):
            compact.advance(recorder.run)
    assert starts(recorder.run) == [100 * number for number in range(700)]
    write_short_threads(recorder, 70, 30)
    compact.advance(recorder.run)
    expected = [100 * number for number in range(1_000)]
    assert starts(recorder.run) == expected
    recorder.close()
    compact.compact(recorder.run)
    assert starts(recorder.run) == expected
    assert problems_of(recorder.run)[1] == []
    ops = [name for name in file_names(recorder.run) if "/op-" in name]
    assert len(ops) == 16  # fifteen of their own, and one of all others


def test_a_full_file_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_threads, "_FULL_ROWS", 200)
    recorder = begin(tmp_path / "run")
    recorder.thread()
    for first in range(0, 60, 20):
        write_short_threads(recorder, first, 20)
        compact.advance(recorder.run)
    recorder.close()
    compact.compact(recorder.run)
    files = manifest.load_manifest(recorder.run)["files"]
    rows = [files[name]["rows"] for name in sorted(files) if "-short/op-" in name]
    assert sum(rows) == 45 * 20
    assert len(rows) > 2
    assert all(200 <= count < 420 for count in rows[:-1])
    assert starts(recorder.run) == [100 * number for number in range(600)]
