"""Messages: send, edit, delete."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from readstate.api import MessageEdit, MessageView, NewMessage, SendResult
from readstate.domain.errors import (
    ChannelArchived,
    Invalid,
    MessageNotFound,
    ReadstateError,
    TooLarge,
    Unavailable,
)
from readstate.domain.events import DeleteEvent, EditEvent, MessageEvent
from readstate.domain.facts import Effect
from readstate.domain.folding.messages import root_error
from readstate.domain.ids import ulid
from readstate.domain.model import Message
from readstate.domain.rules import (
    check_id,
    check_mention,
    check_size,
    check_text,
    check_user_id,
    parse_time,
    preview_of,
)
from readstate.ports import DurableQueries, Log
from readstate.ports.consistency import Consistency
from readstate.settings import Settings
from readstate.telemetry import MESSAGES

from .acceptance import AcceptanceClock
from .effects import done
from .epochs import Epochs
from .loading import Loader
from .positions import Positions


def message_view(message: Message) -> MessageView:
    m = message
    return MessageView(
        m.id,
        m.channel_id,
        m.seq,
        m.sender_id,
        m.at,
        m.sent_at,
        m.text,
        m.preview,
        m.thread_id,
        m.thread_seq,
        m.mentions,
        m.silent,
        m.deleted,
    )


class Messages:
    """Checks requests and appends them to the channel's order."""

    def __init__(
        self,
        log: Log,
        loader: Loader,
        positions: Positions,
        epochs: Epochs,
        durable: DurableQueries,
        consistency: Consistency,
        acceptance: AcceptanceClock,
        settings: Settings,
    ) -> None:
        self._log = log
        self._loader = loader
        self._positions = positions
        self._epochs = epochs
        self._durable = durable
        self._consistency = consistency
        self._acceptance = acceptance
        self._settings = settings

    async def send(self, messages: Sequence[NewMessage], wait: bool = True) -> list[SendResult]:
        """Append messages in order. A rejected message does not affect the others.

        With `wait`, the call waits until the log is applied, so that the results have seqs.
        """
        check_size(messages, self._settings.max_batch, "messages")
        now = self._acceptance.now()
        roots = {(str(one.channel_id), str(one.id)) for one in messages}
        checked = [await self._check(message, now, roots) for message in messages]
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
            check_text(edit.text, "text", self._settings.max_text)
            text, preview = self._stored(edit.text, None)
        event = EditEvent(
            channel_id=channel,
            created_at=self._acceptance.now(),
            id=message_id,
            text=text,
            preview=preview,
            mentions=edit.mentions if isinstance(edit.mentions, UnsetType) else self._mentions(edit.mentions),
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
        self, message: NewMessage, now: int, beside: set[tuple[str, str]]
    ) -> MessageEvent | ReadstateError:
        try:
            return await self._consistency.before_append(
                await self._event(message, now), lambda event: self._check_root(event, beside)
            )
        except Unavailable:  # nothing is done yet: the caller can retry the whole request
            raise
        except ReadstateError as error:
            return error

    async def _event(self, message: NewMessage, now: int) -> MessageEvent:
        channel_id = check_id(message.channel_id, "channel_id")
        sender = check_user_id(message.sender_id, "sender_id")
        check_text(message.text, "text", self._settings.max_text)
        check_text(message.preview, "preview", self._settings.max_text)
        if message.also_to_channel and message.thread_id is None:
            raise Invalid("also_to_channel goes with thread_id", field="also_to_channel")
        sent_at = None if message.at is None else parse_time(message.at, "at")
        text, preview = self._stored(message.text, message.preview)
        event = MessageEvent(
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
            mentions=self._mentions(message.mentions),
            silent=message.silent,
            backfill=message.backfill,
        )
        channel = await self._loader.channel(channel_id)
        if channel.archived:
            raise ChannelArchived(f"channel {channel_id!r} is archived and takes no messages", field="channel_id")
        return event if message.outside else await self._epochs.of_sender(event)

    async def _check_root(self, event: MessageEvent, beside: set[tuple[str, str]]) -> MessageEvent:
        """Refuse a reply without a valid root now, not after it was accepted.

        `beside`: the messages of the same request.
        """
        if event.thread_id is None or (event.channel_id, event.thread_id) in beside:
            return event
        key = (event.channel_id, event.thread_id)
        error = root_error(event.thread_id, (await self._positions.messages([key])).get(key))
        if error is not None:
            raise error
        return event

    def _mentions(self, mentions: Sequence[str | int]) -> tuple[str, ...]:
        most = self._settings.max_mentions
        if len(mentions) > most:
            raise TooLarge(f"at most {most} mentions in one message", field="mentions")
        return tuple(dict.fromkeys(check_mention(user, f"mentions[{i}]") for i, user in enumerate(mentions)))

    def _stored(self, text: str | None, preview: str | None) -> tuple[str | None, str | None]:
        """Text and preview, as far as `store_text` keeps them."""
        if self._settings.store_text == "none":
            return None, None
        kept = preview_of(text, preview, self._settings.preview_length)
        return (text if self._settings.store_text == "full" else None), kept

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
