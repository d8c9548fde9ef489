"""What a program does with descriptors, signals and limits works as without the recorder."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from lanescope.webapp import open_run
from tests.support.processes import fork_program
from tests.support.recording import (
    BIN,
    OBSERVERS,
    UNCOMPACTED,
    record_program,
    record_script,
    run_program,
    write_program,
)

BEGIN = """
    import contextlib, fcntl, json, os, resource, signal, subprocess, sys, threading, time
    from pathlib import Path

    os.chdir(sys.argv[1])
    recording = sys.argv[2:]
    import torch
    if recording:
        import lanescope.collector as ls
        ls.start("run", engine=recording[0])

    def work(count, name):
        for i in range(count):
            with torch.profiler.record_function(f"{name} {i}"):
                torch.ones(2).add(1)

    def descriptors():
        return {n: os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{n}")}

    def watched():
        # The watchdog's first look comes once something was recorded.
        files = f"run/journal/{os.getpid()}-*/alive"
        while recording and not any(sum(path.read_bytes()) for path in Path().glob(files)):
            time.sleep(0.01)

    before = descriptors()
    work(10, "first")
    watched()
"""


def same(folder: Path, source: str, engine: str, said: str) -> None:
    """Assert that the program prints the same with the recorder, which warns by that alone."""
    printed = []
    for name, recording in (("plain", ()), ("recorded", (engine,))):
        place = folder / name
        place.mkdir()
        program = write_program(folder, BEGIN + source, f"{name}.py")
        done = fork_program(program, str(place), *recording, environment=UNCOMPACTED)
        assert done.returncode == 0, done.stderr
        warning = (
            rf"lanescope: cannot write to {place / 'run'}\S* \({said}\); some events are lost\n"
        )
        assert re.fullmatch(warning if recording else "", done.stderr)
        printed.append(done.stdout)
    assert printed[0] == printed[1]


def scopes(run: Path) -> set[str]:
    """Names of the recorded operators."""
    found: set[str] = set(open_run(run).events("op", columns=["name"])["name"].to_pylist())
    return found


DESCRIPTORS = """
    # Nothing is open that the plain program has not open, but for what has a high number.
    low = {n: path for n, path in descriptors().items() if int(n) < 900}
    print(low == before, len(descriptors()) - len(low) <= 1)

    # Whatever is closed and opened again is the program's.
    os.closerange(3, 4096)
    mine = [open(f"mine{i}", "w") for i in range(12)]
    print([file.fileno() for file in mine])
    for number in range(950, 1024):
        os.dup2(mine[0].fileno(), number)
    work(3_000, "after")  # texts and records into new segments
    for i, file in enumerate(mine):
        file.write(f"{i}\\n")
        file.flush()

    # The standard descriptors too.
    os.close(0)
    thread = threading.Thread(target=work, args=(5, "thread"))
    thread.start()
    thread.join()  # a file is open for as long as it takes to map it
    print(os.open("/dev/null", os.O_RDONLY))

    # A child gets what the program has open, and nothing else.
    listing = "import os; print(len([n for n in map(int, os.listdir('/proc/self/fd')) if n < 900]))"
    child = [sys.executable, "-c", listing]
    plain_child = {k: v for k, v in os.environ.items() if not k.startswith("LANESCOPE")}
    os.set_inheritable(mine[3].fileno(), True)
    for closing in ({"close_fds": False}, {"pass_fds": [mine[4].fileno()]}):
        print(subprocess.run(child, **closing, env=plain_child, capture_output=True).stdout)

    # A daemon: forked twice, everything closed.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            work(5, "daemon")
            watched()
            os.closerange(0, 1024)
            numbers = [os.open("/dev/null", os.O_RDWR) for _ in range(3)]
            work(500, "daemon later")
            Path("daemon.new").write_text(f"{numbers} {sorted(map(int, descriptors()))[:3]}")
            os.rename("daemon.new", "daemon")
        os._exit(0)
    print(os.wait()[1])
    while not Path("daemon").exists():
        time.sleep(0.01)
    print(Path("daemon").read_text())

    # As many files open as there may be: some is lost meanwhile, and it goes on.
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, limits[1]))
    most = []
    with contextlib.suppress(OSError):
        while True:
            most.append(os.open("/dev/null", os.O_RDONLY))
    print(most[-1])
    work(12_000, "none left")
    for number in most:
        os.close(number)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    work(3_000, "again")

    if recording:
        ls.stop()
    print([os.fstat(file.fileno()).st_ino == os.stat(f"mine{i}").st_ino
           for i, file in enumerate(mine)], os.fstat(1000).st_ino == os.stat("mine0").st_ino)
    print([Path(f"mine{i}").read_text() for i in range(12)])
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", OBSERVERS)
def test_descriptors_are_the_program_s(tmp_path: Path, engine: str) -> None:
    same(tmp_path, DESCRIPTORS, engine, "Too many open files")
    found = scopes(tmp_path / "recorded" / "run")
    assert {f"after {i}" for i in range(3_000)} <= found
    assert {"first 9", "thread 4", "daemon 4", "daemon later 499", "again 2999"} <= found


MAPPED = """
    import sys, time
    from pathlib import Path
    import torch
    import lanescope.collector as ls

    run = Path(sys.argv[1])
    ls.start(run, engine=sys.argv[2])
    torch.ones(3).sum()
    while not list(run.rglob("alive")):  # the watchdog has its file as well
        time.sleep(0.05)
    ls.stop()
    print([line for line in open("/proc/self/maps") if sys.argv[1] in line])
"""


@pytest.mark.parametrize("engine", OBSERVERS)
def test_no_file_stays_mapped(tmp_path: Path, engine: str) -> None:
    done = fork_program(write_program(tmp_path, MAPPED), str(tmp_path / "run"), engine)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


FORKED = """
    import os, sys, threading, time
    from pathlib import Path
    import torch

    def names():
        return {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}

    torch.ones(2).tan()
    opened = []
    sys.addaudithook(lambda event, given: event == "open"
                     and threading.get_native_id() != os.getpid() and opened.append(given[0]))
    if os.fork() == 0:
        while "lanescope-watch" not in names():
            time.sleep(0.01)
        os._exit(len(opened))
    print(os.wait()[1])
"""


@pytest.mark.parametrize("engine", OBSERVERS)
def test_a_child_without_records_gets_no_descriptor_of_ours(tmp_path: Path, engine: str) -> None:
    # Where the child of a fork gives numbers to descriptors, dup2 to the next number to be given
    # out fails while another thread opens a file.
    done = record_program(tmp_path, FORKED, "--engine", engine)
    assert (done.status, done.stdout) == (0, "0\n"), done.stderr


SIGNALS = """
    def receives():
        # Were one of them unblocked in any thread, it would end the process.
        received = []
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGALRM, signal.SIGRTMAX - 2):
            signal.pthread_sigmask(signal.SIG_BLOCK, {number})
            os.kill(os.getpid(), number)
            received.append(signal.sigwait({number}) == number)
        return received

    print(receives())
    child = os.fork()
    if child == 0:
        work(5, "child")
        watched()
        os._exit(0 if all(receives()) else 1)
    print(os.waitpid(child, 0)[1])
    def raises(*_):
        raise KeyError("of a handler")
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    signal.signal(signal.SIGALRM, raises)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        while True:
            work(10, "interrupted")
    except KeyError as error:
        print(error, signal.pthread_sigmask(signal.SIG_BLOCK, set()))

    # A file that grows past the limit is an error of the call; the signal is not for the program.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    work(20_000, "limited")
    threading.Thread(target=work, args=(5, "limited thread")).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGXFSZ})
    with contextlib.suppress(OSError), open("large", "wb") as file:
        file.write(bytes(200_000))
    work(2_000, "limited")
    if recording:
        ls.stop()
    print(signal.sigpending() == {signal.SIGXFSZ})
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", OBSERVERS)
def test_signals_are_the_program_s(tmp_path: Path, engine: str) -> None:
    same(tmp_path, SIGNALS, engine, "File too large")
    found = scopes(tmp_path / "recorded" / "run")
    assert {"first 9", "child 4"} <= found
    assert open_run(tmp_path / "recorded" / "run").dropped > 0


CLOSED_AT_START = """
    import os, sys, time, torch
    from pathlib import Path
    torch.ones(2).tan()
    if run := os.environ.get("LANESCOPE_RECORD"):  # wait for the watchdog's first look
        while not any(sum(path.read_bytes()) for path in Path(run).glob("journal/*/alive")):
            time.sleep(0.01)
    taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(2)]
    with open(sys.argv[1], "w") as file:
        file.write(str(taken))
"""


@pytest.mark.slow
def test_standard_descriptors_that_are_closed_stay_so(tmp_path: Path) -> None:
    program = write_program(tmp_path, CLOSED_AT_START)
    answers = []
    for name, before in (("plain", ""), ("recorded", f"{BIN}/lanescope record -o {tmp_path}/run ")):
        command = f"{before}sh -c '{sys.executable} {program} {tmp_path}/{name} 0>&- 2>&-'"
        done = run_program(["sh", "-c", command])
        assert done.returncode == 0, done.stderr
        answers.append((tmp_path / name).read_text())
    assert answers == ["[0, 2]", "[0, 2]"]
    assert "aten::tan" in scopes(tmp_path / "run")


INHERITED = """
    import os, sys, torch
    torch.ones(2).tan()
    print(os.read(7, 100), open(sys.argv[1]).read())
    os.execv(sys.executable, [sys.executable, "-c", "import os; print(os.read(7, 100))"])
"""


@pytest.mark.slow
def test_a_command_keeps_the_descriptors_that_it_is_given(tmp_path: Path) -> None:
    program = write_program(tmp_path, INHERITED)
    script = (
        f"printf one7two > {tmp_path}/file; exec 7< {tmp_path}/file; "
        f"{BIN}/lanescope record -o {tmp_path}/run {sys.executable} {program} <(echo process)"
    )
    done = run_program(["bash", "-c", script])
    assert done.stdout == "b'one7two' process\n\nb''\n", done.stderr


FORWARDED = """
    import os, signal, sys, torch
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
    torch.ones(2).tan()
    os.kill(os.getppid(), signal.SIGUSR1)  # as a batch system does, to the process that it started
    signal.pause()
"""


@pytest.mark.slow
def test_a_signal_to_the_command_reaches_it(tmp_path: Path) -> None:
    program = write_program(tmp_path, FORWARDED)
    run = tmp_path / "run"
    done = run_program(
        [str(BIN / "lanescope"), "record", "-o", str(run), sys.executable, str(program)]
    )
    assert done.returncode == 7, done.stderr
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["complete"], manifest["notes"]) == (True, [])
    assert signal.SIGUSR1.name not in done.stderr


OUT_OF_REACH = """
    import os, sys, torch
    def work():
        x = torch.ones(3)
        for _ in range(20_000):
            x = x.add(1)
        return float(x.sum())
    torch.ones(2).tan()
    jail = sys.argv[1]
    os.mkdir(jail)
    child = os.fork()
    if child == 0:
        os.chroot(jail)
        os.chdir("/")
        print(work(), os.listdir("/"), flush=True)
        os._exit(5)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
    os.setuid(65534)  # may not write where the run is
    print(work())
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="changing the root directory needs root")
@pytest.mark.parametrize("engine", OBSERVERS)
def test_a_run_that_the_program_can_no_longer_reach(tmp_path: Path, engine: str) -> None:
    program = write_program(tmp_path, OUT_OF_REACH)
    plain = fork_program(program, str(tmp_path / "plain"))
    recorded = record_script(
        tmp_path / "run", program, str(tmp_path / "recorded"), options=("--engine", engine)
    )
    assert (recorded.status, recorded.stdout) == (0, plain.stdout), recorded.stderr
    assert "some events are lost" in recorded.stderr
    assert "aten::tan" in scopes(tmp_path / "run")
