"""What `lanescope doctor` says of machines, and of recorded runs."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lanescope.webapp import cli
from lanescope.webapp.plugins.checks import machine
from lanescope.webapp.plugins.checks.machine import (
    PORTS,
    RULES,
    Advice,
    Facts,
    diagnose,
    machine_facts,
)
from tests.support.synthetic import START_NS, Builder

TORCH = {"torch": "2.13.0", "gpus": 0, "distributed": True, "backends": ["gloo"]}


def facts(**changes: Any) -> Facts:
    usual: dict[str, Any] = {
        "variables": {},
        "torch": TORCH,
        "cores": 8,
        "busy_ports": (),
        "infiniband": False,
        "compiler": "/usr/bin/c++",
        "shared_memory": 1 << 34,
    }
    return Facts(**{**usual, **changes})


def said(name: str, **changes: Any) -> Advice:
    return next(one for one in diagnose(facts(**changes)) if one.name == name)


def test_a_plain_machine_is_fine() -> None:
    status = {one.name: one.status for one in diagnose(facts())}
    assert set(status.values()) == {"ok", "unknown"}
    assert status["find_unused_parameters"] == "unknown"
    assert len(status) == len(RULES) == 12


@pytest.mark.parametrize(
    ("name", "changes", "status", "setting"),
    [
        ("torch", {"torch": None}, "warning", "pip install torch"),
        ("backend", {"torch": {**TORCH, "gpus": 4}}, "error", "install a build of torch with NCCL"),
        (
            "backend",
            {"torch": {**TORCH, "gpus": 4, "backends": ["gloo", "nccl"]}},
            "ok",
            'init_process_group("nccl")',
        ),
        (
            "backend",
            {
                "variables": {"OMPI_COMM_WORLD_SIZE": "8"},
                "torch": {**TORCH, "backends": ["gloo", "mpi"]},
            },
            "info",
            'init_process_group("mpi")',
        ),
        (
            "init timeout",
            {"variables": {"MASTER_ADDR": "node-7"}, "master": "elsewhere"},
            "info",
            "init_process_group(timeout=timedelta(seconds=120)), 60 to 120",
        ),
        (
            "init timeout",
            {"variables": {"MASTER_ADDR": "nod-7"}, "master": "unknown"},
            "error",
            "MASTER_ADDR to a name that this machine can resolve, or to an address",
        ),
        ("ports", {"variables": {"MASTER_PORT": "29500;"}}, "error", "MASTER_PORT=29500"),
        ("ports", {"variables": {"MASTER_PORT": "70000"}}, "error", "MASTER_PORT=29500"),
        (
            "ports",
            {"busy_ports": (29500,)},
            "warning",
            "MASTER_PORT, torchrun --master-port, to one that is free",
        ),
        ("ports", {"busy_ports": tuple(PORTS)}, "error", "free one"),
        ("NCCL_IB_TIMEOUT", {"infiniband": True}, "info", "NCCL_IB_TIMEOUT=22"),
        (
            "NCCL_IB_TIMEOUT",
            {"variables": {"NCCL_IB_TIMEOUT": "40"}},
            "error",
            "NCCL_IB_TIMEOUT=22",
        ),
        (
            "NCCL_IB_RETRY_CNT",
            {"infiniband": True, "variables": {"NCCL_IB_RETRY_CNT": "3"}},
            "warning",
            "NCCL_IB_RETRY_CNT=7",
        ),
        (
            "NCCL_SOCKET_NTHREADS",
            {"variables": {"NCCL_SOCKET_NTHREADS": "99"}},
            "error",
            "NCCL_SOCKET_NTHREADS=4",
        ),
        (
            "NCCL_SOCKET_NTHREADS",
            {"variables": {"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"}},
            "error",
            "NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4",
        ),
        (
            "async error handling",
            {"variables": {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}},
            "warning",
            "unset TORCH_NCCL_ASYNC_ERROR_HANDLING",
        ),
        (
            "async error handling",
            {"variables": {"NCCL_ASYNC_ERROR_HANDLING": "0"}},
            "warning",
            "unset NCCL_ASYNC_ERROR_HANDLING",
        ),
        (
            "TORCH_DISTRIBUTED_DEBUG",
            {"variables": {"TORCH_DISTRIBUTED_DEBUG": "ALL"}},
            "error",
            "TORCH_DISTRIBUTED_DEBUG=OFF",
        ),
        (
            "TORCH_DISTRIBUTED_DEBUG",
            {"variables": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}},
            "warning",
            "TORCH_DISTRIBUTED_DEBUG=OFF",
        ),
        (
            "DataLoader workers",
            {"variables": {"LOCAL_WORLD_SIZE": "2"}},
            "ok",
            "DataLoader(num_workers=3) at most",
        ),
        ("DataLoader workers", {"shared_memory": 64 << 20}, "warning", "docker run --shm-size=8g"),
        ("compiler", {"compiler": None}, "warning", "apt-get install g++, or CXX"),
    ],
)
def test_each_rule_says_what_to_set_and_why(
    name: str, changes: dict[str, Any], status: str, setting: str
) -> None:
    advice = said(name, **changes)
    assert (advice.status, advice.set) == (status, setting)
    assert advice.why


@pytest.mark.slow
def test_a_port_that_is_taken_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        port = server.getsockname()[1]
        monkeypatch.setenv("MASTER_ADDR", "localhost")
        monkeypatch.setenv("MASTER_PORT", str(port))
        found = machine_facts()
    assert found.master_port_free is False
    assert found.torch is not None
    assert found.torch["backends"]
    (advice,) = (one for one in diagnose(found) if one.name == "ports")
    assert (advice.status, advice.found) == ("error", f"MASTER_PORT {port} is taken")


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("localhost", "here"),
        ("127.0.0.2", "here"),
        ("192.0.2.7", "elsewhere"),
        ("no-such-host.invalid", "unknown"),
        ("a..b", "unknown"),
    ],
)
def test_where_the_rendezvous_is(address: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_probe", lambda _: TORCH)
    monkeypatch.setenv("MASTER_ADDR", address)
    assert machine_facts().master == place


def test_what_nccl_does_by_itself_needs_no_setting() -> None:
    advice = said("NCCL_IB_RETRY_CNT", infiniband=True)
    assert (advice.status, advice.set) == ("ok", "")


def test_of_this_machine_as_json() -> None:
    result = CliRunner().invoke(
        cli.main, ["doctor", "--json"], env={"TORCH_DISTRIBUTED_DEBUG": "x", "MASTER_PORT": None}
    )
    assert result.exit_code == 1  # a level that torch does not know cannot work
    shown = json.loads(result.stdout)
    assert shown["run"] is None
    status = {one["name"]: one["status"] for one in shown["checks"]}
    assert (status["TORCH_DISTRIBUTED_DEBUG"], status["torch"]) == ("error", "ok")


def training(
    path: Path,
    *,
    data_ns: int = 0,
    unused: bool = False,
    reached: int = 2,
    step_ns: int = 1000,
    started: bool = False,
    device: str = "cpu",
) -> Path:
    builder = Builder(path, world_size=1)
    thread = builder.thread()
    builder.op(START_NS, 1, device=device)
    if started:  # a worker for each wait
        for step in range(8):
            builder.process(0, 2000 + step, role="child")
            worker = builder.thread(0, 2000 + step)
            builder.phase(START_NS + step * step_ns + data_ns // 2, 1, "data", thread=worker)
    for step in range(8):
        at = START_NS + step * step_ns
        if data_ns:
            builder.phase(at, data_ns, "data", step=step)
        if unused:
            builder.row(
                "collective",
                0,
                thread,
                start_ns=at + 500,
                duration_ns=1,
                step=step,
                name="all_reduce",
                group="0",
                group_size=1,
                sequence=step,
                shapes="[2]",
                dtypes="int32",
            )
        for k in range(reached):
            builder.op(at + 600 + k, 1, "torch::autograd::AccumulateGrad", step=step)
        for name in ("a", "b"):
            builder.row(
                "gradient",
                0,
                thread,
                time_ns=at + 800,
                step=step,
                parameter=name,
                norm=1.0,
                numel=4,
                dtype="float32",
                device="cpu",
            )
        builder.phase(at + step_ns - 100, 100, "optimizer", step=step)
    return builder.write()


def of_run(path: Path) -> dict[str, Any]:
    result = CliRunner().invoke(cli.main, ["doctor", str(path), "--json"])
    assert result.exit_code == 0, result.output
    shown: dict[str, Any] = json.loads(result.stdout)
    return shown


def test_a_run_set_up_well(tmp_path: Path) -> None:
    shown = of_run(training(tmp_path))
    assert shown["findings"] == []
    status = {one["name"]: one["status"] for one in shown["checks"]}
    assert status == {
        "backend": "ok",
        "find_unused_parameters": "ok",
        "DataLoader workers": "ok",
        "engine": "info",
    }


def test_a_run_that_waits_for_data(tmp_path: Path) -> None:
    seconds = training(tmp_path, data_ns=400_000_000, step_ns=1_000_000_000)
    (found,) = of_run(seconds)["findings"]
    assert (found["kind"], found["rank"]) == ("environment", 0)
    assert "waits for data in 40 % of its time, with 0 workers" in found["title"]
    assert found["title"].endswith("Set DataLoader: num_workers above 0, persistent_workers.")


def test_pinned_memory_is_advised_where_batches_go_to_a_device(tmp_path: Path) -> None:
    run = training(tmp_path, data_ns=400_000_000, step_ns=1_000_000_000, device="cuda:0")
    (found,) = of_run(run)["findings"]
    assert "pin_memory" in found["title"]


def test_waits_in_which_workers_start_are_no_want_of_workers(tmp_path: Path) -> None:
    run = training(tmp_path, data_ns=400_000_000, step_ns=1_000_000_000, started=True)
    assert of_run(run)["findings"] == []


def test_workers_of_epochs_that_follow_one_another_are_not_added_up(tmp_path: Path) -> None:
    run = training(tmp_path, data_ns=400_000_000, step_ns=1_000_000_000)
    manifest = json.loads((run / "manifest.json").read_text())
    (rank,) = manifest["processes"]
    for pid, second in enumerate((0, 0, 2, 2, 4, 4), 2000):
        child = {"pid": pid, "role": "child", "start_ns": second, "end_ns": second + 1}
        manifest["processes"].append(rank | child)
    (run / "manifest.json").write_text(json.dumps(manifest))
    (found,) = of_run(run)["findings"]
    assert "with 2 workers" in found["title"]


def test_a_short_run_gets_no_advice_on_workers(tmp_path: Path) -> None:
    assert of_run(training(tmp_path, data_ns=400))["findings"] == []


def test_a_run_that_looks_for_unused_parameters_in_vain(tmp_path: Path) -> None:
    (found,) = of_run(training(tmp_path, unused=True))["findings"]
    assert "find_unused_parameters=False" in found["title"]
    assert found["evidence"]["name"] == "find_unused_parameters"


@pytest.mark.parametrize(("beside", "found"), [((), ["backend"]), (("nccl:all_reduce",), [])])
def test_gloo_moves_tensors_of_gpus_where_nccl_does_not(
    tmp_path: Path, beside: tuple[str, ...], found: list[str]
) -> None:
    builder = Builder(tmp_path, world_size=1)
    for name in ("gloo:all_reduce", *beside):
        builder.op(START_NS, 1, name, step=0)
    builder.row(
        "gradient",
        0,
        builder.thread(),
        time_ns=START_NS + 2,
        step=0,
        parameter="a",
        norm=1.0,
        numel=4,
        dtype="float32",
        device="cuda:0",
    )
    builder.phase(START_NS + 3, 1, "optimizer", step=0)
    shown = of_run(builder.write())["findings"]
    assert [one["evidence"]["name"] for one in shown] == found


def test_a_parameter_that_other_ranks_alone_used_is_not_used_in_vain(tmp_path: Path) -> None:
    assert of_run(training(tmp_path, unused=True, reached=1))["findings"] == []


def test_a_run_without_steps_cannot_tell(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    builder.op(START_NS, 1)
    check, engine = of_run(builder.write())["checks"]
    assert engine["name"] == "engine"
    assert (check["status"], check["found"]) == (
        "unknown",
        "record a training step: the run has no steps",
    )


def test_no_run_is_one_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.main, ["doctor", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
