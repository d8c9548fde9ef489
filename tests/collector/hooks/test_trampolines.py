"""Hooks made in place behave the same in every version of Python that is here, without torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lanescope.collector.engines.build_trampolines import ensure_trampolines
from lanescope.collector.hooks import trampolines
from tests.support.processes import output_of
from tests.support.recording import write_program

PROGRAM = """
    import _thread, cProfile, functools, importlib.util, inspect, json, pstats, queue, re, sys
    import threading, traceback

    class Own:
        def __init__(self, a, /, b=2, *rest, c, **others):
            self.all = a, b, rest, c, sorted(others), sys._getframe(1).f_code.co_name

        def raises(self, number):
            def closure():
                return number + 1
            if number < 0:
                raise ValueError(closure())
            return closure(), len(super().__repr__()) > 0

        def generates(self):
            yield sys._getframe().f_code.co_name

        async def waits(self):
            return 1

    Own.raises.__qualname__ = "Named.otherwise"
    FUNCTIONS = [getattr(Own, name) for name in ("__init__", "raises", "generates", "waits")]
    SIMPLE, LOCK, RLOCK = queue.SimpleQueue, type(_thread.allocate_lock()), type(threading.RLock())
    METHODS = [vars(SIMPLE)[name] for name in ("put", "get", "get_nowait", "put_nowait")]
    seen = []

    def make():
        return Own(1, 3, 4, c=5, d=6).all

    def answers():
        simple, lock, again = SIMPLE(), LOCK() if sys.version_info > (3, 13) else (
            _thread.allocate_lock()), RLOCK()
        get = simple.get
        calls = [
            *[make] * 40, lambda: Own(1, c=2).all, lambda: Own(1, b=2), Own, lambda: Own(c=1),
            *[lambda: Own(1, c=1).raises(3)] * 40, lambda: Own(1, c=1).raises(-1),
            lambda: Own(1, c=1).raises(), lambda: Own(1, c=1).raises(1, 2),
            lambda: list(Own(1, c=1).generates()), lambda: Own(1, c=1).waits().close(),
            lambda: functools.partial(Own.raises, Own(1, c=1))(number=2),
            lambda: simple.put(1), lambda: simple.put(item=2), get, lambda: get(timeout=1),
            simple.get_nowait, lambda: simple.put(), lambda: simple.put(1, 2, 3, 4),
            lambda: simple.get(1, 2, 3), lambda: SIMPLE.put(1, 2),
        ]
        for one in (lock, again):
            calls += [
                one.acquire, lambda: one.acquire(False), lambda: one.acquire(timeout=0.001),
                one.release, one.__enter__, lambda: one.__exit__(None, None, None),
                lambda: one.release(1), lambda: one.acquire(1, 2, 3), lambda: one.acquire(False, 1),
                lambda: one.acquire(timeout=-5), *[one.release] * 3, lambda: LOCK.acquire(1),
            ]
        found = []
        for call in calls:
            try:
                found.append(repr(call()))
            except BaseException as error:
                frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
                found.append([type(error).__name__, str(error), frames])
        for install in (sys.settrace, sys.setprofile):
            events = []
            def note(frame, what, argument):
                events.append((what, frame.f_code.co_name, frame.f_lineno))
                return note
            install(note)
            make()
            Own(1, c=1).raises(1)
            install(None)
            found.append(events if sys.version_info > (3, 11) else [])
        profiler = cProfile.Profile()
        profiler.runcall(make)
        profiled = pstats.Stats(profiler).stats.items()
        found.append(sorted((*place, calls) for place, (calls, *_) in profiled)
                     if sys.version_info > (3, 11) else [])
        for one in FUNCTIONS:
            code = one.__code__
            found.append([str(inspect.signature(one)), one.__qualname__, code.co_name,
                          code.co_flags, code.co_firstlineno, repr(code.co_code)])
        return json.loads(re.sub("0x[0-9a-f]+", "0x", json.dumps(found)))

    def deep(levels=0):
        try:
            return through(levels)
        except RecursionError:
            return levels

    def through(levels):
        return deep(levels + 1)

    plain, depth = answers(), deep()
    spec = importlib.util.spec_from_file_location("trampolines", sys.argv[1])
    hooks = sys.modules["trampolines"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    library, failures = hooks.Trampolines(sys.argv[2]), []
    library.prepare(failures.append, hooks.ChangedArguments)

    def begin(*args, **keywords):
        seen.append("begin")
        return args

    def done(token, result):
        seen.append("done")

    def raised(token, error):
        seen.append(type(error).__name__)

    undo = [library.hook(one, hooks.Ends(begin, done, raised)) for one in (*FUNCTIONS, *METHODS)]
    programs = set()
    for kind in (LOCK, RLOCK):
        undo.append(library.lock(kind, hooks.LockEnds(
            programs, {}, lambda lock: not programs.add(id(lock)),
            lambda lock: seen.append("taken"), lambda lock: seen.append("given"),
            lambda lock: seen.append("waits") or 1, lambda lock, token, got: seen.append(got))))
    library.concurrent(True)
    codes = [one.__code__ for one in FUNCTIONS]
    hooked = answers()
    known = {word: seen.count(word) for word in ("begin", "done", "ValueError", "taken", "given")}
    assert hooked == plain, [pair for pair in zip(plain, hooked) if pair[0] != pair[1]]
    undo.append(library.hook(through, hooks.Ends(begin)))
    assert deep() == depth
    failed_below = [type(error).__name__ for error in failures]

    # Other arguments; a callable that a thread begins with.
    def doubled(own, number):
        return hooks.ChangedArguments(None, (own, number * 2))

    undo.append(library.hook(Own.raises, hooks.Ends(doubled)))
    assert Own(1, c=1).raises(4)[0] == 9
    unraisable = []
    sys.unraisablehook = lambda given: unraisable.append(
        [str(given.exc_value), given.object is not None or repr(ends) in given.err_msg])
    def ends():
        raise KeyError("ended")
    gone = _thread.allocate_lock()
    gone.acquire()
    start = library.around(ends, lambda: seen.append("in") or 1, lambda token: gone.release(),
                           thread=True)
    _thread.start_new_thread(start, ())
    gone.acquire()
    while not unraisable:
        pass

    # Another interpreter has the same methods; its calls are not reported.
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    other, count = interpreters.create(), len(seen)
    interpreters.run_string(other, "import _thread; _thread.allocate_lock().acquire()")
    interpreters.destroy(other)
    assert len(seen) == count

    for one in undo:
        one()
    seen.clear()
    assert answers() == plain and not seen and deep() == depth
    assert [one.__code__ for one in FUNCTIONS] == codes
    print(json.dumps([known, failed_below, unraisable]))
"""


def _pythons() -> list[str]:
    """This interpreter, and those of other versions that are installed beside it."""
    beside = Path(sys.base_prefix).parent.glob("3.1[0-9].*/bin/python")
    return [sys.executable, *map(str, sorted(beside))]


@pytest.mark.parametrize("python", _pythons(), ids=lambda path: Path(path).parts[-3])
def test_a_hooked_function_answers_as_it_did(python: str, tmp_path: Path) -> None:
    program = write_program(tmp_path, PROGRAM)
    answer = output_of(python, program, str(trampolines.__file__), str(ensure_trampolines()))
    known, failed, unraisable = json.loads(answer)
    assert known["ValueError"] == 1
    assert min(known["begin"], known["done"]) > 90
    assert min(known["taken"], known["given"]) >= 4
    assert (failed, unraisable) == ([], [["'ended'", True]])
