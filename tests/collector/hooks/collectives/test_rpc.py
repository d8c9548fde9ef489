"""Workers of torch.distributed.rpc have ranks and names of their own, without a process group."""

from __future__ import annotations

from pathlib import Path

from lanescope.webapp.runs.run import open_run
from tests.support.recording import record_program

PROGRAM = """
    import sys
    import torch
    import torch.distributed.rpc as rpc
    import torch.multiprocessing as mp

    def work(x):
        return float((x @ x).sin().sum())

    def run(rank, place):
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{place}")
        name = "trainer" if rank == 0 else f"worker{rank}"
        rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)
        if rank == 0:
            rpc.rpc_sync("worker1", work, args=(torch.ones(4, 4),))
        rpc.shutdown()

    if __name__ == "__main__":
        mp.start_processes(run, args=(sys.argv[1],), nprocs=2, start_method="fork")
"""


def test_workers_have_ranks_and_names(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, PROGRAM, arguments=(str(tmp_path / "store"),))
    assert recorded.status == 0, recorded.stderr
    run = open_run(recorded.run)
    named = {(thread.rank, thread.process_name) for thread in run.threads}
    assert {(0, "trainer"), (1, "worker1")} <= named
    assert ["aten::sin" in recorded.op_names(rank) for rank in (0, 1)] == [False, True]
