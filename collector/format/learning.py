"""Tables of training: gradients, parameters, activations, graphs."""

import pyarrow as pa

from .columns import DEVICE, DTYPE, FLOAT64, INT32, INT64, STACK_ID, STEP, TEXT, TIME, Column, Table

GRADIENT = Table(
    "gradient",
    True,
    "One parameter's gradient as the optimizer saw it at its step.",
    (
        TIME,
        STEP,
        Column("parameter", TEXT, "", "name within the outermost module, wrappers removed"),
        Column("norm", FLOAT64, "", "L2 norm of the gradient; null: the gradient was None"),
        Column("numel", INT64, "elements", "number of elements of the parameter on this rank"),
        Column("dtype", TEXT, "", "dtype of the gradient (of the parameter where it is None)"),
        Column("device", TEXT, "", "device of the parameter"),
        Column("optimizer", INT32, "", "ordinal of the optimizer in this process, from 0"),
        Column(
            "grad_hash",
            INT64,
            "",
            "hash of the gradient's bits and their order, modulo 2^64; null: not taken",
        ),
        Column("param_hash", INT64, "", "the same for the parameter, before the step"),
    ),
)

PARAMETER = Table(
    "parameter",
    True,
    "A parameter, its gradient and its update at an optimizer step, at some steps (the setting "
    "sample_every). Includes parameters without an optimizer, also at the first step if it is not "
    "sampled; frozen ones at the first time, and when requires_grad has changed.",
    (
        TIME,
        STEP,
        Column("parameter", TEXT, "", "name, as in the gradient table"),
        Column(
            "optimizer",
            INT32,
            "",
            "ordinal of the optimizer whose step it was; null: no optimizer with a step so far "
            "holds the parameter",
        ),
        Column("trainable", pa.bool_(), "", "requires_grad"),
        Column(
            "skipped",
            pa.bool_(),
            "",
            "the gradient scaler skipped this step, because a gradient was NaN or infinite",
        ),
        Column("numel", INT64, "elements", "number of elements on this rank"),
        Column(
            "whole_numel",
            INT64,
            "elements",
            "number of elements on all ranks; the parameter is sharded where it is more than numel",
        ),
        Column("dtype", TEXT, "", "dtype of the parameter"),
        Column("device", TEXT, "", "device of the parameter"),
        Column("grad_norm", FLOAT64, "", "L2 norm of the gradient; null: the gradient was None"),
        Column("grad_max", FLOAT64, "", "largest absolute value in the gradient; null: None"),
        Column("grad_zeros", FLOAT64, "1", "share of the gradient's elements that are 0; or null"),
        Column("norm", FLOAT64, "", "L2 norm of the parameter before the step; null: not taken"),
        Column(
            "update_ratio",
            FLOAT64,
            "1",
            "norm of the change by this step / norm of the parameter before it, both over at most "
            "4096 evenly spaced elements; infinite: it was 0 before; null: not taken",
        ),
        Column("lr", FLOAT64, "1", "learning rate of its group; null: none, or on a device"),
        Column("weight_decay", FLOAT64, "1", "weight decay of its group; null as lr"),
        Column("rule", TEXT, "", "class of the optimizer, AdamW; empty: no optimizer"),
    ),
)

ACTIVATION = Table(
    "activation",
    True,
    "Output of a module, at some steps (the setting activations_every).",
    (
        TIME,
        STEP,
        Column("module", TEXT, "", "path within the outermost module, as in the module table"),
        Column("norm", FLOAT64, "", "L2 norm of the first tensor that it returned"),
        Column("numel", INT64, "elements", "number of elements of that tensor"),
        DTYPE,
        DEVICE,
        Column("training", pa.bool_(), "", "module.training"),
    ),
)

NODE = Table(
    "node",
    True,
    "A node of the autograd graph, as the first recorded backward found it.",
    (
        TIME,
        STEP,
        Column("node", INT32, "1", "number within the graph, from 0, the loss first"),
        Column("name", TEXT, "", "AddmmBackward0"),
        Column(
            "sequence",
            INT64,
            "1",
            "autograd sequence number, as in the op table, of the forward op that made the node; "
            "null: none",
        ),
        Column("parameter", TEXT, "", "parameter whose gradient the node accumulates; or empty"),
        Column("next", TEXT, "", "numbers of the nodes that receive its gradients: 3 7"),
    ),
)

FX = Table(
    "fx",
    True,
    "A node of a torch.fx graph: of a GraphModule that was called, of what torch.compile captured, "
    "or, with --trace-model, of a model.",
    (
        TIME,
        STEP,
        Column("graph", TEXT, "", "which graph of the process: 1 Model; 2 forward (compiled)"),
        Column("node", INT32, "1", "number within the graph, from 0, in its order"),
        Column("name", TEXT, "", "as torch.fx names it: linear_1"),
        Column(
            "op",
            TEXT,
            "",
            "placeholder, get_attr, call_function, call_method, call_module, output; break: "
            "torch.compile stopped capturing here; untraceable: there is no graph",
        ),
        Column("target", TEXT, "", "the called or fetched object; the reason for the last two ops"),
        Column("module", TEXT, "", "path of the torch.nn.Module whose forward holds it"),
        STACK_ID,
        Column("next", TEXT, "", "numbers of the nodes that use its result: 3 7"),
    ),
)
