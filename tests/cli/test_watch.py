"""`readstate watch` in a process of its own, beside a real service: what it prints, and that it misses nothing."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.commands import Command
from tests.conftest import Chat, eventually, token_for
from tests.servers import DEADLINE, Server, serving


class Watch:
    """A running `readstate watch`."""

    def __init__(self, command: Command, out: asyncio.StreamReader, err: asyncio.StreamReader) -> None:
        self._command = command
        self._out, self._err = out, err

    async def line(self, pattern: str) -> str:
        """The next line that it prints and that has this in it."""
        return await self._next(self._out, pattern)

    async def says(self, pattern: str) -> str:
        """The next line beside the events that has this in it."""
        return await self._next(self._err, pattern)

    async def event(self, kind: str) -> Any:
        """The next event of a type, as scripts get it."""
        return json.loads(await self.line(f'^{{"type":"{re.escape(kind)}"'))

    async def messages(self, last: str) -> list[str]:
        """The ids of all messages that it tells of, up to this one."""
        found: list[str] = []
        while last not in found:
            found.append((await self.event("message.new"))["message_id"])
        return found

    async def rest(self) -> tuple[list[str], str, int]:
        """The lines that are left, what it says beside them, and its exit code, when it has ended."""
        async with asyncio.timeout(DEADLINE):
            out, err = await asyncio.gather(self._out.read(), self._err.read())
        return out.decode().splitlines(), err.decode(), await asyncio.to_thread(self._command.wait, DEADLINE)

    def interrupt(self) -> None:
        """Ctrl+C."""
        self._command.send_signal(signal.SIGINT)

    async def close(self) -> None:
        """End it if it still runs."""
        self._command.kill()
        await self.rest()

    async def _next(self, stream: asyncio.StreamReader, pattern: str) -> str:
        async with asyncio.timeout(DEADLINE):
            while text := (await stream.readline()).decode().rstrip("\n"):
                if re.search(pattern, text):
                    return text
        raise AssertionError(f"it has ended without {pattern}")


@asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """What is read here is what is written there; whoever has handed on the other end closes it."""
    read, write = os.pipe()
    reader = asyncio.StreamReader()
    with os.fdopen(read, "rb", buffering=0) as file:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
        yield reader, write
        transport.close()


class Shell:
    """A directory where a service keeps its data, and where `readstate watch` is called."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._environ = {k: v for k, v in os.environ.items() if not k.startswith("READSTATE_")}

    @asynccontextmanager
    async def watch(self, *words: str) -> AsyncIterator[Watch]:
        environ = self._environ | {"READSTATE_DATA_DIR": str(self.data)}
        async with _pipe() as (out, stdout), _pipe() as (err, stderr):
            command = Command("watch", *words, env=environ, cwd=self.data.parent, stdout=stdout, stderr=stderr)
            os.close(stdout)
            os.close(stderr)
            watch = Watch(command, out, err)
            try:
                yield watch
            finally:
                await watch.close()

    async def refuses(self, *words: str, code: int = 1) -> str:
        """What a watch says that can't be."""
        async with self.watch(*words) as watch:
            out, err, ended = await watch.rest()
        assert (ended, out) == (code, []), err
        assert "Traceback" not in err
        return err


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "data")


@pytest.fixture
def server(shell: Shell) -> Iterator[Server]:
    with serving(shell.data) as server:
        yield server


@pytest.fixture
async def chat(server: Server) -> AsyncIterator[Chat]:
    """Alice and bob share a channel."""
    async with talking(server) as chat:
        await chat.open_channel("alice", "bob", name="General")
        yield chat


@asynccontextmanager
async def talking(server: Server) -> AsyncIterator[Chat]:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        yield Chat(http, server.service_key)


# ---------------------------------------------------------------- what is printed


async def test_people_get_a_line_for_each_event(shell: Shell, chat: Chat) -> None:
    async with shell.watch("bob") as watch:
        assert "nobody wrote while the user was away" in await watch.line("badge.updated")

        await chat.post("alice", id="m1", text="Lunch, @bob?", mentions=["bob"])
        assert "general  alice: Lunch, @bob?  (seq 1, +1, mentioned)" in await watch.line("message.new")
        assert "1 person wrote" in await watch.line("badge.updated")

        await chat.read("bob")
        assert "general  read up to m1 (seq 1), 0 unread" in await watch.line("read_pointer.updated")

        await chat.prefer("bob", muted=True, pinned=True)
        assert "general  General, 0 unread, muted, pinned" in await watch.line("channel.updated")

        await chat.post("bob", id="m2", text="Yes")
        await chat.read("alice")
        assert "general  alice has read up to m2 (seq 2)" in await watch.line("receipt.updated")

        await chat.reply("alice", "m2", "r1")
        assert "alice: this is r1  (thread m2)" in await watch.line("message.new")
        assert "general  thread m2: 1 unread" in await watch.line("thread.updated")

        await chat.leave("bob")
        assert "general  left, or deleted" in await watch.line("channel.removed")


async def test_a_text_cannot_drive_the_terminal(shell: Shell, chat: Chat) -> None:
    async with shell.watch("bob") as watch:
        await watch.says("watching bob")
        await chat.post("alice", text="\x1b[2J[red]gone")

        assert "alice: �[2J[red]gone" in await watch.line("message.new")


async def test_scripts_get_events_as_the_service_sends_them(shell: Shell, chat: Chat) -> None:
    async with shell.watch("bob", "--json") as watch:
        await watch.event("badge.updated")
        await chat.send("alice", "m1")

        event = await watch.event("message.new")

    assert event.items() >= {"channel_id": "general", "message_id": "m1", "seq": 1, "counts": True}.items()
    assert event["resume"]


async def test_it_ends_after_as_many_events_as_are_wanted(shell: Shell, chat: Chat) -> None:
    async with shell.watch("bob", "--json", "--only", "message.new", "--count", "2") as watch:
        await watch.says("watching bob")
        await chat.send("alice", "m1", "m2", "m3")

        out, err, code = await watch.rest()

    assert [json.loads(text)["message_id"] for text in out] == ["m1", "m2"]
    assert (err, code) == ("", 0)


async def test_it_begins_with_what_happened_since_a_cursor(shell: Shell, chat: Chat) -> None:
    await chat.send("alice", "m1")
    cursor = (await chat.sync("bob"))["sync"]
    await chat.send("alice", "m2", "m3")

    async with shell.watch("bob", "--json", "--since", cursor) as watch:
        assert await watch.messages("m3") == ["m2", "m3"]
        assert (await watch.event("unread.updated"))["unread"] == 3


async def test_a_cursor_that_is_none_is_told(shell: Shell, chat: Chat) -> None:
    async with shell.watch("bob", "--since", "yesterday") as watch:
        await watch.line("sync.required")
        await chat.send("alice", "m1")

        await watch.line("message.new")


async def test_ctrl_c_ends_it_and_the_next_one_goes_on_from_there(shell: Shell, chat: Chat) -> None:
    async with shell.watch("bob") as watch:
        await watch.line("badge.updated")
        watch.interrupt()
        _, err, code = await watch.rest()
    await chat.send("alice", "m1")

    assert code == 0
    option, cursor = err.split()[-2:]
    async with shell.watch("bob", "--json", option, cursor) as watch:
        assert await watch.messages("m1") == ["m1"]


# ---------------------------------------------------------------- coming back


@pytest.mark.parametrize("ending", ["stop", "kill"])
async def test_after_a_restart_every_message_is_told_once(
    shell: Shell, chat: Chat, server: Server, ending: str
) -> None:
    async with shell.watch("bob", "--json") as watch:
        await watch.says("watching bob")
        await chat.send("alice", "m1", "m2")
        first = await watch.messages("m2")

        getattr(server, ending)()
        await watch.says("the connection has ended.*reconnecting")
        server.start()
        async with talking(server) as again:
            await again.send("alice", "m3")
            await watch.says("reconnected; what was missed comes first")
            await again.send("alice", "m4")

        assert first + await watch.messages("m4") == ["m1", "m2", "m3", "m4"]


# ---------------------------------------------------------------- who watches


async def test_a_service_key_looks_on_and_a_token_is_a_device(shell: Shell, chat: Chat, server: Server) -> None:
    async with shell.watch("bob") as watch:
        await watch.line("badge.updated")
        assert (await chat.presence("bob"))["online"] is False

    token = token_for("bob", secret=server.jwt_secret)
    async with shell.watch("me", "--key", token, "--device", "terminal") as watch:
        await watch.line("badge.updated")
        assert (await chat.presence("bob"))["devices"] == ["terminal"]
        watch.interrupt()
        await watch.rest()

    async def away() -> bool:
        return not (await chat.presence("bob"))["online"]

    await eventually(away, "bob is away")


async def test_it_ends_with_its_token(shell: Shell, server: Server) -> None:
    token = token_for("bob", secret=server.jwt_secret, ttl=4)

    async with shell.watch("bob", "--key", token) as watch:
        _, err, code = await watch.rest()

    assert code == 1
    assert "the token has expired" in err.lower()


async def test_a_service_elsewhere_is_named_by_its_url(shell: Shell, chat: Chat, server: Server) -> None:
    elsewhere = Shell(shell.data.parent / "elsewhere" / "data")
    elsewhere.data.parent.mkdir()

    async with elsewhere.watch("bob", "--url", f"{server.url}/", "--key", server.service_key) as watch:
        await watch.line("badge.updated")

    assert "needs its key" in await elsewhere.refuses("bob", "--url", server.url)


# ---------------------------------------------------------------- what can't be


async def test_without_a_service_it_says_so(shell: Shell) -> None:
    assert "no service runs over" in (error := await shell.refuses("bob"))
    assert "readstate serve" in error
    assert "(unreachable)" in await shell.refuses("bob", "--url", "http://127.0.0.1:1", "--key", "k")


async def test_what_is_not_allowed_is_told_plainly(shell: Shell, server: Server) -> None:
    bobs = token_for("bob", secret=server.jwt_secret)

    assert "(unauthenticated)" in await shell.refuses("bob", "--key", "wrong")
    assert "the token is bob's, not alice's (forbidden)" in await shell.refuses("alice", "--key", bobs)
    assert "service key has no 'me'" in await shell.refuses("me")
    assert "(invalid_id)" in await shell.refuses("@everyone")


async def test_what_is_not_readstate_is_told_plainly(shell: Shell) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        error = await shell.refuses("bob", "--url", f"http://127.0.0.1:{port}", "--key", "k")

    assert "answered 404: it serves no live updates (http_404)" in error


async def test_a_type_that_is_none_is_a_fault_of_usage(shell: Shell) -> None:
    assert "'message' is none of message.new" in await shell.refuses("bob", "--only", "message", code=2)
