"""Who may see a served run: this machine, or a reader with the token of the printed address."""

from __future__ import annotations

import logging
import re
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from http.cookiejar import CookieJar
from pathlib import Path

import pytest
from click.testing import CliRunner
from werkzeug.test import Client, TestResponse

from lanescope.webapp import cli
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.server.auth import LOCAL_NAMES, REFUSAL, Guarded, binding_of
from lanescope.webapp.server.server import make_app
from tests.support.processes import TIME_LIMIT_S, first_line, started
from tests.support.recording import BIN
from tests.support.synthetic import write_run

TOKEN = "the-right-token"
PORT = 8050
HOST = {"Host": f"192.0.2.7:{PORT}"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "one", ranks=1, threads=1, steps=1, ops=4)


@pytest.fixture(scope="module")
def made(run: Path) -> Guarded:
    app = make_app(open_run(run), trusted_hosts=["192.0.2.7"])
    return Guarded(app.server, TOKEN, PORT)


@pytest.fixture
def ask(made: Guarded) -> Callable[..., TestResponse]:
    client = Client(made)  # keeps cookies

    def get(path: str, **headers: str) -> TestResponse:
        return client.get(path, headers={**HOST, **headers})

    return get


def test_the_first_visit_leaves_a_cookie_and_an_address_without_the_token(
    ask: Callable[..., TestResponse],
) -> None:
    first = ask(f"/timeline?t=0-9&token={TOKEN}&q=a%26b")
    assert first.status_code == 303
    assert first.headers["Location"] == "/timeline?t=0-9&q=a%26b"
    assert first.headers["Referrer-Policy"] == "no-referrer"
    name, *rules = first.headers["Set-Cookie"].split("; ")
    assert name == f"lanescope-{PORT}={TOKEN}"
    assert set(rules) == {"Path=/", "HttpOnly", "SameSite=Lax"}
    page = ask(first.headers["Location"])
    assert page.status_code == 200
    assert TOKEN not in page.get_data(as_text=True)
    assert ask("/api/run").status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/api/run", "/assets/style.css", "/_dash-layout", "/api/notes"]
)
@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("", {}),
        ("?token=", {}),
        (f"?token={TOKEN}x", {}),
        ("?token=%ff%c3%a9", {}),
        ("", {"Authorization": "Bearer"}),
        ("", {"Authorization": f"Basic {TOKEN}"}),
        ("", {"Cookie": f"lanescope-{PORT}=x; lanescope-1={TOKEN}"}),
        ("", {"Cookie": "\xe9;=;=\x00"}),
    ],
)
def test_without_the_token_there_is_one_sentence(
    ask: Callable[..., TestResponse], path: str, query: str, headers: dict[str, str]
) -> None:
    refused = ask(path + query, **headers)
    assert refused.status_code == 401
    assert refused.get_data(as_text=True) == REFUSAL
    assert "Set-Cookie" not in refused.headers


def test_a_program_says_the_token_in_a_header(ask: Callable[..., TestResponse]) -> None:
    assert ask("/api/run", Authorization=f"Bearer {TOKEN}").status_code == 200


def test_the_name_is_checked_behind_the_token_too(made: Guarded) -> None:
    headers = {"Host": "evil.example", "Authorization": f"Bearer {TOKEN}"}
    assert Client(made).get("/api/run", headers=headers).status_code == 400


def test_an_address_leads_to_no_other_host(ask: Callable[..., TestResponse]) -> None:
    for path in ("//evil.example/x", "/%2fevil.example/x", "/\\evil.example/x"):
        place = ask(f"{path}?token={TOKEN}").headers["Location"]
        assert re.match(r"/[^/\\]", place), place


def test_the_token_is_in_no_log(made: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        Client(made).get(f"/?token={TOKEN}", headers=HOST)
        Client(made).get("/api/notes", headers={**HOST, "Authorization": f"Bearer {TOKEN}"})
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("host", "address", "shown"),
    [
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.7", "127.0.0.7", "127.0.0.7"),
        ("[::1]", "::1", "[::1]"),
        ("::1", "::1", "[::1]"),
    ],
)
def test_this_machine_is_asked_for_nothing(host: str, address: str, shown: str) -> None:
    bound = binding_of(host)
    assert (bound.address, bound.token) == (address, None)
    assert bound.url(1, "repeat") == f"http://{shown}:1/repeat"
    assert {*LOCAL_NAMES, shown} == set(bound.names)


def test_others_get_a_new_token_each_time() -> None:
    first, second = binding_of("192.0.2.7"), binding_of("192.0.2.7")
    assert first.token is not None
    assert len(first.token) >= 32
    assert first.token != second.token
    assert first.url(80, "repeat") == f"http://192.0.2.7:80/repeat?token={first.token}"
    assert "192.0.2.7" in first.names
    assert binding_of("2001:db8::5").url(1).startswith("http://[2001:db8::5]:1/?token=")
    everywhere = binding_of("0.0.0.0")
    assert everywhere.address == "0.0.0.0"
    assert everywhere.token
    assert not everywhere.shown.startswith("0.")
    assert everywhere.shown in everywhere.names


@pytest.mark.parametrize("host", ["", "no such host", "300.1.1.1", "a" * 300])
def test_texts_that_are_not_addresses_are_refused(run: Path, host: str) -> None:
    with pytest.raises(RunError, match="is not an address of this machine"):
        binding_of(host)
    assert CliRunner().invoke(cli.main, ["view", str(run), "--host", host]).exit_code == 2


@pytest.mark.slow
def test_a_served_run_asks_for_the_token_that_it_printed(run: Path) -> None:
    viewing = (BIN / "lanescope", "view", run, "--port", "0", "--no-browser", "--host", "0.0.0.0")
    with started(*viewing, stderr=subprocess.PIPE) as process:
        address = first_line(process)
        place, _, token = address.partition("?token=")
        assert re.fullmatch(r"http://[0-9.]+:[0-9]+/", place)
        assert len(token) >= 32
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(place)
        assert refused.value.code == 401
        assert refused.value.read().decode() == REFUSAL
        keeping = urllib.request.HTTPCookieProcessor(CookieJar())
        browser = urllib.request.build_opener(keeping)
        with browser.open(address) as page:
            assert (page.status, page.url) == (200, place)
        with browser.open(place + "api/run") as answer:
            assert answer.status == 200
        port = int(place.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(b"POST /api/notes/x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            assert raw.recv(12) == b"HTTP/1.1 401"
        process.terminate()
        stdout, stderr = process.communicate(timeout=TIME_LIMIT_S)
    assert (process.returncode, stdout) == (0, "")
    assert stderr == "lanescope: everyone with this address can see the run\n"
    assert token not in stderr
