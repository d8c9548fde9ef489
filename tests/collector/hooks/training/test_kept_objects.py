"""The recorder keeps nothing of the program alive."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.collector.compaction.reader import read_texts
from tests.support.processes import fork_program
from tests.support.recording import OBSERVERS, UNCOMPACTED, write_program

PROGRAM = """
    import gc, sys, weakref
    import torch
    import lanescope.collector as ls

    def two_optimizers():
        models = [torch.nn.Linear(4, 4) for _ in range(2)]
        optimizers = [torch.optim.Adam(one.parameters()) for one in models]
        for _ in range(3):
            for optimizer in optimizers:
                models[1](models[0](torch.ones(2, 4))).sum().backward()
                optimizer.step()
        return [weakref.ref(one) for one in (*models, *optimizers)]

    def other_parameters():
        # Of an optimizer that goes on, as where points are added to a scene.
        first = torch.nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([first], lr=0.1)
        for _ in range(2):
            first.sum().backward()
            optimizer.step()
        optimizer.param_groups[0]["params"] = [torch.nn.Parameter(torch.ones(8))]
        kept.append(optimizer)
        return [weakref.ref(first)]

    kept = []
    ls.start(sys.argv[1], engine=sys.argv[2])
    for make in (two_optimizers, other_parameters):
        made = make()
        gc.collect()
        print(make.__name__, [one() is None for one in made].count(False))
    ls.stop()
"""


@pytest.mark.parametrize("engine", OBSERVERS)
def test_models_and_optimizers_go_as_without_it(tmp_path: Path, engine: str) -> None:
    program = write_program(tmp_path, PROGRAM)
    done = fork_program(program, str(tmp_path / "run"), engine, environment=UNCOMPACTED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["two_optimizers 0", "other_parameters 0"]


MANY = """
    import copy, sys
    import torch
    import lanescope.collector as ls
    ls.start(sys.argv[1], engine=sys.argv[2])
    from lanescope.collector.hooks.training import modules, optimizer_parameters, settings
    modules._MAX_NAMES = 60
    settings.MAX_OPTIMIZERS = optimizer_parameters.MAX_OPTIMIZERS = 5

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    for _ in range(50):
        copy.deepcopy(model)(torch.ones(2, 4))
        tensor = torch.zeros(4, requires_grad=True)
        optimizer = torch.optim.SGD([tensor], lr=0.1)
        tensor.sum().backward()
        optimizer.step()
    ls.stop()
"""


@pytest.mark.parametrize("engine", OBSERVERS)
def test_copies_for_each_sample_share_names(tmp_path: Path, engine: str) -> None:
    program = write_program(tmp_path, MANY)
    done = fork_program(program, str(tmp_path / "run"), engine, environment=UNCOMPACTED)
    assert (done.returncode, done.stderr) == (0, "")
    (folder,) = (tmp_path / "run" / "journal").iterdir()
    texts = [*filter(None, map(str, read_texts(folder)))]
    assert {"Sequential#8.0.weight", "optimizer5.parameter0"} <= {*texts}
    assert not any(name.startswith(("Sequential#10", "optimizer6")) for name in texts)
    assert len([name for name in texts if "SGD 4, " in name]) > 3
    assert not any("SGD 5, " in name for name in texts)
