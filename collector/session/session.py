"""Wires recorder, engine and sources together; the only place that knows all of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.util
import os
import platform
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from ..engines import build_trampolines, native, portable
from ..engines.build import BuildError
from ..format.names import MISSING
from ..format.options import SUPERVISOR_VARIABLE, Options
from ..hooks import exceptions, patches, validators
from ..hooks.accesses import data_swap, external_memory, gradient_release
from ..hooks.collectives import clocks, init_process_group, ranks
from ..hooks.collectives.collectives import Collectives
from ..hooks.devices import cuda_contexts, device, streams
from ..hooks.graphs import autograd_graph, fx_graphs
from ..hooks.stacks import Stacks
from ..hooks.threads import conditions, futures, locks, queues, threads, torch_futures
from ..hooks.threads.contexts import Contexts
from ..hooks.threads.sync_events import Handovers
from ..hooks.training import (
    activations,
    autograd,
    clipping,
    compiled,
    data,
    memory,
    modules,
    optimizers,
    scaler,
)
from ..hooks.training.gradients import Gradients
from ..hooks.training.norms import Norms
from ..hooks.training.thread_gradients import Contributions
from ..journal import clock
from ..journal.background_compactor import follower_command
from ..journal.interruptions import is_interruption
from ..recorder.recorder import Recorder
from ..watchdog.watchdog import Watchdog


class Session:
    """The recording of this process, from `start` to `stop`."""

    def __init__(self, run: Path, options: Options, resident: int) -> None:
        """`resident`: bytes in memory before the recorder was loaded."""
        self._memory = memory.Memory(resident)
        self._library = native.library_for(options)
        store = None
        if self._library is not None:
            store = native.NativeStore(self._library, options.keep_last_bytes)
        self.recorder = Recorder(run, options, store)
        self.recorder.engine = native.NAME if self._library else portable.NAME
        self.recorder.describe(**_process(options), engine=self.recorder.engine)
        already = threading.active_count() - 1
        if already:
            self.recorder.coverage["threads_started_before"] = already
        self._undo: list[Callable[[], None]] = []
        self._gradients: Gradients | None = None
        self._device: device.Device | None = None
        self._cuda: cuda_contexts.CudaContexts | None = None
        self._contributions: Contributions | None = None
        self.optimizers: optimizers.Optimizers | None = None
        self._watchdog: Watchdog | None = None

    def start(self) -> None:
        """Install everything. What fails is left out and said once; the program goes on."""
        recorder, options = self.recorder, self.recorder.options
        _prepare_hooks(recorder)
        alone = os.environ.get(SUPERVISOR_VARIABLE) is None and options.keep_last_bytes is None
        recorder.store.follow(follower_command(recorder.run) if alone else b"")
        stacks = Stacks(recorder.intern, options.stack_depth)
        for_collectives = stacks if options.collective_stacks else None
        engine: native.NativeEngine | portable.PortableEngine
        if self._library is not None:
            engine = native.NativeEngine(recorder, self._library, stacks)
        else:
            collectives = Collectives(recorder, for_collectives)
            self._add("waits for collectives", collectives.install)
            engine = portable.PortableEngine(
                recorder, collectives, stacks if options.op_stacks else None
            )

        names, undo = modules.install(recorder)
        self._undo.append(undo)
        reader = self._library.reader if self._library else None
        norms = Norms(reader)
        gradients = self._gradients = Gradients(recorder, names, norms, reader)
        found, undo = optimizers.install(recorder, gradients.record, gradients.after)
        self.optimizers = found
        self._undo.append(undo)
        self._add("activations", lambda: activations.install(recorder, names, norms))
        fx = fx_graphs.FxGraphs(recorder)
        self._add("torch.fx graphs", lambda: fx.install(names))
        self._add("clipping", lambda: clipping.install(recorder))
        recorder.on_step = self._memory.sample
        # The portable engine does not see nodes that run no operator.
        found_graphs = autograd_graph.Graphs(
            recorder, names.parameter_name, counts=self._library is not None
        )
        added = self._contributions = Contributions(recorder, names, norms)
        self._undo.append(added.remove)
        self._add(
            "backward phases",
            lambda: autograd.install(
                recorder, found_graphs.sample, engine.flush_node, found.backward_ended, added
            ),
        )
        self._add("data loading", lambda: data.install(recorder))
        measured = clocks.Clocks(recorder)
        self._add("init_process_group", lambda: init_process_group.install(recorder, stacks))
        self._add("process groups", lambda: ranks.install(recorder, measured.joined))
        self._undo.append(measured.stop)
        self._undo.append(compiled.install(options.compile_backend))
        self._add(
            "gradient scalers",
            lambda: scaler.install(
                recorder, lambda one: gradients.skipped(one, found.ordinal(one))
            ),
        )
        handovers = Handovers(recorder, for_collectives)
        for source in (locks, conditions, queues, futures, torch_futures):
            self._add(f"order of threads ({source.__name__})", partial(source.install, handovers))
        if self._library is not None and options.level != "timing":
            for one in (gradient_release, data_swap):
                install = partial(one.install, recorder, stacks)
                self._add(f"accesses ({one.__name__})", install)
            install = partial(external_memory.install, recorder, handovers, stacks)
            self._add(f"accesses ({external_memory.__name__})", install)
            if options.streams:
                sync = self._library.device_sync
                self._add("device streams", lambda: streams.install(recorder, sync))
        if threading.active_count() > 1:
            handovers.second_thread()
        checks = validators.Validators(recorder, portable.DispatchMode)
        fx.captured = checks.captured

        @contextlib.contextmanager
        def inside() -> Iterator[None]:
            with engine.enter(), checks.enter():
                yield

        contexts = Contexts(recorder, for_collectives)
        self._add("context variables", contexts.install)
        self._add(
            "threads",
            lambda: threads.install(recorder, for_collectives, handovers, contexts, inside),
        )
        engine.start()
        self._undo.append(engine.stop)
        self._add("validators", checks.install)
        self._add("CUDA contexts", self._follow_cuda)
        if options.device_activity:
            self._add("activities of devices", self._follow_device)
        self._watchdog = Watchdog(recorder, self._library, handovers.holder, stacks.is_library)
        self._watchdog.start()
        self._undo.append(self._watchdog.stop)
        self._add("exceptions", lambda: exceptions.install(recorder, stacks.is_library))
        os.register_at_fork(after_in_child=self._after_fork)
        self._memory.started()
        # A child of multiprocessing leaves through os._exit, past atexit, but runs finalizers.
        multiprocessing.util.register_after_fork(self, Session._close_at_exit)

    def _add(self, lost: str, install: Callable[[], Callable[[], None]]) -> None:
        """Install a source. One that this version of torch or Python breaks is left out."""
        try:
            self._undo.append(install())
        except Exception as error:
            if is_interruption(error):
                raise
            reason = f"{MISSING}{lost} ({type(error).__name__}: {error})"
            self.recorder.coverage[reason] = 1

    def _follow_cuda(self) -> Callable[[], None]:
        self._cuda, undo = cuda_contexts.install(self.recorder)
        return undo

    def _follow_device(self) -> Callable[[], None]:
        self._device, undo = device.install(self.recorder)
        return undo

    def stop(self) -> None:
        """Remove every hook and close the journal. Safe to call twice."""
        recorder = self.recorder
        if recorder.closed:
            return
        for undo in reversed(self._undo):
            try:
                undo()
            except Exception as error:
                recorder.failed(error)
        self._undo.clear()
        try:
            if self._gradients is not None and recorder.folder is not None:
                self._gradients.close()
        except Exception as error:
            recorder.failed(error)
        recorder.close()

    def _after_fork(self) -> None:
        recorder = self.recorder
        if recorder.closed or fx_graphs.forking:
            return
        if self._device is not None:
            self._device.forget()
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
            if self._cuda is not None:
                self._cuda.forked()
            if self._contributions is not None:
                self._contributions.forked()
            if self._watchdog is not None:
                self._watchdog.start()
        except Exception as error:
            recorder.failed(error)

    def _close_at_exit(self) -> None:
        multiprocessing.util.Finalize(None, self.recorder.close, exitpriority=0)


def _prepare_hooks(recorder: Recorder) -> None:
    try:
        patches.prepare(build_trampolines.ensure_trampolines(), recorder.failed)
    except (BuildError, OSError) as error:
        patches.prepare(None, recorder.failed, str(error))


def _process(options: Options) -> dict[str, object]:
    """What process.json says from the start."""
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
    }


def _is_spawned() -> bool:
    # A spawned child imports the program's modules, torch among them, before it has a parent.
    return bool(multiprocessing.parent_process()) or "--multiprocessing-fork" in sys.orig_argv
