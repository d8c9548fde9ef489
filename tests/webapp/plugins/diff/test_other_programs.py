"""Two versions of a program: the lines that differ are named, and what a checkpoint leaves out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lanescope.webapp.plugins.diff.diff import compare
from lanescope.webapp.plugins.diff.pairing.resumed import LOST
from lanescope.webapp.runs.run import open_run
from tests.support.recording import record_script, write_program

PROGRAM = """
    import random, sys
    import numpy as np
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    def states():
        return random.getstate(), np.random.get_state(), torch.get_rng_state(), g.get_state()

    class Data:
        def __len__(self):
            return 24
        def __getitem__(self, index):
            # a comment
            row = torch.full((8,), index / 24) * (1 + random.random())
            return row + float(np.random.normal(0, 0.1))

    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    g = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = 0
    if "--resume" in sys.argv:
        kept = torch.load(sys.argv[1], weights_only=False)
        model.load_state_dict(kept[0])
        python, numpy, of_torch, of_loader = kept[1]
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(of_torch)
        g.set_state(of_loader)
        first = 1
    for epoch in range(first, 2):
        for x in DataLoader(Data(), batch_size=8, shuffle=True, generator=g):
            optimizer.zero_grad()
            (model(x) - 1).square().mean().backward()
            optimizer.step()
        print(epoch)
        if epoch == 0 and "--resume" not in sys.argv:
            torch.save((model.state_dict(), states()), sys.argv[1])
"""


def noted(folder: Path, before: str, after: str, *arguments: str) -> list[str]:
    """What is said of the program with another text, compared with the program itself."""
    assert before in PROGRAM
    runs = []
    for side, text in (("base", PROGRAM), ("run", PROGRAM.replace(before, after))):
        (folder / side).mkdir()
        program = write_program(folder / side, text)
        given = (str(folder / "kept.pt"), *(arguments if side == "run" else ()))
        done = record_script(folder / side / "recorded", program, *given)
        assert done.status == 0, done.stderr
        runs.append(open_run(done.run))
    return [*compare(*runs).notes]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("nn.Dropout(0.3)", "nn.Dropout(0.4)", "at program.py:24: `model = .*0.4.*, in the"),
        ("        row = ", "        row = 2 * ", "at program.py:16: `row = 2 \\*"),
        ("            optimizer.zero_grad()\n", "", "zero_grad\\(\\)` of the baseline is missing$"),
        ("            torch.save", "            model.eval()\n            torch.save", ""),
    ],
)
def test_lines_that_differ(tmp_path: Path, before: str, after: str, words: str) -> None:
    notes = noted(tmp_path, before, after.replace("eval", "train"))
    said = [note for note in notes if note.startswith("the programs differ")]
    assert len(said) == bool(words), notes
    assert re.search(words, "".join(said))


@pytest.mark.parametrize("text", ["# another comment", '"""Of a sample."""\n            # one'])
def test_comments_and_prints_are_no_difference(tmp_path: Path, text: str) -> None:
    notes = noted(tmp_path, "# a comment", text)
    assert not [note for note in notes if "differ" in note]


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ("random.setstate(python)", "keep the state of Python's generator"),
        ("np.random.set_state(numpy)", "keep the state of NumPy's generator"),
        ("torch.set_rng_state(of_torch)", "keep the state of torch's generator"),
        ("g.set_state(of_loader)", "the order of the data"),
        ("model.train()", ""),
    ],
)
def test_what_a_checkpoint_does_not_restore(tmp_path: Path, line: str, lost: str) -> None:
    before = line if lost else "first = 1"
    notes = noted(tmp_path, before, "pass" if lost else f"{line}; first = 1", "--resume")
    said = [note for note in notes if note.startswith(LOST)]
    assert len(said) == bool(lost), notes
    assert lost in "".join(said)
