"""No level logs a credential: the log of a busy run holds none, whoever sends it and whether it is good or not."""

import asyncio
import contextlib
import secrets
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import WebSocketException

from tests.conftest import Chat, eventually, token_for
from tests.live.device import Device, open_socket
from tests.servers import Server, serving


def made(prefix: str) -> str:
    """A credential that is in no other text."""
    return f"{prefix}-{secrets.token_hex(16)}"


class Credentials:
    """All that a run shows to the service, good or not."""

    def __init__(self) -> None:
        self.service_key, self.bad_key = made("service-key"), made("bad-key")
        self.secret, other = made("jwt-secret"), made("other-secret")
        self.tokens = [token_for("bob", secret=self.secret, nonce=made("token")) for _ in range(6)]
        self.expired = token_for("bob", secret=self.secret, ttl=-60)
        self.forged = token_for("bob", secret=other)

    def found_in(self, log: str) -> list[str]:
        """Those of which the log has the whole, or a part that is as good: of a token, its signature."""
        plain = [self.service_key, self.bad_key, self.secret]
        signatures = [token.rpartition(".")[2] for token in (*self.tokens, self.expired, self.forged)]
        return [one for one in plain + signatures if one in log]


async def over_http(server: Server, known: Credentials) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        chat = Chat(http, known.service_key)
        await chat.open_channel("alice", "bob")
        await chat.send("alice", "m1")
        await chat.with_token(known.tokens[0]).read("bob")
        for bad in (known.bad_key, known.expired, known.forged):
            assert (await chat.with_token(bad).call("GET", "/v1/users/bob/unread")).status_code == 401
        for where in (known.service_key, known.tokens[0]):
            # Where a credential does not belong: in a query, in a path, in a body.
            await chat.call("GET", f"/v1/users/bob/unread?access_token={where}")
            await chat.with_token(None).call("GET", f"/{where}")
            await chat.call("POST", "/v1/messages", {"token": where})
            await chat.call("POST", "/v1/messages", content=f'{{"token": "{where}'.encode())


async def over_websockets(server: Server, known: Credentials) -> None:
    header, subprotocol, hello, first, renewed, query = known.tokens
    await _device(server, additional_headers={"Authorization": f"Bearer {header}"})
    await _device(server, subprotocols=["readstate", f"bearer.{subprotocol}"])
    await _device(server, hello={"token": hello})
    device = await _device(server, hello={"token": first}, stay=True)
    await device.ask("auth", token=renewed)
    assert (await device.do("auth", token=known.forged))["type"] == "error"
    await device.socket.send(f'{{"type": "auth", "token": "{known.service_key}"')
    await device.socket.send(f'{{"type": "shout", "token": "{known.service_key}"}}')
    await device.quiet()
    await device.close()
    watching = {"Authorization": f"Bearer {known.service_key}"}
    await _device(server, path=f"/v1/ws?user=bob&token={query}", additional_headers=watching)
    for bad in (known.bad_key, known.expired, known.forged):
        await _refused(server, additional_headers={"Authorization": f"Bearer {bad}"})
        await _refused(server, subprotocols=[f"bearer.{bad}"])
        await _refused(server, hello={"token": bad})


async def _device(
    server: Server, *, hello: dict[str, Any] | None = None, stay: bool = False, path: str = "/v1/ws", **options: Any
) -> Device:
    device = Device(await open_socket(server.url, path, **options), "bob", "phone")
    await device.hello(**hello or {})
    await device.quiet()
    if not stay:
        await device.close()
    return device


async def _refused(server: Server, *, hello: dict[str, Any] | None = None, **options: Any) -> None:
    with contextlib.suppress(WebSocketException):
        device = Device(await open_socket(server.url, **options), "bob", "phone")
        if hello is not None:
            await device.say("hello", device="phone", **hello)
        assert await device.ended() == 4401


@pytest.mark.parametrize("level", ["debug", "info"])
async def test_no_level_logs_a_credential(tmp_path: Path, level: str) -> None:
    known = Credentials()
    settings = {"service_keys": (known.service_key,), "jwt_secret": known.secret, "log_level": level}
    with serving(tmp_path / "data", **settings) as server:
        await asyncio.gather(over_http(server, known), over_websockets(server, known))

        assert server.stop() == 0
        log = "".join(server.log)

    assert "stopped" in log
    assert known.found_in(log) == []
    assert "Bearer" not in log


async def test_generated_secrets_are_not_logged_either(tmp_path: Path) -> None:
    with serving(tmp_path / "data", log_level="debug") as server:
        key, secret = server.service_key, server.jwt_secret
        async with httpx.AsyncClient(base_url=server.url) as http:
            await Chat(http, key).open_channel("alice", "bob")
        device = Device(await open_socket(server.url), "bob", "phone")
        await device.hello(token=token_for("bob", secret=secret))

        async def is_read() -> bool:
            return "changed" in await device.do("mark_read", channel_id="general")

        await eventually(is_read, "the frame is done")
        await device.close()
        assert server.stop() == 0

        assert key not in "".join(server.log)
        assert secret not in "".join(server.log)
