"""Messages."""

from typing import Annotated, Literal

from msgspec import UNSET, Struct, UnsetType

from .fields import (
    ChannelId,
    Id,
    InputChannelId,
    MessageId,
    MessageTime,
    Preview,
    Request,
    SenderId,
    Silent,
    Time,
    about,
)

_MessageSeq = Annotated[
    int | None,
    about("Its place in the channel: 1, 2, 3 …; null if it has none (a backfill, a reply in a thread only).", 42),
]
_ThreadSeq = Annotated[int | None, about("Its place in the thread.")]


class NewMessage(Request, frozen=True, kw_only=True):
    """A message to be stored and counted."""

    channel_id: InputChannelId
    sender_id: Annotated[Id, about("Who sent it.", "alice")]
    id: Annotated[
        Id | None, about("The message's id, unique in its channel; made by Readstate if none is given.", "msg_42")
    ] = None
    at: Annotated[
        Time | None, about("Its time. In answers ms since 1970; never the same for two messages of a channel.")
    ] = None
    text: Annotated[str | None, about("What it says.", "Lunch at one?", maxLength="max_text")] = None
    preview: Annotated[
        str | None, about("What an inbox shows of it: given, or the beginning of the text.", maxLength="max_text")
    ] = None
    thread_id: Annotated[Id | None, about("The root message of the thread.")] = None
    also_to_channel: Annotated[bool, about("A reply that takes a place in the channel as well as in its thread.")] = (
        False
    )
    mentions: Annotated[
        tuple[Id, ...], about("Who is mentioned: user ids, `@channel`, `@here`.", ["bob"], maxItems="max_mentions")
    ] = ()
    silent: Silent = False
    backfill: Annotated[bool, about("History: stored without a seq and never counted. Service keys only.")] = False
    outside: Annotated[bool, about("Sent by somebody who need not be a member: bots, notices. Service keys only.")] = (
        False
    )


class MessageEdit(Request, frozen=True, kw_only=True):
    """What changes in a message; what is left out stays."""

    text: Annotated[str | None | UnsetType, about("What it says.", "Lunch at two?", maxLength="max_text")] = UNSET
    mentions: Annotated[
        tuple[Id, ...] | UnsetType, about("Who is mentioned: user ids, `@channel`, `@here`.", maxItems="max_mentions")
    ] = UNSET


class SendResult(Struct, frozen=True, gc=False, omit_defaults=True):
    """What became of one message."""

    id: MessageId
    seq: _MessageSeq
    thread_seq: _ThreadSeq
    status: Annotated[Literal["accepted", "duplicate", "rejected"], about("How it went.")]
    code: Annotated[str | None, about("The error, for programs.")] = None
    detail: Annotated[str | None, about("The error, for people.")] = None
    field: Annotated[str | None, about("The field or parameter that is wrong.")] = None


class SendResults(Struct, frozen=True, gc=False):
    """What became of each message, in the order of the request."""

    results: Annotated[list[SendResult], about("One for each item, in the same order.")]


class MessageView(Struct, frozen=True, gc=False):
    """A message as callers see it."""

    id: MessageId
    channel_id: ChannelId
    seq: _MessageSeq
    sender_id: SenderId
    at: MessageTime
    sent_at: Annotated[int | None, about("The time that the sender gave, as it was.")]
    text: Annotated[str | None, about("What it says.", "Lunch at one?")]
    preview: Preview
    thread_id: Annotated[str | None, about("The root message of the thread.")]
    thread_seq: _ThreadSeq
    mentions: Annotated[tuple[str, ...], about("Who is mentioned: user ids, `@channel`.", ["bob"])]
    silent: Silent
    deleted: Annotated[bool, about("Whether it is deleted.")]
