"""As much of an S3 service as bundles need, on a socket of this machine: objects in memory, read by
ranges, written in parts. What asks it is the real client. Requests are listed, so that tests can
count the bytes fetched."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

XML = '<?xml version="1.0" encoding="UTF-8"?>'


class Store:
    """Objects by path, /bucket/key, what was asked: (method, path, bytes sent), and the settings of
    the environment by which a client finds it."""

    def __init__(self, address: str) -> None:
        self.settings = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": address,
        }
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.asked: list[tuple[str, str, int]] = []
        self.broken = False


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.store.asked.append((self.command, self._path(), len(body)))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _path(self) -> str:
        return unquote(urlsplit(self.path).path)

    def _query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

    def _none(self) -> None:
        text = f"{XML}<Error><Code>NoSuchKey</Code><Message>No such key.</Message></Error>"
        self._answer(404, text.encode())

    def _denied(self) -> None:
        self._answer(403, f"{XML}<Error><Code>AccessDenied</Code></Error>".encode())

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            whole = []
            while size := int(self.rfile.readline(), 16):
                whole.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            data = b"".join(whole)
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunked = "aws-chunked" in self.headers.get("Content-Encoding", "")
        return b"".join(_unwrapped(data)) if chunked else data

    def do_HEAD(self) -> None:
        found = self.store.objects.get(self._path())
        if found is not None:
            self._answer(200, Content_Length=str(len(found)), ETag='"e"')
        else:
            self._answer(200 if self._path().count("/") == 1 else 404)

    def do_GET(self) -> None:
        found = self.store.objects.get(self._path())
        if self.store.broken:
            self._denied()
        elif found is None:
            self._none()
        else:
            span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            low, high = (int(span[1]), int(span[2]) + 1) if span else (0, len(found))
            part = found[low:high]
            where = f"bytes {low}-{low + len(part) - 1}/{len(found)}"
            self._answer(206 if span else 200, part, Content_Range=where, ETag='"e"')

    def do_PUT(self) -> None:
        query, body = self._query(), self._body()
        if self.store.broken:
            self._denied()
            return
        if "partNumber" in query:
            self.store.parts[self._path()][int(query["partNumber"][0])] = body
        else:
            self.store.objects[self._path()] = body
        self._answer(200, ETag='"e"')

    def do_POST(self) -> None:
        path = self._path()
        self._body()
        if "uploads" in self._query():
            self.store.parts[path] = {}
            name = "InitiateMultipartUploadResult"
            text = f"{XML}<{name}><UploadId>u</UploadId></{name}>"
        else:
            parts = self.store.parts.pop(path)
            self.store.objects[path] = b"".join(parts[number] for number in sorted(parts))
            name = "CompleteMultipartUploadResult"
            text = f"{XML}<{name}><ETag>e</ETag></{name}>"
        self._answer(200, text.encode())

    def do_DELETE(self) -> None:
        self.store.parts.pop(self._path(), None)
        self._answer(204)


def _unwrapped(data: bytes) -> Iterator[bytes]:
    """The client sends a body in chunks of its own, with a checksum behind the last one."""
    at = 0
    while True:
        line, _, _ = data[at:].partition(b"\r\n")
        size = int(line.split(b";")[0], 16)
        if not size:
            return
        at += len(line) + 2
        yield data[at : at + size]
        at += size + 2


@contextmanager
def serving() -> Iterator[Store]:
    """A store that listens until the end of the block; its address is http://127.0.0.1:PORT."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    store = Store(f"http://127.0.0.1:{server.server_address[1]}")
    server.RequestHandlerClass = type("Handler", (_Handler,), {"store": store})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
