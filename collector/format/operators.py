"""Tables of operators, their memory accesses and their tensors."""

import pyarrow as pa

from .columns import (
    ARGS,
    DURATION,
    FLOAT64,
    IN_MODULE,
    IN_PHASE,
    INT32,
    INT64,
    OP_START,
    STACK_ID,
    START,
    STEP,
    TEXT,
    Column,
    Table,
)

OP = Table(
    "op",
    True,
    "One dispatched operator, autograd node, optimizer step or user scope on one thread; one "
    "kernel, copy or fill (scope kernel) on one stream of a device.",
    (
        START,
        DURATION,
        Column("self_ns", INT64, "ns", "duration minus that of direct children; null: unfinished"),
        Column("name", TEXT, "", "operator as the dispatcher knows it (aten::mm), or node name"),
        Column("scope", TEXT, "", "one of OpScope: what made the event"),
        Column("depth", pa.int16(), "1", "nesting on its thread, 0 outermost"),
        STEP,
        IN_PHASE,
        IN_MODULE,
        Column(
            "sequence",
            INT64,
            "1",
            "autograd sequence number (per forward thread): this forward op made the backward node "
            "with the same number; null: none",
        ),
        Column("shapes", TEXT, "elements", "shapes of tensor inputs: [4, 8] [8]; empty: none"),
        Column("dtypes", TEXT, "", "dtypes of tensor inputs: float32 float32"),
        Column("device", TEXT, "", "device of the first tensor input, else output: cpu, cuda:0"),
        STACK_ID,
        Column(
            "launch_ns",
            INT64,
            "ns",
            "scope kernel: start of the call that launched it, within the operator on "
            "launch_thread that made the call. Null: not known, or another scope",
        ),
        Column(
            "launch_thread",
            TEXT,
            "",
            "scope kernel: id of the thread that launched it (<pid>-<ordinal>); empty: not known",
        ),
        ARGS,
    ),
)

ACCESS = Table(
    "access",
    True,
    "One read or write of a range of a storage by an operator; from level access on.",
    (
        Column(
            "start_ns",
            INT64,
            "ns",
            "start of the operator, as in its op row; for an outermost filtered operator, the "
            "instant when it had allocated the storage",
        ),
        Column("duration_ns", INT64, "ns", "duration of the operator; 0: it was filtered"),
        Column("depth", pa.int16(), "1", "depth of the operator, as in its op row"),
        Column(
            "storage",
            INT64,
            "address",
            "first byte of the storage, its identity; odd: a random generator, written as numbers "
            "are drawn",
        ),
        Column("offset", INT64, "B", "first byte of the range, from the storage's first"),
        Column("bytes", INT64, "B", "length of the range, gaps of strided tensors included"),
        Column("run", INT64, "B", "bytes of the range that follow one another; all: no gaps"),
        Column("stride", INT64, "B", "from one run to the next; 0: no gaps; -1: not evenly spaced"),
        Column(
            "stream",
            INT32,
            "1",
            "stream of the device, numbered per process, default streams first, from 1; 0: the "
            "host's access, or recorded without --streams",
            since=3,
        ),
        Column("version", INT64, "1", "the tensor's version counter before; 0 for a result"),
        Column("write", pa.bool_(), "", "written, and perhaps read too; false: read"),
        Column(
            "birth",
            pa.bool_(),
            "",
            "this operator, or a filtered one within it, allocated the storage: earlier rows of "
            "the address mean another storage",
        ),
    ),
)

TENSOR = Table(
    "tensor",
    True,
    "Contents of a tensor of an operator; at level numerics. values.md defines hash and numbers.",
    (
        OP_START,
        Column("depth", pa.int16(), "1", "depth of the operator, as in its op row; at most 255"),
        Column(
            "position",
            TEXT,
            "",
            "which of the operator's tensors, counted from 0: out0, a result; in0, an input as "
            "the operator left it; read0, an input as the operator found it",
        ),
        Column("shape", TEXT, "elements", "[4, 8]"),
        Column("dtype", TEXT, "", "float32"),
        Column("device", TEXT, "", "cpu, cuda:0"),
        Column("numel", INT64, "elements", "number of elements"),
        Column("mean", FLOAT64, "", "mean of the finite elements; null: there are none"),
        Column("l2", FLOAT64, "", "L2 norm of the finite elements"),
        Column("min", FLOAT64, "", "smallest finite element; null: there are none"),
        Column("max", FLOAT64, "", "largest finite element; null: there are none"),
        Column("nan", INT64, "elements", "that are NaN"),
        Column("inf", INT64, "elements", "that are infinite"),
        Column("zeros", INT64, "elements", "that are 0"),
        Column("hash", INT64, "", "hash of the elements' bits and their order, modulo 2^64"),
        Column(
            "expected",
            INT64,
            "",
            "last recorded hash of an input, where the input has changed since; else null",
        ),
        Column(
            "unset",
            pa.bool_(),
            "",
            "made of uninitialised memory (torch.empty): its contents vary from run to run",
            since=3,
        ),
        Column(
            "finite_inputs",
            pa.bool_(),
            "",
            "the operator's inputs held neither NaN nor Inf; null: not known for all inputs",
        ),
    ),
)
