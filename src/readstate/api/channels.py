"""Channels and their members."""

from typing import Annotated

from msgspec import UNSET, Struct, UnsetType

from readstate.domain.model import ChannelType, History

from .fields import EARLIER, ChannelId, Cursor, Id, LatestMessage, Request, UserId, about

Type = Annotated[ChannelType, about("direct: two people at most; group: invited; channel: open.", "group")]
Name = Annotated[str | None, about("The channel's name.", "General")]
Avatar = Annotated[str | None, about("A picture, in whatever form the product keeps it.")]
Archived = Annotated[bool, about("Takes no messages and leaves the totals.")]
JoinedSeq = Annotated[int, about("The newest message when the user joined.", 0)]
_MemberCount = Annotated[int, about("How many members the channel has.", 3)]


class PutChannel(Request, frozen=True, kw_only=True):
    """Creates or updates a channel; what is left out stays."""

    type: Type | UnsetType = UNSET
    name: Annotated[Name | UnsetType, about("The channel's name.", "General", maxLength="max_text")] = UNSET
    avatar: Annotated[
        Avatar | UnsetType, about("A picture, in whatever form the product keeps it.", maxLength="max_text")
    ] = UNSET
    archived: Archived | UnsetType = UNSET
    members: Annotated[tuple[Id, ...], about("Users who become members.", ["alice", "bob"], maxItems="max_batch")] = ()


class ChangeMembers(Request, frozen=True, kw_only=True):
    """Adds and removes members."""

    add: Annotated[tuple[Id, ...], about("Users who become members.", ["carol"], maxItems="max_batch")] = ()
    remove: Annotated[tuple[Id, ...], about("Users who leave.", maxItems="max_batch")] = ()
    history: Annotated[
        History,
        about("What a new member finds: everything read, everything unread, or the last n messages unread.", 10),
    ] = "read"


class ChannelView(Struct, frozen=True, gc=False):
    """A channel as callers see it."""

    channel_id: ChannelId
    type: Type
    name: Name
    avatar: Avatar
    archived: Archived
    member_count: _MemberCount
    latest: LatestMessage


class MembersChanged(Struct, frozen=True, gc=False):
    """How many were really added and removed."""

    added: Annotated[int, about("How many were not members before.", 1)]
    removed: Annotated[int, about("How many were members before.", 0)]
    member_count: _MemberCount


class MemberView(Struct, frozen=True, gc=False):
    """A member of a channel."""

    user_id: UserId
    joined_seq: JoinedSeq
    joined_at: Annotated[int, about("When the user joined.", EARLIER)]


class MembersPage(Struct, frozen=True, gc=False):
    """Members by id."""

    members: Annotated[
        list[MemberView], about("The members.", [MemberView("alice", 0, EARLIER), MemberView("bob", 0, EARLIER)])
    ]
    cursor: Cursor
