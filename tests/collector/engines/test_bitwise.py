"""The same bits of every loss and gradient: unrecorded, and with each engine at each level."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.collector.format.options import LEVELS
from lanescope.webapp import open_run
from tests.support import ROOT
from tests.support.processes import fork_program
from tests.support.recording import record_program, write_program

pytestmark = pytest.mark.torchrun

EXAMPLES = ROOT / "examples"

# Each model trains for a few steps; what it prints are hashes of raw bytes, so -0.0 and NaN count.
PROGRAM = """
    import hashlib, sys, torch, torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.checkpoint import checkpoint
    sys.path.insert(0, sys.argv[1])
    from train_gpt import GPT, cross_entropy

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.use_deterministic_algorithms(True)

    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(16, 32), nn.Dropout(0.3), nn.GELU(), nn.Linear(32, 16), nn.Dropout(0.5)
            )
        def forward(self, x):
            return self.layers(x)

    class Checkpointed(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.reentrant = reentrant
            self.blocks = nn.ModuleList(Dropped() for _ in range(2))
        def forward(self, x):
            for block in self.blocks:
                x = x + checkpoint(block, x, use_reentrant=self.reentrant)
            return x

    def tokens(model):
        batch = torch.randint(0, 256, (2, 17))
        return cross_entropy(model(batch[:, :-1]), batch[:, 1:])

    def vectors(model):
        return model(torch.randn(4, 16, requires_grad=True)).pow(2).mean()

    def train(name, build, loss_of):
        torch.manual_seed(7)  # the same weights on all ranks
        model = build()
        torch.manual_seed(100 + rank)  # other batches and other dropout masks on each
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses, gradients = hashlib.sha256(), hashlib.sha256()
        for step in range(3):
            loss = loss_of(model)
            loss.backward()
            losses.update(loss.detach().numpy().tobytes())
            for parameter in model.parameters():
                gradients.update(parameter.grad.numpy().tobytes())
            losses.update(nn.utils.clip_grad_norm_(model.parameters(), 0.5).numpy().tobytes())
            optimizer.step()
            optimizer.zero_grad()
        for what, one in (("losses", losses), ("gradients", gradients)):
            print(f"{name} rank {rank} {what} {one.hexdigest()}", file=out)

    with open(sys.argv[2] + str(rank), "w") as out:
        train("ddp-gpt", lambda: DistributedDataParallel(GPT(2, 32, 2, 16, 0.1)), tokens)
        train("dropout", Dropped, vectors)
        train("checkpoint-reentrant", lambda: Checkpointed(True), vectors)
        train("checkpoint", lambda: Checkpointed(False), vectors)
    dist.destroy_process_group()
"""


def hashes(folder: Path, *options: str) -> list[str]:
    """What both ranks print, recorded into `folder / "run"` where there are `options` for that."""
    out = folder / "hashes-"
    arguments = (str(EXAMPLES), str(out))
    if options:
        done = record_program(folder, PROGRAM, *options, ranks=2, arguments=arguments)
        assert done.status == 0, done.stderr
    else:
        bare = fork_program(write_program(folder, PROGRAM), *arguments, ranks=2)
        assert bare.returncode == 0, bare.stderr
    return [x for rank in range(2) for x in Path(f"{out}{rank}").read_text().splitlines()]


@pytest.fixture(scope="module")
def unrecorded(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return hashes(tmp_path_factory.mktemp("unrecorded"))


def test_the_models_differ(unrecorded: list[str]) -> None:
    """Otherwise equal hashes would say nothing. DDP's gradients alone are those of both ranks."""
    assert len(unrecorded) == 4 * 2 * 2
    values = [line.split()[-1] for line in unrecorded]
    shared = [line for line in unrecorded if line.startswith("ddp-gpt rank 0 gradients")]
    assert values.count(shared[0].split()[-1]) == 2
    # Recomputing in backward, either way, repeats the very bits of its dropout.
    assert len(set(values)) == 16 - 1 - 4


@pytest.mark.parametrize(
    ("observer", "level"),
    [
        *(("native", level) for level in LEVELS[1:]),
        pytest.param("native", LEVELS[0], marks=pytest.mark.slow),
        *(pytest.param("portable", level, marks=pytest.mark.slow) for level in LEVELS),
    ],
)
def test_recording_changes_no_bit(
    tmp_path: Path, unrecorded: list[str], request: pytest.FixtureRequest, observer: str, level: str
) -> None:
    if observer == "native":
        request.getfixturevalue("native")
    assert hashes(tmp_path, "--engine", observer, "--level", level) == unrecorded
    opened = open_run(tmp_path / "run")
    assert opened.manifest["level"] == level
    assert {process["engine"] for process in opened.manifest["processes"]} == {observer}
    assert opened.complete
    assert opened.dropped == 0
    assert "recorder_errors" not in opened.coverage
