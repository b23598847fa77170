"""What can happen: who, where, what. Choices are small numbers; the test makes real users, channels and ids of them."""

from typing import Any

from hypothesis import strategies as st

from .comparing import USERS

Fields = dict[str, Any]

COMMON_IDS = ["m", "10", "9", "{m}:1", "..", "'\"; --", "🙂", "a/b", "m\u00e9", "@m"]
"""Message ids that channels share and that come again."""

users = st.sampled_from(USERS)
some_users = st.lists(users, max_size=4, unique=True).map(tuple)
user_rooms = st.integers(0, 43)
"""Picks a user in a channel; from 40 on it may be a stranger."""
rooms = st.integers(0, 17)
"""Picks a channel that exists; from 15 on it may be one that doesn't."""
nth_newest = st.integers(0, 9)
"""Picks a message of a channel, counted back from the newest; 9 was never sent."""
histories: st.SearchStrategy[str | int] = st.sampled_from(["read", "unread", 0, 1, 2, 3, 50])
mention_lists = st.sampled_from(
    [(), ("@channel",), ("@here",), tuple(USERS[:2]), tuple(USERS[2:]), ("@channel", *USERS), ("@here", USERS[0])]
)
offsets = st.sampled_from([-(10**9), -5_000, -3, -1, 0, 1, 3_600_000])
"""How far a time lies from now."""
texts = st.sampled_from([None, "", "hello", "é" * 120])
flags: st.SearchStrategy[Fields] = st.sampled_from([{}, {}, {}, {"silent": True}, {"backfill": True}])
counts = st.sampled_from([None, "all", "mentions", "none"])
things_to_do = st.sampled_from(["send", "read", "mark unread", "delete", "join", "leave", "prefer", "reply", "follow"])
orders = st.lists(st.integers(0, 11), min_size=1, max_size=12)
"""Who of those that wait goes on."""


@st.composite
def drafts(draw: st.DrawFn) -> Fields:
    """A message to be sent: who and where, a time relative to now, and the message that it replies to."""
    draft: Fields = {"user_room": draw(user_rooms), **draw(flags)}
    draft["id"] = draw(st.sampled_from([None, None, *COMMON_IDS]))
    if draw(st.booleans()):
        draft |= {"text": draw(texts), "mentions": draw(mention_lists)}
    if draw(st.integers(0, 3)) == 3:
        draft["at"] = draw(offsets)
    if draw(st.integers(0, 3)) == 3:
        draft |= {"reply_to": draw(nth_newest), "also_to_channel": draw(st.booleans())}
    if draw(st.integers(0, 7)) == 7:
        draft |= {"sender_id": draw(users), "outside": draw(st.booleans())}
    return draft


@st.composite
def targets(draw: st.DrawFn, forms: tuple[str, ...] = ("all", "up_to_time")) -> Fields:
    """What a read names: a form, and messages counted back from the newest."""
    form = draw(st.sampled_from(["up_to", "up_to_seq", "messages", *forms]))
    backs = draw(st.lists(nth_newest, min_size=1, max_size=3 if form == "messages" else 1))
    return {"form": form, "backs": backs, "shift": draw(st.sampled_from([0, -1, 1]))}
