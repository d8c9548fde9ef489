"""Records data-loading phases: waiting for a batch in the trainer, fetching one in a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import get_worker_info

from ...format.names import LOADER_WORKER
from ...format.record_kinds import PhaseKind
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..training_loop.changed_samples import StoredSamples
from ..training_loop.seeded_samples import SeededSamples
from .batches import Batches
from .loader_workers import LoaderWorkers


def _always(recorder: Recorder) -> bool:
    return True


def _in_worker(recorder: Recorder) -> bool:
    worker = get_worker_info()
    if worker is None:
        return False
    recorder.name_thread(f"{LOADER_WORKER}{worker.id}")
    return True


_FETCH = "torch.utils.data._utils.fetch"
_ITERATORS = ("torch.utils.data.dataloader", "_BaseDataLoaderIter")
_METHODS: tuple[tuple[str, str, str, str, Callable[[Recorder], bool]], ...] = (
    (*_ITERATORS, "__next__", "next(loader)", _always),
    # Without workers the fetch is inside next(loader) already.
    (_FETCH, "_MapDatasetFetcher", "fetch", "fetch", _in_worker),
    (_FETCH, "_IterableDatasetFetcher", "fetch", "fetch", _in_worker),
)


def _hook(context: HookContext) -> None:
    """Records data-loading phases; `batches` gets those of the trainer, `seeds` its fetches."""
    recorder, patches = context.recorder, context.patches
    batches, seeds = context.find(Batches), context.find(SeededSamples)
    workers = None if batches is None else LoaderWorkers(recorder)
    samples = None if batches is None else StoredSamples(recorder)
    for module, kind, name, label, wanted in _METHODS:
        owner = optional(module, kind, f"phases {label} of data loading")
        if owner is not None:
            if wanted is _always:
                patches.ends(
                    owner, name, *_phase(recorder, label, wanted, batches), self_alone=True
                )
            else:
                patches.ends(owner, name, *_fetch(recorder, label, workers, samples, seeds))
    iterators = None if batches is None else optional(*_ITERATORS, "orders of DataLoaders")
    if batches is not None and iterators is not None:
        orders = batches.orders
        patches.ends(iterators, "_next_index", orders.asks, orders.chosen, self_alone=True)


def _fetch(
    recorder: Recorder,
    label: str,
    workers: LoaderWorkers | None,
    samples: StoredSamples | None,
    seeds: SeededSamples | None,
) -> tuple[Callable[..., Any], ...]:
    def begin(fetcher: Any, wanted: Any = None) -> tuple[int | None, Any, Any, bool] | None:
        began = None if samples is None else samples.fetches(fetcher, wanted)
        watched = seeds is not None and seeds.fetches()
        if not _in_worker(recorder):
            return (None, fetcher, began, watched) if watched or began is not None else None
        if workers is not None:
            workers.fetches(fetcher)
        return recorder.begin_phase(label, PhaseKind.data), fetcher, began, watched

    def done(begun: tuple[int | None, Any, Any, bool], batch: Any) -> None:
        depth, fetcher, began, watched = begun
        if watched and seeds is not None:
            seeds.fetched()
        if depth is not None:
            recorder.end_phase(depth)
            if workers is not None:
                workers.fetched(fetcher, batch)
        if samples is not None and began is not None:
            samples.fetched(began)

    def raised(begun: tuple[int | None, Any, Any, bool], error: BaseException) -> None:
        if begun[0] is not None:
            recorder.end_phase(begun[0])
        if begun[3] and seeds is not None:
            seeds.failed()

    return begin, done, raised


def _phase(
    recorder: Recorder, label: str, wanted: Callable[[Recorder], bool], batches: Batches | None
) -> tuple[Callable[..., Any], ...]:
    def begin(iterator: Any) -> tuple[int, Any] | None:
        if batches is not None:
            batches.iterates(iterator)
        return (recorder.begin_phase(label, PhaseKind.data), iterator) if wanted(recorder) else None

    def done(begun: tuple[int, Any], batch: Any) -> None:
        recorder.end_phase(begun[0])
        if batches is not None:
            batches.loaded(begun[1], batch)

    def raised(begun: tuple[int, Any], error: BaseException) -> None:
        recorder.end_phase(begun[0])
        if batches is not None and isinstance(error, StopIteration):
            batches.exhausted(begun[1])

    return begin, done, raised


HOOK = Hook("data loading", _hook)
