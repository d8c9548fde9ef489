"""Trees of modules of two runs: which modules match, by any name.

A module is recognised by its class, the size of its parameters and its content. So a model inside
a wrapper, a wrapper around a layer, and names that were changed are found. Where several modules
are alike, gradients decide, and where these do not decide, modules stay unmatched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_Norms = Mapping[str, float]
"""Parameter -> norm of its gradient, in a step that both runs have."""


@dataclass(eq=False)
class Module:
    """A module, as in the module table."""

    path: str  # as operators name it
    inside: str  # what parameters and modules in it have in front: "layers.0.", "" of a model
    kind: str  # its class, without the file that defines it
    own: int  # elements of its own parameters
    children: dict[str, Module] = field(default_factory=dict)
    size: int = 0  # elements, with those of its children
    form: int = 0  # hash of kind, size and content, without names

    def below(self) -> Iterator[Module]:
        """Yields all modules in it."""
        for child in self.children.values():
            yield child
            yield from child.below()


def forest(rows: Iterable[tuple[str, str, int]]) -> list[Module]:
    """Returns the models of a run, from rows (path, class, elements) of its module table.

    A model comes before its modules. The first one has its class as path and nothing in front of
    the paths in it, others their class.
    """
    known: dict[str, Module] = {}
    models: list[Module] = []
    bare: Module | None = None  # whose paths have nothing in front
    for path, kind, own in rows:
        if path in known:  # on another rank as well
            continue
        parent, name = _parent(known, path)
        module = known[path] = Module(path, f"{path}.", kind.rpartition(".")[2], own)
        if parent is None and path.partition("#")[0] == module.kind:
            models.append(module)
            bare = module
            continue
        if parent is None and bare is not None:
            parent, bare.inside = bare, ""
        if parent is not None:
            parent.children[name] = module
    for model in models:
        _measure(model)
    return models


def _parent(known: Mapping[str, Module], path: str) -> tuple[Module | None, str]:
    above = path
    while "." in above:
        above = above.rpartition(".")[0]
        if above in known:
            return known[above], path[len(above) + 1 :]
    return None, path


def _measure(module: Module) -> None:
    for child in module.children.values():
        _measure(child)
    module.size = module.own + sum(child.size for child in module.children.values())
    inner = tuple(child.form for child in module.children.values())
    module.form = hash((module.kind, module.own, inner))


class Matching:
    """Pairs the modules of two forests. `found`: module of the baseline -> module of the run."""

    def __init__(
        self, base: Sequence[Module], run: Sequence[Module], base_norms: _Norms, run_norms: _Norms
    ) -> None:
        self.found: dict[Module, Module] = {}
        self._taken: set[Module] = set()
        self._norms = base_norms, run_norms
        left, right = ([one for one in side if one.children] for side in (base, run))
        self._same_form(left, right)
        self._held(left, right)
        for one, other in zip(list(left), list(right), strict=False):
            self._either(one, other)

    def _same_form(self, left: list[Module], right: list[Module]) -> None:
        """Takes models of equal form out of both lists: of one name first, then in their order."""
        for named in (True, False):
            for one in list(left):
                for other in right:
                    if one.form == other.form and (one.path == other.path or not named):
                        left.remove(one)
                        right.remove(other)
                        self._pair(one, other)
                        break

    def _held(self, left: list[Module], right: list[Module]) -> None:
        """Takes models out that are part of one of the other run."""
        for one in list(left):
            place = _only(m for other in right for m in other.below() if m.form == one.form)
            if place is not None:
                left.remove(one)
                self._pair(one, place)
        for other in list(right):
            place = _only(m for one in left for m in one.below() if m.form == other.form)
            if place is not None:
                right.remove(other)
                self._pair(place, other)

    def _pair(self, one: Module, other: Module) -> None:
        self._note(one, other)
        left = []
        for name, child in one.children.items():
            there = other.children.get(name)
            if there is None or not self._either(child, there):
                left.append(child)
        right = [there for there in other.children.values() if not _touched(there, self._taken)]
        self._by_form(left, right)
        for child in list(left):
            place = _only(m for there in right for m in _places(child, there))
            if place is not None and _only(m for c in left for m in _places(c, place)) is child:
                left.remove(child)
                right = [there for there in right if not _touched(there, {place})]
                self._pair(child, place)
        for child in left:  # nothing but the name speaks for these
            there = other.children.get(child.path[len(one.inside) :])
            if there in right and there is not None:
                self._by_name(child, there)

    def _either(self, one: Module, other: Module) -> bool:
        """Pairs two that have one place where they are alike, or one is within the other."""
        place = _only(_places(one, other))
        if place is not None:
            self._pair(one, place)
            return True
        place = _only(_places(other, one))
        if place is not None:
            self._pair(place, other)
        return place is not None

    def _note(self, one: Module, other: Module) -> None:
        self.found[one] = other
        self._taken.add(other)

    def _by_name(self, one: Module, other: Module) -> None:
        self._note(one, other)
        for name, child in one.children.items():
            if name in other.children:
                self._by_name(child, other.children[name])

    def _by_form(self, left: list[Module], right: list[Module]) -> None:
        """Takes modules of equal form out of both lists that are of other names."""
        groups: dict[int, tuple[list[Module], list[Module]]] = defaultdict(lambda: ([], []))
        for side, modules in enumerate((left, right)):
            for module in modules:
                groups[module.form][side].append(module)
        for here, there in groups.values():
            pairs = list(zip(here, there, strict=False))
            if len(here) != len(there) or (len(here) > 1 and here[0].size):
                pairs = self._by_gradients(here, there)
            for one, other in pairs:
                left.remove(one)
                right.remove(other)
                self._pair(one, other)

    def _by_gradients(self, left: list[Module], right: list[Module]) -> list[tuple[Module, Module]]:
        """Those whose gradients are the same, and those of no other."""
        sides = []
        for modules, norms in zip((left, right), self._norms, strict=True):
            known: dict[tuple[float, ...], list[Module]] = defaultdict(list)
            for module in modules:
                key = tuple(
                    sorted(n for name, n in norms.items() if name.startswith(module.inside))
                )
                known[key].append(module)
            sides.append(known)
        return [
            (here[0], sides[1][key][0])
            for key, here in sides[0].items()
            if key and len(here) == 1 == len(sides[1].get(key, ()))
        ]


def _places(one: Module, other: Module) -> list[Module]:
    """Where `one` may be in `other`: that itself, else what it wraps, nearly all of its size."""
    if _alike(one, other):
        return [other]
    inner = [
        m for m in other.below() if 2 * m.size > other.size or (not other.size and _only_one(other))
    ]
    same = [m for m in inner if m.form == one.form]
    return same or [m for m in inner if _alike(one, m)]


def _alike(one: Module, other: Module) -> bool:
    """Equal form, or of one kind with mostly the same in it."""
    if one.form == other.form:
        return True
    if one.own != other.own or not one.children or not other.children:
        return False
    names = one.children.keys() & other.children.keys()
    enough = 2 * len(names) >= max(len(one.children), len(other.children))
    forms = [child.form for child in one.children.values()]
    if forms == [child.form for child in other.children.values()]:
        return True
    return enough and (one.kind == other.kind or len(names) > 1)


def _only_one(module: Module) -> bool:
    """Whether it holds a single module, and so does whatever in it holds any."""
    return bool(module.children) and all(len(one.children) < 2 for one in (module, *module.below()))


def _only(found: Iterable[Module]) -> Module | None:
    several = list(found)
    return several[0] if len(several) == 1 else None


def _touched(module: Module, taken: set[Module]) -> bool:
    return module in taken or any(one in taken for one in module.below())
