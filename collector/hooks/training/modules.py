"""Records module paths and forward phases, from the calls of all modules.

Paths are those of `named_modules()` of the outermost module without wrappers (DDP, compile, ...),
so that runs with and without them compare. So are those of a part that is called on its own, where
one model holds it. The first model's paths have no prefix; those of further models begin with the
class, numbered where it repeats. The same applies to single layers of no model.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.nn.utils.parametrize import ParametrizationList

from ...format.record_kinds import PhaseKind
from ...journal.journal import RecordKind
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..not_compiled import run_as_it_is
from ..patches import hooks_in_place
from .holders import Holders

WRAPPED = {
    "AveragedModel": "module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "DataParallel": "module",
    "DeepSpeedEngine": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
}
"""Wrapper class -> the attribute that holds the wrapped module."""

_MAX_NAMED_MODELS, _MAX_NAMES = 10_000, 100_000
"""Models with their own names, and names of their parts and parameters; bounds them where a program
makes new ones at every step, as it copies one to adapt it to each sample."""

_MAX_SEARCHES = 200
"""Unknown modules for which all models are searched; a search of a large one takes milliseconds."""


class Modules:
    """Keeps each thread's stack of modules, and names modules and parameters."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.calls = recorder.store.module_calls()
        # By id: look-up in a weak dictionary would cost more than the rest of a call.
        # The text of the path, and the prefix of names inside.
        self._paths: dict[int, tuple[weakref.ref[torch.nn.Module], int, str]] = {}
        self._prefixes: weakref.WeakKeyDictionary[torch.nn.Module, str] = (
            weakref.WeakKeyDictionary()
        )
        self.holders = Holders()
        self._called: set[int] = set()  # ids of modules that were outermost ones
        self._models: list[str] = []  # classes of the models seen, in order
        self._layers: list[str] = []  # classes of single layers called on their own
        self._unregistered: list[str] = []  # classes of modules that their model does not know
        self._searches = self._names = 0
        # If set, called with a module, the text id of its path and its output.
        self.returned: Callable[[torch.nn.Module, int, Any], None] | None = None
        # If set, called at a model's first call with the model and the prefix of its names.
        self.named: Callable[[torch.nn.Module, str], None] | None = None
        # Called with an outermost module in training, and if set, at its end with its output.
        self.began: list[Callable[[torch.nn.Module], None]] = []
        self.ended: Callable[[torch.nn.Module, Any], None] | None = None
        # Called with an outermost module that is called without gradients.
        self.evaluates: list[Callable[[torch.nn.Module], None]] = []
        self._placed: dict[str, int] = {}  # name -> address of its storage, as last recorded
        self._parameters: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}

    def enter(self, module: torch.nn.Module) -> None:
        """Records that the calling thread calls a module."""
        recorder = self._recorder
        try:
            state = recorder.thread()
            if state.busy:
                return
            inside = state.in_modules > 0
            key = id(module)
            known = self._paths.get(key)
            if known is not None and known[0]() is module:
                path = known[1]
                if not inside and key not in self._called:  # named as a part of its model
                    with _outside_of_traces():
                        self._first_call(module)
            elif not inside and isinstance(module, ParametrizationList):
                # It computes a weight before its model is called, which is to name it.
                key, path = 0, recorder.intern(own_class(module).__name__)
            else:
                with _outside_of_traces():
                    path = self._name(module, inside=inside)
            # A recomputation in backward (checkpointing) is part of backward.
            if not inside and state.phase_kind != PhaseKind.backward:
                trains = torch.is_grad_enabled()
                listeners = self.began if trains else self.evaluates
                if listeners and _is_eager():
                    for listener in listeners:
                        listener(module)
                if trains:
                    state.forward = recorder.begin_phase("forward", PhaseKind.forward)
                else:
                    state.forward = recorder.begin_phase("evaluation", PhaseKind.evaluation)
            state.enter_module(key, path)
        except Exception as error:
            recorder.failed(error)

    def leave(self, module: torch.nn.Module, output: Any) -> None:
        """Records that the innermost module returned or raised."""
        recorder = self._recorder
        try:
            state = recorder.thread()
            if state.busy or not state.in_modules:
                return  # recording began inside this module
            path = state.leave_module()
            if self.returned is not None and _is_eager():
                self.returned(module, path, output)
            if not state.in_modules and state.forward is not None:
                recorder.end_phase(state.forward)
                state.forward = None
                if self.ended is not None and _is_eager():
                    self.ended(module, output)
        except Exception as error:
            recorder.failed(error)

    def parameter_name(self, parameter: torch.Tensor) -> str | None:
        """Returns the parameter's name in its outermost module; None: never seen."""
        found = self._parameters.get(id(parameter))
        if found is None or found[0]() is not parameter:
            return None
        return found[1]

    def parameters(self) -> list[tuple[torch.Tensor, str]]:
        """Returns all parameters found so far that still exist, with their names."""
        known = [(reference(), name) for reference, name in list(self._parameters.values())]
        return [(parameter, name) for parameter, name in known if parameter is not None]

    def model_name(self, model: torch.nn.Module) -> str:
        """Returns the name of an outermost module."""
        return self.prefix(model).rstrip(".") or own_class(unwrap(model)).__name__

    def prefix(self, model: torch.nn.Module) -> str:
        """Returns what names of parameters of an outermost module begin with, before the path."""
        known = self._paths.get(id(model))
        return known[2] if known is not None and known[0]() is model else ""

    def refresh(self) -> None:
        """Names parameters again: some may have been replaced or added."""
        for root, prefix in list(self._prefixes.items()):
            self._name_tree(root, prefix)

    def _name(self, module: torch.nn.Module, *, inside: bool) -> int:
        recorder = self._recorder
        if inside:
            if isinstance(module, torch.fx.GraphModule):  # a compiled region of its caller
                return recorder.thread().module
            return self._name_late(module)
        root = self.holders.outermost(module) if _trainable(module) else module
        prefix = self._prefixes[root] if root in self._prefixes else self._prefix(root)
        self._prefixes[root] = prefix
        self._name_tree(root, prefix)
        if not recorder.process.get("modules_root"):
            recorder.describe(modules_root=own_class(unwrap(root)).__qualname__)
        self._first_call(module)
        return self._paths[id(module)][1]

    def _first_call(self, module: torch.nn.Module) -> None:
        self._called.add(id(module))
        if self.named is not None:
            self.named(module, self.prefix(module))

    def _name_late(self, module: torch.nn.Module) -> int:
        """Names a module that was made after its model, or that it keeps in a plain list."""
        name = own_class(module).__name__
        if not _trainable(module) or self._searches >= _MAX_SEARCHES:
            return self._put(module, name)
        self._searches += 1
        self.refresh()
        known = self._paths.get(id(module))
        if known is None or known[0]() is not module:
            same = self._unregistered.count(name)
            self._unregistered.append(name)
            self._name_tree(module, _numbered(name, same))
        return self._paths[id(module)][1]

    def _prefix(self, root: torch.nn.Module) -> str:
        model = unwrap(root)
        if not _trainable(model):
            return ""  # a loss or an activation called on its own does not count as a model
        # Layers of a model that is never called itself do not count as models.
        seen = self._models if model._modules else self._layers
        name = own_class(model).__name__
        first, same = not seen, seen.count(name)
        full = len(seen) >= _MAX_NAMED_MODELS or self._names >= _MAX_NAMES
        if first or not full:
            seen.append(name)
        if first or full:
            return ""
        return _numbered(name, same)

    def _name_tree(self, root: torch.nn.Module, prefix: str) -> None:
        top = prefix.rstrip(".") or own_class(unwrap(root)).__name__
        for path, module in clean_paths(root):
            known = self._paths.get(id(module))
            inside = f"{prefix}{path}." if path else prefix
            if known is None or known[0]() is not module:
                self._put(module, prefix + path if path else top, inside)
            for name, parameter in module._parameters.items():
                if parameter is not None and self.parameter_name(parameter) is None:
                    self._parameters[id(parameter)] = (weakref.ref(parameter), inside + name)
            if self._recorder.options.level != "timing":
                for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                    self._place(tensor, inside + name)

    def _place(self, tensor: torch.Tensor | None, name: str) -> None:
        """Records the storage of a parameter or buffer: accesses refer to storages by address."""
        address = 0 if tensor is None else storage_address(tensor)
        if address and self._placed.get(name) != address:
            self._placed[name] = address
            self._recorder.keep(
                RecordKind.STORAGE, name=self._recorder.intern(name), aux=0, extra=address
            )

    def _put(self, module: torch.nn.Module, path: str, inside: str = "") -> int:
        recorder = self._recorder
        self._names += 1 + len(module._parameters)
        text = recorder.intern(path)
        key = id(module)
        self._paths[key] = (weakref.ref(module, lambda gone: self._forget(key, gone)), text, inside)
        kind = own_class(module)
        recorder.keep(
            RecordKind.MODULE,
            name=text,
            aux=recorder.intern(f"{kind.__module__}.{kind.__qualname__}"),
            extra=sum(_elements(p) for p in module._parameters.values()),
        )
        return text

    def _forget(self, key: int, gone: weakref.ref[torch.nn.Module]) -> None:
        known = self._paths.get(key)
        if known is not None and known[0] is gone:  # False: another module is at this address now
            self._paths.pop(key, None)
            self._called.discard(key)
            if self.calls is not None:
                self.calls.gone()


def _trainable(module: torch.nn.Module) -> bool:
    """Returns whether a module has parameters, or parts that may."""
    return bool(module._parameters or module._modules)


def _numbered(name: str, before: int) -> str:
    """Returns the prefix of a class's names where `before` of its modules were named already."""
    return f"{name}#{before + 1}." if before else f"{name}."


_TRACED = "models that torch.jit.trace runs, as they are without it"
_tracing_state: Callable[[], Any] = optional("torch._C", "_get_tracing_state", _TRACED) or (
    lambda: None
)
_PROXY = optional("torch._C", "_TorchDispatchModeKey.PROXY", "")
_dispatch_mode: Callable[[Any], Any] | None = optional("torch._C", "_get_dispatch_mode", "")


def _proxy_mode() -> Any:
    """Returns the mode by which make_fx puts operators into a graph; None: it is not active."""
    return None if _PROXY is None or _dispatch_mode is None else _dispatch_mode(_PROXY)


def _is_eager() -> bool:
    """Returns whether operators run as they are called, and no trace of them is being made."""
    return _tracing_state() is None and _proxy_mode() is None


_set_tracing_state: Callable[[Any], None] = optional("torch._C", "_set_tracing_state", _TRACED) or (
    lambda state: None
)


@contextlib.contextmanager
def _outside_of_traces() -> Iterator[None]:
    """Keeps its body out of the graph that torch.jit.trace is making."""
    state = _tracing_state()
    if state is None:
        yield
        return
    _set_tracing_state(None)
    try:
        yield
    finally:
        _set_tracing_state(state)


def storage_address(tensor: torch.Tensor) -> int:
    """Returns the address of a tensor's storage; 0: it has none."""
    try:
        storage = tensor.untyped_storage()
        # torch warns of a question for the address of a FakeTensor, which is on "meta" within.
        return 0 if storage.device.type == "meta" else storage.data_ptr()
    except (NotImplementedError, RuntimeError, ValueError):  # a subclass or a lazy parameter
        return 0


def unwrap(module: torch.nn.Module) -> torch.nn.Module:
    """Returns the module inside wrappers."""
    while (key := WRAPPED.get(type(module).__name__)) and key in module._modules:
        inner = module._modules[key]
        if inner is None:
            break
        module = inner
    return module


def own_class(module: torch.nn.Module) -> type:
    """Returns the program's class of a module: fully_shard derives its own from it."""
    kinds = type(module).__mro__
    return next((k for k in kinds if not k.__name__.startswith("FSDP")), kinds[0])


def clean_paths(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yields (path, module) for the tree below `root`, without wrappers in the path."""
    seen: set[int] = set()
    pending: list[tuple[str, torch.nn.Module]] = [("", root)]
    while pending:
        path, module = pending.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        wrapped = WRAPPED.get(type(module).__name__)
        for name, child in reversed(module._modules.items()):
            if child is None:
                continue
            pending.append((path if name == wrapped else f"{path}.{name}" if path else name, child))


def _elements(parameter: torch.Tensor | None) -> int:
    if parameter is None or isinstance(parameter, torch.nn.UninitializedParameter):
        return 0
    return parameter.numel()


def _hook(context: HookContext) -> None:
    modules, patches = context.share(Modules(context.recorder)), context.patches
    entered, left = modules.calls[:2] if modules.calls is not None else (_never, _never)

    def enter(module: torch.nn.Module) -> torch.nn.Module | None:
        if torch.compiler.is_compiling():
            return None
        if not entered(module):
            modules.enter(module)
        return module

    def leave(module: torch.nn.Module, output: Any) -> None:
        if not left(module):
            modules.leave(module, output)

    def raised(module: torch.nn.Module, _: BaseException) -> None:
        leave(module, None)

    # torch's own hooks, where functions cannot be hooked in place. Dynamo folds the condition to a
    # constant, so they vanish from compiled code.
    def hooked_enter(module: torch.nn.Module, args: Any) -> None:
        if not (torch.compiler.is_compiling() or entered(module)):
            modules.enter(module)

    def hooked_leave(module: torch.nn.Module, args: Any, output: Any) -> None:
        if not (torch.compiler.is_compiling() or left(module)):
            modules.leave(module, output)

    if hooks_in_place():
        for made in ("__init__", "__setstate__"):  # also of copies, and as pickle makes them
            patches.ends(torch.nn.Module, made, modules.holders.made, self_alone=True)
        lost = "calls of modules"
        patches.ends(
            torch.nn.Module, "_call_impl", enter, leave, raised, self_alone=True, lost=lost
        )
        return
    for hook in (hooked_enter, hooked_leave):
        run_as_it_is(hook)
    for handle in (
        nn_module.register_module_forward_pre_hook(hooked_enter),
        nn_module.register_module_forward_hook(hooked_leave, always_call=True),
    ):
        patches.also_undo(handle.remove)


def _never(module: object) -> bool:
    """Replaces the engine's part of a module call where it has none."""
    return False


HOOK = Hook("modules", _hook, required=True)
