"""What the documentation says of the API as a whole, and of names that mean the same everywhere."""

from typing import Any, NamedTuple

from readstate.domain.model import MAX_NUMBER

ABOUT = """Readstate answers, exactly and at once: what is unread, for whom, where, since when, who has seen what, \
and in which order the inbox stands.

**Who may call.** Send `Authorization: Bearer …` with a service key (a chat backend; it may do everything) or \
with a user token (a JWT; it acts as its own user, in channels that user is a member of). In a path, `me` is the \
user of the token. Of channels it is not in, a user token learns nothing: it gets 403 `forbidden` whether they exist \
or not, where a service key gets 404 `channel_not_found` or `not_a_member`.

**Ids and times.** Ids are 1 to 128 bytes of printable UTF-8; percent-encode them in paths. Times in answers are \
milliseconds since 1970. Order is told by `seq`, never by ids.

**Lists** are paged: give `cursor` of one page to get the next; a `cursor` of null is the end.

**Errors** are `application/problem+json`. `code` is for programs, `detail` for people, `field` names what is \
wrong, and `retry` says whether the same request may succeed later; 429 and 503 say when in `Retry-After`. A request \
that is refused has changed nothing. Unknown fields and parameters are refused."""

PATH = {
    "user": ("The id of a user, or `me` for the user of the token.", "bob"),
    "channel": ("The id of a channel.", "general"),
    "message": ("The id of a message.", "msg_42"),
    "thread": ("The id of a thread's root message.", "msg_42"),
}
"""What stands in paths: what it means, and an example."""

ID: dict[str, Any] = {
    "title": "Id",
    "description": "1 to 128 bytes of printable UTF-8. An integer stands for its decimal string.",
    "anyOf": [{"type": "string", "minLength": 1, "maxLength": 128}, {"type": "integer"}],
    "examples": ["general"],
}
TIME: dict[str, Any] = {
    "title": "Time",
    "description": "Milliseconds since 1970, or RFC 3339 with a zone.",
    "anyOf": [
        {"type": "string", "format": "date-time"},
        {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
    ],
    "examples": ["2026-01-31T09:30:00Z", 1769851800000],
}
TIMES = frozenset({"at", "sent_at", "up_to_time", "muted", "last_at", "read_at", "joined_at", "last_tap", "last_seen"})
"""Fields of requests that are times."""


class Word(NamedTuple):
    """What a field means, and the setting that limits its length."""

    about: str
    most: str | None = None


FIELDS = {
    "active": Word("False for one who has left."),
    "apart": Word("Seqs beyond the pointer that were read one by one."),
    "exported_at": Word("When it was exported, in ms since 1970."),
    "kind": Word("direct: two people at most; group: invited; channel: open."),
    "last_at": Word("The time of the newest message."),
    "last_id": Word("The newest message."),
    "last_seq": Word("The newest seq that was given."),
    "last_tap": Word("When the badge was last tapped."),
    "preferences": Word("What the member wants of the channel."),
    "skipped": Word("Ranges (epoch, after, up to) that joins alone marked as read: no receipts."),
    "version": Word("The version of the format."),
    "Line.type": Word("The kind of record."),
    "MessageLine.mentions": Word("Who is mentioned: user ids, `@channel`."),
    "add": Word("Users who become members.", "max_batch"),
    "added": Word("How many were not members before."),
    "after": Word("The count that the durable store gives, which holds now."),
    "after_pointer": Word("How many messages have a seq after the pointer."),
    "agrees": Word("Whether the hot state and the durable store count the same."),
    "all": Word("Read in all channels."),
    "also_to_channel": Word("A reply that takes a place in the channel as well as in its thread."),
    "answered_by": Word("Which store the count came from."),
    "archived": Word("Left out of the inbox until somebody else writes."),
    "ChannelView.archived": Word("Takes no messages and leaves the totals."),
    "PutChannel.archived": Word("Takes no messages and leaves the totals."),
    "at": Word("Its time. In answers ms since 1970; never the same for two messages of a channel."),
    "avatar": Word("A picture, in whatever form the product keeps it.", "max_text"),
    "backfill": Word("History: stored without a seq and never counted. Service keys only."),
    "badge": Word("How many different people wrote while the user was away."),
    "before": Word("The count before."),
    "by_sender": Word("What was written meanwhile, by who wrote it."),
    "changed": Word("Whether it changed anything."),
    "AllRead.changed": Word("In how many channels it changed anything."),
    "Undone.changed": Word("How many channels have their earlier state again."),
    "channel_id": Word("The channel."),
    "channels": Word("How many channels have anything unread."),
    "Sync.channels": Word("What is unread in each channel."),
    "code": Word("The error, for programs."),
    "conversations": Word("The rows, in order."),
    "count": Word("What is counted as unread: everything, only mentions, or nothing."),
    "Seen.count": Word("How many have read it."),
    "cursor": Word("Gives the next page; null at the end."),
    "deleted": Word("Whether it is deleted."),
    "dependencies": Word('Each thing that the service needs, and "ok" or what is wrong with it.'),
    "detail": Word("The error, for people."),
    "device": Word("The device."),
    "devices": Word("The devices that are connected."),
    "durable": Word("The count from the durable store."),
    "epoch": Word("Raised by every mark-unread. A read that names an epoch that is over changes nothing."),
    "exact": Word("Whether the number is exact; if not, `reason` says why."),
    "field": Word("The field or parameter that is wrong."),
    "first_unread": Word("The oldest unread message: where the red line goes."),
    "following": Word("Whether the user follows the thread."),
    "from": Word("The first message that is unread again."),
    "has_unread": Word("The dot: whether anything is unread, whatever `count` says."),
    "history": Word("What a new member finds: everything read, everything unread, or the last n messages unread."),
    "hot": Word("The count from the hot state."),
    "id": Word("The message's id, unique in its channel; made by Readstate if none is given."),
    "items": Word("Reads in single channels.", "max_batch"),
    "joined_at": Word("When the user joined."),
    "joined_seq": Word("The newest message when the user joined."),
    "line": Word("The number of the line."),
    "label": Word('The number as a badge shows it: "", "1" … "99", "99+".'),
    "last_message": Word("The newest message that is not deleted."),
    "last_read_id": Word("The message that the pointer stands at; null where it is not known."),
    "last_read": Word("The read pointer: the message up to which everything is read."),
    "last_read_seq": Word("How far the user has read."),
    "last_seen": Word("When a device was last connected; null if never."),
    "latest": Word("The newest message that is not deleted."),
    "latest_seq": Word("The newest seq of the channel."),
    "member_count": Word("How many members the channel has."),
    "members": Word("The members."),
    "PutChannel.members": Word("Users who become members.", "max_batch"),
    "mentions": Word("How many unread messages mention the user."),
    "MessageEdit.mentions": Word("Who is mentioned: user ids, `@channel`, `@here`.", "max_mentions"),
    "MessageView.mentions": Word("Who is mentioned: user ids, `@channel`."),
    "NewMessage.mentions": Word("Who is mentioned: user ids, `@channel`, `@here`.", "max_mentions"),
    "messages": Word("The messages.", "max_batch"),
    "ReadTarget.messages": Word("Exactly these are read, whatever stands before them.", "max_batch"),
    "minus": Word("Why messages after the pointer are not unread."),
    "mode": Word("How the channel is counted: by a set per member, or by one timeline for all."),
    "muted": Word("Whether it leaves the totals."),
    "PutPreferences.muted": Word("Whether it leaves the totals; a time is when the mute ends."),
    "name": Word("The channel's name.", "max_text"),
    "of": Word("How many could have read it: the members other than its sender."),
    "online": Word("Whether a device is connected."),
    "outside": Word("Sent by somebody who need not be a member: bots, notices. Service keys only."),
    "own": Word("Sent by the user."),
    "pinned": Word("First in every order of the inbox."),
    "pointer": Word("The read pointer."),
    "preview": Word("What an inbox shows of it: given, or the beginning of the text.", "max_text"),
    "read_apart": Word("Read one by one."),
    "read_at": Word("When the pointer last moved: the message was read at that time at the latest."),
    "reads": Word("Reads of any users.", "max_batch"),
    "reason": Word(
        "Why the count is not exact: `capped` (more than it keeps; a lower bound) or `stale` (the last known value: "
        "a dependency is down or behind)."
    ),
    "receipts": Word("Whether others see what the user has read."),
    "Receipts.receipts": Word("How far each member has read."),
    "Refused.reason": Word("Why it was not taken."),
    "refused": Word("The lines that were not taken."),
    "remove": Word("Users who leave.", "max_batch"),
    "removed": Word("How many were members before."),
    "Sync.removed": Word("Channels that were left or deleted."),
    "results": Word("One for each item, in the same order."),
    "retry": Word("Whether the same request may succeed later."),
    "sender_id": Word("Who sent it."),
    "senders": Word("How many different people."),
    "sent_at": Word("The time that the sender gave, as it was."),
    "seq": Word("Its place in the channel: 1, 2, 3 …; null if it has none (a backfill, a reply in a thread only)."),
    "LastRead.seq": Word("Everything up to this place is read; 0 when nothing is."),
    "silent": Word("Counted for nobody."),
    "status": Word("How it went."),
    "Problem.status": Word("The HTTP status."),
    "sync": Word("Give it as `since` to get what has changed after this answer."),
    "tapped_at": Word("When the badge was tapped, in ms since 1970."),
    "text": Word("What it says.", "max_text"),
    "thread_id": Word("The root message of the thread."),
    "thread_seq": Word("Its place in the thread."),
    "threads": Word("How many followed threads have anything unread."),
    "Sync.threads": Word("Sums over the followed threads."),
    "Threads.threads": Word("The followed threads."),
    "title": Word("What the HTTP status means."),
    "totals": Word("Sums over everything, not over this page alone."),
    "type": Word("direct: two people at most; group: invited; channel: open."),
    "Problem.type": Word("The kind of problem; `code` says more."),
    "undo": Word("Takes it back, for 10 minutes."),
    "unread": Word("How many messages are unread."),
    "up_to": Word("Everything up to this message is read."),
    "up_to_seq": Word("Everything up to this seq is read."),
    "up_to_time": Word("Everything up to this time is read."),
    "user_id": Word("The user."),
    "users": Word("The users.", "max_batch"),
}
"""Names of fields, everywhere or in one struct. What a struct says of its own field comes before."""
