"""What torch.distributed calls its operations, whoever tells of them. Needs no torch."""

from __future__ import annotations

NAMES = {
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
"""Operator -> the name of torch.distributed; for others the trailing underscore is dropped."""

PAIRED = ("send", "recv", "batch_p2p_ops")
"""Between two ranks: counted apart from the collectives of the group, which all ranks call."""

UNMOVED = ("barrier", "monitored_barrier")
"""Move no data of the program's."""
