"""Records tasks and methods of actors that a worker process of Ray runs, and names the process.

Ray shows the running task as the title of the process; the hook reads that title.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch.distributed as dist

from ...format.record_kinds import PhaseKind
from ..base import Hook, HookContext

_LOST = "tasks of Ray"
_MODULE, _TITLE, _END = "ray._private.worker", "_changeproctitle", "record_task_log_end"
_PREFIX, _IDLE = "ray::", "IDLE"


class _Tasks(threading.local):
    """The phase of the task that a thread runs."""

    depth: int | None = None


def _hook(context: HookContext) -> None:
    """Records from now on; nothing in a process that Ray did not start as a worker."""
    ray: Any = sys.modules.get(_MODULE)
    if ray is None or ray.global_worker.mode != ray.WORKER_MODE:
        return
    recorder, patches, tasks = context.recorder, context.patches, _Tasks()
    if not (dist.is_available() and dist.is_initialized()):
        recorder.describe(role="child")  # of the program that started the tasks

    def begins(title: str, next_title: str) -> None:
        task, after = title.removeprefix(_PREFIX), next_title.removeprefix(_PREFIX)
        begin(task, task if after == _IDLE else after)

    def begin(task: str, worker: str) -> None:
        if recorder.process.get("worker") != worker:
            recorder.describe(worker=worker)
        tasks.depth = recorder.begin_phase(task, PhaseKind.user)

    def ends(*_: Any) -> None:
        if tasks.depth is not None:
            recorder.end_phase(tasks.depth)
            tasks.depth = None

    running = sys.modules["ray"].get_runtime_context()
    if running.get_task_id() is not None:  # it imported torch
        task = running.get_task_name()
        begin(task, task.partition(".")[0] if running.get_actor_id() else task)
    patches.ends(ray, _TITLE, begins, lost=_LOST)
    patches.ends(ray.Worker, _END, ends, lost=_LOST)


HOOK = Hook(_LOST, _hook)
