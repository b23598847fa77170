"""What each route does. The first line of a docstring names it in the documentation, the rest explains it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from readstate import api
from readstate.domain.errors import of_code
from readstate.domain.rules import check_size
from readstate.gateway.asgi import Answer, Stream, content_type
from readstate.gateway.auth import access

from . import answers
from .calls import LINES, Call
from .health import exposition
from .problems import readiness

# ---------------------------------------------------------------- channels


async def put_channel(call: Call) -> api.ChannelView:
    """Create or update a channel.

    A new channel needs a `type`. What is left out stays as it is; `members` adds, never removes.
    An archived channel takes no messages and leaves the totals. A direct channel has two members at most.
    """
    return await call.rs.channels.put(call.channel, call.body)


async def get_channel(call: Call) -> api.ChannelView:
    """A channel."""
    return await call.rs.channels.get(call.channel)


async def delete_channel(call: Call) -> answers.DeletedChannel:
    """Delete a channel and all that hangs on it."""
    await call.rs.channels.delete(call.channel)
    return answers.DeletedChannel(call.channel)


async def change_members(call: Call) -> api.MembersChanged:
    """Add and remove members.

    `history` says what a new member finds: `"read"` (everything is read), `"unread"`, or a number n
    (the last n messages are unread). Rejoining never makes unread what was read. A direct channel has two
    members at most: a third is refused, unless another one is removed in the same request.
    """
    return await call.rs.channels.change_members(call.channel, call.body)


async def get_members(call: Call) -> api.MembersPage:
    """The members of a channel, by id."""
    return await call.rs.channels.members(call.channel, **call.query)


# ---------------------------------------------------------------- messages


async def post_messages(call: Call) -> answers.SendResults:
    """Send one message, or several.

    A message that is sent alone and refused is an error. Of several, each has its result: one that
    can't be done has `status: "rejected"` with `code` and `detail`, and the others are done. A message
    whose id the channel already has is a `duplicate` and changes nothing, so sending again is safe.
    A user token sends as its own user; `outside` and `backfill` are for service keys.

    In the cluster profile a message is answered when it is safe, and gets its `seq` milliseconds later: the header
    `Prefer: wait` waits for that, 5 seconds at most.
    """
    if isinstance(call.body, api.NewMessage):
        (result,) = await _send(call, [call.body])
        if result.status == "rejected":
            raise of_code(result.code or "", result.detail, result.field)
        return answers.SendResults([result])
    return answers.SendResults(await _send(call, call.body.messages))


async def _send(call: Call, messages: list[api.NewMessage]) -> list[api.SendResult]:
    check_size(messages, call.rs.settings.max_batch, "messages")
    if call.own is None:
        return await call.rs.messages.send(messages, call.wait)
    results = [await access.refusal(call.rs, call.own, message) for message in messages]
    allowed = [message for message, refused in zip(messages, results, strict=True) if refused is None]
    sent = iter(await call.rs.messages.send(allowed, call.wait) if allowed else ())
    return [refused or next(sent) for refused in results]


async def patch_message(call: Call) -> api.MessageView:
    """Edit a message's text or mentions.

    Counts of mentions follow at once. A user token edits its own user's messages only.
    """
    await access.require_authorship(call.rs, call.own, call.channel, call.message)
    return await call.rs.messages.edit(call.channel, call.message, call.body)


async def delete_message(call: Call) -> answers.DeletedMessage:
    """Delete a message.

    It counts nowhere from then on, and its seq is not given again. Deleting twice is as good as once.
    """
    await access.require_authorship(call.rs, call.own, call.channel, call.message)
    await call.rs.messages.delete(call.channel, call.message)
    return answers.DeletedMessage(call.message, call.channel)


# ---------------------------------------------------------------- reading


async def mark_read(call: Call) -> api.ReadResult:
    """Mark read: everything, up to a place, or exactly these messages.

    With an empty body everything is read; else give one of `up_to`, `up_to_seq`, `up_to_time` and
    `messages`. The pointer never moves back, so repeating is safe. With `epoch`, the one that the
    client saw last, a read that comes after a mark-unread changes nothing.
    """
    return await call.rs.reads.mark_read(call.user, call.channel, call.body)


async def mark_unread(call: Call) -> api.ReadResult:
    """Mark unread from a message on.

    That message and every later one by somebody else is unread again, as a new epoch.
    """
    return await call.rs.reads.mark_unread(call.user, call.channel, call.body)


async def mark_many(call: Call) -> answers.ReadOutcomes:
    """Mark read for any users at once.

    Each read has its outcome; one that can't be done does not stop the others.
    """
    return answers.ReadOutcomes(await call.rs.reads.mark_many(call.body.reads))


async def mark_all(call: Call) -> api.AllRead:
    """Mark read in all channels of a user, or in a list of them.

    Give `"all": true`, or `items`. The answer's `undo` takes it back for 10 minutes.
    """
    return await call.rs.reads.mark_all(call.user, call.body)


async def undo(call: Call) -> api.Undone:
    """Take a mark-all-read back.

    Every channel has its earlier state again, except where the user has moved the pointer since.
    """
    return await call.rs.reads.undo(call.user, call.body.undo)


# ---------------------------------------------------------------- unread


async def get_unread(call: Call) -> api.Unread:
    """What is unread in one channel.

    The count, its label, mentions, the first unread message (where the red line goes) and the pointer.
    """
    return await call.rs.unread.of_channel(call.user, call.channel)


async def sync(call: Call) -> api.Sync:
    """What is unread in all of a user's channels, or what has changed there.

    For a login: unread channels first, then by latest activity. Keep `sync`, and give it as `since`
    the next time: then the answer has every channel that changed meanwhile, also those that fell
    to 0, and in `removed` those that were left or deleted.
    """
    wanted = call.query.get("channels", ())
    check_size(wanted, call.rs.settings.max_batch, "channels")
    await access.require_membership(call.rs, call.own, wanted)
    return await call.rs.unread.sync(call.user, **call.query)


async def unread_messages(call: Call) -> api.UnreadMessages:
    """The unread messages themselves, across channels or in one."""
    if (channel := call.query.get("channel")) is not None:
        await access.require_membership(call.rs, call.own, (channel,))
    return await call.rs.unread.messages(call.user, **call.query)


async def totals(call: Call) -> answers.TotalsByUser:
    """Totals of many users, for push notifications."""
    return answers.TotalsByUser(await call.rs.unread.totals([str(user) for user in call.body.users]))


# ---------------------------------------------------------------- inbox, badge, threads


async def inbox(call: Call) -> api.Inbox:
    """Conversations by latest activity, each with its last message and counts.

    Pinned ones come first in every order; archived ones are left out until somebody else writes.
    While messages arrive, paging by `cursor` neither repeats nor skips a conversation that did not move.
    """
    return await call.rs.inbox.page(call.user, **call.query)


async def get_badge(call: Call) -> api.Badge:
    """How many different people wrote while the user was away."""
    return await call.rs.badge.get(call.user)


async def tap_badge(call: Call) -> api.Tap:
    """Show what the badge counted, by sender, and set it to 0.

    Nothing is read by it. Tapping twice is fine: the second tap finds nothing new. `senders` counts everyone;
    messages are shown of the channels that the user is in now.
    With the `cursor` of an answer, more of what that tap showed; this taps nothing.
    """
    return await call.rs.badge.tap(call.user, call.body.cursor)


async def threads(call: Call) -> api.Threads:
    """The threads that a user follows, the latest activity first."""
    if (channel := call.query.get("channel")) is not None:
        await access.require_membership(call.rs, call.own, (channel,))
    return await call.rs.threads.panel(call.user, **call.query)


async def follow_thread(call: Call) -> answers.Following:
    """Follow a thread.

    Everything in it is read then. The author of its root, whoever replies and whoever is mentioned
    follow by themselves.
    """
    await call.rs.threads.follow(call.user, call.channel, call.thread, on=True)
    return answers.Following(call.thread, call.channel, following=True)


async def unfollow_thread(call: Call) -> answers.Following:
    """Stop following a thread."""
    await call.rs.threads.follow(call.user, call.channel, call.thread, on=False)
    return answers.Following(call.thread, call.channel, following=False)


async def read_thread(call: Call) -> api.ReadResult:
    """Mark a followed thread read: everything, or up to a reply."""
    return await call.rs.threads.read(call.user, call.channel, call.thread, call.body)


# ---------------------------------------------------------------- receipts, presence, preferences


async def seen(call: Call) -> api.Seen:
    """Who has seen a message.

    Out of the members other than its sender. Readers who keep their receipts private are in neither
    `count` nor `users`; in large channels `users` is null.
    """
    return await call.rs.receipts.seen(call.channel, call.message)


async def receipts(call: Call) -> api.Receipts:
    """How far the members have read, for a whole screen of messages."""
    return await call.rs.receipts.of_channel(call.channel)


async def get_presence(call: Call) -> api.PresenceView:
    """Whether a user is online, and when it last was."""
    return await call.rs.presence.get(call.user)


async def put_presence(call: Call) -> api.PresenceView:
    """Report a device of a user, for products that have connections of their own.

    Report it again before `ttl` seconds have passed, or it is gone.
    """
    return await call.rs.presence.put(call.user, call.body)


async def get_preferences(call: Call) -> api.PreferencesView:
    """What a user wants of a channel."""
    return await call.rs.preferences.get(call.user, call.channel)


async def put_preferences(call: Call) -> api.PreferencesView:
    """Change what a user wants of a channel: mute, count, receipts, pin, archive."""
    return await call.rs.preferences.put(call.user, call.channel, call.body)


async def get_user_preferences(call: Call) -> api.UserPreferencesView:
    """What a user wants of all channels."""
    return await call.rs.preferences.get_user(call.user)


async def put_user_preferences(call: Call) -> api.UserPreferencesView:
    """Change what a user wants of all channels."""
    return await call.rs.preferences.put_user(call.user, call.body)


# ---------------------------------------------------------------- moving in and out


async def export(call: Call) -> Stream:
    """Everything, as JSON Lines.

    Channels, messages, members, follows and users, one record on each line: a picture of one moment. An
    answer that breaks off is not complete.
    """
    chunks = call.rs.transfer.export()
    first = await anext(chunks, b"")  # a failure before anything is sent is an error like any other
    return Stream(200, [content_type(LINES)], _after(first, chunks))


async def _after(first: bytes, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        yield first
        async for chunk in chunks:
            yield chunk


async def import_lines(call: Call) -> api.ImportReport:
    """Take in records, as an export has them.

    Send a large file in pieces that end at line ends, each with the number of its `first_line`; go on from
    `next_line`, as one call takes 10,000 lines at most. A record that can't be taken is named by its line
    and reason, and the others are taken; with `stop` the first such line ends it. Importing the same again
    changes nothing.
    """
    return await call.rs.transfer.import_lines(call.body, **call.query)


async def erase_user(call: Call) -> api.Erased:
    """Erase a user: read state, receipts, badge, follows, preferences and memberships.

    Messages that the user has sent stay: they belong to their channels. Erasing nobody is no error.
    """
    return await call.rs.transfer.erase_user(call.user)


# ---------------------------------------------------------------- running it


async def explain(call: Call) -> api.Explanation:
    """Why a count is what it is, with the same count from the durable store beside it."""
    return await call.rs.explain.explain(call.user, call.channel)


async def recount(call: Call) -> api.Recount:
    """Load a count again from the durable store.

    For repairs, by service keys: it makes the service forget what it holds of the channel.
    """
    return await call.rs.explain.recount(call.user, call.channel)


async def healthz(_: Call) -> answers.Health:
    """The process answers; nothing more."""
    return answers.Health()


async def readyz(call: Call) -> answers.Readiness:
    """Whether everything that it needs works."""
    return readiness(await call.service.ready())


async def metrics(_: Call) -> Answer:
    """Figures for Prometheus, at most a second old."""
    return await exposition()
