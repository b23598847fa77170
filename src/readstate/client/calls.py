"""The calls of the HTTP API, with its own names."""
# ruff: noqa: A002 - `type`, `id` and `filter` are such names

import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, Literal

from msgspec import UNSET, UnsetType, structs

from readstate import api
from readstate.domain.ids import ulid
from readstate.domain.model import ChannelType, CountPreference, History, ReceiptsPreference

from .calling import JSON_LINES, Caller, path


class Client(Caller):
    """Every call of the service. Times are ms since 1970, or RFC 3339; ids are texts; `me` is the token's user."""

    # ------------------------------------------------------------ channels and members

    async def put_channel(
        self,
        channel: str,
        *,
        type: ChannelType | UnsetType = UNSET,
        name: str | None | UnsetType = UNSET,
        avatar: str | None | UnsetType = UNSET,
        archived: bool | UnsetType = UNSET,
        members: Iterable[str] = (),
    ) -> api.ChannelView:
        """Create a channel (`type` is needed then) or change one; `members` adds, and what is left out stays."""
        body = api.PutChannel(type=type, name=name, avatar=avatar, archived=archived, members=tuple(members))
        return await self._call("PUT", path("channels", channel), api.ChannelView, body)

    async def get_channel(self, channel: str) -> api.ChannelView:
        """A channel with its latest message."""
        return await self._call("GET", path("channels", channel), api.ChannelView)

    async def delete_channel(self, channel: str) -> None:
        """Delete a channel and all that hangs on it."""
        await self._delete(path("channels", channel))

    async def change_members(
        self, channel: str, *, add: Iterable[str] = (), remove: Iterable[str] = (), history: History = "read"
    ) -> api.MembersChanged:
        """Add and remove members; `history` is what new ones find: "read", "unread", or how many unread."""
        body = api.ChangeMembers(add=tuple(add), remove=tuple(remove), history=history)
        return await self._call("POST", path("channels", channel, "members"), api.MembersChanged, body)

    async def members(self, channel: str, *, limit: int | None = None, cursor: str | None = None) -> api.MembersPage:
        """A page of a channel's members, by id."""
        query = {"limit": limit, "cursor": cursor}
        return await self._call("GET", path("channels", channel, "members"), api.MembersPage, query=query)

    # ------------------------------------------------------------ messages

    async def send(
        self,
        channel_id: str,
        sender_id: str,
        *,
        id: str | None = None,
        at: api.Time | None = None,
        text: str | None = None,
        preview: str | None = None,
        thread_id: str | None = None,
        also_to_channel: bool = False,
        mentions: Iterable[str] = (),
        silent: bool = False,
        backfill: bool = False,
        outside: bool = False,
        wait: bool = False,
    ) -> api.SendResult:
        """Send one message. Without `id` it gets one here, so that trying again cannot send it twice.

        `wait`: in the cluster profile, answer when it has its place (`seq`), 5 seconds later at most.
        """
        message = api.NewMessage(
            channel_id=channel_id,
            sender_id=sender_id,
            id=id,
            at=at,
            text=text,
            preview=preview,
            thread_id=thread_id,
            also_to_channel=also_to_channel,
            mentions=tuple(mentions),
            silent=silent,
            backfill=backfill,
            outside=outside,
        )
        answer = await self._call(
            "POST", path("messages"), api.SendResults, _with_id(message), repeatable=True, wait=wait
        )
        return answer.results[0]

    async def send_many(self, messages: Iterable[api.NewMessage], *, wait: bool = False) -> list[api.SendResult]:
        """Send several messages at once. Each has its result: one that is rejected does not stop the others."""
        body = {"messages": [_with_id(message) for message in messages]}
        return (await self._call("POST", path("messages"), api.SendResults, body, repeatable=True, wait=wait)).results

    async def edit_message(
        self,
        channel: str,
        message: str,
        *,
        text: str | None | UnsetType = UNSET,
        mentions: Iterable[str] | UnsetType = UNSET,
    ) -> api.MessageView:
        """Change a message's text or mentions; what is left out stays."""
        given = UNSET if isinstance(mentions, UnsetType) else tuple(mentions)
        body = api.MessageEdit(text=text, mentions=given)
        return await self._call("PATCH", path("channels", channel, "messages", message), api.MessageView, body)

    async def delete_message(self, channel: str, message: str) -> None:
        """Delete a message: it counts nowhere any more."""
        await self._delete(path("channels", channel, "messages", message))

    async def seen(self, channel: str, message: str) -> api.Seen:
        """Who has seen a message."""
        return await self._call("GET", path("channels", channel, "messages", message, "seen"), api.Seen)

    async def receipts(self, channel: str) -> api.Receipts:
        """How far the members of a channel have read."""
        return await self._call("GET", path("channels", channel, "receipts"), api.Receipts)

    # ------------------------------------------------------------ reading

    async def read(
        self,
        user: str,
        channel: str,
        *,
        up_to: str | None = None,
        up_to_seq: int | None = None,
        up_to_time: api.Time | None = None,
        messages: Iterable[str] | None = None,
        epoch: int | None = None,
    ) -> api.ReadResult:
        """Mark read: everything, up to a message, a seq or a time, or exactly these messages.

        With the `epoch` that the user last saw, a late read changes nothing after a mark-unread.
        """
        body = api.ReadTarget(
            up_to=up_to,
            up_to_seq=up_to_seq,
            up_to_time=up_to_time,
            messages=None if messages is None else tuple(messages),
            epoch=epoch,
        )
        return await self._call("POST", _there(user, channel, "read"), api.ReadResult, body, repeatable=True)

    async def mark_unread(self, user: str, channel: str, from_: str, *, epoch: int | None = None) -> api.ReadResult:
        """Make a message and every later one by somebody else unread."""
        body = api.MarkUnread(from_=from_, epoch=epoch)
        # Without an epoch a second try would undo what the user has read since the first one.
        safe = epoch is not None
        return await self._call("POST", _there(user, channel, "unread"), api.ReadResult, body, repeatable=safe)

    async def read_many(self, reads: Iterable[api.UserRead]) -> list[api.ReadOutcome]:
        """Mark read for any users at once (service keys). Each read has its result."""
        return (
            await self._call("POST", path("reads"), api.ReadOutcomes, {"reads": list(reads)}, repeatable=True)
        ).results

    async def read_all(
        self, user: str, *, up_to_time: api.Time | None = None, items: Iterable[api.ChannelRead] | None = None
    ) -> api.AllRead:
        """Mark read in all channels, or as `items` say; `undo` of the answer takes it back."""
        listed = None if items is None else tuple(items)
        body = api.ReadAll(all=listed is None, up_to_time=up_to_time, items=listed)
        return await self._call("POST", path("users", user, "read"), api.AllRead, body)

    async def undo(self, user: str, undo: str) -> api.Undone:
        """Take a mark-all-read back."""
        return await self._call("POST", path("users", user, "read", "undo"), api.Undone, {"undo": undo})

    # ------------------------------------------------------------ what is unread

    async def unread(self, user: str, channel: str) -> api.Unread:
        """What is unread in one channel."""
        return await self._call("GET", _there(user, channel, "unread"), api.Unread)

    async def sync(
        self,
        user: str,
        *,
        channels: Iterable[str] | None = None,
        only_unread: bool | None = None,
        since: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> api.Sync:
        """One page of what is unread in all channels, or of what changed `since` the `sync` of an earlier answer."""
        listed = _listed(channels)
        query = {"channels": listed, "only_unread": only_unread, "since": since, "limit": limit, "cursor": cursor}
        return await self._call("GET", path("users", user, "unread"), api.Sync, query=query)

    async def sync_pages(
        self,
        user: str,
        *,
        channels: Iterable[str] | None = None,
        only_unread: bool | None = None,
        since: str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[api.Sync, None]:
        """All pages of a sync, one after the other."""
        listed = None if channels is None else tuple(channels)
        cursor: str | None = None
        while True:
            page = await self.sync(
                user, channels=listed, only_unread=only_unread, since=since, limit=limit, cursor=cursor
            )
            yield page
            if (cursor := page.cursor) is None:
                return

    async def unread_messages(
        self,
        user: str,
        *,
        channel: str | None = None,
        order: Literal["newest", "oldest", "channel"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> api.UnreadMessages:
        """A page of the unread messages themselves, across channels or of one."""
        query = {"channel": channel, "order": order, "limit": limit, "cursor": cursor}
        return await self._call("GET", path("users", user, "unread", "messages"), api.UnreadMessages, query=query)

    async def totals(self, users: Iterable[str]) -> dict[str, api.UserTotals]:
        """Totals of many users, for push notifications (service keys)."""
        body = {"users": list(users)}
        return (await self._call("POST", path("unread", "batch"), api.TotalsByUser, body, repeatable=True)).users

    async def explain(self, user: str, channel: str, *, keys: bool | None = None) -> api.Explanation:
        """Why a count is what it is; with `keys`, also what the hot store has of it."""
        return await self._call("GET", _there(user, channel, "explain"), api.Explanation, query={"keys": keys})

    async def recount(self, user: str, channel: str) -> api.Recount:
        """Count again from the durable store. Needs a service key."""
        return await self._call("POST", _there(user, channel, "recount"), api.Recount, repeatable=True)

    # ------------------------------------------------------------ inbox, badge, threads

    async def inbox(
        self,
        user: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        order: Literal["recent", "unread_first"] | None = None,
        filter: Literal["all", "unread", "archived"] | None = None,
    ) -> api.Inbox:
        """A page of a user's conversations by latest activity, pinned ones first."""
        query = {"limit": limit, "cursor": cursor, "order": order, "filter": filter}
        return await self._call("GET", path("users", user, "inbox"), api.Inbox, query=query)

    async def badge(self, user: str) -> api.Badge:
        """How many different people wrote while the user was away."""
        return await self._call("GET", path("users", user, "badge"), api.Badge)

    async def tap(self, user: str, *, cursor: str | None = None) -> api.Tap:
        """What those people wrote; the badge is 0 then. It is not tried again once it may have been done.

        With the cursor of an answer: more of what that tap showed, which taps nothing.
        """
        where = path("users", user, "badge", "tap")
        if cursor is None:
            return await self._call("POST", where, api.Tap)
        return await self._call("POST", where, api.Tap, {"cursor": cursor}, repeatable=True)

    async def threads(
        self,
        user: str,
        *,
        filter: Literal["all", "unread"] | None = None,
        channel: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> api.Threads:
        """A page of the threads that a user follows, by activity."""
        query = {"filter": filter, "channel": channel, "limit": limit, "cursor": cursor}
        return await self._call("GET", path("users", user, "threads"), api.Threads, query=query)

    async def follow(self, user: str, channel: str, thread: str) -> None:
        """Follow a thread; everything in it is read so far."""
        await self._call("PUT", _there(user, channel, "threads", thread, "follow"), dict[str, Any])

    async def unfollow(self, user: str, channel: str, thread: str) -> None:
        """Follow a thread no longer."""
        await self._delete(_there(user, channel, "threads", thread, "follow"))

    async def read_thread(self, user: str, channel: str, thread: str, *, up_to: str | None = None) -> api.ReadResult:
        """Mark a followed thread read, all of it or up to a reply."""
        place = _there(user, channel, "threads", thread, "read")
        return await self._call("POST", place, api.ReadResult, api.ThreadRead(up_to=up_to), repeatable=True)

    # ------------------------------------------------------------ preferences, presence

    async def get_preferences(self, user: str, channel: str) -> api.PreferencesView:
        """What a user wants of one channel."""
        return await self._call("GET", _there(user, channel, "preferences"), api.PreferencesView)

    async def put_preferences(
        self,
        user: str,
        channel: str,
        *,
        muted: bool | api.Time | UnsetType = UNSET,
        count: CountPreference | UnsetType = UNSET,
        receipts: ReceiptsPreference | UnsetType = UNSET,
        pinned: bool | UnsetType = UNSET,
        archived: bool | UnsetType = UNSET,
    ) -> api.PreferencesView:
        """Change what a user wants of one channel; `muted` may be the time when the mute ends."""
        body = api.PutPreferences(muted=muted, count=count, receipts=receipts, pinned=pinned, archived=archived)
        return await self._call("PUT", _there(user, channel, "preferences"), api.PreferencesView, body)

    async def get_user_preferences(self, user: str) -> api.UserPreferencesView:
        """What a user wants of all channels."""
        return await self._call("GET", path("users", user, "preferences"), api.UserPreferencesView)

    async def put_user_preferences(
        self, user: str, *, receipts: ReceiptsPreference | UnsetType = UNSET
    ) -> api.UserPreferencesView:
        """Change what a user wants of all channels."""
        body = api.PutUserPreferences(receipts=receipts)
        return await self._call("PUT", path("users", user, "preferences"), api.UserPreferencesView, body)

    async def presence(self, user: str) -> api.PresenceView:
        """Whether a user is online, and since when not."""
        return await self._call("GET", path("users", user, "presence"), api.PresenceView)

    async def put_presence(
        self, user: str, *, device: str, online: bool, focus: str | None = None, ttl: int = 60
    ) -> api.PresenceView:
        """Report a device of a user (service keys); it is gone after `ttl` seconds unless reported again."""
        body = api.PutPresence(device=device, online=online, focus=focus, ttl=ttl)
        return await self._call("PUT", path("users", user, "presence"), api.PresenceView, body)

    # ------------------------------------------------------------ moving in and out, running it

    def export(self) -> AsyncGenerator[bytes, None]:
        """Everything as JSON Lines, in pieces that end anywhere (service keys)."""
        return self._stream(path("export"))

    async def import_lines(self, data: bytes, *, first_line: int = 1, stop: bool = False) -> api.ImportReport:
        """Import whole lines of an export (service keys); the answer names what is refused by line and reason.

        `first_line` is the number of the first line of `data` in its file; `stop` ends at the first refusal.
        """
        query = {"first_line": first_line, "stop": stop}
        return await self._call(
            "POST", path("import"), api.ImportReport, data, query=query, repeatable=True, content_type=JSON_LINES
        )

    async def erase_user(self, user: str) -> api.Erased:
        """Erase every trace of a user's read state (service keys); returns how much it was."""
        return await self._call("DELETE", path("users", user), api.Erased)

    async def ready(self) -> dict[str, Any]:
        """What the service says of its dependencies; raises Unavailable when one of them is down."""
        return await self._call("GET", "/readyz", dict[str, Any])


def _there(user: str, channel: str, *what: str) -> str:
    return path("users", user, "channels", channel, *what)


def _with_id(message: api.NewMessage) -> api.NewMessage:
    if message.id is not None:
        return message
    return structs.replace(message, id=f"msg_{ulid(int(time.time() * 1000))}")


def _listed(ids: Iterable[str] | None) -> Sequence[str] | None:
    """Ids as a query takes them: one alone would be split at its commas, so it is said twice."""
    listed = None if ids is None else list(ids)
    return listed * 2 if listed is not None and len(listed) == 1 else listed
