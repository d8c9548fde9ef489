"""Starts and stops the recording of a process: recorder, engine, hooks and watchdog."""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import platform
import socket
import sys
import threading
from pathlib import Path

import torch

from ..engines import build_trampolines, dispatch_mode, native, native_library, portable
from ..engines.built_libraries import BuildError
from ..format.names import MISSING
from ..format.options import SUPERVISOR_VARIABLE, Options
from ..hooks import patches, registry
from ..hooks.base import Hook, HookContext, Undo, own_handles
from ..hooks.collectives.collectives import Collectives
from ..hooks.devices.cuda_contexts import CudaContexts
from ..hooks.devices.device import Device
from ..hooks.graphs import fx_graphs
from ..hooks.threads.forked_numbers import ForkedNumbers
from ..hooks.threads.sync_events import SyncRecorder
from ..hooks.training import memory, optimizers
from ..hooks.training.thread_gradients import ThreadGradients
from ..hooks.validators import Validators
from ..journal import clock
from ..journal.background_compactor import follower_command
from ..journal.interruptions import is_interruption
from ..recorder.recorder import Recorder
from ..watchdog.watchdog import Watchdog


class Session:
    """Records this process from `start` to `stop`."""

    def __init__(self, run: Path, options: Options, resident: int) -> None:
        """`resident`: bytes in memory before the recorder was loaded."""
        self._memory = memory.Memory(resident)
        self._library = native_library.library_for(options)
        store = None
        if self._library is not None:
            store = native.NativeStore(self._library, options.keep_last_bytes)
        self.recorder = Recorder(run, options, store)
        self.recorder.engine = native_library.NATIVE if self._library else portable.PORTABLE
        self.recorder.describe(**_process(options), engine=self.recorder.engine)
        already = threading.active_count() - 1
        if already:
            self.recorder.coverage["threads_started_before"] = already
        self._undo: list[Undo] = []
        self._context: HookContext | None = None
        self._watchdog: Watchdog | None = None

    def start(self) -> None:
        """Installs engine, hooks and watchdog. Reports failing hooks, and goes on without them."""
        recorder = self.recorder
        _prepare_hooks(recorder)
        if self._library is not None:
            self._library.reader.assigning = patches.assigning()
        alone = os.environ.get(SUPERVISOR_VARIABLE) is None
        alone = alone and recorder.options.keep_last_bytes is None
        recorder.store.follow(follower_command(recorder.run) if alone else b"")
        context = self._context = HookContext(recorder, self._library)
        context.share(Validators(recorder, dispatch_mode.DispatchMode))
        engine = self._engine(context)
        context.enter_engine, context.flush_node = engine.enter, engine.flush_node
        recorder.on_step = self._memory.sample
        for hook in registry.BEFORE_ENGINE:
            self._install(hook, context)
        engine.start()
        self._undo.append(engine.stop)
        for hook in registry.WITH_ENGINE:
            self._install(hook, context)
        owner_of = context.get(SyncRecorder).owner_of
        self._watchdog = Watchdog(recorder, self._library, owner_of, context.stacks.is_library)
        self._watchdog.start()
        recorder.on_interrupt = self._watchdog.interrupted
        self._undo.append(self._watchdog.stop)
        os.register_at_fork(after_in_child=self._after_fork)
        self._memory.started()
        # A child of multiprocessing ends by os._exit: it skips atexit, but runs finalizers.
        multiprocessing.util.register_after_fork(self, Session._close_at_exit)

    def _engine(self, context: HookContext) -> native.NativeEngine | portable.PortableEngine:
        recorder = self.recorder
        if self._library is not None:
            return native.NativeEngine(recorder, self._library, context.stacks)
        collectives = Collectives(recorder, context.collective_stacks)
        self._install(Hook("waits for collectives", lambda _: collectives.install()), context)
        stacks = context.stacks if recorder.options.op_stacks else None
        return portable.PortableEngine(recorder, collectives, stacks)

    def _install(self, hook: Hook, context: HookContext) -> None:
        """Installs a hook if this recording uses it."""
        if self.recorder.options.level not in hook.levels or (hook.native and not self._library):
            return
        context.patches = patches.Patches()
        self._undo.append(context.patches.undo)
        try:
            with own_handles():
                undo = hook.install(context)
        except Exception as error:
            if hook.required or is_interruption(error):
                raise
            reason = f"{MISSING}{hook.name} ({type(error).__name__}: {error})"
            self.recorder.coverage[reason] = 1
        else:
            self._undo += [undo] if undo is not None else []

    @property
    def optimizers(self) -> optimizers.Optimizers | None:
        """Returns the observed optimizers; None before the start."""
        return self._context.get(optimizers.Optimizers) if self._context is not None else None

    def stop(self) -> None:
        """Removes all hooks and closes the journal. Safe to call twice."""
        recorder = self.recorder
        if recorder.closed:
            return
        for undo in reversed(self._undo):
            try:
                undo()
            except Exception as error:
                recorder.failed(error)
        self._undo.clear()
        recorder.close()

    def _after_fork(self) -> None:
        recorder, context = self.recorder, self._context
        if recorder.closed or fx_graphs.forking or context is None:
            return
        if (device := context.find(Device)) is not None:
            device.forget()
        try:
            recorder.after_fork(
                pid=os.getpid(),
                parent_pid=os.getppid(),
                role="child",
                closed=False,
                start_ns=clock.now(),
                end_ns=0,
                ended="",
                exception="",
            )
            if (cuda := context.find(CudaContexts)) is not None:
                cuda.forked()
            context.get(ThreadGradients).forked()
            if (numbers := context.find(ForkedNumbers)) is not None:
                numbers.forked()
            if self._watchdog is not None:
                self._watchdog.start(forked=True)
        except Exception as error:
            recorder.failed(error)

    def _close_at_exit(self) -> None:
        multiprocessing.util.Finalize(None, self._close_child, exitpriority=0)

    def _close_child(self) -> None:
        if self._watchdog is not None:  # a data-loader worker keeps KeyboardInterrupt to itself
            self._watchdog.keep_last("quiet")
        self.recorder.close()


def _prepare_hooks(recorder: Recorder) -> None:
    try:
        patches.prepare(build_trampolines.ensure_trampolines(), recorder.failed)
    except (BuildError, OSError) as error:
        patches.prepare(None, recorder.failed, str(error))


def _process(options: Options) -> dict[str, object]:
    """Returns the initial fields of process.json."""
    environment = os.environ
    return {
        "rank": int(environment.get("RANK", "0")),
        "world_size": int(environment.get("WORLD_SIZE", "1")),
        "pid": os.getpid(),
        "parent_pid": os.getppid(),
        "role": "child" if _is_spawned() else "rank",
        "host": socket.gethostname(),
        "start_ns": clock.now(),
        "end_ns": 0,
        "closed": False,
        "argv": sys.argv or [""],
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "modules_root": "",
        "clock_identity": clock.clock_identity(),
        "wall_minus_monotonic_ns": clock.wall_minus_monotonic_ns(),
        "level": options.level,
        "keep_last_bytes": options.keep_last_bytes,
        "source": options.source,
        "program_start_ns": clock.program_start_ns(),
        "working_folder": _working_folder(),
    }


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def _is_spawned() -> bool:
    # A spawned child imports the program's modules, also torch, before it has a parent process.
    return bool(multiprocessing.parent_process()) or "--multiprocessing-fork" in sys.orig_argv
