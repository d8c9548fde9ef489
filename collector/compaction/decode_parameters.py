"""Decodes the tables that consist of gradient records with a `GradientScope` of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..format.record_kinds import GradientScope, SampleRecord
from ..format.schema import FLOAT64, INT32, INT64
from ..journal.journal import NO_SEQUENCE
from .arrow_columns import numbers
from .reader import Records, take

Texts = Callable[[NDArray[np.uint32]], pa.DictionaryArray]
Signatures = Callable[[NDArray[np.uint32]], tuple[pa.DictionaryArray, ...]]

_KEY = ("name", "aux", "start")


def parameter_columns(records: Records, texts: Texts, signatures: Signatures) -> dict[str, Any]:
    """Returns one row per sample, by time; its records share name, optimizer and start.

    Every sample has the record `gradient`; any other may be missing.
    """
    first = _by_time(take(records, records["depth"] == SampleRecord.gradient))
    found = {part: _Part(records, part, first) for part in SampleRecord}
    spread, parameter = found[SampleRecord.spread], found[SampleRecord.parameter]
    rule, change = found[SampleRecord.rule], found[SampleRecord.change]
    scope = first["scope"]
    none = (scope & GradientScope.NONE) != 0
    _, dtypes, devices = signatures(first["signature"])
    optimizer = first["aux"].astype(np.int64) - 1
    return {
        "time_ns": first["start"],
        "step": first["step"],
        "parameter": texts(first["name"]),
        "optimizer": numbers(optimizer, INT32, optimizer < 0),
        "trainable": (scope & GradientScope.FROZEN) == 0,
        "skipped": (scope & GradientScope.SKIPPED) != 0,
        "numel": first["extra"],
        "whole_numel": numbers(np.where(parameter.known, parameter.second, first["extra"]), INT64),
        "dtype": dtypes,
        "device": devices,
        "grad_norm": numbers(_floats(first["sequence"]), FLOAT64, none),
        "grad_max": numbers(_floats(spread.first), FLOAT64, none | ~spread.known),
        "grad_zeros": numbers(_floats(spread.second), FLOAT64, none | ~spread.known),
        "norm": numbers(_floats(parameter.first), FLOAT64, ~parameter.known),
        "update_ratio": numbers(_floats(change.first), FLOAT64, ~change.known),
        "lr": _or_null(rule.first, rule.known),
        "weight_decay": _or_null(rule.second, rule.known),
        "rule": texts(rule.signature),
    }


def activation_columns(records: Records, texts: Texts, signatures: Signatures) -> dict[str, Any]:
    """Returns one row per record, by time."""
    rows = _by_time(records)
    _, dtypes, devices = signatures(rows["signature"])
    return {
        "time_ns": rows["start"],
        "step": rows["step"],
        "module": texts(rows["name"]),
        "norm": _floats(rows["sequence"]),
        "numel": rows["extra"],
        "dtype": dtypes,
        "device": devices,
        "training": rows["aux"] == 1,
    }


def node_columns(records: Records, texts: Texts, signatures: Signatures) -> dict[str, Any]:
    """Returns one row per record, by time; nodes of a graph share their time."""
    rows = _by_time(records)
    following, _, _ = signatures(rows["signature"])
    return {
        "time_ns": rows["start"],
        "step": rows["step"],
        "node": rows["aux"],
        "name": texts(rows["name"]),
        "sequence": numbers(rows["sequence"], INT64, rows["sequence"] == NO_SEQUENCE),
        "parameter": texts(rows["extra"].astype(np.uint32)),
        "next": following,
    }


def fx_columns(
    records: Records, texts: Texts, signatures: Signatures, stacks: Callable[..., Any]
) -> dict[str, Any]:
    """Returns one row per record, by graph and node."""
    rows = _by_time(records)
    users, operations, graphs = signatures(rows["signature"])
    return {
        "time_ns": rows["start"],
        "step": rows["step"],
        "graph": graphs,
        "node": rows["aux"],
        "name": texts(rows["extra"].astype(np.uint32)),
        "op": operations,
        "target": texts(rows["name"]),
        "module": texts(rows["sequence"].astype(np.uint32)),
        "stack": stacks(rows["stack"]),
        "next": users,
    }


class _Part:
    """Fields of one kind of sample record, in the order of the rows that they belong to."""

    def __init__(self, records: Records, part: SampleRecord, rows: Records) -> None:
        mine = take(records, records["depth"] == part)
        keys = np.concatenate([_keys(mine), _keys(rows)])
        _, codes = np.unique(keys, return_inverse=True)
        own, wanted = codes[: len(mine)], codes[len(mine) :]
        place = np.full(len(keys), -1, np.int64)
        place[own] = np.arange(len(mine))
        at = place[wanted]
        self.known: NDArray[np.bool_] = at >= 0
        self.first: NDArray[np.int64] = self._values_at(mine["sequence"], at)
        self.second: NDArray[np.int64] = self._values_at(mine["extra"], at)
        self.signature: NDArray[np.uint32] = self._values_at(mine["signature"], at)

    def _values_at(self, values: NDArray[Any], at: NDArray[np.int64]) -> NDArray[Any]:
        if not len(values):
            return np.zeros(len(at), values.dtype)
        return np.where(self.known, values[at], values.dtype.type(0))


def _keys(records: Records) -> NDArray[np.void]:
    keys = np.empty(len(records), [(name, records.dtype[name]) for name in _KEY])
    for name in _KEY:
        keys[name] = records[name]
    return keys


def _floats(bits: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.ascontiguousarray(bits).view("<f8")


def _or_null(bits: NDArray[np.int64], known: NDArray[np.bool_]) -> pa.Array:
    values = _floats(bits)
    return numbers(values, FLOAT64, ~known | np.isnan(values))


def _by_time(records: Records) -> Records:
    return take(records, np.argsort(records["start"], kind="stable"))
