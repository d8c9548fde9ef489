"""A part of a page that the browser makes once it comes into sight."""

from __future__ import annotations

from dash.development.base_component import Component


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
