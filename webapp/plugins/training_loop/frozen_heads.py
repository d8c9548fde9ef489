"""Finds heads that are frozen with the random numbers that they were made with.

`model.load_state_dict(...)`, `model.fc = nn.Linear(...)`, and then all but the last block is
frozen: the new head as well. Found where what was loaded, or trained by an optimizer before, is
trained, or adapters of it are, and the weight of the layer that runs last was filled by a random
number generator, by nothing else, and is frozen to the end. Its bias may be trained with others.
"""

from __future__ import annotations

import re

import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.cluster import found_per_rank
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.nothing_to_check import need_accesses, need_backward
from lanescope.webapp.analysis.parameter_history import rank_gradient_rows, samples
from lanescope.webapp.plugins.learning.lora import is_lora
from lanescope.webapp.runs.run import Run

_RANDOM = frozenset({"aten::normal_", "aten::uniform_"})
_STEPPED = re.compile("aten::(_foreach_|_fused_)?(add|sub|sgd)")
"""What an optimizer of torch writes a parameter with."""
_COPIES = frozenset({"aten::copy_", "aten::clone"})
_FORWARD = schema.PhaseKind.forward.name
_MOVES = 6
"""Copies that a parameter's numbers went through, at most: .to(device), .half()."""

_MIN_LOADED, _MIN_STEPS = 4, 4  # parameters, and optimizer steps


@found_per_rank(need_accesses, need_backward, ahead=False)
def frozen_heads(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `dead_parameter`, at most one per rank. Raises NotApplicable."""
    steps = rank_gradient_rows(run, rank)
    # An optimizer before the last one may have pretrained.
    steps = steps[steps["optimizer"] == steps["optimizer"].iloc[-1]] if len(steps) else steps
    if steps["call"].nunique() < _MIN_STEPS:
        return None
    thread, until = str(steps["thread"].iloc[0]), int(steps["time_ns"].iloc[0])
    rows = samples(run)
    rows = rows[(rows["rank"] == rank) & (rows["time_ns"] >= until)]
    free = rows.groupby("parameter", sort=False)["trainable"].any()
    frozen, trained = set(free.index[~free]), set(steps.loc[~steps["missing"], "parameter"])
    if not frozen or frozen & trained:
        return None
    layers = {str(name).rpartition(".")[0] for name in free.index}
    head = _last_layer(run, rank, thread, until, layers)
    heads = [str(name) for name in free.index if str(name).rpartition(".")[0] == head]
    heads = [name for name in heads if name in frozen or not name.endswith("bias")]
    if not heads or not set(heads) <= frozen or len({*map(_model, {*heads, *trained})}) > 1:
        return None  # a copy of the model is frozen as a whole
    origins = _Origins(run, rank, thread, until).of_parameters()
    fresh = {name for name in heads if origins.get(name) in _RANDOM}
    loaded = {name for name in free.index if _is_loaded(origins.get(name, ""))}
    others = {name for name in trained - loaded if name.removesuffix("bias") + "weight" in trained}
    adapters = is_lora(pd.Series([*others], dtype="object"))
    if fresh != set(heads) or len(loaded) < _MIN_LOADED or not adapters.all():
        return None
    first = rows[rows["parameter"].isin(heads)].iloc[0]
    return finding_at(
        run,
        rank,
        first,
        kind="dead_parameter",
        confidence="likely",
        title=f"{heads[0]}{and_more(len(heads), 'parameter')} of the last layer {head} "
        f"{'are' if len(heads) > 1 else 'is'} frozen with the random numbers that the layer was "
        "made with, while what was loaded is trained. Call requires_grad_(True) on the new head "
        "after the others are frozen.",
        evidence={"cause": "frozen_head", "parameters": heads},
    )


def _is_loaded(origin: str | None) -> bool:
    """Whether numbers came from elsewhere, or an optimizer wrote them."""
    return origin is None or bool(_STEPPED.match(origin))


def _model(parameter: str) -> str:
    """The model of a parameter, where a process has several."""
    first = parameter.partition(".")[0]
    return first if "#" in first else ""


def _last_layer(run: Run, rank: int, thread: str, until: int, layers: set[str]) -> str:
    """Of these layers the one that ran last in a forward before the first step; empty: none."""
    ops = run.events("op", rank, thread, ["module", "phase"], (0, until)).to_pandas().astype("str")
    own = ops.loc[(ops["phase"] == _FORWARD) & ops["module"].isin(layers), "module"]
    return "" if own.empty else str(own.iloc[-1])


class _Origins:
    """What wrote the numbers of storages before the first step."""

    def __init__(self, run: Run, rank: int, thread: str, until: int) -> None:
        columns = ["start_ns", "depth", "storage", "write", "birth"]
        rows = to_frame(run.events("access", rank, thread, columns, (0, until)))
        self._writes = dict(iter(rows[rows["write"]].groupby("storage", sort=False)))
        self._reads = rows[~rows["write"] & ~rows["birth"]].set_index(["start_ns", "depth"])
        ops = to_frame(run.events("op", rank, thread, ["start_ns", "depth", "name"], (0, until)))
        self._names = ops.set_index(["start_ns", "depth"])["name"].astype("str")
        names = to_frame(run.events("storage", rank, columns=["storage", "name"]))
        self._parameters = dict(zip(names["name"].astype("str"), names["storage"], strict=True))
        self._named = set(names["storage"])
        self._until = until

    def of_parameters(self) -> dict[str, str | None]:
        """Returns name -> the operator that made its numbers; None: they came from elsewhere, and
        were copied."""
        return {
            name: self._of(int(storage), self._until, 0)
            for name, storage in self._parameters.items()
        }

    def _of(self, storage: int, before: int, moves: int) -> str | None:
        """The operator; empty: nothing wrote a storage that nothing was copied to."""
        own = self._writes.get(storage)
        own = None if own is None else own[own["start_ns"] < before]
        if own is None or own.empty:
            return None if moves else ""
        place = int(own["start_ns"].iloc[-1]), int(own["depth"].iloc[-1])
        name = str(self._names.get(place, ""))
        if name not in _COPIES or moves == _MOVES:
            return name
        sources = self._reads.loc[[place], "storage"] if place in self._reads.index else []
        others = [int(one) for one in sources if one != storage]
        # load_state_dict() copies from a file, whose memory may be where another tensor was.
        if name == "aten::copy_" and place[1] == 0 and others and others[0] not in self._named:
            return None
        return self._of(others[0], place[0], moves + 1) if others else None
