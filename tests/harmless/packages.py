"""Test suites of packages: those that a wheel holds, and those of source distributions.

What is not in the environment goes to build/harmless; versions are pinned here.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build" / "harmless"
SUITES = Path(__file__).with_name("suites")

NEEDED = (
    "expecttest==0.3.0",
    "parameterized==0.9.0",
    "pytest-asyncio==1.4.0",
    "pytest-mock==3.17.0",
    "trustme==1.2.1",
)
"""What others' tests import beside their package."""

PINNED = {"einops": "0.8.2", "pytorch-ignite": "0.5.5"}
"""Packages that are taken from their sources; of others, those of the installed version."""


@dataclass(frozen=True)
class Suite:
    """A suite that pytest runs. `source`: the package whose source distribution holds it."""

    name: str
    arguments: tuple[str, ...]
    source: str = ""
    plugins: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


_OFFLINE = (("HF_HUB_OFFLINE", "1"),)

SUITES_BY_PYTEST = (
    *(
        Suite(f"numpy.{part}", ("--pyargs", f"numpy.{module}"))
        for part, module in (
            ("multithreading", "_core.tests.test_multithreading"),
            ("errstate", "_core.tests.test_errstate"),
            ("mem_policy", "_core.tests.test_mem_policy"),
            ("multiarray", "_core.tests.test_multiarray"),
            ("ufunc", "_core.tests.test_ufunc"),
            ("dlpack", "_core.tests.test_dlpack"),
            ("linalg", "linalg.tests"),
            ("random", "random.tests"),
            ("fft", "fft.tests"),
        )
    ),
    Suite(
        "anyio",
        ("tests", "-o", "anyio_mode=auto", "-k", "not trio"),
        "anyio",
        ("anyio.pytest_plugin", "pytest_mock"),
    ),
    Suite("janus", ("tests", "-o", "asyncio_mode=auto"), "janus", ("pytest_asyncio.plugin",)),
    Suite(
        "einops",
        ("einops/tests", "-k", "not compile"),
        "einops",
        environment=(("EINOPS_TEST_BACKENDS", "numpy,torch"),),
    ),
    Suite(
        "ignite.engine",
        ("tests/ignite/engine", "tests/ignite/base"),
        "pytorch-ignite",
        ("pytest_mock",),
    ),
    Suite("ignite.handlers", ("tests/ignite/handlers",), "pytorch-ignite", ("pytest_mock",)),
    Suite("accelerate", ("tests",), "accelerate", environment=_OFFLINE),
    *(
        Suite(f"peft.{part}", (f"tests/test_{part}.py",), "peft", environment=_OFFLINE)
        for part in (
            "custom_models",
            "initialization",
            "lora_variants",
            "tuners_utils",
            "vera",
            "mixed",
            "trainable_tokens",
            "target_parameters",
            "low_level_api",
        )
    ),
)

# Modules of the folder `suites`, which run what torch's wheel holds.
SUITES_BY_UNITTEST = {
    "torch.operators": "torch_samples.Operators",
    "torch.modules": "torch_samples.Modules",
    "torch.optimizers": "torch_samples.Optimizers",
    "torch.distributed": "torch_distributed",
}
DISTRIBUTED = (("BACKEND", "gloo"), ("WORLD_SIZE", "2"), ("TEMP_DIR", "{work}"))
"""What torch's tests of torch.distributed read."""


class MissingError(Exception):
    """Why a suite cannot be run."""


def needed() -> Path:
    """A folder with `NEEDED` installed into it. Raises MissingError."""
    place = BUILD / "needed"
    done = place / ".done"
    if not done.exists() or done.read_text().split() != list(NEEDED):
        _pip("install", "--no-deps", "--upgrade", "--target", str(place), *NEEDED)
        done.write_text("\n".join(NEEDED))
    return place


def source(package: str) -> Path:
    """The unpacked source distribution of a package. Raises MissingError."""
    try:
        wanted = PINNED.get(package) or version(package)
    except PackageNotFoundError as error:
        raise MissingError(f"{package} is not installed") from error
    place = BUILD / "sources" / f"{package}-{wanted}"
    if not place.exists():
        archives = BUILD / "archives" / package
        _pip(
            "download",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--dest",
            str(archives),
            f"{package}=={wanted}",
        )
        (archive,) = archives.glob(f"*{wanted}.tar.gz")
        with tarfile.open(archive) as members:
            members.extractall(archives, filter="data")
        place.parent.mkdir(exist_ok=True)
        archive.with_name(archive.name.removesuffix(".tar.gz")).rename(place)
    return place


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingError(f"pip {arguments[0]} failed: {done.stderr.strip().splitlines()[-1]}")
