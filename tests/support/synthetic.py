"""Writes made-up training runs of any size, without torch and without recording.

`Builder` (run_builder.py) takes single rows. Equal arguments of `write_run` give equal runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.support.run_builder import START_NS, Builder

OP_NAMES = (
    "aten::addmm",
    "aten::native_layer_norm",
    "aten::gelu",
    "aten::mul",
    "aten::add",
    "aten::view",
    "aten::_softmax",
    "aten::transpose",
    "aten::native_dropout",
    "aten::sum",
    "aten::bmm",
    "c10d::allreduce_",
)
PHASES = (("data", 0.1), ("forward", 0.3), ("backward", 0.45), ("optimizer", 0.15))
PARAMETERS = ("embed.weight", "block.0.weight", "block.0.bias", "head.weight")


def write_run(
    path: Path | str,
    *,
    ranks: int = 2,
    threads: int = 2,
    steps: int = 3,
    ops: int = 40,
    step_ns: int = 1_000_000,
    seed: int = 0,
    gradient_scale: float = 1.0,
) -> Path:
    """A training run: every rank and thread does `ops` ops in each of `steps` steps.

    A step lasts `step_ns` plus a tenth of that between steps, and is divided into PHASES. Ops come
    in pairs, an outer one and one nested within it, and fill the step. Each thread of a rank runs
    5 % of a step later than the one before, so that their backward phases overlap by a known
    amount; each rank starts 1 us later than the one before. Thread 0 of a rank also has one
    all_reduce per step (in the backward phase), gradient norms of PARAMETERS and a loss value;
    the other threads are started and joined by it. Equal arguments give equal files.
    """
    assert ops % 2 == 0, "ops come in pairs"
    assert step_ns >= 100 * ops, "no room for the ops"
    builder = Builder(path, world_size=ranks)
    for rank in range(ranks):
        names = [builder.thread(rank, ordinal=k) for k in range(threads)]
        first = START_NS + rank * 1000
        end = first + steps * (step_ns + step_ns // 10) + threads * step_ns
        builder.manifest["processes"][rank]["end_ns"] = end
        offsets = np.arange(steps + 1, dtype=np.int64) * (step_ns + step_ns // 10)
        for ordinal, thread in enumerate(names):
            begins = first + ordinal * (step_ns // 20) + offsets
            starts = begins[:-1]
            _phases(builder, rank, thread, starts, step_ns)
            _ops(builder, rank, thread, starts, step_ns, ops, seed + 1000 * rank + ordinal)
            if ordinal == 0:
                _training(builder, rank, thread, starts, step_ns, seed, gradient_scale)
            else:
                _start_and_join(builder, rank, names[0], thread, begins[0], begins[-1])
        _texts_of_rank(builder, rank)
    return builder.write()


def phase_bounds(step_ns: int) -> list[tuple[str, int, int]]:
    """(kind, start, end) of the phases within a step."""
    bounds, at = [], 0
    for position, (kind, share) in enumerate(PHASES):
        end = step_ns if position == len(PHASES) - 1 else at + int(step_ns * share)
        bounds.append((kind, at, end))
        at = end
    return bounds


def _phases(builder: Builder, rank: int, thread: str, starts: Any, step_ns: int) -> None:
    bounds = phase_bounds(step_ns)
    kinds = [kind for kind, _, _ in bounds]
    low = np.array([a for _, a, _ in bounds])
    high = np.array([b for _, _, b in bounds])
    steps = len(starts)
    builder.rows(
        "phase",
        rank,
        thread,
        start_ns=(starts[:, None] + low).ravel(),
        duration_ns=np.tile(high - low, steps),
        name=[{"optimizer": "AdamW.step"}.get(kind, kind) for kind in kinds] * steps,
        kind=kinds * steps,
        step=np.repeat(np.arange(steps), len(kinds)),
    )


def _ops(
    builder: Builder, rank: int, thread: str, starts: Any, step_ns: int, ops: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    steps, pairs = len(starts), ops // 2
    slot = step_ns // pairs
    outer = (starts[:, None] + np.arange(pairs) * slot).ravel()
    count = len(outer)
    long = random.integers(slot // 2, slot, count)
    late = random.integers(1, slot // 8, count)
    short = random.integers(1, slot // 4, count)
    offset = (outer - np.repeat(starts, pairs)).astype(np.int64)
    edges = [end for _, _, end in phase_bounds(step_ns)]
    phase = np.searchsorted(edges, offset, side="right").clip(max=len(PHASES) - 1)

    def pair(first: Any, second: Any) -> Any:
        return np.stack([first, second], axis=1).ravel()

    kind = pair(phase, phase)
    names = random.integers(0, len(OP_NAMES), 2 * count).astype(np.int32)
    backward = (kind == 2).astype(np.int32)
    sequence = np.repeat(np.arange(count, dtype=np.int64), 2)
    none = pa.array(np.arange(2 * count) % 2 == 1)
    builder.rows(
        "op",
        rank,
        thread,
        start_ns=pair(outer, outer + late),
        duration_ns=pair(long, short),
        self_ns=pair(long - short, short),
        name=_texts(names, OP_NAMES),
        scope=_texts(backward, ("function", "backward")),
        depth=np.tile(np.array([0, 1], np.int16), count),
        step=np.repeat(np.arange(steps), ops),
        phase=_texts(kind.astype(np.int32), [kind for kind, _ in PHASES]),
        module=_texts((names % 4).astype(np.int32), ("", "embed", "block.0", "head")),
        sequence=pa.array(sequence, mask=np.asarray(none)),
        shapes=_texts((names % 3).astype(np.int32), ("", "[4, 8] [8]", "[4, 128, 256]")),
        dtypes=_texts((names % 3).astype(np.int32), ("", "float32 float32", "float32")),
    )


def _texts(index: Any, words: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(index), pa.array(words, pa.string()))


def _training(
    builder: Builder, rank: int, thread: str, starts: Any, step_ns: int, seed: int, scale: float
) -> None:
    """One all_reduce per step, and its logged values."""
    ranks = builder.manifest["world_size"]
    steps = len(starts)
    number = np.arange(steps, dtype=np.int64)
    bounds = {kind: (a, b) for kind, a, b in phase_bounds(step_ns)}
    backward = starts + bounds["backward"][0]
    builder.rows(
        "collective",
        rank,
        thread,
        start_ns=backward + step_ns // 5,
        duration_ns=step_ns // 100,
        # Rank r's call completes with the last one, which is that of the highest rank.
        complete_ns=backward + step_ns // 4 + (ranks - 1 - rank) * 1000,
        name="all_reduce",
        group="0",
        group_size=ranks,
        sequence=number,
        shapes="[4096]",
        dtypes="float32",
        bytes=16384,
        asynchronous=True,
        step=number,
        phase="backward",
    )
    # All ranks see the same gradients, as after an all_reduce.
    norms = np.random.default_rng(seed).random((steps, len(PARAMETERS))) * scale
    builder.rows(
        "gradient",
        rank,
        thread,
        time_ns=np.repeat(starts + bounds["optimizer"][0], len(PARAMETERS)),
        step=np.repeat(number, len(PARAMETERS)),
        parameter=list(PARAMETERS) * steps,
        norm=norms.ravel(),
        numel=1024,
        dtype="float32",
    )
    builder.rows(
        "value",
        rank,
        thread,
        time_ns=starts + step_ns - 1,
        name="loss",
        value=2.0 / (number + 1),
        step=number,
    )


def _start_and_join(
    builder: Builder, rank: int, main: str, thread: str, begin: int, end: int
) -> None:
    for owner, start, duration, kind, peer in (
        (main, begin - 10, 0, "thread_start", thread),
        (thread, begin - 5, 0, "thread_begin", main),
        (thread, end, 0, "thread_end", None),
        (main, end - 100, 120, "thread_join", thread),
    ):
        builder.row("sync", rank, owner, start_ns=start, duration_ns=duration, kind=kind, peer=peer)


def _texts_of_rank(builder: Builder, rank: int) -> None:
    frames = [[{"file": "train.py", "line": 12, "function": "main"}]]
    builder.rows("stack", rank, None, stack=[0], frames=frames)
    builder.rows(
        "module",
        rank,
        None,
        path=["embed", "block.0", "head"],
        parameters=[1024, 2048, 1024],
        **{"class": ["torch.nn.Embedding", "Block", "torch.nn.Linear"]},
    )


LINEARS = ("attn.q", "attn.k", "attn.v", "attn.out", "mlp.up", "mlp.gate", "mlp.down", "adapter")
"""Linear layers of a block of `write_wide_run`; each has a weight and a bias."""


def write_wide_run(path: Path | str, *, blocks: int = 625, steps: int = 6, ranks: int = 2) -> Path:
    """A run of a deep model: 2 * len(LINEARS) parameters in each of `blocks` blocks.

    At step s the norm of parameter p of n is 10 ** (-4 * p / n) * (1 + s), the same on all ranks:
    gradients vanish with depth. The last block's adapter never has a gradient. Parameters of no
    optimizer, as many as a block has, are sampled at step 0.
    """
    builder = Builder(path, world_size=ranks)
    layers = [f"blocks.{block}.{name}" for block in range(blocks) for name in LINEARS]
    names = [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    forgotten = [f"head.{name}.{kind}" for name in LINEARS for kind in ("weight", "bias")]
    norms = 10.0 ** (-4 * np.arange(len(names)) / len(names)) * (1 + np.arange(steps)[:, None])
    silent = np.zeros(norms.shape, bool)
    silent[:, -2:] = True
    for rank in range(ranks):
        thread = builder.thread(rank)
        times = START_NS + 1000 * (1 + np.arange(steps))
        common = {"numel": 64, "dtype": "float32", "device": "cpu"}
        builder.rows("op", rank, thread, start_ns=[START_NS], duration_ns=[1000 * (steps + 2)])
        builder.rows(
            "gradient",
            rank,
            thread,
            time_ns=np.repeat(times, len(names)),
            step=np.repeat(np.arange(steps), len(names)),
            parameter=_texts(np.tile(np.arange(len(names), dtype=np.int32), steps), names),
            norm=pa.array(norms.ravel(), mask=silent.ravel()),
            **common,
        )
        builder.rows(
            "parameter",
            rank,
            thread,
            time_ns=int(times[0]),
            step=0,
            parameter=[*names, *forgotten],
            optimizer=pa.array([0] * len(names) + [None] * len(forgotten), pa.int32()),
            trainable=True,
            whole_numel=64,
            norm=1.0,
            update_ratio=1e-3,
            grad_norm=pa.array([*norms[0], *[None] * len(forgotten)], mask=None),
            **common,
        )
        builder.rows("module", rank, None, path=["Model", *layers])
    return builder.write()


def write_missing_rank(path: Path, period_ns: int, duration_ns: int) -> Path:
    """Two ranks; only rank 0 makes the second all_reduce, and it never ends."""
    builder = Builder(path, world_size=2, exit_status=1)
    for rank in (0, 1):
        builder.process(rank, closed=False, ended="")
        thread = builder.thread(rank)
        for sequence in range(2 - rank):
            builder.row(
                "collective",
                rank,
                thread,
                start_ns=START_NS + sequence * period_ns,
                name="all_reduce",
                group="0",
                group_size=2,
                sequence=sequence,
                bytes=64,
                duration_ns=None if sequence else 100,
                complete_ns=None if sequence else START_NS + 100,
            )
    builder.row("value", 0, "1000-0", time_ns=START_NS + duration_ns, name="loss", value=1.0)
    return builder.write()
