"""Channels and their members."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET, UnsetType, convert

from readstate.api import ChangeMembers, ChannelView, MembersChanged, MembersPage, MemberView, PutChannel
from readstate.domain.errors import DirectChannelFull, Invalid
from readstate.domain.events import AnyChannelEvent, ChannelEvent, MembersEvent
from readstate.domain.facts import Effect
from readstate.domain.model import Channel
from readstate.domain.rules import MAX_IN_DIRECT, check_id, check_size, check_text, check_user_id, direct_error
from readstate.ports import Clock, DurableQueries, Log
from readstate.settings import Settings

from .cursors import Cursors, MembersAfter, page_size
from .effects import done
from .event_checks import EventChecks
from .loading import Loader
from .positions import Positions


@dataclass(eq=False, repr=False)
class Channels:
    """Changes take their place in the channel's order. They are answered when applied, or with NotYet."""

    _log: Log
    _loader: Loader
    _positions: Positions
    _checks: EventChecks
    _durable: DurableQueries
    _cursors: Cursors
    _clock: Clock
    _settings: Settings

    async def put(self, channel: str, request: PutChannel) -> ChannelView:
        """Create or update a channel. Members are added, never removed."""
        check_id(channel, "channel")
        for field, text in (("name", request.name), ("avatar", request.avatar)):
            check_text(None if isinstance(text, UnsetType) else text, field, self._settings.max_text)
        members = self._users(request.members, "members")
        await self._check_put(channel, request, members)
        now = self._clock()
        events: list[AnyChannelEvent] = [
            ChannelEvent(
                channel_id=channel,
                created_at=now,
                type=request.type,
                name=request.name,
                avatar=request.avatar,
                archived=request.archived,
            )
        ]
        if members:
            event = MembersEvent(channel_id=channel, created_at=now, add=members)
            events.append(await self._checks.returning(event))
        first, *rest = await self._log.channel_events(events)
        done(first)
        try:
            return _view(_channel(rest[0] if rest else first))
        except DirectChannelFull as error:
            error.field = "members"
            raise

    async def _check_put(self, channel: str, request: PutChannel, members: Sequence[str]) -> None:
        """Refuse what can be refused before anything goes to the log, so that a refusal changes nothing."""
        known = (await self._loader.channels([channel]))[0]
        if known is None and request.type is UNSET:
            raise Invalid("a new channel needs a type: direct, group or channel", field="type")
        if (known.type if known is not None and request.type is UNSET else request.type) != "direct":
            return
        before = [] if known is None else await self._durable.members(channel, "", MAX_IN_DIRECT + 1)
        new = set(members).difference(member.user_id for member in before)
        becomes_direct = known is not None and known.type != "direct"
        if (new or becomes_direct) and (
            error := direct_error(channel, len(before) + len(new), "members" if new else "type")
        ):
            raise error

    async def get(self, channel: str) -> ChannelView:
        return _view(await self._loader.channel(check_id(channel, "channel")))

    async def delete(self, channel: str) -> None:
        """Delete a channel with everything in it. Its seqs are never reused."""
        await self._loader.channel(check_id(channel, "channel"))
        event = ChannelEvent(channel_id=channel, created_at=self._clock(), action="delete")
        _channel((await self._log.channel_events([event]))[0])
        self._positions.forget({channel})

    async def change_members(self, channel: str, request: ChangeMembers) -> MembersChanged:
        check_id(channel, "channel")
        add, remove = self._users(request.add, "add"), self._users(request.remove, "remove")
        if both := set(add) & set(remove):
            raise Invalid(f"{min(both)!r} is in add and in remove", field="remove")
        if not add and not remove:
            raise Invalid("give add or remove", field="add")
        await self._loader.channel(channel)
        event = MembersEvent(
            channel_id=channel, created_at=self._clock(), add=add, remove=remove, history=request.history
        )
        effect = done((await self._log.channel_events([await self._checks.returning(event)]))[0])
        return MembersChanged(effect.added, effect.removed, _channel(effect).member_count)

    async def members(self, channel: str, *, limit: int | None = None, cursor: str | None = None) -> MembersPage:
        """Members ordered by id."""
        limit = page_size(limit, 100, self._settings.max_page)
        await self._loader.channel(check_id(channel, "channel"))
        after = "" if cursor is None else self._cursors.decode(cursor, MembersAfter, channel).user_id
        found = await self._durable.members(channel, after, limit + 1)
        rows = [MemberView(member.user_id, member.joined_seq, member.joined_at) for member in found[:limit]]
        more = self._cursors.encode(MembersAfter(rows[-1].user_id), channel) if len(found) > limit else None
        return MembersPage(rows, more)

    def _users(self, users: Sequence[str | int], field: str) -> tuple[str, ...]:
        check_size(users, self._settings.max_batch, field)
        return tuple(dict.fromkeys(check_user_id(user, f"{field}[{i}]") for i, user in enumerate(users)))


def _view(channel: Channel) -> ChannelView:
    return convert(channel, ChannelView, from_attributes=True)


def _channel(effect: Effect | None) -> Channel:
    channel = done(effect).channel
    assert channel is not None
    return channel
