"""Names that stand in the tables: operators, collectives, device activities, series, coverage.

Needs neither torch nor pyarrow.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

# operators ---------------------------------------------------------------------------------

NOT_COMPUTING = (
    "aten::_reshape_alias",
    "aten::_reshape_copy",
    "aten::_unsafe_view",
    "aten::alias",
    "aten::arange",
    "aten::as_strided",
    "aten::chunk",
    "aten::detach",
    "aten::detach_",
    "aten::diagonal",
    "aten::empty*",
    "aten::expand",
    "aten::full_like",
    "aten::is_*",
    "aten::lift*",
    "aten::movedim",
    "aten::narrow",
    "aten::new_empty*",
    "aten::ones_like",
    "aten::permute",
    "aten::rand_like",
    "aten::randn_like",
    "aten::reshape",
    "aten::resolve_*",
    "aten::select",
    "aten::slice",
    "aten::split*",
    "aten::squeeze",
    "aten::squeeze_",
    "aten::stride",
    "aten::sym_*",
    "aten::t",
    "aten::t_",
    "aten::transpose",
    "aten::transpose_",
    "aten::unbind",
    "aten::unflatten",
    "aten::unfold",
    "aten::unsqueeze",
    "aten::unsqueeze_",
    "aten::view",
    "aten::view_as*",
    "aten::zeros_like",
    "profiler::*",
    "lanescope::*",  # the recorder's own, in compiled code
    # Scopes that torch opens around phases.
    "Optimizer.step#*",
    "enumerate(DataLoader)#*",
)
"""Operators left out by default: they make views, empty tensors or ramps, and would fill the
journal. `--include PATTERN` records matching ones; the coverage counts the others."""


class OpFilter:
    """Decides by name: exclusion by the user wins, then inclusion, then NOT_COMPUTING."""

    def __init__(self, include: tuple[str, ...], exclude: tuple[str, ...]) -> None:
        self._include = include
        self._exclude = exclude

    def wanted(self, name: str) -> bool:
        """Returns True if operators of that name are recorded. Patterns are those of fnmatch."""
        if any(fnmatchcase(name, p) for p in self._exclude):
            return False
        if any(fnmatchcase(name, p) for p in self._include):
            return True
        return not any(fnmatchcase(name, p) for p in NOT_COMPUTING)


RELEASED_GRADIENTS = "zero_grad(set_to_none=True)"
REMOVED_GRADIENT = ".grad = None"
REPLACED_GRADIENT = ".grad = another"
GRADIENT_RELEASES = frozenset({RELEASED_GRADIENTS, REMOVED_GRADIENT, REPLACED_GRADIENT})
"""Pseudo-operators that release gradients. They write no byte, and do not read the parameter."""

ARRIVALS = ("from_numpy", "as_tensor", "frombuffer")
"""Functions of torch that wrap memory owned by others in a tensor."""
MADE_GENERATOR = "torch.Generator"
MADE_STORAGE, EXCHANGED_DATA, SAVED = "torch.UntypedStorage", ".data = another", "torch.save"
NOTED_ACCESSES = GRADIENT_RELEASES | {
    MADE_GENERATOR,
    MADE_STORAGE,
    EXCHANGED_DATA,
    SAVED,
    *(f"torch.{name}" for name in ARRIVALS),
}
"""Pseudo-operators for accesses outside the dispatcher. Recorded only once a second thread exists,
so their presence depends on timing."""

COMPILED = " (compiled)"
"""Suffix of the names of graphs that torch.compile captured."""

FX_BREAK, FX_UNTRACEABLE = "break", "untraceable"
"""Values of the fx table's `op` beside torch.fx's own: where torch.compile stopped capturing, and a
model without a graph; the target is the reason."""

# collectives -------------------------------------------------------------------------------

COLLECTIVE_NAMES = {
    "_allgather_base_": "all_gather_into_tensor",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "all_gather_into_tensor_out": "all_gather_into_tensor",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather_coalesced",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor_coalesced",
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce_coalesced",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "irecv": "recv",
    "isend": "send",
    "recv_any_source_": "recv",
    "reduce_scatter_tensor_out": "reduce_scatter_tensor",
}
"""Operator -> its name in torch.distributed. For others, drop the trailing underscore."""

PAIRED = ("send", "recv", "batch_p2p_ops")
"""Operations between two ranks, numbered per peer; all others are numbered per group."""

UNMOVED = ("barrier", "monitored_barrier")
"""Collectives that move no data of the program."""

JOIN, RENDEZVOUS = "init_process_group", "rendezvous"
"""The call by which a process joins the others, and its group, as none exists yet. Recorded only
where the call did not succeed."""

# causes of waits ---------------------------------------------------------------------------

FORKED_LOCK = "a lock that was held when it was forked"
"""What a process waits for that its parent's watchdog found to be stuck."""

UNREAD_OUTPUT = "the end of a process whose output it does not read"
"""What a thread waits for in a dump where a pipe of that process is full."""

# device activities -------------------------------------------------------------------------

ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
"""Kineto's categories of activities that occupy a stream."""

OWN_ACTIVITY = "lanescope: "
"""Prefix of the names of activities that the recorder launched: norms of gradients, samples."""

CAPTURE = "CUDA graph capture"
"""The phase in which a thread captures a graph: nothing that it gives to streams runs then."""

LAUNCH_SUFFIXES = ("_runtime", "_driver")
"""Suffixes of Kineto's categories of calls that put work on streams."""


COMMUNICATION_KERNEL = re.compile(
    r"(nccl|msccl)\w*Kernel|ncclSymk|nvshmem|symmetric_memory|symm_mem|multimem"
    r"|(one|two)_shot_all_?reduce|cross_device_reduce"
)
"""Is found in the names of kernels that move data between ranks: those of NCCL and RCCL, of torch's
symmetric memory (multimem_one_shot_all_reduce_kernel) and of inference servers."""


def stream_name(device: str, stream: int | str) -> str:
    """Returns the name of a stream's lane: `stream 7 (cuda:0)`."""
    return f"stream {stream} ({device})"


LOADER_WORKER = "loader worker "
"""Name of the main thread of a DataLoader's worker; its number follows."""

# series of the value table -----------------------------------------------------------------

GRAPH_SERIES = "lanescope/graph/"
"""Prefix; the name of an autograd node follows: how many of them a backward will reach."""

SOFTMAX_DIM = "lanescope/softmax_dim/"
"""Prefix; the number of a node of a softmax, log_softmax or norm follows, in the graph that is
recorded node by node: the dimension over which it is taken, as the program gave it."""

RECORDER_MEMORY = "lanescope/recorder_memory"
"""Bytes of the resident set that belong to the recorder."""

SHARED_ADDRESS, SHARED_FILE = "lanescope/shared_address", "lanescope/shared_file"
"""Address of a storage in memory that other processes share, then the number of the memory's file:
two values one after another on a thread."""

LOSS_SCALE, SKIPPED_STEPS = "loss_scale", "skipped_steps"
"""The loss scale after each update of a gradient scaler; how many steps it has skipped so far."""

CLIP_NORM, CLIP_LIMIT, CLIP_VALUE = "clip_total_norm", "clip_max_norm", "clip_value"
"""The gradient norm before clip_grad_norm_, and its max_norm; the bound of clip_grad_value_."""

SHARD = "/shard"
"""Suffix of CLIP_NORM where it covers this rank's shards alone."""

ADDED_NORM = "lanescope/added_norm"
"""L2 norm of what a backward added to all gradients, where several threads of a process run
backward."""

ADDED_NORM_OF = "lanescope/added_norm/"
"""Prefix; the path of a module follows: the same for its parameters."""

BATCHES = "lanescope/batch/"
BATCH_HASH, BATCH_ROWS = f"{BATCHES}hash/", f"{BATCHES}rows/"
"""Prefixes; loaded/0, input/<class>/0 or output/<class>/0 follows, with the tensor's position. A
hash of some of its elements, below 2^52; how many of its rows were compared, negative if they are
alike."""

BATCH_STORAGE = f"{BATCHES}storage/"
"""Prefix; loaded/0 follows: the first byte of the storage of a tensor of a DataLoader's batch."""

LOADER_BEGUN, LOADER_END = f"{BATCHES}loader/begun", f"{BATCHES}loader/end"
"""An iteration over a DataLoader begins; it ended with its last batch. The values are 1."""

SAMPLER_EPOCH = f"{BATCHES}epoch/"
"""Prefix; the number of a distributed sampler that shuffles follows: its epoch as an iteration
begins."""

SAMPLER_END = f"{BATCHES}end/"
"""The same as an iteration ends, after its last batch."""

SAMPLER_SEED = f"{BATCHES}seed/"
"""The same: the seed from which it and the epoch give the order."""

RANDOM_STATE = f"{BATCHES}random/"
"""Prefix; a device follows: a hash, below 2^52, of the state of torch's default random generator as
an outermost module in training is called."""

OTHER_RANDOM_STATE = f"{BATCHES}other_random/"
"""Prefix; Python or NumPy follows: the same for its generator that `seed` sets."""

LEFT_OUT = f"{BATCHES}left_out/"
"""Prefix; the name of a parameter follows whose gradients the DistributedDataParallel around its
model does not reduce: why, as a place in LEFT_OUT_CAUSES."""

LEFT_OUT_CAUSES = ("unknown", "ignored", "unfrozen")
"""Words of LEFT_OUT's values."""

BUFFER_HASH = f"{BATCHES}buffer/"
"""Prefix; the name of a buffer follows: a hash of some of its elements."""

TRAINING_MODE = "lanescope/training/"
"""Prefix; the name of a model follows: whether it is in training mode as it is called with
gradients, at the first such call and where that has changed."""

EVALUATION_MODE = "lanescope/evaluated/"
"""Prefix; the name of a model follows: whether it, or a dropout within it, is in training mode as
it is called without gradients, at the first such call and where that has changed."""

LISTED_MODULE = "lanescope/listed/"
"""Prefix; file.py:12 where a container is set, its path, the class of a module that it lists twice
or more and the name of one of its parameters follow, each after a slash: how often it is listed."""

MADE_PARAMETER = "lanescope/made_parameter/"
"""Prefix; file.py:12 where a forward makes a trainable parameter, a slash and the name of the
parameter that it is made of, or nothing, follow: its elements. At the steps at which parameters are
sampled."""

LOSS_DIVISOR = "lanescope/loss_divisor"
"""The number by which the loss was divided last of all before a backward, or the inverse of that
with which it was multiplied; at the steps of GRAPH_SERIES."""

EMPTY_MEAN = "lanescope/empty_mean"
"""An operator that begins then takes a mean of no element (0), or of so many targets that are all
ignored or of classes without weight."""

NAN_LOSS, ZERO_LOSS = "lanescope/nan_loss", "lanescope/zero_loss"
NEGATIVE_LOSS = "lanescope/negative_loss"
"""A backward begins, and its loss is NaN (1), is a binary cross-entropy below zero (1), or is 0:
what share of the largest loss of its kind the last other one was."""

WORKER_STATE = "lanescope/worker/state/"
"""Prefix; an iteration over a DataLoader, the name of a random generator and file.py:12 of the
worker_init_fn follow, each after a slash: a hash, below 2^52, of the generator's state in a worker
before its first fetch, where this draws from it."""

WORKER_BATCH = "lanescope/worker/batch/"
"""Prefix; the iteration, a slash and 1 or 2 follow: a hash of the first and the second batch that a
worker made of an IterableDataset."""

WORK_BEGUN = "lanescope/collectives/reduction_begun"
"""A collective with async_op=True, isend or irecv has returned, whose end is to be asked for."""

WORK_ASKED = "lanescope/collectives/work_asked"
"""The program asks for the end of a collective, for the first time since WORK_BEGUN."""

IN_ORDER = f"{BATCHES}in_order"
"""An iteration over a DataLoader begins: 1 where it goes through a dataset in its order."""

REPLICAS = f"{BATCHES}replicas"
"""The number of ranks between which the DistributedDataParallel that is called reduces."""

SETTINGS = "lanescope/setting/"
"""Prefix; a setting of the program follows, as it was at the first step of an optimizer: "seed",
"threads", or "SGD 0, group 1, lr" with the optimizer's class and number."""

ENVIRONMENT = "environment "
"""Prefix of a setting's name; the variable, "=" and its text follow."""

SETTING_FLAGS = ("deterministic algorithms", "cudnn deterministic", "cudnn benchmark")
"""Settings that are 0 or 1."""

MATMUL_PRECISION = "float32 matmul precision"
"""A setting, the place of torch's word in MATMUL_PRECISIONS."""

MATMUL_PRECISIONS = ("highest", "high", "medium")

# reasons in a process's coverage -----------------------------------------------------------

THINNED = "thinned_steps"
"""Steps with parts that are not recorded, because the recording came near its disk bound."""

UNSEEN_BY = {
    "portable": {
        "unseen_composite_operators": "operators made of others (only those they are made of)",
        "unseen_inner_operators": "operators that an operator calls below autograd",
        "unseen_node_bounds": "exact bounds of autograd nodes (a slice spans the node's operators)",
        "unseen_empty_nodes": "autograd nodes that run no operator",
        "unseen_accesses": "reads and writes of storages",
        "unseen_compiled_regions": "regions of torch.compile (only operators that they call)",
        "unseen_backend_threads": "what backends do on threads of their own",
    }
}
"""Engine -> what it cannot see: reason, and its words. Other engines see these. The coverage holds
the reason once, because the number of events is unknown."""

MISSING = "missing: "
"""Prefix: `missing: <unrecorded events> (no <private name>)`. This version of torch or Python
lacks the name."""

UNTESTED = "untested: "
"""Prefix: `untested: torch 9.1.0`, a version newer than the newest that is tested."""

ANY_TOOL = "chrome"
"""Engine of imported traces whose slices may be any work: no known tool wrote them, or their ranks
were named on import."""

LEFT_TOGETHER = (
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "barrier",
)
"""Operations that complete on no rank before every rank has entered, whatever each one sends: in an
all_to_all two ranks may exchange nothing."""

SYNCHRONISING = (*LEFT_TOGETHER, "all_to_all", "all_to_all_single", "monitored_barrier", JOIN)
"""Operations that no rank can leave before all have entered; a root or a sender can be done with
the others (broadcast, reduce, scatter, gather, send) long before its partners begin."""
