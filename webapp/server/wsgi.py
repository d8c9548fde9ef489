"""What those share that answer requests without the page's own framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Start = Callable[..., Any]
Wsgi = Callable[[dict[str, Any], Start], Iterable[bytes]]


def answer(
    start: Start, status: str, kind: str, text: str, more: Sequence[tuple[str, str]] = ()
) -> list[bytes]:
    """A text of the content type `kind` that nobody keeps; `more` headers go behind the usual."""
    body = text.encode()
    headers = [
        ("Content-Type", kind),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    start(status, [*headers, *more])
    return [body]
