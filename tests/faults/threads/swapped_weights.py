"""Programs that serve a model from one thread while another one brings newer weights."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable

import torch
from torch import nn

from tests.faults.base import Fault

_UPDATES = 12


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).eval()


class _Server:
    """Answers requests by the model that it has at the time."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model = _net()

    def run(self, renew: Callable[[nn.Module], None], planted: bool) -> None:
        """Serves; `renew` writes newer weights into the model, or in the twin into a copy."""
        done = threading.Event()

        def bring() -> None:
            for _ in range(_UPDATES):
                model = self.model if planted else copy.deepcopy(self.model)
                with torch.no_grad():
                    renew(model)
                self.model = model
                time.sleep(0.01)
            done.set()

        thread = threading.Thread(target=bring, name="renew")
        thread.start()
        with torch.inference_mode():
            while not done.is_set():
                model = self.model
                model(torch.randn(4, 16))
                time.sleep(0.001)
        thread.join()


def weights_are_loaded(planted: bool) -> None:
    """A checkpoint is loaded."""
    newer = _net().state_dict()
    _Server().run(lambda model: model.load_state_dict(newer) and None, planted)


def weights_are_averaged(planted: bool) -> None:
    """A moving average takes a part of the weights of a trainer."""
    trained = _net()

    def renew(model: nn.Module) -> None:
        for one, other in zip(model.parameters(), trained.parameters(), strict=True):
            one.lerp_(other, 0.1)

    _Server().run(renew, planted)


def weights_are_rounded(planted: bool) -> None:
    """Weights are rounded for inference, one after the other."""

    def renew(model: nn.Module) -> None:
        for one in model.parameters():
            one.mul_(64).round_().div_(64)

    _Server().run(renew, planted)


_ROOM = "threads and processes of torch"

FAULTS = tuple(
    Fault("weights written while they serve", _ROOM, ("race",), form, says="Data race on")
    for form in (weights_are_loaded, weights_are_averaged, weights_are_rounded)
)
