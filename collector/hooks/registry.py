"""Lists the modules of all hooks, in the order of installation: each may use objects of earlier
ones."""

from __future__ import annotations

from importlib import import_module

from .base import Hook


def _hooks(*modules: str) -> tuple[Hook, ...]:
    return tuple(import_module(f".{one}", __package__).HOOK for one in modules)


BEFORE_ENGINE = _hooks(
    "training.modules",
    "training.gradients",
    "training.optimizers",
    "training.activations",
    "graphs.fx_graphs",
    "graphs.autograd_graph",
    "training.thread_gradients",
    "training_loop.scaled_losses",
    "training.clipping",
    "training_loop.scaled_gradients",
    "training_loop.left_gradients",
    "threads.suspended_modes",
    "training.autograd",
    "training.batches",
    "training.made_parameters",
    "threads.forked_numbers",
    "training_loop.seeded_samples",
    "training.data",
    "collectives.clocks",
    "collectives.init_process_group",
    "collectives.ranks",
    "collectives.outside_groups",
    "collectives.pending_works",
    "collectives.rpc",
    "training.compiled",
    "training.scaler",
    "training_loop.loaded_states",
    "training_loop.schedulers",
    "training_loop.renewed_optimizers",
    "training_loop.unread_settings",
    "training_loop.checkpoint_random_numbers",
    "training_loop.saved_files",
    "threads.sync_events",
    "threads.locks",
    "threads.conditions",
    "threads.unfinished_work",
    "threads.queues",
    "threads.futures",
    "threads.torch_futures",
    "threads.blocked_loops",
    "accesses.gradient_release",
    "accesses.data_swap",
    "accesses.external_memory",
    "devices.streams",
    "threads.contexts",
    "threads.threads",
    "threads.ray_tasks",
    "threads.sampled_lines",
)
"""Before the engine records: its first operator needs the names of modules."""

WITH_ENGINE = _hooks(
    "validators",
    "devices.cuda_contexts",
    "cuda_graphs",
    "devices.device",
    "exceptions",
)
"""Once the engine records: attaching a validator may run operators."""
