"""torch's own samples of operators, modules and optimizers: results are compared bit by bit.

The wheel brings the samples that torch's tests are made of. Each test here runs some of them,
forward and backward; a hash of all results is a part of its outcome.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import unittest
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.utils._pytree import tree_leaves

SAMPLES = 4
STEPS = 3


class Samples(unittest.TestCase):
    """What a test computed goes into `digest`, which the runner reports."""

    digest = ""

    def setUp(self) -> None:
        self._hash = hashlib.sha1()
        torch.manual_seed(0)

    def tearDown(self) -> None:
        self.digest = self._hash.hexdigest()[:12]

    def keep(self, results: Any) -> None:
        for leaf in tree_leaves(results):
            if isinstance(leaf, torch.Tensor):
                if leaf.layout != torch.strided or leaf.is_quantized:
                    self._hash.update(str(leaf).encode())
                    continue
                self._hash.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
                flat = torch.empty(leaf.numel(), dtype=leaf.dtype).copy_(leaf.detach().flatten())
                self._hash.update(flat.view(torch.uint8).numpy().tobytes())
            else:
                self._hash.update(str(type(leaf)).encode())

    def keep_with_gradients(self, results: Any, inputs: Iterable[Any]) -> None:
        """Keep results, and the gradients that the sum of all differentiable ones gives."""
        self.keep(results)
        roots = [
            one
            for one in tree_leaves(results)
            if isinstance(one, torch.Tensor) and one.requires_grad and one.layout == torch.strided
        ]
        if not roots:
            return
        torch.autograd.backward([root.abs().sum() for root in roots])
        self.keep([one.grad for one in inputs if isinstance(one, torch.Tensor) and one.is_leaf])

    def op(self, info: Any) -> None:
        differentiable = info.supports_autograd
        samples = info.sample_inputs("cpu", torch.float32, requires_grad=differentiable)
        for sample in itertools.islice(samples, SAMPLES):
            torch.manual_seed(0)
            result = info.op(sample.input, *sample.args, **sample.kwargs)
            inputs = tree_leaves((sample.input, sample.args, sample.kwargs))
            if differentiable:
                self.keep_with_gradients(result, inputs)
            else:
                self.keep(result)

    def module(self, info: Any) -> None:
        samples = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=True
        )
        for sample in itertools.islice(samples, SAMPLES):
            torch.manual_seed(0)
            made = sample.constructor_input
            model = info.module_cls(*made.args, **made.kwargs)
            given = sample.forward_input
            result = model(*given.args, **given.kwargs)
            inputs = tree_leaves((given.args, given.kwargs))
            self.keep_with_gradients(result, [*model.parameters(), *inputs])

    def optimizer(self, info: Any) -> None:
        for sample in info.optim_inputs_func(device="cpu"):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
            optimizer = info.optim_cls(model.parameters(), **sample.kwargs)
            loss = functools.partial(_loss, model, optimizer)
            for _ in range(STEPS):
                if info.step_requires_closure:
                    optimizer.step(loss)
                else:
                    loss()
                    optimizer.step()
            self.keep([*model.parameters(), *model.buffers()])
            self.keep([one.grad for one in model.parameters()])


def _loss(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    optimizer.zero_grad()
    loss: torch.Tensor = model(torch.linspace(0, 1, 20).reshape(5, 4)).square().mean()
    loss.backward()
    return loss


def _tests(infos: Iterable[tuple[str, Any]], check: Callable[[Samples, Any], None]) -> Any:
    found: dict[str, Any] = {}
    for name, info in infos:
        method = f"test_{name}".replace(".", "_")
        while method in found:
            method += "_"

        def test(self: Samples, info: Any = info) -> None:
            check(self, info)

        found[method] = test
    return found


def _op_name(info: Any) -> str:
    return "_".join(filter(None, (info.name, info.variant_test_name)))


Operators = type(
    "Operators",
    (Samples,),
    _tests(((_op_name(info), info) for info in op_db if torch.float32 in info.dtypes), Samples.op),
)
Modules = type(
    "Modules",
    (Samples,),
    _tests(((info.module_cls.__name__, info) for info in module_db), Samples.module),
)
Optimizers = type(
    "Optimizers",
    (Samples,),
    _tests(
        (
            (info.optim_cls.__name__, info)
            for info in optim_db
            if not info.only_supports_sparse_grads
        ),
        Samples.optimizer,
    ),
)
