"""Shapes of answers that only HTTP has."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from readstate.api.fields import ChannelId, MessageId, ThreadId, about

_Deleted = Annotated[bool, about("Whether it is deleted.")]
Dependencies = Annotated[dict[str, str], about('Each thing that the service needs, and "ok" or what is wrong with it.')]


class DeletedChannel(Struct, frozen=True, gc=False):
    """A channel that is gone."""

    channel_id: ChannelId
    deleted: _Deleted = True


class DeletedMessage(Struct, frozen=True, gc=False):
    """A message that is gone."""

    id: MessageId
    channel_id: ChannelId
    deleted: _Deleted = True


class Following(Struct, frozen=True, gc=False):
    """Whether a user follows a thread now."""

    thread_id: ThreadId
    channel_id: ChannelId
    following: Annotated[bool, about("Whether the user follows the thread.", True)]


class Health(Struct, frozen=True, gc=False):
    """The process answers."""

    status: Annotated[Literal["ok"], about("How it went.")] = "ok"


class Readiness(Struct, frozen=True, gc=False):
    """Everything that the service needs works; or it works, and accepted messages wait for the message writer."""

    dependencies: Annotated[Dependencies, Meta(examples=[{"database": "ok"}])]
    status: Annotated[Literal["ok", "behind"], about("How it went.")] = "ok"
