"""Writes one record of each table into a journal, and says what must be read back."""

from __future__ import annotations

from typing import Any

from lanescope.collector.format.record_kinds import (
    FX_NODE,
    GradientScope,
    OpScope,
    PhaseKind,
    SampleRecord,
    SyncKind,
)
from lanescope.collector.journal.journal import (
    ACCESS_RECORD,
    NO_SEQUENCE,
    RECORD,
    TENSOR_MORE_RECORD,
    TENSOR_RECORD,
    AccessFlag,
    RecordKind,
    TensorFlag,
    float_bits,
)
from lanescope.collector.recorder.recorder import Recorder


def signature(recorder: Recorder) -> int:
    return recorder.intern("[2, 3] [3]\tfloat32 bfloat16\tcpu")


def write_op(r: Recorder) -> dict[str, Any]:
    r.put(
        r.thread(),
        RecordKind.OP,
        scope=OpScope.backward,
        depth=3,
        name=r.intern("MulBackward0"),
        start=100,
        end=150,
        sequence=9,
        signature=signature(r),
        stack=r.intern("a.py\t12\tf\nb.py\t3\t<module>"),
    )
    return {
        "start_ns": 100,
        "duration_ns": 50,
        "self_ns": 50,
        "name": "MulBackward0",
        "scope": "backward",
        "depth": 3,
        "step": 4,
        "phase": "warm-up",
        "module": "blocks.0",
        "sequence": 9,
        "shapes": "[2, 3] [3]",
        "dtypes": "float32 bfloat16",
        "device": "cpu",
        "stack": 0,
        "launch_ns": None,
        "launch_thread": "",
    }


def write_access(r: Recorder) -> dict[str, Any]:
    first = (AccessFlag.WRITE | AccessFlag.BIRTH, 1, 0x7F0000000040, 8, 24)
    second = (0, 3, 0xFFFF0000000080, 0, 2**40)
    packed = ACCESS_RECORD.pack(
        0, 2, first[0] | second[0] << 8, *first[1:], second[1], 3, *second[2:]
    )
    r.thread().journal.append(RecordKind.ACCESS, *RECORD.unpack(packed)[1:])
    write_op(r)
    return {
        "start_ns": 100,
        "duration_ns": 50,
        "depth": 3,
        "storage": 0x7F0000000040,
        "offset": 8,
        "bytes": 24,
        "run": 24,
        "stride": 0,
        "stream": 3,
        "version": 1,
        "write": True,
        "birth": True,
    }


def write_collective(r: Recorder) -> dict[str, Any]:
    r.put(
        r.thread(),
        RecordKind.COLLECTIVE,
        scope=1,
        name=r.intern("send"),
        start=100,
        end=150,
        sequence=2,
        signature=signature(r),
        aux=r.intern("dp\t4\t3\t\t"),
        extra=2**40,
    )
    r.put(
        r.thread(),
        RecordKind.COLLECTIVE_END,
        name=r.intern("send"),
        end=190,
        sequence=2,
        aux=r.intern("dp\t4\t3\t\t"),
    )
    return {
        "start_ns": 100,
        "duration_ns": 50,
        "complete_ns": 190,
        "name": "send",
        "group": "dp",
        "group_size": 4,
        "sequence": 2,
        "peer": 3,
        "root": None,
        "reduce_op": "",
        "splits": "",
        "shapes": "[2, 3] [3]",
        "dtypes": "float32 bfloat16",
        "bytes": 2**40,
        "asynchronous": True,
        "runnable_ns": None,
        "step": 4,
        "phase": "warm-up",
        "module": "blocks.0",
        "stack": None,
    }


def write_gradient(r: Recorder) -> dict[str, Any]:
    r.put(
        r.thread(),
        RecordKind.GRADIENT,
        name=r.intern("fc.weight"),
        start=100,
        signature=r.intern("\tfloat16\tcuda:1"),
        sequence=float_bits(0.1),
        extra=64,
        aux=1,
    )
    r.put(
        r.thread(),
        RecordKind.GRADIENT,
        scope=GradientScope.HASHES,
        name=r.intern("fc.weight"),
        start=100,
        sequence=-(2**63),
        extra=2**63 - 1,
        aux=1,
    )
    return {
        "time_ns": 100,
        "step": 4,
        "parameter": "fc.weight",
        "norm": 0.1,
        "numel": 64,
        "dtype": "float16",
        "device": "cuda:1",
        "optimizer": 1,
        "grad_hash": -(2**63),
        "param_hash": 2**63 - 1,
    }


def write_parameter(r: Recorder) -> dict[str, Any]:
    """As two engines may interleave it with another optimizer's sample of the same instant."""
    sample: dict[str, Any] = {
        "kind": RecordKind.GRADIENT,
        "scope": GradientScope.SAMPLE,
        "start": 100,
        "aux": 3,
        "name": r.intern("fc.weight"),
    }
    state, bits = r.thread(), float_bits
    r.put(
        state,
        depth=SampleRecord.gradient,
        sequence=bits(0.5),
        extra=32,
        signature=r.intern("\tfloat16\tcuda:1"),
        **sample,
    )
    r.put(state, depth=SampleRecord.change, sequence=bits(9.0), **{**sample, "aux": 1})
    r.put(state, depth=SampleRecord.spread, sequence=bits(0.25), extra=bits(0.75), **sample)
    r.put(state, depth=SampleRecord.parameter, sequence=bits(3.0), extra=2**40, **sample)
    r.put(
        state,
        depth=SampleRecord.rule,
        sequence=bits(0.1),
        extra=bits(float("nan")),
        signature=r.intern("AdamW"),
        **sample,
    )
    return {
        "time_ns": 100,
        "step": 4,
        "parameter": "fc.weight",
        "optimizer": 2,
        "trainable": True,
        "skipped": False,
        "numel": 32,
        "whole_numel": 2**40,
        "dtype": "float16",
        "device": "cuda:1",
        "grad_norm": 0.5,
        "grad_max": 0.25,
        "grad_zeros": 0.75,
        "norm": 3.0,
        "update_ratio": None,
        "lr": 0.1,
        "weight_decay": None,
        "rule": "AdamW",
    }


def write_activation(r: Recorder) -> dict[str, Any]:
    r.put(
        r.thread(),
        RecordKind.GRADIENT,
        scope=GradientScope.ACTIVATION,
        name=r.intern("blocks.0"),
        start=100,
        sequence=float_bits(1.5),
        extra=64,
        aux=1,
        signature=r.intern("\tbfloat16\tcpu"),
    )
    return {
        "time_ns": 100,
        "step": 4,
        "module": "blocks.0",
        "norm": 1.5,
        "numel": 64,
        "dtype": "bfloat16",
        "device": "cpu",
        "training": True,
    }


def write_node(r: Recorder) -> dict[str, Any]:
    r.put(
        r.thread(),
        RecordKind.GRADIENT,
        scope=GradientScope.NODE,
        name=r.intern("MmBackward0"),
        start=100,
        aux=3,
        sequence=NO_SEQUENCE,
        signature=r.intern("4 5"),
        extra=r.intern("fc.weight"),
    )
    return {
        "time_ns": 100,
        "step": 4,
        "node": 3,
        "name": "MmBackward0",
        "sequence": None,
        "parameter": "fc.weight",
        "next": "4 5",
    }


def write_fx(r: Recorder) -> dict[str, Any]:
    r.put(
        r.thread(),
        RecordKind.GRADIENT,
        scope=GradientScope.NODE,
        depth=FX_NODE,
        start=100,
        aux=2,
        name=r.intern("torch.relu"),
        extra=r.intern("relu_1"),
        sequence=r.intern("blocks.0"),
        signature=r.intern("3 4\tcall_function\t1 Net"),
        stack=r.intern("a\t1\tf"),
    )
    return {
        "time_ns": 100,
        "step": 4,
        "graph": "1 Net",
        "node": 2,
        "name": "relu_1",
        "op": "call_function",
        "target": "torch.relu",
        "module": "blocks.0",
        "stack": 0,
        "next": "3 4",
    }


def write_sync(r: Recorder) -> dict[str, Any]:
    r.sync(SyncKind.thread_join, 100, 150, peer=2, stack=r.intern("a.py\t1\tf"))
    return {
        "start_ns": 100,
        "duration_ns": 50,
        "kind": "thread_join",
        "peer": "7-2",
        "object": None,
        "stream": None,
        "step": 4,
        "stack": 0,
    }


def write_value(r: Recorder) -> dict[str, Any]:
    r.put(r.thread(), RecordKind.VALUE, name=r.intern("loss"), start=100, sequence=float_bits(-2.5))
    return {"time_ns": 100, "name": "loss", "value": -2.5, "step": 4}


def write_phase(r: Recorder) -> dict[str, Any]:
    r.put(
        r.thread(),
        RecordKind.PHASE,
        scope=PhaseKind.data,
        depth=1,
        name=r.intern("next"),
        start=100,
        end=150,
    )
    return {
        "start_ns": 100,
        "duration_ns": 50,
        "name": "next",
        "kind": "data",
        "depth": 1,
        "step": 4,
        "module": "blocks.0",
    }


def write_tensor(r: Recorder) -> dict[str, Any]:
    flags = TensorFlag.FOUND | TensorFlag.MORE | TensorFlag.KNOWN
    signature = r.intern("[4, 8]\tfloat32\tcpu")
    for packed in (
        TENSOR_RECORD.pack(
            RecordKind.TENSOR, 3, 7 | flags, signature, 100, -5, 6, 0.5, 2.5, -1, 1.5
        ),
        TENSOR_MORE_RECORD.pack(RecordKind.TENSOR_MORE, 1, 0, 0, 2, 1, -9, 0, 0, 0, 0),
    ):
        r.thread().journal.append(*RECORD.unpack(packed))
    return {
        "start_ns": 100,
        "depth": 3,
        "position": "read7",
        "shape": "[4, 8]",
        "dtype": "float32",
        "device": "cpu",
        "numel": 32,
        "mean": 0.5,
        "l2": 2.5,
        "min": -1.0,
        "max": 1.5,
        "nan": 2,
        "inf": 1,
        "zeros": 6,
        "hash": -5,
        "expected": -9,
        "unset": False,
        "finite_inputs": False,
    }


WRITERS = {
    "op": write_op,
    "access": write_access,
    "tensor": write_tensor,
    "collective": write_collective,
    "gradient": write_gradient,
    "parameter": write_parameter,
    "activation": write_activation,
    "node": write_node,
    "fx": write_fx,
    "sync": write_sync,
    "value": write_value,
    "phase": write_phase,
}
