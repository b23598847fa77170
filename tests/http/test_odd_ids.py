"""Ids that look dangerous but are valid go through the whole path and come back unchanged."""

import pytest

from tests.conftest import Chat

ODD = {
    "one byte": "x",
    "128 bytes": "x" * 128,
    "128 bytes of 64 characters": "é" * 64,
    "128 bytes of emoji": "😀" * 32,
    "braces": "{user}:{channel}",
    "colons": "a:b::c",
    "slashes": "a/b//c",
    "a path up": "..",
    "a longer path up": "../../etc/passwd",
    "a dot": ".",
    "quotes": 'it\'s "quoted" `here`',
    "sql": "'; DROP TABLE messages; --",
    "percent": "100%25",
    "percent-encoded slash as text": "a%2Fb",
    "query": "a?b=c&d#e",
    "plus and space": "a+b c",
    "backslash": "a\\b\\u0000",
    "comma": "a,b",
    "emoji": "🎉 party",
    "markup": "<script>alert(1)</script>",
    "right to left": "שלום",
    "like": "%_*?[a-z]",
    "a name of a path": "unread",
    "null in words": "null",
    "combining": "e\u0301",
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
async def test_an_odd_id_names_channels_users_and_messages(chat: Chat, odd: str) -> None:
    reader = message = odd
    await chat.open_channel("alice", reader, channel=odd)

    await chat.send("alice", message, channel=odd, mentions=[reader])
    await chat.send("alice", "second", channel=odd)

    answer = await chat.unread(reader, odd)
    assert (answer["channel_id"], answer["unread"], answer["mentions"]) == (odd, 2, 1)
    assert answer["first_unread"]["id"] == message
    assert await chat.waiting(reader, order="oldest", channel=odd) == [message, "second"]
    assert [m["user_id"] for m in (await chat.members(odd))["members"]] == sorted(["alice", reader])
    assert (await chat.read(reader, odd, up_to=message))["last_read"]["id"] == message
    assert (await chat.edit(message, odd, mentions=[]))["id"] == message
    await chat.mark_unread(reader, message, odd)
    await chat.delete(message, odd)
    assert await chat.count(reader, odd) == 1
    assert [row["channel_id"] for row in (await chat.sync(reader))["channels"]] == [odd]
    assert (await chat.read_all(reader))["changed"] == 1
    assert (await chat.read_many({"user_id": reader, "channel_id": odd}))[0]["status"] == "ok"
    await chat.prefer(reader, odd, muted=True)
    await chat.delete_channel(odd)


async def test_ids_that_differ_only_in_look_are_different(chat: Chat) -> None:
    names = ["a/b", "a%2Fb", "a:b", "A:B", "é", "e\u0301", "a b", "a+b"]
    for number, name in enumerate(names):
        await chat.open_channel("alice", "bob", channel=name)
        for copy in range(number + 1):
            await chat.send("alice", f"m{copy}", channel=name)

    assert [await chat.count("bob", name) for name in names] == list(range(1, len(names) + 1))
