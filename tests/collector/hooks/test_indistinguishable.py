"""What is hooked is what it was: programs that look at it, pickle, wrap or replace it see no change."""

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
    from lanescope.collector.hooks.patches import Patches, in_place

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
    assert in_place()
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
            found = UNNAMED[part] if part in UNNAMED and module == "_thread" else getattr(found, part)
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
                "repr": answer(repr, one), "hash": answer(lambda: hash(one) == hash(vars(owner)[name])),
                "pickle": answer(pickled, one), "signature": answer(inspect.signature, one),
                "spec": answer(inspect.getfullargspec, one), "source": answer(inspect.getsource, one),
                "dir": dir(one), "callable": callable(one),
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
    told = []
    for recording in ((), (str(tmp_path / "run"), observer)):
        done = fork_program(program, json.dumps(names), *recording, environment=UNCOMPACTED)
        assert done.returncode == 0, done.stderr
        assert "lanescope" not in done.stderr
        told.append(json.loads(done.stdout))
    (plain, again), both = told
    assert plain == again
    for recorded in both:  # and when it is over
        assert plain.keys() == recorded.keys()
        assert all(one["is"] for one in recorded.values())
        for name, described in plain.items():
            assert recorded[name] == described, name
