"""Refuses calls of callbacks that no page makes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, get_type_hints

import flask
import msgspec
from dash import Dash
from flask.json.provider import DefaultJSONProvider

_Types = Callable[[Callable[..., Any]], tuple[Any, ...]]
"""Types of a callback's parameters, by callback."""


class StrictJson(DefaultJSONProvider):
    """JSON as browsers write it; deep nesting and invalid numbers are refused like other errors."""

    def loads(self, s: str | bytes, **kwargs: Any) -> Any:
        """Raises ValueError, which becomes 400."""
        try:
            return super().loads(s, **{"parse_constant": _no_number, **kwargs})
        except RecursionError:
            raise ValueError("it is nested too deep") from None


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a number of JSON")


def check_callbacks(app: Dash) -> None:
    """Refuses requests that do not call a callback: Dash itself would fail on them."""
    server: flask.Flask = app.server
    server.json = StrictJson(server)
    types = cache(_value_types)  # of this app: it would keep the run of another alive

    @server.before_request
    def check_call() -> Any:
        if flask.request.path != f"{app.config.routes_pathname_prefix}_dash-update-component":
            return None
        if flask.request.method != "POST" or _is_call(app, flask.request.get_json(), types):
            return None
        return {"error": "this does not call a callback of this page; reload the page"}, 400


def _is_call(app: Dash, body: Any, types: _Types) -> bool:
    if not isinstance(body, dict) or not isinstance(body.get("output"), str):
        return False
    known = app.callback_map.get(body["output"], {})
    changed = body.get("changedPropIds", [])
    outputs = _places(body.get("outputs"))
    return (
        "callback" in known
        and isinstance(changed, list)
        and all(isinstance(one, str) for one in changed)
        and outputs is not None
        and body["output"] in {"...".join(outputs), f"..{'...'.join(outputs)}.."}
        and all(_places(body.get(name, [])) == _places(known[name]) for name in ("inputs", "state"))
        and _values_fit(types(known["callback"]), [*body.get("inputs", []), *body.get("state", [])])
    )


def _values_fit(types: tuple[Any, ...], given: list[dict[str, Any]]) -> bool:
    """True where each value is of the type of its parameter, or not set."""
    try:
        for expected, one in zip(types, given, strict=True):
            if one.get("value") is not None:
                msgspec.convert(one["value"], expected)
    except msgspec.ValidationError:
        return False
    return True


def _value_types(callback: Callable[..., Any]) -> tuple[Any, ...]:
    """Returns the types of a callback's parameters, in their order."""
    function = inspect.unwrap(callback)
    types = get_type_hints(function)
    return tuple(types[name] for name in inspect.signature(function).parameters)


def _places(given: Any) -> list[str] | None:
    """What a callback reads or writes, as `component.property`; None for other content."""
    listed = [given] if isinstance(given, dict) else given
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        return None
    return [f"{one.get('id')}.{one.get('property')}" for one in listed]
