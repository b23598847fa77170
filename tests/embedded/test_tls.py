"""`readstate serve` with a certificate of its own: HTTPS, WSS, commands beside it, and files that are no good."""

import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from websockets.sync.client import connect

from tests import commands
from tests.certificates import Pair, make_certificate
from tests.conftest import JWT_SECRET, SERVICE_KEY, token_for
from tests.servers import Server, environ_of, wait_until

HASTE = 2
BEARER = {"authorization": f"Bearer {SERVICE_KEY}"}


class Secure(Server):
    """A service that shows a certificate."""

    def __init__(self, data_dir: Path, pair: Pair, **settings: object) -> None:
        keys = {"service_keys": SERVICE_KEY, "jwt_secret": JWT_SECRET}
        super().__init__(data_dir, tls_cert=pair[0], tls_key=pair[1], **keys, **settings)
        self.trust = ssl.create_default_context(cafile=str(pair[0]))

    def _is_ready(self) -> bool:
        assert self.runs, "".join(self.log)
        found = self.where()
        if found is not None:
            self.url = found
        return found is not None


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_certificate(tmp_path_factory.mktemp("certificates"), "server")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, pair: Pair) -> Iterator[Secure]:
    server = Secure(tmp_path_factory.mktemp("secure") / "data", pair, header_timeout=HASTE)
    try:
        server.start()
        channel = {"type": "group", "members": ["alice", "bob"]}
        url = f"{server.url}/v1/channels/general"
        assert httpx.put(url, json=channel, headers=BEARER, verify=server.trust).is_success
        yield server
    finally:
        server.close()


def address(server: Server) -> tuple[str, int]:
    place = urlsplit(server.url)
    return place.hostname or "", place.port or 0


def refused(server: Secure, reason: str) -> float:
    lines = httpx.get(f"{server.url}/metrics", verify=server.trust).text.splitlines()
    name = f'readstate_http_refused_total{{reason="{reason}"}}'
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), 0.0)


def command(server: Secure, *words: str) -> "subprocess.CompletedProcess[str]":
    place = ("--data-dir", str(server.data_dir))
    return commands.run(*words, *place, env=server.environ, cwd=server.data_dir.parent, timeout=60)


def test_it_speaks_https_and_wss(server: Secure) -> None:
    with httpx.Client(base_url=server.url, headers=BEARER, verify=server.trust) as http:
        target = f"ws{server.url.removeprefix('http')}/v1/ws"
        with connect(
            target, ssl=server.trust, additional_headers={"authorization": f"Bearer {token_for('bob')}"}
        ) as bob:
            bob.send(json.dumps({"type": "hello", "device": "phone"}))
            assert json.loads(bob.recv(60))["type"] == "ready"
            http.post("/v1/messages", json={"channel_id": "general", "sender_id": "alice", "id": "m1"})
            while (event := json.loads(bob.recv(60)))["type"] != "message.new":
                pass

    assert server.url.startswith("https://")
    assert event["message_id"] == "m1"


def test_a_client_that_does_not_know_the_certificate_does_not_trust_it(server: Secure) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{server.url}/healthz")


def test_commands_on_the_same_machine_find_it(server: Secure) -> None:
    assert command(server, "send", "general", "alice", "Hello").returncode == 0
    asked = command(server, "unread", "bob", "--json")
    doctor = command(server, "doctor")

    assert json.loads(asked.stdout)["totals"]["unread"] >= 1, asked.stderr
    assert f"ready at {server.url}" in doctor.stdout.replace("\n", "")


def test_a_command_watches_over_wss(server: Secure) -> None:
    watching = subprocess.Popen(
        [sys.executable, "-m", "readstate", "watch", "bob", "--json", "--data-dir", str(server.data_dir)],
        env=server.environ,
        cwd=server.data_dir.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert watching.stdout is not None
        assert "watching bob" in watching.stdout.readline()
    finally:
        watching.kill()
        watching.communicate()


def test_a_command_does_not_trust_another_certificate(server: Secure, tmp_path: Path) -> None:
    other = make_certificate(tmp_path, "other")
    environ = server.environ
    server.environ = environ | environ_of({"tls_cert": other[0], "tls_key": other[1]})
    try:
        asked = command(server, "unread", "bob")
    finally:
        server.environ = environ

    assert asked.returncode != 0
    assert "cannot be reached" in asked.stderr + asked.stdout


def test_what_is_refused_is_told_over_tls_too(server: Secure) -> None:
    for start, status in (
        (b"JUNK\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000, b"431"),
        (b"GET / HTTP/1.1\r\n", b"408"),
    ):
        with (
            socket.create_connection(address(server), timeout=60) as plain,
            server.trust.wrap_socket(plain, server_hostname="127.0.0.1") as wire,
        ):
            wire.sendall(start)
            received = b""
            while more := wire.recv(65_536):
                received += more

        assert received.startswith(b"HTTP/1.1 " + status), received[:200]
        assert b"application/problem+json" in received


def test_a_handshake_that_does_not_end_is_given_up(server: Secure) -> None:
    before = refused(server, "tls")
    starts = [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\r\n\r\n"]
    for start in starts:
        with socket.create_connection(address(server), timeout=60) as wire:
            wire.sendall(start)
            while wire.recv(65_536):
                pass
    wait_until(lambda: refused(server, "tls") == before + len(starts), "every one is counted")
    assert not any("Traceback" in line for line in server.log)


def test_a_connection_that_says_nothing_after_its_handshake_is_closed(server: Secure) -> None:
    with (
        socket.create_connection(address(server), timeout=60) as plain,
        server.trust.wrap_socket(plain, server_hostname="127.0.0.1") as wire,
    ):
        assert wire.recv(1) == b""


def test_it_stops_while_handshakes_are_under_way(tmp_path: Path, pair: Pair) -> None:
    server = Secure(tmp_path / "data", pair, header_timeout=600, shutdown_grace=5)
    try:
        server.start()
        with socket.create_connection(address(server)):
            assert httpx.get(f"{server.url}/healthz", verify=server.trust).status_code == 200
            assert server.stop() == 0
    finally:
        server.close()


# ---------------------------------------------------------------- files that are no good


def start(tmp_path: Path, **settings: object) -> str:
    """What a start says that must fail."""
    words = ("serve", "--port", "0", "--data-dir", str(tmp_path / "data"))
    done = commands.run(*words, env=environ_of(settings), cwd=tmp_path, timeout=60)
    assert done.returncode == 1, done.stderr
    assert not (tmp_path / "data").exists()
    [line] = done.stderr.splitlines()
    return line


def test_certificate_and_key_go_together(tmp_path: Path, pair: Pair) -> None:
    assert "tls_cert and tls_key go together" in start(tmp_path, tls_cert=pair[0])
    assert "tls_cert and tls_key go together" in start(tmp_path, tls_key=pair[1])


def test_files_that_can_not_be_read_are_named(tmp_path: Path, pair: Pair) -> None:
    missing = tmp_path / "missing.pem"

    assert f"tls_cert: {missing} cannot be read: No such file" in start(tmp_path, tls_cert=missing, tls_key=pair[1])
    assert f"tls_key: {missing} cannot be read: No such file" in start(tmp_path, tls_cert=pair[0], tls_key=missing)
    assert f"tls_cert: {tmp_path} cannot be read" in start(tmp_path, tls_cert=tmp_path, tls_key=pair[1])


def test_files_that_are_no_pair_are_named(tmp_path: Path, pair: Pair) -> None:
    other = make_certificate(tmp_path, "other")
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate\n")
    locked = tmp_path / "locked.key"
    key = serialization.load_pem_private_key(pair[1].read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    for certificate, private in ((pair[0], other[1]), (junk, pair[1]), (pair[0], junk), (pair[0], locked)):
        line = start(tmp_path, tls_cert=certificate, tls_key=private)
        assert f"{certificate} and {private} are not a certificate and its key" in line
