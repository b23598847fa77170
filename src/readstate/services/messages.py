"""Messages: send, edit, delete."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import UNSET, UnsetType, convert

from readstate.api import MessageEdit, MessageView, NewMessage, SendResult
from readstate.domain.errors import ChannelArchived, ChannelNotFound, Invalid, MessageNotFound, ReadstateError
from readstate.domain.events import DeleteEvent, EditEvent, MessageEvent
from readstate.domain.facts import Effect
from readstate.domain.ids import ulid
from readstate.domain.model import Channel, Message
from readstate.domain.rules import MessageRules, check_id, check_size, check_user_id, parse_time
from readstate.ports import DurableQueries, Log, UserRoom
from readstate.telemetry import MESSAGES

from .acceptance import AcceptanceClock
from .effects import done, or_refusal
from .event_checks import EventChecks, Member
from .loading import Loader
from .positions import Positions


def message_view(message: Message) -> MessageView:
    return convert(message, MessageView, from_attributes=True)


@dataclass(eq=False, repr=False)
class Messages:
    """Checks requests and appends them to the channel's order."""

    _log: Log
    _loader: Loader
    _positions: Positions
    _checks: EventChecks
    _durable: DurableQueries
    _acceptance: AcceptanceClock
    _rules: MessageRules
    _max_batch: int

    async def send(self, messages: Sequence[NewMessage], wait: bool = True) -> list[SendResult]:
        """Append messages in order. A rejected message does not affect the others.

        With `wait`, the call waits until the log is applied, so that the results have seqs.
        """
        check_size(messages, self._max_batch, "messages")
        now = self._acceptance.now()
        roots = {(str(one.channel_id), str(one.id)) for one in messages}
        made = [self._event_or_refusal(message, now) for message in messages]
        names = list(dict.fromkeys(one.channel_id for one in made if isinstance(one, MessageEvent)))
        channels = dict(zip(names, await self._loader.channels(names), strict=True)) if names else {}
        senders = await self._checks.members(
            (one.sender_id, one.channel_id)
            for message, one in zip(messages, made, strict=True)
            if isinstance(one, MessageEvent) and not message.outside and channels[one.channel_id] is not None
        )
        checked = [
            await or_refusal(self._check(one, None if message.outside else senders, channels, roots))
            if isinstance(one, MessageEvent)
            else one
            for message, one in zip(messages, made, strict=True)
        ]
        events = [event for event in checked if isinstance(event, MessageEvent)]
        effects = iter(await self._log.channel_events(events, wait))
        results = []
        for given, event in zip(messages, checked, strict=True):
            if isinstance(event, MessageEvent):
                results.append(self._result(event, next(effects)))
            else:
                results.append(_rejected("" if given.id is None else str(given.id), event))
        for result in results:
            MESSAGES.labels(result.status).inc()
        return results

    async def get(self, channel: str, message_id: str) -> MessageView:
        """Return a message, even a deleted one."""
        check_id(channel, "channel")
        check_id(message_id, "id")
        message = (await self._durable.by_id([(channel, message_id)])).get((channel, message_id))
        if message is None or not message.sender_id:
            await self._loader.channel(channel)
            raise MessageNotFound(f"there is no message {message_id!r} in channel {channel!r}")
        return message_view(message)

    async def edit(self, channel: str, message_id: str, edit: MessageEdit) -> MessageView:
        check_id(channel, "channel")
        check_id(message_id, "id")
        await self._loader.channel(channel)
        if edit.text is UNSET and edit.mentions is UNSET:
            raise Invalid("give text or mentions", field="text")
        text: str | None | UnsetType = UNSET
        preview: str | None | UnsetType = UNSET
        if not isinstance(edit.text, UnsetType):
            self._rules.check_text(edit.text, "text")
            text, preview = self._rules.kept(edit.text, None)
        event = EditEvent(
            channel_id=channel,
            created_at=self._acceptance.now(),
            id=message_id,
            text=text,
            preview=preview,
            mentions=edit.mentions if isinstance(edit.mentions, UnsetType) else self._rules.mentions(edit.mentions),
        )
        effect = (await self._log.channel_events([event]))[0]
        return message_view(_message(effect))

    async def delete(self, channel: str, message_id: str) -> None:
        """Delete a message. An unknown id is remembered as deleted."""
        check_id(channel, "channel")
        check_id(message_id, "id")
        await self._loader.channel(channel)
        event = DeleteEvent(channel_id=channel, created_at=self._acceptance.now(), id=message_id)
        _message((await self._log.channel_events([event]))[0])

    # ------------------------------------------------------------ checks

    async def _check(
        self,
        event: MessageEvent,
        senders: Mapping[Member, UserRoom] | None,
        channels: Mapping[str, Channel | None],
        beside: set[tuple[str, str]],
    ) -> MessageEvent:
        """`senders`: those who are members; None: the sender need not be one."""
        channel = channels[event.channel_id]
        if channel is None:
            raise ChannelNotFound(f"there is no channel {event.channel_id!r}", field="channel_id")
        if channel.archived:
            raise ChannelArchived(f"channel {event.channel_id!r} is archived and takes no messages", field="channel_id")
        return await self._checks.root(event if senders is None else self._checks.sender(event, senders), beside)

    def _event_or_refusal(self, message: NewMessage, now: int) -> MessageEvent | ReadstateError:
        try:
            return self._event(message, now)
        except ReadstateError as error:
            return error

    def _event(self, message: NewMessage, now: int) -> MessageEvent:
        channel_id = check_id(message.channel_id, "channel_id")
        sender = check_user_id(message.sender_id, "sender_id")
        self._rules.check_text(message.text, "text")
        self._rules.check_text(message.preview, "preview")
        if message.also_to_channel and message.thread_id is None:
            raise Invalid("also_to_channel goes with thread_id", field="also_to_channel")
        sent_at = None if message.at is None else parse_time(message.at, "at")
        text, preview = self._rules.kept(message.text, message.preview)
        return MessageEvent(
            channel_id=channel_id,
            created_at=now,
            id=f"msg_{ulid(now)}" if message.id is None else check_id(message.id, "id"),
            sender_id=sender,
            at=now if sent_at is None else min(sent_at, now),
            sent_at=sent_at,
            text=text,
            preview=preview,
            thread_id=None if message.thread_id is None else check_id(message.thread_id, "thread_id"),
            also_to_channel=message.also_to_channel,
            mentions=self._rules.mentions(message.mentions),
            silent=message.silent,
            backfill=message.backfill,
        )

    def _result(self, event: MessageEvent, effect: Effect | None) -> SendResult:
        if effect is None:
            return SendResult(event.id, None, None, "accepted")
        if effect.error is not None:
            return _rejected(event.id, effect.error)
        message = _message(effect)
        if message.sender_id:
            self._positions.learn(message)
        return SendResult(message.id, message.seq, message.thread_seq, "duplicate" if effect.duplicate else "accepted")


def _message(effect: Effect | None) -> Message:
    message = done(effect).message
    assert message is not None
    return message


def _rejected(id_: str, error: ReadstateError) -> SendResult:
    return SendResult(id_, None, None, "rejected", error.code, error.detail, error.field)
