"""A JWKS comes from somewhere else: whatever that place does, the service stays bounded, and goes on when it mends."""

import asyncio
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from readstate.domain.errors import ConfigurationError, Unavailable
from readstate.gateway.auth import jwks as module
from readstate.gateway.auth.jwks import MAX_BYTES, Jwks, fetch
from readstate.timings import HttpTimings, Timings
from tests import commands
from tests.conftest import check_problem, eventually, in_process
from tests.servers import environ_of, serving, wait_until

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
TOKEN = jwt.encode({"sub": "bob", "exp": 2**40}, KEY, "RS256", headers={"kid": "k"})
JWK = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key())) | {"kid": "k"}
KEYS = json.dumps({"keys": [JWK]}).encode()
ME = "/v1/users/me/unread"

Manners = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers as the server is told."""

    server: "KeyServer"

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        try:
            self.server.manners(self)
        except OSError:
            self.server.left += 1  # the service has gone away

    def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Tests are quiet."""


class KeyServer(ThreadingHTTPServer):
    """An identity provider with the manners that a test gives it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.manners: Manners = good
        self.asked: list[str] = []
        self.left = 0
        self.closing = threading.Event()
        self.origin = f"http://127.0.0.1:{self.server_port}"
        self.url = f"{self.origin}/jwks.json"


@pytest.fixture
def keys() -> Iterator[KeyServer]:
    server = KeyServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.closing.set()
    server.shutdown()
    server.server_close()
    thread.join()


def good(handler: Handler) -> None:
    handler.answer(KEYS)


def silent(handler: Handler) -> None:
    handler.server.closing.wait()


def drips(handler: Handler) -> None:
    """A byte now and then: no single wait is long."""
    handler.answer(b"")
    while not handler.server.closing.wait(0.05):
        handler.wfile.write(b" ")


def endless(handler: Handler) -> None:
    handler.answer(b"")
    while not handler.server.closing.is_set():
        handler.wfile.write(b" " * 65_536)


def too_large(handler: Handler) -> None:
    handler.answer(b" " * (MAX_BYTES + 1 - len(KEYS)) + KEYS)


def packed(handler: Handler) -> None:
    handler.answer(gzip.compress(KEYS), content_encoding="gzip")


def elsewhere(handler: Handler) -> None:
    """The same server under another name is another origin."""
    if handler.headers["host"].startswith("localhost"):
        return good(handler)
    return handler.answer(b"", 302, location=f"http://localhost:{handler.server.server_port}/jwks.json")


def in_circles(handler: Handler) -> None:
    handler.answer(b"", 302, location=f"{handler.server.origin}/again")


HURRIED = HttpTimings(jwks_fetch=1.0)


BAD = [silent, drips, endless, too_large, packed, elsewhere, in_circles]


@pytest.mark.parametrize("manners", BAD)
async def test_bad_manners_are_no_fault_of_the_token_and_are_forgiven(
    tmp_path: Path, keys: KeyServer, manners: Manners
) -> None:
    keys.manners = manners
    async with in_process(tmp_path, jwks=keys.url, timings=Timings(http=HURRIED)) as chat:
        bob = chat.with_token(TOKEN)
        check_problem(await bob.call("GET", ME), 503, "unavailable")
        assert len(keys.asked) <= 1 + module.MAX_REDIRECTS
        assert (await chat.call("GET", "/v1/users/bob/unread")).status_code == 200

        keys.manners = good

        async def is_served() -> bool:
            return (await bob.call("GET", ME)).status_code == 200

        await eventually(is_served, "the keys were fetched again")


async def test_a_body_without_end_is_not_read_to_its_end(keys: KeyServer) -> None:
    keys.manners = endless
    with pytest.raises(Exception, match=f"more than {MAX_BYTES} bytes"):
        await fetch(keys.url, 10)


async def test_the_largest_body_is_taken(keys: KeyServer) -> None:
    keys.manners = lambda handler: handler.answer(b" " * (MAX_BYTES - len(KEYS)) + KEYS)

    assert len(await fetch(keys.url, 10)) == MAX_BYTES


async def test_a_redirect_within_the_origin_is_followed(keys: KeyServer) -> None:
    def moved(handler: Handler) -> None:
        if handler.path == "/new/keys.json":
            return good(handler)
        return handler.answer(b"", 308, location="/new/keys.json")

    keys.manners = moved

    assert await fetch(keys.url, 10) == KEYS


async def test_a_redirect_elsewhere_is_not_even_asked_for(keys: KeyServer) -> None:
    keys.manners = elsewhere
    with pytest.raises(Exception, match="another origin"):
        await fetch(keys.url, 10)

    assert keys.asked == ["/jwks.json"]


async def test_many_who_wait_share_one_fetch(keys: KeyServer) -> None:
    go_on = threading.Event()

    def when_told(handler: Handler) -> None:
        go_on.wait()
        good(handler)

    keys.manners = when_told
    jwks = Jwks(keys.url, HttpTimings())
    waiting = [asyncio.create_task(jwks.find("k", "RS256")) for _ in range(50)]

    async def is_asked() -> bool:
        return bool(keys.asked)

    await eventually(is_asked, "the keys are asked for")
    waiting.pop().cancel()  # one of them goes away: the others get what they wait for
    go_on.set()

    assert all(await asyncio.gather(*waiting))
    assert len(keys.asked) == 1


async def test_who_waits_for_keys_when_the_service_stops_is_told_at_once(
    keys: KeyServer,
) -> None:
    keys.manners = silent
    jwks = Jwks(keys.url, HttpTimings(jwks_fetch=3600.0))
    waiting = asyncio.create_task(jwks.find("k", "RS256"))

    async def is_asked() -> bool:
        return bool(keys.asked)

    await eventually(is_asked, "the keys are asked for")
    jwks.close()

    with pytest.raises(Unavailable):
        await waiting
    with pytest.raises(Unavailable):
        await jwks.find("k", "RS256")
    assert len(keys.asked) == 1


def test_a_service_stops_though_its_keys_never_come(tmp_path: Path, keys: KeyServer) -> None:
    keys.manners = drips
    with serving(tmp_path / "data", jwks=keys.url, shutdown_grace=600) as server:
        answers: list[httpx.Response] = []

        def ask() -> None:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            answers.append(httpx.get(server.url + ME, headers=headers, timeout=90))

        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: bool(keys.asked), "the keys are asked for")

        assert server.stop() == 0

        asking.join()
    check_problem(answers[0], 503, "unavailable")


# ---------------------------------------------------------------- files


async def test_a_file_that_is_not_there_is_refused_where_it_is_mounted(tmp_path: Path) -> None:
    for place in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(ConfigurationError, match="is not a file that can be read"):
            async with in_process(tmp_path / "data", jwks=str(place)):
                pass


def test_a_file_that_is_not_there_is_refused_at_start(tmp_path: Path) -> None:
    words = ("serve", "--port", "0", "--data-dir", str(tmp_path / "data"))
    environ = environ_of({"jwks": tmp_path / "missing.json"})

    done = commands.run(*words, env=environ, cwd=tmp_path, timeout=90)

    assert done.returncode != 0
    assert "missing.json is not a file that can be read" in " ".join((done.stdout + done.stderr).split())
    assert not (tmp_path / "data").exists()


async def test_a_file_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(b" " * MAX_BYTES + KEYS)

    with pytest.raises(Unavailable):
        await Jwks(str(file), HttpTimings()).find("k", "RS256")
