"""Data-loading phases: waiting for a batch in the trainer, fetching one in a worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.utils.data import get_worker_info

from ...format.record_kinds import PhaseKind
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..patches import Patches


def _always(recorder: Recorder) -> bool:
    return True


def _in_worker(recorder: Recorder) -> bool:
    worker = get_worker_info()
    if worker is None:
        return False
    recorder.name_thread(f"loader worker {worker.id}")
    return True


_FETCH = "torch.utils.data._utils.fetch"
_METHODS: tuple[tuple[str, str, str, str, Callable[[Recorder], bool]], ...] = (
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter", "__next__", "next(loader)", _always),
    # Without workers the fetch is inside next(loader) already.
    (_FETCH, "_MapDatasetFetcher", "fetch", "fetch", _in_worker),
    (_FETCH, "_IterableDatasetFetcher", "fetch", "fetch", _in_worker),
)


def install(recorder: Recorder) -> Callable[[], None]:
    """Record data-loading phases."""
    patches = Patches()
    for module, kind, name, label, wanted in _METHODS:
        owner = optional(module, kind, f"phases {label} of data loading")
        if owner is not None:
            patches.put(owner, name, _phase(recorder, getattr(owner, name), label, wanted))
    return patches.undo


def _phase(
    recorder: Recorder, original: Callable[..., Any], label: str, wanted: Callable[[Recorder], bool]
) -> Callable[..., Any]:
    @wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        try:
            depth = recorder.begin_phase(label, PhaseKind.data) if wanted(recorder) else None
        except Exception as error:
            recorder.failed(error)
            depth = None
        try:
            return original(*args, **kwargs)
        finally:
            if depth is not None:
                try:
                    recorder.end_phase(depth)
                except Exception as error:
                    recorder.failed(error)

    return method
