"""Channels and their members in SQL."""

from collections.abc import Mapping, Sequence

from readstate.domain.model import Channel, LogPosition, Member, Seq

from . import rows
from .session import SqlTopic, as_json


class SqlChannels(SqlTopic):
    async def load_channels(self, ids: Sequence[str]) -> Mapping[str, Channel]:
        found = await self._find(rows.channels, "channels", keys=as_json(ids))
        return {channel.channel_id: channel for channel in found}

    async def members(self, channel: str, after: str, limit: int) -> list[Member]:
        return await self._find(rows.members, "members_page", channel=channel, after=after, limit=limit)

    async def once_members(self, channel: str, users: Sequence[str]) -> list[str]:
        return await self._find(rows.names, "once_members", channel=channel, users=as_json(list(users)))

    async def joins(self, user: str, channels: Sequence[str]) -> dict[str, tuple[Seq, LogPosition]]:
        found = await self._find(rows.anything, "joins", user=user, keys=as_json(channels))
        return {channel: (seq, position) for channel, seq, position in found}
