"""Folds changes of channels and of their members."""

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from readstate.domain.errors import ChannelNotFound
from readstate.domain.events import ChannelEvent, MembersEvent
from readstate.domain.facts import Effect
from readstate.domain.hot_updates import ChannelHotUpdate, FanOut, Joined, Left, Switched
from readstate.domain.model import START, ChangeNumber, Channel, LogPosition, Member, Mode, Pointer, Position
from readstate.domain.rules import advance, direct_error, pointer_at, skipped_by_join

from .state import Folding, gone


class ChannelFolding(Folding):
    def _members(self, event: MembersEvent, channel: Channel) -> Effect:
        name = channel.channel_id
        new = [user for user in dict.fromkeys(event.add) if not self._is_active(name, user)]
        left = tuple(user for user in event.remove if self._is_active(name, user))
        count = channel.member_count + len(new) - len(left)
        if not new and not left:
            return Effect(channel=self.facts.channels[channel.channel_id])
        if new and channel.type == "direct" and (error := direct_error(name, count, "add")):
            return Effect(error=error)
        joined = tuple(self._join(user, event, channel) for user in new)
        for user in left:
            self._set_member(replace(self.facts.members[channel.channel_id, user], active=False))
        outgrown = channel.mode is Mode.LEDGER and count > self.limit
        mode = Mode.TIMELINE if outgrown else channel.mode
        known = self.facts.audience.get(name, ())
        stayed = tuple(user for user in known if user not in left)
        members = (*stayed, *(user for user, _ in joined))
        before = channel.peers
        channel = replace(channel, member_count=count, mode=mode, peers=_peers(channel.type, members))
        self._set_channel(channel)
        effect = Effect(channel=channel, added=len(joined), removed=len(left))
        effect.channel_updates.append(ChannelHotUpdate(channel, channel.change))
        if joined:
            effect.user_updates.append(
                Joined(
                    name,
                    channel.change,
                    mode,
                    channel.last_seq,
                    channel.latest_at,
                    channel.archived,
                    joined,
                    self._reach(event, channel),
                )
            )
        if left:
            effect.user_updates.append(Left(channel.channel_id, channel.change, left))
        if stayed and outgrown:
            effect.user_updates.append(Switched(channel.channel_id, channel.change, stayed))
        elif stayed and channel.peers != before:  # the members who stay have another peer, or none
            fan_out = FanOut(name, channel.change, stayed, latest_at=channel.latest_at, archived=channel.archived)
            effect.user_updates.append(fan_out)
        return effect

    def _join(self, user: str, event: MembersEvent, channel: Channel) -> tuple[str, Pointer]:
        """Make the user a member and move the pointer forward as `history` says, never back.

        The event's epoch for the user may not be stored yet; the pointer merges with it later.
        """
        key = (channel.channel_id, user)
        pointer = self.facts.pointers.get(key) or Pointer()
        if (epoch := event.epochs.get(user, 0)) > pointer.epoch:
            pointer = Pointer(epoch)
        target = self._reach(event, channel)
        skipped: tuple[tuple[int, int], ...] = ()
        if target.seq > pointer.seq:
            skipped = skipped_by_join(pointer.state, target.seq)
            pointer = pointer_at(advance(pointer.state, target.seq), target, event.created_at)
            self.changes.pointers[key] = pointer
        own = advance(pointer.state, pointer.seq, self.facts.own_seqs.get(key, ()))
        if own != pointer.state:
            pointer = self.changes.pointers[key] = replace(pointer, apart=own.apart)
        known = self.facts.members.get(key)
        member = Member(
            channel_id=channel.channel_id,
            user_id=user,
            joined_seq=channel.last_seq,
            joined_at=event.created_at,
            skipped=(known.skipped if known else ()) + skipped,
            joined_position=channel.position,
        )
        self._set_member(member)
        return user, pointer

    def _reach(self, event: MembersEvent, channel: Channel) -> Position:
        """The position up to which the join reads."""
        if event.history in {"read", 0}:
            return channel.end
        if isinstance(event.history, int):
            return self.facts.before_last.get((channel.channel_id, event.history), START)
        return START

    def _put_channel(self, event: ChannelEvent, known: Channel | None, position: LogPosition) -> Effect:
        base = Channel(event.channel_id)
        if known is not None and known.deleted:
            base = replace(base, last_seq=known.last_seq, last_at=known.last_at, change=known.change)
        elif known is not None:
            base = known
        channel = replace(
            base,
            change=base.change + 1,
            position=position,
            type=base.type if event.type is UNSET else event.type,
            name=base.name if event.name is UNSET else event.name,
            avatar=base.avatar if event.avatar is UNSET else event.avatar,
            archived=base.archived if event.archived is UNSET else event.archived,
        )
        if channel.type == "direct" != base.type:
            error = direct_error(channel.channel_id, channel.member_count, "type")
            if error is not None:
                return Effect(error=error)
        users = self.facts.audience.get(channel.channel_id, ())
        channel = replace(channel, peers=_peers(channel.type, users))
        self._set_channel(channel)
        effect = Effect(channel=channel, channel_updates=[ChannelHotUpdate(channel, channel.change)])
        if users:
            fan_out = FanOut(channel.channel_id, channel.change, users, latest_at=channel.latest_at)
            effect.user_updates.append(replace(fan_out, archived=channel.archived))
        return effect

    def _delete_channel(self, event: ChannelEvent, known: Channel | None, position: LogPosition) -> Effect:
        if known is None or known.deleted:
            return Effect(error=ChannelNotFound(f"there is no channel {event.channel_id!r}", field="channel_id"))
        channel = Channel(
            event.channel_id,
            deleted=True,
            last_seq=known.last_seq,
            last_at=known.last_at,
            change=ChangeNumber(known.change + 1),
            position=position,
        )
        self._set_channel(channel)
        self.changes.purged.add(event.channel_id)
        effect = Effect(channel=channel, channel_updates=[ChannelHotUpdate(channel, channel.change)])
        effect.user_updates += gone(self.facts.everyone.get(event.channel_id, ()), channel.change)
        return effect


def _peers(type_: str, members: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(members)) if type_ == "direct" and len(members) <= 2 else ()
