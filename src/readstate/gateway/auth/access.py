"""Permissions.

A service key may do everything. A user token acts as its own user, in channels of which that user is a member. It
cannot tell whether other channels exist.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from readstate.api import NewMessage, SendResult
from readstate.domain.errors import Forbidden, Invalid, InvalidId
from readstate.domain.rules import check_id, check_user_id
from readstate.gateway.http.queries import id_in_url

from .authenticator import ME

if TYPE_CHECKING:
    from readstate.profiles.wiring import Services

NOT_THE_USER = "A user token may act only as its own user."
NOT_A_MEMBER = "The user of this token is not a member of the channel."
NOT_THE_SENDER = "A user token may send only as its own user."
NOT_THE_AUTHOR = "A user token may change only messages that its own user has sent."
SERVICE_ONLY = "Only a service key may do this."
SERVICE_FIELDS = "Only a service key may use 'outside' and 'backfill'."


def resolve_user(named: str, own: str | None) -> str:
    """The id of the user that a path names. `own`: the token's user, None for a service."""
    if named == ME:
        if own is None:
            raise Invalid("A service key has no 'me': name the user by its id.", field="user")
        return own
    id_in_url(named, "user", check_user_id)
    if own not in {None, named}:
        raise Forbidden(NOT_THE_USER)
    return named


async def require_membership(rs: "Services", user: str | None, channels: Sequence[str]) -> None:
    """Forbidden unless the user is a member of all channels. A service needs no membership."""
    if user is not None and channels and not await rs.is_member(user, *channels):
        raise Forbidden(NOT_A_MEMBER)


async def require_authorship(rs: "Services", user: str | None, channel: str, message: str) -> None:
    """Forbidden unless the user has sent the message. A service may change any.

    An unknown message is not found, so that no user can delete what another will send.
    """
    if user is not None and (await rs.messages.get(channel, message)).sender_id != user:
        raise Forbidden(NOT_THE_AUTHOR)


async def refusal(rs: "Services", user: str | None, message: NewMessage) -> SendResult | None:
    """The result for a message that this sender may not send; None: allowed."""
    if user is None:
        return None
    named = "" if message.id is None else str(message.id)
    try:
        channel = check_id(message.channel_id, "channel_id")
    except InvalidId as error:
        return SendResult(named, None, None, "rejected", error.code, error.detail, error.field)
    if str(message.sender_id) != user:
        reason = NOT_THE_SENDER
    elif message.outside or message.backfill:
        reason = SERVICE_FIELDS
    elif not await rs.is_member(user, channel):
        reason = NOT_A_MEMBER
    else:
        return None
    return SendResult(named, None, None, "rejected", Forbidden.code, reason)
