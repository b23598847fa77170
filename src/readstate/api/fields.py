"""Types of fields that occur in several requests and answers, with what the documentation says of them."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, UnsetType

from readstate.domain.model import Latest, Number

NOW = 1_769_851_800_000
EARLIER = NOW - 60_000
"""Times of examples."""


def about(text: str, *examples: Any, **limits: str) -> Meta:
    """What a field means, an example, and its limits: keywords of JSON Schema and names of settings.

    The example of a struct is made of those of its fields (`gateway/openapi/examples.py`).
    """
    return Meta(description=text, examples=list(examples) or None, extra_json_schema=limits or None)


class Request(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, gc=False):
    """Base of every request: unknown fields are refused."""


# ---------------------------------------------------------------- of requests

Id = Annotated[str | int, Meta(title="Id")]
"""In requests an integer stands for its decimal string."""
Time = Annotated[str | int, Meta(title="Time")]
"""In requests: milliseconds since 1970, or RFC 3339."""

InputChannelId = Annotated[Id, about("The channel.", "general")]
InputUserId = Annotated[Id, about("The user.", "bob")]
InputEpoch = Annotated[
    Number | None, about("Raised by every mark-unread. A read that names an epoch that is over changes nothing.")
]

# ---------------------------------------------------------------- of answers

Reason = Literal["capped", "stale"]
"""Why a count is not exact: it is a lower bound, or the last known value."""

ChannelId = Annotated[str, about("The channel.", "general")]
UserId = Annotated[str, about("The user.", "bob")]
SenderId = Annotated[str, about("Who sent it.", "alice")]
ThreadId = Annotated[str, about("The root message of the thread.", "msg_42")]
MessageId = Annotated[
    str, about("The message's id, unique in its channel; made by Readstate if none is given.", "msg_42")
]
MessageTime = Annotated[
    int, about("Its time. In answers ms since 1970; never the same for two messages of a channel.", NOW)
]
Preview = Annotated[
    str | None, about("What an inbox shows of it: given, or the beginning of the text.", "Lunch at one?")
]
Silent = Annotated[bool, about("Counted for nobody.")]
Epoch = Annotated[
    int, about("Raised by every mark-unread. A read that names an epoch that is over changes nothing.", 0)
]
LatestMessage = Annotated[Latest | None, about("The newest message that is not deleted.")]
LastReadSeq = Annotated[int, about("How far the user has read.", 42)]
ReadAt = Annotated[int, about("When the pointer last moved: the message was read at that time at the latest.", NOW)]

UnreadCount = Annotated[int, about("How many messages are unread.", 3)]
Label = Annotated[str, about('The number as a badge shows it: "", "1" … "99", "99+".', "3")]
HasUnread = Annotated[bool, about("The dot: whether anything is unread, whatever `count` says.", True)]
MentionCount = Annotated[int, about("How many unread messages mention the user.", 1)]
Muted = Annotated[bool, about("Whether it leaves the totals.")]
SenderCount = Annotated[int, about("How many different people.", 4)]
Exact = Annotated[bool, about("Whether the number is exact; if not, `reason` says why.", True)]
NotExact = Annotated[bool | UnsetType, about("Only there if it is false.")]
InexactReason = Annotated[
    Reason | UnsetType,
    about(
        "Why the count is not exact: `capped` (more than it keeps; a lower bound) or `stale` (the last known value: "
        "a dependency is down or behind)."
    ),
]

Cursor = Annotated[str | None, about("Gives the next page; null at the end.")]
