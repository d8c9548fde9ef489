"""The frameworks themselves: transformers, Lightning, accelerate, DeepSpeed."""

from __future__ import annotations

import glob
import json
from pathlib import Path

import pytest

from lanescope.webapp.analysis.parameter_history import gradients
from lanescope.webapp.runs.run import Run, open_run
from tests.integrations.test_training import marks, outer_evaluations, values
from tests.support.needed import environment_with
from tests.support.processes import output_of

pytestmark = pytest.mark.slow

DATA = """
import sys
import torch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, number):
        return {"x": torch.full((4,), float(number)), "labels": torch.tensor(float(number))}
"""

TRANSFORMERS = f"""{DATA}
import transformers
from lanescope.integrations.transformers import LaneScopeCallback

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        out = self.layer(x)[:, 0]
        return {{"loss": (out - labels).square().mean(), "logits": out}}

arguments = transformers.TrainingArguments(
    output_dir="out", num_train_epochs=2, per_device_train_batch_size=2, eval_strategy="epoch",
    logging_steps=2, save_steps=4, report_to=["tensorboard", "wandb"], use_cpu=True,
    disable_tqdm=True,
)
transformers.Trainer(
    model=Model(), args=arguments, train_dataset=Data(), eval_dataset=Data(),
    callbacks=[LaneScopeCallback("run", level="timing")],
).train()
"""

LIGHTNING = f"""{DATA}
import lightning
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from lanescope.integrations.lightning import LaneScopeCallback

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        loss = (self.layer(batch["x"])[:, 0] - batch["labels"]).square().mean()
        self.log("loss", loss)
        return loss
    def validation_step(self, batch, number):
        self.log("val_loss", (self.layer(batch["x"])[:, 0] - batch["labels"]).square().mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.001)

loader = torch.utils.data.DataLoader(Data(), batch_size=2)
lightning.Trainer(
    max_epochs=2, log_every_n_steps=2, accelerator="cpu", enable_progress_bar=False,
    logger=[TensorBoardLogger("out", name="tb"), WandbLogger(offline=True, project="p")],
    callbacks=[LaneScopeCallback("run", level="timing")], num_sanity_val_steps=0,
).fit(Model(), loader, loader)
"""

RESUMED = LIGHTNING.replace(".fit(Model(), loader, loader)", "").replace(
    "lightning.Trainer(", "options = dict("
)
RESUMED += """
first = lightning.Trainer(**{**options, "max_epochs": 1, "callbacks": [], "logger": False})
first.fit(Model(), loader)
first.save_checkpoint("first.ckpt")
lightning.Trainer(**options).fit(Model(), loader, ckpt_path="first.ckpt", weights_only=False)
"""

ACCELERATE = f"""{DATA}
import accelerate
from lanescope.integrations.accelerate import LaneScopeTracker

accelerator = accelerate.Accelerator(cpu=True, log_with=[LaneScopeTracker("run", level="timing")])
accelerator.init_trackers("project", config={{"lr": 0.1}})
training = accelerator.get_tracker("lanescope", unwrap=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
loader = torch.utils.data.DataLoader(Data(), batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
training.epoch(0)
for batch in loader:
    loss = (model(batch["x"])[:, 0] - batch["labels"]).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.log({{"loss": loss.item()}})
with training.evaluation(), torch.no_grad():
    model(batch["x"])
accelerator.end_training()
"""

DEEPSPEED = """
import sys
import deepspeed
import torch
import torch.distributed as dist

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # takes minutes to compile
deepspeed.init_distributed(dist_backend="gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
settings = {"lr": 0.01, "torch_adam": True}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    "train_micro_batch_size_per_gpu": 4, "zero_force_ds_cpu_optimizer": False,
    "zero_optimization": {"stage": int(sys.argv[1]), "sub_group_size": 100},
    "optimizer": {"type": "AdamW", "params": settings},
})
torch.manual_seed(dist.get_rank())
for _ in range(3):
    loss = engine(torch.randn(4, 8)).square().mean()
    engine.backward(loss)
    engine.step()
"""

RAY = """
import ray
import torch

ray.init(num_cpus=1, include_dashboard=False, configure_logging=False)

@ray.remote
def square(x):
    return float((x @ x).sum())

@ray.remote
class Learner:
    def __init__(self):
        self.layer = torch.nn.Linear(8, 2)
    def train(self, x):
        self.layer(x).square().mean().backward()

print(ray.get([square.remote(torch.ones(8, 8)) for _ in range(2)]))
learner = Learner.remote()
ray.get([learner.train.remote(torch.ones(4, 8)) for _ in range(3)])
ray.shutdown()
"""

READ = """
import glob, json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = {}
for file in glob.glob("out/**/events.*", recursive=True):
    events = EventAccumulator(file).Reload()
    for name in events.Tags()["scalars"]:
        found.setdefault(name, []).extend(one.step for one in events.Scalars(name))
    found.update({name: [] for name in events.Tags()["tensors"]})
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the frameworks."""
    place = tmp_path_factory.mktemp("frameworks") / "venv"
    return environment_with(place, "lightning", "tensorboard", "wandb") / "bin/python"


def trained(python: Path, program: str, folder: Path) -> Run:
    environment = {"WANDB_MODE": "offline", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    output_of(python, "-c", program, environment=environment, folder=folder)
    return open_run(folder / "run")


def reported(python: Path, folder: Path) -> dict[str, list[int]]:
    """Scalars and texts in TensorBoard's files -> the steps that they have."""
    found: dict[str, list[int]] = json.loads(output_of(python, "-c", READ, folder=folder))
    return found


def assert_reported(python: Path, folder: Path, steps: int) -> None:
    found = reported(python, folder)
    assert found["lanescope/step_ms"] == list(range(1, steps + 1))
    assert found["lanescope/forward_ms"] == found["lanescope/step_ms"]
    assert "lanescope/findings/text_summary" in found
    offline = glob.glob("**/run-*.wandb", root_dir=folder, recursive=True)
    data = b"".join((folder / name).read_bytes() for name in offline)
    assert b"lanescope/step_ms" in data
    assert b"lanescope/findings" in data


def test_transformers(python: Path, tmp_path: Path) -> None:
    run = trained(python, TRANSFORMERS, tmp_path)
    found = marks(run)
    assert [name for name in found if name.startswith("epoch")] == ["epoch 0", "epoch 1"]
    assert [name for name in found if name.startswith("checkpoint")] == [
        "checkpoint: step 4",
        "checkpoint: step 8",
    ]
    assert len(values(run, "loss")) == 4
    assert len(values(run, "eval_loss")) == 2
    assert outer_evaluations(run) == 2
    assert len(run.steps(0)) == 8
    assert_reported(python, tmp_path, 8)


def test_lightning(python: Path, tmp_path: Path) -> None:
    run = trained(python, LIGHTNING, tmp_path)
    found = marks(run)
    assert [name for name in found if name.startswith("epoch")] == ["epoch 0", "epoch 1"]
    assert [name for name in found if name.startswith("checkpoint")] == [
        "checkpoint: step 4",
        "checkpoint: step 8",
    ]
    assert len(values(run, "loss")) >= 4
    assert len(values(run, "val_loss")) >= 2
    assert outer_evaluations(run) == 2
    assert len(run.steps(0)) == 8
    assert_reported(python, tmp_path, 8)


def test_a_resumed_training_goes_on_with_its_steps(python: Path, tmp_path: Path) -> None:
    run = trained(python, RESUMED, tmp_path)
    assert marks(run)[:3] == ["training begins", "training goes on at step 4", "epoch 1"]
    assert len(run.steps(0)) == 4
    assert reported(python, tmp_path)["lanescope/step_ms"] == [5, 6, 7, 8]


def test_accelerate(python: Path, tmp_path: Path) -> None:
    run = trained(python, ACCELERATE, tmp_path)
    assert marks(run) == ["training begins", "epoch 0", "training ends"]
    assert len(values(run, "loss")) == 4
    assert outer_evaluations(run) == 1
    assert len(run.steps(0)) == 4


def test_deepspeed_names_its_shards(tmp_path: Path) -> None:
    place = environment_with(tmp_path / "venv", "deepspeed")
    program = tmp_path / "train.py"
    program.write_text(DEEPSPEED)
    norms = {}
    for stage in (1, 2, 3):
        run = tmp_path / f"run{stage}"
        ranks = ("-m", "torch.distributed.run", "--nproc-per-node", "2", str(program), str(stage))
        command = ("-m", "lanescope", "record", "-o", str(run), place / "bin/python", *ranks)
        output_of(place / "bin/python", *command)
        rows = gradients(open_run(run))
        assert set(rows["parameter"]) == {"0.weight", "0.bias", "2.weight", "2.bias"}
        first = rows[rows["step"] == 0]
        norms[stage] = (first["norm"] ** 2).groupby(first["parameter"]).sum()
        assert not first["missing"].any()
    assert norms[1].to_list() == pytest.approx(norms[2].to_list(), rel=1e-5)
    assert norms[1].to_list() == pytest.approx(norms[3].to_list(), rel=1e-5)


def test_tasks_of_ray_are_phases_of_workers_with_names(tmp_path: Path) -> None:
    python = environment_with(tmp_path / "venv", "ray") / "bin/python"
    program = tmp_path / "tasks.py"
    program.write_text(RAY)
    output_of(python, "-m", "lanescope", "record", "-o", str(tmp_path / "run"), python, program)
    run = open_run(tmp_path / "run")
    phases = run.events("phase").to_pandas()
    worker = {thread.thread: thread.process_name for thread in run.threads}
    found = [(worker[row["thread"]], row["name"]) for _, row in phases.iterrows()]
    assert found.count(("square", "square")) == 2
    assert found.count(("Learner", "Learner.train")) == 3
    assert {process["role"] for process in run.manifest["processes"]} == {"rank", "child"}
