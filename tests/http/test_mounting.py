"""The examples that mount Readstate in another application do what they say."""

import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from readstate import Readstate
from readstate.api import PutChannel
from readstate.gateway.auth.authenticator import load_secrets, make_token

EXAMPLES = Path(__file__).parents[2] / "examples"
FRAMEWORKS = ("fastapi", "starlette")


def example(framework: str) -> ModuleType:
    path = EXAMPLES / f"mounted_in_{framework}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Product:
    """An example's application, started, and a client that talks to it."""

    def __init__(self, app: Any, http: httpx.AsyncClient) -> None:
        self.app = app
        self.http = http
        self.rs: Readstate = app.state.readstate

    async def as_device(self, method: str, path: str, user: str, body: Any = None) -> httpx.Response:
        secret = load_secrets(self.rs.settings).jwt_secret
        headers = {"authorization": f"Bearer {make_token(secret, user, 60)}"}
        return await self.http.request(method, f"/readstate{path}", headers=headers, json=body)

    async def connect(self, path: str) -> list[Any]:
        """What a WebSocket is answered that says nothing."""
        scope = {"type": "websocket", "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b""}
        scope |= {"headers": [(b"host", b"product")], "subprotocols": [], "scheme": "ws", "http_version": "1.1"}
        events = iter([{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}])
        sent: list[Any] = []

        async def receive() -> Any:
            return next(events)

        async def send(event: Any) -> None:
            sent.append(event["type"])

        await self.app(scope, receive, send)
        return sent


@asynccontextmanager
async def running(framework: str, data_dir: Path) -> AsyncIterator[Product]:
    app = example(framework).create_app(data_dir)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://product") as http:
            yield Product(app, http)


async def test_devices_of_a_fastapi_product_see_what_its_backend_sends(tmp_path: Path) -> None:
    async with running("fastapi", tmp_path) as product:
        opened = await product.http.post("/rooms/lobby", json=["alice", "bob"])
        post = {"author": "alice", "text": "Hello, Bob"}
        posted = await product.http.post("/rooms/lobby/messages", json=post)
        token = (await product.http.post("/login/bob")).json()["token"]
        lobby = "/readstate/v1/users/me/channels/lobby"
        headers = {"authorization": f"Bearer {token}"}

        before = await product.http.get(f"{lobby}/unread", headers=headers)
        read = await product.http.post(f"{lobby}/read", headers=headers)

        assert opened.json() == {"members": 2}
        assert (posted.json()["seq"], posted.json()["status"]) == (1, "accepted")
        assert (before.json()["unread"], before.json()["latest"]["preview"]) == (1, "Hello, Bob")
        assert read.json()["unread"] == 0


async def test_the_badge_of_a_starlette_product_follows_what_devices_read(tmp_path: Path) -> None:
    async with running("starlette", tmp_path) as product:
        for user in ("alice", "bob"):
            await product.http.post(f"/rooms/lobby/{user}")
        for text in ("Hello, Bob", "Are you there?"):
            sent = await product.http.post("/rooms/lobby/messages", content=text, headers={"x-user": "alice"})
            assert sent.json()["status"] == "accepted"
        before = await product.http.get("/badge", headers={"x-user": "bob"})

        read = await product.as_device("POST", "/v1/users/bob/channels/lobby/read", "bob", {"up_to_seq": 1})
        after = await product.http.get("/badge", headers={"x-user": "bob"})

        assert before.json() == {"unread": 2, "in_channels": 1}
        assert read.json()["changed"] is True
        assert after.json() == {"unread": 1, "in_channels": 1}


async def test_an_error_reaches_the_product_as_an_exception_with_a_status(tmp_path: Path) -> None:
    async with running("starlette", tmp_path) as product:
        answer = await product.http.post("/rooms/lobby/" + "x" * 129)

        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_id")


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_ids_with_slashes_pass_through_the_mount(tmp_path: Path, framework: str) -> None:
    async with running(framework, tmp_path) as product:
        await product.rs.channels.put("team/café", PutChannel(type="group", members=("bob",)))

        found = await product.as_device("GET", "/v1/channels/team%2Fcaf%C3%A9", "bob")

        assert found.json()["channel_id"] == "team/café"


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_the_mount_answers_for_itself_and_for_nothing_else(tmp_path: Path, framework: str) -> None:
    async with running(framework, tmp_path) as product:
        healthy = await product.http.get("/readstate/healthz")
        unknown = await product.http.get("/readstate/v1/surprise")
        stranger = await product.http.get("/readstate/v1/users/me/unread")
        outside = await product.http.get("/v1/users/me/unread")

        assert healthy.json() == {"status": "ok"}
        assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
        assert (stranger.status_code, stranger.json()["code"]) == (401, "unauthenticated")
        assert outside.status_code == 404
        assert outside.headers["content-type"] != "application/problem+json"


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_live_updates_have_one_path_below_the_mount(tmp_path: Path, framework: str) -> None:
    async with running(framework, tmp_path) as product:
        assert (await product.connect("/readstate/v1/ws"))[0] == "websocket.accept"
        for path in ("/readstate/x/v1/ws", "/readstate/readstate/v1/ws", "/readstate/v1/ws/v1/ws", "/v1/ws"):
            assert await product.connect(path) == ["websocket.close"], path


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_the_documentation_is_found_below_the_mount(tmp_path: Path, framework: str) -> None:
    async with running(framework, tmp_path) as product:
        document = await product.http.get("/readstate/openapi.json")
        page = await product.http.get("/readstate/docs")

        assert document.json()["servers"] == [{"url": "/readstate"}]
        assert "/v1/users/{user}/inbox" in document.json()["paths"]
        assert page.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_what_was_counted_is_there_after_a_restart(tmp_path: Path, framework: str) -> None:
    async with running(framework, tmp_path) as product:
        await product.rs.channels.put("lobby", PutChannel(type="group", members=("alice", "bob")))
        message = {"channel_id": "lobby", "sender_id": "alice"}
        assert (await product.as_device("POST", "/v1/messages", "alice", message)).status_code == 202

    async with running(framework, tmp_path) as product:
        unread = await product.as_device("GET", "/v1/users/me/channels/lobby/unread", "bob")

        assert unread.json()["unread"] == 1
