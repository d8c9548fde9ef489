"""Programs that look at their own frames and modules see nothing of the recorder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.collector.hooks.test_indistinguishable import ENGINES
from tests.support.processes import fork_program
from tests.support.recording import OBSERVERS, UNCOMPACTED, write_program

SEEN_FROM_WITHIN = """
    import cProfile, inspect, io, json, pstats, queue, sys, threading, traceback, warnings, torch

    if sys.argv[1:]:
        import lanescope.collector as ls
        ls.start(sys.argv[1], engine=sys.argv[2])
    thread = threading.Thread(target=torch.ones, args=(1,))
    thread.start()
    thread.join()
    torch.manual_seed(0)

    reported = {}
    class Inner(torch.nn.Module):
        def forward(self, x):
            reported["walk"] = [f.name for f in traceback.extract_stack()]
            warnings.warn("who", stacklevel=2)
            raise ValueError("inner")

    shared, model, event = queue.Queue(1), torch.nn.Sequential(Inner()), threading.Event()
    lock, simple = threading.Lock(), queue.SimpleQueue()

    def use():
        with lock:
            event.set()
        event.wait()
        shared.put(1)
        simple.put(2)
        try:
            shared.put(2, timeout=0.01)
        except queue.Full:
            reported["full"] = [f.name for f in traceback.extract_tb(sys.exc_info()[2])]
        try:
            simple.get_nowait(), simple.get_nowait()
        except queue.Empty:
            reported["empty"] = [f.name for f in traceback.extract_tb(sys.exc_info()[2])]
        try:
            lock.release()
        except RuntimeError as error:
            reported["released"] = str(error), traceback.format_exc()
        shared.get()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                model(torch.ones(1))
            except ValueError:
                reported["raised"] = traceback.format_exc()
        reported["warned"] = [(one.filename, one.lineno) for one in caught]

    for name, install in (("trace", sys.settrace), ("profile", sys.setprofile)):
        events = []
        def note(frame, what, argument):
            events.append((what, frame.f_code.co_name, frame.f_lineno))
            return note
        install(note)
        use()
        install(None)
        reported[name] = events
    profiler = cProfile.Profile()
    profiler.runcall(use)
    reported["profiled"] = sorted(
        (*place, calls) for place, (calls, *_) in pstats.Stats(profiler).stats.items()
    )
    print(json.dumps(reported))
"""


@pytest.mark.parametrize("observer", ENGINES)
def test_no_frame_of_the_recorder_is_seen(observer: str, tmp_path: Path, native: Path) -> None:
    program = write_program(tmp_path, SEEN_FROM_WITHIN)
    plain, recorded = (
        fork_program(program, *recording, environment=UNCOMPACTED)
        for recording in ((), (str(tmp_path / "run"), observer))
    )
    assert (plain.returncode, plain.stderr) == (recorded.returncode, recorded.stderr) == (0, "")
    expected, reported = json.loads(plain.stdout), json.loads(recorded.stdout)
    # The portable engine sees operators by a dispatch mode of torch's, which is Python.
    traced = () if observer == "native" else ("trace", "profile", "profiled")
    for what in expected.keys() - traced:
        assert reported[what] == expected[what], what


MODULES = """
    import sys, warnings, torch

    if sys.argv[1:]:
        import lanescope.collector as ls
        ls.start(sys.argv[1], engine=sys.argv[2])

    def runs(depth):
        model = torch.nn.Identity()
        for _ in range(depth):
            model = torch.nn.Sequential(model)
        try:
            model(torch.ones(1))
        except RecursionError:
            return False
        return True

    torch.ones(1).add(1)
    print([depth for depth in range(200, 300) if runs(depth)][-1])

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(3, 4)
            self.b = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(4, 2))
        def forward(self, x):
            return self.b(self.a(x)).softmax(-1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = torch.jit.trace(Model(), torch.ones(1, 3))
    print([str(one.message) for one in caught], traced.graph, traced.inlined_graph)

    @torch.jit.script
    def scripted(x: torch.Tensor):
        return torch.as_tensor(x.sum())
    print(scripted.graph, scripted(torch.ones(2)))

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    from torch._dynamo.testing import CompileCounter
    counter = CompileCounter()

    @torch.compile(fullgraph=True, backend=counter)
    def step(x):
        with torch.autocast("cpu", enabled=False):
            y = model(x)
        model.zero_grad()
        return y
    print(tuple(step(torch.ones(1, 3)).shape), counter.frame_count, counter.op_count)
    model.compile(fullgraph=True, backend=counter)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    print(counter.frame_count, counter.op_count)
"""


@pytest.mark.slow
@pytest.mark.parametrize("observer", OBSERVERS)
def test_modules_are_as_deep_and_their_graphs_the_same(
    observer: str, tmp_path: Path, native: Path
) -> None:
    program = write_program(tmp_path, MODULES)
    plain, recorded = (
        fork_program(program, *recording, environment=UNCOMPACTED)
        for recording in ((), (str(tmp_path / "run"), observer))
    )
    assert (plain.returncode, recorded.returncode) == (0, 0), plain.stderr + recorded.stderr
    assert recorded.stdout == plain.stdout
    assert recorded.stderr == plain.stderr
