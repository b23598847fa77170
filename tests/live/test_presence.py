from .conftest import Town


async def test_online(town: Town) -> None:
    bob = await town.fresh("bob")
    await town.chat.send("alice", "a1")
    print(await bob.heard())
    assert (await town.chat.presence("bob"))["online"]
