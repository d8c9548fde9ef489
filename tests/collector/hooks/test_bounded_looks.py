"""What the recorder looks at of a program's data does not grow with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from lanescope.collector.format.names import MATMUL_PRECISION
from lanescope.collector.hooks.threads.unfinished_work import _holds_data
from lanescope.collector.hooks.training import device_readback, settings
from lanescope.collector.hooks.training_loop.loader_data import _indices


class Counted(Sequence[Any]):
    """Many numbers, which count who asks for them."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, place: Any) -> Any:
        self.asked += 1
        return 0


def test_an_item_of_a_queue_is_not_read_to_its_end() -> None:
    item = Counted()
    assert not _holds_data(item)
    assert not _holds_data([item, item])
    assert item.asked < 1000
    assert _holds_data((0, torch.ones(1)))


def test_indices_are_counted_before_they_are_read() -> None:
    many = Counted()
    assert _indices(many) is None
    assert _indices(torch.zeros(1, dtype=torch.int64).expand(1 << 40)) is None
    assert many.asked == 0
    assert sorted(_indices([2, 1, 2]) or ()) == [1, 2]


def test_settings_without_one_that_torch_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of all matrix products, where the program sets `torch.backends.*.fp32_precision`."""

    def refuses() -> str:
        raise RuntimeError("mix of the legacy and new APIs")

    every = [name for name, _ in settings._of_process(0)]
    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuses)
    assert [name for name, _ in settings._of_process(0)] == [
        name for name in every if name != MATMUL_PRECISION
    ]
    assert MATMUL_PRECISION in every


def test_a_setting_that_is_a_list_is_cut() -> None:
    assert [*settings._numbers((0.9, 0.99))] == [("[0]", 0.9), ("[1]", 0.99)]
    assert len([*settings._numbers([1.0] * 1000)]) < 100


class Hanging:
    """An event that its device never reaches."""

    def __init__(self) -> None:
        self.asked = 0

    def query(self) -> bool:
        self.asked += 1
        return False


def test_a_device_that_hangs_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_readback, "_END_S", 0.05)
    monkeypatch.setattr(device_readback, "_hanging", [])
    event, arrived = Hanging(), list[torch.Tensor]()
    for _ in range(3):  # each for other numbers
        readback = device_readback.DeviceReadback()
        readback._pending.append((event, torch.ones(1), arrived.append))
        readback.drain(wait=True)
    assert (arrived, device_readback._hanging) == ([], [event])
    assert event.asked < 60
