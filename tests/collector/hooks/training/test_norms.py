"""L2 norms against float64: of the observer's kernels, and of torch where there are none."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest
import torch

from lanescope.collector.engines.native_library import Library
from lanescope.collector.hooks.training.norms import Norms, _spread_in_few_kernels
from tests.support.recording import OBSERVERS, record_program

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
COMPLEX = (torch.complex64, torch.complex128)
LENGTHS = (0, 1, 31, 32, 33, 1000, 65_535, 65_536, 65_537, 600_000)
# What an optimizer may hold; the norm of each gradient is printed in float64.
PROGRAM = """
    import json, threading, torch
    torch.manual_seed(0)
    sizes = {"small": (3,), "long": (700, 500), "none": (4,), "huge": (50,), "tiny": (50,),
             "double": (30, 7), "brain": (90,), "complex": (11,), "strided": (40, 30),
             "sparse": (20, 3), "nan": (5,), "empty": (0, 2)}
    dtypes = {"double": torch.float64, "brain": torch.bfloat16, "complex": torch.complex64}
    def gradient(name):
        drawn = torch.randn(sizes[name], dtype=dtypes.get(name))
        match name:
            case "none": return None
            case "huge": return drawn * 1e30
            case "tiny": return drawn * 1e-30
            case "nan": return drawn * float("nan")
            case "strided": return torch.randn(sizes[name][::-1]).t()
            case "sparse":
                return torch.sparse_coo_tensor([[3, 3, 5]], torch.randn(3, 3), sizes[name])
        return drawn
    parameters = {name: torch.nn.Parameter(torch.zeros(sizes[name], dtype=dtypes.get(name)))
                  for name in sizes}
    class Nothing(torch.optim.Optimizer):
        def step(self):
            pass
    reported = []
    def train(names):
        optimizer = Nothing([parameters[name] for name in names], {})
        for step in range(3):
            norms = []
            for name in names:
                found = parameters[name].grad = gradient(name)
                if found is not None:
                    found = found.coalesce().values() if name == "sparse" else found
                    wide = found.to(torch.complex128 if found.is_complex() else torch.float64)
                    found = torch.linalg.vector_norm(wide).item()
                norms.append(found)
            reported.append(norms)
            optimizer.step()
    train(list(sizes))
    thread = threading.Thread(target=train, args=(["long", "small", "none"],))
    thread.start()
    thread.join()
    print(json.dumps(reported))
"""

LAST = 1000  # more kernels than there are: the widest

Of = Callable[[list[torch.Tensor]], torch.Tensor]


@pytest.fixture(scope="module")
def library(native: Path) -> Iterator[Library]:
    library = Library(native)
    yield library
    library.choose_kernel(LAST)


@pytest.fixture(params=["observer", "torch"])
def of(request: pytest.FixtureRequest, library: Library) -> Of:
    """Norms as a recording takes them; the observer's on every kernel, all with the same bits."""
    if request.param == "torch":
        return Norms(None).of

    def on_all(tensors: list[torch.Tensor]) -> torch.Tensor:
        found = []
        for kernel in range(library.choose_kernel(LAST)):
            library.choose_kernel(kernel)
            norms = library.reader.norms_of(tensors)
            assert norms is not None
            found.append(norms)
        assert {repr(norms.tolist()) for norms in found} == {repr(found[0].tolist())}
        return found[0]

    return on_all


def truth(tensor: torch.Tensor) -> float:
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    return float(torch.linalg.vector_norm(wide))


def check(of: Of, tensors: list[torch.Tensor]) -> None:
    # torch adds up 600,000 complex numbers of 32 bits in one thread with an error of 1.2e-4.
    tolerance = 1e-12 if tensors[0].dtype in (torch.float64, torch.complex128) else 5e-4
    found = of(tensors)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx([truth(one) for one in tensors], rel=tolerance, abs=0)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX], ids=str)
def test_types_lengths_and_places_in_memory(of: Of, dtype: torch.dtype) -> None:
    whole = torch.randn(max(LENGTHS) + 1, dtype=torch.float64, generator=torch.manual_seed(3))
    values = whole.to(dtype)
    check(of, [values[:length] for length in LENGTHS])
    check(of, [values[1 : 1 + length] for length in LENGTHS])  # misaligned
    table = values[:6000].view(20, 300)
    cube = values[:6000].view(5, 30, 40)
    check(
        of,
        [
            table.t(),
            table[:, 7:290],
            table[::3, ::5],
            table[4].expand(9, 300),
            cube.permute(2, 0, 1),
            values[5],
            torch.empty(0, 3, dtype=dtype),
        ],
    )


def test_the_observer_is_exact_to_double_precision(library: Library) -> None:
    values = torch.randn(200_001, generator=torch.manual_seed(4))
    for dtype in FLOATS:
        found = library.reader.norms_of([values.to(dtype)])
        assert found is not None
        assert found.tolist() == pytest.approx([truth(values.to(dtype))], rel=1e-12)


def test_what_float32_cannot_square(of: Of) -> None:
    """Finite numbers have a finite norm, and numbers that are not zero one that is not."""
    for dtype, values in (
        (torch.float32, (3e38, 1e20, 1e-30, 1e-44)),
        (torch.bfloat16, (3e38, 1e-30)),
        (torch.float16, (65_504.0, 6e-8)),
        (torch.float64, (1e300, 1e200, 1e-170, 1e-300)),
    ):
        tensors = [torch.full((100,), value, dtype=dtype) for value in values]
        expected = [10 * float(one[0]) for one in tensors]
        assert of(tensors).tolist() == pytest.approx(expected, rel=1e-6, abs=0)
        assert of([one[:1] for one in tensors]).tolist() == pytest.approx(
            [float(one[0]) for one in tensors], rel=1e-6, abs=0
        )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_infinity_and_zero(of: Of, dtype: torch.dtype) -> None:
    for place in (0, 31, 32, 69_999):
        values = torch.ones(70_000, dtype=dtype)
        values[place] = math.nan
        infinite = torch.ones(70_000, dtype=dtype)
        infinite[place] = -math.inf
        both = values.clone()
        both[5] = math.inf
        norms = of([values, infinite, both, torch.full((40,), -0.0, dtype=dtype)]).tolist()
        assert math.isnan(norms[0])
        assert norms[1] == math.inf
        assert math.isnan(norms[2])
        assert norms[3] == 0


def test_the_same_bits_on_any_number_of_threads(library: Library) -> None:
    values = [torch.randn(n, generator=torch.manual_seed(n)) for n in (3_000_000, 7, 400_000)]
    threads = torch.get_num_threads()
    try:
        seen = set()
        for count in (1, 2, 3, 8):
            torch.set_num_threads(count)
            found = library.reader.norms_of(values)
            assert found is not None
            seen.add(repr(found.tolist()))
    finally:
        torch.set_num_threads(threads)
    assert len(seen) == 1


def test_what_the_observer_leaves_to_torch(library: Library) -> None:
    freed = torch.ones(8)
    freed.untyped_storage().resize_(0)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for tensor in (
        torch.eye(3).to_sparse(),
        torch.empty(3, device="meta"),
        freed,
        nested,
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(3, dtype=torch.int64),
        torch.ones(3, dtype=torch.float8_e5m2),
    ):
        assert library.reader.norms_of([torch.ones(1), tensor]) is None


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_spreads_and_samples_are_those_of_torch(library: Library, dtype: torch.dtype) -> None:
    values = torch.randn(9000, generator=torch.manual_seed(5)).to(dtype)
    values[::7] = 0
    wrong = [values.clone() for _ in range(3)]
    wrong[0][70] = wrong[2][71] = math.nan
    wrong[1][4321] = wrong[2][72] = -math.inf
    tensors = [
        values,
        -values.abs(),
        values[3:40],
        values[:0].sum().view(1),
        *wrong,
        values.view(90, 100).t(),
        values.view(90, 100)[:, 5:60],
    ]
    ours, torchs = Norms(library.reader), Norms(None)
    for found, expected in zip(ours.spread(tensors), torchs.spread(tensors), strict=True):
        assert repr(found.tolist()) == repr(expected.to(torch.float64).tolist())
    for most in (1, 100, 4096, 9000):
        found, expected = (one.thinned(tensors[:7], most) for one in (ours, torchs))
        assert all(len(one) <= most for one in found)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other.double(), rtol=0, atol=0, equal_nan=True)
        copies = ours.thinned(tensors, most)
        assert [len(one) for one in copies] == [len(one) for one in torchs.thinned(tensors, most)]


@pytest.mark.parametrize("observer", OBSERVERS)
def test_gradients_are_recorded_as_the_program_had_them(
    tmp_path: Path, observer: str, native: Path
) -> None:
    options = ("--engine", observer, "--level", "timing", "--sample-every", "0")
    recorded = record_program(tmp_path, PROGRAM, *options)
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    found: dict[tuple[int, int], list[tuple[int, float | None]]] = {}
    for row in recorded.rows("gradient"):
        optimizer, _, place = row["parameter"].removeprefix("optimizer").partition(".parameter")
        found.setdefault((int(optimizer), row["time_ns"]), []).append((int(place), row["norm"]))
    steps = [[norm for _, norm in sorted(found[step])] for step in sorted(found)]
    truth = json.loads(recorded.stdout)
    assert [len(step) for step in steps] == [len(step) for step in truth]
    for norm, reported in zip(chain(*steps), chain(*truth), strict=True):
        known = reported is not None
        assert norm == (pytest.approx(reported, rel=1e-5, abs=0, nan_ok=True) if known else None)
    assert all(math.isfinite(step[3]) and step[3] > 1e30 for step in truth[:3])  # beyond float32


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX], ids=str)
def test_the_spread_on_a_device_is_that_on_the_host(dtype: torch.dtype) -> None:
    drawn = torch.randn(70, 50, dtype=torch.float64, generator=torch.manual_seed(5)).to(dtype)
    tensors = [
        drawn,
        drawn.t()[::2],
        drawn.relu() if not dtype.is_complex else drawn.real.relu().to(dtype),
        torch.zeros(4, dtype=dtype),
        torch.tensor([0, math.nan, 1], dtype=dtype),
        torch.tensor([0, -math.inf], dtype=dtype),
    ]
    expected = Norms(None).spread(tensors)
    for ours, theirs in zip(_spread_in_few_kernels(tensors), expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=0, atol=0, equal_nan=True)


def test_thinned_elements_stay_as_they_were() -> None:
    tensors = [torch.arange(10.0), torch.arange(3.0), torch.tensor(7.0), torch.ones(4, 5).t()]
    thinned = Norms(None).thinned(tensors, 4)
    tensors[0].zero_()
    assert [one.tolist() for one in thinned] == [[0, 3, 6, 9], [0, 1, 2], [7], [1] * 4]
