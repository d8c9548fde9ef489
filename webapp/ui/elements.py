"""Parts of a page that are sent as bare elements, as no callback reads or writes them, and parts
that the browser makes once they come into sight.

Dash asks each of its components at each change of anything on the page whether it is concerned:
with hundreds of cells and words this takes longer than all else. An element without an id can only
change together with what contains it, so that a single component is enough for many of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from itertools import groupby
from typing import Any

from dash import dcc
from dash.development.base_component import Component

_HTML = "dash_html_components"


class Fixed(Component):
    """Elements that are made at once (see assets/timeline/page/dash_hooks.js).

    `tree` holds texts, numbers and elements, each as `[tag, properties, *children]`.
    """

    _namespace = "lanescope_elements"
    _type = "Fixed"

    def __init__(self, tree: list[Any]) -> None:
        self._prop_names = ["tree"]
        self._base_nodes: list[str] = []
        self._valid_wildcard_attributes: list[str] = []
        self.tree = tree


def fixed(content: Any) -> Any:
    """Returns the value of a callback's output, or a layout, with `Fixed` where that will do.

    Anything but components and lists with components is returned as it is.
    """
    if isinstance(content, Component):
        made = _made(content)
        return Fixed([made]) if isinstance(made, list) else made
    if isinstance(content, list | tuple) and any(isinstance(one, Component) for one in content):
        return _joined([_made(one) for one in _flat(content)])
    return content


def _made(node: Any) -> Any:
    """An element as a list where all in it is fixed, else a component; others as they are."""
    if not isinstance(node, Component):
        return node
    bare = node._namespace == _HTML or isinstance(node, dcc.Link)
    if not bare and not hasattr(node, "children"):
        return node
    children = [_made(child) for child in _flat(getattr(node, "children", None))]
    if (
        bare
        and not hasattr(node, "id")
        and not any(isinstance(child, Component) for child in children)
    ):
        as_json: Any = node.to_plotly_json  # Dash leaves it untyped
        properties = as_json()["props"]
        properties.pop("children", None)
        tag = "a" if isinstance(node, dcc.Link) else node._type.lower()
        return [tag, properties, *children]
    if not any(isinstance(child, list) for child in children):
        return node
    changed = copy(node)  # the page may be asked for again
    changed.children = _joined(children)
    return changed


def _joined(children: Iterable[Any]) -> list[Any]:
    """The same with neighbouring elements, and texts beside them, in one `Fixed` each."""
    joined: list[Any] = []
    for are_components, some in groupby(children, lambda child: isinstance(child, Component)):
        beside = list(some)
        bare = not are_components and any(isinstance(child, list) for child in beside)
        joined += [Fixed(beside)] if bare else beside
    return joined


def _flat(children: Any) -> Iterator[Any]:
    if isinstance(children, list | tuple):
        for child in children:
            yield from _flat(child)
    elif children is not None:
        yield children


class InSight(Component):
    """A component in a place of its height, which is empty until it is scrolled (nearly) to.

    A chart takes longer to draw than all else on a page, and on a long page most are out of sight.
    Dash knows the component at once: callbacks fill it before it is drawn, so that it is drawn
    once (see assets/timeline/page/dash_hooks.js).
    """

    _namespace = "lanescope_elements"
    _type = "InSight"

    def __init__(self, children: Component, id: str, height: str) -> None:
        self._prop_names = ["children", "id", "style"]
        self._base_nodes = ["children"]
        self._valid_wildcard_attributes: list[str] = []
        self.children = children
        self.id = id
        self.style = {"height": height}
