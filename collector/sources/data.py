"""Data-loading phases: waiting for a batch in the trainer, fetching one in a worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..kinds import PhaseKind
from ..recorder import Recorder


def _always(recorder: Recorder) -> bool:
    return True


def _in_worker(recorder: Recorder) -> bool:
    worker = get_worker_info()
    if worker is None:
        return False
    recorder.name_thread(f"loader worker {worker.id}")
    return True


_METHODS: tuple[tuple[type, str, str, Callable[[Recorder], bool]], ...] = (
    (_BaseDataLoaderIter, "__next__", "next(loader)", _always),
    # Without workers the fetch is inside next(loader) already.
    (_MapDatasetFetcher, "fetch", "fetch", _in_worker),
    (_IterableDatasetFetcher, "fetch", "fetch", _in_worker),
)


def install(recorder: Recorder) -> Callable[[], None]:
    """Record data-loading phases."""
    originals = [(owner, name, getattr(owner, name)) for owner, name, _, _ in _METHODS]
    for owner, name, label, wanted in _METHODS:
        setattr(owner, name, _phase(recorder, getattr(owner, name), label, wanted))

    def uninstall() -> None:
        for owner, name, original in originals:
            setattr(owner, name, original)

    return uninstall


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
