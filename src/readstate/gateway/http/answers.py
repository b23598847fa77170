"""Shapes of answers that only HTTP has."""

from typing import Literal

from msgspec import Struct

from readstate.api import ReadOutcome, SendResult, UserTotals


class DeletedChannel(Struct, frozen=True, gc=False):
    """A channel that is gone."""

    channel_id: str
    deleted: bool = True


class DeletedMessage(Struct, frozen=True, gc=False):
    """A message that is gone."""

    id: str
    channel_id: str
    deleted: bool = True


class SendResults(Struct, frozen=True, gc=False):
    """What became of each message, in the order of the request."""

    results: list[SendResult]


class ReadOutcomes(Struct, frozen=True, gc=False):
    """What became of each read, in the order of the request."""

    results: list[ReadOutcome]


class TotalsByUser(Struct, frozen=True, gc=False):
    """The totals of each user, by id."""

    users: dict[str, UserTotals]


class Following(Struct, frozen=True, gc=False):
    """Whether a user follows a thread now."""

    thread_id: str
    channel_id: str
    following: bool


class Health(Struct, frozen=True, gc=False):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(Struct, frozen=True, gc=False):
    """Everything that the service needs works; or it works, and accepted messages wait for the message writer."""

    dependencies: dict[str, str]
    status: Literal["ok", "behind"] = "ok"
