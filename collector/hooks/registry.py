"""Lists all hooks, in the order of installation: each may use objects of earlier ones."""

from __future__ import annotations

from . import cuda_graphs, exceptions, validators
from .accesses import data_swap, external_memory, gradient_release
from .base import Hook
from .collectives import clocks, init_process_group, outside_groups, pending_works, ranks, rpc
from .devices import cuda_contexts, device, streams
from .graphs import autograd_graph, fx_graphs
from .threads import (
    blocked_loops,
    conditions,
    contexts,
    forked_numbers,
    futures,
    locks,
    queues,
    ray_tasks,
    sampled_lines,
    suspended_modes,
    sync_events,
    threads,
    torch_futures,
    unfinished_work,
)
from .training import (
    activations,
    autograd,
    batches,
    clipping,
    compiled,
    data,
    gradients,
    made_parameters,
    modules,
    optimizers,
    scaler,
    thread_gradients,
)
from .training_loop import (
    checkpoint_random_numbers,
    left_gradients,
    loaded_states,
    renewed_optimizers,
    saved_files,
    scaled_gradients,
    scaled_losses,
    schedulers,
    seeded_samples,
    unread_settings,
)

BEFORE_ENGINE: tuple[Hook, ...] = (
    modules.HOOK,
    gradients.HOOK,
    optimizers.HOOK,
    activations.HOOK,
    fx_graphs.HOOK,
    clipping.HOOK,
    autograd_graph.HOOK,
    thread_gradients.HOOK,
    scaled_losses.HOOK,
    scaled_gradients.HOOK,
    left_gradients.HOOK,
    suspended_modes.HOOK,
    autograd.HOOK,
    batches.HOOK,
    made_parameters.HOOK,
    forked_numbers.HOOK,
    seeded_samples.HOOK,
    data.HOOK,
    clocks.HOOK,
    init_process_group.HOOK,
    ranks.HOOK,
    outside_groups.HOOK,
    pending_works.HOOK,
    rpc.HOOK,
    compiled.HOOK,
    scaler.HOOK,
    loaded_states.HOOK,
    schedulers.HOOK,
    renewed_optimizers.HOOK,
    unread_settings.HOOK,
    checkpoint_random_numbers.HOOK,
    saved_files.HOOK,
    sync_events.HOOK,
    locks.HOOK,
    conditions.HOOK,
    unfinished_work.HOOK,
    queues.HOOK,
    futures.HOOK,
    torch_futures.HOOK,
    blocked_loops.HOOK,
    gradient_release.HOOK,
    data_swap.HOOK,
    external_memory.HOOK,
    streams.HOOK,
    contexts.HOOK,
    threads.HOOK,
    ray_tasks.HOOK,
    sampled_lines.HOOK,
)
"""Before the engine records: its first operator needs the names of modules."""

WITH_ENGINE: tuple[Hook, ...] = (
    validators.HOOK,
    cuda_contexts.HOOK,
    cuda_graphs.HOOK,
    device.HOOK,
    exceptions.HOOK,
)
"""Once the engine records: attaching a validator may run operators."""
