"""torch's own tests of torch.distributed, which the wheel holds: two ranks, gloo.

Ranks are forked, not spawned: otherwise every rank of some hundred tests would import torch.
"""

from __future__ import annotations

import torch
from torch.testing._internal.distributed import distributed_test


class Distributed(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)
