"""Programs with dispatch modes and tensor classes of their own do the same as without recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp import open_run
from tests.support.processes import fork_program
from tests.support.recording import OBSERVERS, record_program, write_program

MODES = """
    import threading, torch
    from functools import partial
    from torch import nn
    from torch._functorch.aot_autograd import aot_function
    from torch._functorch.compilers import nop
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint
    from torch.utils.checkpoint import create_selective_checkpoint_contexts
    from torch.utils.flop_counter import FlopCounterMode

    seen = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append((str(func), sorted(t.__name__ for t in types)))
            return func(*args, **(kwargs or {}))

    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            bare = lambda x: x.inner if isinstance(x, Wrapped) else x
            out = func(*tree_map(bare, args), **tree_map(bare, kwargs or {}))
            return tree_map(lambda x: Wrapped(x) if isinstance(x, torch.Tensor) else x, out)

    def wrapped():
        print(((Wrapped(torch.ones(3)) + 1) * 2).inner.sum().item())
        with Log():
            print(((Wrapped(torch.ones(3)) + 1) * 2).inner.sum().item())

    wrapped()
    thread = threading.Thread(target=wrapped)
    thread.start()
    thread.join()

    with FakeTensorMode() as fake:
        model = nn.Linear(4, 4)
        model(torch.randn(3, 4)).sum().backward()
        with Log():
            print(model(torch.randn(3, 4)).shape, model.weight.grad.shape)
        torch.optim.Adam(model.parameters()).step()
    one = fake.from_tensor(torch.randn(2, 4))
    print((one + one).shape, nn.functional.mse_loss(one, one).shape)
    classes = fake.from_tensor(torch.tensor([0, 1]))
    print(nn.functional.cross_entropy(one, classes).shape)

    def traced(weight, data):
        return nn.functional.linear(data, weight).relu_().sum() + torch.zeros(2).sum()

    for mode in ("real", "fake", "symbolic"):
        make = partial(make_fx, tracing_mode=mode)
        print(make(traced)(torch.ones(4, 4), torch.ones(3, 4)).code)
        print(make(torch.func.functionalize(traced))(torch.ones(4, 4), torch.ones(3, 4)).code)
        with Log():
            make(traced)(torch.ones(4, 4), torch.ones(3, 4))
    print(make_fx(nn.Sequential(nn.Linear(4, 4), nn.GELU()))(torch.ones(2, 4)).code)

    print(torch.func.hessian(lambda one: 0.5 * one @ one)(torch.ones(2, dtype=torch.double)))
    made = aot_function(lambda a, b: (a @ b).relu().sum(), fw_compiler=nop, bw_compiler=nop)
    p, q = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2, requires_grad=True)
    made(p, q).backward()
    print(p.grad)
    real = nn.Linear(4, 4)
    with FlopCounterMode(display=False) as counted:
        real(torch.ones(2, 4)).sum().backward()
    print(counted.get_total_flops())
    keep = lambda context, op, *rest, **named: (
        CheckpointPolicy.MUST_SAVE
        if op == torch.ops.aten.addmm.default
        else CheckpointPolicy.PREFER_RECOMPUTE
    )
    x = torch.ones(2, 4, requires_grad=True)
    contexts = partial(create_selective_checkpoint_contexts, keep)
    part = lambda v: real(v).relu().sum()
    checkpoint(part, x, use_reentrant=False, context_fn=contexts).backward()
    with torch.device("meta"):
        print(x.grad.shape, nn.Linear(3, 3).weight)
    print(*seen, sep="\\n")
"""

DEFAULTS = """
    import torch
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.overrides import TorchFunctionMode

    torch.manual_seed(0)
    data = torch.randn(5, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    called = []

    class Called(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            called.append(getattr(function, "__qualname__", ""))
            return function(*args, **(kwargs or {}))

    def step():
        loss = nn.functional.mse_loss(model(data * 1), data[:, :2])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(float(norm), float(loss))

    step()
    with torch.device("meta"):
        step()
    with Called():
        step()
    torch.set_default_device("meta")
    step()
    torch.set_default_device("cpu")
    torch.set_default_dtype(torch.float64)
    step()
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    step()
    with torch.autocast("cpu"):
        step()
    with torch.autograd.graph.save_on_cpu():
        step()
    with torch.inference_mode():
        print(model(data).sum())
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = nn.Linear(4, 2)
        torch.amp.GradScaler("cpu").scale(fake(torch.randn(5, 4)).sum()).backward()
        nn.utils.clip_grad_norm_(fake.parameters(), 1.0)
        torch.optim.SGD(fake.parameters(), lr=0.1).step()
        model(data).sum().backward()
        print([type(p.grad).__name__ for p in model.parameters()])
    print(torch.rand(2), *called, sep="\\n")
"""

CLASSES = """
    import torch
    import warnings
    from torch import nn

    warnings.simplefilter("ignore")

    class Parameter(nn.Parameter):
        pass

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            print(function.__name__)
            return super().__torch_function__(function, types, args, kwargs or {})

    own = Parameter(torch.ones(3))
    print((own * 2).sum().item(), torch.ones(2).as_subclass(Loud).add(1).sum())
    lazy = nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(2))
    print(lazy(torch.ones(2, 2, 8)).shape)
    optimizer = torch.optim.SGD(lazy.parameters(), lr=0.1)
    lazy(torch.ones(2, 2, 8)).sum().backward()
    optimizer.step()
    model = nn.Sequential(nn.Conv2d(3, 6, 5), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(216, 2))
    data = torch.ones(1, 3, 16, 16)
    traced = torch.jit.trace(model, data)
    print(torch.equal(traced(data), model(data)), traced.graph)
    print(torch.jit.script(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))(torch.ones(2, 3)).shape)
    pairs = torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (4,))
    print((pairs + pairs).to_dense(), torch.sparse_csr_tensor([0, 1], [0], [2.0], (1, 2)).sum())
    for layout in (torch.strided, torch.jagged):
        rows = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
        print((rows * 2).unbind()[1])
    print(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).dequantize())
    print(torch.ones(3).untyped_storage().resizable())
    print(torch.view_as_complex(torch.ones(2, 2)).conj())
"""

RANKS = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._functional_collectives import all_reduce
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    mesh = init_device_mesh("cpu", (4,))

    def work():
        print(torch.relu(all_reduce(torch.ones(8, 8), "sum", mesh)).shape)
        dist.all_reduce(torch.ones(4), async_op=True).wait()
        spread = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
        print((spread @ spread).sum().full_tensor().shape)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        print([p.shape for p in model.parameters()])

    work()
    with FakeTensorMode():
        work()
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "text", [MODES, DEFAULTS, CLASSES, RANKS], ids=["modes", "defaults", "classes", "ranks"]
)
@pytest.mark.parametrize("engine", OBSERVERS)
@pytest.mark.slow
def test_modes_and_tensor_classes_work_as_without(tmp_path: Path, text: str, engine: str) -> None:
    plain = fork_program(write_program(tmp_path, text))
    assert plain.returncode == 0, plain.stderr
    recorded = record_program(tmp_path, text, "--engine", engine, "--level", "numerics")
    assert (recorded.status, recorded.stdout) == (0, plain.stdout), recorded.stderr
    assert open_run(recorded.run).coverage.get("recorder_errors") is None
    lines = [line for line in recorded.stderr.splitlines() if not line.startswith("lanescope: ")]
    assert lines == plain.stderr.splitlines()
