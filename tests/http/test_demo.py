"""The demo page over HTTP: who gets it, what it may load, and the sandboxes behind it."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from readstate import Readstate
from readstate.domain.errors import RateLimited
from readstate.gateway.demo.sandbox import SESSIONS_PER_DAY, TOKEN_SECONDS, Session, Sessions
from readstate.gateway.http.calls import Call
from tests.conftest import JWT_SECRET, Chat, check_problem, in_process

WEB = files("readstate").joinpath("web")
PAGE, SESSION = "/demo", "/demo/session"


@pytest.fixture
async def anyone(tmp_path: Path) -> AsyncIterator[Chat]:
    """Somebody without a key or token."""
    async with in_process(tmp_path, demo=True, rate_limit=50, max_devices=32) as chat:
        yield chat.with_token(None)


def named(session: Any, name: str) -> Any:
    return next(person for person in session["people"] if person["name"] == name)


async def in_channels(chat: Chat, person: Any) -> set[str]:
    rows = (await chat.with_token(person["token"]).ask("GET", "/v1/users/me/inbox"))["conversations"]
    return {row["channel_id"] for row in rows}


# ---------------------------------------------------------------- sandboxes


async def test_everyone_of_a_sandbox_finds_what_it_says(anyone: Chat) -> None:
    session = await anyone.ask("POST", SESSION)

    assert [person["name"] for person in session["people"]] == ["Alice", "Bob", "Carol", "Dave", "Erin", "Frank"]
    for person in session["people"]:
        own = {channel["id"] for channel in session["channels"] if person["id"] in channel["members"]}
        assert await in_channels(anyone, person) == own


async def test_the_messages_are_those_that_the_service_counts(anyone: Chat) -> None:
    session = await anyone.ask("POST", SESSION)
    alice = named(session, "Alice")
    chat = anyone.with_token(alice["token"])
    texts = {message["id"]: message["text"] for message in session["messages"]}

    for channel in await in_channels(anyone, alice):
        for waiting in await chat.all_waiting("me", channel):
            assert texts[waiting["id"]] == waiting["text"]
            assert waiting["sender_id"] != alice["id"]


async def test_both_people_of_the_page_have_something_of_everything(anyone: Chat) -> None:
    session = await anyone.ask("POST", SESSION)
    for name in ("Alice", "Bob"):
        chat = anyone.with_token(named(session, name)["token"])
        sync = await chat.sync("me")

        assert 0 < sync["totals"]["unread"] < 99
        assert sync["threads"]["unread"] > 0
        assert (await chat.ask("GET", "/v1/users/me/badge"))["senders"] > 1
    alice = await anyone.with_token(named(session, "Alice")["token"]).sync("me")
    assert alice["totals"]["mentions"] == 1
    assert [row["label"] for row in alice["channels"] if row["muted"]] == ["99+"]


async def test_a_token_of_a_sandbox_is_good_for_its_person_only(anyone: Chat) -> None:
    first = await anyone.ask("POST", SESSION)
    second = await until_made(anyone)
    alice, other = named(first, "Alice"), named(second, "Alice")
    chat = anyone.with_token(alice["token"])

    assert alice["id"] != other["id"]
    assert (await chat.call("GET", f"/v1/users/{other['id']}/unread")).status_code == 403
    for channel in second["channels"]:
        assert (await chat.call("GET", f"/v1/channels/{channel['id']}")).status_code == 403
    claims = jwt.decode(alice["token"], JWT_SECRET, algorithms=["HS256"])
    assert claims["exp"] - claims["iat"] == TOKEN_SECONDS


async def until_made(anyone: Chat) -> Any:
    """The next sandbox, as soon as the service makes one."""
    for _ in range(20):
        answer = await anyone.call("POST", SESSION)
        if answer.is_success:
            return answer.json()
        await asyncio.sleep(int(answer.headers["retry-after"]) / 4)
    pytest.fail("no further sandbox was made")


async def test_tokens_are_what_the_settings_ask_for(tmp_path: Path) -> None:
    settings = {"jwt_issuer": "chat.example", "jwt_audience": "readstate", "jwt_user_claim": "uid"}
    async with in_process(tmp_path, demo=True, **settings) as chat:
        session = await chat.with_token(None).ask("POST", SESSION)

        assert await in_channels(chat, named(session, "Bob"))


async def test_sandboxes_are_made_one_a_second(anyone: Chat) -> None:
    made, refused = await asyncio.gather(anyone.call("POST", SESSION), anyone.call("POST", SESSION))

    assert made.status_code == 201
    check_problem(refused, 429, "rate_limited")


class Wall:
    """A clock on the wall that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def make(sessions: Sessions, rs: Readstate) -> Session:
    return await sessions.make(Call(rs, None, {}))


async def test_a_day_has_a_bounded_number_of_sandboxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("readstate.gateway.demo.sandbox.SESSIONS_PER_DAY", 3)
    assert SESSIONS_PER_DAY == 200
    wall = Wall()
    sessions = Sessions(wall)
    async with Readstate.open(data_dir=tmp_path, jwt_secret=JWT_SECRET) as rs:
        for _ in range(3):
            await make(sessions, rs)
            wall.now += 2
        with pytest.raises(RateLimited):
            await make(sessions, rs)

        wall.now += 86_400
        await make(sessions, rs)


async def test_a_sandbox_is_removed_when_its_tokens_are_over(tmp_path: Path) -> None:
    wall = Wall()
    sessions = Sessions(wall)
    async with Readstate.open(data_dir=tmp_path, jwt_secret=JWT_SECRET) as rs:
        first = await make(sessions, rs)
        wall.now += TOKEN_SECONDS
        second = await make(sessions, rs)
        lines = b"".join([chunk async for chunk in rs.transfer.export()]).splitlines()

    old, new = (session.people[0].id.encode().removeprefix(b"alice") for session in (first, second))
    assert any(new in line for line in lines)
    # Of a deleted channel its name alone stays, so that its seqs are never given again.
    assert all(json.loads(line)["deleted"] for line in lines if old in line)


# ---------------------------------------------------------------- who gets it


@pytest.mark.parametrize(
    ("settings", "served"),
    [
        ({}, False),
        ({"host": "localhost"}, False),
        ({"demo": True}, True),
        ({"host": "0.0.0.0", "demo": True}, True),
        ({"demo": False}, False),
    ],
)
async def test_it_is_there_only_if_asked_for(tmp_path: Path, settings: dict[str, Any], served: bool) -> None:
    async with in_process(tmp_path, **settings) as chat:
        anyone = chat.with_token(None)
        answers = [await anyone.call("GET", path) for path in (PAGE, "/demo/main.js", "/demo/demo.css")]
        answers.append(await anyone.call("POST", SESSION))
        assert [answer.is_success for answer in answers] == [served] * 4
        if not served:
            for answer in answers:
                check_problem(answer, 404, "not_found")


async def test_without_a_secret_to_sign_with_there_is_no_demo(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text('{"keys": []}')
    async with in_process(tmp_path / "data", jwt_secret="", jwks=str(tmp_path / "keys.json"), demo=True) as chat:
        check_problem(await chat.with_token(None).call("POST", SESSION), 404, "not_found")


# ---------------------------------------------------------------- the page


@pytest.fixture
async def page(anyone: Chat) -> httpx.Response:
    return await anyone.call("GET", PAGE)


def test_the_browser_is_told_to_load_nothing_from_elsewhere(page: httpx.Response) -> None:
    policy = dict(rule.split(" ", 1) for rule in page.headers["content-security-policy"].split("; "))

    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"


def test_nothing_is_inline_and_every_address_is_relative(page: httpx.Response) -> None:
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"<style|<script[^>]*>[^<]|\sstyle=|\son[a-z]+=", page.text)
    for address in re.findall(r'(?:src|href)="([^"]*)"', page.text):
        assert re.match(r"demo/|docs$|#|data:image/svg", address), address


async def test_every_file_that_the_page_needs_is_served(anyone: Chat, page: httpx.Response) -> None:
    wanted = set(re.findall(r'(?:src|href)="(demo/[^"]*)"', page.text))
    seen: set[str] = set()
    while wanted - seen:
        path = (wanted - seen).pop()
        seen.add(path)
        answer = await anyone.call("GET", f"/{path}")
        assert answer.status_code == 200, path
        assert answer.headers["x-content-type-options"] == "nosniff"
        kind = "text/css" if path.endswith(".css") else "text/javascript"
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
        wanted |= {f"demo/{name}" for name in re.findall(r'from "\./([\w.-]+)"', answer.text)}

    assert "demo/readstate.js" in seen
    assert seen == {f"demo/{file.name}" for file in WEB.iterdir() if file.name.endswith((".js", ".css"))}


def test_texts_never_become_markup() -> None:
    for file in WEB.iterdir():
        if file.name.endswith(".js"):
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b", file.read_text("utf-8")
            )


async def test_a_browser_may_ask_for_the_head_alone(anyone: Chat) -> None:
    answer = await anyone.call("HEAD", PAGE)

    assert answer.status_code == 200
    assert answer.content == b""


async def test_the_demo_is_no_part_of_the_documented_api(anyone: Chat) -> None:
    assert not [path for path in (await anyone.ask("GET", "/openapi.json"))["paths"] if path.startswith(PAGE)]
