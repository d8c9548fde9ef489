"""Diff of runs in which the same modules have other names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from lanescope.webapp.plugins.diff.diff import compare
from lanescope.webapp.plugins.diff.pairing.module_trees import Matching, forest
from lanescope.webapp.plugins.diff.pairing.renaming import renamed
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import START_NS, Builder

Rows = list[tuple[str, str, int]]

BLOCK = (("", "Block", 0), (".q", "Linear", 20), (".k", "Linear", 20), (".act", "ReLU", 0))
NET: Rows = [
    ("Net", "main.Net", 4),
    ("emb", "torch.nn.Embedding", 40),
    ("blocks", "torch.nn.ModuleList", 0),
    *((f"blocks.{k}{name}", kind, own) for k in (0, 1) for name, kind, own in BLOCK),
    ("head", "torch.nn.Linear", 44),
]


def within(front: str, rows: Rows, kind: str = "main.Wrap") -> Rows:
    """A model as what another one wraps."""
    inner = [(f"{front}.{path}", kind, own) for path, kind, own in rows[1:]]
    return [(kind.rpartition(".")[2], kind, 0), (front, *rows[0][1:]), *inner]


def called(rows: Rows, names: Mapping[str, str]) -> Rows:
    """The same with other names of single modules, wherever they stand in a path."""
    return [
        (".".join(names.get(part, part) for part in path.split(".")), kind, own)
        for path, kind, own in rows
    ]


def pairs(base: Rows, run: Rows, *norms: Mapping[str, float]) -> dict[str, str]:
    """Modules of other names."""
    found = Matching(forest(base), forest(run), *(norms or ({}, {}))).found
    return {one.path: other.path for one, other in found.items() if one.path != other.path}


def wrapped_block(rows: Rows) -> Rows:
    made: Rows = []
    for path, kind, own in rows:
        if path == "blocks.1":
            made.append((path, "main.Wrap", 0))
        made.append((path.replace("blocks.1", "blocks.1.inner"), kind, own))
    return made


@pytest.mark.parametrize(
    "run",
    [
        within("model", NET),
        within("a", within("b", NET)),
        called(NET, {"blocks": "layers"}),
        called(within("model", NET), {"emb": "tokens", "act": "relu"}),
        wrapped_block(NET),
        [("Net2", "other.Net2", 4), *NET[1:]],
    ],
)
def test_every_module_is_found_under_its_other_name(run: Rows) -> None:
    found = pairs(NET, run)
    kinds = [
        {path: (kind.rpartition(".")[2], own) for path, kind, own in one} for one in (NET, run)
    ]
    model = {"Net": found.get("Net", "Net")}
    every = {path: found.get(path, path) for path, *_ in NET}
    assert len(set(every.values())) == len(NET)
    assert found
    assert all(kinds[0][a] == kinds[1][b] for a, b in every.items() if a not in model)
    assert pairs(run, NET) == {b: a for a, b in found.items()}


def test_equal_names_stay_and_other_operators_have_no_partner() -> None:
    assert pairs(NET, NET) == {}
    # A layer in place of another, of the same name or not: nothing says that they are one.
    assert pairs(NET, [*NET[:-1], ("head", "torch.nn.Linear", 88)]) == {}
    assert pairs(NET, [*NET[:-1], ("out", "torch.nn.Linear", 88)]) == {}
    assert pairs(NET, [("CNN", "main.CNN", 0), ("conv", "torch.nn.Conv2d", 44)]) == {}
    # As much else around it as what it might be.
    large = [
        *NET[:-1],
        ("head", "main.Head", 0),
        ("head.a", "Linear", 44),
        ("head.b", "Linear", 44),
    ]
    assert pairs(NET, large) == {}


def test_which_of_several_alike_is_meant_gradients_say() -> None:
    run = called(NET, {"q": "query", "k": "key"})
    turned = [*run[:3], run[3], run[5], run[4], *run[6:]]  # the key is defined before the query
    norms = {
        f"blocks.{k}.{name}.weight": 1.0 + k + 0.1 * n
        for k in (0, 1)
        for n, name in enumerate("qk")
    }
    there = {name.replace(".q", ".query").replace(".k", ".key"): v for name, v in norms.items()}
    wanted = {
        f"blocks.{k}.{short}": f"blocks.{k}.{name}"
        for k in (0, 1)
        for short, name in (("q", "query"), ("k", "key"))
    }
    assert pairs(NET, turned, norms, there) == wanted
    assert pairs(NET, turned) == {}
    assert pairs(NET, turned, dict.fromkeys(norms, 1.0), dict.fromkeys(there, 1.0)) == {}


def test_a_shorter_sequence_is_matched_by_its_members() -> None:
    base = [("Net", "Net", 0), ("0", "Linear", 6), ("1", "Dropout", 0), ("2", "Linear", 8)]
    run = [("Net", "Net", 0), ("0", "Linear", 6), ("1", "Linear", 8)]
    assert pairs(base, run) == {"2": "1"}
    assert pairs(run, base) == {"1": "2"}


def test_models_called_in_another_order_keep_their_names() -> None:
    other = within("core", [("Core", "main.Core", 9), ("x", "Linear", 3)], "main.Critic")
    after = [("Critic", *other[0][1:]), *((f"Critic.{p}", k, n) for p, k, n in other[1:])]
    first = [("Net", *NET[0][1:]), *((f"Net.{p}", k, n) for p, k, n in NET[1:])]
    found = pairs([*NET, *after], [*other, *first])
    assert found["head"] == "Net.head"
    assert found["Critic.core"] == "core"
    assert len(found) == len(NET) - 1 + len(other) - 1


def run_of(path: Path, modules: Rows, inside: Mapping[str, str], other: str = "") -> Run:
    """An operator and a gradient in each module; `other` is one with another value."""
    builder = Builder(path, level="numerics")
    for at, (module, _, own) in enumerate(modules):
        start = START_NS + 100 * at
        builder.op(start, 50, module=module, phase="forward", shapes="[4]", dtypes="float32")
        number = len(modules) - at  # from the end, for a wrapper stands first
        value = 1000 if module == other else number
        builder.row(
            "tensor",
            0,
            "1000-0",
            start_ns=start,
            depth=0,
            position="out0",
            shape="[4]",
            dtype="float32",
            numel=4,
            mean=0.5,
            l2=1.0,
            hash=value,
        )
        if own:
            name = f"{inside.get(module, module + '.')}weight"
            builder.row(
                "gradient",
                0,
                "1000-0",
                time_ns=start,
                parameter=name,
                norm=1.0 + number,
                dtype="float32",
            )
    paths, kinds, sizes = zip(*modules, strict=True)
    builder.rows("module", 0, None, path=paths, parameters=sizes, **{"class": kinds})
    return open_run(builder.write())


def test_a_wrapped_model_is_compared_in_full(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", NET, {"Net": ""})
    modules = within("model", NET)
    run = run_of(tmp_path / "run", modules, {})
    found = compare(base, run)
    assert (found.verdict, found.only_in_base, found.only_in_run) == ("identical", 0, 1)
    assert found.compared == len(NET) + sum(own > 0 for *_, own in NET)
    assert [note for note in found.notes if "other names" in note] == [
        f"{len(NET)} modules of the baseline have other names in the run, matched by class, size "
        "and content: Net is model"
    ]
    changed = compare(base, run_of(tmp_path / "changed", modules, {}, "model.blocks.1.k"))
    assert changed.first is not None
    assert changed.first["module"] == "model.blocks.1.k"
    assert changed.differing == 1
    assert renamed(base, base).run is base


def test_a_name_that_another_module_has_taken_is_not_used_twice(tmp_path: Path) -> None:
    base = [("Net", "Net", 0), ("0", "Linear", 6), ("1", "ReLU", 0), ("2", "Linear", 8)]
    run = [("Net", "Net", 0), ("0", "Linear", 6), ("1", "Linear", 8)]
    one, other = run_of(tmp_path / "a", base, {"Net": ""}), run_of(tmp_path / "b", run, {"Net": ""})
    rows = renamed(one, other).run.events("op", columns=["module"])["module"].to_pylist()
    assert rows == ["Net", "0", "1 (base)", "1"]
    names = renamed(one, other).run.events("gradient")["parameter"].to_pylist()
    assert names == ["0.weight", "1.weight"]
