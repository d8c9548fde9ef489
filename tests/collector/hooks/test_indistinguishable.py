"""What is hooked is what it was to programs that look at it, pickle it, wrap or replace it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lanescope.webapp import open_run
from tests.support.processes import fork_program, run_program
from tests.support.recording import OBSERVERS, UNCOMPACTED, write_program

ENGINES = ("native", "portable")

LISTING = """
    import json, sys
    import lanescope.collector as ls
    from lanescope.collector.hooks.patches import Patches, hooks_in_place

    LOCKS = ("acquire", "acquire_lock", "__enter__", "release", "release_lock", "__exit__")
    names = set()
    def noting(method):
        def noted(self, owner, *args, **keywords):
            given = args[0] if args and isinstance(args[0], str) else ""
            place = getattr(owner, "__qualname__", "")
            for name in [given] if given else {"__init__", "__new__", *LOCKS} & {*dir(owner)}:
                names.add((owner.__module__ if place else owner.__name__, place, name))
            return method(self, owner, *args, **keywords)
        return noted
    for method in ("ends", "locks", "setter", "maker"):
        setattr(Patches, method, noting(getattr(Patches, method)))
    ls.start(sys.argv[1], engine=sys.argv[2], compile_backend="eager")
    assert hooks_in_place()
    import contextvars, threading, torch
    contextvars.ContextVar("v").set(1)
    thread = threading.Thread(target=torch.ones, args=(1,))  # from now on, reads are looked at
    thread.start()
    thread.join()
    ls.stop()
    print(json.dumps(sorted(names)))
"""

DESCRIPTION = """
    import copy, functools, hashlib, importlib, inspect, json, pickle, re, sys, types
    import _thread, asyncio, concurrent.futures, contextvars, queue, threading, torch
    import multiprocessing.pool, torch.distributed, torch._dynamo.output_graph
    import torch.utils.data._utils.fetch

    UNNAMED = {"lock": type(_thread.allocate_lock()), "RLock": type(threading.RLock())}

    def resolve(module, place):
        found = importlib.import_module(module)
        for part in place.split(".") if place else ():
            unnamed = module == "_thread" and part in UNNAMED
            found = UNNAMED[part] if unnamed else getattr(found, part)
        return found

    def answer(function, *args, **keywords):
        try:
            result = function(*args, **keywords)
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        return re.sub("0x[0-9a-f]+", "0x", str(result))

    def pickled(value):
        return hashlib.sha256(pickle.dumps(value)).hexdigest()

    def describe(owner, name):
        # As an attribute, as it stands in its class, and bound.
        described = {}
        for how, one in (("got", getattr(owner, name)), ("own", vars(owner).get(name))):
            own = {
                "type": type(one), "copy": answer(lambda: copy.copy(one) is one),
                "deepcopy": answer(lambda: copy.deepcopy(one) is one),
                "hash": answer(lambda: hash(one) == hash(vars(owner)[name])),
                "pickle": answer(pickled, one), "signature": answer(inspect.signature, one),
                "spec": answer(inspect.getfullargspec, one), "repr": answer(repr, one),
                "source": answer(inspect.getsource, one), "dir": dir(one),
            }
            for attribute in ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__",
                              "__kwdefaults__", "__annotations__", "__text_signature__", "__dict__",
                              "__wrapped__", "__closure__", "__code__"):
                own[attribute] = answer(getattr, one, attribute, "none")
            for kind in (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType,
                         types.GetSetDescriptorType):
                own[kind.__name__] = isinstance(one, kind)
            for ask in ("isfunction", "isbuiltin", "isroutine", "isgeneratorfunction",
                        "iscoroutinefunction", "ismethoddescriptor"):
                own[ask] = getattr(inspect, ask)(one)
            code = getattr(one, "__code__", None)
            if code is not None:
                own["code"] = [answer(getattr, code, part) for part in dir(code)
                               if part.startswith("co_") and part != "co_lines"]
            if callable(one):
                def wrapper(*args): pass
                wrapped = vars(functools.wraps(one)(wrapper))
                own["wraps"] = sorted(wrapped), wrapper.__qualname__, wrapper.__wrapped__ is one
                # More than any of them takes; what takes any number fails at what it is given.
                own["too much"] = answer(one, *range(30))
                if name not in HARMFUL:
                    own["unknown"] = answer(one, **{"no such": 1})
            described[how] = {key: str(value) for key, value in own.items()}
        return described

    HARMFUL = ("_shutdown", "compile", "_lazy_init", "forkserver")
    names = [tuple(one) for one in json.loads(sys.argv[1])]
    before = [vars(resolve(module, place)).get(name) for module, place, name in names]
    recording = sys.argv[2:]
    if recording:
        import lanescope.collector as ls
        ls.start(recording[0], engine=recording[1])
        contextvars.ContextVar("v").set(1)
    if not hasattr(threading, "seen"):
        thread = threading.Thread(target=torch.ones, args=(1,))
        thread.start()
        thread.join()

    def look():
        described = {}
        for (module, place, name), known in zip(names, before):
            owner = resolve(module, place)
            described[f"{module} {place} {name}"] = {
                "is": vars(owner).get(name) is known, **describe(owner, name)}
        return described

    sys.setrecursionlimit(5_000)
    described = look()
    if recording:
        ls.stop()
    print(json.dumps([described, look()]))
"""


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory, native: Path) -> list[list[str]]:
    """Module, class and name of everything that a recording hooks."""
    folder = tmp_path_factory.mktemp("names")
    done = fork_program(
        write_program(folder, LISTING), str(folder / "run"), "native", environment=UNCOMPACTED
    )
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("observer", ENGINES)
def test_whatever_is_hooked_looks_as_without_recording(
    observer: str, names: list[list[str]], tmp_path: Path
) -> None:
    assert len(names) > 110
    program = write_program(tmp_path, DESCRIPTION)
    reported = []
    for recording in ((), (str(tmp_path / "run"), observer)):
        done = fork_program(program, json.dumps(names), *recording, environment=UNCOMPACTED)
        assert done.returncode == 0, done.stderr
        reported.append(json.loads(done.stdout))
    (plain, again), both = reported
    assert plain == again
    for recorded in both:  # and when it is over
        assert plain.keys() == recorded.keys()
        assert all(one["is"] for one in recorded.values())
        for name, described in plain.items():
            assert recorded[name] == described, name


PATCHED_BY_OTHERS = """
    import functools, queue, sys, threading, torch
    import lanescope.collector as ls

    calls = []
    def put_by_others(of):
        @functools.wraps(of)
        def wrapper(self, item, *args, **keywords):
            calls.append(item)
            return of(self, item, *args, **keywords)
        return wrapper

    def in_two_threads(*items):
        shared, taken = queue.Queue(), []
        thread = threading.Thread(target=lambda: taken.extend(shared.get() for _ in items))
        thread.start()
        for item in items:
            shared.put(item)
        thread.join()
        torch.ones(1).add(1)
        return taken

    own = queue.Queue.put
    queue.Queue.put = early = put_by_others(own)
    ls.start(sys.argv[1], engine=sys.argv[2])
    assert queue.Queue.put is early and early.__wrapped__ is own
    assert in_two_threads("early") == ["early"] == calls
    queue.Queue.put = late = put_by_others(queue.Queue.put)  # around that one
    assert in_two_threads("late") == ["late"] and calls == ["early", "late", "late"]
    class Counting(queue.Queue):
        def put(self, item, block=True, timeout=None):
            return super().put(item, block=block, timeout=timeout)
        def get(self, *args, **keywords):
            return super().get(*args, **keywords), "counted"
    counting = Counting(1)
    counting.put("own")
    assert counting.get_nowait() == ("own", "counted") and calls[-2:] == ["own", "own"]

    # Another code for a function that is hooked counts from then on.
    def is_set(self):
        return "theirs"
    event, before = threading.Event(), threading.Event.is_set.__code__
    threading.Event.is_set.__code__ = is_set.__code__
    assert event.is_set() == functools.partial(event.is_set)() == "theirs"
    ls.stop()
    assert event.is_set() == "theirs" and threading.Event.is_set.__code__ is is_set.__code__
    threading.Event.is_set.__code__ = before
    assert event.is_set() is False and queue.Queue.put is late
    assert in_two_threads("over") == ["over"]
    queue.Queue.put = own
    assert in_two_threads("plain") == ["plain"] and calls[-1] == "over"

    ls.start(sys.argv[1] + " again", engine=sys.argv[2])
    assert event.is_set() is False and in_two_threads("again") == ["again"]
    ls.stop()
"""


@pytest.mark.parametrize("observer", ENGINES)
def test_what_others_put_in_place_stays(observer: str, tmp_path: Path, native: Path) -> None:
    run = tmp_path / "run"
    done = fork_program(write_program(tmp_path, PATCHED_BY_OTHERS), str(run), observer)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    kinds = open_run(run).events("sync")["kind"].to_pylist()
    assert {"queue_put", "queue_get"} <= {str(kind) for kind in kinds}


SPAWNING = """
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        def __init__(self, convert):
            self.convert = convert
        def __len__(self):
            return 4
        def __getitem__(self, index):
            import numpy
            return self.convert(numpy.full(2, index))

    if __name__ == "__main__":
        rows = Rows(torch.from_numpy)
        loader = DataLoader(rows, batch_size=2, num_workers=1, multiprocessing_context="spawn")
        print([batch.tolist() for batch in loader])
"""


@pytest.mark.slow
@pytest.mark.parametrize("observer", OBSERVERS)
def test_a_hooked_function_is_handed_to_a_spawned_worker(
    observer: str, tmp_path: Path, native: Path
) -> None:
    environment = {
        **UNCOMPACTED,
        "LANESCOPE_RECORD": str(tmp_path / "run"),
        "LANESCOPE_OPTIONS": json.dumps({"engine": observer}),
    }
    done = run_program(
        [sys.executable, str(write_program(tmp_path, SPAWNING))], environment=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[[[0, 0], [1, 1]], [[2, 2], [3, 3]]]\n"
    assert len(list((tmp_path / "run" / "journal").glob("*/"))) == 2


REPLACED = """
    import queue, sys, threading, torch
    import lanescope.collector as ls

    originals = queue.Queue.put, torch.from_numpy, threading.Lock
    ls.start(sys.argv[1], engine="portable")
    shared, lock, taken = queue.Queue(1), threading.Lock(), []
    again, simple, event = threading.RLock(), queue.SimpleQueue(), threading.Event()
    def take():
        with lock, again, again:
            torch.ones(1).add(1)
        taken.extend(shared.get() for _ in range(3))
        simple.put("done")
        event.set()
    lock.acquire()
    thread = threading.Thread(target=take)
    thread.start()
    lock.release()
    for number in range(3):
        shared.put(number)
    event.wait()
    thread.join()
    assert simple.get() == "done" and taken == [0, 1, 2]
    for wrong, error in ((lambda: shared.put(), TypeError), (lock.release, RuntimeError)):
        try:
            wrong()
        except error:
            taken.append(error.__name__)
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    ls.stop()
    assert (queue.Queue.put, torch.from_numpy, threading.Lock) == originals
    print(taken)
"""


def test_without_a_compiler_functions_are_replaced(tmp_path: Path) -> None:
    run = tmp_path / "run"
    program = write_program(tmp_path, REPLACED)
    nowhere = {"PATH": str(tmp_path), "CXX": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = fork_program(program, str(run), environment=nowhere)
    assert (done.returncode, done.stdout) == (0, "[0, 1, 2, 'TypeError', 'RuntimeError']\n"), (
        done.stderr
    )
    recorded = open_run(run)
    assert [reason for reason in recorded.coverage if "there is no C++ compiler" in reason] == [
        "missing: calls without other functions in the place of the program's "
        "(there is no C++ compiler (c++, g++, clang++))"
    ]
    kinds = {str(kind) for kind in recorded.events("sync")["kind"].to_pylist()}
    assert {
        "queue_put",
        "queue_get",
        "queue_room",
        "lock_acquire",
        "lock_release",
        "event_set",
        "event_wait",
        "thread_start",
        "thread_begin",
        "thread_end",
        "thread_join",
    } <= kinds
    assert recorded.counts["module"] == 1


HANDLES = """
    import sys, torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook as register
    import lanescope.collector as ls

    ls.start(sys.argv[1], engine=sys.argv[2])
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stepped = []
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    register(lambda *_: stepped.append(True))
    optimizer.step()
    tensor = torch.ones(1, requires_grad=True)
    tensor.register_hook(lambda gradient: None)
    ls.stop()
    print(list(tensor._backward_hooks), stepped)
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_handles_of_hooks_have_the_numbers_that_they_had(tmp_path: Path, engine: str) -> None:
    program = write_program(tmp_path, HANDLES)
    done = fork_program(program, str(tmp_path / "run"), engine)
    assert (done.returncode, done.stdout) == (0, "[1] [True]\n"), done.stderr
