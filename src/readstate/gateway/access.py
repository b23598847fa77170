"""Who may do what.

A service key may do everything. A user token acts as its own user only, and only in channels that its
user is a member of; of other channels it can't even tell whether they exist.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..api import NewMessage, SendResult
from ..errors import Forbidden, Invalid

if TYPE_CHECKING:
    from ..assembly import Services

ME = "me"

NOT_THE_USER = "A user token may act only as its own user."
NOT_A_MEMBER = "The user of this token is not a member of the channel."
NOT_THE_SENDER = "A user token may send only as its own user."
NOT_THE_AUTHOR = "A user token may change only messages that its own user has sent."
SERVICE_ONLY = "Only a service key may do this."
SERVICE_FIELDS = "Only a service key may use 'outside' and 'backfill'."


def resolve_user(named: str, own: str | None) -> str:
    """The user that a path names, as an id. `own` is the token's user, None for a service."""
    if own is None:
        if named == ME:
            raise Invalid("A service key has no 'me': name the user by its id.", field="user")
        return named
    if named not in {ME, own}:
        raise Forbidden(NOT_THE_USER)
    return own


async def require_membership(rs: "Services", user: str | None, channels: Iterable[str | int]) -> None:
    """Forbidden unless the user is a member of all of them; a service needs no membership."""
    if user is None:
        return
    for channel in channels:
        if not await rs.is_member(user, str(channel)):
            raise Forbidden(NOT_A_MEMBER)


async def require_authorship(rs: "Services", user: str | None, channel: str, message: str) -> None:
    """Forbidden unless the user has sent the message; a service may change any.

    An unknown one is not found, so that no user can delete what another may yet send.
    """
    if user is not None and (await rs.messages.get(channel, message)).sender_id != user:
        raise Forbidden(NOT_THE_AUTHOR)


async def refusal(rs: "Services", user: str | None, message: NewMessage) -> SendResult | None:
    """The result of a message that this sender may not send; None if it may."""
    if user is None:
        return None
    if str(message.sender_id) != user:
        reason = NOT_THE_SENDER
    elif message.outside or message.backfill:
        reason = SERVICE_FIELDS
    elif not await rs.is_member(user, str(message.channel_id)):
        reason = NOT_A_MEMBER
    else:
        return None
    named = "" if message.id is None else str(message.id)
    return SendResult(named, None, None, "rejected", Forbidden.code, reason)
