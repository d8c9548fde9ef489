"""Records settings of the program at the first step of each optimizer, so that runs compare."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from numbers import Real
from typing import Any

import torch
from torch.optim import Optimizer

from ...format.loop_names import PROGRAM_FILE
from ...format.names import (
    ENVIRONMENT,
    MATMUL_PRECISION,
    MATMUL_PRECISIONS,
    SETTING_FLAGS,
    SETTINGS,
)
from ...format.program_files import INSTALLED_FILE
from ...recorder.recorder import Recorder

MAX_OPTIMIZERS, _MAX_GROUPS = 1_000, 8
"""Optimizers with settings and names of their own, as a program may make one for each sample, and
groups of parameters of each whose settings are recorded."""

_MAX_NUMBERS = 64
"""Of a setting that is a list."""

_MAX_FILES = 64
"""Files of the program that are named."""

_NOT_THE_PROGRAM = ("lanescope", "sitecustomize", "usercustomize")

_EXACT = 1 << 52
"""Seeds are recorded modulo this: a value is a float64."""

_VARIABLES = re.compile(
    r"(OMP|MKL|KMP|GOMP|OPENBLAS|BLIS|NUMEXPR|DNNL|ONEDNN|ATEN|CUDA|CUBLAS|CUBLASLT|CUDNN|NVIDIA"
    r"|NVTE|NCCL|GLOO|TORCH|TORCHINDUCTOR|TORCHDYNAMO|PYTORCH|TRITON|HSA|HIP|ROCR|MIOPEN|XLA"
    r"|TOKENIZERS)_\w+|PYTHONHASHSEED|PYTHONOPTIMIZE"
)
"""Names of variables of the environment that libraries of numerical programs read."""

_SECRET = re.compile(r"(?:^|_)(KEY|TOKEN|SECRET|PASS|PASSWORD|CREDENTIALS?|AUTH)(?:_|$)")
"""Within such a name: what it holds is not for a recording."""

_TEXT = re.compile(r"[\w.,:;+=%-]{0,64}")
"""Of such a variable that is recorded: no path, no address, nothing long."""


def record_settings(recorder: Recorder, optimizer: Optimizer, ordinal: int) -> None:
    """Writes a value for each setting; those of the process with the first optimizer."""
    if ordinal >= MAX_OPTIMIZERS:
        return
    with recorder.contain_errors():
        for name, number in (*_of_process(ordinal), *_of_optimizer(optimizer, ordinal)):
            recorder.value(f"{SETTINGS}{name}", number)
        for file in () if ordinal else islice(dict.fromkeys(_program_files()), _MAX_FILES):
            recorder.value(f"{PROGRAM_FILE}{file}:1", 1.0)


def _of_process(ordinal: int) -> Iterator[tuple[str, float]]:
    if ordinal:
        return
    yield "seed", float(torch.initial_seed() % _EXACT)
    yield "threads", float(torch.get_num_threads())
    deterministic, cudnn_deterministic, cudnn_benchmark = SETTING_FLAGS
    yield deterministic, float(torch.are_deterministic_algorithms_enabled())
    with suppress(RuntimeError):  # torch has no answer where the program sets it by backend
        yield MATMUL_PRECISION, float(MATMUL_PRECISIONS.index(torch.get_float32_matmul_precision()))
    yield cudnn_deterministic, float(torch.backends.cudnn.deterministic)
    yield cudnn_benchmark, float(torch.backends.cudnn.benchmark)
    for name, text in os.environ.items():
        if _VARIABLES.fullmatch(name) and not _SECRET.search(name) and _TEXT.fullmatch(text):
            yield f"{ENVIRONMENT}{name}={text}", 1.0


def _program_files() -> Iterator[str]:
    """Yields the files of the program's own modules, which no stack may name."""
    for name, module in [*sys.modules.items()]:
        # Not by getattr: a module may load others as it is asked.
        file = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(file, str) or name.partition(".")[0] in _NOT_THE_PROGRAM:
            continue
        if file.endswith(".py") and not INSTALLED_FILE.search(file):
            yield os.path.abspath(file)


def _of_optimizer(optimizer: Optimizer, ordinal: int) -> Iterator[tuple[str, float]]:
    of = f"{type(optimizer).__name__} {ordinal}"
    for number, group in enumerate(optimizer.param_groups[:_MAX_GROUPS]):
        yield f"{of}, group {number}, parameters", float(len(group["params"]))
        for name, value in group.items():
            if name != "params":
                for part, one in _numbers(value):
                    yield f"{of}, group {number}, {name}{part}", one


def _numbers(value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Real):
        yield "", float(value)
    elif isinstance(value, (tuple, list)):
        for place, one in enumerate(value[:_MAX_NUMBERS]):
            if isinstance(one, Real):
                yield f"[{place}]", float(one)
