"""The library of functions: how servers get it, and how old ones go."""

from collections.abc import AsyncIterator, Iterator

import pytest

from readstate.adapters.valkey import Call, ValkeyClient, slot_of
from readstate.adapters.valkey.commands import ask
from readstate.adapters.valkey.functions import COMMAND, LIBRARY
from readstate.adapters.valkey.libraries import UNUSED_MS, Libraries
from readstate.stack import Valkey
from readstate.timings import ValkeyTimings

OLD, OTHER = "readstate_0123456789ab", "somebody_elses"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with Valkey(tmp_path_factory.mktemp("functions") / "valkey", persistent=False) as server:
        yield server


@pytest.fixture
def valkey(server: Valkey) -> Valkey:
    """An empty one."""
    server.ask("FUNCTION", "FLUSH")
    server.ask("FLUSHALL")
    return server


@pytest.fixture
async def client(valkey: Valkey) -> AsyncIterator[ValkeyClient]:
    client = ValkeyClient(valkey.url, ValkeyTimings())
    yield client
    await client.close()


async def put(client: ValkeyClient, value: str) -> bytes:
    answer: bytes = (await client.run(COMMAND, [Call(slot_of("key"), ["key"], ["SET", value])])).values[0]
    return answer


async def libraries(client: ValkeyClient) -> set[str]:
    [node] = (await client.masters()).values()
    return {library[1].decode() for library in await ask(node, "FUNCTION", "LIST")}


def loads(valkey: Valkey, name: str) -> None:
    function = f"redis.register_function('{name}_f', function() return 1 end)"
    valkey.ask("FUNCTION", "LOAD", f"#!lua name={name}\n{function}")


async def test_a_server_without_the_library_gets_it(client: ValkeyClient, valkey: Valkey) -> None:
    assert await put(client, "1") == b"OK"
    assert await libraries(client) == {LIBRARY}


async def test_a_server_that_has_lost_the_library_gets_it_again(client: ValkeyClient, valkey: Valkey) -> None:
    await put(client, "1")
    valkey.ask("FUNCTION", "FLUSH")
    many = [Call(slot_of("key"), ["key"], ["SET", str(n)]) for n in range(5)]
    assert (await client.run(COMMAND, many)).values == [b"OK"] * 5
    assert await libraries(client) == {LIBRARY}


async def test_a_library_that_is_not_used_for_a_day_goes(client: ValkeyClient, valkey: Valkey) -> None:
    now = 1_700_000_000_000
    tidied = Libraries(client, "test:", lambda: now)
    loads(valkey, OLD)
    loads(valkey, OTHER)
    await tidied.tidy()  # the old one is seen for the first time
    assert await libraries(client) == {LIBRARY, OLD, OTHER}
    now += UNUSED_MS
    await tidied.tidy()
    assert await libraries(client) == {LIBRARY, OLD, OTHER}
    now += 1
    await tidied.tidy()
    assert await libraries(client) == {LIBRARY, OTHER}
    await tidied.tidy()
    assert valkey.ask("HLEN", "test:libraries") == "1"


async def test_a_library_that_another_process_uses_stays(client: ValkeyClient, valkey: Valkey) -> None:
    now = 1_700_000_000_000
    tidied = Libraries(client, "test:", lambda: now)
    loads(valkey, OLD)
    await tidied.tidy()
    now += UNUSED_MS
    valkey.ask("HSET", "test:libraries", OLD, str(now))  # as a process of that version does every hour
    now += UNUSED_MS
    await tidied.tidy()
    assert await libraries(client) == {LIBRARY, OLD}
