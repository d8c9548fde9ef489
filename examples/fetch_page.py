"""Starts `lanescope view RUN` without a browser, fetches its page once, and stops it again.

    python examples/fetch_page.py runs/demo

For scripts and continuous integration: exits 0 when the page, everything it links to and the
run's description arrive, 1 when something does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from html.parser import HTMLParser
from urllib.error import URLError
from urllib.parse import urljoin
from urllib.request import urlopen

TIMEOUT_S = 120  # a first look at a large run builds an index; a server that hangs is ended


class Links(HTMLParser):
    """Addresses of the scripts and style sheets of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (tag, name) in {("script", "src"), ("link", "href")}:
                self.found.append(value)


def fetch(address: str) -> bytes:
    with urlopen(address, timeout=TIMEOUT_S) as answer:
        if answer.status != 200:
            raise URLError(f"status {answer.status} instead of 200")
        body: bytes = answer.read()
    return body


def look(address: str) -> str:
    """Fetch the page at `address` with all that belongs to it; say what came."""
    run = json.loads(fetch(urljoin(address, "/api/run")))  # answered once the run is open
    page = fetch(address)
    links = Links()
    links.feed(page.decode())
    if not links.found:
        raise ValueError(f"{address} is {len(page)} bytes without a script: not the run's page")
    size = len(page) + sum(len(fetch(urljoin(address, link))) for link in links.found)
    return (
        f"{address}: page and {len(links.found)} files, {size / 1e6:.1f} MB; "
        f"{len(run['ranks'])} ranks, {len(run['lanes'])} lanes"
    )


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: fetch_page.py RUN", file=sys.stderr)
        return 2
    command = ["lanescope", "view", sys.argv[1], "--no-browser", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(TIMEOUT_S, server.kill)
    watchdog.start()
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        if not address.startswith("http"):
            print(f"no address but {address!r} from: {' '.join(command)}", file=sys.stderr)
            return 1
        print(look(address))
    except (URLError, OSError, ValueError, KeyError) as error:
        print(f"could not fetch the page: {error}", file=sys.stderr)
        return 1
    finally:
        server.terminate()
        server.communicate()
        watchdog.cancel()
    return 0


if __name__ == "__main__":
    sys.exit(main())
