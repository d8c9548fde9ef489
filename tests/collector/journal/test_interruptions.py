"""What a signal handler raises is the program's, also where the recorder is at work just then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import fork_program
from tests.support.recording import SLOW_ON_PORTABLE, write_program

PROGRAM = """
    import functools, signal, sys, threading, time
    import torch
    import lanescope.collector as ls
    from lanescope.collector.recorder.recorder import Recorder
    from lanescope.collector.hooks.threads.sync_events import SyncRecorder

    class Late(Exception):
        pass

    class Limit:
        def over(self, number, frame):
            raise Late

    interrupted, hits = None, 0

    def signalled(owner, name):
        original = getattr(owner, name)

        @functools.wraps(original)
        def method(*args, **keywords):
            global hits
            if name == interrupted and threading.current_thread() is threading.main_thread():
                hits += 1
                signal.raise_signal(signal.SIGUSR1)
            return original(*args, **keywords)

        setattr(owner, name, method)

    hooks = ("begin_phase", "end_phase", "next_step", "put", "mark", "value")
    for name in hooks:
        signalled(Recorder, name)
    for name in ("on_reacquired", "on_rereleased"):
        signalled(SyncRecorder, name)
    handlers = [Limit().over, lambda *given: Limit().over(*given),
                functools.partial(lambda limit, number, frame: limit.over(number, frame), Limit()),
                signal.default_int_handler]  # of Ctrl-C: written in C, it has no frame

    ls.start(sys.argv[1], engine=sys.argv[2])
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        ls.mark("here")
        ls.value("there", 1.0)

    step()
    for name in hooks:
        for handler in handlers:
            signal.signal(signal.SIGUSR1, handler)
            interrupted = name
            try:
                step()
                print(name, "lost")
            except (Late, KeyboardInterrupt):
                pass
            interrupted = None

    lock, again, other = threading.Lock(), threading.RLock(), threading.Event()
    second = threading.Thread(target=other.wait)
    second.start()

    def free(lock):
        # Whoever has it is this thread, so another one must ask.
        got = []
        asking = threading.Thread(target=lambda: got.append(lock.acquire(timeout=5)))
        asking.start()
        asking.join()
        return got[0]

    def waited():
        def hold():
            with lock:
                held.set()
                time.sleep(0.2)

        held = threading.Event()
        holding = threading.Thread(target=hold)
        holding.start()
        held.wait()
        return lock

    for name, take in (
        ("on_reacquired", lambda: again), ("on_rereleased", lambda: again),
        ("on_reacquired", waited),
    ):
        one = take()
        try:
            interrupted = name
            with one:
                pass
            print(name, "lost")
        except (Late, KeyboardInterrupt):
            pass
        interrupted = None
        print(name, free(one))
        lock, again = threading.Lock(), threading.RLock()
    other.set()
    ls.stop()
    print(hits)
"""


@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
def test_what_a_handler_raises_reaches_the_program(tmp_path: Path, engine: str) -> None:
    program = write_program(tmp_path, PROGRAM)
    done = fork_program(program, str(tmp_path / "run"), engine)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "on_reacquired True",
        "on_rereleased True",
        "on_reacquired True",
        "27",
    ]
