"""The HTTP API: every path, who may call it, what it takes, what may go wrong, and what it does.

The first line of a handler's docstring names the route in the documentation, the rest explains it.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from readstate import api
from readstate.domain import errors
from readstate.domain.rules import check_size
from readstate.gateway.asgi import Answer, Stream, content_type
from readstate.gateway.auth import access
from readstate.gateway.openapi import document as openapi

from . import answers, queries
from .calls import JSON, JSON_LINES, LINES, ONE_OR_MANY, Call, For, Group, Route, json_of
from .decoding import Nothing, Reads, TapBadge, Undo, Users
from .health import exposition
from .pages import docs_page
from .problems import readiness

_CHANNEL = "/v1/channels/{channel}"
_MESSAGE = _CHANNEL + "/messages/{message}"
_USER = "/v1/users/{user}"
_THERE = _USER + "/channels/{channel}"
_THREAD = _THERE + "/threads/{thread}"

_NO_CHANNEL = (errors.ChannelNotFound,)
_NO_MEMBER = (errors.ChannelNotFound, errors.NotAMember)
_NO_MESSAGE = (errors.ChannelNotFound, errors.MessageNotFound)
_NO_THREAD = (*_NO_MEMBER, errors.ThreadNotFound, errors.ReplyToReply)
_READS = (*_NO_MEMBER, errors.MessageNotFound, errors.MessageWithoutSeq)
_SENDS = (*_NO_MEMBER, errors.ThreadNotFound, errors.ReplyToReply, errors.ChannelArchived, errors.MessagesBehind)


# ---------------------------------------------------------------- channels

CHANNELS = Group("Channels", "Conversations, and who is in them.")


@CHANNELS.route("PUT", _CHANNEL, For.SERVICE, json_of(api.PutChannel), errors=(errors.NotYet, errors.DirectChannelFull))
async def put_channel(call: Call) -> api.ChannelView:
    """Create or update a channel.

    A new channel needs a `type`. What is left out stays as it is; `members` adds, never removes.
    An archived channel takes no messages and leaves the totals. A direct channel has two members at most.
    """
    return await call.rs.channels.put(call.channel, call.body)


@CHANNELS.route("GET", _CHANNEL, errors=_NO_CHANNEL, without_hot_store=True)
async def get_channel(call: Call) -> api.ChannelView:
    """A channel."""
    return await call.rs.channels.get(call.channel)


@CHANNELS.route("DELETE", _CHANNEL, For.SERVICE, errors=(errors.NotYet, *_NO_CHANNEL))
async def delete_channel(call: Call) -> answers.DeletedChannel:
    """Delete a channel and all that hangs on it."""
    await call.rs.channels.delete(call.channel)
    return answers.DeletedChannel(call.channel)


@CHANNELS.route(
    "POST",
    _CHANNEL + "/members",
    For.SERVICE,
    json_of(api.ChangeMembers),
    errors=(errors.NotYet, *_NO_CHANNEL, errors.DirectChannelFull),
)
async def change_members(call: Call) -> api.MembersChanged:
    """Add and remove members.

    `history` says what a new member finds: `"read"` (everything is read), `"unread"`, or a number n
    (the last n messages are unread). Rejoining never makes unread what was read. A direct channel has two
    members at most: a third is refused, unless another one is removed in the same request.
    """
    return await call.rs.channels.change_members(call.channel, call.body)


@CHANNELS.route("GET", _CHANNEL + "/members", query=queries.MEMBERS, errors=_NO_CHANNEL, without_hot_store=True)
async def get_members(call: Call) -> api.MembersPage:
    """The members of a channel, by id."""
    return await call.rs.channels.members(call.channel, **call.query)


# ---------------------------------------------------------------- messages

MESSAGES = Group("Messages", "What was said. Readstate gives every message its place (`seq`) and counts it.")


@MESSAGES.route("POST", "/v1/messages", body=ONE_OR_MANY, status=202, errors=_SENDS, without_hot_store=True)
async def post_messages(call: Call) -> api.SendResults:
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
            raise errors.of_code(result.code or "", result.detail, result.field)
        return api.SendResults([result])
    return api.SendResults(await _send(call, call.body.messages))


async def _send(call: Call, messages: list[api.NewMessage]) -> list[api.SendResult]:
    check_size(messages, call.rs.settings.max_batch, "messages")
    if call.own is None:
        return await call.rs.messages.send(messages, call.wait)
    results = [await access.refusal(call.rs, call.own, message) for message in messages]
    allowed = [message for message, refused in zip(messages, results, strict=True) if refused is None]
    sent = iter(await call.rs.messages.send(allowed, call.wait) if allowed else ())
    return [refused or next(sent) for refused in results]


@MESSAGES.route(
    "PATCH", _MESSAGE, body=json_of(api.MessageEdit), errors=(errors.NotYet, *_NO_MESSAGE, errors.MessageDeleted)
)
async def patch_message(call: Call) -> api.MessageView:
    """Edit a message's text or mentions.

    Counts of mentions follow at once. A user token edits its own user's messages only.
    """
    await access.require_authorship(call.rs, call.own, call.channel, call.message)
    return await call.rs.messages.edit(call.channel, call.message, call.body)


@MESSAGES.route("DELETE", _MESSAGE, errors=(errors.NotYet, *_NO_MESSAGE))
async def delete_message(call: Call) -> answers.DeletedMessage:
    """Delete a message.

    It counts nowhere from then on, and its seq is not given again. Deleting twice is as good as once.
    """
    await access.require_authorship(call.rs, call.own, call.channel, call.message)
    await call.rs.messages.delete(call.channel, call.message)
    return answers.DeletedMessage(call.message, call.channel)


# ---------------------------------------------------------------- reading

READING = Group("Reading", "Marking read and unread.")


@READING.route("POST", _THERE + "/read", body=json_of(api.ReadTarget), errors=_READS)
async def mark_read(call: Call) -> api.ReadResult:
    """Mark read: everything, up to a place, or exactly these messages.

    With an empty body everything is read; else give one of `up_to`, `up_to_seq`, `up_to_time` and
    `messages`. The pointer never moves back, so repeating is safe. With `epoch`, the one that the
    client saw last, a read that comes after a mark-unread changes nothing.
    """
    return await call.rs.reads.mark_read(call.user, call.channel, call.body)


@READING.route("POST", _THERE + "/unread", body=json_of(api.MarkUnread), errors=(*_READS, errors.MessageDeleted))
async def mark_unread(call: Call) -> api.ReadResult:
    """Mark unread from a message on.

    That message and every later one by somebody else is unread again, as a new epoch.
    """
    return await call.rs.reads.mark_unread(call.user, call.channel, call.body)


@READING.route("POST", "/v1/reads", For.SERVICE, json_of(Reads))
async def mark_many(call: Call) -> api.ReadOutcomes:
    """Mark read for any users at once.

    Each read has its outcome; one that can't be done does not stop the others.
    """
    return api.ReadOutcomes(await call.rs.reads.mark_many(call.body.reads))


@READING.route("POST", _USER + "/read", body=json_of(api.ReadAll), errors=_READS)
async def mark_all(call: Call) -> api.AllRead:
    """Mark read in all channels of a user, or in a list of them.

    Give `"all": true`, or `items`. The answer's `undo` takes it back for 10 minutes.
    """
    return await call.rs.reads.mark_all(call.user, call.body)


@READING.route("POST", _USER + "/read/undo", body=json_of(Undo), errors=(errors.UndoNotFound,))
async def undo(call: Call) -> api.Undone:
    """Take a mark-all-read back.

    Every channel has its earlier state again, except where the user has moved the pointer since.
    """
    return await call.rs.reads.undo(call.user, call.body.undo)


# ---------------------------------------------------------------- unread

UNREAD = Group("Unread", "What is unread, where, and since when. Every count says whether it is exact.")


@UNREAD.route("GET", _USER + "/unread", query=queries.SYNC, errors=_NO_MEMBER, without_hot_store=True)
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


@UNREAD.route("GET", _THERE + "/unread", errors=_NO_MEMBER, without_hot_store=True)
async def get_unread(call: Call) -> api.Unread:
    """What is unread in one channel.

    The count, its label, mentions, the first unread message (where the red line goes) and the pointer.
    """
    return await call.rs.unread.of_channel(call.user, call.channel)


@UNREAD.route("GET", _USER + "/unread/messages", query=queries.MESSAGES, errors=_NO_MEMBER, without_hot_store=True)
async def unread_messages(call: Call) -> api.UnreadMessages:
    """The unread messages themselves, across channels or in one."""
    if (channel := call.query.get("channel")) is not None:
        await access.require_membership(call.rs, call.own, (channel,))
    return await call.rs.unread.messages(call.user, **call.query)


@UNREAD.route("POST", "/v1/unread/batch", For.SERVICE, json_of(Users), without_hot_store=True)
async def totals(call: Call) -> api.TotalsByUser:
    """Totals of many users, for push notifications."""
    return api.TotalsByUser(await call.rs.unread.totals([str(user) for user in call.body.users]))


@UNREAD.route("GET", _THERE + "/explain", query=queries.EXPLAIN, errors=_NO_MEMBER)
async def explain(call: Call) -> api.Explanation:
    """Why a count is what it is, with the same count from the durable store beside it."""
    return await call.rs.explain.explain(call.user, call.channel, **call.query)


@UNREAD.route("POST", _THERE + "/recount", For.SERVICE, json_of(Nothing), errors=_NO_MEMBER)
async def recount(call: Call) -> api.Recount:
    """Load a count again from the durable store.

    For repairs, by service keys: it makes the service forget what it holds of the channel.
    """
    return await call.rs.explain.recount(call.user, call.channel)


# ---------------------------------------------------------------- inbox

INBOX = Group("Inbox", "The list of conversations.")


@INBOX.route("GET", _USER + "/inbox", query=queries.INBOX, without_hot_store=True)
async def inbox(call: Call) -> api.Inbox:
    """Conversations by latest activity, each with its last message and counts.

    Pinned ones come first in every order; archived ones are left out until somebody else writes.
    While messages arrive, paging by `cursor` neither repeats nor skips a conversation that did not move.
    """
    return await call.rs.inbox.page(call.user, **call.query)


# ---------------------------------------------------------------- badge

BADGE = Group("Badge", "How many different people wrote while no device of the user was connected.")


@BADGE.route("GET", _USER + "/badge", without_hot_store=True)
async def get_badge(call: Call) -> api.Badge:
    """How many different people wrote while the user was away."""
    return await call.rs.badge.get(call.user)


@BADGE.route("POST", _USER + "/badge/tap", body=json_of(TapBadge), errors=(errors.InvalidCursor,))
async def tap_badge(call: Call) -> api.Tap:
    """Show what the badge counted, by sender, and set it to 0.

    Nothing is read by it. Tapping twice is fine: the second tap finds nothing new. `senders` counts everyone;
    messages are shown of the channels that the user is in now.
    With the `cursor` of an answer, more of what that tap showed; this taps nothing.
    """
    return await call.rs.badge.tap(call.user, call.body.cursor)


# ---------------------------------------------------------------- threads

THREADS = Group("Threads", "Replies under a message. `{thread}` is the id of that message.")


@THREADS.route("GET", _USER + "/threads", query=queries.THREADS, errors=_NO_MEMBER, without_hot_store=True)
async def threads(call: Call) -> api.Threads:
    """The threads that a user follows, the latest activity first."""
    if (channel := call.query.get("channel")) is not None:
        await access.require_membership(call.rs, call.own, (channel,))
    return await call.rs.threads.panel(call.user, **call.query)


@THREADS.route("PUT", _THREAD + "/follow", body=json_of(Nothing), errors=(errors.NotYet, *_NO_THREAD))
async def follow_thread(call: Call) -> answers.Following:
    """Follow a thread.

    Everything in it is read then. The author of its root, whoever replies and whoever is mentioned
    follow by themselves.
    """
    await call.rs.threads.follow(call.user, call.channel, call.thread, on=True)
    return answers.Following(call.thread, call.channel, following=True)


@THREADS.route("DELETE", _THREAD + "/follow", errors=(errors.NotYet, *_NO_THREAD))
async def unfollow_thread(call: Call) -> answers.Following:
    """Stop following a thread."""
    await call.rs.threads.follow(call.user, call.channel, call.thread, on=False)
    return answers.Following(call.thread, call.channel, following=False)


@THREADS.route("POST", _THREAD + "/read", body=json_of(api.ThreadRead), errors=(*_NO_THREAD, errors.MessageNotFound))
async def read_thread(call: Call) -> api.ReadResult:
    """Mark a followed thread read: everything, or up to a reply."""
    return await call.rs.threads.read(call.user, call.channel, call.thread, call.body)


# ---------------------------------------------------------------- receipts

RECEIPTS = Group("Receipts", "Who has seen what, as far as they let it be known.")


@RECEIPTS.route(
    "GET",
    _MESSAGE + "/seen",
    errors=(*_NO_MESSAGE, errors.MessageDeleted, errors.MessageWithoutSeq),
    without_hot_store=True,
)
async def seen(call: Call) -> api.Seen:
    """Who has seen a message.

    Out of the members other than its sender. Readers who keep their receipts private are in neither
    `count` nor `users`; in large channels `users` is null.
    """
    return await call.rs.receipts.seen(call.channel, call.message)


@RECEIPTS.route("GET", _CHANNEL + "/receipts", errors=_NO_CHANNEL, without_hot_store=True)
async def receipts(call: Call) -> api.Receipts:
    """How far the members have read, for a whole screen of messages."""
    return await call.rs.receipts.of_channel(call.channel)


# ---------------------------------------------------------------- users

USERS = Group("Users", "Presence and preferences.")


@USERS.route("GET", _USER + "/presence")
async def get_presence(call: Call) -> api.PresenceView:
    """Whether a user is online, and when it last was."""
    return await call.rs.presence.get(call.user)


@USERS.route("PUT", _USER + "/presence", For.SERVICE, json_of(api.PutPresence), errors=_NO_MEMBER)
async def put_presence(call: Call) -> api.PresenceView:
    """Report a device of a user, for products that have connections of their own.

    Report it again before `ttl` seconds have passed, or it is gone.
    """
    return await call.rs.presence.put(call.user, call.body)


@USERS.route("GET", _USER + "/preferences")
async def get_user_preferences(call: Call) -> api.UserPreferencesView:
    """What a user wants of all channels."""
    return await call.rs.preferences.get_user(call.user)


@USERS.route("PUT", _USER + "/preferences", body=json_of(api.PutUserPreferences))
async def put_user_preferences(call: Call) -> api.UserPreferencesView:
    """Change what a user wants of all channels."""
    return await call.rs.preferences.put_user(call.user, call.body)


@USERS.route("GET", _THERE + "/preferences", errors=_NO_MEMBER)
async def get_preferences(call: Call) -> api.PreferencesView:
    """What a user wants of a channel."""
    return await call.rs.preferences.get(call.user, call.channel)


@USERS.route("PUT", _THERE + "/preferences", body=json_of(api.PutPreferences), errors=_NO_MEMBER)
async def put_preferences(call: Call) -> api.PreferencesView:
    """Change what a user wants of a channel: mute, count, receipts, pin, archive."""
    return await call.rs.preferences.put(call.user, call.channel, call.body)


# ---------------------------------------------------------------- moving

MOVING = Group("Moving", "Moving in, moving out, and erasing.")


@MOVING.route("GET", "/v1/export", For.SERVICE, media=LINES)
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


@MOVING.route("POST", "/v1/import", For.SERVICE, JSON_LINES, queries.IMPORT)
async def import_lines(call: Call) -> api.ImportReport:
    """Take in records, as an export has them.

    Send a large file in pieces that end at line ends, each with the number of its `first_line`; go on from
    `next_line`, as one call takes 10,000 lines at most. A record that can't be taken is named by its line
    and reason, and the others are taken; with `stop` the first such line ends it. Importing the same again
    changes nothing.
    """
    return await call.rs.transfer.import_lines(call.body, **call.query)


@MOVING.route("DELETE", _USER, For.SERVICE)
async def erase_user(call: Call) -> api.Erased:
    """Erase a user: read state, receipts, badge, follows, preferences and memberships.

    Messages that the user has sent stay: they belong to their channels. Erasing nobody is no error.
    """
    return await call.rs.transfer.erase_user(call.user)


# ---------------------------------------------------------------- operations

OPERATIONS = Group("Operations", "For those who run it.")


@OPERATIONS.route("GET", "/healthz", For.ANYONE)
async def healthz(_: Call) -> answers.Health:
    """The process answers; nothing more."""
    return answers.Health()


@OPERATIONS.route("GET", "/readyz", For.ANYONE, errors=(errors.Unavailable,))
async def readyz(call: Call) -> answers.Readiness:
    """Whether everything that it needs works."""
    return readiness(await call.service.ready())


@OPERATIONS.route("GET", "/metrics", For.ANYONE, media="text/plain")
async def metrics(_: Call) -> Answer:
    """Figures for Prometheus, at most a second old."""
    return await exposition()


@OPERATIONS.route("GET", "/openapi.json", For.ANYONE)
async def openapi_json(call: Call) -> Answer:
    """This API as an OpenAPI 3.1 document."""
    return Answer(200, [content_type(JSON)], openapi.encoded(GROUPS, call.rs.settings, call.root))


@OPERATIONS.route("GET", "/docs", For.ANYONE, media="text/html")
async def docs(_: Call) -> Answer:
    """This API as a page to read and to try."""
    return docs_page()


GROUPS = (CHANNELS, MESSAGES, READING, UNREAD, INBOX, BADGE, THREADS, RECEIPTS, USERS, MOVING, OPERATIONS)


def routes(*more: Route) -> list[Route]:
    """All routes of the API, and more; whatever answers GET answers HEAD."""
    listed = [route for group in GROUPS for route in group.routes] + list(more)
    return listed + [replace(route, method="HEAD") for route in listed if route.method == "GET"]
