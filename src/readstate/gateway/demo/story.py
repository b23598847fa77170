"""What the people of the demo page have said before anyone looks."""

from typing import NamedTuple

from msgspec import Struct

from readstate.domain.model import ChannelType

PEOPLE = {
    "alice": "Alice",
    "bob": "Bob",
    "carol": "Carol",
    "dave": "Dave",
    "erin": "Erin",
    "frank": "Frank",
}


class Room(Struct, frozen=True):
    """A channel of the story; the two of a direct one need no name."""

    id: str
    name: str | None
    type: ChannelType
    members: tuple[str, ...]


class Line(NamedTuple):
    """Something that was said. `key` is how other lines name it."""

    ago: float
    """Minutes before now."""
    room: str
    sender: str
    text: str
    key: str = ""
    thread: str = ""
    mentions: tuple[str, ...] = ()
    silent: bool = False


ROOMS = (
    Room("general", "General", "channel", tuple(PEOPLE)),
    Room("weekend", "Weekend trip", "group", ("alice", "bob", "carol", "dave")),
    Room("builds", "Builds", "channel", ("alice", "bob", "erin", "frank")),
    Room("alice-bob", None, "direct", ("alice", "bob")),
    Room("carol-alice", None, "direct", ("carol", "alice")),
    Room("dave-bob", None, "direct", ("dave", "bob")),
)

BUILDS = 128
"""Enough for a label with a plus."""

LINES = (
    *(
        Line(BUILDS + 95 - n, "builds", "frank", f"Build {300 + n} passed in {40 + n * 7 % 23} s.")
        for n in range(1, BUILDS + 1)
    ),
    Line(240, "general", "erin", "Good morning! The new office keys are at my desk."),
    Line(236, "general", "alice", "Who can look over the release notes?", key="notes"),
    Line(231, "general", "bob", "I can, right after lunch.", thread="notes"),
    Line(210, "general", "dave", "Lunch is at one today, on the roof if it stays dry."),
    Line(180, "weekend", "alice", "Train or car on Saturday?"),
    Line(176, "weekend", "bob", "Train. I would rather read than drive."),
    Line(150, "alice-bob", "alice", "Did you see Dave’s sketch of the inbox?"),
    Line(149, "alice-bob", "bob", "Yes! The red line is exactly right."),
    Line(148, "alice-bob", "alice", "Then let us build it like that.", key="agreed"),
    Line(120, "general", "carol", "The roof it is.", key="roof"),
    Line(90, "dave-bob", "dave", "Can you bring the projector tomorrow?"),
    Line(60, "general", "carol", "I have left two remarks in the draft.", thread="notes"),
    Line(58, "general", "erin", "And I mended the typo in the title.", thread="notes"),
    Line(45, "general", "erin", "@Alice the customer from Lisbon called, he is very happy.", mentions=("alice",)),
    Line(44, "general", "frank", "Nightly backup finished.", silent=True),
    Line(30, "general", "dave", "Cake in the kitchen."),
    Line(24, "weekend", "dave", "The 9:12 has seats left for four."),
    Line(22, "weekend", "carol", "Booked! I will bring the tickets."),
    Line(12, "carol-alice", "carol", "Could you have a look at slide 7 before ten?"),
    Line(6, "general", "carol", "Half of the cake is gone already."),
)

READ_UP_TO = {
    "alice": {"general": "roof"},
    "bob": {"general": "roof", "alice-bob": "agreed"},
}
"""By the keys of lines. Besides, everyone has read up to what they last said themselves."""
