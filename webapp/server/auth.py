"""Decides who may see a served run: users of this machine, and those with the printed token.

On a loopback address nothing is asked. Any other address shows the run to a network, so there every
request has to bring a random token: the first time in the address, from then on in a cookie that
scripts cannot read. The address without the token replaces the one with it at once, so that it does
not stay in the address bar, and no page hands it on (`Referrer-Policy`).
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from lanescope.webapp.runs.errors import RunError, shown
from lanescope.webapp.server.http_server import Start, Wsgi, text_response

LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")

TOKEN_PARAMETER = "token"

_POLICY = (("Content-Security-Policy", "default-src 'none'"), ("Referrer-Policy", "no-referrer"))

REFUSAL = (
    "This page needs its whole address: open the one that `lanescope view` "
    "printed, with its token.\n"
)


@dataclass(frozen=True)
class Binding:
    """Where a server listens, by which names it may be asked, and with which token."""

    address: str  # numeric, to bind
    shown: str  # as the printed address names it
    names: tuple[str, ...]  # what the Host header may say, without a port
    token: str | None  # None: a loopback address, where nothing is asked

    def url(self, port: int, page: str = "") -> str:
        """Returns the address of a page, with the token where there is one."""
        token = "" if self.token is None else f"?{TOKEN_PARAMETER}={self.token}"
        return f"http://{self.shown}:{port}/{page}{token}"

    def guarded(self, app: Wsgi, port: int) -> Wsgi:
        """Returns the application, behind the token where there is one."""
        return app if self.token is None else Guarded(app, self.token, port)


def binding_of(host: str) -> Binding:
    """Returns the binding of `--host`. RunError where it is neither an address nor a name of
    one."""
    name = host.strip("[]")
    if name == "localhost":
        return Binding("127.0.0.1", "127.0.0.1", LOCAL_NAMES, None)
    address = _address(name)
    if address.is_loopback:
        return Binding(str(address), _written(address), (*LOCAL_NAMES, _written(address)), None)
    own = [socket.gethostname(), socket.getfqdn()]
    if address.is_unspecified:
        reached = _own_address(address.version)
        names = [*LOCAL_NAMES, *own, _written(reached)]
        host = _written(reached)
    else:
        names = [name, *own, _written(address)]
        host = name if ":" not in name else _written(address)
    # Name by name, as a Host header has them; dict: each once.
    known = tuple(dict.fromkeys(one.lower() for one in names))
    return Binding(str(address), host, known, secrets.token_urlsafe(24))


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _address(name: str) -> _Address:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        pass
    try:
        if not name:
            raise OSError("it is empty")
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0]
        return ipaddress.ip_address(found)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(
            f"--host {shown(name)} is not an address of this machine ({reason}); expected "
            "127.0.0.1 (only this machine), 0.0.0.0 (everyone with the printed address), or one of "
            "its own"
        ) from None


def _own_address(version: int) -> _Address:
    """The address by which others reach this machine, as far as its routes show."""
    family, far = (socket.AF_INET, "192.0.2.1") if version == 4 else (socket.AF_INET6, "2001:db8::")
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((far, 9))  # a datagram socket: picks the route and sends nothing
            return ipaddress.ip_address(probe.getsockname()[0])
        except OSError:
            return ipaddress.ip_address("127.0.0.1" if version == 4 else "::1")


def _written(address: _Address) -> str:
    return f"[{address}]" if address.version == 6 else str(address)


class Guarded:
    """A WSGI application behind a token: 401 and one sentence without it."""

    def __init__(self, app: Wsgi, token: str, port: int) -> None:
        """`port` goes into the cookie's name: cookies of a host are shared by all its ports."""
        self._app = app
        self._token = token.encode()
        self._cookie = f"lanescope-{port}"

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        """Answers a request that has the token."""
        asked = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        tokens = [value for name, value in asked if name == TOKEN_PARAMETER]
        if tokens and self._right(tokens[-1]) and environ.get("REQUEST_METHOD") == "GET":
            left = urlencode([pair for pair in asked if pair[0] != TOKEN_PARAMETER])
            # One slash: an address that begins with two would lead to another host.
            path = "/" + quote(environ.get("PATH_INFO", "").encode("latin-1").lstrip(b"/"))
            # Lax: a strict cookie would not come along where the address was opened from a chat.
            cookie = f"{self._cookie}={self._token.decode()}; Path=/; HttpOnly; SameSite=Lax"
            more = [("Location", path + ("?" + left if left else "")), ("Set-Cookie", cookie)]
            return _answer(start, "303 See Other", "", more)
        if self._right(self._brought(environ)):
            return self._app(environ, start)
        return _answer(start, "401 Unauthorized", REFUSAL, [("WWW-Authenticate", "Bearer")])

    def _brought(self, environ: dict[str, Any]) -> str:
        scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() == "bearer":
            return str(token.strip())
        try:
            found = SimpleCookie(environ.get("HTTP_COOKIE", "")).get(self._cookie)
        except CookieError:
            return ""
        return "" if found is None else found.value

    def _right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._token)


def _answer(start: Start, status: str, text: str, more: list[tuple[str, str]]) -> list[bytes]:
    return text_response(start, status, "text/plain; charset=utf-8", text, [*_POLICY, *more])
